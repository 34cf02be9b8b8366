"""Weather over any frame port: ``inaproto switch --weather`` puts it between switch and wire.

Each direction has its own seeded stream. Frames that the weather passes go straight through, the
port's own views and queues being used; only late frames are kept here, as copies.

Invariants:

* With clear weather nothing is added to the data path but one call.
* ``receive`` keeps the promise of the port beneath: cancelled, it loses nothing.
* Late frames are bounded in bytes per direction; beyond, they are dropped and counted as
  ``"late frames full"``. They are lost when the port closes: the wire they were on is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from inaproto.faults.streams import Seed
from inaproto.faults.weather import DelayLine, Weather, WeatherStream
from inaproto.ports import FramePort, FramePortCapabilities, PortClosed, PortCounters, RingsLater, SendsBlocks
from inaproto.units import Frames, Instant, S
from inaproto_adapters.memory.link import current_instant, park_until

_LATE_BYTES_MAX: Final = 16 << 20


class WeatherPort:
    """A :class:`inaproto.ports.FramePort` around ``port``, which it owns from now on.

    ``name`` names the streams ``weather/<name>/in`` and ``weather/<name>/out`` of ``seed``; give each
    port its own.
    """

    def __init__(self, port: FramePort, weather: Weather, *, seed: Seed, name: str) -> None:
        self.name = name
        self.weather = weather
        self.incoming = WeatherStream(weather, seed, f"weather/{name}/in")
        self.outgoing = WeatherStream(weather, seed, f"weather/{name}/out")
        self._port = port
        self._blocks_to_port = self._one_by_one
        self._ring_port: Callable[[], None] | None = None
        if isinstance(port, RingsLater):
            self._blocks_to_port, self._ring_port = port.send_blocks_quietly, port.ring
        elif isinstance(port, SendsBlocks):
            self._blocks_to_port = port.send_blocks_nowait
        self._lengths: set[int] = set()
        """Those of frames that the port takes."""
        self._late_in = DelayLine(_LATE_BYTES_MAX)
        self._late_out = DelayLine(_LATE_BYTES_MAX)
        self._late_out_changed = trio.lowlevel.ParkingLot()

    @property
    def capabilities(self) -> FramePortCapabilities:
        inner = self._port.capabilities
        return FramePortCapabilities(
            f"weather over {inner.name}",
            inner.frame_bytes_max,
            lossless=inner.lossless and self.weather.clear,
            way=inner.way,
            links=inner.links,
        )

    @property
    def counters(self) -> PortCounters:
        """Those of the port beneath: what really crossed it."""
        return self._port.counters

    def weather_counters(self) -> dict[str, int]:
        """What the weather did, both directions together."""
        coming, going = self.incoming.counters.as_dict(), self.outgoing.counters.as_dict()
        return {key: coming[key] + going[key] for key in coming}

    async def receive(self) -> Sequence[Frames]:
        """See ``FramePort.receive``."""
        while True:
            now = current_instant()
            if self._late_in.next_at is not None and self._late_in.next_at <= now:
                await trio.lowlevel.checkpoint()
                return self._late_in.pop_due(now)
            arrived = await self._receive_until(self._late_in.next_at)
            passed = self._fall(self.incoming, arrived, self._late_in)
            if passed:
                return passed

    async def _receive_until(self, at: Instant | None) -> Sequence[Frames]:
        """Frames from the port beneath, or none when the clock shows ``at`` first."""
        if at is None:
            return await self._port.receive()
        with trio.CancelScope(deadline=at / S):
            return await self._port.receive()
        return []

    def _fall(self, stream: WeatherStream, blocks: Sequence[Frames], late: DelayLine) -> list[Frames]:
        """What passes of ``blocks`` at once; the late rest is kept in ``late``."""
        now = current_instant()
        passed: list[Frames] = []
        for block in blocks:
            for at, frames in stream.apply(block, now):
                if at == now:
                    passed.append(frames)
                elif not late.push(at, frames):
                    self._port.counters.drop("late frames full", len(frames))
        return passed

    def send_nowait(self, frames: Frames) -> int:
        """See ``FramePort.send_nowait``; a frame that the weather takes was accepted."""
        return len(frames) - self.send_blocks_nowait((frames,))

    def send_blocks_nowait(self, blocks: Sequence[Frames]) -> int:
        """See ``SendsBlocks``. What passes leaves at once, however the weather cuts it up."""
        refused = self.send_blocks_quietly(blocks)
        self.ring()
        return refused

    def send_blocks_quietly(self, blocks: Sequence[Frames]) -> int:
        """See ``RingsLater``."""
        frames = sum(map(len, blocks))
        if self.weather.clear:
            self.outgoing.counters.frames += frames
            return self._blocks_to_port(blocks)
        # The weather may take all of them; an empty send still raises what a send would.
        for block in blocks:
            if block.shape[1] not in self._lengths:
                self._port.send_nowait(block[:0])
                self._lengths.add(block.shape[1])
        passed = self._fall(self.outgoing, blocks, self._late_out)
        if not passed and blocks:
            self._port.send_nowait(blocks[0][:0])
        refused = self._blocks_to_port(passed)
        if self._late_out:
            self._late_out_changed.unpark_all()
        return min(frames, refused)

    def ring(self) -> None:
        """See ``RingsLater``; nothing to do where the port beneath wakes its far side itself."""
        if self._ring_port is not None:
            self._ring_port()

    def _one_by_one(self, blocks: Sequence[Frames]) -> int:
        return sum(len(block) - self._port.send_nowait(block) for block in blocks)

    async def run(self) -> None:
        """Serve the port beneath and send late frames at their times; see ``FramePort.run``."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_late)
            await self._port.run()
            nursery.cancel_scope.cancel()

    async def _send_late(self) -> None:
        while True:
            due = self._late_out.pop_due(current_instant())
            if due:
                try:
                    self._blocks_to_port(due)
                except PortClosed:
                    return
                self.ring()
            await park_until(self._late_out_changed, self._late_out.next_at)

    async def aclose(self) -> None:
        """Close the port beneath; late frames are lost."""
        for late in (self._late_in, self._late_out):
            lost = late.clear()
            if lost:
                self._port.counters.drop("late when the port closed", lost)
        await self._port.aclose()
