"""Steps of an explored sharing group that are taken at once, or before all others: fewer states.

The verdict is that of the full search: ``tests/sim/test_explore_sharing.py``.

1. A letter that can have no effect any more (an old term or version) is delivered at once.
2. A vote, or a word that a seat is done, which the coordinator only counts is delivered, or struck by a
   fault, before all else. It commutes with all steps of seats; a wish in between makes of it a vote for a
   round that is over, which is answered as a question is. Not while the coordinator may crash, or a timer
   expire early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.explore.sharing.machines import COORDINATOR, is_void_for_coordinator, is_void_for_seat
from inaproto.sim.explore.sharing.states import DOWN, State
from inaproto.wire.messages.sharing import Done, Vote

if TYPE_CHECKING:
    from inaproto.sim.explore.sharing.world import SharingWorld


class Reductions:
    def __init__(self, world: SharingWorld) -> None:
        self._world = world
        self._void: dict[tuple[int, int], bool] = {}

    def canonical(self, state: State) -> State:
        """Letters that can have no effect any more are delivered."""
        world = self._world
        net = state[3]
        if not net or not world.config.reduced:
            return state
        crashes = world.extras[state[2]].crashes
        kept = tuple(one for one in world.nets[net] if not self._is_void(one, state, crashes))
        return state if len(kept) == len(world.nets[net]) else (*state[:3], world.nets.of(kept), *state[4:])

    def _is_void(self, number: int, state: State, crashes: int) -> bool:
        world = self._world
        to = world.letters[number].to
        if to == COORDINATOR and (state[0] == DOWN or crashes):
            return False
        key = (number, state[0] if to == COORDINATOR else state[4 + to])
        void = self._void.get(key)
        if void is None:
            message = world.letters[number].event.message
            if to == COORDINATOR:
                void = is_void_for_coordinator(world.coordinator.cores[state[0]], message)
            else:
                void = is_void_for_seat(world.participants[to].cores[state[4 + to]], message)
            self._void[key] = void
        return void

    def is_quiet(self, state: State, number: int) -> bool:
        """Whether the coordinator only counts it."""
        world = self._world
        letter = world.letters[number]
        if letter.to != COORDINATOR or not isinstance(letter.event.message, Vote | Done):
            return False
        local, (sent, persist) = world.coordinator.step(state[0], number, letter.event)
        before, after = world.view(state), world.viewed((local,))[0]
        return not sent and persist is None and after.phase == before.phase
