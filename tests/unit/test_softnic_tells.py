"""The softnic tells of completions right behind the receive, and sends in one go what is posted together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.ports import (
    BatchesRequests,
    Completion,
    CompletionKind,
    QpAttributes,
    Segment,
    TellsCompletions,
)
from inaproto.units import Frames
from inaproto_adapters.frames import open_frame_pair
from inaproto_adapters.softnic import SoftNic
from tests.unit.test_softnic_timers import LEFT, RIGHT, TIMER_S
from tests.unit.test_softnic_timers import Pair as Answering

NBYTES = 3000


class Pair:
    """Two NICs, with memory to write from and to."""

    def __init__(self) -> None:
        left, right = open_frame_pair()
        self.nics = SoftNic(left, LEFT), SoftNic(right, RIGHT)
        self.qps = [nic.create_qp(psn=0) for nic in self.nics]
        self.memory = [nic.register_memory(memoryview(bytearray(NBYTES))) for nic in self.nics]
        for mine, nic in enumerate(self.nics):
            nic.connect_qp(self.qps[mine].qpn, self.qps[1 - mine], QpAttributes())

    async def close(self) -> None:
        for nic in self.nics:
            await nic.aclose()

    def write(self, mine: int, number: int) -> None:
        own, far = self.memory[mine], self.memory[1 - mine]
        segments = [Segment(own.key, own.va, NBYTES)]
        self.nics[mine].post_write_imm(
            self.qps[mine].qpn, number, segments, remote_va=far.va, rkey=far.key, imm=number
        )


def kinds(completions: Sequence[Completion]) -> list[tuple[CompletionKind, int]]:
    return [(completion.kind, completion.wr_id) for completion in completions]


async def test_what_a_receive_completes_is_told_at_once_and_answered_in_one_go(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    left, right = pair.nics
    told: list[Sequence[Completion]] = []
    settled: list[int] = []

    def answer(completions: Sequence[Completion]) -> None:
        told.append(completions)
        if len(told) > 1:
            return
        for number in range(3):
            right.post_receive(pair.qps[1].qpn, 10 + number)
            pair.write(1, 20 + number)
        assert settled == []

    right.tell_completions(answer)
    for number in range(3):
        left.post_receive(pair.qps[0].qpn, number)
    right.post_receive(pair.qps[1].qpn, 7)
    send = right._port.send_nowait

    def sending(frames: Frames) -> int:
        settled.append(len(frames))
        return send(frames)

    monkeypatch.setattr(right._port, "send_nowait", sending)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(left.run)
        nursery.start_soon(right.run)
        pair.write(0, 5)
        await wait_all_tasks_blocked()
        done = left.poll()
        assert kinds(told[0]) == [(CompletionKind.RECEIVE_IMM, 7)]
        assert (CompletionKind.SEND, 5) in kinds(done)
        assert [wr_id for kind, wr_id in kinds(done) if kind is CompletionKind.RECEIVE_IMM] == [0, 1, 2]
        assert sum(settled) == 3 * 3 + 1
        right.destroy_qp(pair.qps[1].qpn)
        flushed = await right.wait_completions()
        assert {wr_id for kind, wr_id in kinds(flushed)} >= {10, 11, 12}, "not of a receive: for who waits"
        await pair.close()


async def test_batches_that_lie_in_each_other_are_sent_at_the_end_of_all(autojump_clock: MockClock) -> None:
    pair = Pair()
    left, right = pair.nics
    assert isinstance(left, BatchesRequests)
    assert isinstance(left, TellsCompletions)
    right.post_receive(pair.qps[1].qpn, 7)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(left.run)
        nursery.start_soon(right.run)
        left.begin_batch()
        left.begin_batch()
        pair.write(0, 5)
        left.end_batch()
        await wait_all_tasks_blocked()
        assert right.statistics()["packets_received"] == 0
        left.end_batch()
        await wait_all_tasks_blocked()
        assert kinds(left.poll()) == [(CompletionKind.SEND, 5)]
        await pair.close()


async def test_a_timer_that_is_now_later_is_served_then(mock_clock: MockClock) -> None:
    """Whoever wakes by the earlier one looks again: no timeout is missed, and none comes too soon."""
    pair = Answering()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.nic.run)
        pair.write()
        pair.send(await pair.answers())
        await wait_all_tasks_blocked(0.01)
        mock_clock.jump(0.5 * TIMER_S)
        pair.write()
        for part, timeouts in ((0.51, 0), (0.48, 0), (0.02, 1)):
            mock_clock.jump(part * TIMER_S)
            await wait_all_tasks_blocked(0.01)
            statistics = pair.nic.statistics()
            assert (statistics["timeouts"], statistics["timers_late"]) == (timeouts, 0)
        await pair.close()
