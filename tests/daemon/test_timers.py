"""Rests by a timer of the kernel: what ends them, and that nothing is left of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.daemon import timers
from inaproto.daemon.shell import Rest
from inaproto.daemon.timers import KernelTimer, open_timer

FOR_EVER_S = 1e6


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_timer_ends_a_wait_not_before_its_time_and_again_and_again() -> None:
    timer = KernelTimer()
    for seconds in (0.002, 0, -1, 0.001):
        began = trio.current_time()
        await timer.wait(seconds)
        assert trio.current_time() - began >= seconds - 1e-6
    timer.close()


async def test_a_rest_ends_when_it_is_told_to_and_the_next_one_is_whole() -> None:
    rest = Rest()
    before = descriptors()
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rest.until, trio.current_time() + FOR_EVER_S)
            await wait_all_tasks_blocked()
            assert rest.lasts
            rest.end()
        assert not rest.lasts
    rest.end()  # of none
    assert descriptors() > before
    began = trio.current_time()
    assert await rest.until(began + 0.002)
    assert trio.current_time() >= began + 0.002 - 1e-6
    rest.close()
    rest.close()
    assert descriptors() == before


async def test_a_rest_that_is_cancelled_does_not_last() -> None:
    rest = Rest()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rest.until, trio.current_time() + FOR_EVER_S)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not rest.lasts
    rest.close()


async def test_in_virtual_time_there_is_no_timer_of_the_kernel(autojump_clock: MockClock) -> None:
    assert open_timer() is None
    rest = Rest()
    began = trio.current_time()
    assert await rest.until(began + FOR_EVER_S)
    assert trio.current_time() >= began + FOR_EVER_S


async def test_without_such_timers_trio_ends_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> KernelTimer:
        raise OSError

    monkeypatch.setattr(timers, "KernelTimer", none)
    assert open_timer() is None
    rest = Rest()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rest.until, trio.current_time() + FOR_EVER_S)
        await wait_all_tasks_blocked()
        rest.end()
    assert not rest.lasts
