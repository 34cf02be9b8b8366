"""A RoCE device asks its switch which packets come through, on its network interface; both are stand-ins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from inaproto.core.rdma.reliable_connection import MTUS
from inaproto.errors import ConfigError, FabricError, InaprotoError, Unsupported
from inaproto.ports import FramePort, PortClosed, ProbesPath, load_adapter
from inaproto.wire.messages.infiniband import InfinibandPort
from inaproto.wire.path_probe import ETHERTYPE, answers_to
from inaproto_adapters.frames import FramesConfig, open_frame_pair
from inaproto_adapters.verbs import path_probe
from inaproto_adapters.verbs.devices import Device
from inaproto_adapters.verbs.nic import VerbsConfig, VerbsNic
from inaproto_hil.bench.verbs.device import StubbedDevice

FOUR = Device("stub0", 1, b"\x0a\0\0\1", b"\2\0\x0a\0\0\1", "eth7", 1, 4096)
SIX = replace(FOUR, ip=bytes.fromhex("fd00") + bytes(13) + b"\1")
ON_INFINIBAND = replace(FOUR, ip=b"", mac=b"", interface="", infiniband=InfinibandPort(gid=bytes(16), lid=3))


@pytest.fixture(autouse=True)
def _stub() -> Iterator[None]:
    with StubbedDevice(real=False).installed():
        yield


class Interface:
    """In the place of ``packet:eth7``: the way to the switch carries frames of ``carries`` bytes."""

    name = "packet:eth7"

    def __init__(self, carries: int = 9014) -> None:
        self.seen: list[bytes] = []
        """Questions that reached the switch."""
        self.opened: list[dict[str, Any]] = []
        self.refuses: InaprotoError | None = None
        self.near, self.far = open_frame_pair(FramesConfig(frame_bytes_max=9014))
        self._carries = carries

    def require(self) -> None:
        if self.refuses is not None:
            raise self.refuses

    async def attach(self) -> FramePort:
        return self.near

    async def serve(self) -> None:
        """The far end: a switch."""
        while True:
            try:
                blocks = await self.far.receive()
            except PortClosed:
                return
            for frames in blocks:
                if frames.shape[1] <= self._carries:
                    self.seen += [row.tobytes() for row in frames]
                    answers = answers_to(frames)
                    assert answers is not None
                    self.far.send_nowait(answers)


@asynccontextmanager
async def at(
    interface: Interface, monkeypatch: pytest.MonkeyPatch, device: Device = FOUR
) -> AsyncIterator[VerbsNic]:
    """A NIC that runs."""

    def load(name: str) -> Any:
        return SimpleNamespace(open=open_link) if name == "packet" else load_adapter(name)

    def open_link(name: str, **asked: Any) -> Interface:
        interface.opened.append({"interface": name, **asked})
        return interface

    monkeypatch.setattr(path_probe, "adapter_of", load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(interface.serve)
        nursery.start_soon(interface.far.run)
        nic = VerbsNic(device, VerbsConfig())
        nursery.start_soon(nic.run)
        yield nic
        await nic.aclose()
        await interface.far.aclose()
    await interface.near.aclose()


@pytest.mark.parametrize(("device", "overhead"), [(FOUR, 78), (SIX, 98)], ids=["IPv4", "IPv6"])
async def test_a_device_asks_with_frames_as_long_as_its_packets(
    device: Device, overhead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface = Interface()
    async with at(interface, monkeypatch, device) as nic:
        assert isinstance(nic, ProbesPath)
        assert [await nic.probe_path(MTUS) for _ in range(2)] == [4096] * 2
    assert {len(frame) for frame in interface.seen} == {mtu + overhead for mtu in MTUS}
    assert {frame[6:14] for frame in interface.seen} == {device.mac + ETHERTYPE.to_bytes(2, "big")}
    [opened] = interface.opened
    assert (opened["interface"], opened["ethertype"]) == ("eth7", ETHERTYPE)
    with pytest.raises(PortClosed):
        await interface.near.receive()


@pytest.mark.parametrize(("carries", "mtu"), [(2048 + 78, 2048), (2048 + 77, 1024), (100, 0)])
async def test_it_finds_what_the_way_carries(
    carries: int, mtu: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with at(Interface(carries), monkeypatch) as nic:
        assert await nic.probe_path(MTUS) == mtu


async def test_an_interface_that_went_down_is_asked_by_again(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    interface = Interface(1200)
    async with at(interface, monkeypatch) as nic:
        assert await nic.probe_path(MTUS) == 1024
        await interface.near.aclose()
        await trio.testing.wait_all_tasks_blocked()
        interface.near, far = open_frame_pair(FramesConfig(frame_bytes_max=9014))
        assert await nic.probe_path(MTUS) == 0
        assert len(interface.opened) == 2
        await far.aclose()


@pytest.mark.parametrize(
    ("refuses", "raises", "words"),
    [
        (
            Unsupported("packet:eth7", "it takes CAP_NET_RAW"),
            Unsupported,
            "a packet socket for path probes at eth7 is not available: it takes CAP_NET_RAW",
        ),
        (ConfigError("there is no interface 'eth7'"), FabricError, "there is no interface 'eth7'"),
    ],
)
async def test_why_it_cannot_ask_is_said(
    refuses: InaprotoError, raises: type[InaprotoError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface = Interface()
    interface.refuses = refuses
    async with at(interface, monkeypatch) as nic:
        with pytest.raises(raises, match=words):
            await nic.probe_path(MTUS)


async def test_a_port_without_an_ethernet_interface_says_so() -> None:
    nic = VerbsNic(ON_INFINIBAND, VerbsConfig())
    with pytest.raises(Unsupported, match="path probes of stub0 is not available: it has no Ethernet interf"):
        await nic.probe_path(MTUS)
    await nic.aclose()
