"""Once all is well again, an all-reduce under way ends soon: nothing is stuck until its deadline gives it up.

A job that gives an operation up starts anew, and may then well finish: so a ring that a single loss stops
for ever would not be noticed by the demand that every job finishes. Here it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inaproto.errors import OperationTimeout
from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.kernel.violated import Violated
from inaproto.units import S

if TYPE_CHECKING:
    from inaproto.core.switch.ring_spec import RingSpec
    from inaproto.sim.frames.host.rank import SimRank
    from inaproto.sim.frames.switch import SimSwitch
    from inaproto.sim.frames.world import World

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
                f"{rank} gave all-reduce {op_index} up, though for {well_ns / S:.1f} s all has been well; "
                f"{_lacks(rank)}; {_at_switch(world, rank.ring.ina_ring_id or rank.ring.ring_id)}",
            )


def _lacks(rank: SimRank) -> str:
    """What the rank has and lacks, by its own account."""
    engine = rank.ring.engine
    if engine is None:
        return "it has no ring any more"
    if rank.ring.waits_here:
        return "others of its host have not called it"
    view = engine.view()
    return (
        f"it has {view.results} of its {view.messages} results; in this ring it sent "
        f"{view.messages_sent} messages, {view.unacknowledged} of them without an ACK, and got "
        f"{view.messages_received}"
    )


def _at_switch(world: World, ring_id: int) -> str:
    """The first packet without a result in the ring, and whose packets are there, at each of its switches."""
    holding = [switch for switch in world.switches if switch.is_up and ring_id in switch.accelerator.rings]
    if not holding:
        return "the switch does not have this ring"
    return "; ".join(f"at {switch} {_waits(switch, ring_id)}" for switch in holding)


def _waits(switch: SimSwitch, ring_id: int) -> str:
    ring = switch.accelerator.rings[ring_id]
    held = sorted((region for region in ring.array.regions if region.serial >= 0), key=lambda one: one.serial)
    for region in held:
        for packet in range(region.packets):
            if not region.done[packet]:
                here = [row for row in range(len(region.seen)) if region.seen[row, packet]]
                return (
                    f"message {region.serial} waits at packet {packet} of {region.packets}, "
                    f"which it has of {_say_inputs(ring.spec)} {here} of {len(region.seen)}"
                )
    newest = f"up to message {held[-1].serial}" if held else "and has seen no message"
    return f"there is every result of the messages it knows, {newest}"


def _say_inputs(spec: RingSpec) -> str:
    return "ranks" if spec.role is None else "inputs"
