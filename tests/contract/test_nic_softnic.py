"""The NIC contract over softnic: on memory links under a mock clock, and over UNIX sockets in real time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from inaproto.errors import LocalMisuse, Unsupported
from inaproto.faults.weather import Weather
from inaproto.ports import FramePort, Nic, PortClosed, load_adapter
from inaproto.units import MS, US
from inaproto_adapters.frames import open_frame_pair
from inaproto_adapters.memory import Link, open_memory_pair
from tests.contract.lossy_nic_contract import LossyNicContract
from tests.contract.nic_contract import NicContract, connect, noise, transfer

WEATHER = Weather(
    drop=0.01,
    duplicate=0.005,
    reorder=0.01,
    corrupt=0.005,
    truncate=0.001,
    delay_min_ns=20 * US,
    delay_max_ns=2 * MS,
)


def two_nics(left: FramePort, right: FramePort) -> tuple[Nic, Nic]:
    open_nic = load_adapter("softnic").open
    return (
        open_nic(left, mac=b"\x52\x54\0\0\0\1", ip=b"\x0a\0\0\1"),
        open_nic(right, mac=b"\x52\x54\0\0\0\2", ip=b"\x0a\0\0\2"),
    )


@asynccontextmanager
async def both_closed(nics: tuple[Nic, Nic]) -> AsyncIterator[tuple[Nic, Nic]]:
    yield nics
    for nic in nics:
        await nic.aclose()


class TestSoftNicOverMemory(NicContract, LossyNicContract):
    @pytest.fixture
    def clock(self, autojump_clock: MockClock) -> MockClock:
        return autojump_clock

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[Nic, Nic]]:
        link = Link(latency_ns=5 * US, bandwidth_bps=100_000_000_000)
        async with both_closed(two_nics(*open_memory_pair(link))) as nics:
            yield nics

    @asynccontextmanager
    async def lossy_pair(self, seed: int) -> AsyncIterator[tuple[Nic, Nic]]:
        link = Link(latency_ns=20 * US, bandwidth_bps=10_000_000_000, weather=WEATHER)
        async with both_closed(two_nics(*open_memory_pair(link, seed=seed))) as nics:
            yield nics


class TestSoftNicOverIpv6InAVlan(NicContract, LossyNicContract):
    @pytest.fixture
    def clock(self, autojump_clock: MockClock) -> MockClock:
        return autojump_clock

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[Nic, Nic]]:
        link = Link(latency_ns=5 * US, bandwidth_bps=100_000_000_000)
        async with both_closed(in_vlan(*open_memory_pair(link))) as nics:
            yield nics

    @asynccontextmanager
    async def lossy_pair(self, seed: int) -> AsyncIterator[tuple[Nic, Nic]]:
        link = Link(latency_ns=20 * US, bandwidth_bps=10_000_000_000, weather=WEATHER)
        async with both_closed(in_vlan(*open_memory_pair(link, seed=seed))) as nics:
            yield nics

    @pytest.mark.parametrize("seed", range(2))
    async def test_everything_arrives_exactly(self, clock: object, seed: int) -> None:
        await super().test_everything_arrives_exactly(clock, seed)


def in_vlan(left: FramePort, right: FramePort) -> tuple[Nic, Nic]:
    open_nic = load_adapter("softnic").open
    ips = (bytes.fromhex("fd00") + bytes(13) + bytes([host]) for host in (1, 2))
    macs = b"\x52\x54\0\0\0\1", b"\x52\x54\0\0\0\2"
    one, other = (
        open_nic(port, mac=mac, ip=ip, vlan=100, priority=3)
        for port, mac, ip in zip((left, right), macs, ips, strict=True)
    )
    return one, other


async def test_the_mtu_is_what_fits_the_port() -> None:
    for frame_bytes, mtu in ((9216, 4096), (4174, 4096), (4173, 2048), (334, 256)):
        nic, _ = two_nics(*open_memory_pair(Link(frame_bytes_max=frame_bytes)))
        assert nic.capabilities.mtu_max == mtu
    for frame_bytes, mtu in ((4198, 4096), (4197, 2048)):
        assert in_vlan(*open_memory_pair(Link(frame_bytes_max=frame_bytes)))[0].capabilities.mtu_max == mtu
    with pytest.raises(Unsupported, match="333 bytes"):
        two_nics(*open_memory_pair(Link(frame_bytes_max=333)))


async def test_a_port_that_takes_no_more_loses_frames_as_a_wire_does(autojump_clock: MockClock) -> None:
    link = Link(latency_ns=5 * US, bandwidth_bps=1_000_000_000, queue_bytes_max=30_000)
    async with (
        both_closed(two_nics(*open_memory_pair(link))) as (left, right),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(left.run)
        nursery.start_soon(right.run)
        data = noise(300_000, 1)
        assert await transfer(left, right, connect(left, right), data) == data
        assert left.statistics()["output_lost"] > 0
        nursery.cancel_scope.cancel()


async def test_the_far_side_goes_away(autojump_clock: MockClock) -> None:
    """What was completed can still be taken, then the wait tells the reason; posting stays harmless."""
    left, right = two_nics(*open_memory_pair())
    here, _there = connect(left, right)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(left.run)
        left.post_receive(here.qpn, 5)
        left.destroy_qp(here.qpn)
        await right.aclose()
    assert [c.wr_id for c in await left.wait_completions()] == [5]
    with pytest.raises(PortClosed, match="peer closed"):
        await left.wait_completions()
    here, _there = connect(left, right)
    left.post_write_imm(here.qpn, 1, [], remote_va=0, rkey=0, imm=0)
    assert left.poll() == []
    with pytest.raises(LocalMisuse, match="runs already"):
        await left.run()


async def test_sending_into_a_closed_port_closes_the_nic() -> None:
    """Before ``run`` has seen it, too."""
    left, right = two_nics(*open_memory_pair())
    here, _there = connect(left, right)
    await right.aclose()
    left.post_write_imm(here.qpn, 1, [], remote_va=0, rkey=0, imm=0)
    with pytest.raises(PortClosed, match="peer closed"):
        await left.wait_completions()


class TestSoftNicOverSockets(NicContract):
    @pytest.fixture
    def clock(self) -> trio.abc.Clock | None:
        """The real one: sockets know no other."""
        return None

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[Nic, Nic]]:
        async with both_closed(two_nics(*open_frame_pair())) as nics:
            yield nics
