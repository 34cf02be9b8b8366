"""How the moves of jobs are followed and measured, look by look (MINA section IV-A)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inaproto.core.migration.events import JobView, Migration, Phase
from inaproto.core.migration.moves import MOVES_MAX, Move, MovePhase, Moves
from inaproto.wire.messages.trees import FabricTree, TreePhase, TreeState, TreeWished

JOB = "train"


@dataclass
class Looks:
    """Looks at one job; each says all that is known then. ``wish``: root (empty: nowhere), and epoch."""

    moves: Moves = field(default_factory=Moves)
    measured: tuple[Migration, ...] = ()
    said: list[MovePhase] = field(default_factory=list)

    def __call__(
        self,
        now: float,
        phase: Phase | None,
        ring: TreePhase,
        *,
        epoch: int = 1,
        wish: tuple[str, int] | None = ("old", 1),
        target: str = "new",
        operation: int | None = None,
        reason: str = "",
        name: str = JOB,
    ) -> list[str]:
        """Phases of the moves that are told."""
        state = TreeState(name, ("h0", "h1"), epoch, ring, "", reason)
        jobs = [] if phase is None else [JobView(name, phase, None, None, 0)]
        wishes = {}
        if wish is not None:
            wishes = {name: TreeWished(name, wish[1], FabricTree(wish[0]) if wish[0] else None)}
        places = {} if operation is None else {name: operation}
        targets = {name: target} if target else {}
        said = self.moves.look(jobs, {name: state}, wishes, targets, self.measured, places, now)
        self.said = said
        return [one.phase for one in said]

    def only_job(self, names: Sequence[str]) -> list[MovePhase]:
        """All others are gone."""
        states = {name: TreeState(name, (), 1, "standing") for name in names}
        return self.moves.look((), states, {}, {}, (), {}, 0.0)

    @property
    def move(self) -> Move:
        (move,) = self.moves.under_way
        return move

    @property
    def last(self) -> Move:
        found = self.moves.last(JOB)
        assert found is not None
        return found


def standing(target: str = "old") -> Looks:
    """A job whose ring stands on its old tree."""
    looks = Looks()
    assert looks(1.0, Phase.STABLE, "standing", target=target) == []
    assert looks.moves.root_of(JOB) == "old"
    assert looks.moves.under_way == ()
    return looks


def test_a_move_is_measured_part_by_part() -> None:
    looks = standing()
    looks.measured = tuple(
        Migration(JOB, 9, epoch, 0, 0, barrier_ns=500_000_000, acquire_ns=1_500_000_000, refusals=epoch)
        for epoch in (1, 3, 4)
    )
    assert looks(2.0, Phase.DRAINING, "parking", wish=("", 1), operation=6) == ["draining"]
    assert looks.said == [MovePhase(JOB, "old", "new", "draining")]
    told = [
        looks(2.5, Phase.DRAINING, "parking", wish=("", 1), operation=7),
        looks(3.0, Phase.DRAINING, "parked", wish=("", 1)),
        looks(4.0, Phase.RELEASING, "parked", wish=("", 1), operation=8),
        looks(5.0, Phase.ACQUIRING, "parked", wish=("", 1)),
        looks(8.0, Phase.STABLE, "parked", wish=("new", 3)),
        looks(9.0, Phase.STABLE, "moving", wish=("new", 3)),
    ]
    assert told == [[], [], ["releasing"], ["acquiring"], ["installing"], []]
    assert looks.move == Move(
        1, JOB, "old", "new", 2.0, phase="installing", parked=3.0, acquired=8.0, operation=7
    )
    assert looks.moves.root_of(JOB) == "old"
    assert looks.moves.last(JOB) is None
    assert looks(12.0, Phase.STABLE, "standing", epoch=3, wish=("new", 3)) == ["stable"]
    assert looks.said == [MovePhase(JOB, "old", "new", "stable")]
    done = Move(
        1, JOB, "old", "new", 2.0,
        phase="stable", epoch=3, parked=3.0, acquired=8.0,
        drain_s=1.0, release_s=3.0, barrier_s=0.5, acquire_s=1.5, install_s=4.0, total_s=10.0,
        refusals=3, operation=7,
    )  # fmt: skip
    assert (looks.moves.done, looks.moves.under_way) == ((done,), ())
    assert done.downtime_s == 9.0
    assert (looks.moves.root_of(JOB), looks.last) == ("new", done)


def test_what_nobody_has_seen_of_a_move_took_no_time() -> None:
    """The root's reports were late: the ring stands when it is first heard of again."""
    looks = standing()
    assert looks(2.0, None, "standing", target="new") == ["draining"], "also where the plan alone has moved"
    looks.measured = (Migration(JOB, 9, 2, 0, 0, barrier_ns=10**9, acquire_ns=10**9, refusals=0),)
    assert looks(5.0, Phase.STABLE, "standing", epoch=2, wish=("new", 2)) == ["installing", "stable"]
    last = looks.last
    assert (last.drain_s, last.release_s, last.install_s, last.total_s) == (0.0, 1.0, 0.0, 3.0)
    assert (last.parked, last.acquired, last.operation, last.operations) == (None, 5.0, None, None)


def test_slots_that_came_before_the_ring_was_given_up_cost_nothing() -> None:
    looks = standing()
    looks(2.0, Phase.DRAINING, "parking")
    looks(4.0, Phase.STABLE, "parking", wish=("new", 2))
    looks(6.0, Phase.STABLE, "parked", wish=("new", 2))
    assert looks(9.0, Phase.STABLE, "standing", epoch=2, wish=("new", 2)) == ["stable"]
    last = looks.last
    assert (last.drain_s, last.install_s, last.barrier_s, last.release_s) == (4.0, 3.0, 0.0, 0.0)


def test_a_release_never_takes_less_than_no_time() -> None:
    looks = standing()
    looks.measured = (Migration(JOB, 9, 2, 0, 0, barrier_ns=10**10, acquire_ns=10**9, refusals=0),)
    looks(2.0, Phase.DRAINING, "parked")
    looks(3.0, Phase.STABLE, "standing", epoch=2, wish=("new", 2))
    assert (looks.last.release_s, looks.last.barrier_s) == (0.0, 10.0)


def test_a_job_that_lost_a_slot_moves_to_where_it_was() -> None:
    looks = standing()
    for phase in (Phase.STABLE, Phase.ADOPTING, Phase.RELEASING, None):
        assert looks(2.0, phase, "standing", target="old") == []
    assert looks(3.0, Phase.DRAINING, "standing", target="old", wish=("", 1)) == ["draining"]
    assert (looks.move.old, looks.move.new, looks.move.number) == ("old", "old", 1)
    assert looks(4.0, Phase.STABLE, "standing", target="old", epoch=2, wish=("old", 2)) == [
        "installing",
        "stable",
    ]
    assert looks(5.0, Phase.STABLE, "standing", target="new", epoch=2, wish=("old", 2)) == ["draining"]
    assert looks.move.number == 2


def test_where_the_plan_says_nothing_no_move_begins_and_one_goes_on() -> None:
    looks = standing()
    assert looks(2.0, Phase.DRAINING, "standing", target="") == []
    assert looks(3.0, Phase.DRAINING, "parking", wish=("", 1)) == ["draining"]
    assert looks(4.0, Phase.RELEASED, "parked", wish=("", 1), target="") == ["released"]
    assert looks.move.new == "new"
    assert looks(5.0, Phase.STABLE, "parked", wish=("new", 2), target="") == []
    assert looks.move.acquired is None, "nobody knows that it is to be there"
    assert looks(6.0, None, "standing", epoch=2, wish=("new", 2), target="") == ["stable"]


def test_a_plan_may_change_its_mind_meanwhile() -> None:
    looks = standing()
    looks(2.0, Phase.STABLE, "parked", wish=("new", 2))
    assert (looks.move.new, looks.move.acquired) == ("new", 2.0)
    assert looks(3.0, Phase.DRAINING, "parked", wish=("", 2), target="other") == ["draining"]
    assert (looks.move.new, looks.move.acquired) == ("other", None)
    assert looks(4.0, Phase.STABLE, "standing", epoch=2, wish=("new", 2), target="other") == []
    assert looks.moves.done == ()
    assert looks.moves.root_of(JOB) == "new", "its ring stands there meanwhile"
    assert looks(5.0, Phase.STABLE, "standing", epoch=3, wish=("other", 3), target="other") == [
        "installing",
        "stable",
    ]


def test_a_ring_stands_where_its_epoch_is_that_of_the_wish() -> None:
    looks = standing()
    assert looks(2.0, Phase.STABLE, "standing", epoch=1, wish=("new", 2)) == ["installing"]
    assert looks(3.0, Phase.STABLE, "moving", epoch=2, wish=("new", 2)) == []
    assert looks.moves.root_of(JOB) == "old"
    assert not looks.moves.has_ended_at(JOB, "old"), "it is under way"
    assert looks(4.0, Phase.STABLE, "standing", epoch=2, wish=("new", 2)) == ["stable"]
    assert looks.moves.has_ended_at(JOB, "new")
    assert not looks.moves.has_ended_at(JOB, "old")


def test_where_nobody_wished_a_ring_to_be_it_is_where_it_was_found_first() -> None:
    looks = Looks()
    assert looks(1.0, None, "standing", epoch=0, wish=None) == []
    assert looks.moves.root_of(JOB) == ""
    looks.moves.stands(JOB, "old")
    looks.moves.stands(JOB, "other")
    assert looks.moves.root_of(JOB) == "old"
    assert looks(2.0, Phase.ACQUIRING, "standing", epoch=0, wish=None) == ["acquiring"]
    assert looks(3.0, Phase.ACQUIRING, "standing", epoch=0, wish=None) == []
    assert looks.move.began == 2.0


def test_why_a_switch_has_refused_is_told_as_long_as_it_does() -> None:
    looks = standing()
    looks(2.0, Phase.STABLE, "refused", wish=("new", 2), reason="no room")
    assert (looks.move.failed, looks.move.parked) == ("no room", None)
    looks(3.0, Phase.STABLE, "parking", wish=("new", 2), reason="waits for h1")
    assert looks.move.failed == ""
    looks(4.0, Phase.STABLE, "refused", wish=("new", 2), reason="no room")
    looks(5.0, Phase.STABLE, "moving", wish=("new", 2))
    assert looks.move.failed == ""
    assert looks.move.parked == 5.0, "what moves has no ring either"


def test_operations_by_the_hosts_are_counted_once_the_job_says_where_it_is() -> None:
    looks = standing()
    looks(2.0, Phase.DRAINING, "parking", operation=7)
    looks(3.0, Phase.DRAINING, "parked")
    looks(3.5, Phase.RELEASING, "parked", operation=9)
    looks(4.0, Phase.STABLE, "standing", epoch=2, wish=("new", 2))
    assert (looks.last.operation, looks.last.operations) == (7, None)
    looks(5.0, Phase.STABLE, "standing", epoch=2, wish=("new", 2), operation=12)
    assert looks.last.operations == 5
    looks(6.0, Phase.STABLE, "standing", epoch=2, wish=("new", 2), operation=20)
    assert looks.last.operations == 5, "it is counted once"
    looks(7.0, Phase.DRAINING, "parked", epoch=2, wish=("", 2), target="old")
    assert looks(8.0, None, "standing", epoch=3, wish=("old", 3), target="old", operation=19) == [
        "installing",
        "stable",
    ]
    assert looks.last.operations == 0, "a job that began anew has none behind it"


def test_what_was_heard_while_the_hosts_summed_counts_for_the_next_move() -> None:
    looks = standing()
    looks(2.0, Phase.DRAINING, "parked", operation=7)
    looks(3.0, Phase.ACQUIRING, "parked", operation=9)
    looks(4.0, Phase.STABLE, "standing", epoch=2, wish=("new", 2))
    looks(5.0, Phase.DRAINING, "parked", epoch=2, wish=("", 2), target="old")
    assert looks.move.operation == 9


def test_the_last_moves_are_kept_whether_they_were_counted_or_not() -> None:
    looks = standing()
    for number in range(MOVES_MAX + 2):
        root = ("new", "old")[number % 2]
        looks(2.0, Phase.STABLE, "standing", epoch=number + 2, wish=(root, number + 2), target=root)
    done = looks.moves.done
    assert (len(done), done[0].number, looks.last.number) == (MOVES_MAX, 3, MOVES_MAX + 2)


def test_a_job_that_is_over_ends_its_move() -> None:
    looks = standing()
    looks(2.0, Phase.DRAINING, "parking")
    looks.moves.stands("a", "x")
    looks.moves.stands("there", "x")
    assert looks.only_job(["there"]) == [MovePhase(JOB, "old", "new", "job over")]
    assert [looks.moves.root_of(name) for name in (JOB, "a", "there")] == ["", "", "x"]
    assert (looks.moves.under_way, looks.moves.done) == ((), ())


def test_the_last_move_of_a_job_is_its_own() -> None:
    looks = standing()
    looks(2.0, Phase.STABLE, "standing", epoch=2, wish=("new", 2))
    looks(3.0, Phase.STABLE, "standing", wish=("old", 1), target="old", name="other")
    looks(4.0, Phase.STABLE, "standing", epoch=4, wish=("new", 4), name="other")
    assert [move.job for move in looks.moves.done] == [JOB, "other"]
    assert (looks.last.number, looks.last.began) == (1, 2.0)
    assert looks.moves.last("nobody") is None
