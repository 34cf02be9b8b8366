"""A RoCE device, a stand-in, asks by a packet socket which packets come through, on real links."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from inaproto.core.rdma.reliable_connection import MTUS
from inaproto.errors import FabricError, Unsupported
from inaproto.ports import PortClosed
from inaproto.wire.path_probe import answers_to
from inaproto_adapters.frames import PacketPort, open_packet_link
from inaproto_adapters.verbs.devices import Device
from inaproto_adapters.verbs.nic import VerbsConfig, VerbsNic
from inaproto_hil.bench.verbs.device import StubbedDevice
from tests.contract.test_frame_port_links import attached
from tests.daemon.test_cli_daemons import DEADLINE_S
from tests.namespaces import Namespace, join, namespaces, require_namespaces

FOUR, SIX = b"\x0a\0\0\1", bytes.fromhex("fd00") + bytes(13) + b"\1"


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> Iterator[None]:
    require_namespaces()
    with StubbedDevice(real=False).installed():
        yield


@asynccontextmanager
async def device(host: Namespace, ip: bytes = FOUR) -> AsyncIterator[VerbsNic]:
    """A NIC that runs, at ``roce``."""
    mac = bytes.fromhex(host.ip("-br", "link", "show", "roce").split()[2].replace(":", ""))
    nic = VerbsNic(Device("stub0", 1, ip, mac, "roce", 1, 4096), VerbsConfig())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(nic.run)
        try:
            yield nic
        finally:
            with trio.CancelScope(shield=True):
                await nic.aclose()


class Switch:
    """A namespace with the interface ``port``, which answers."""

    def __init__(self, where: Namespace, nursery: trio.Nursery) -> None:
        self.where = where
        self.lengths: list[int] = []
        """Of the questions that came."""
        self._nursery = nursery
        self._ports: list[PacketPort] = []

    async def attach(self) -> None:
        """A port of its own, as soon as the interface has its carrier: one closes when that is lost."""
        with self.where.entered():
            port = await attached("port")
        self._ports.append(port)
        self._nursery.start_soon(port.run)
        self._nursery.start_soon(self._answer, port)

    async def _answer(self, port: PacketPort) -> None:
        with suppress(PortClosed):
            while True:
                for frames in await port.receive():
                    answers = answers_to(frames)
                    if answers is not None:
                        self.lengths += [frames.shape[1]] * len(frames)
                        port.send_nowait(answers)

    async def aclose(self) -> None:
        for port in self._ports:
            await port.aclose()


@asynccontextmanager
async def cable() -> AsyncIterator[tuple[Namespace, Switch]]:
    """A host with ``roce``, in whose namespace this thread is, and a switch."""
    with namespaces("host", "switch") as (host, there), trio.fail_after(DEADLINE_S):
        join(host, "roce", there, "port", mtu=9000)
        async with trio.open_nursery() as nursery:
            switch = Switch(there, nursery)
            try:
                await switch.attach()
                with host.entered():
                    yield host, switch
            finally:
                with trio.CancelScope(shield=True):
                    await switch.aclose()


@pytest.mark.parametrize(("ip", "longest"), [(FOUR, 4174), (SIX, 4194)], ids=["IPv4", "IPv6"])
async def test_a_device_learns_what_its_link_carries(ip: bytes, longest: int) -> None:
    async with cable() as (host, switch):
        async with device(host, ip) as nic:
            assert await nic.probe_path(MTUS) == 4096
        assert max(switch.lengths) == longest


@pytest.mark.parametrize("narrow", ["roce", "port"])
async def test_either_end_may_be_too_small(narrow: str) -> None:
    async with cable() as (host, switch):
        (host if narrow == "roce" else switch.where).ip("link", "set", narrow, "mtu", "2200")
        async with device(host) as nic:
            assert await nic.probe_path(MTUS) == 2048
        assert max(switch.lengths) == 2048 + 78


async def test_an_interface_that_is_down_or_gone_is_asked_by_later() -> None:
    async with cable() as (host, switch), device(host) as nic:
        assert await nic.probe_path(MTUS) == 4096
        host.ip("link", "set", "roce", "down")
        await trio.testing.wait_all_tasks_blocked(0.1)
        with pytest.raises(FabricError, match="roce is down; ip link set roce up"):
            await nic.probe_path(MTUS)
        host.ip("link", "set", "roce", "up")
        # The kernel may take up to a second to send again at either end, and each end learns of it by itself.
        # If the switch's end heard that its carrier was lost, its port has closed.
        await open_packet_link("roce").wait_usable()
        await switch.attach()
        assert await nic.probe_path(MTUS) == 4096
        host.ip("link", "set", "roce", "down")
        await trio.testing.wait_all_tasks_blocked(0.1)
        host.ip("link", "set", "roce", "name", "other")
        with pytest.raises(FabricError, match="there is no interface 'roce'"):
            await nic.probe_path(MTUS)


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EPERM, "it takes CAP_NET_RAW. For a systemd unit: Ambient"), (errno.EAFNOSUPPORT, "AF_PACKET")],
)
async def test_a_process_that_may_have_no_packet_socket_is_told_what_it_lacks(
    number: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Barred(socket.socket):
        def __init__(self, asked: int = socket.AF_INET, *rest: Any) -> None:
            if asked == socket.AF_PACKET:
                raise OSError(number, os.strerror(number))
            super().__init__(asked, *rest)

    async with cable() as (host, switch):
        monkeypatch.setattr(socket, "socket", Barred)
        async with device(host) as nic:
            with pytest.raises(Unsupported, match=f"for path probes at roce is not available: .*{words}"):
                await nic.probe_path(MTUS)
        assert switch.lengths == []
