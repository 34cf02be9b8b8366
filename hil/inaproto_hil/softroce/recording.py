"""A capture of what crosses frame ports: each frame with its port and its direction, seen from the switch.

It keeps everything in memory until it is asked for: for the few thousand frames of a bench.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from inaproto.ports import FramePort, FramePortCapabilities, PortCounters
from inaproto.units import Frames
from inaproto.wire.pcapng import CaptureWriter, Direction, Interface


class Recording:
    def __init__(self) -> None:
        self._writer = CaptureWriter([])
        self._parts: list[bytes] = [self._writer.header()]

    def add_port(self, name: str) -> int:
        """Its number, for ``add``."""
        number, block = self._writer.add_interface(Interface(name))
        self._parts.append(block)
        return number

    def add(self, port: int, direction: Direction, frames: Frames) -> None:
        self._parts.append(self._writer.packets(port, time.time_ns(), frames, direction).tobytes())

    def wrap(self, port: FramePort, name: str) -> FramePort:
        """The port, with all that crosses it recorded under ``name``."""
        return _Recorded(port, self, self.add_port(name))

    def pcapng(self) -> bytes:
        return b"".join(self._parts)


class _Recorded:
    def __init__(self, port: FramePort, recording: Recording, number: int) -> None:
        self._port = port
        self._recording = recording
        self._number = number

    @property
    def capabilities(self) -> FramePortCapabilities:
        return self._port.capabilities

    @property
    def counters(self) -> PortCounters:
        return self._port.counters

    async def receive(self) -> Sequence[Frames]:
        blocks = await self._port.receive()
        for block in blocks:
            self._recording.add(self._number, Direction.INBOUND, block)
        return blocks

    def send_nowait(self, frames: Frames) -> int:
        self._recording.add(self._number, Direction.OUTBOUND, frames)
        return self._port.send_nowait(frames)

    async def run(self) -> None:
        await self._port.run()

    async def aclose(self) -> None:
        await self._port.aclose()
