"""Survivors of an elastic job agree on who goes on: rules, and every order of events of up to four ranks."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from inaproto.core.rendezvous.regrouping import (
    HANDLERS,
    Answer,
    Came,
    Decline,
    Lost,
    Outcome,
    Phase,
    Regrouping,
    RegroupingAction,
    RegroupingEvent,
    TimePassed,
    Unseen,
)
from inaproto.errors import LocalMisuse
from inaproto.units import Instant, S

START = Instant(7 * S)
WAIT = 5 * S
END = Instant(START + WAIT)


def regrouping(*ranks: int) -> Regrouping:
    return Regrouping(ranks, now=START, wait_ns=WAIT)


def at(seconds: float) -> Instant:
    return Instant(START + int(seconds * S))


def state(core: Regrouping) -> tuple[Phase, Instant | None, Outcome | None]:
    return core.phase, core.deadline, core.outcome


def test_who_has_come_goes_on_in_the_old_order_from_what_all_have() -> None:
    core = regrouping(5, 0, 2)
    assert core.awaited == (0, 2, 5)
    assert core.step(Came(5, 9), at(1)) == core.step(Came(0, 8), at(1)) == []
    assert list(core.awaited) == [2]
    outcome = Outcome((0, 2, 5), 8)
    assert core.step(Came(2, 10), at(2)) == [Answer(rank, outcome) for rank in (0, 2, 5)]
    assert (core.phase, core.outcome) == (Phase.DECIDED, outcome)


def test_a_rank_that_is_lost_meanwhile_is_not_waited_for() -> None:
    core = regrouping(0, 1, 2)
    core.step(Came(0, 3), at(1))
    core.step(Came(1, 2), at(1))
    assert core.step(Lost(2, "it was killed"), at(2)) == [Answer(rank, Outcome((0, 1), 2)) for rank in (0, 1)]


def test_a_rank_that_came_and_was_lost_before_the_decision_does_not_count() -> None:
    core = regrouping(0, 1, 2)
    core.step(Came(0, 1), at(1))
    assert core.step(Lost(0, "it was killed"), at(1)) == core.step(Lost(0, "again"), at(1)) == []
    assert core.step(Came(0, 1), at(1)) == [Decline(0, "it was killed")]
    core.step(Came(1, 5), at(2))
    assert core.step(Came(2, 4), at(2)) == [Answer(rank, Outcome((1, 2), 4)) for rank in (1, 2)]
    assert core.step(Came(0, 1), at(3)) == [Decline(0, "it was killed")]


def test_who_has_not_come_in_time_counts_as_lost() -> None:
    core = regrouping(0, 1)
    core.step(Came(1, 4), at(1))
    assert core.deadline == END
    assert core.step(TimePassed(), Instant(END - 1)) == []
    assert core.step(TimePassed(), END) == [Answer(1, Outcome((1,), 4))]
    assert core.step(Came(0, 4), at(6)) == [Decline(0, "it did not say within 5 s that it goes on")]


def test_a_rank_whose_host_is_away_has_to_come_again() -> None:
    core = regrouping(0, 1)
    core.step(Came(0, 4), at(1))
    assert core.step(Unseen(0), at(1)) == []
    assert core.step(Came(1, 4), at(2)) == []
    assert core.awaited == (0,)
    assert core.step(Came(0, 4), at(2)) == [Answer(rank, Outcome((0, 1), 4)) for rank in (0, 1)]


def test_a_lost_rank_does_not_come_back_with_its_host() -> None:
    core = regrouping(0, 1)
    core.step(Lost(0, "it was killed"), at(1))
    assert core.step(Unseen(0), at(1)) == []
    assert (core.awaited, core.lost) == ((1,), (0,))


def test_the_answer_is_kept_and_repeated_until_the_time_to_join_is_over() -> None:
    core = regrouping(0, 1)
    core.step(Came(0, 4), at(1))
    core.step(Came(1, 4), at(3))
    for event in (Unseen(0), Unseen(1), TimePassed()):
        assert core.step(event, at(3)) == []
    assert core.step(Came(1, 0), at(4)) == [Answer(1, Outcome((0, 1), 4))]
    assert core.deadline == at(8)
    assert core.step(TimePassed(), Instant(at(8) - 1)) == []
    assert state(core)[0] is Phase.DECIDED
    assert core.step(TimePassed(), at(8)) == []
    over = (Phase.OVER, None, Outcome((0, 1), 4))
    assert state(core) == over
    assert core.step(Came(0, 4), at(8)) == [Decline(0, "it is too late for it")]


def test_a_rank_that_is_lost_after_the_decision_begins_another_round() -> None:
    core = regrouping(0, 1, 2)
    core.step(Lost(0, "it was killed"), at(1))
    core.step(Came(1, 4), at(1))
    core.step(Came(2, 5), at(1))
    assert core.step(Lost(0, "again"), at(2)) == []
    assert state(core)[0] is Phase.DECIDED
    assert core.step(Lost(1, "it was killed, too"), at(3)) == []
    assert state(core) == (Phase.GATHERING, at(8), None)
    assert core.awaited == (2,)
    assert core.step(Came(1, 4), at(3)) == [Decline(1, "it was killed, too")]
    assert core.step(Came(2, 5), at(4)) == [Answer(2, Outcome((2,), 5))]
    assert core.deadline == at(9)
    core.step(Lost(2, "it was killed at last"), at(5))
    assert state(core) == (Phase.OVER, None, None)


def test_it_is_over_when_nobody_is_left() -> None:
    assert regrouping().phase is Phase.OVER
    core = regrouping(0, 1)
    core.step(Lost(0, "it was killed"), at(1))
    assert core.step(Lost(1, "it was killed"), at(1)) == []
    assert state(core) == (Phase.OVER, None, None)
    assert core.step(Came(1, 1), at(2)) == [Decline(1, "it was killed")]
    for event in (Lost(1, "again"), Unseen(1), TimePassed()):
        assert core.step(event, at(20)) == []


def test_only_survivors_are_heard() -> None:
    core = regrouping(0, 2)
    for event in (Came(1, 0), Lost(1, ""), Unseen(1)):
        with pytest.raises(LocalMisuse, match="rank 1 is not among the survivors"):
            core.step(event, START)
    assert core.awaited == (0, 2)


def test_the_table_is_complete() -> None:
    assert HANDLERS.keys() == {
        (phase, event) for phase in Phase for event in (Came, Lost, Unseen, TimePassed)
    }


# --- every order of events


class Explored:
    """All runs: each rank's process may come, die once; its host may go away and come back; time may pass."""

    def __init__(self, ranks: int, unseen_max: int) -> None:
        self.ranks = ranks
        self.unseen_max = unseen_max
        self.seen: set[object] = set()
        self.outcomes: set[Outcome] = set()
        self.ends = 0

    def explore(self) -> None:
        core = regrouping(*range(self.ranks))
        self._from(core, frozenset(), frozenset(range(self.ranks)), {}, START, 0)

    def _events(
        self, core: Regrouping, asked: frozenset[int], alive: frozenset[int], unseen: int
    ) -> Iterator[tuple[RegroupingEvent, frozenset[int], frozenset[int], int]]:
        yield TimePassed(), asked, alive, unseen
        for rank in range(self.ranks):
            if rank in alive and rank not in asked:
                yield Came(rank, 10 + rank % 2), asked | {rank}, alive, unseen
            if rank in alive:
                yield Lost(rank, "it was killed"), asked - {rank}, alive - {rank}, unseen
            if rank in asked and unseen < self.unseen_max:
                yield Unseen(rank), asked - {rank}, alive, unseen + 1

    def _from(
        self,
        core: Regrouping,
        asked: frozenset[int],
        alive: frozenset[int],
        told: dict[int, RegroupingAction],
        now: Instant,
        unseen: int,
    ) -> None:
        state = (
            core.phase,
            core.outcome,
            core.deadline,
            tuple(core._came.items()),
            tuple(core._lost),
            asked,
            alive,
            tuple(sorted(told.items())),
            now,
            unseen,
        )
        if state in self.seen:
            return
        self.seen.add(state)
        for event, next_asked, next_alive, next_unseen in self._events(core, asked, alive, unseen):
            later = now
            if isinstance(event, TimePassed):
                if core.deadline is None:
                    self.ends += 1
                    continue
                later = core.deadline
            branch = copy.deepcopy(core)
            was_decided = branch.outcome
            heard = dict(told)
            for action in branch.step(event, later):
                self._check(action, branch, next_asked)
                heard[action.rank] = action
            if was_decided is not None and branch.outcome != was_decided:
                is_loss = isinstance(event, Lost) and event.rank in was_decided.ranks
                assert is_loss, "an outcome was taken back, though all of it are there"
                assert branch.outcome is None, "it was decided twice in a round"
                next_asked -= set(was_decided.ranks)  # they find out, and come again
            heard = {rank: action for rank, action in heard.items() if rank in next_asked}
            if isinstance(event, TimePassed):
                assert next_asked <= heard.keys(), "a rank that came has no answer in time"
            if branch.outcome is not None:
                self.outcomes.add(branch.outcome)
            self._from(branch, next_asked, next_alive, heard, later, next_unseen)

    def _check(self, action: RegroupingAction, core: Regrouping, asked: frozenset[int]) -> None:
        assert action.rank in asked, "a rank is told what it did not ask"
        if isinstance(action, Answer):
            assert action.outcome == core.outcome, "survivors are told different things"
            assert action.rank in action.outcome.ranks
            assert action.outcome.agreed == min(10 + rank % 2 for rank in action.outcome.ranks)
        else:
            is_out = core.outcome is None or action.rank not in core.outcome.ranks
            assert is_out or core.phase is Phase.OVER


@pytest.mark.parametrize(("ranks", "unseen_max"), [(2, 2), (3, 1), (4, 0)])
def test_in_every_order_all_that_are_answered_hear_the_same_and_all_hear_in_time(
    ranks: int, unseen_max: int
) -> None:
    explored = Explored(ranks, unseen_max)
    explored.explore()
    assert explored.ends
    assert {outcome.ranks for outcome in explored.outcomes} == {
        tuple(rank for rank in range(ranks) if chosen >> rank & 1) for chosen in range(1, 1 << ranks)
    }
