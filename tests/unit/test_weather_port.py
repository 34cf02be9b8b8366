"""Weather over a frame port: late frames come at their times, everything is counted, nothing hangs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.errors import LocalMisuse
from inaproto.faults.weather import Weather
from inaproto.ports import Adapter, FramePort, PortClosed
from inaproto.units import MS, Frames, S
from inaproto_adapters.frames import open_frame_pair
from inaproto_adapters.memory import WEATHER, Link, WeatherPort, open_memory_pair

LATE = Weather(reorder=1, delay_min_ns=2 * MS, delay_max_ns=2 * MS)


def frames_of(first: int, n: int) -> Frames:
    return np.arange(first, first + n, dtype=np.uint8)[:, None].repeat(100, axis=1)


@asynccontextmanager
async def weather_and_far_end(
    weather: Weather, link: Link | None = None, *, seed: int = 7
) -> AsyncIterator[tuple[WeatherPort, FramePort]]:
    near, far = open_memory_pair(link)
    port = WeatherPort(near, weather, seed=seed, name="port-0")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.run)
        await wait_all_tasks_blocked()
        yield port, far
        await port.aclose()


async def numbers(port: FramePort, n: int) -> list[tuple[int, int]]:
    """Time and first byte of the next ``n`` frames."""
    got: list[tuple[int, int]] = []
    while len(got) < n:
        blocks = await port.receive()
        now = round(trio.current_time() * S)
        got.extend((now, int(row[0])) for block in blocks for row in block)
    return got


async def test_late_frames_are_sent_at_their_times(autojump_clock: MockClock) -> None:
    async with weather_and_far_end(LATE) as (port, far):
        assert port.send_nowait(frames_of(0, 2)) == 2
        await trio.sleep(0.001)
        assert port.send_nowait(frames_of(2, 1)) == 1
        assert await numbers(far, 3) == [(2 * MS, 0), (2 * MS, 1), (3 * MS, 2)]
        assert port.weather_counters()["reordered"] == 3


async def test_late_frames_are_received_at_their_times(autojump_clock: MockClock) -> None:
    async with weather_and_far_end(LATE) as (port, far):
        far.send_nowait(frames_of(0, 2))
        async with trio.open_nursery() as nursery:

            async def send_later() -> None:
                await trio.sleep(0.001)
                far.send_nowait(frames_of(2, 1))

            nursery.start_soon(send_later)
            assert await numbers(port, 3) == [(2 * MS, 0), (2 * MS, 1), (3 * MS, 2)]


async def test_frames_behind_a_late_one_overtake_it(autojump_clock: MockClock) -> None:
    async with weather_and_far_end(Weather(reorder=0.3), seed=1) as (port, far):
        port.send_nowait(frames_of(0, 20))
        got = await numbers(far, 20)
        prompt, late = ([number for at, number in got if at == when] for when in (0, MS))
        assert prompt == sorted(prompt)
        assert late == sorted(late)
        assert sorted(prompt + late) == list(range(20))
        assert prompt[-1] > late[0]


async def test_both_directions_are_counted_and_have_streams_of_their_own() -> None:
    async with weather_and_far_end(Weather(drop=0.5)) as (port, far):
        port.send_nowait(frames_of(0, 100))
        far.send_nowait(frames_of(0, 100))
        there = [number for _, number in await numbers(far, 30)]
        here = [number for _, number in await numbers(port, 30)]
        assert there != here
        counters = port.weather_counters()
        assert counters["frames"] == 200
        assert counters["dropped"] == 200 - len(there) - len(here)
        assert port.counters.frames_out == len(there)
        assert not port.capabilities.lossless


async def test_weather_that_takes_everything_keeps_receive_waiting() -> None:
    async with weather_and_far_end(Weather(drop=1)) as (port, far), trio.open_nursery() as nursery:

        async def receive() -> None:
            await port.receive()
            raise AssertionError("nothing can arrive")

        nursery.start_soon(receive)
        for _ in range(5):
            far.send_nowait(frames_of(0, 10))
            await wait_all_tasks_blocked()
        assert port.weather_counters()["dropped"] == 50
        nursery.cancel_scope.cancel()


async def test_cancelled_receive_loses_no_late_frame(autojump_clock: MockClock) -> None:
    async with weather_and_far_end(LATE) as (port, far):
        far.send_nowait(frames_of(0, 3))
        with trio.move_on_after(0.001) as scope:
            await port.receive()
        assert scope.cancelled_caught
        await trio.sleep(0.005)
        with trio.CancelScope() as scope:
            scope.cancel()
            await port.receive()
        assert scope.cancelled_caught
        assert [number for _, number in await numbers(port, 3)] == [0, 1, 2]


async def test_frames_that_the_weather_takes_were_accepted_but_a_full_queue_refuses() -> None:
    async with weather_and_far_end(Weather(drop=0.5), Link(queue_bytes_max=9216)) as (port, _far):
        accepted = port.send_nowait(frames_of(0, 250))
        dropped = port.weather_counters()["dropped"]
        passed = 250 - dropped
        assert passed > 92
        assert port.counters.drops == {"output queue full": passed - 92}
        assert accepted == 250 - (passed - 92)


async def test_closed_port_and_bad_frames_are_refused_even_when_the_weather_takes_all() -> None:
    async with weather_and_far_end(Weather(drop=1)) as (port, far):
        with pytest.raises(LocalMisuse, match="13 bytes"):
            port.send_nowait(np.zeros((1, 13), dtype=np.uint8))
        assert port.weather_counters()["frames"] == 0
        await far.aclose()
        with pytest.raises(PortClosed):
            port.send_nowait(frames_of(0, 1))
        with pytest.raises(PortClosed):
            await port.receive()


async def test_late_frames_end_with_the_port(autojump_clock: MockClock) -> None:
    async with weather_and_far_end(LATE) as (port, far):
        port.send_nowait(frames_of(0, 4))
        await port.aclose()
        with pytest.raises(PortClosed):
            await far.receive()
        assert port.counters.drops == {"late when the port closed": 4}


async def test_late_frames_for_a_peer_that_has_gone_end_quietly(autojump_clock: MockClock) -> None:
    async with weather_and_far_end(LATE) as (port, far):
        port.send_nowait(frames_of(0, 4))
        await far.aclose()
        await trio.sleep(0.01)
        with pytest.raises(PortClosed):
            await port.receive()


async def test_late_frames_are_bounded() -> None:
    near, _far = open_memory_pair()
    port = WeatherPort(near, LATE, seed=1, name="port-0")
    block = np.zeros((1000, 9000), dtype=np.uint8)
    for _ in range(2):
        assert port.send_nowait(block) == 1000
    kept = (16 << 20) // 9000
    assert port.counters.drops == {"late frames full": 2000 - kept}
    await port.aclose()


async def test_over_a_real_stream_with_the_real_clock() -> None:
    near, far = open_frame_pair()
    port = WeatherPort(near, Weather(duplicate=1, reorder=0.5, delay_max_ns=2 * MS), seed=3, name="port-0")
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(port.run)
            nursery.start_soon(far.run)
            port.send_nowait(frames_of(0, 100))
            far.send_nowait(frames_of(100, 100))
            there = sorted(number for _, number in await numbers(far, 200))
            here = sorted(number for _, number in await numbers(port, 200))
            assert there == sorted([*range(100)] * 2)
            assert here == sorted([*range(100, 200)] * 2)
            await port.aclose()
            await far.aclose()


def test_adapter_wraps_ports() -> None:
    assert isinstance(WEATHER, Adapter)
    near, _ = open_memory_pair()
    assert isinstance(WEATHER.open(near, Weather(), seed=1, name="p"), WeatherPort)
