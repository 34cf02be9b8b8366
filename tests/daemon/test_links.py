"""Shaped links of network namespaces: what they lose, no sender hears of."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

import numpy as np
import pytest
import trio

from inaproto.errors import Unsupported
from inaproto_adapters.frames import XdpPort, open_xdp_link
from inaproto_hil.rigs.links import INTERFACE, Shape, port, star
from tests.conftest import end_without
from tests.namespaces import Namespace, namespaces, require_namespaces, require_xdp

FRAMES = 2000
TYPE = 0x88B5
"""EtherType for local experiments."""


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


def opened(where: Namespace, interface: str) -> socket.socket:
    with where.entered():
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with where.entered():
        sock.bind((interface, TYPE))
    sock.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
    sock.settimeout(0.1)
    return sock


def frame(number: int) -> bytes:
    return bytes(12) + TYPE.to_bytes(2, "big") + number.to_bytes(4, "big") + bytes(60)


@pytest.mark.parametrize("is_up", [True, False])
@pytest.mark.parametrize("loss", [0.0, 0.5])
def test_frames_are_lost_on_the_way_each_way(loss: float, is_up: bool) -> None:
    with namespaces("switch", "cables", "machine") as (switch, cables, machine):
        star(switch, [machine], Shape(1_000_000_000, loss=loss), cables=cables)
        ends = [opened(machine, INTERFACE), opened(switch, port(0))]
        sender, receiver = ends if is_up else reversed(ends)
        with sender, receiver:
            for number in range(FRAMES):
                sender.send(frame(number))
            numbers: list[int] = []
            while FRAMES not in numbers:  # a mark that all before it have come, or are lost
                sender.send(frame(FRAMES))
                with suppress(TimeoutError):
                    while FRAMES not in numbers:
                        numbers.append(int.from_bytes(receiver.recv(100)[14:18], "big"))
        assert numbers == sorted(numbers)
        assert abs((len(numbers) - 1) / FRAMES - (1 - loss)) < (0.1 if loss else 1e-9)


def test_a_frame_is_delayed_as_it_was_said() -> None:
    with namespaces("switch", "cables", "machine") as (switch, cables, machine):
        try:
            star(switch, [machine], Shape(1_000_000_000, delay_us=20_000), cables=cables)
        except Unsupported as why:
            end_without("netem", why)
        with opened(machine, INTERFACE) as sender, opened(switch, port(0)) as receiver:
            receiver.settimeout(None)
            began = time.monotonic()
            sender.send(frame(1))
            receiver.recv(100)
            assert time.monotonic() - began >= 0.02


async def test_an_xdp_port_has_what_came_by_a_cable_in_its_memory() -> None:
    packet = np.zeros((1, 64), np.uint8)
    packet[:, [0, 6]], packet[:, [5, 11]] = 2, (1, 2)
    packet[:, 12:15] = (8, 0, 0x45)
    packet[:, 23] = 17
    packet[:, 36:38] = (4791 >> 8, 4791 & 255)
    with namespaces("switch", "cables", "machine") as (switch, cables, machine), trio.fail_after(600):
        star(switch, [machine], Shape(1_000_000_000), cables=cables)
        with machine.entered():
            require_xdp()
            ours = await open_xdp_link(INTERFACE).attach()
        assert isinstance(ours, XdpPort)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.run)
            with opened(switch, port(0)) as sender:
                for marks in range(3):
                    packet[:, 63] = marks
                    sender.send(packet.tobytes())
                    (came,) = await ours.receive()
                    assert came.tobytes() == packet.tobytes()
                    assert np.may_share_memory(came, ours._sockets[0]._data)  # not by the packet socket
            await ours.aclose()
