"""Links in memory: exact times under a virtual clock, one seed one run, and no mercy for kept views."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from inaproto.errors import ConfigError
from inaproto.faults.weather import Weather
from inaproto.ports import PortClosed, load_adapter
from inaproto.units import MS, Frames, S
from inaproto_adapters.memory import ADAPTER, Link, MemoryFramePort, open_memory_pair

STORM = Weather(0.05, 0.05, 0.1, 0.05, 0.05, delay_min_ns=MS, delay_max_ns=20 * MS)


def frames_of(first: int, n: int, length: int = 100) -> Frames:
    return np.arange(first, first + n, dtype=np.uint8)[:, None].repeat(length, axis=1)


async def arrivals(port: MemoryFramePort) -> list[tuple[int, bytes]]:
    """Every frame until the port closes, with the time of the receive that gave it."""
    got: list[tuple[int, bytes]] = []
    while True:
        try:
            blocks = await port.receive()
        except PortClosed:
            return got
        now = round(trio.current_time() * S)
        got.extend((now, row.tobytes()) for block in blocks for row in block)


async def test_latency_and_bandwidth_are_exact(autojump_clock: MockClock) -> None:
    left, right = open_memory_pair(Link(latency_ns=3 * MS, bandwidth_bps=1_000_000))
    left.send_nowait(frames_of(0, 5))  # 4000 bits, 4 ms on the wire
    left.send_nowait(frames_of(5, 1))  # then 0.8 ms
    await trio.sleep(0.010)
    left.send_nowait(frames_of(6, 1))  # the wire is idle again
    await left.aclose()
    got = await arrivals(right)
    assert [frame[0] for _, frame in got] == list(range(7))
    assert [at for at, _ in got] == [10 * MS] * 6 + [13_800_000]


async def test_arrivals_wake_a_waiting_receiver_at_their_times(autojump_clock: MockClock) -> None:
    left, right = open_memory_pair(Link(latency_ns=5 * MS))
    got: list[tuple[int, bytes]] = []

    async def receive() -> None:
        got.extend(await arrivals(right))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        for first in range(3):
            left.send_nowait(frames_of(first, 1))
            await trio.sleep(0.002)
        await left.aclose()
    assert [(at, frame[0]) for at, frame in got] == [(5 * MS, 0), (7 * MS, 1), (9 * MS, 2)]


def run_under_weather(seed: int) -> tuple[str, dict[str, int]]:
    """A digest of everything both ends see, and what the weather did from left to right."""
    counters: dict[str, int] = {}

    async def main() -> str:
        left, right = open_memory_pair(
            Link(latency_ns=MS, bandwidth_bps=10_000_000, weather=STORM), seed=seed, names=("h0", "sw")
        )
        seen: dict[str, list[tuple[int, bytes]]] = {}

        async def receive(port: MemoryFramePort) -> None:
            seen[port.name] = await arrivals(port)

        async def send(port: MemoryFramePort, pause: float) -> None:
            for first in range(0, 250, 10):
                port.send_nowait(frames_of(first, 10))
                await trio.sleep(pause)
            await port.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive, right)
            nursery.start_soon(receive, left)
            nursery.start_soon(send, left, 0.003)
            await trio.sleep(0.1)
        counters.update(left.weather_counters())
        return hashlib.sha256(repr(sorted(seen.items())).encode()).hexdigest()

    return trio.run(main, clock=MockClock(autojump_threshold=0)), counters


def test_one_seed_is_one_run() -> None:
    digest, counters = run_under_weather(7)
    assert run_under_weather(7) == (digest, counters)
    assert run_under_weather(8)[0] != digest
    assert counters["frames"] == 250
    assert all(counters.values())


async def test_directions_have_weather_of_their_own() -> None:
    left, right = open_memory_pair(Link(weather=Weather(drop=1)), back=Link())
    assert left.send_nowait(frames_of(0, 3)) == 3
    right.send_nowait(frames_of(7, 2))
    await left.receive()
    assert left.weather_counters()["dropped"] == 3
    assert right.weather_counters()["dropped"] == 0
    assert (left.capabilities.lossless, right.capabilities.lossless) == (False, True)


async def test_kept_views_are_overwritten() -> None:
    left, right = open_memory_pair()
    left.send_nowait(frames_of(1, 2))
    (kept,) = await right.receive()
    left.send_nowait(frames_of(3, 2))
    (new,) = await right.receive()
    assert not np.isin(kept, [1, 2]).any()
    assert new[:, 0].tolist() == [3, 4]
    assert new.strides == (104, 1)


async def test_one_receive_is_bounded() -> None:
    left, right = open_memory_pair()
    for _ in range(30):
        left.send_nowait(np.zeros((10, 9000), dtype=np.uint8))
    portions = [sum(block.size for block in await right.receive()) for _ in range(3)]
    assert sum(portions) == 30 * 90_000
    assert portions[0] == 12 * 90_000


async def test_duplicates_that_do_not_fit_are_lost() -> None:
    left, right = open_memory_pair(
        Link(queue_bytes_max=1000, frame_bytes_max=100, weather=Weather(duplicate=1))
    )
    assert left.send_nowait(frames_of(0, 10)) == 10
    assert left.weather_counters()["dropped"] == 20
    assert left.send_nowait(frames_of(0, 5)) == 5
    assert len((await right.receive())[0]) == 10


async def test_adapter_opens_pairs() -> None:
    assert load_adapter("memory") is ADAPTER
    left, right = ADAPTER.open(Link(latency_ns=0), seed=3, names=("x", "y"))
    left.send_nowait(frames_of(1, 1))
    assert len(await right.receive()) == 1
    assert (left.name, right.name) == ("x", "y")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Link(latency_ns=-1), "latency_ns=-1"),
        (lambda: Link(bandwidth_bps=0), "bandwidth_bps=0"),
        (lambda: Link(frame_bytes_max=13), "frame_bytes_max=13"),
        (lambda: Link(frame_bytes_max=9217), "frame_bytes_max=9217"),
        (lambda: Link(queue_bytes_max=9215), "queue_bytes_max=9215"),
    ],
)
def test_configuration_errors_name_the_field(make: Callable[[], Link], field: str) -> None:
    with pytest.raises(ConfigError, match=f"link: {field}: "):
        make()
