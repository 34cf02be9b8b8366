"""The ports of a switch, watched: what crosses each of them is decoded, kept, and may be lost on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inaproto.ports import FramePort
from inaproto.units import Frames
from inaproto.wire.packet import decode_packet
from tests.hil.softroce.filtered_port import FilteredPort
from tests.hil.softroce.wire import Count, Seen


@dataclass(frozen=True, slots=True)
class Crossing:
    """A RoCE frame at a port of the switch, on its way in or out."""

    seen: Seen
    port: str
    is_result: bool
    """It leaves the switch."""
    is_lost: bool


Loses = Callable[[Seen, bool], bool]
"""Whether a frame, which leaves the switch or does not, is to be lost at the port."""


class WatchedPorts:
    """``wrap`` is for all ports of a switch; ``crossings`` are in the order in which it saw and sent them."""

    def __init__(self, loses: Loses) -> None:
        self.crossings: list[Crossing] = []
        self._loses = loses
        self._counts = {False: Count(), True: Count()}

    def wrap(self, port: FramePort, name: str) -> FramePort:
        return FilteredPort(port, name, self._what_passes)

    def _what_passes(self, frames: Frames, port: str, *, is_result: bool) -> Frames:
        keep = [self._passes(bytes(row), port, is_result=is_result) for row in frames]
        return frames if all(keep) else frames[keep]

    def _passes(self, frame: bytes, port: str, *, is_result: bool) -> bool:
        packet = decode_packet(frame)
        if packet is None:
            return True
        seen = self._counts[is_result].look(packet)
        is_lost = self._loses(seen, is_result)
        self.crossings.append(Crossing(seen, port, is_result, is_lost))
        return not is_lost
