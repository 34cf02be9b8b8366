"""Adders that take time, in the world of frames: its switches add as fast as their capacities allow.

The deterministic world (``inaproto.sim.frames.world``) hands a frame to a switch when it arrives, and adding
takes no time. Here what comes to a switch from below waits in one line, whichever link it came by, and leaves
it for the accelerator when it has been served: tensor bytes for as long as the switch's capacity needs for
them, all else at once, in its place in the line. What comes from above, results, does not wait. A host's
own frames are held to its rate first. So the frames that a tree's switches really exchange, by the protocol
and its window, show at what rate the tree goes (PARING section III).

Times are integers, nanoseconds for each byte: whoever asks for rates that are none scales them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from inaproto.core.switch.aggregator import DATA_OPCODES
from inaproto.errors import InvariantBroken, Unsupported
from inaproto.sim.frames.world import World
from inaproto.units import Frames
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import RoceRun, decode_runs
from inaproto_controller.simulate.timed.tree_rate import SteadyRate, period_of

OPENING = (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM)


def tensor_bytes(frames: Frames) -> int:
    """Bytes of gradients, sums or results."""
    found = 0
    for run in decode_runs(frames):
        if isinstance(run, RoceRun) and run.opcode in DATA_OPCODES:
            header = INA_HEADER_BYTES if run.opcode in OPENING else 0
            found += len(run.frames) * (run.payload_bytes - header)
    return found


@dataclass(slots=True)
class Line:
    """Served in order of arrival."""

    world: World
    ns_per_byte: int
    free_at: int = 0

    def before(self, deliver: Callable[[list[Frames]], None]) -> Callable[[list[Frames]], None]:
        def arrive(blocks: list[Frames]) -> None:
            nbytes = sum(tensor_bytes(block) for block in blocks)
            now = int(self.world.agenda.now)
            self.free_at = max(self.free_at, now) + nbytes * self.ns_per_byte
            self.world.agenda.at(self.free_at, deliver, blocks)

        return arrive


@dataclass(slots=True)
class Watch:
    """When the results of each message begin to leave for a host."""

    world: World
    began: list[int] = field(default_factory=list)

    def see(self, link: str, frame: Frames) -> None:
        for run in decode_runs(frame):
            if isinstance(run, RoceRun) and run.opcode in OPENING and run.opcode in DATA_OPCODES:
                self.began.append(int(self.world.agenda.now))


def slow_down(world: World, adders: Mapping[str, int], host_ns_per_byte: int) -> None:
    """``adders``: nanoseconds for each byte, by name of the switches that add; before the world has run."""
    lines = {name: Line(world, pace) for name, pace in adders.items()}
    above = {switch.name: switch.trunk.above.name for switch in world.switches if switch.trunk is not None}
    for link in world.links:
        sender, _, receiver = link.name.partition(">")
        if receiver in lines and above.get(receiver) != sender:
            link.put_before_delivery(lines[receiver].before)
        if sender not in above and sender not in adders and receiver in above.keys() | adders.keys():
            link.put_before_delivery(Line(world, host_ns_per_byte).before)


def steady_gaps(began: Sequence[int], message_bytes: int, scale: int) -> SteadyRate:
    """The rate of a run whose messages began to come back then. ``scale``: nanoseconds for each byte, times
    Gbit/s. Raises ``Unsupported`` where it has not become steady."""
    if len(began) < 2:
        raise InvariantBroken("no results came back")
    gaps = [after - before for before, after in pairwise(began)]
    period = period_of(gaps[len(gaps) // 2 :])
    if not period:
        raise Unsupported(
            "a steady rate", f"{len(began)} messages of a tree: the times between them do not repeat"
        )
    took = began[-1] - began[-1 - period]
    return SteadyRate(Fraction(period * message_bytes * scale, took), period, len(began))
