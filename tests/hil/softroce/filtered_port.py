"""A port of the switch with something between it and the wire that sees all frames, and lets some pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inaproto.ports import FramePort, FramePortCapabilities, PortCounters
from inaproto.units import Frames


class Passes(Protocol):
    def __call__(self, frames: Frames, port: str, *, is_result: bool) -> Frames:
        """Those that pass at ``port``; ``is_result``: they leave the switch."""
        ...


class FilteredPort:
    """A frame port around ``port``, which it owns; frames that do not pass were sent, or never came."""

    def __init__(self, port: FramePort, name: str, passes: Passes) -> None:
        self._port = port
        self._name = name
        self._passes = passes

    @property
    def capabilities(self) -> FramePortCapabilities:
        return self._port.capabilities

    @property
    def counters(self) -> PortCounters:
        return self._port.counters

    async def receive(self) -> Sequence[Frames]:
        while True:
            blocks = [
                self._passes(block, self._name, is_result=False) for block in await self._port.receive()
            ]
            passed = [block for block in blocks if len(block)]
            if passed:
                return passed

    def send_nowait(self, frames: Frames) -> int:
        passed = self._passes(frames, self._name, is_result=True)
        return len(frames) - len(passed) + self._port.send_nowait(passed)

    async def run(self) -> None:
        await self._port.run()

    async def aclose(self) -> None:
        await self._port.aclose()
