"""A wire that is cut for some time in the middle of a job, at all ports of the switch at once."""

from __future__ import annotations

import math

import trio

from inaproto.ports import FramePort
from inaproto.units import Frames
from inaproto_hil.softroce.filtered_port import FilteredPort


class Cut:
    """From the ``after``-th frame that the switch gets on, for ``seconds``: nothing passes, either way."""

    def __init__(self, *, after: int, seconds: float) -> None:
        self._left = after
        self._seconds = seconds
        self._until = math.inf
        self.frames_lost = 0

    @property
    def is_cut(self) -> bool:
        return self._left <= 0 and trio.current_time() < self._until

    def wrap(self, port: FramePort, name: str) -> FramePort:
        return FilteredPort(port, name, self._what_passes)

    def _what_passes(self, frames: Frames, port: str, *, is_result: bool) -> Frames:
        if self._left > 0 and not is_result:
            self._left -= len(frames)
            self._until = trio.current_time() + self._seconds
        if not self.is_cut:
            return frames
        self.frames_lost += len(frames)
        return frames[:0]
