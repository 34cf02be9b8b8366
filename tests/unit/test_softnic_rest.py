"""Interrupt moderation: how long a software NIC leaves alone what comes, and what ends that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.core.rdma.dcqcn import DcqcnConfig
from inaproto.core.rdma.reliable_connection import NAK_SEQUENCE, TIMEOUT_UNIT_NS
from inaproto.core.rdma.requester import (
    REST_BYTES_MAX,
    REST_NS_MAX,
    REST_NS_MIN,
    REST_TIMER_PARTS,
    AckArrived,
    PostWrite,
    RcRequester,
    RequesterConfig,
    TimerExpired,
)
from inaproto.core.rdma.selective_requester import SelectiveRequester
from inaproto.daemon.shell import REST_LATE_S, RESTLESS_S
from inaproto.ports import QpAddress, QpAttributes, Segment
from inaproto.units import MS, Frames, Instant
from inaproto.wire.behind_gap import BehindGap
from inaproto_adapters.frames import open_frame_pair
from inaproto_adapters.softnic import SoftNic, SoftNicEngine
from tests.unit.test_rc_requester import ack, at, post
from tests.unit.test_softnic_engine import Link
from tests.unit.test_softnic_timers import LEFT, RIGHT, TIMER_S

TIMER = TIMEOUT_UNIT_NS << 14


# ---- the rule ----------------------------------------------------------------------------------------


def queued(
    messages: int = 8,
    *,
    shortest: int = 2 * MS,
    took: int = 80 * MS,
    kind: type[RcRequester] = RcRequester,
    timeout: int = 14,
) -> RcRequester:
    """After one round trip alone and one behind others; ``messages`` are on the way, from PSN 101 + 1 on."""
    behind = 32 if kind is SelectiveRequester else 0
    config = RequesterConfig(100, outstanding_packets_max=64, behind_max=behind, timeout=timeout)
    requester = kind(config)
    post(requester, 1)
    ack(requester, 100, now=at(shortest))
    post(requester, *[1] * (messages + 1), now=at(shortest))
    ack(requester, 101, now=at(shortest + took))
    assert requester.view().messages == messages
    return requester


def test_a_part_of_the_time_for_which_packets_queue_is_rested() -> None:
    requester = queued(shortest=2 * MS, took=26 * MS + 8)
    assert requester.view().round_trip_ns == 5 * MS + 1
    assert requester.rest_ns == (5 - 2) * MS // 4


def test_there_is_no_rest_before_a_round_trip_is_known_nor_where_nothing_queues() -> None:
    new = RcRequester(RequesterConfig(100))
    post(new, *[1] * 8)
    assert new.rest_ns == 0
    assert queued(shortest=30 * MS, took=30 * MS).rest_ns == 0


def test_the_shortest_round_trip_counts_whenever_it_was() -> None:
    requester = queued(shortest=66 * MS, took=2 * MS)
    assert requester.view().round_trip_ns == 58 * MS
    assert requester.rest_ns == REST_NS_MAX


@pytest.mark.parametrize(
    ("timeout", "rest"), [(14, REST_NS_MAX), (12, (TIMER >> 2) // REST_TIMER_PARTS), (0, 0)]
)
def test_a_rest_is_no_longer_than_its_bound_nor_than_a_part_of_the_timer(timeout: int, rest: int) -> None:
    assert queued(took=800 * MS, timeout=timeout).rest_ns == rest


@pytest.mark.parametrize("mtu", [1024, 4096])
def test_a_rest_lasts_no_longer_than_so_many_bytes_take_to_come(mtu: int) -> None:
    """A fourth of what is on the way would be 2 MiB here."""
    packets = (1 << 20) // mtu
    requester = RcRequester(RequesterConfig(100, mtu=mtu, outstanding_packets_max=9 * packets))
    requester.step(PostWrite(0, 1 << 20, 0x1000, 7, 0), at(0))
    ack(requester, 100 + packets - 1, now=at(0))
    for number in range(1, 10):
        requester.step(PostWrite(number, 1 << 20, 0x1000, 7, number), at(0))
    ack(requester, 100 + 2 * packets - 1, now=at(8 * 48 * MS))
    assert requester.view().outstanding == 8 * packets
    assert requester.rest_ns == 48 * MS * REST_BYTES_MAX // (8 << 20)


@pytest.mark.parametrize(("extra", "rests"), [(0, True), (-8, False)])
def test_a_short_rest_is_none(extra: int, rests: bool) -> None:
    requester = queued(shortest=0, took=4 * 8 * REST_NS_MIN + extra)
    assert requester.rest_ns == (REST_NS_MIN if rests else 0)


@pytest.mark.parametrize(("messages", "rests"), [(4, True), (3, False)])
def test_there_is_no_rest_near_the_end(messages: int, rests: bool) -> None:
    assert (queued(messages).rest_ns > 0) is rests


@pytest.mark.parametrize("kind", [RcRequester, SelectiveRequester])
def test_there_is_no_rest_until_an_answer_to_a_timeout(kind: type[RcRequester]) -> None:
    requester = queued(kind=kind)
    requester.step(TimerExpired(), at(82 * MS + TIMER))
    assert requester.rest_ns == 0


def test_there_is_no_rest_while_packets_wait_to_be_sent_again() -> None:
    requester = RcRequester(RequesterConfig(100, outstanding_packets_max=8, ack_every=4))
    post(requester, 1)
    ack(requester, 100, now=at(MS))
    post(requester, *[1] * 8, now=at(MS))
    ack(requester, 101, now=at(80 * MS))
    assert requester.rest_ns > 0
    ack(requester, 103, NAK_SEQUENCE, now=at(81 * MS))  # which halves the window
    assert requester.rest_ns == 0


@pytest.mark.parametrize("kind", [RcRequester, SelectiveRequester])
def test_there_is_no_rest_while_the_receiver_is_not_ready(kind: type[RcRequester]) -> None:
    requester = queued(kind=kind)
    ack(requester, 102, 0x2E, now=at(83 * MS))
    assert requester.rest_ns == 0


def test_there_is_no_rest_while_something_is_missing() -> None:
    requester = queued(kind=SelectiveRequester)
    assert requester.rest_ns > 0
    requester.step(AckArrived(103, NAK_SEQUENCE, 0, BehindGap(1, 1)), at(83 * MS))
    assert requester.rest_ns == 0


def test_a_nic_rests_as_all_its_connections_do() -> None:
    engine = SoftNicEngine(LEFT)
    source = engine.register_memory(memoryview(bytearray(64)))
    qpns = []
    for peer in (1, 2, 3):
        here = engine.create_qp(psn=0)
        engine.connect_qp(here.qpn, QpAddress(RIGHT.mac, RIGHT.ip, peer, 0), QpAttributes())
        qpns.append(here.qpn)
    whole = [Segment(source.key, source.va, 64)]
    assert engine.rest_ns == 0
    engine._qps[qpns[0]].connection.requester = queued(8, took=26 * MS)  # type: ignore[union-attr]
    engine._deadlines.arm(qpns[0], Instant(1))
    assert engine.rest_ns == 3 * MS // 4
    engine._qps[qpns[1]].connection.requester = queued(8, took=30 * MS)  # type: ignore[union-attr]
    engine._deadlines.arm(qpns[1], Instant(1))
    assert engine.rest_ns == 3 * MS // 4
    engine.post_write_imm(qpns[2], 1, whole, remote_va=0, rkey=1, imm=0, now=Instant(0))
    assert engine.rest_ns == 0


# ---- the shell ---------------------------------------------------------------------------------------


class Resting:
    """A NIC on the left that rests once it has heard of the first of eight messages; an engine on the right,
    each of whose answers leaves when the test says so."""

    def __init__(self, clock: MockClock, *, moderation: bool) -> None:
        left, self.port = open_frame_pair()
        self.clock = clock
        self.nic = SoftNic(left, LEFT, moderation=moderation)
        self._engine = SoftNicEngine(RIGHT)
        self._source = self.nic.register_memory(memoryview(bytearray(64)))
        self._target = self._engine.register_memory(memoryview(bytearray(64)))
        self.qpns = [self._connect(), self._connect()]
        self._come: list[Frames] = []

    def _connect(self) -> int:
        here, there = self.nic.create_qp(psn=0), self._engine.create_qp(psn=0)
        self.nic.connect_qp(here.qpn, there, QpAttributes())
        self._engine.connect_qp(there.qpn, here, QpAttributes())
        for receive in range(16):
            self._engine.post_receive(there.qpn, receive)
        return here.qpn

    def write(self, qpn: int) -> None:
        segment = Segment(self._source.key, self._source.va, 64)
        self.nic.post_write_imm(qpn, 1, [segment], remote_va=self._target.va, rkey=self._target.key, imm=0)

    async def answer(self) -> Frames:
        """To the next message, which is one packet."""
        await wait_all_tasks_blocked()
        if not self._come:
            self._come = [
                block[i : i + 1].copy() for block in await self.port.receive() for i in range(len(block))
            ]
        self._engine.handle_frames([self._come.pop(0)], Instant(0))
        (ack,) = self._engine.take_output()
        return ack

    async def send(self, frames: Frames) -> None:
        self.port.send_nowait(frames)
        self.port._write()
        await wait_all_tasks_blocked()

    async def pass_time(self, seconds: float) -> None:
        self.clock.jump(seconds)
        await wait_all_tasks_blocked(0.01)

    async def begin(self) -> None:
        """Seven messages are not acknowledged, and the NIC rests for 0.75 ms."""
        self.write(self.qpns[0])
        await self.send(await self.answer())
        for _ in range(8):
            self.write(self.qpns[0])
        first = await self.answer()
        await self.pass_time(24e-3)
        await self.send(first)
        assert self.done() == 2

    def done(self) -> int:
        return len(self.nic.poll())


@asynccontextmanager
async def resting(clock: MockClock, *, moderation: bool = True) -> AsyncIterator[Resting]:
    pair = Resting(clock, moderation=moderation)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.nic.run)
        await pair.begin()
        yield pair
        await pair.nic.aclose()
        await pair.port.aclose()


async def test_what_comes_in_a_rest_is_taken_in_after_it_together(mock_clock: MockClock) -> None:
    async with resting(mock_clock) as pair:
        await pair.send(await pair.answer())
        await pair.send(await pair.answer())
        await pair.pass_time(0.7e-3)
        early = pair.done(), pair.nic._receives
        await pair.pass_time(0.1e-3)
        assert (early, pair.done(), pair.nic._receives) == ((0, 2), 2, 3)


async def test_without_moderation_there_is_no_rest(mock_clock: MockClock) -> None:
    async with resting(mock_clock, moderation=False) as pair:
        await pair.send(await pair.answer())
        assert pair.done() == 1


async def test_a_rest_ends_when_something_is_posted_that_is_waited_for(mock_clock: MockClock) -> None:
    async with resting(mock_clock) as pair:
        await pair.send(await pair.answer())
        pair.write(pair.qpns[0])
        await wait_all_tasks_blocked()
        assert pair.done() == 0  # one more of many
        pair.write(pair.qpns[1])
        await wait_all_tasks_blocked()
        assert pair.done() == 1


async def test_who_comes_back_a_little_late_rests_again(mock_clock: MockClock) -> None:
    async with resting(mock_clock) as pair:
        await pair.pass_time(0.75e-3 + 0.99 * REST_LATE_S)
        await pair.send(await pair.answer())
        assert pair.done() == 1  # which was waited for
        await pair.send(await pair.answer())
        assert pair.done() == 0


async def test_who_comes_back_late_does_not_rest_for_a_while(mock_clock: MockClock) -> None:
    async with resting(mock_clock) as pair:
        await pair.pass_time(0.75e-3 + 1.01 * REST_LATE_S)
        for _ in range(2):
            await pair.send(await pair.answer())
            assert pair.done() == 1
        await pair.pass_time(RESTLESS_S)
        await pair.send(np.full((1, 60), 0xFE, np.uint8))  # for which it has waited all the time
        await pair.send(await pair.answer())
        assert pair.done() == 0


async def test_a_rest_ends_with_the_nic(mock_clock: MockClock) -> None:
    async with resting(mock_clock) as pair:
        with trio.fail_after(0.5e-3):
            await pair.nic.aclose()
            await wait_all_tasks_blocked()


@pytest.mark.parametrize("attempt", range(8))
async def test_what_comes_in_a_rest_is_taken_in_before_a_timer(attempt: int, mock_clock: MockClock) -> None:
    async with resting(mock_clock) as pair:
        await pair.pass_time(1e-3)
        late = await pair.answer()
        await pair.pass_time(TIMER_S - 1.1e-3)
        await pair.send(np.full((1, 60), 0xFE, np.uint8))  # taken in, and another rest begins
        await pair.send(late)
        assert pair.done() == 0
        await pair.pass_time(0.2e-3)
        assert (pair.done(), pair.nic.statistics()["timeouts"]) == (1, 0)


@pytest.mark.parametrize("congestion", [None, DcqcnConfig()])
def test_a_nic_with_congestion_control_does_not_rest(congestion: DcqcnConfig | None) -> None:
    """Marks and notifications are answered at once."""
    left, right = replace(LEFT, congestion=congestion), replace(RIGHT, congestion=congestion)
    link = Link(left, right, outstanding_packets=512)
    for number in range(20):
        link.right.post_receive(link.there.qpn, number)
    link.write(1000, now=at(0))
    link.to_right()
    link.left.handle_frames([block.copy() for block in link.right.take_output()], at(MS // 10))
    for _ in range(8):
        link.write(8000, now=at(MS))
    link.right.handle_frames([block.copy() for block in link.left.take_output()][:3], at(MS))
    link.left.handle_frames([block.copy() for block in link.right.take_output()], at(50 * MS))
    assert (link.left.rest_ns == 0) == (congestion is not None)
