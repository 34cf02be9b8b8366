"""The far end of a link asks for silence, as a bridge does that runs out of room (IEEE 802.3 annex 31B, PFC).

Both ends of a link here are ours; one stands for what would be between. It asks anew before the last pause is
over, as bridges do, and then says that all may go on, or lets the last one run out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inaproto.units import MS, Instant
from inaproto.wire.pause import pause_frame

if TYPE_CHECKING:
    from inaproto.sim.frames.draw.swarm import Fault
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.link import SimLink
    from inaproto.sim.frames.world import World

AGAIN_NS: Final = 2 * MS
LONGEST_NS: Final = 4 * MS
"""More than any pause lasts."""
_FROM: Final = bytes([2, 0, 0, 0, 3, 1])
_PRIORITIES: Final = ((), (0,), tuple(range(1, 8)))
PAUSE_KINDS: Final = len(_PRIORITIES)
"""Of everything, of the priority that rings use, of all others, which nobody may notice."""


class LinkPauses:
    def __init__(self, world: World) -> None:
        self._world = world
        self._lasting: dict[str, Instant] = {}
        """Until when a pause of a link's direction lasts, by its name: of several, the last to end counts."""

    def begin(self, fault: Fault, host: SimHost) -> bool:
        """Who sends upward on the link is asked, or downward; False if nobody is there to ask."""
        world = self._world
        if fault.trunk >= 0:
            trunk = world.trunks[fault.trunk - 1]
            asked, by = (trunk.down, trunk.up) if fault.is_downward else (trunk.up, trunk.down)
            is_there = trunk.is_open
        else:
            down = world.downlinks[host.number]
            asked, by = (down, host.uplink) if fault.is_downward else (host.uplink, down)
            is_there = host.is_up and host.switch.is_up
        ends = Instant(world.agenda.now + fault.duration_ns)
        self._lasting[asked.name] = max(ends, self._lasting.get(asked.name, ends))
        self._ask((fault, asked, by))
        return is_there

    def _ask(self, whom: tuple[Fault, SimLink, SimLink]) -> None:
        fault, asked, by = whom
        left = self._lasting[asked.name] - self._world.agenda.now
        # Half of the pauses run out, the others are taken back.
        silence_ns = left if fault.duration_ns % 2 == 1 or left <= 0 else LONGEST_NS
        by.begin_here(pause_frame(_FROM, silence_ns, _PRIORITIES[fault.process % PAUSE_KINDS]))
        if left > 0:
            self._world.agenda.after(min(left, AGAIN_NS), self._ask, whom)
