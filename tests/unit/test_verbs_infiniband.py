"""The verbs adapter at a port of InfiniBand: paths, address handles, devices; without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto import parts
from inaproto.daemon.settings.config import load_host_settings
from inaproto.doctor.findings import Outcome
from inaproto.errors import FabricError, Unsupported
from inaproto.ports import Adapter, QpAddress, QpAttributes
from inaproto.wire.messages.infiniband import InfinibandPort
from inaproto_adapters import nics_command
from inaproto_adapters.verbs import checks, devices, events, library
from inaproto_adapters.verbs.devices import Device
from inaproto_adapters.verbs.nic import VerbsConfig, VerbsNic
from inaproto_adapters.verbs.paths import OwnPort, Path, path_to
from inaproto_adapters.verbs.queue_pair import address_handle
from inaproto_hil.bench.verbs.device import StubbedDevice
from tests.conftest import end_without

HERE, FAR = bytes.fromhex("fe80000000000000"), bytes.fromhex("fec0000000000001")


def port(lid: int, prefix: bytes = HERE) -> InfinibandPort:
    return InfinibandPort(gid=prefix + bytes([0x24, 0x8A, 7, 3, 0, 0, 0, lid & 0xFF]), lid=lid)


def peer(at: InfinibandPort | None, ip: bytes = bytes(4)) -> QpAddress:
    return QpAddress(bytes(6), ip, 77, 5, infiniband=at)


OWN = OwnPort(port(3))
ON_ETHERNET = peer(None, b"\x0a\0\0\2")


@pytest.mark.parametrize(
    ("own", "to", "path"),
    [
        (None, ON_ETHERNET, Path(0, bytes(10) + b"\xff\xff\x0a\0\0\2")),
        (OWN, peer(port(7)), Path(7)),
        (OWN, peer(port(3)), Path(3)),
        (replace(OWN, needs_grh=True), peer(port(7)), Path(7, port(7).gid)),
        (replace(OWN, needs_grh=True), peer(port(0)), Path(0, port(0).gid)),
        (replace(OWN, router_lid=9), peer(port(7)), Path(7)),
        (replace(OWN, router_lid=9), peer(port(7, FAR)), Path(9, port(7, FAR).gid)),
    ],
)
def test_the_way_to_a_peer(own: OwnPort | None, to: QpAddress, path: Path) -> None:
    assert path_to(own, to) == path


@pytest.mark.parametrize(
    ("own", "to", "words"),
    [
        (None, peer(port(7)), "it is on InfiniBand, and this host on Ethernet"),
        (OWN, ON_ETHERNET, "10.0.0.2 QP 77 failed while finding a path: it is on Ethernet, and this host on"),
        (OWN, peer(port(7, FAR)), "in another subnet (fec0:0:0:1::/64 and fe80::/64); set router_lid"),
        (OWN, peer(port(0)), "its LID is 0x0, which is that of no port"),
        (OWN, peer(port(0xC001)), "its LID is 0xc001, which is that of no port"),
    ],
)
def test_where_there_is_no_way_it_is_said_why(own: OwnPort | None, to: QpAddress, words: str) -> None:
    with pytest.raises(FabricError) as failed:
        path_to(own, to)
    assert words in str(failed.value)
    assert not failed.value.retryable


def test_pyverbs_takes_each_kind_of_path() -> None:
    """The objects of pyverbs need no device."""
    try:
        library.verbs("addr")
    except Unsupported as why:
        end_without("softroce", why)
    attributes = QpAttributes(service_level=4, traffic_class=104)
    local = address_handle(Path(7), attributes, port=2, gid_index=0)
    assert (local.is_global, local.dlid, local.sl, local.port_num) == (0, 7, 4, 2)
    routed = address_handle(Path(9, port(7, FAR).gid), attributes, port=1, gid_index=3)
    assert (routed.is_global, routed.dlid, routed.sl) == (1, 9, 4)
    assert (routed.hop_limit, routed.traffic_class, routed.sgid_index) == (64, 104, 3)
    assert str(routed.dgid) == "fec0:0000:0000:0001:248a:0703:0000:0007"


# --- a NIC


DEVICE = Device("mlx5_0", 1, b"", b"", "", 0, 4096, "", OWN.at)


@pytest.fixture
def stub() -> Iterator[StubbedDevice]:
    made = StubbedDevice(real=False)
    with made.installed():
        yield made


def test_a_queue_pair_is_told_by_gid_and_lid_and_connected_at_once(stub: StubbedDevice) -> None:
    """Nobody is asked for a MAC address."""
    nic = VerbsNic(DEVICE, VerbsConfig())
    has = nic.create_qp(psn=8)
    assert has == QpAddress(bytes(6), bytes(4), has.qpn, 8, infiniband=OWN.at)
    capabilities = nic.capabilities
    assert (capabilities.mac, capabilities.ip, capabilities.infiniband) == (bytes(6), bytes(4), OWN.at)
    nic.connect_qp(has.qpn, peer(port(7)), QpAttributes(service_level=2))
    [handle] = stub.addresses
    assert (handle.is_global, handle.dlid, handle.sl, handle.port_num) == (0, 7, 2, 1)
    assert nic.queue_pair(has.qpn).is_ready


def test_a_router_and_a_header_that_the_port_demands_reach_the_handle(stub: StubbedDevice) -> None:
    device = replace(DEVICE, needs_grh=True, gid_index=4)
    nic = VerbsNic(device, VerbsConfig(router_lid=9))
    for to in (port(7), port(8, FAR)):
        nic.connect_qp(nic.create_qp(psn=0).qpn, peer(to), QpAttributes())
    assert [(handle.is_global, handle.dlid, handle.gr.sgid_index) for handle in stub.addresses] == [
        (1, 7, 4),
        (1, 9, 4),
    ]


def test_a_peer_that_cannot_be_reached_leaves_the_queue_pair_as_it_was(stub: StubbedDevice) -> None:
    nic = VerbsNic(DEVICE, VerbsConfig())
    qpn = nic.create_qp(psn=0).qpn
    with pytest.raises(FabricError, match="finding a path"):
        nic.connect_qp(qpn, ON_ETHERNET, QpAttributes())
    assert not nic.queue_pair(qpn).is_connected
    nic.connect_qp(qpn, peer(port(7)), QpAttributes())
    assert nic.queue_pair(qpn).is_ready


async def test_a_port_with_another_lid_is_opened_anew(
    stub: StubbedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def readable(fd: int) -> None: ...

    monkeypatch.setattr("trio.lowlevel.wait_readable", readable)
    told = [SimpleNamespace(event_type=kind, ack=lambda: None) for kind in (9, 13, 11, 8)]
    context = SimpleNamespace(get_async_event=lambda: told.pop(0))
    assert await events.watch(context, 0, "mlx5_0", is_infiniband=True) == "LID changed"
    told[:0] = [SimpleNamespace(event_type=11, ack=lambda: None)]
    assert await events.watch(context, 0, "mlx5_0") == "device fatal error"


# --- devices of a machine


def entry(index: int, gid: bytes, kind: int = 0) -> SimpleNamespace:
    text = ":".join(gid[at : at + 2].hex() for at in range(0, 16, 2))
    return SimpleNamespace(gid_index=index, gid_type=kind, gid_str=lambda: text, ndev_ifindex=0, port_num=1)


TABLE = [entry(0, port(3).gid), entry(1, HERE + bytes(8)), entry(2, port(4).gid)]


def found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath, table: list[Any], **state: int
) -> list[Device]:
    folder = tmp_path / "mlx5_0" / "ports" / "1"
    folder.mkdir(parents=True)
    (folder / "link_layer").write_text("InfiniBand\n")
    monkeypatch.setattr(devices, "_SYSFS", tmp_path)
    values: dict[str, int] = {"state": 4, "active_mtu": 5, "lid": 3, "flags": 0} | state
    return list(devices._addresses("mlx5_0", 1, SimpleNamespace(**values), table))


def test_a_port_is_found_under_each_of_its_gids(monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath) -> None:
    first, second = found(monkeypatch, tmp_path, TABLE)
    assert first == DEVICE
    assert (second.gid_index, second.address) == (2, "fe80::248a:703:0:4")
    monkeypatch.setattr(devices, "list_devices", lambda: [first, second])
    assert devices.find_device(port(4).gid, infiniband=True) is second
    with pytest.raises(Unsupported, match=r"the InfiniBand device .* fe80::1.*mlx5_0 \(fe80::248a:703:0:3\)"):
        devices.find_device(HERE + bytes(7) + b"\1", infiniband=True)
    with pytest.raises(Unsupported, match=r"the RoCE device with the address 10\.0\.0\.1"):
        devices.find_device(b"\x0a\0\0\1")


@pytest.mark.parametrize(
    ("state", "table", "why"),
    [
        ({"state": 2}, TABLE, "port 1 is initialising; is there a subnet manager"),
        ({"lid": 0}, TABLE, "port 1 has no LID"),
        ({"lid": 0, "flags": 1}, TABLE, ""),
        ({}, [], "it has no GID"),
    ],
)
def test_a_port_that_cannot_be_used_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath, state: dict[str, int], table: list[Any], why: str
) -> None:
    first = found(monkeypatch, tmp_path, table, **state)[0]
    assert (why in first.why_not) if why else not first.why_not
    assert first.needs_grh == bool(state.get("flags"))


def test_nics_and_doctor_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "list_devices", lambda: [DEVICE])
    shown = CliRunner().invoke(nics_command.nics, ["--json"])
    assert shown.exit_code == 0
    assert '"gid": "fe80::248a:703:0:3"' in shown.output
    assert '"lid": 3' in shown.output
    assert '"ip": ""' in shown.output
    assert "LID 3" in CliRunner().invoke(nics_command.nics, [], env={"COLUMNS": "160"}).output
    [seen] = checks.look_at_devices([DEVICE])
    assert (seen.outcome, seen.found) == (Outcome.OK, "mlx5_0 port 1 with fe80::248a:703:0:3 at LID 3")
    [gid] = checks.look_at_gids([DEVICE.address], [DEVICE])
    assert gid.found == "fe80::248a:703:0:3 is GID 0 (InfiniBand) of mlx5_0 port 1, at LID 3"
    [missing] = checks.look_at_gids(["fe80::9"], [DEVICE])
    assert "no device has the GID fe80::9" in missing.found
    [small] = checks.look_at_mtus(4096, [replace(DEVICE, mtu=2048)])
    assert small.mend.startswith("mtu = 2048 in host.toml of all hosts")


async def test_a_host_daemon_finds_its_port_by_gid(stub: StubbedDevice) -> None:
    opened: list[dict[str, Any]] = []

    def open_nic(**asked: Any) -> VerbsNic:
        opened.append(asked)
        return VerbsNic(DEVICE, VerbsConfig())

    adapter = Adapter("verbs", frozenset({parts.HARDWARE_NIC}), open_nic)
    flags = {"name": "h0", "nic": "verbs", "gid": DEVICE.address, "dir": "/run/none", "router_lid": "9"}
    settings = load_host_settings(flags, None, {}).settings
    assert (await parts.at_its_address(settings, adapter)).mac_bytes == bytes(6)
    assert opened == [{"gid": OWN.at.gid, "router_lid": 9}]
