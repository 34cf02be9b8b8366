"""The verbs adapter, as far as it goes without a device; with kernel devices: tests/hil."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto import parts
from inaproto.daemon.settings.config import load_host_settings
from inaproto.errors import ConfigError, Unsupported
from inaproto.ports import Adapter, NicCapabilities, Status
from inaproto_adapters import nics_command
from inaproto_adapters.verbs import devices, library, statistics, statuses
from inaproto_adapters.verbs.devices import Device
from inaproto_hil.bench.verbs.device import PyverbsError

READY = Device("rxe0", 1, b"\x0a\0\0\1", b"\x52\x54\0\0\0\1", "eth0", 1, 1024)
DOWN = Device("mlx5_1", 1, b"", b"", "", 0, 4096, "port 1 is down; is its network interface up?")


def test_statuses_have_names() -> None:
    assert statuses.decode(0) is Status.SUCCESS
    assert statuses.decode(12) is Status.RETRY_EXCEEDED
    assert statuses.decode(4) is Status.REMOTE_OPERATION
    assert statuses.name(4) == "local protection error"
    assert statuses.name(99) == "status 99"


def test_a_machine_without_pyverbs_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "DISTRIBUTION", tmp_path)
    library.verbs.cache_clear()
    with pytest.raises(Unsupported, match="python3-pyverbs"):
        library.verbs("nothing_of_this_name")
    built = tmp_path / "pyverbs" / "device.cpython-399-x86_64-linux-gnu.so"
    built.parent.mkdir()
    built.touch()
    with pytest.raises(Unsupported, match="built for cpython-399"):
        library.verbs("nothing_of_this_name")


def test_a_device_is_found_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Device("rxe1", 1, b"\x0a\0\0\2", b"", "", 0, 0, "port 1 is down")
    monkeypatch.setattr(devices, "list_devices", lambda: [READY, DOWN, broken])
    assert devices.find_device(b"\x0a\0\0\1") is READY
    with pytest.raises(Unsupported, match=r"rxe1 with 10\.0\.0\.2.*port 1 is down"):
        devices.find_device(b"\x0a\0\0\2")
    six = Device("rxe2", 1, bytes.fromhex("fd00") + bytes(13) + b"\7", READY.mac, "eth0", 3, 1024)
    monkeypatch.setattr(devices, "list_devices", lambda: [READY, DOWN, broken, six])
    assert devices.find_device(six.ip) is six
    with pytest.raises(Unsupported, match=r"the InfiniBand device with the address fd00::7"):
        devices.find_device(six.ip, infiniband=True)
    with pytest.raises(Unsupported, match=r"10\.0\.0\.9.*rxe0 \(10\.0\.0\.1\), mlx5_1 \(port 1 is down"):
        devices.find_device(b"\x0a\0\0\x09")


class AskedContext:
    """Of a device by pyverbs; ``fails`` names what ``mlx5_1`` refuses, as a device that is reset does."""

    def __init__(self, name: str, fails: str) -> None:
        self.fails = fails if name == "mlx5_1" else ""
        self.is_closed = False

    def _answer(self, name: str, answer: object) -> Any:
        if name == self.fails:
            raise PyverbsError(f"Failed to {name}. Errno: 5, Input/output error")
        return answer

    def query_device(self) -> Any:
        return self._answer("query_device", SimpleNamespace(phys_port_cnt=1))

    def query_port(self, port: int) -> Any:
        found = SimpleNamespace(state=4, active_mtu=3, gid_tbl_len=1, lid=1, flags=0)
        return self._answer("query_port", found)

    def query_gid_table(self, most: int) -> Any:
        return self._answer("query_gid_table", [])

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("fails", ["query_device", "query_port", "query_gid_table"])
def test_a_device_that_does_not_answer_hides_no_other(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[AskedContext] = []

    def context(*, name: str) -> AskedContext:
        opened.append(AskedContext(name, fails))
        return opened[-1]

    listed = [SimpleNamespace(name=name) for name in (b"mlx5_0", b"mlx5_1", b"mlx5_2")]
    modules = {
        "device": SimpleNamespace(Context=context, get_device_list=lambda: listed),
        "pyverbs_error": SimpleNamespace(PyverbsError=PyverbsError),
    }
    monkeypatch.setattr(devices, "verbs", modules.__getitem__)
    first, broken, last = devices.list_devices()
    assert (first.name, broken.name, last.name) == ("mlx5_0", "mlx5_1", "mlx5_2")
    assert fails in broken.why_not
    assert fails not in first.why_not + last.why_not
    assert all(one.is_closed for one in opened)


def test_counters_are_those_since_it_was_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "rxe0" / "ports" / "1" / "hw_counters"
    folder.mkdir(parents=True)
    for name, value in {"sent_pkts": 5, "completer_retry_err": 3, "rcvd_seq_err": 1}.items():
        (folder / name).write_text(f"{value}\n")
    monkeypatch.setattr(statistics, "_SYSFS", tmp_path)
    counters = statistics.DeviceCounters("rxe0", 1)
    assert set(counters.read().values()) == {0}
    (folder / "sent_pkts").write_text("12\n")
    (folder / "completer_retry_err").write_text("5\n")
    (folder / "rcvd_seq_err").write_text("2\n")
    read = counters.read()
    assert (read["packets_sent"], read["retransmits"], read["naks_received"], read["timeouts"]) == (
        7,
        2,
        1,
        1,
    )


def test_nics_shows_devices_and_why_one_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "list_devices", lambda: [READY, DOWN])
    shown = CliRunner().invoke(nics_command.nics, [], env={"COLUMNS": "160"})
    assert shown.exit_code == 0
    assert "10.0.0.1" in shown.output
    assert "no: port 1 is down" in shown.output
    monkeypatch.setattr(devices, "list_devices", list)
    assert CliRunner().invoke(nics_command.nics, []).exit_code == 1


def test_nics_for_programs_is_json_where_nothing_can_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here() -> list[Device]:
        raise Unsupported("RoCE through verbs", "the kernel has no RDMA devices to list")

    monkeypatch.setattr(devices, "list_devices", none_here)
    shown = CliRunner().invoke(nics_command.nics, ["--json"])
    assert shown.exit_code == 1
    assert json.loads(shown.stdout) == []
    assert "no RDMA devices to list" in shown.stderr


@pytest.mark.parametrize("mtu", ["auto", "4096"])
async def test_a_host_with_a_device_may_find_its_mtu(mtu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = OpenDevice(NicCapabilities("verbs rxe0", READY.mac, READY.ip, 4096, 8, retry_forever=True))
    adapter = Adapter("verbs", frozenset({parts.HARDWARE_NIC}), lambda ip: device)
    monkeypatch.setattr(parts, "load_adapter", lambda name, *kinds: adapter)
    flags = {"name": "h0", "ip": "10.0.0.1", "dir": "/run/none", "nic": "verbs", "mtu": mtu}
    settings, open_nic = await parts.nic_of(load_host_settings(flags, None, {}).settings)
    assert (settings.mtu, settings.mac_bytes) == (mtu if mtu == "auto" else 4096, READY.mac)
    opened: object = await open_nic("")
    assert opened is device


@dataclass(slots=True)
class OpenDevice:
    capabilities: NicCapabilities
    closed: bool = False

    async def aclose(self) -> None:
        self.closed = True


async def test_a_host_daemon_has_the_address_of_its_device() -> None:
    capabilities = NicCapabilities("verbs rxe0", READY.mac, READY.ip, 1024, 8, retry_forever=True)
    device = OpenDevice(capabilities)
    adapter = Adapter("verbs", frozenset({parts.HARDWARE_NIC}), lambda ip: device)
    flags = {"name": "h0", "ip": "10.0.0.1", "dir": "/run/none"}
    settings = load_host_settings(flags, None, {}).settings
    assert (await parts.at_its_address(settings, adapter)).mac_bytes == READY.mac
    assert device.closed
    other = load_host_settings(flags | {"mac": "02:00:00:00:00:09"}, None, {}).settings
    with pytest.raises(ConfigError, match="52:54:00:00:00:01; leave mac at auto"):
        await parts.at_its_address(other, adapter)
