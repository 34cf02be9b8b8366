"""The NIC contract of softnics whose frames go in UDP datagrams on loopback, and what is refused there.

No test of the frame port contract: that sends frames of noise, and here a frame goes where it says itself.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
import trio.testing

from inaproto.errors import ConfigError, FabricError
from inaproto.ports import PortClosed
from inaproto.units import FRAME_BYTES_MAX, Frames
from inaproto_adapters.frames import UdpPort, open_udp_link

DEADLINE_S = 600.0


def free_address() -> str:
    """Nobody else's, as far as one can know."""
    return f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"


def frame_to(address: str, length: int, seed: int = 0) -> Frames:
    """One frame, IPv4 by its type, for that address."""
    frame = np.random.default_rng(seed).integers(0, 256, (1, length), dtype=np.uint8)
    frame[0, 12:14] = [8, 0]
    frame[0, 30:34] = [int(part) for part in address.split(".")]
    return frame


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[UdpPort, str, UdpPort, str]]:
    with trio.fail_after(DEADLINE_S):
        addresses = free_address(), free_address()
        left, right = [await open_udp_link(address).attach() for address in addresses]
        yield left, addresses[0], right, addresses[1]
        await left.aclose()
        await right.aclose()


async def test_frames_arrive_whole_where_they_say() -> None:
    async with pair() as (left, here, right, there):
        for number, length in enumerate([34, 35, 1098, FRAME_BYTES_MAX]):
            out, back = frame_to(there, length, number), frame_to(here, length, number + 100)
            assert left.send_nowait(out) == right.send_nowait(back) == 1
            assert [block.tobytes() for block in await right.receive()] == [out.tobytes()]
            assert [block.tobytes() for block in await left.receive()] == [back.tobytes()]
        assert left.counters.frames_out == right.counters.frames_in == 4


async def test_an_error_between_two_frames_takes_no_other_ones_place() -> None:
    """A socket that is connected hears that nobody was there, in place of a datagram."""
    here, there = free_address(), free_address()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.setblocking(False)
        ours.bind((here, 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as theirs:
            theirs.bind((there, 0))
            peer = theirs.getsockname()
        ours.connect(peer)
        ours.send(b"to nobody")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as theirs:
            theirs.bind(peer)
            sent = frame_to(here, 60)
            theirs.sendto(sent.tobytes(), ours.getsockname())
            port = UdpPort(ours, "udp")
            with trio.fail_after(DEADLINE_S):
                (found,) = await port.receive()
            assert found.tobytes() == sent.tobytes()
            assert port.counters.drops == {"nobody listens there": 1}
            await port.aclose()


async def test_frames_for_elsewhere_are_counted_as_dropped() -> None:
    async with pair() as (left, _, _, there):
        arp = frame_to(there, 60)
        arp[0, 12:14] = [8, 6]
        for frame in (arp, frame_to("10.0.0.1", 60), frame_to(there, 60)[:, :20]):
            assert left.send_nowait(frame) == 1
        assert left.counters.drops == {"for no address of loopback": 3}
        assert left.counters.frames_out == 0


async def test_a_frame_to_nobody_is_lost_and_the_port_goes_on() -> None:
    async with pair() as (left, _, right, there):
        assert left.send_nowait(frame_to(free_address(), 60)) == 1
        frame = frame_to(there, 60)
        assert left.send_nowait(frame) == 1
        assert [block.tobytes() for block in await right.receive()] == [frame.tobytes()]


async def test_a_closed_port_says_so() -> None:
    async with pair() as (left, _, right, there), trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(PortClosed, match="closed on this side"):
                await right.receive()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await right.aclose()
        await left.aclose()
        with pytest.raises(PortClosed, match="closed on this side"):
            left.send_nowait(frame_to(there, 60))


async def test_an_address_has_one_port() -> None:
    link = open_udp_link(free_address())
    link.require()
    port = await link.attach()
    with pytest.raises(FabricError, match="give each process an address of its own"):
        await link.attach()
    with pytest.raises(ConfigError, match="is in use"):
        link.require()
    await port.aclose()


def test_its_nic_has_its_address() -> None:
    link = open_udp_link("127.0.0.11")
    link.require_stranger(bytes(6), b"\x7f\0\0\x0b")
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1 cannot be at udp:127\.0\.0\.11"):
        link.require_stranger(bytes(6), b"\x0a\0\0\1")


@pytest.mark.parametrize("address", ["", "eth1", "10.0.0.1", "0.0.0.0", "::1"])
def test_only_loopback_will_do(address: str) -> None:
    with pytest.raises(ConfigError, match="loopback"):
        open_udp_link(address)
