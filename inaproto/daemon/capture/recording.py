"""What crosses the ports of a switch, recorded as pcapng: one interface for each port, both directions.

Invariants: the data path waits for nobody: it copies frames into a bounded queue or counts them as lost; each
packet that follows a loss says how many frames its port lost (``epb_dropcount``), the end of the file how
many in all. What came in is copied before the accelerator sees it, which may write over it; what went out
is as it left. Frames of one batch have one time, that of the batch. While nobody records, a batch costs the
look at an empty tuple.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import trio

from inaproto.units import Frames, PortId
from inaproto.wire.files.pcapng import INTERFACES_MAX, CaptureWriter, Direction, Interface

QUEUE_BYTES_MAX: Final = 32 << 20
"""Some 25 ms of 10 Gbit/s."""
BATCH_COST: Final = 256
"""Bytes that a queued batch counts beside its frames."""
CHUNK_BYTES: Final = 1 << 20

Sink = Callable[[bytes], Awaitable[None]]
"""Where pcapng goes; raises ``trio.BrokenResourceError`` or ``OSError`` when nobody takes it any more."""


class _Batch(NamedTuple):
    port: PortId
    is_outbound: bool
    time_ns: int
    lost_before: int
    frames: Frames


@dataclass(slots=True)
class _Interface:
    number: int
    name: str
    frames: int = 0
    lost: int = 0
    lost_unsaid: int = 0


class Recording:
    """One capture. ``saw`` is called by the data path, :meth:`write` is its own task.

    ``ports``: names of those to record, None for all. ``frames_max``, ``bytes_max`` (of the file): 0 for no
    limit; it ends by itself at either.
    """

    def __init__(
        self,
        to: str,
        *,
        ports: Container[str] | None = None,
        frames_max: int = 0,
        bytes_max: int = 0,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.to = to
        self._wanted = ports
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._queue_bytes_max = queue_bytes_max
        self._clock = clock
        self._writer = CaptureWriter(())
        self._interfaces: dict[PortId, _Interface] = {}
        self._queue: deque[_Batch] = deque()
        self._queue_bytes = 0
        self._under_way: list[_Batch] = []
        """In the chunk that the sink has not taken yet."""
        self._wake = trio.Event()
        self._written = 0
        self._left = frames_max
        self.ended = ""
        """Why it takes nothing more; empty while it does."""

    @property
    def ports(self) -> tuple[str, ...]:
        """Names of those that it has seen up."""
        return tuple(one.name for one in self._interfaces.values())

    @property
    def frames(self) -> int:
        """In the file, or on the way there."""
        return sum(one.frames for one in self._interfaces.values())

    @property
    def lost(self) -> int:
        return sum(one.lost for one in self._interfaces.values())

    def status(self) -> dict[str, Any]:
        return {
            "to": self.to,
            "frames": self.frames,
            "lost": self.lost,
            "bytes": self._written,
            "ended": self.ended,
        }

    def watch(self, port: PortId, name: str) -> None:
        """A port is there: it gets an interface, even if nothing crosses it."""
        if port not in self._interfaces and (self._wanted is None or name in self._wanted):
            if len(self._interfaces) == INTERFACES_MAX:
                self.end(f"{INTERFACES_MAX} ports, all that a file may have")
                return
            self._interfaces[port] = _Interface(len(self._interfaces), name)
            self._wake.set()

    def saw(self, port: PortId, blocks: Sequence[Frames], *, is_outbound: bool) -> None:
        """Frames cross a port that is watched; others are passed over."""
        interface = self._interfaces.get(port)
        if interface is None:
            return
        now = self._clock()
        for block in blocks:
            if len(block) and not self.ended:
                self._take(interface, _Batch(port, is_outbound, now, 0, block))
        self._wake.set()

    def _take(self, interface: _Interface, batch: _Batch) -> None:
        frames = batch.frames
        if self._frames_max and len(frames) > self._left:
            frames = frames[: self._left]
        cost = frames.nbytes + BATCH_COST
        if self._queue_bytes + cost > self._queue_bytes_max:
            interface.lost += len(frames)
            interface.lost_unsaid += len(frames)
            return
        self._queue_bytes += cost
        self._queue.append(batch._replace(frames=frames.copy(), lost_before=interface.lost_unsaid))
        interface.lost_unsaid = 0
        interface.frames += len(frames)
        self._left -= len(frames)
        if self._frames_max and not self._left:
            self.end(f"{self._frames_max} frames")

    def end(self, reason: str) -> None:
        """Take nothing more; what is queued is written still."""
        self.ended = self.ended or reason
        self._wake.set()

    # --- the file

    async def write(self, sink: Sink) -> None:
        """Until it has ended and all is written. A ``sink`` that fails ends it; that is not an error."""
        try:
            await sink(self._writer.header())
            told = 0
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                while told < len(self._interfaces) or self._queue:
                    chunk, told = self._chunk(told)
                    await sink(chunk)
                if self.ended and not self._queue:
                    break
            await sink(self._end_of_file())
        except OSError as error:
            self.end(f"it cannot be written: {error.strerror or error}")
            self._give_up(*self._under_way, *self._queue)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.end(f"nobody takes it any more ({error.__cause__ or error})")
        finally:
            self.ended = self.ended or "its task was cancelled"
            self._queue.clear()

    def _chunk(self, told: int) -> tuple[bytes, int]:
        """Some of what is queued; how many interfaces the file has now."""
        later = list(self._interfaces.values())[told:]
        parts: list[bytes | memoryview] = [
            self._writer.add_interface(Interface(one.name))[1] for one in later
        ]
        size = 0
        self._under_way.clear()
        while self._queue and size < CHUNK_BYTES:
            batch = self._queue.popleft()
            self._queue_bytes -= batch.frames.nbytes + BATCH_COST
            part = self._writer.packets(
                self._interfaces[batch.port].number,
                batch.time_ns,
                batch.frames,
                Direction.OUTBOUND if batch.is_outbound else Direction.INBOUND,
                dropped=batch.lost_before,
            )
            if self._bytes_max and self._written + size + part.nbytes > self._bytes_max:
                self.end(f"the file has {self._bytes_max >> 20} MiB")
                self._give_up(batch, *self._queue)
                break
            parts.append(part.data)
            self._under_way.append(batch)
            size += part.nbytes
        chunk = b"".join(parts)
        self._written += len(chunk)
        return chunk, len(self._interfaces)

    def _give_up(self, *batches: _Batch) -> None:
        """They are not in the file, nor will anything queued be."""
        for one in batches:
            interface = self._interfaces[one.port]
            interface.frames -= len(one.frames)
            interface.lost += len(one.frames)
        self._queue.clear()
        self._queue_bytes = 0

    def _end_of_file(self) -> bytes:
        now = self._clock()
        return b"".join(
            self._writer.statistics(one.number, now, received=one.frames + one.lost, dropped=one.lost)
            for one in self._interfaces.values()
        )
