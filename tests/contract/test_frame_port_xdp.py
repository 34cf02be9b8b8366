"""The frame port contract on AF_XDP at both ends of a cable: frames of noise, which come by the packet
socket, and RoCE packets, which come by the memory.

What else is asked of the memory: that chunks come back, that runs are views, what is refused and why.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.errors import ConfigError, FabricError, Unsupported
from inaproto.ports import FramePort, Link, PortClosed, load_adapter
from inaproto.units import Frames
from inaproto_adapters.frames import XdpPort, lag, link_output, open_packet_link, open_xdp_link, xdp_socket
from tests.contract import frame_port_contract
from tests.contract.frame_port_contract import FramePortContract, Pair, as_bytes, collect, numbered
from tests.namespaces import Namespace, join, namespaces, require_namespaces, require_xdp

MTU = 3822
RING_BYTES = 64 << 20
"""The contract sends some thousand frames before it receives one."""
QUEUE_BYTES = 16 << 20
ROCE_AT = 42


@pytest.fixture(autouse=True)
def _where_namespaces_and_xdp_are() -> None:
    require_namespaces()
    require_xdp()


def dressed(first: int, n: int, length: int) -> Frames:
    """As ``numbered``, as RoCE packets; too short ones are noise."""
    frames = numbered(first, n, length)
    if length >= ROCE_AT:
        frames[:, 12:15] = (8, 0, 0x45)
        frames[:, 23] = 17
        frames[:, 36:38] = (4791 >> 8, 4791 & 255)
        frames[:, 40:42] = 0
    return frames


async def attached(interface: str, **limits: int) -> XdpPort:
    link = open_xdp_link(interface, **limits)
    link.require()
    await link.wait_usable()
    port = await link.attach()
    assert isinstance(port, XdpPort)
    return port


class _Cable(FramePortContract):
    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        with namespaces("cable") as (here,), here.entered():
            join(here, "left", here, "right", mtu=MTU)
            limits = {"queue_bytes_max": queue_bytes_max, "ring_bytes": RING_BYTES, "chunks": 8192}
            left = await attached("left", **limits)
            right = await attached("right", **limits)
            yield left, right
            await left.aclose()
            await right.aclose()

    async def test_capabilities_say_jumbo(self) -> None:
        async with self.running() as (left, right):
            for port in (left, right):
                assert port.capabilities.name == "xdp"
                assert port.capabilities.frame_bytes_max == MTU + 14

    async def test_frames_of_any_length_arrive_whole_and_in_order(self) -> None:
        rng = np.random.default_rng(1)
        make = frame_port_contract.numbered
        lengths = [62, 63, MTU + 14, *rng.integers(62, MTU + 15, 300).tolist()]
        sent = [make(i, 1, length) for i, length in enumerate(lengths)]
        async with self.running() as (left, right):
            for frame in sent:
                assert left.send_nowait(frame) == 1
            assert await collect(right, len(sent)) == as_bytes(sent)

    async def test_batches_and_single_frames_keep_their_order(self) -> None:
        make = frame_port_contract.numbered
        blocks, first = [], 0
        for n, length in [(1, 1098), (166, 1082), (1, 1086), (3, 62), (1, 62), (400, 64), (2, 3000)] * 5:
            blocks.append(make(first, n, length))
            first += n
        async with self.running() as (left, right):
            for block in blocks:
                assert left.send_nowait(block) == len(block)
            assert await collect(right, first) == as_bytes(blocks)


class TestNoiseOnACable(_Cable):
    pass


class TestRoceOnACable(_Cable):
    @pytest.fixture(autouse=True)
    def _roce(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(frame_port_contract, "numbered", dressed)


def of_one_flow(first: int, n: int, length: int) -> Frames:
    frames = dressed(first, n, length)
    if length >= ROCE_AT:
        frames[:, 20:22] = 0  # no fragment
        frames[:, 26:36] = np.arange(10)  # addresses and source port
    return frames


class TestRoceOnTwoCables(_Cable):
    """A flow leaves by one of them."""

    @pytest.fixture(autouse=True)
    def _roce(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(frame_port_contract, "numbered", of_one_flow)

    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        with namespaces("cables") as (here,), here.entered():
            async with two_cables(here, queue_bytes_max=queue_bytes_max, chunks=4096) as ports:
                yield ports

    @asynccontextmanager
    async def running(self, queue_bytes_max: int = frame_port_contract.QUEUE_BYTES) -> AsyncIterator[Pair]:
        """With both cables: what leaves by one whose far end is not there yet comes nowhere."""
        async with super().running(queue_bytes_max) as ports:
            for port in ports:
                await until(partial(is_on, port, 2))
            yield ports

    async def test_strided_frames_are_sent(self) -> None:
        """Without their first columns they are of several flows."""
        view = of_one_flow(0, 40, 1200)[::2, :1112]
        async with self.running() as (left, right):
            assert left.send_nowait(view) == 20
            assert await collect(right, 20) == as_bytes([view])


@asynccontextmanager
async def two_cables(here: Namespace, **limits: int) -> AsyncIterator[Pair]:
    """A port that joins two interfaces at either end."""
    ports: list[FramePort] = []
    for number in (0, 1):
        join(here, f"left{number}", here, f"right{number}", mtu=MTU)
    for side in ("left", "right"):
        for number in (0, 1):
            await open_xdp_link(f"{side}{number}").wait_usable()
        link: Link = load_adapter("xdp").open(f"{side}0+{side}1", **limits)
        link.require()
        ports.append(await link.attach())
    yield ports[0], ports[1]
    for port in ports:
        await port.aclose()


def is_on(port: FramePort, links: int) -> bool:
    return port.capabilities.way.startswith(f"{links} of 2 links")


def takes(port: FramePort, nbytes: int) -> bool:
    return port.capabilities.frame_bytes_max == nbytes


async def until(what: Callable[[], bool]) -> None:
    with trio.fail_after(600):
        while not what():
            await trio.lowlevel.checkpoint()


async def test_joined_ports_go_on_by_the_link_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "RETRY_S", 0.01)
    flows, got = dressed(0, 64, 1082), list[bytes]()
    with namespaces("cables") as (here,), here.entered():
        async with two_cables(here) as (left, right), trio.open_nursery() as nursery:

            async def take_all() -> None:
                while True:
                    got.extend(await collect(right, 1))

            for task in (left.run, right.run, take_all):
                nursery.start_soon(task)
            assert left.capabilities.way == "2 of 2 links: xdp:left0 generic, xdp:left1 generic"
            for count, then in (2, "down"), (1, "up"), (2, "down"):
                for port in (left, right):
                    await until(partial(is_on, port, count))
                left.send_nowait(flows)
                await until(lambda: len(got) == 64)
                assert sorted(got) == sorted(as_bytes([flows]))
                got.clear()
                here.ip("link", "set", "left0", then)
            assert left.counters.frames_out == right.counters.frames_in == 3 * 64
            assert left.counters.drops == right.counters.drops == {}
            nursery.cancel_scope.cancel()


@pytest.fixture
def here() -> Iterator[Namespace]:
    with namespaces("here") as (made,), made.entered():
        join(made, "left", made, "right")
        yield made


@asynccontextmanager
async def two_ports() -> AsyncIterator[tuple[XdpPort, XdpPort]]:
    left, right = await attached("left"), await attached("right")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(left.run)
        nursery.start_soon(right.run)
        yield left, right
        await left.aclose()
        await right.aclose()


async def test_memory_goes_round_many_times(here: Namespace) -> None:
    async with two_ports() as (left, right):
        for first in range(0, 100 * 168, 168):
            frames = dressed(first, 168, 1082)
            assert left.send_nowait(frames) == 168
            assert await collect(right, 168) == as_bytes([frames])
        assert left.counters.drops == right.counters.drops == {}


async def test_a_message_is_one_view_of_the_memory(here: Namespace) -> None:
    async with two_ports() as (left, right):
        for length in (1098, 1082, 1086):
            left.send_nowait(dressed(0, 168, length))
            await wait_all_tasks_blocked()
            (block,) = await right.receive()
            assert block.shape == (168, length)
            assert block.strides == (2048, 1)


async def test_packets_for_the_interface_itself_stay_its_own(here: Namespace) -> None:
    """The machine's own RoCE stack goes on; the port sees copies, as a packet port does."""
    async with two_ports() as (left, right):
        frames = dressed(0, 1, 100)
        own = next(word for word in here.ip("-o", "link", "show", "right").split() if word.count(":") == 5)
        frames[:, :6] = np.frombuffer(bytes.fromhex(own.replace(":", "")), np.uint8)
        with trio.socket.socket(trio.socket.AF_PACKET, trio.socket.SOCK_RAW) as kernel:
            await kernel.bind(("right", 3))
            left.send_nowait(frames)
            with trio.fail_after(600):
                assert await kernel.recv(2048) == frames[0].tobytes()
        assert await collect(right, 1) == as_bytes([frames])


async def test_frames_that_find_no_chunk_are_counted(here: Namespace) -> None:
    async with two_ports() as (left, right):
        for first in range(0, 8192, 512):
            left.send_nowait(dressed(first, 512, 100))
            await wait_all_tasks_blocked()
        drops = right.counters.drops
        assert drops["receive ring full"] >= 8192 - 2048 - 512
        got = await collect(right, 8192 - sum(drops.values()) - sum(left.counters.drops.values()))
        assert got[0] == dressed(0, 512, 100)[0].tobytes()


async def test_frames_that_the_kernel_has_no_room_for_leave_once_and_in_order(
    here: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes some of what it was given, then is given less than the rest was."""
    monkeypatch.setattr(xdp_socket, "_SOCKET_BYTES", 64 << 10)  # of frames that wait at an interface
    monkeypatch.setattr(link_output, "REFUSED_S", 0)
    shape = ("dev", "left", "root", "tbf", "limit", "10mb", "burst", "100kb", "rate")
    here.run("tc", "qdisc", "add", *shape, "8bit")
    # Shaping holds below it: it hands its frames to the queue of another interface.
    here.ip("link", "add", "link", "left", "name", "upper", "type", "macvlan")
    here.ip("link", "set", "upper", "up")
    link = open_packet_link("right")
    await link.wait_usable()
    upper, right = await attached("upper"), await link.attach()
    blocks = [dressed(0, 300, 1082), dressed(300, 3, 1000), dressed(303, 1, 1082), dressed(304, 40, 62)]
    push, last, got = numbered(344, 1, 100), blocks[-1][-1].tobytes(), list[bytes]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upper.run)
        upper.send_nowait(blocks[0])
        await wait_all_tasks_blocked()
        here.run("tc", "qdisc", "change", *shape, "10gbit")
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as kernel:
            kernel.bind(("left", 0))
            kernel.send(push[0].tobytes())  # a queue goes on when something comes
        with trio.fail_after(600):
            while push[0].tobytes() not in got:
                got += await collect(right, 1)
            for block in blocks[1:]:
                upper.send_nowait(block)
            while last not in got:
                got += await collect(right, 1)
        got.remove(push[0].tobytes())
        assert got == as_bytes(blocks)
        assert upper.counters.drops == {}
        assert upper.counters.frames_out == 344
        assert upper.counters.bytes_out == sum(block.size for block in blocks)
        await upper.aclose()
    await right.aclose()


async def test_frames_that_the_far_end_does_not_take_are_counted_and_not_as_sent(here: Namespace) -> None:
    here.ip("link", "set", "right", "mtu", "600")
    async with two_ports() as (left, right):
        for first, n, length in [(0, 1, 1000), (1, 3, 100), (4, 70, 1000), (74, 40, 62)]:
            assert left.send_nowait(dressed(first, n, length)) == n
        assert await collect(right, 43) == as_bytes([dressed(1, 3, 100), dressed(74, 40, 62)])
        assert left.counters.drops == {"dropped by the link": 71}
        assert (left.counters.frames_out, left.counters.bytes_out) == (43, 3 * 100 + 40 * 62)


async def test_a_kernel_that_says_at_the_end_how_far_it_is_is_asked_until_then(
    here: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before 6.17, which send 16 frames to a system call."""
    left = await attached("left")
    memory = left._sockets[0]
    taken, calls = [0], [0]

    def call() -> int:
        ring = memory._transmit
        calls[0] += 1
        taken[0] = min(taken[0] + 16, ring.producer)
        if taken[0] < ring.producer:
            return errno.EAGAIN
        ring.consumer = taken[0]
        return 0

    monkeypatch.setattr(memory, "_call", call)
    for n in (168, 1, 16, 17):
        left.send_nowait(dressed(0, n, 100))
        assert memory.waiting == 0
    assert calls == [11 + 1 + 1 + 2]
    await left.aclose()


async def test_frames_that_have_not_left_when_the_link_goes_down_are_counted(here: Namespace) -> None:
    async with two_ports() as (left, _):
        here.ip("link", "set", "left", "down")
        left.send_nowait(dressed(0, 10, 100))  # the port has not heard of it yet
        with pytest.raises(PortClosed, match="left is down"):
            await collect(left, 1 << 30)
        assert left.counters.drops == {"link down": 10}


async def test_an_end_of_the_process_leaves_the_interface_as_it_was(here: Namespace) -> None:
    async with two_ports() as (left, _):
        assert "xdpgeneric" in here.ip("link", "show", "left")
        with pytest.raises(FabricError, match="another XDP program"):
            await open_xdp_link("left").attach()
        await left.aclose()
        assert "xdp" not in here.ip("link", "show", "left")


async def test_an_interface_that_goes_down_closes_the_port_and_can_be_attached_again(here: Namespace) -> None:
    async with two_ports() as (left, _):
        here.ip("link", "set", "left", "down")
        with pytest.raises(PortClosed, match="left is down"):
            await collect(left, 1 << 30)
        here.ip("link", "set", "left", "up")
        again = await attached("left")
        await again.aclose()


async def test_another_mtu_closes_the_port(here: Namespace) -> None:
    async with two_ports() as (left, _):
        here.ip("link", "set", "left", "mtu", "3000")
        with pytest.raises(PortClosed, match="is 3000 now"):
            await collect(left, 1 << 30)


async def test_frames_longer_than_the_mtu_that_is_now_are_refused_and_shorter_ones_go_by_the_memory(
    here: Namespace,
) -> None:
    async with two_ports() as (left, right):
        for mtu, length in ((1000, 1015), (1600, 1614)):
            here.ip("link", "set", "right", "mtu", str(mtu))
            here.ip("link", "set", "left", "mtu", str(mtu))
            await until(partial(takes, left, mtu + 14))
            left.send_nowait(dressed(0, 3, length))
        assert left.counters.drops == {"longer than the link's MTU": 3}
        assert await collect(right, 3) == as_bytes([dressed(0, 3, 1614)])
        assert left._sockets[0]._transmit.producer == 3


async def test_another_address_of_the_interface_closes_the_port(here: Namespace) -> None:
    """The program at the interface would take from the kernel what is for it."""
    async with two_ports() as (_, right):
        here.ip("link", "set", "right", "address", "02:00:00:00:00:77")
        with pytest.raises(PortClosed, match="is 02:00:00:00:00:77 now"), trio.fail_after(600):
            await collect(right, 1 << 30)


async def test_an_interface_whose_frames_fit_no_chunk_is_refused(here: Namespace) -> None:
    here.ip("link", "set", "left", "mtu", "9000")
    with pytest.raises(Unsupported, match=r"mtu 3822 .*or use packet:left"):
        open_xdp_link("left").require()
    with pytest.raises(FabricError, match="MTU 9000"):
        await open_xdp_link("left").attach()


def test_an_interface_with_many_queues_is_refused(here: Namespace) -> None:
    here.ip(
        "link", "add", "many", "numrxqueues", "16", "numtxqueues", "16", "type", "veth", "peer", "name", "far"
    )
    with pytest.raises(Unsupported, match="ethtool -L many combined 8"):
        open_xdp_link("many").require()


def test_what_is_no_interface_is_refused(here: Namespace) -> None:
    link: Link = load_adapter("xdp").open("nowhere")
    assert link.name == "xdp:nowhere"
    with pytest.raises(ConfigError, match="those that exist: left, lo, right"):
        link.require()
    with pytest.raises(ConfigError, match="no name of a network interface"):
        open_xdp_link("a/b")


async def test_a_packet_port_at_the_far_side_sees_what_is_sent(here: Namespace) -> None:
    link = open_packet_link("right")
    await link.wait_usable()
    left, right = await attached("left"), await link.attach()
    frames = dressed(5, 40, 900)
    left.send_nowait(frames)
    assert await collect(right, 40) == as_bytes([frames])
    right.send_nowait(frames)
    assert await collect(left, 40) == as_bytes([frames])
    await left.aclose()
    await right.aclose()
