"""What becomes of a connection that might go by the NIC: where that has no link, no room, or gets nowhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from inaproto.daemon.models.channels.message_channel import StreamChannel
from inaproto.daemon.models.channels.queue_pair_stream import RING_BYTES, QueuePairStream
from inaproto.daemon.models.channels.queue_pairs import NoQueuePair, QueuePairs
from inaproto.daemon.net.control_stream import EndOfChannel
from inaproto.errors import DecodeError, FabricError, Unsupported
from inaproto.faults.weather import Weather
from inaproto.ports import FramePort, Nic, load_adapter
from inaproto.wire.messages.model_connections import OverlayNoQueuePair, OverlayQueuePair
from inaproto.wire.messages.models import Flush
from inaproto_adapters.memory import Link, open_memory_pair, open_stream_pair

BROKEN = Weather(drop=1.0)
DEADLINE_S = 600.0


def softnic(port: FramePort, number: int, **limits: Any) -> Nic:
    which = {"mac": bytes([2, 0, 0, 0, 0, number]), "ip": bytes([10, 0, 0, number])}
    nic: Nic = load_adapter("softnic").open(port, **which | limits)
    return nic


class Side:
    """A process and its NIC, which can lose its link and get another."""

    def __init__(self, port: FramePort, number: int, **limits: Any) -> None:
        self.ports = [port]
        self._number, self._limits = number, limits
        self.opened = 0
        self.pairs = QueuePairs(self._open)

    async def _open(self) -> Nic:
        await trio.lowlevel.checkpoint()
        if not self.ports:
            raise FabricError("attach", "its port", "opening", "nobody listens there", retryable=True)
        self.opened += 1
        self.port = self.ports.pop()
        return softnic(self.port, self._number, **self._limits)


@asynccontextmanager
async def sides(link: Link | None = None, **limits: Any) -> AsyncIterator[tuple[Side, Side]]:
    with trio.fail_after(DEADLINE_S):
        left, right = open_memory_pair(link or Link())
        async with trio.open_nursery() as nursery:
            both = Side(left, 1), Side(right, 2, **limits)
            for side in both:
                await nursery.start(side.pairs.run)
            yield both
            nursery.cancel_scope.cancel()


def connection() -> tuple[StreamChannel, StreamChannel]:
    left, right = open_stream_pair()
    return StreamChannel(left, "left"), StreamChannel(right, "right")


async def opened(both: tuple[Side, Side]) -> list[QueuePairStream]:
    """By a connection of their own. Raises ``NoQueuePair`` if either does, and then both have."""
    found: dict[int, QueuePairStream] = {}
    failed: list[NoQueuePair] = []
    ends = connection()

    async def open_one(number: int) -> None:
        try:
            found[number] = await both[number].pairs.open(ends[number])
        except NoQueuePair as none:
            failed.append(none)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_one, 0)
        nursery.start_soon(open_one, 1)
    if failed:
        assert len(failed) == 2, "both come to the same"
        await still_usable(*ends)
        raise failed[0]
    return [found[0], found[1]]


async def still_usable(left: StreamChannel, right: StreamChannel) -> None:
    left.send_nowait(Flush())
    assert (await right.receive()) == Flush()
    left.close()
    right.close()


async def test_with_addresses_of_two_kinds_both_stay_with_tcp_and_know_why(autojump_clock: MockClock) -> None:
    async with sides(ip=bytes.fromhex("fd00") + bytes(13) + b"\2") as both:
        with pytest.raises(NoQueuePair, match="an address of IPv4, this one of IPv6, or the other way round"):
            await opened(both)
        assert [side.pairs.status()["queue_pairs"] for side in both] == [0, 0]


async def test_where_nothing_gets_through_both_stay_with_tcp_and_know_why(autojump_clock: MockClock) -> None:
    async with sides(Link(weather=BROKEN)) as both:
        with pytest.raises(NoQueuePair, match=r"nothing comes by the NIC within 2\.5 s"):
            await opened(both)
        assert [side.pairs.status()["queue_pairs"] for side in both] == [0, 0]


async def test_a_path_that_loses_long_packets_alone_is_none(autojump_clock: MockClock) -> None:
    """As one of RoCE packets that are longer than what a switch in between takes."""
    left, right = open_memory_pair(Link())
    short = _Short(left)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            both = Side(short, 1), Side(right, 2)  # type: ignore[arg-type]
            for side in both:
                await nursery.start(side.pairs.run)
            with pytest.raises(NoQueuePair, match="by the NIC within"):
                await opened(both)
            nursery.cancel_scope.cancel()


class _Short:
    """A port that loses frames of more than 1500 bytes without a word."""

    def __init__(self, port: FramePort) -> None:
        self._port = port

    def __getattr__(self, name: str) -> object:
        return getattr(self._port, name)

    def send_nowait(self, frames: object) -> int:
        count, length = frames.shape  # type: ignore[attr-defined]
        return int(count) if length > 1500 else self._port.send_nowait(frames)  # type: ignore[arg-type]


async def test_the_smaller_mtu_of_both_nics_is_used(autojump_clock: MockClock) -> None:
    async with sides(mtu_max=512) as both:
        for stream in await opened(both):
            stream.close()
        assert both[0].pairs.status()["counters"]["packets_sent"] >= 16  # the proof: 8 KiB


async def test_a_nic_without_room_leaves_the_connection_to_tcp(autojump_clock: MockClock) -> None:
    async with sides(qps_max=1) as both:
        streams = await opened(both)
        with pytest.raises(NoQueuePair, match="all 1 queue pairs are in use"):
            await opened(both)
        streams[0].close()
        with pytest.raises(trio.ClosedResourceError):
            await streams[0].wait_receivable()
        await until(lambda: both[0].pairs.status()["queue_pairs"] == 0)
        streams[1].abort()
        for stream in await opened(both):
            stream.close()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  the clock is not the world's
        await trio.sleep(0.01)


async def test_a_nic_that_loses_its_link_ends_its_streams_and_is_opened_again(
    autojump_clock: MockClock,
) -> None:
    async with sides() as both:
        first, second = await opened(both)
        channel = StreamChannel(first, "first")
        await both[0].port.aclose()
        with pytest.raises(EndOfChannel, match="the NIC has lost its link"):
            await channel.receive()
        channel.close()
        second.abort()
        assert both[0].pairs.trouble
        with pytest.raises(NoQueuePair, match=r"nobody listens there|lost its link"):
            await opened(both)
        new = open_memory_pair(Link())
        both[0].ports.append(new[0])
        both[1].ports.append(new[1])
        await both[1].port.aclose()
        await until(lambda: all(side.opened == 2 and not side.pairs.trouble for side in both))
        for stream in await opened(both):
            stream.close()


async def test_a_link_that_is_lost_in_the_middle_leaves_the_connection_to_tcp(
    autojump_clock: MockClock,
) -> None:
    async with sides() as both:
        for steps in range(12):
            new = open_memory_pair(Link())
            both[0].ports.append(new[0])
            both[1].ports.append(new[1])

            async def lose(steps: int = steps) -> None:
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                await both[0].port.aclose()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lose)
                try:
                    streams = await opened(both)
                except NoQueuePair as none:
                    assert "link" in str(none) or "closed" in str(none)  # noqa: PT017
                else:
                    for stream in streams:
                        stream.close()
            await both[1].port.aclose()
            await until(lambda: not any(side.pairs.trouble or side.ports for side in both))


async def test_a_process_that_dies_ends_the_stream_at_once(autojump_clock: MockClock) -> None:
    """Its kernel closes the connection beside; the queue pair would take until its retries are over."""
    async with sides(Link(weather=Weather())) as both:
        ends = connection()
        found: list[QueuePairStream] = []

        async def open_one(number: int) -> None:
            found.append(await both[number].pairs.open(ends[number]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_one, 0)
            nursery.start_soon(open_one, 1)
        stays = next(stream for stream in found if stream.address.ip[3] == 1)
        channel = StreamChannel(stays, "left")
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stays.watch_beside)
            ends[1].close()
            with pytest.raises(EndOfChannel, match="the stream beside its queue pair"):
                await channel.receive()
        assert trio.current_time() - began < 0.05
        channel.close()
        for stream in found:
            stream.abort()


async def test_what_was_sent_before_the_end_is_read_although_the_stream_beside_ends_first(
    autojump_clock: MockClock,
) -> None:
    async with sides() as both:
        left, right = (StreamChannel(stream, "one") for stream in await opened(both))
        async with trio.open_nursery() as nursery:
            stream = right.stream
            assert isinstance(stream, QueuePairStream)
            nursery.start_soon(stream.watch_beside)
            left.send_nowait(Flush())
            left.close()
            await trio.sleep(1)
            assert (await right.receive()) == Flush()
            with pytest.raises(EndOfChannel):
                await right.receive()
            right.close()


async def test_the_nic_may_go_while_a_closed_stream_waits_to_be_acknowledged(
    autojump_clock: MockClock,
) -> None:
    async with sides() as both:
        streams = await opened(both)
        streams[0].send_nowait(memoryview(bytes(1000)))
        streams[0].close()
        await both[0].port.aclose()
        await until(lambda: both[0].pairs.status()["queue_pairs"] == 0)
        streams[1].abort()


@pytest.mark.parametrize(
    "silly",
    [
        {"mtu": 1000},
        {"nbytes": RING_BYTES // 2},
        {"va": (1 << 64) - RING_BYTES},
        {"mac": b"\xff" * 6},
    ],
    ids=str,
)
async def test_a_peer_that_names_what_is_no_queue_pair_is_refused(
    autojump_clock: MockClock, silly: dict[str, object]
) -> None:
    async with sides() as both:
        ends = connection()
        offer = OverlayQueuePair(
            mac=bytes([2, 0, 0, 0, 0, 2]),
            ip=bytes([10, 0, 0, 2]),
            qpn=9,
            psn=0,
            va=0,
            rkey=1,
            nbytes=RING_BYTES,
        )
        async with trio.open_nursery() as nursery:

            async def lie() -> None:
                ends[1].send_nowait(replace(offer, **silly))  # type: ignore[arg-type]
                await ends[1].receive()

            nursery.start_soon(lie)
            with pytest.raises(DecodeError, match=r"queue pair|ring"):
                await both[0].pairs.open(ends[0])
        assert both[0].pairs.status()["queue_pairs"] == 0
        for end in ends:
            end.close()


async def test_a_peer_that_says_something_else_is_refused_and_a_silent_one_given_up(
    autojump_clock: MockClock,
) -> None:
    async with sides() as both:
        ends = connection()
        ends[1].send_nowait(Flush())
        with pytest.raises(DecodeError, match="'overlay_queue_pair' was to come"):
            await both[0].pairs.open(ends[0])
        ends = connection()
        with pytest.raises(FabricError, match="not ready within 10 s"):
            await both[0].pairs.open(ends[0])
        ends[1].send_nowait(OverlayNoQueuePair(why="out of order"))
        assert both[0].pairs.status()["queue_pairs"] == 0


async def test_a_nic_that_can_never_be_is_refused_at_the_start_and_not_later(
    autojump_clock: MockClock,
) -> None:
    async def never() -> Nic:
        raise Unsupported("verbs", "no pyverbs")

    with pytest.raises(ExceptionGroup) as found:
        async with trio.open_nursery() as nursery:
            await nursery.start(QueuePairs(never).run)
    assert found.group_contains(Unsupported, match="no pyverbs")

    left, _ = open_memory_pair(Link())
    opened = 0

    async def once() -> Nic:
        nonlocal opened
        opened += 1
        if opened > 1:
            raise Unsupported("verbs", "the card is gone")
        return softnic(left, 1)

    pairs = QueuePairs(once)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(pairs.run)
            await left.aclose()
            await until(lambda: "the card is gone" in pairs.trouble)
            nursery.cancel_scope.cancel()
