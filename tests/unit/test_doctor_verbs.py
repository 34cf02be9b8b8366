"""Checks of RoCE devices, by what is found of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inaproto.doctor.findings import Check, Outcome
from inaproto.doctor.site import Asked, Site
from inaproto.errors import Unsupported
from inaproto_adapters.verbs import checks
from inaproto_adapters.verbs.devices import Device

READY = Device("rxe0", 1, b"\x0a\0\0\1", b"\x52\x54\0\0\0\1", "eth0", 1, 1024)
DOWN = Device("mlx5_1", 1, b"", b"", "", 0, 4096, "port 1 is down; is its network interface up?")
OK, WARNING, FAILED, UNTESTABLE = Outcome.OK, Outcome.WARNING, Outcome.FAILED, Outcome.UNTESTABLE


def check(name: str) -> Check:
    return next(one for one in checks.CHECKS if one.name == name)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [([READY], [OK]), ([READY, DOWN], [OK, WARNING]), ([DOWN], [FAILED]), ([], [FAILED])],
)
def test_devices(devices: list[Device], expected: list[Outcome]) -> None:
    assert [found.outcome for found in checks.look_at_devices(devices)] == expected


@pytest.mark.parametrize(
    ("ip", "devices", "outcome", "words"),
    [
        ("10.0.0.1", [READY], OK, "10.0.0.1 is GID 1 (RoCE v2) of rxe0 port 1, at eth0"),
        ("10.0.0.9", [READY], FAILED, "there are: 10.0.0.1"),
        ("10.0.0.1", [replace(READY, why_not="it is down")], FAILED, "but it is down"),
        ("10.0.0.1", [READY, replace(READY, gid_index=3)], WARNING, "rxe0 index 1, rxe0 index 3"),
    ],
)
def test_gids(ip: str, devices: list[Device], outcome: Outcome, words: str) -> None:
    [found] = checks.look_at_gids([ip], devices)
    assert found.outcome is outcome
    assert words in found.found


def test_a_gid_of_no_address() -> None:
    [found] = checks.look_at_gids([], [READY])
    assert found.outcome is UNTESTABLE


def test_path_mtu_of_devices() -> None:
    [small] = checks.look_at_mtus(4096, [READY, DOWN])
    assert small.outcome is FAILED
    assert small.mend.startswith("ip link set eth0 mtu 4200")
    assert [one.outcome for one in checks.look_at_mtus(1024, [READY])] == [OK]
    assert [one.outcome for one in checks.look_at_mtus(1024, [DOWN])] == [UNTESTABLE]


@pytest.mark.parametrize(("limit", "outcome"), [(8 << 20, FAILED), (1 << 30, OK), (-1, OK)])
def test_memlock(limit: int, outcome: Outcome) -> None:
    assert checks.look_at_memlock("host h0", limit).outcome is outcome


def test_memlock_is_that_of_host_daemons(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "5"
    folder.mkdir(parents=True)
    (folder / "limits").write_text("Max locked memory         65536        65536        bytes\n")
    daemons = [{"role": "host", "name": "h0", "pid": 5}]
    switch = [{"role": "switch", "name": "", "pid": 6}]
    found = list(check("memlock").look(Site(Asked(nic="verbs"), tmp_path, hosts=daemons, switches=switch)))
    assert [(one.outcome, one.found) for one in found] == [(FAILED, "host h0 may lock 64 KiB of memory")]


def test_permissions(tmp_path: Path) -> None:
    assert checks.look_at_permissions([], []).outcome is FAILED
    barred = checks.look_at_permissions(["uverbs0", "uverbs1"], ["uverbs1"])
    assert (barred.outcome, "/dev/infiniband/uverbs1" in barred.found) == (FAILED, True)
    node = tmp_path / "dev" / "infiniband" / "uverbs0"
    node.parent.mkdir(parents=True)
    node.touch()
    [found] = check("rdma-permissions").look(Site(Asked(nic="verbs"), tmp_path))
    assert (found.outcome, found.found) == (OK, "/dev/infiniband/uverbs0 can be opened")


def test_versions_of_rdma_core() -> None:
    same = "python3-pyverbs\t44.0-2\nlibibverbs1\t44.0-2\nrdma-core\t44.0-2\n"
    assert checks.look_at_versions(same).outcome is OK
    assert checks.look_at_versions(same.replace("1\t44", "1\t59")).outcome is WARNING
    assert checks.look_at_versions("dpkg-query: no packages found").outcome is OK


def test_a_machine_without_rdma_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in checks.CHECKS:
        assert [found.outcome for found in one.look(Site(root=tmp_path))] == [UNTESTABLE]

    def none_here() -> list[Device]:
        raise Unsupported("RoCE through verbs", "the kernel has no RDMA devices to list")

    monkeypatch.setattr(checks, "list_devices", none_here)
    [found] = check("rdma-devices").look(Site(Asked(nic="verbs"), tmp_path))
    assert (found.outcome, found.found) == (FAILED, "the kernel has no RDMA devices to list")
