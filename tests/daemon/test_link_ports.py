"""Ports on interfaces, beyond the contract: full rings and queues, interfaces that go, what start-up
refuses."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from inaproto.errors import ConfigError, FabricError, Unsupported
from inaproto.ports import PortClosed
from inaproto_adapters.frames import PacketPort, open_packet_link, open_tap_link, packet
from inaproto_adapters.frames.packet import PacketLink
from tests.clusters.machines import SOL_PACKET, VNET_HDR, bench
from tests.contract.frame_port_contract import as_bytes, collect, numbered
from tests.contract.test_frame_port_links import attached
from tests.daemon.test_cli_daemons import COMMAND, DEADLINE_S, environment
from tests.daemon.test_real_links import ping
from tests.namespaces import Namespace, join, namespaces, require_namespaces

SMALL_RING = 64 << 10
"""32 slots of 2 KiB."""


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


@asynccontextmanager
async def cable(**limits: int) -> AsyncIterator[tuple[Namespace, PacketPort, PacketPort]]:
    """Two ports at the ends of a cable in one namespace, which this thread has entered."""
    with namespaces("cable") as (here,), here.entered(), trio.fail_after(DEADLINE_S):
        join(here, "left", here, "right")
        left = await attached("left", **limits)
        right = await attached("right", **limits)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(left.run)
            nursery.start_soon(right.run)
            try:
                yield here, left, right
            finally:
                nursery.cancel_scope.shield = True
                await left.aclose()
                await right.aclose()


async def test_a_ring_goes_round_and_keeps_the_order() -> None:
    async with cable(ring_bytes=SMALL_RING) as (_, left, right):
        first = 0
        for n in (1, 15, 16, 7, 13, 3) * 40:  # as many more are still in the receiver's hands
            block = numbered(first, n, 100 + first % 1400)
            assert left.send_nowait(block) == n
            assert await collect(right, n) == as_bytes([block])
            first += n
        assert right.counters.drops == {}


async def test_what_a_full_ring_loses_is_counted() -> None:
    async with cable(ring_bytes=SMALL_RING) as (_, left, right):
        left.send_nowait(numbered(0, 100, 500))
        got = await collect(right, 32)
        assert got == as_bytes([numbered(0, 100, 500)])[:32]
        assert right.counters.drops == {"receive ring full": 68}
        async with trio.open_nursery() as nursery:

            async def collect_five() -> None:
                assert await collect(right, 5) == as_bytes([numbered(200, 5, 500)])

            nursery.start_soon(collect_five)
            await trio.testing.wait_all_tasks_blocked()  # it has given the slots back
            left.send_nowait(numbered(200, 5, 500))
        assert right.counters.frames_in == 37


SLOW = (
    "tc",
    "qdisc",
    "add",
    "dev",
    "left",
    "root",
    "tbf",
    "rate",
    "20mbit",
    "burst",
    "3000",
    "limit",
    "4000",
)
"""The link takes a few frames at a time."""


async def test_a_full_queue_of_the_interface_is_waited_for() -> None:
    """A slow link takes a few frames at a time: the rest waits, keeps its order, and arrives."""
    async with cable() as (here, left, right):
        here.run(*SLOW)
        blocks = [numbered(100 * i, 20, 200 + i) for i in range(40)]
        for block in blocks:
            assert left.send_nowait(block) == 20
        assert left.counters.frames_out < 800, "some of it waits"
        assert await collect(right, 800) == as_bytes(blocks)
        assert left.counters.frames_out == 800
        assert left.counters.drops == {}


async def test_output_that_finds_no_room_is_dropped_and_counted() -> None:
    async with cable(queue_bytes_max=10_000) as (here, left, right):
        here.run(*SLOW)
        accepted = left.send_nowait(numbered(0, 100, 1000))
        assert 10 <= accepted < 30
        assert left.counters.drops == {"output queue full": 100 - accepted}
        assert await collect(right, accepted) == as_bytes([numbered(0, 100, 1000)])[:accepted]


async def test_frames_longer_than_the_mtu_are_dropped_and_counted() -> None:
    async with cable() as (_, left, right):
        assert left.capabilities.frame_bytes_max == 1514
        assert left.send_nowait(numbered(0, 2, 1600)) == 0
        assert left.counters.drops == {"longer than the link's MTU": 2}
        assert left.send_nowait(numbered(0, 1, 1514)) == 1
        assert await collect(right, 1) == as_bytes([numbered(0, 1, 1514)])


async def test_own_frames_do_not_come_back() -> None:
    async with cable() as (_, left, right):
        left.send_nowait(numbered(0, 3, 100))
        right.send_nowait(numbered(9, 2, 100))
        assert await collect(right, 3) == as_bytes([numbered(0, 3, 100)])
        assert await collect(left, 2) == as_bytes([numbered(9, 2, 100)])


def send_long(where: Namespace, interface: str, payload: bytes) -> bytes:
    """A TCP segment as a stack with offloads hands it over, cut by nobody yet; returns it."""
    ether: Any = Ether(src="02:00:00:00:07:01", dst="02:00:00:00:07:02")
    packet = bytes(ether / IP(src="10.7.0.1", dst="10.7.0.2") / TCP(sport=1, dport=2, flags="PA") / payload)
    with where.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.setsockopt(SOL_PACKET, VNET_HDR, 1)
        sock.bind((interface, 0))
        sock.send(struct.pack("=BBHHHH", 1, 1, 54, 1448, 34, 16) + packet)
    return packet


async def test_long_segments_keep_their_place_among_frames() -> None:
    async with cable() as (here, left, right):
        expected = []
        for i in range(5):
            left.send_nowait(numbered(i, 1, 200))
            expected.append(200)
            send_long(here, "left", bytes([i]) * 10_000)
            expected += [54 + 1448] * 6 + [54 + 10_000 - 6 * 1448]
        got = await collect(right, len(expected))
        assert [len(frame) for frame in got] == expected
        assert [frame[-1] for frame in got if len(frame) == 54 + 1448] == [
            i for i in range(5) for _ in range(6)
        ]


async def test_a_long_segment_of_an_interface_that_went_down_is_still_taken() -> None:
    """The socket tells of its error before it gives what it holds."""
    with namespaces("cable") as (here,), here.entered(), trio.fail_after(DEADLINE_S):
        join(here, "left", here, "right")
        right = await attached("right")  # nobody watches it: ``run`` does not run
        for i in range(3):
            send_long(here, "left", bytes([i]) * 3000)
        here.ip("link", "set", "right", "down")
        assert [len(frame) for frame in await collect(right, 9)] == [1502, 1502, 158] * 3
        with pytest.raises(PortClosed, match="right is down"):
            await right.receive()


async def test_the_interface_is_promiscuous_as_long_as_it_has_a_port() -> None:
    """Whoever still looks at frames of a closed port keeps neither the mode nor the input."""
    async with cable() as (here, left, right):
        assert "promiscuity 1" in here.ip("-d", "link", "show", "right")
        left.send_nowait(numbered(0, 3, 100))
        blocks = list(await right.receive())
        await right.aclose()
        assert "promiscuity 0" in here.ip("-d", "link", "show", "right")
        assert as_bytes(blocks) == as_bytes([numbered(0, 3, 100)])[: len(as_bytes(blocks))]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("link", "set", "left", "down"), "left is down; ip link set left up"),
        (("link", "set", "right", "down"), "left has no carrier"),
        (("link", "del", "left"), "was removed"),
    ],
)
async def test_a_port_ends_with_its_interface(words: tuple[str, ...], reason: str) -> None:
    async with cable() as (here, left, _):
        here.ip(*words)
        with pytest.raises(PortClosed, match=reason):
            await collect(left, 1)
        with pytest.raises(PortClosed, match=reason):
            left.send_nowait(numbered(0, 1, 100))
        link = open_packet_link("left")
        with pytest.raises(FabricError) as told:
            await link.attach()
        assert told.value.retryable
        assert ("left is down" if "down" in reason else "left") in told.value.cause


async def test_a_port_survives_a_new_name() -> None:
    async with cable() as (here, left, right):
        here.ip("link", "set", "left", "down")
        with pytest.raises(PortClosed):
            await collect(left, 1)
        here.ip("link", "set", "left", "name", "renamed")
        here.ip("link", "set", "renamed", "up")
        again = await attached("renamed")
        with pytest.raises(
            ConfigError, match="there is no interface 'left'; those that exist: lo, renamed, right"
        ):
            open_packet_link("left").require()
        again.send_nowait(numbered(0, 1, 100))
        await again.aclose()
        assert right.name == "packet:right"


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_a_free_descriptor_ports_go_on_and_others_are_waited_for() -> None:
    """As where hosts plug in: what ends a switch is not a peer that opens too much."""
    async with cable() as (here, left, right):
        join(here, "spare", here, "other")
        frames = numbered(0, 1, 100)
        with no_descriptor_left():
            with pytest.raises(FabricError, match="Too many open files"):
                await open_packet_link("spare").attach()
            await open_packet_link("spare").wait_usable()
            assert left.send_nowait(frames) == 1
        here.ip("link", "set", "left", "mtu", "1400")  # for which the port looks at its interface
        with no_descriptor_left():
            await trio.testing.wait_all_tasks_blocked()
        assert len(await collect(right, 1)) == 1
        assert left.capabilities.frame_bytes_max == 1414


async def test_a_port_of_one_type_takes_no_other_and_leaves_its_interface_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with namespaces("cable") as (here,), here.entered(), trio.fail_after(DEADLINE_S):
        join(here, "left", here, "right")
        mac = bytes.fromhex(here.ip("-br", "link", "show", "left").split()[2].replace(":", ""))
        left, right = await attached("left", ethertype=0x88B5), await attached("right")
        told = here.ip("-d", "link", "show")
        assert told.count("promiscuity 0") == 2, "left, and lo"
        assert told.count("promiscuity 1") == 1
        frames = numbered(0, 3, 100)
        frames[:, :6] = np.frombuffer(mac, np.uint8)
        frames[:, 12:14] = np.frombuffer(b"\x88\xb5", np.uint8)
        frames[0, 12:14] = 8, 0
        right.send_nowait(frames)
        left.send_nowait(frames[2:])
        assert await collect(right, 1) == as_bytes([frames[2:]])
        assert await collect(left, 2) == as_bytes([frames[1:]])
        await left.aclose()
        await right.aclose()
        monkeypatch.setattr(packet, "merges_in_hardware", lambda name: True)
        open_packet_link("left", ethertype=0x88B5).require()
        with pytest.raises(Unsupported, match="large receive offload is on at left"):
            open_packet_link("left").require()


def require_as_a_host(link: PacketLink) -> None:
    link.require()
    link.require_stranger(bytes(6), b"\x0a\0\0\1")


@pytest.mark.parametrize("family", [socket.AF_PACKET, socket.AF_NETLINK, socket.AF_INET])
def test_a_kind_of_socket_that_the_unit_bars_is_named_at_start_up(
    family: socket.AddressFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``RestrictAddressFamilies=`` of systemd."""

    class Barred(socket.socket):
        def __init__(self, asked: int = socket.AF_INET, *rest: Any) -> None:
            if asked == family:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(asked, *rest)

    with namespaces("cable") as (here,), here.entered():
        join(here, "left", here, "right")
        link = open_packet_link("left")
        monkeypatch.setattr(socket, "socket", Barred)
        with pytest.raises(Unsupported, match=f"RestrictAddressFamilies=.* {family.name}"):
            require_as_a_host(link)


async def test_a_tap_says_what_it_takes_without_a_free_descriptor() -> None:
    with namespaces("tap") as (here,), here.entered(), trio.fail_after(DEADLINE_S):
        link = open_tap_link("tap7")
        port = await link.attach()
        here.ip("link", "set", "tap7", "mtu", "3000")
        before = port.capabilities
        with no_descriptor_left():
            assert port.capabilities == before
        await port.aclose()


async def test_waiting_for_an_interface_ends_when_it_can_be_used() -> None:
    with namespaces("late") as (here,), here.entered(), trio.fail_after(DEADLINE_S):
        link = open_packet_link("left")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.wait_usable)
            await trio.testing.wait_all_tasks_blocked()
            join(here, "left", here, "right")
        await (await link.attach()).aclose()


async def test_a_tap_comes_back_when_its_interface_is_removed() -> None:
    with namespaces("tap") as (here,), here.entered(), trio.fail_after(DEADLINE_S):
        link = open_tap_link("tap7")
        link.require()
        port = await link.attach()
        here.ip("link", "del", "tap7")
        with pytest.raises(PortClosed, match="tap7 is gone"):
            await port.receive()
        await link.wait_usable()
        again = await link.attach()
        assert "tap7" in here.ip("link", "show", "up")
        await again.aclose()
        assert "tap7" not in here.ip("link")


def test_a_kernel_at_a_tap_of_the_switch_reaches_a_machine_behind_a_link(runtime_dir: Path) -> None:
    with bench(runtime_dir, hosts=1) as found:
        found.start_switch("--port", "tap:tap0")
        found.wait(lambda status: len(status["ports"]) == 2, "both ports up")
        found.switch.ip("addr", "add", "10.9.0.9/24", "dev", "tap0")
        data = np.random.default_rng(5).bytes(1 << 20)
        with found.switch.entered(), socket.create_server(("10.9.0.9", 5003)) as listener:
            with found.hosts[0].entered():
                left = socket.create_connection(("10.9.0.9", 5003), timeout=DEADLINE_S)
            right, _ = listener.accept()
        with left, right:
            right.settimeout(DEADLINE_S)
            for sender, receiver in ((left, right), (right, left)):
                receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
                sender.setblocking(False)
                got = bytearray()
                sent = 0
                while len(got) < len(data):
                    with suppress(BlockingIOError):
                        sent += sender.send(data[sent:])
                    got += receiver.recv(1 << 16)
                assert bytes(got) == data
                sender.settimeout(DEADLINE_S)


def test_one_capability_is_enough(runtime_dir: Path) -> None:
    """The one that the page of the units says."""
    with bench(runtime_dir) as found:
        found.start_switch(only="net_raw")
        ping(found)


def refused(where: Namespace, *arguments: str, without: str = "") -> str:
    """What a daemon says that does not start."""
    words = [COMMAND, *arguments]
    if without:
        words = ["setpriv", f"--bounding-set=-{without}", f"--inh-caps=-{without}", *words]
    done = subprocess.run(
        where.command(*words),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment(),
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_what_cannot_be_a_port_is_said_at_start_up(runtime_dir: Path) -> None:
    at = ("--dir", str(runtime_dir), "--port")
    with namespaces("switch") as (here,):
        here.ip("link", "add", "sw0", "type", "veth", "peer", "name", "eth0")
        told = refused(here, "switch", *at, "packet:eht0")
        assert "there is no interface 'eht0'; those that exist: eth0, lo, sw0" in told
        assert "it is for frame port" in refused(here, "switch", *at, "frames:sw0")
        told = refused(here, "switch", *at, "packet:sw0", without="net_raw")
        assert "takes CAP_NET_RAW" in told
        assert "AmbientCapabilities=CAP_NET_RAW" in told
        told = refused(here, "switch", *at, "tap:tap0", without="net_admin")
        assert "takes CAP_NET_ADMIN" in told
        with here.entered():
            with pytest.raises(Unsupported, match="lo does not carry Ethernet frames"):
                open_packet_link("lo").require()
            with pytest.raises(ConfigError, match="sw0 is there and no TAP interface"):
                open_tap_link("sw0").require()
    assert list(runtime_dir.iterdir()) == []


def test_addresses_of_the_kernel_are_refused_to_a_softnic(runtime_dir: Path) -> None:
    with namespaces("host") as (here,):
        here.ip("link", "add", "eth0", "type", "veth", "peer", "name", "far")
        here.ip("link", "set", "eth0", "up")
        here.ip("addr", "add", "10.9.0.1/24", "dev", "eth0")
        mac = here.ip("-br", "link", "show", "eth0").split()[2]
        host = ("host", "--dir", str(runtime_dir), "--name", "h", "--port", "packet:eth0")
        assert "is the address of eth0 itself" in refused(here, *host, "--ip", "10.5.0.1", "--mac", mac)
        assert "is an address of this machine's kernel" in refused(here, *host, "--ip", "10.9.0.1")
        with here.entered():
            open_packet_link("eth0").require_stranger(bytes.fromhex("02000a050001"), bytes([10, 5, 0, 1]))
