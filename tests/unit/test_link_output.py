"""What waits for an interface, and for how long: no frame that the far end never takes keeps others."""

from __future__ import annotations

import errno
from collections.abc import Callable

import numpy as np
import trio
import trio.testing

from inaproto.ports import PortCounters
from inaproto.units import Frames
from inaproto_adapters.frames.link_output import REFUSED, REFUSED_S, TOO_LONG, LinkOutput

SHORT, LONG = 60, 2000


class Kernel:
    """Takes frames up to ``room`` bytes, and has no room for others, as towards a veth with a small MTU."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent: list[int] = []
        self.sent_one = trio.Event()
        self.counters = PortCounters()
        self.output = LinkOutput("packet:eth1", self.write, self.counters, queue_bytes_max=1 << 20)

    def write(self, frame: memoryview) -> None:
        if len(frame) > self.room:
            raise OSError(errno.ENOBUFS, "no buffer space")
        self.sent.append(len(frame))
        self.sent_one.set()

    def push(self, *lengths: int) -> None:
        assert self.output.push([frames(length) for length in lengths]) == 0


def frames(length: int) -> Frames:
    return np.zeros((1, length), np.uint8)


def in_time(scenario: Callable[[Kernel], object], *, room: int) -> Kernel:
    """``scenario`` with an output that runs; a second goes by afterwards."""
    kernel = Kernel(room)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.output.run, 0)
            scenario(kernel)
            await trio.sleep(1)
            kernel.output.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return kernel


def test_a_frame_that_the_far_end_does_not_take_keeps_others_waiting_for_a_moment() -> None:
    kernel = in_time(lambda its: its.push(SHORT, LONG, SHORT, SHORT), room=1000)
    assert kernel.sent == [SHORT] * 3
    assert kernel.counters.drops == {REFUSED: 1}


def test_as_long_frames_wait_no_more_once_shorter_ones_have_left() -> None:
    times: list[float] = []
    kernel = Kernel(1000)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.output.run, 0)
            for _ in range(3):
                began = trio.current_time()
                kernel.sent_one = trio.Event()
                kernel.push(LONG, SHORT)
                await kernel.sent_one.wait()
                times.append(trio.current_time() - began)
            await trio.sleep(0.01)
            kernel.output.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert times[0] >= REFUSED_S > 0.01 > max(times[1:])
    assert kernel.counters.drops == {REFUSED: 1, TOO_LONG: 2}


def test_a_link_that_takes_them_again_has_them_wait_again() -> None:
    kernel = Kernel(1000)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.output.run, 0)
            kernel.push(LONG, SHORT)
            await trio.sleep(0.5)
            kernel.room = LONG
            kernel.push(LONG)
            kernel.room = 0  # a queue that is full for a moment
            kernel.push(LONG)
            await trio.sleep(REFUSED_S / 2)
            kernel.room = LONG
            await trio.sleep(0.5)
            kernel.output.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert kernel.sent == [SHORT, LONG, LONG]
    assert kernel.counters.drops == {REFUSED: 1}


def test_a_queue_that_is_full_for_a_moment_loses_nothing() -> None:
    kernel = Kernel(0)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.output.run, 0)
            kernel.push(SHORT, LONG)
            await trio.sleep(REFUSED_S / 2)
            kernel.room = LONG
            await trio.sleep(0.5)
            kernel.output.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (kernel.sent, kernel.counters.drops) == ([SHORT, LONG], {})


def test_a_short_frame_waits_for_one_long_frame_not_for_each() -> None:
    times: list[float] = []
    kernel = Kernel(1000)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.output.run, 0)
            began = trio.current_time()
            kernel.push(*[LONG] * 300, SHORT, LONG)
            await kernel.sent_one.wait()
            times.append(trio.current_time() - began)
            kernel.output.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert REFUSED_S <= times[0] < 2 * REFUSED_S


def test_a_link_that_stood_still_and_is_slow_then_loses_no_more_than_waited_in_vain() -> None:
    """Room for one frame now and then is for whichever comes: that a short one leaves proves nothing."""
    kernel = Kernel(LONG)
    write, since, taken = kernel.output._write, 1.5 * REFUSED_S, 0

    def slowly(frame: memoryview) -> None:
        """Room for one frame each 1.2 ms."""
        nonlocal taken
        if (trio.current_time() - began - since) / 0.0012 < taken + 1:
            raise OSError(errno.ENOBUFS, "no buffer space")
        taken += 1
        write(frame)

    kernel.output._write = slowly
    began = 0.0

    async def main() -> None:
        nonlocal began
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.output.run, 0)
            kernel.push(LONG, SHORT, *[LONG] * 100)
            await trio.sleep(1)
            kernel.output.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert kernel.counters.drops == {REFUSED: 1}
    assert sorted(kernel.sent) == [SHORT] + [LONG] * 100


def test_frames_too_long_for_the_interface_itself_have_not_left() -> None:
    """They are no proof that those behind them may wait again."""
    times: list[float] = []
    kernel = Kernel(1000)
    write = kernel.output._write

    def refuse(frame: memoryview) -> object:
        if len(frame) > 2 * LONG:
            raise OSError(errno.EMSGSIZE, "message too long")
        return write(frame)

    kernel.output._write = refuse

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.output.run, 0)
            for _ in range(5):
                kernel.push(LONG, SHORT)
                await trio.sleep(2 * REFUSED_S)
            for _ in range(3):
                began, kernel.sent_one = trio.current_time(), trio.Event()
                assert kernel.output.push([frames(3 * LONG)]) == 1
                kernel.push(LONG, SHORT)
                await kernel.sent_one.wait()
                times.append(trio.current_time() - began)
            kernel.output.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert max(times) < 0.01
