"""Results that are built where a port sends them from: in memory that it lends.

What is built elsewhere is copied into the port's memory, an eighth of what a switch does whose ports are
memory that hosts share. Only results of many packets, by compiled kernels, that leave by one port: the rest
is little, or goes to several.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.switch.events import Action, Egress, EmitFrames
from inaproto.core.switch.packet_memory import CUTS_MAX, Cut, Lender, OutputArena, Parts
from inaproto.core.switch.region import Region
from inaproto.core.switch.region_kernels import RegionKernels
from inaproto.units import PortId
from inaproto.wire.outer import dress

LENT_BYTES_MIN: Final = 32 << 10
"""From so many on, it costs less to build results for each port apart than to copy them to all."""


class PortArena:
    """The memory of a port for what a step emits there; while it has none, that of ``arena``."""

    def __init__(self, lender: Lender, arena: OutputArena) -> None:
        self._lender = lender
        self._arena = arena
        self._memory: tuple[NDArray[np.uint8], int] | None = None
        self._cuts: dict[tuple[int, Parts], Cut] = {}
        self.order, self.order_at = arena.order, arena.order_at

    def take_cut(self, ranks: int, parts: Parts) -> Cut:
        """As ``OutputArena.take_cut``."""
        size = ranks * sum([packets * frame_bytes for packets, frame_bytes in parts])
        at = self._lender.lend(size)
        if at < 0:
            return self._arena.take_cut(ranks, parts)
        if self._lender not in self._arena.lent:
            self._arena.lent.append(self._lender)
        cut = self._cuts.get((at, parts))
        if cut is None:
            if self._memory is None:
                memory = self._lender.lent_memory()
                self._memory = memory, memory.ctypes.data
            memory, address = self._memory
            if len(self._cuts) >= CUTS_MAX:
                self._cuts.clear()
            cut = self._cuts[at, parts] = Cut(memory[at : at + size], address + at, ranks, parts)
        return cut


class PortMemories:
    """Arenas of all ports that lend."""

    def __init__(self, arena: OutputArena) -> None:
        self._arena = arena
        self.arenas: dict[PortId, PortArena] = {}

    def port_up(self, port: PortId, lender: Lender | None) -> None:
        if lender is not None:
            self.arenas[port] = PortArena(lender, self._arena)

    def port_down(self, port: PortId) -> None:
        self.arenas.pop(port, None)

    def emit(
        self,
        region: Region,
        kernels: RegionKernels,
        begin: int,
        end: int,
        egress: Egress,
        actions: list[Action],
    ) -> None:
        """Build each flow's results in the memory of the port by which they leave."""
        for rank, way in enumerate(egress):
            ports, tag = way
            port = PortId(ports[0]) if len(ports) == 1 and not tag else None
            arena = self.arenas.get(port) if port is not None else None
            ranks = slice(rank, rank + 1)
            if port is None or arena is None:
                cut = region.cut_out(kernels, ranks, begin, end, self._arena)
                actions += each(cut.blocks, [way])
                continue
            cut = region.cut_out(kernels, ranks, begin, end, arena)
            if cut.egress != port:
                cut.egress, cut.sent = port, [EmitFrames(port, block[0]) for block in cut.blocks]
            actions += cut.sent


def each(blocks: list[NDArray[np.uint8]], egress: Egress) -> list[EmitFrames]:
    """The packets of each rank, uint8 (ranks, n, frame_bytes), as they leave."""
    sent = []
    for block in blocks:
        for (ports, tag), row in zip(egress, block, strict=True):
            frames = dress(row, tag) if tag else row
            for port in ports:
                sent.append(EmitFrames(PortId(port), frames))  # noqa: PERF401  the hot loop
    return sent
