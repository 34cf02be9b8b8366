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


@asynccontextmanager
async def cable() -> AsyncIterator[tuple[Namespace, Namespace, list[int]]]:
    """A host with ``roce``, in whose namespace this thread is, a switch with ``port`` that answers, and the
    lengths of the questions there."""
    seen: list[int] = []
    with namespaces("host", "switch") as (host, switch), trio.fail_after(DEADLINE_S):
        join(host, "roce", switch, "port", mtu=9000)
        with switch.entered():
            port = await attached("port")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(port.run)
            nursery.start_soon(_answer, port, seen)
            try:
                with host.entered():
                    yield host, switch, seen
            finally:
                with trio.CancelScope(shield=True):
                    await port.aclose()


async def _answer(port: PacketPort, seen: list[int]) -> None:
    with suppress(PortClosed):
        while True:
            for frames in await port.receive():
                answers = answers_to(frames)
                if answers is not None:
                    seen += [frames.shape[1]] * len(frames)
                    port.send_nowait(answers)


@pytest.mark.parametrize(("ip", "longest"), [(FOUR, 4174), (SIX, 4194)], ids=["IPv4", "IPv6"])
async def test_a_device_learns_what_its_link_carries(ip: bytes, longest: int) -> None:
    async with cable() as (host, _, seen):
        async with device(host, ip) as nic:
            assert await nic.probe_path(MTUS) == 4096
        assert max(seen) == longest


@pytest.mark.parametrize("narrow", ["roce", "port"])
async def test_either_end_may_be_too_small(narrow: str) -> None:
    async with cable() as (host, switch, seen):
        (host if narrow == "roce" else switch).ip("link", "set", narrow, "mtu", "2200")
        async with device(host) as nic:
            assert await nic.probe_path(MTUS) == 2048
        assert max(seen) == 2048 + 78


async def test_an_interface_that_is_down_or_gone_is_asked_by_later() -> None:
    async with cable() as (host, switch, _), device(host) as nic:
        assert await nic.probe_path(MTUS) == 4096
        host.ip("link", "set", "roce", "down")
        await trio.testing.wait_all_tasks_blocked(0.1)
        with pytest.raises(FabricError, match="roce is down; ip link set roce up"):
            await nic.probe_path(MTUS)
        host.ip("link", "set", "roce", "up")
        # The kernel may take up to a second to send again at either end, and each end learns of it by itself.
        await open_packet_link("roce").wait_usable()
        with switch.entered():
            await open_packet_link("port").wait_usable()
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

    async with cable() as (host, _, seen):
        monkeypatch.setattr(socket, "socket", Barred)
        async with device(host) as nic:
            with pytest.raises(Unsupported, match=f"for path probes at roce is not available: .*{words}"):
                await nic.probe_path(MTUS)
        assert seen == []
