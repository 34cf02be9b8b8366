"""The softnic's shell with congestion control: packets leave at their rate, some together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from inaproto.core.rdma.congestion import FlowCongestion
from inaproto.core.rdma.dcqcn import DcqcnConfig
from inaproto.ports import QpAttributes, Segment, Status
from inaproto.units import US, Instant
from inaproto.wire.cnp import mark
from inaproto_adapters.frames import open_frame_pair
from inaproto_adapters.softnic import SoftNicConfig, SoftNicEngine
from inaproto_adapters.softnic.nic import PACE_QUANTUM_NS, open_nic

LINE_MBIT = 100
NBYTES = 200 * 1024
MAC, IP = b"\x52\x54\0\0\0\1", b"\x0a\0\0\1"
RIGHT = SoftNicConfig(mac=b"\x52\x54\0\0\0\2", ip=b"\x0a\0\0\2", congestion=DcqcnConfig())


class Pair:
    """A NIC on the left, and an engine on the right that answers at once."""

    def __init__(self, *, dcqcn_mbit: int) -> None:
        left, self.port = open_frame_pair()
        self.nic = open_nic(left, mac=MAC, ip=IP, dcqcn_mbit=dcqcn_mbit)
        self.engine = SoftNicEngine(RIGHT)
        self.here, self.there = self.nic.create_qp(psn=0), self.engine.create_qp(psn=0)
        self.nic.connect_qp(self.here.qpn, self.there, QpAttributes())
        self.engine.connect_qp(self.there.qpn, self.here, QpAttributes())
        for receive in range(4):
            self.engine.post_receive(self.there.qpn, receive)
        self._source = self.nic.register_memory(memoryview(bytearray(NBYTES)))
        self._target = self.engine.register_memory(memoryview(bytearray(NBYTES)))
        self.came: list[float] = []

    def write(self, nbytes: int) -> None:
        segment = Segment(self._source.key, self._source.va, nbytes)
        there = self._target
        self.nic.post_write_imm(self.here.qpn, 1, [segment], remote_va=there.va, rkey=there.key, imm=0)

    async def answer(self) -> None:
        """The engine takes in what comes, the first packet each time with a mark, if it can bear one."""
        while True:
            blocks = [block.copy() for block in await self.port.receive()]
            self.came += [trio.current_time()] * sum(map(len, blocks))
            mark(blocks[0][:1])
            self.engine.handle_frames(blocks, Instant(round(trio.current_time() * 1e9)))
            for frames in self.engine.take_output():
                self.port.send_nowait(frames)

    async def play(self) -> float:
        """Seconds that a message takes which follows one of one packet."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.nic.run)
            nursery.start_soon(self.port.run)
            nursery.start_soon(self.answer)
            self.write(64)
            [done] = await self.nic.wait_completions()
            assert done.status is Status.SUCCESS
            self.came.clear()
            began = trio.current_time()
            self.write(NBYTES)
            [done] = await self.nic.wait_completions()
            took = trio.current_time() - began
            assert done.status is Status.SUCCESS
            nursery.cancel_scope.cancel()
        await self.nic.aclose()
        await self.port.aclose()
        return took


async def test_packets_leave_at_the_rate_some_together(autojump_clock: MockClock) -> None:
    pair = Pair(dcqcn_mbit=LINE_MBIT)
    took = await pair.play()
    at_line = NBYTES * 8 / (LINE_MBIT * 1e6)
    assert took > 2 * at_line
    assert pair.nic.statistics()["cnps_received"] > 2
    wakes = len(set(pair.came))
    assert wakes <= 1 + took / (PACE_QUANTUM_NS / 1e9)
    assert pair.nic.statistics()["retransmits"] == 0


async def test_without_congestion_control_nothing_waits(autojump_clock: MockClock) -> None:
    pair = Pair(dcqcn_mbit=0)
    assert await pair.play() < 1e-3
    assert pair.nic.statistics()["cnps_received"] == 0


def test_rates_grow_at_the_times_at_which_a_coarse_clock_looks() -> None:
    fine, coarse = FlowCongestion(DcqcnConfig(), 1024), FlowCongestion(DcqcnConfig(), 1024, 200 * US)
    for flow in (fine, coarse):
        flow.notified(Instant(0))
        while (at := flow.earliest(None)) is not None and at <= 600 * US:
            flow.woke(at)
    assert coarse.earliest(None) == Instant(655 * US)
    assert fine.earliest(None) == Instant(605 * US)
    coarse.woke(Instant(655 * US))
    fine.woke(Instant(605 * US))
    assert coarse.reaction.view() == fine.reaction.view()


@pytest.mark.parametrize("each", [60, 120, 190])
def test_a_notification_loses_no_growth_that_was_due_before_it(each: int) -> None:
    """A coarse clock has not looked since: the timer of 55 us has expired all the same."""
    fine, coarse = FlowCongestion(DcqcnConfig(), 1024), FlowCongestion(DcqcnConfig(), 1024, 200 * US)
    for flow in (fine, coarse):
        for number in range(20):
            now = Instant(number * each * US)
            while (at := flow.earliest(None)) is not None and at <= now:
                flow.woke(at)
            flow.notified(now)
            flow.woke(now)
    assert coarse.reaction.view() == fine.reaction.view()
    assert fine.reaction.rate_bps > DcqcnConfig().rate_min_bps * 10


@pytest.mark.parametrize("asked", [0, 1000])
async def test_the_setting_says_the_rate_of_the_link(asked: int) -> None:
    left, right = open_frame_pair()
    config = open_nic(left, mac=MAC, ip=IP, dcqcn_mbit=asked)._engine.config
    assert config.congestion == (replace(DcqcnConfig(), line_rate_bps=10**9) if asked else None)
    assert config.pace.quantum_ns == (PACE_QUANTUM_NS if asked else 0)
    await left.aclose()
    await right.aclose()
