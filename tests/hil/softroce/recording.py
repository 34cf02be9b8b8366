"""A capture of what crosses frame ports: each frame with its port and its direction, seen from the switch.

It keeps everything in memory until it is asked for: for the few thousand frames of a bench.
"""

from __future__ import annotations

import time

from inaproto.ports import FramePort
from inaproto.units import Frames
from inaproto.wire.files.pcapng import CaptureWriter, Direction, Interface
from tests.hil.softroce.filtered_port import FilteredPort


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
        number = self.add_port(name)

        def passes(frames: Frames, port: str, *, is_result: bool) -> Frames:
            self.add(number, Direction.OUTBOUND if is_result else Direction.INBOUND, frames)
            return frames

        return FilteredPort(port, name, passes)

    def pcapng(self) -> bytes:
        return b"".join(self._parts)
