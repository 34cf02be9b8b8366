"""The frame port contract in memory, and through clear weather over either kind of port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inaproto.faults.weather import Weather
from inaproto_adapters.frames import FramesConfig, open_frame_pair
from inaproto_adapters.memory import Link, WeatherPort, open_memory_pair
from tests.contract.frame_port_contract import LosslessFramePortContract, Pair


class TestMemory(LosslessFramePortContract):
    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        left, right = open_memory_pair(Link(queue_bytes_max=queue_bytes_max))
        yield left, right
        await left.aclose()
        await right.aclose()


class TestClearWeatherOverSockets(LosslessFramePortContract):
    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        left, right = open_frame_pair(FramesConfig(queue_bytes_max=queue_bytes_max))
        wrapped = (
            WeatherPort(left, Weather(), seed=1, name="left"),
            WeatherPort(right, Weather(), seed=1, name="right"),
        )
        yield wrapped
        for port in wrapped:
            await port.aclose()


class TestWeatherThatNeverHits(LosslessFramePortContract):
    """A probability so small that the code path of weather runs and changes nothing."""

    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        left, right = open_memory_pair(Link(queue_bytes_max=queue_bytes_max))
        weather = Weather(drop=1e-300)
        assert not weather.clear
        wrapped = (
            WeatherPort(left, weather, seed=1, name="left"),
            WeatherPort(right, weather, seed=1, name="right"),
        )
        yield wrapped
        for port in wrapped:
            await port.aclose()

    async def test_capabilities_say_lossless_and_jumbo(self) -> None:
        async with self.running() as (left, _right):
            assert not left.capabilities.lossless
