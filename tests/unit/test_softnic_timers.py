"""The softnic's shell serves timers after what has come, and says when it could not run in time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.core.rdma.reliable_connection import TIMEOUT_UNIT_NS
from inaproto.ports import QpAttributes, Segment
from inaproto.units import Frames, Instant, S
from inaproto_adapters.frames import open_frame_pair
from inaproto_adapters.frames.port import StreamFramePort
from inaproto_adapters.softnic import SoftNic, SoftNicConfig, SoftNicEngine

TIMER_S = (TIMEOUT_UNIT_NS << 14) / S
NBYTES = 300 * 1024
LEFT = SoftNicConfig(mac=b"\x52\x54\0\0\0\1", ip=b"\x0a\0\0\1")
RIGHT = SoftNicConfig(mac=b"\x52\x54\0\0\0\2", ip=b"\x0a\0\0\2")


class Pair:
    """A NIC on the left; on the right an engine whose answers leave when the test says so."""

    def __init__(self) -> None:
        left, self._right_port = open_frame_pair()
        self.nic = SoftNic(left, LEFT)
        self._engine = SoftNicEngine(RIGHT)
        here, there = self.nic.create_qp(psn=0), self._engine.create_qp(psn=0)
        self.nic.connect_qp(here.qpn, there, QpAttributes())
        self._engine.connect_qp(there.qpn, here, QpAttributes())
        self._engine.post_receive(there.qpn, 1)
        self._source = self.nic.register_memory(memoryview(bytearray(NBYTES)))
        self._target = self._engine.register_memory(memoryview(bytearray(NBYTES)))
        self._qpn = here.qpn

    def write(self) -> None:
        self.nic.post_write_imm(
            self._qpn,
            1,
            [Segment(self._source.key, self._source.va, NBYTES)],
            remote_va=self._target.va,
            rkey=self._target.key,
            imm=0,
        )

    async def answers(self) -> list[Frames]:
        """What the right side has to say to all that has come."""
        while self._engine.statistics()["messages_received"] == 0:
            self._engine.handle_frames(await self._right_port.receive(), Instant(0))
        return self._engine.take_output()

    def send(self, answers: list[Frames]) -> None:
        """They are in the left NIC's socket when this returns."""
        port: StreamFramePort = self._right_port
        for frames in answers:
            port.send_nowait(frames)
        port._write()

    async def close(self) -> None:
        await self.nic.aclose()
        await self._right_port.aclose()


@pytest.mark.parametrize("attempt", range(8))
async def test_an_ack_that_waits_in_the_port_is_taken_in_before_the_timer(
    attempt: int, mock_clock: MockClock
) -> None:
    """Trio runs tasks that wake together in any order, so a few attempts."""
    pair = Pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.nic.run)
        pair.write()
        answers = await pair.answers()
        await wait_all_tasks_blocked()
        pair.send(answers)
        mock_clock.jump(1.01 * TIMER_S)
        await wait_all_tasks_blocked(0.01)
        statistics = pair.nic.statistics()
        await pair.close()
    assert len(pair.nic.poll()) == 1
    assert (statistics["timeouts"], statistics["timers_late"], statistics["retransmits"]) == (0, 0, 0)


async def test_a_process_that_stood_still_sends_nothing_at_first(mock_clock: MockClock) -> None:
    pair = Pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.nic.run)
        pair.write()
        await wait_all_tasks_blocked()
        mock_clock.jump(300)
        await wait_all_tasks_blocked(0.01)
        late = pair.nic.statistics()
        mock_clock.jump(1.01 * TIMER_S)
        await wait_all_tasks_blocked(0.01)
        after = pair.nic.statistics()
        await pair.close()
    assert (late["timeouts"], late["timers_late"], late["retransmits"]) == (0, 1, 0)
    assert (after["timeouts"], after["timers_late"], after["retransmits"]) == (1, 1, 2)


async def test_a_timer_that_was_moved_on_costs_no_turns_of_the_loop(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each acknowledgement moves it, and the task that waits for it is left alone."""
    pair = Pair()
    took_in: list[float] = []
    take_in = pair.nic._take_in

    async def counted() -> None:
        took_in.append(trio.current_time())
        await take_in()

    monkeypatch.setattr(pair.nic, "_take_in", counted)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.nic.run)
        began = trio.current_time()
        pair.write()
        answers = await pair.answers()
        mock_clock.jump(TIMER_S / 2)
        pair.send(answers)
        await wait_all_tasks_blocked()
        pair.write()
        mock_clock.jump(0.51 * TIMER_S)
        await wait_all_tasks_blocked(0.01)
        early, timeouts = len(took_in), pair.nic.statistics()["timeouts"]
        mock_clock.jump(0.5 * TIMER_S)
        await wait_all_tasks_blocked(0.01)
        after = pair.nic.statistics()["timeouts"]
        await pair.close()
    assert (early, timeouts) == (0, 0)
    assert ([time - began > 1.5 * TIMER_S for time in took_in], after) == ([True], 1)
