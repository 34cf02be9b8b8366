"""Once all is well again, an all-reduce under way ends soon: nothing is stuck until its deadline gives it up.

A job that gives an operation up starts anew, and may then well finish: so a ring that a single loss stops
for ever would not be noticed by the demand that every job finishes. Here it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inaproto.errors import OperationTimeout
from inaproto.sim.checkers.checker import Checker, Violated
from inaproto.units import S

if TYPE_CHECKING:
    from inaproto.sim.rank import SimRank
    from inaproto.sim.world import World

RECOVERY_NS: Final = 3 * S
"""Retransmission timers double up to a second; two of them may have to pass."""


class NothingStuck(Checker):
    name = "nothing stays stuck"

    def begin(self, world: World) -> None:
        self._world = world

    def failed(self, rank: SimRank, op_index: int, code: str) -> None:
        world = self._world
        well_ns = world.agenda.now - world.config.weather_until_ns
        if code == OperationTimeout.code and well_ns > RECOVERY_NS:
            raise Violated(
                self.name,
                f"{rank} gave all-reduce {op_index} up, though for {well_ns / S:.1f} s all has been well",
            )
