"""The contract of message channels over queue pairs of softnics: in memory, in weather, and over sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio

from inaproto.daemon.models.channels.message_channel import StreamChannel
from inaproto.daemon.models.channels.queue_pair_stream import RING_BYTES, QueuePairStream
from inaproto.daemon.models.channels.queue_pairs import OpenNic, QueuePairs
from inaproto.daemon.net.control_stream import EndOfChannel
from inaproto.errors import FabricError
from inaproto.faults.weather import Weather
from inaproto.ports import FramePort, Nic, load_adapter
from inaproto.units import MS, US
from inaproto.wire.messages.models import Flush
from inaproto_adapters.frames import open_frame_pair
from inaproto_adapters.memory import Link, open_memory_pair, open_stream_pair
from tests.contract.message_channel_contract import DEADLINE_S, MessageChannelContract, Pair, push

WEATHER = Weather(drop=0.005, duplicate=0.002, reorder=0.005, delay_min_ns=20 * US, delay_max_ns=1 * MS)


IPV4 = b"\x0a\0\0\1", b"\x0a\0\0\2"
IPV6 = b"\xfd\0" + bytes(13) + b"\1", b"\xfd\0" + bytes(13) + b"\2"


def two_nics(left: FramePort, right: FramePort, ips: tuple[bytes, bytes] = IPV4) -> tuple[Nic, Nic]:
    open_nic = load_adapter("softnic").open
    return (
        open_nic(left, mac=b"\x52\x54\0\0\0\1", ip=ips[0]),
        open_nic(right, mac=b"\x52\x54\0\0\0\2", ip=ips[1]),
    )


def opening(nic: Nic) -> OpenNic:
    """Gives that one, once: there is no other."""
    nics = [nic]

    async def open_nic() -> Nic:
        if not nics:
            raise FabricError("attach", "its port", "opening", "it is gone", retryable=True)
        return nics.pop()

    return open_nic


@asynccontextmanager
async def streams(
    ports: tuple[FramePort, FramePort],
    ips: tuple[bytes, bytes] = IPV4,
) -> AsyncIterator[tuple[QueuePairStream, QueuePairStream]]:
    async with trio.open_nursery() as nursery:
        owners = [QueuePairs(opening(nic)) for nic in two_nics(*ports, ips)]
        for owner in owners:
            await nursery.start(owner.run)
        others = [StreamChannel(stream, "the other way") for stream in open_stream_pair()]
        made: dict[int, QueuePairStream] = {}

        async def open_one(number: int) -> None:
            made[number] = await owners[number].open(others[number])

        async with trio.open_nursery() as both:
            both.start_soon(open_one, 0)
            both.start_soon(open_one, 1)
        yield made[0], made[1]
        for stream in made.values():
            stream.close()
            stream.abort()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def channels(
    ports: tuple[FramePort, FramePort], ips: tuple[bytes, bytes] = IPV4
) -> AsyncIterator[Pair]:
    async with streams(ports, ips) as (left, right):
        yield StreamChannel(left, "left"), StreamChannel(right, "right")


class TestMemory(MessageChannelContract):
    @asynccontextmanager
    async def pair(self) -> AsyncIterator[Pair]:
        link = Link(latency_ns=5 * US, bandwidth_bps=100_000_000_000)
        async with channels(open_memory_pair(link)) as pair:
            yield pair


class TestIpv6(MessageChannelContract):
    @asynccontextmanager
    async def pair(self) -> AsyncIterator[Pair]:
        async with channels(open_memory_pair(Link()), ips=IPV6) as pair:
            yield pair


class TestFrames(MessageChannelContract):
    @asynccontextmanager
    async def pair(self) -> AsyncIterator[Pair]:
        async with channels(open_frame_pair()) as pair:
            yield pair


async def test_in_weather_everything_arrives_once_and_in_order() -> None:
    link = Link(latency_ns=20 * US, bandwidth_bps=10_000_000_000, weather=WEATHER)
    with trio.fail_after(2 * DEADLINE_S):
        async with channels(open_memory_pair(link, seed=3)) as (left, right), trio.open_nursery() as nursery:
            arrays = [
                np.random.default_rng(number).integers(0, 255, 100_000, np.uint8) for number in range(20)
            ]
            for end in (left, right):
                end.allow_payload(100_000)
                nursery.start_soon(end.run)
            for number, array in enumerate(arrays):
                left.send_nowait(push(number, array))
            for number, array in enumerate(arrays):
                assert await right.receive() == push(number, array)
            left.close()
            right.close()


async def test_who_does_not_read_is_sent_no_more_than_its_ring_holds() -> None:
    with trio.fail_after(DEADLINE_S):
        async with streams(open_memory_pair(Link())) as (left, right):
            sent, data = 0, memoryview(bytes(10_000))
            while sent < RING_BYTES:
                try:
                    sent += left.send_nowait(data)
                except BlockingIOError:
                    await left.wait_sendable()
            with pytest.raises(BlockingIOError):
                left.send_nowait(data)
            assert sent == RING_BYTES
            read = 0
            while read < RING_BYTES:
                await right.wait_receivable()
                read += len(right.receive_nowait()[0])
            await left.wait_sendable()
            assert left.send_nowait(data) == 10_000


async def test_a_peer_that_vanishes_ends_the_channel() -> None:
    """Its queue pair goes without a word: nothing is acknowledged any more."""
    with trio.fail_after(2 * DEADLINE_S):
        async with streams(open_memory_pair(Link())) as (left, right):
            right.abort()
            channel = StreamChannel(left, "left")
            channel.send_nowait(Flush())
            with pytest.raises(EndOfChannel, match="the queue pair has failed"):
                await channel.receive()
