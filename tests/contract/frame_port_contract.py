"""What every ``FramePort`` does, whatever carries its frames. One class per adapter inherits it.

Ports that lose nothing do more: those inherit ``LosslessFramePortContract``. A port on a network interface
may lose what its receiver does not fetch in time; a port under weather has its own tests.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.errors import LocalMisuse
from inaproto.ports import FramePort, PortClosed
from inaproto.units import FRAME_BYTES_MAX, Frames

QUEUE_BYTES: Final = 64 << 20
_GIVE_UP_S: Final = 60
Pair = tuple[FramePort, FramePort]


def numbered(first: int, n: int, length: int) -> Frames:
    """``n`` frames that carry their number in the first eight bytes and seeded noise behind."""
    frames = np.random.default_rng(first + length).integers(0, 256, (n, length), dtype=np.uint8)
    frames[:, :8] = np.arange(first, first + n, dtype=">u8")[:, None].view(np.uint8)
    return frames


def as_bytes(blocks: list[Frames]) -> list[bytes]:
    return [row.tobytes() for block in blocks for row in block]


async def collect(port: FramePort, n: int) -> list[bytes]:
    """The next frames of ``port``, at least ``n``, copied."""
    got: list[bytes] = []
    while len(got) < n:
        got.extend(as_bytes(list(await port.receive())))
    return got


class FramePortContract(ABC):
    @abstractmethod
    def pair(self, queue_bytes_max: int) -> AbstractAsyncContextManager[Pair]:
        """Two connected ports, closed at the end."""

    @asynccontextmanager
    async def running(self, queue_bytes_max: int = QUEUE_BYTES) -> AsyncIterator[Pair]:
        said = ["no port was there yet"]
        try:
            with trio.fail_after(_GIVE_UP_S):
                async with self.pair(queue_bytes_max) as (left, right), trio.open_nursery() as nursery:
                    nursery.start_soon(left.run)
                    nursery.start_soon(right.run)
                    try:
                        yield left, right
                    finally:
                        said = [f"{port.capabilities.way}; {port.counters}" for port in (left, right)]
                    nursery.cancel_scope.cancel()
        except trio.TooSlowError as late:
            for line in said:
                late.add_note(line)
            raise

    async def test_capabilities_say_jumbo(self) -> None:
        async with self.running() as (left, right):
            for port in (left, right):
                assert port.capabilities.frame_bytes_max == FRAME_BYTES_MAX

    async def test_frames_of_any_length_arrive_whole_and_in_order(self) -> None:
        rng = np.random.default_rng(1)
        lengths = [14, 15, 62, FRAME_BYTES_MAX, *rng.integers(14, FRAME_BYTES_MAX + 1, 300).tolist()]
        sent = [rng.integers(0, 256, (1, length), dtype=np.uint8) for length in lengths]
        async with self.running() as (left, right):
            for frame in sent:
                assert left.send_nowait(frame) == 1
            assert await collect(right, len(sent)) == as_bytes(sent)

    async def test_frames_with_vlan_tags_and_of_ipv6_arrive_as_they_are(self) -> None:
        """No port takes a tag off, joins what IPv6 carries, or adds to it."""
        addresses = b"\x52\x54\0\0\0\1\x52\x54\0\0\0\2"
        six = (
            b"\x86\xdd\x60\0\0\0\0\x48\x11\x40" + bytes(16) + bytes(16) + b"\xc0\0\x12\xb7\0\x48" + bytes(66)
        )
        kinds = [six, b"\x81\0\x60\x64" + six, b"\x81\0\xa0\0" + six, b"\x81\0\0\x05\x08\x06" + bytes(60)]
        sent = []
        for kind in kinds:
            for n in (1, 40):
                frames = np.tile(np.frombuffer(addresses + kind, np.uint8), (n, 1))
                frames[:, -1] = np.arange(n)
                sent.append(frames)
        async with self.running() as (left, right):
            for frames in sent:
                assert left.send_nowait(frames) == len(frames)
            assert await collect(right, 41 * len(kinds)) == as_bytes(sent)

    async def test_batches_and_single_frames_keep_their_order(self) -> None:
        blocks, first = [], 0
        for n, length in [
            (1, 1098),
            (166, 1082),
            (1, 1086),
            (3, 62),
            (1, 62),
            (400, 64),
            (2, 9000),
            (1, 14),
        ] * 5:
            blocks.append(numbered(first, n, length))
            first += n
        async with self.running() as (left, right):
            for block in blocks:
                assert left.send_nowait(block) == len(block)
            assert await collect(right, first) == as_bytes(blocks)

    async def test_blocks_are_batches_of_equal_frames(self) -> None:
        async with self.running() as (left, right):
            left.send_nowait(numbered(0, 168, 1082))
            n = 0
            while n < 168:
                for block in await right.receive():
                    assert block.dtype == np.uint8
                    assert block.shape[1:] == (1082,)
                    assert block.strides[1] == 1
                    n += len(block)
            assert n == 168

    async def test_sender_may_overwrite_its_buffer_at_once(self) -> None:
        frames = numbered(0, 50, 1082)
        expected = as_bytes([frames])
        async with self.running() as (left, right):
            left.send_nowait(frames)
            frames[:] = 0
            assert await collect(right, 50) == expected

    async def test_strided_frames_are_sent(self) -> None:
        buffer = numbered(0, 40, 1200)
        view = buffer[::2, 30:1112]
        async with self.running() as (left, right):
            assert left.send_nowait(view) == 20
            assert await collect(right, 20) == as_bytes([view])

    async def test_received_views_last_until_the_next_receive(self) -> None:
        async with self.running() as (left, right):
            left.send_nowait(numbered(0, 30, 500))
            blocks = list(await right.receive())
            before = as_bytes(blocks)
            for first in range(1000, 1200):
                left.send_nowait(numbered(first, 30, 500))
            await wait_all_tasks_blocked()
            assert as_bytes(blocks) == before

    async def test_no_frames_are_sent_as_nothing(self) -> None:
        async with self.running() as (left, right):
            assert left.send_nowait(np.empty((0, 62), dtype=np.uint8)) == 0
            left.send_nowait(numbered(7, 1, 62))
            assert await collect(right, 1) == as_bytes([numbered(7, 1, 62)])

    @pytest.mark.parametrize("length", [0, 13, FRAME_BYTES_MAX + 1])
    async def test_what_is_no_frame_is_refused_and_nothing_changes(self, length: int) -> None:
        async with self.running() as (left, right):
            with pytest.raises(LocalMisuse, match=f"{length} bytes"):
                left.send_nowait(np.zeros((2, length), dtype=np.uint8))
            assert left.counters.frames_out == 0
            left.send_nowait(numbered(0, 1, 62))
            assert await collect(right, 1) == as_bytes([numbered(0, 1, 62)])

    async def test_counters_count_frames_and_their_bytes(self) -> None:
        async with self.running() as (left, right):
            left.send_nowait(numbered(0, 10, 100))
            left.send_nowait(numbered(10, 1, 1082))
            await collect(right, 11)
            assert (left.counters.frames_out, left.counters.bytes_out) == (11, 2082)
            assert (right.counters.frames_in, right.counters.bytes_in) == (11, 2082)
            assert (right.counters.frames_out, left.counters.frames_in) == (0, 0)
            assert left.counters.drops == right.counters.drops == {}

    async def test_cancelling_a_waiting_receive_loses_nothing(self) -> None:
        async with self.running() as (left, right), trio.open_nursery() as nursery:
            for first in range(0, 50, 10):
                scope = trio.CancelScope()

                async def wait(scope: trio.CancelScope = scope) -> None:
                    with scope:
                        await right.receive()
                        raise AssertionError("nothing was sent yet")

                nursery.start_soon(wait)
                await wait_all_tasks_blocked()
                scope.cancel()
                await wait_all_tasks_blocked()
                left.send_nowait(numbered(first, 10, 300))
                assert await collect(right, 10) == as_bytes([numbered(first, 10, 300)])

    async def test_cancelling_receive_while_frames_wait_loses_nothing(self) -> None:
        async with self.running() as (left, right):
            left.send_nowait(numbered(0, 10, 300))
            await wait_all_tasks_blocked()
            with trio.CancelScope() as scope:
                scope.cancel()
                await right.receive()
            assert scope.cancelled_caught
            assert await collect(right, 10) == as_bytes([numbered(0, 10, 300)])

    async def test_closed_port_says_so(self) -> None:
        async with self.running() as (left, _right):
            await left.aclose()
            await left.aclose()
            with pytest.raises(PortClosed, match="closed on this side"):
                left.send_nowait(numbered(0, 1, 62))
            with pytest.raises(PortClosed, match="closed on this side"):
                await left.receive()

    async def test_run_returns_when_the_port_closes(self) -> None:
        with trio.fail_after(_GIVE_UP_S):
            async with self.pair(QUEUE_BYTES) as (left, right), trio.open_nursery() as nursery:
                nursery.start_soon(left.run)
                nursery.start_soon(right.run)
                await wait_all_tasks_blocked()
                await left.aclose()
                await right.aclose()

    async def test_run_returns_when_a_port_closes_with_output_waiting(self) -> None:
        async with self.pair(QUEUE_BYTES) as (left, _right):
            with trio.fail_after(_GIVE_UP_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(left.run)
                    for first in range(30):
                        left.send_nowait(numbered(first, 168, 1082))
                    await wait_all_tasks_blocked()
                    await left.aclose()

    async def test_closing_wakes_whoever_receives(self) -> None:
        async with self.running() as (left, _right), trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(PortClosed, match="closed on this side"):
                    await left.receive()

            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            await left.aclose()


class LosslessFramePortContract(FramePortContract):
    """A port between two processes: nothing is lost, and each side sees the other's end."""

    async def test_capabilities_say_lossless_and_jumbo(self) -> None:
        async with self.running() as (left, right):
            assert left.capabilities == right.capabilities
            assert left.capabilities.lossless

    async def test_fifty_megabytes_both_ways_at_once(self) -> None:
        frame_bytes, batch, batches = 1082, 168, 280
        digests: dict[str, int] = {}

        async def receive(name: str, port: FramePort) -> None:
            crc = n = 0
            while n < batch * batches:
                for block in await port.receive():
                    crc = zlib.crc32(block.tobytes(), crc)
                    n += len(block)
            digests[name] = crc

        async def send(name: str, port: FramePort, first: int) -> None:
            crc = 0
            for step in range(batches):
                frames = numbered(first + step * batch, batch, frame_bytes)
                assert port.send_nowait(frames) == batch
                crc = zlib.crc32(frames.tobytes(), crc)
                if step % 8 == 0:
                    await trio.lowlevel.checkpoint()
            digests[name] = crc

        async with self.running() as (left, right), trio.open_nursery() as nursery:
            nursery.start_soon(send, "to the right", left, 0)
            nursery.start_soon(send, "to the left", right, 1 << 40)
            nursery.start_soon(receive, "at the right", right)
            nursery.start_soon(receive, "at the left", left)
        assert digests["at the right"] == digests["to the right"]
        assert digests["at the left"] == digests["to the left"]

    async def test_full_queue_refuses_counts_and_keeps_what_it_took(self) -> None:
        async with self.running(queue_bytes_max=100_000) as (left, right):
            sent: list[bytes] = []
            accepted = 50
            while accepted == 50:
                frames = numbered(len(sent), 50, 1082)
                accepted = left.send_nowait(frames)
                sent.extend(as_bytes([frames[:accepted]]))
            # Here the wire is full: what is refused from now on is dropped, whatever its number.
            assert left.send_nowait(numbered(0, 200, 1082)) == 0
            assert left.counters.drops == {"output queue full": 250 - accepted}
            assert left.counters.frames_out == len(sent)
            assert await collect(right, len(sent)) == sent
            assert left.send_nowait(numbered(9, 1, 1082)) == 1
            assert await collect(right, 1) == as_bytes([numbered(9, 1, 1082)])

    async def test_peer_that_closes_is_seen_after_its_frames(self) -> None:
        async with self.running() as (left, right):
            left.send_nowait(numbered(0, 20, 1082))
            await left.aclose()
            assert await collect(right, 20) == as_bytes([numbered(0, 20, 1082)])
            with pytest.raises(PortClosed, match="peer closed the connection"):
                await right.receive()
            with pytest.raises(PortClosed):
                right.send_nowait(numbered(0, 1, 62))

    async def test_closing_wakes_both_receivers(self) -> None:
        reasons: dict[str, str] = {}

        async def wait(name: str, port: FramePort) -> None:
            with pytest.raises(PortClosed) as caught:
                await port.receive()
            reasons[name] = caught.value.reason

        async with self.running() as (left, right), trio.open_nursery() as nursery:
            nursery.start_soon(wait, "left", left)
            nursery.start_soon(wait, "right", right)
            await wait_all_tasks_blocked()
            await left.aclose()
        assert "this side" in reasons["left"]
        assert "peer" in reasons["right"]
