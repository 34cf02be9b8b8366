"""What every message channel does, whatever is below it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import numpy as np
import pytest
import trio
import trio.testing

from inaproto.daemon.models.channels.message_channel import MessageChannel
from inaproto.daemon.net.control_stream import EndOfChannel
from inaproto.errors import DecodeError
from inaproto.wire.messages.arrays import Numbers
from inaproto.wire.messages.clocks import Clocks, WorkerId
from inaproto.wire.messages.models import Flush, PullRequest, Push

Pair = tuple[MessageChannel, MessageChannel]
DEADLINE_S = 600.0
LARGE = 3 << 20


def push(number: int, array: Numbers) -> Push:
    """A push whose array is of bytes, as one that has come."""
    worker = [WorkerId(0)]
    return Push(number, 1, Clocks.alike(worker, 0), Clocks.alike(worker, 1), array)


def zeros(nbytes: int) -> Numbers:
    return np.zeros(nbytes, np.uint8)


class MessageChannelContract(ABC):
    @abstractmethod
    def pair(self) -> AbstractAsyncContextManager[Pair]:
        """Both ends, connected; closed at the end."""

    @asynccontextmanager
    async def running(self, payload_bytes_max: int = LARGE) -> AsyncIterator[Pair]:
        with trio.fail_after(DEADLINE_S):
            async with self.pair() as pair, trio.open_nursery() as nursery:
                for end in pair:
                    end.allow_payload(payload_bytes_max)
                    nursery.start_soon(end.run)
                yield pair
                for end in pair:
                    end.close()

    async def test_messages_and_arrays_arrive_in_order(self) -> None:
        async with self.running() as (left, right):
            arrays = [np.arange(number * 1000, dtype=np.int64) for number in range(8)]
            for number, array in enumerate(arrays):
                left.send_nowait(push(number, array))
                left.send_nowait(PullRequest(number))
            for number, array in enumerate(arrays):
                assert await right.receive() == push(number, array.view(np.uint8))
                assert await right.receive() == PullRequest(number)

    async def test_both_ways_at_once(self) -> None:
        array = np.random.default_rng(1).integers(0, 255, LARGE, np.uint8)
        async with self.running() as pair:
            for end in pair:
                end.send_nowait(push(1, array))
            for end in pair:
                assert await end.receive() == push(1, array)

    async def test_a_receiver_that_comes_late_gets_all(self) -> None:
        async with self.running() as (left, right):
            for number in range(3):
                left.send_nowait(push(number, np.full(LARGE, number, np.uint8)))
            for number in range(3):
                assert await right.receive() == push(number, np.full(LARGE, number, np.uint8))

    async def test_flush_waits_until_all_is_on_its_way(self) -> None:
        async with self.running() as (left, right):
            left.send_nowait(push(1, zeros(LARGE)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(left.flush)
                await right.receive()

    async def test_a_payload_beyond_what_is_allowed_is_refused(self) -> None:
        async with self.running(payload_bytes_max=100) as (left, right):
            left.send_nowait(push(1, zeros(100)))
            assert await right.receive() == push(1, zeros(100))
            left.send_nowait(push(2, zeros(101)))
            with pytest.raises(DecodeError, match="a payload of 101 bytes, at most 100"):
                await right.receive()

    async def test_a_peer_that_does_not_read_costs_itself_its_channel(self) -> None:
        async with self.running() as (left, _):

            def send_many() -> None:
                for number in range(1000):
                    left.send_nowait(push(number, zeros(LARGE)))

            with pytest.raises(EndOfChannel, match="unread"):
                send_many()

    async def test_closing_ends_the_other_side_after_what_was_sent(self) -> None:
        async with self.running() as (left, right):
            left.send_nowait(Flush())
            await left.flush()
            left.close()
            assert (await right.receive()) == Flush()
            with pytest.raises(EndOfChannel):
                await right.receive()

    async def test_after_closing_nothing_goes(self) -> None:
        async with self.running() as (left, _):
            left.close("enough")
            with pytest.raises(EndOfChannel, match="enough"):
                left.send_nowait(Flush())
            with pytest.raises(EndOfChannel, match="enough"):
                await left.receive()

    async def test_closing_wakes_who_waits(self) -> None:
        async with self.running() as (left, _), trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(EndOfChannel):
                    await left.receive()

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            left.close()

    async def test_a_cancelled_receive_loses_nothing(self) -> None:
        async with self.running() as (left, right):
            with trio.move_on_after(0):
                await right.receive()
            left.send_nowait(PullRequest(needed=7))
            with trio.move_on_after(0):
                await right.receive()
                raise AssertionError("a receive that was cancelled before it began")
            assert (await right.receive()) == PullRequest(needed=7)

    async def test_its_address_is_said(self) -> None:
        async with self.running() as pair:
            assert all(end.address for end in pair)
