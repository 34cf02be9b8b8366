"""Pairs of frame ports in memory, joined by a link with latency, bandwidth and seeded weather.

Time is Trio's clock, read as nanoseconds: under ``trio.testing.MockClock`` a run costs no waiting and
one seed gives the same frames at the same times in every run.

Invariants, which make this port as strict as the real one:

* Blocks arrive laid out as in a receive buffer, rows strided by the length prefix that a stream would
  hold, and are overwritten at the next ``receive``: code that keeps a view breaks here, not in the field.
* Frames under way are bounded in bytes per direction; what does not fit is dropped and counted.
* A closed port still delivers, at their times, the frames that were sent to it before its peer closed.

A block is delivered whole when its last bit has arrived, as by a NIC that coalesces interrupts; the
weather acts on single frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import trio

from inaproto.errors import ConfigError, LocalMisuse
from inaproto.faults.streams import Seed
from inaproto.faults.weather import DelayLine, Weather, WeatherStream
from inaproto.ports import FramePortCapabilities, PortClosed, PortCounters
from inaproto.units import FRAME_BYTES_MAX, Frames, Instant, S

_HEADER_BYTES: Final = 14
_PREFIX_BYTES: Final = 4
_RECEIVE_BYTES: Final = 1 << 20
_POISON: Final = 0xA5
_CLOSED_HERE: Final = "the port was closed on this side"
_CLOSED_THERE: Final = "the peer closed the connection"


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a wire."""

    latency_ns: int = 0
    bandwidth_bps: int | None = None
    """Bits per second of whole frames; None is no limit."""
    weather: Weather = field(default_factory=Weather)
    queue_bytes_max: int = 64 << 20
    """Frames under way: sent and not yet received."""
    frame_bytes_max: int = FRAME_BYTES_MAX

    def __post_init__(self) -> None:
        if self.latency_ns < 0:
            raise ConfigError(f"link: latency_ns={self.latency_ns}: a latency cannot be negative")
        if self.bandwidth_bps is not None and self.bandwidth_bps <= 0:
            raise ConfigError(
                f"link: bandwidth_bps={self.bandwidth_bps}: give bits per second, or None for no limit"
            )
        if not _HEADER_BYTES <= self.frame_bytes_max <= FRAME_BYTES_MAX:
            raise ConfigError(
                f"link: frame_bytes_max={self.frame_bytes_max}: "
                f"it lies between {_HEADER_BYTES} and {FRAME_BYTES_MAX}"
            )
        if self.queue_bytes_max < self.frame_bytes_max:
            raise ConfigError(
                f"link: queue_bytes_max={self.queue_bytes_max}: "
                f"it must hold one frame, {self.frame_bytes_max} bytes"
            )


def current_instant() -> Instant:
    """Trio's clock in nanoseconds."""
    return Instant(round(trio.current_time() * S))


async def park_until(lot: trio.lowlevel.ParkingLot, at: Instant | None) -> None:
    """Park in ``lot`` until unparked or, if given, until the clock shows ``at``."""
    with trio.CancelScope(deadline=float("inf") if at is None else at / S):
        await lot.park()


class _Direction:
    """Frames under way from one port to the other."""

    def __init__(self, link: Link, stream: WeatherStream) -> None:
        self.link = link
        self.stream = stream
        self.line = DelayLine(link.queue_bytes_max)
        self.sender_gone = False
        self.receiver_gone = False
        self.is_cut = False
        self.arrivals = trio.lowlevel.ParkingLot()
        self._busy_until = Instant(0)

    def send(self, frames: Frames, now: Instant) -> int:
        n: int = frames.shape[0]
        length: int = frames.shape[1]
        accepted = min(n, (self.link.queue_bytes_max - self.line.bytes) // length)
        if accepted == 0:
            return 0
        rows = np.empty((accepted, _PREFIX_BYTES + length), dtype=np.uint8)
        copy = rows[:, _PREFIX_BYTES:]
        copy[:] = frames[:accepted]
        sent = now
        if self.link.bandwidth_bps is not None:
            bit_ns = 8 * copy.size * S
            sent = Instant(max(now, self._busy_until) + -(-bit_ns // self.link.bandwidth_bps))
            self._busy_until = sent
        if self.is_cut:
            self.stream.counters.dropped += accepted
            return accepted
        for at, block in self.stream.apply(copy, Instant(sent + self.link.latency_ns)):
            # Duplicates may pass the bound; then they are lost like any frame on a full link.
            if not self.line.push(at, block):
                self.stream.counters.dropped += len(block)
        self.arrivals.unpark_all()
        return accepted


class MemoryFramePort:
    """:class:`inaproto.ports.FramePort` at one end of a link; made by :func:`open_memory_pair`."""

    def __init__(self, name: str, outgoing: _Direction, incoming: _Direction) -> None:
        self.name = name
        self._out = outgoing
        self._in = incoming
        self._counters = PortCounters()
        self._closed = False
        self._lent: list[Frames] = []
        self._closing = trio.Event()

    @property
    def capabilities(self) -> FramePortCapabilities:
        return FramePortCapabilities(
            "memory", self._out.link.frame_bytes_max, lossless=self._out.link.weather.clear
        )

    @property
    def counters(self) -> PortCounters:
        return self._counters

    def weather_counters(self) -> dict[str, int]:
        """What the weather did to frames sent from here."""
        return self._out.stream.counters.as_dict()

    async def receive(self) -> list[Frames]:
        """See ``FramePort.receive``; the blocks are overwritten at the next call."""
        await trio.lowlevel.checkpoint()
        for block in self._lent:
            block[:] = _POISON
        self._lent = []
        while True:
            if self._closed:
                raise PortClosed(_CLOSED_HERE)
            blocks = self._in.line.pop_due(current_instant(), _RECEIVE_BYTES)
            if blocks:
                self._lent = blocks
                self._counters.frames_in += sum(len(block) for block in blocks)
                self._counters.bytes_in += sum(block.size for block in blocks)
                return list(blocks)
            if self._in.sender_gone and not self._in.line:
                raise PortClosed(_CLOSED_THERE)
            await park_until(self._in.arrivals, self._in.line.next_at)

    def send_nowait(self, frames: Frames) -> int:
        """See ``FramePort.send_nowait``. Raises ``LocalMisuse`` for frames too short or too long."""
        if self._closed:
            raise PortClosed(_CLOSED_HERE)
        if self._out.receiver_gone:
            raise PortClosed(_CLOSED_THERE)
        n, length = frames.shape
        if not _HEADER_BYTES <= length <= self._out.link.frame_bytes_max:
            raise LocalMisuse(
                f"frames of {length} bytes do not go through {self.name}, which takes "
                f"{_HEADER_BYTES} to {self._out.link.frame_bytes_max}"
            )
        accepted = self._out.send(frames, current_instant())
        self._counters.frames_out += accepted
        self._counters.bytes_out += accepted * length
        if accepted < n:
            self._counters.drop("output queue full", n - accepted)
        return accepted

    async def run(self) -> None:
        """Frames move by the clock alone; this waits for the end, as the contract wants."""
        await self._closing.wait()

    def cut(self, is_cut: bool) -> None:
        """While the wire is cut, frames that either side sends are lost; those under way still arrive."""
        self._out.is_cut = self._in.is_cut = is_cut

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close both directions; what was sent before still arrives."""
        if not self._closed:
            self._closed = True
            self._closing.set()
            self._out.sender_gone = True
            self._in.receiver_gone = True
            self._in.line.clear()
            self._out.arrivals.unpark_all()
            self._in.arrivals.unpark_all()

    async def aclose(self) -> None:
        """As :meth:`close`."""
        self.close()
        await trio.lowlevel.checkpoint()


def open_memory_pair(
    link: Link | None = None,
    *,
    back: Link | None = None,
    seed: Seed = 0,
    names: tuple[str, str] = ("a", "b"),
) -> tuple[MemoryFramePort, MemoryFramePort]:
    """Two ports joined by ``link`` from the first to the second and ``back`` (default alike) in return.

    The weather of a direction is the stream ``weather/<from>-><to>`` of ``seed``: give the ports of one
    world different names.
    """
    first, second = names
    there = link or Link()
    forth = _Direction(there, WeatherStream(there.weather, seed, f"weather/{first}->{second}"))
    home = back or there
    returning = _Direction(home, WeatherStream(home.weather, seed, f"weather/{second}->{first}"))
    return MemoryFramePort(first, forth, returning), MemoryFramePort(second, returning, forth)
