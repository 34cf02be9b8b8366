"""Every interleaving with a seat that lives and is given up: its operations keep one epoch, and all can end.

The pool is kept apart by the epochs then, at the switch, which is not in this world: law L2 is left out.
"""

from __future__ import annotations

from typing import Any

import pytest

from inaproto.core.sharing.events import SeatGone, SeatsChanged
from inaproto.sim.explore.engine import explore
from inaproto.sim.explore.sharing.config import SharingWorldConfig
from inaproto.sim.explore.sharing.states import DOWN, HOST_CRASH, State, Step
from inaproto.sim.explore.sharing.world import SharingWorld
from inaproto.wire.messages.sharing import AT_ONCE, Rule


class GivesUp(SharingWorld):
    """``host_crashes``: seats that owe an answer and are given up; their job is left out, then taken in."""

    def violation(self, state: State) -> str | None:
        broken = super().violation(state)
        return None if broken is None or broken.startswith("L2") else broken

    def successors(self, state: State) -> list[tuple[Step, State]]:
        found = [one for one in super().successors(state) if one[0].what != HOST_CRASH]
        if state[0] == DOWN or self.is_finished(state) or not self.extras[state[2]].host_crashes:
            return found
        return found + [
            (Step(HOST_CRASH, number), self._given_up(state, number))
            for number in range(len(self.seats))
            if state[4 + number] != DOWN and self._owes(state, number)
        ]

    def _owes(self, state: State, number: int) -> bool:
        view, seat = self.view(state), self.seats[number]
        is_missing = view.phase == "committing" and seat in view.missing
        return is_missing or any(seat in one.undrained and one.turn.until == AT_ONCE for one in view.turns)

    def _given_up(self, state: State, number: int) -> State:
        extra, seat = self.extras[state[2]], self.seats[number]
        less = self.extras.of(extra._replace(host_crashes=extra.host_crashes - 1))
        after = (*state[:2], less, *state[3:])
        after = self._to_coordinator(after, ("gone", number), SeatGone(seat, "it owes an answer"))
        members = self._members(state, extra)
        without = tuple(one for one in members if one.job != seat.job)
        for seats in (without, members):
            after = self._to_coordinator(after, ("seats", seats), SeatsChanged(seats))
        return after


@pytest.mark.parametrize(
    "options",
    [
        {"jobs": 1, "hosts": 2, "turns": 2, "rounds": 2},
        {"jobs": 2, "hosts": 1, "turns": 2, "rounds": 2, "operations": 1},
        {"jobs": 1, "hosts": 2, "turns": 1, "rounds": 2, "operations": 1, "rule": Rule.EQUAL_INDEX},
    ],
    ids=str,
)
def test_a_seat_that_is_given_up_runs_no_operation_under_two_epochs(options: dict[str, Any]) -> None:
    verdict = explore(GivesUp(SharingWorldConfig(host_crashes=1, **options)), states_max=80_000)
    assert verdict.counterexample is None
    assert verdict.finished
