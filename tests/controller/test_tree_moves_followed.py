"""What is kept of the moves of jobs between trees (MINA section IV-A)."""

from __future__ import annotations

from inaproto.core.fabric_tree import FabricTree
from inaproto.core.rendezvous_types import TreeState, TreeWished
from inaproto.core.tree_migration_types import JobView, Phase
from inaproto_controller.tree_moves import Moves

JOB = "train"


def tree(root: str) -> FabricTree:
    return FabricTree(root, (("leaf0", root), ("leaf1", root)))


class Told:
    """Moves, as a service tells of them; time stands still."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.moves = Moves(lambda job, old, new, phase: self.phases.append(phase), lambda job: 7, lambda: 1.0)

    def look(self, at: str, epoch: int, *, target: str, ring: str = "standing") -> None:
        job = JobView(JOB, Phase.STABLE if at == target else Phase.DRAINING, None, None, 0)
        state = TreeState(JOB, ("h0", "h1"), epoch, ring, "shared", "")  # type: ignore[arg-type]
        self.moves.look([job], {JOB: state}, {JOB: TreeWished(JOB, epoch, tree(at))}, {JOB: target}, [])


def test_a_move_has_ended_once_its_end_was_looked_at() -> None:
    told = Told()
    told.look("spine", 1, target="spine")
    assert told.moves.has_ended_at(JOB, "spine")
    told.look("spine", 1, target="spine1")
    assert not told.moves.has_ended_at(JOB, "spine")
    assert not told.moves.has_ended_at(JOB, "spine1"), "its report may be here, but nobody has looked"
    told.look("spine1", 2, target="spine1")
    assert told.moves.has_ended_at(JOB, "spine1")
    last = told.moves.last(JOB)
    assert last is not None
    assert (last.old, last.new) == ("spine", "spine1")
    assert told.phases[-1] == "stable"


def test_of_a_job_that_is_not_known_no_move_has_ended() -> None:
    assert not Told().moves.has_ended_at(JOB, "spine")
