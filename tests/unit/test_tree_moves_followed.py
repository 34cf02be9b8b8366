"""What is kept of the moves of jobs between trees (MINA section IV-A)."""

from __future__ import annotations

from inaproto.core.migration.events import JobView, Phase
from inaproto.core.migration.moves import MOVES_MAX, Moves
from inaproto.wire.messages.trees import FabricTree, TreeState, TreeWished

JOB = "train"


def tree(root: str) -> FabricTree:
    return FabricTree(root, (("leaf0", root), ("leaf1", root)))


class Told:
    """Moves, as a service tells of them; time stands still."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.places: dict[str, int] = {}
        self.states: dict[str, TreeState] = {}
        self._jobs: dict[str, JobView] = {}
        self._wishes: dict[str, TreeWished] = {}
        self._targets: dict[str, str] = {}
        self.moves = Moves()

    def look(self, at: str, epoch: int, *, target: str, ring: str = "standing", name: str = JOB) -> None:
        phase = Phase.STABLE if at == target else Phase.DRAINING
        self._jobs[name] = JobView(name, phase, None, None, 0)
        self.states[name] = TreeState(name, ("h0", "h1"), epoch, ring, "shared", "")  # type: ignore[arg-type]
        self._wishes[name], self._targets[name] = TreeWished(name, epoch, tree(at)), target
        self.look_again()

    def look_again(self) -> None:
        said = self.moves.look(
            self._jobs.values(), self.states, self._wishes, self._targets, [], self.places, 1.0
        )
        self.phases += [one.phase for one in said]

    def end(self, *names: str) -> None:
        for name in names:
            for of_jobs in (self.states, self._jobs, self._wishes, self._targets):
                of_jobs.pop(name, None)
        self.look_again()

    def move(self, number: int, name: str = JOB) -> None:
        """To the other root, and where the job is after it is not known yet."""
        roots = ("spine", "spine1")
        at, to = roots[number % 2], roots[1 - number % 2]
        self.places[name] = 7
        self.look(at, number + 1, target=at, name=name)
        self.look(at, number + 1, target=to, ring="parked", name=name)
        del self.places[name]
        self.look(to, number + 2, target=to, name=name)

    @property
    def kept(self) -> tuple[int, int]:
        """Moves whose operations are to be counted, and jobs that are remembered."""
        return len(self.moves._counted), len(self.moves._last_operation)


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


def test_what_is_to_be_counted_of_moves_goes_with_their_jobs() -> None:
    told = Told()
    for number in range(10):
        told.move(0, f"job{number}")
        assert told.kept == (1, 1), "of the job that is there"
        told.end(f"job{number}")
    assert told.kept == (0, 0)


def test_what_is_to_be_counted_of_moves_goes_with_them() -> None:
    """A seat of the first one never opens again; its move is not remembered for ever."""
    told = Told()
    told.move(0, "first")
    for number in range(MOVES_MAX - 1):
        told.move(number)
    assert told.kept == (2, 2), "and the last move of the other"
    told.move(MOVES_MAX - 1)
    assert told.kept == (1, 2)


def test_a_job_that_never_stood_is_forgotten() -> None:
    told = Told()
    told.places[JOB] = 3
    told.look("spine", 1, target="spine", ring="parked")
    assert told.kept == (0, 1)
    told.end(JOB)
    assert told.kept == (0, 0)
