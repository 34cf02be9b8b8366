"""Checks of hosts that are to use SHARP: the double serves as the library, a folder as the kernel's files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto.cli import cli
from inaproto.doctor import report
from inaproto.doctor.checklist import all_checks, examine
from inaproto.doctor.findings import Finding, Outcome
from inaproto.doctor.site import Asked, Site
from inaproto_adapters.sharp import abi, checks
from inaproto_adapters.sharp.checks import Port
from inaproto_adapters.sharp.config import SharpConfig
from tests.sharp_double import Double

OK, WARNING, FAILED, UNTESTABLE = Outcome.OK, Outcome.WARNING, Outcome.FAILED, Outcome.UNTESTABLE
NOWHERE = "/none/libsharp_coll.so"


def look(name: str, site: Site) -> list[Finding]:
    [check] = [one for one in checks.CHECKS if one.name == name]
    return list(check.look(site))


def outcomes(found: Iterable[Finding]) -> list[Outcome]:
    return [one.outcome for one in found]


def plant(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def host(name: str, collective: str, pid: int = 0, kib_min: int = 64) -> dict[str, Any]:
    return {
        "role": "host",
        "name": name,
        "pid": pid,
        "collective": collective,
        "collective_kib_min": kib_min,
    }


def port(device: str, state: str = "4: ACTIVE", layer: str = "InfiniBand", number: int = 1) -> dict[str, str]:
    folder = f"sys/class/infiniband/{device}/ports/{number}"
    return {f"{folder}/state": f"{state}\n", f"{folder}/link_layer": f"{layer}\n"}


def test_where_nobody_uses_it_nothing_is_looked_at() -> None:
    for hosts in ([], [host("h0", ""), host("h1", "memory-collective:lib"), {"role": "host", "name": "h2"}]):
        for check in checks.CHECKS:
            [found] = look(check.name, Site(hosts=hosts))
            assert (found.outcome, "--sharp looks all the same" in found.found) == (UNTESTABLE, True)


def test_they_are_among_all_checks() -> None:
    names = [check.name for check in all_checks()]
    assert {check.name for check in checks.CHECKS} <= set(names)


def test_the_setting_of_each_host_is_read_and_one_that_cannot_be_fails() -> None:
    site = Site(
        Asked(collective="sharp"),
        hosts=[host("h0", "sharp:library=/x.so;devices=mlx5_0:1"), host("h1", "sharp:colour=red")],
    )
    asked, first, second = look("sharp-settings", site)
    assert asked.found == "--sharp: the library that the system finds, the library's choice of devices"
    assert first.found == "host h0: /x.so, mlx5_0:1"
    assert (second.outcome, "host h1: sharp: 'colour=red' is none of" in second.found) == (FAILED, True)
    assert second.mend
    [found] = look("sharp-library", Site(hosts=[host("h1", "sharp:colour=red")]))
    assert found == Finding(UNTESTABLE, "the setting cannot be read (sharp-settings)")


# --- library


def test_the_library_is_named_with_its_hash_and_never_said_to_work(sharp_double: Double) -> None:
    site = Site(
        hosts=[host("h0", f"sharp:library={sharp_double.path}"), host("h1", f"sharp:library={NOWHERE}")]
    )
    good, bad = look("sharp-library", site)
    assert good.outcome is OK
    assert f"{sharp_double.path} (SHA-256 {abi.hash_of(sharp_double.path)}) can be loaded" in good.found
    assert "whether SHARP works, only inaproto sharp probe says" in good.found
    assert (bad.outcome, NOWHERE in bad.found) == (FAILED, True)
    assert "HPC-X or DOCA-Host" in bad.mend
    assert sharp_double.count("contexts") == 0


def test_a_library_that_is_another_is_found_out() -> None:
    found = checks.look_at_library("libc.so.6")
    assert (found.outcome, "has no sharp_coll_default_config" in found.found) == (FAILED, True)


def test_a_library_that_lacks_functions_names_them(
    sharp_double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(sharp_double.library), "has", lambda self, name: name != "sharp_coll_init")
    found = checks.look_at_library(str(sharp_double.path))
    assert (found.outcome, found.found) == (FAILED, f"{sharp_double.path} has no sharp_coll_init")


def test_a_check_of_its_headers_is_asked_for_until_one_is_recorded_for_its_bytes(
    sharp_double: Double,
) -> None:
    site = Site(hosts=[host("h0", f"sharp:library={sharp_double.path}")])
    [found] = look("sharp-abi", site)
    assert found.outcome is WARNING
    assert found.mend == f"inaproto sharp abi-check --include DIR --library {sharp_double.path}"
    abi.record_passed(sharp_double.path, abi.AbiReport("/include", "cc", 1, (), ()))
    [found] = look("sharp-abi", site)
    assert (found.outcome, found.mend) == (OK, "")
    assert checks.look_at_abi(NOWHERE).outcome is UNTESTABLE


# --- variables


def test_variables_are_those_of_the_daemon(tmp_path: Path) -> None:
    environ = "HOME=/root\0SHARP_COLL_LOG_LEVEL=3\0SHARP_COLL_ENABLE_SAT=1\0SHARPER=1\0"
    plant(tmp_path, {"proc/5/environ": environ, "proc/6/environ": "SHARP_COLL_STATS_DUMP_MODE=2\0"})
    hosts = [host(f"h{pid}", "sharp", pid) for pid in (5, 6, 7)]
    listed, refused, unread = look("sharp-variables", Site(root=tmp_path, hosts=hosts))
    assert listed == Finding(OK, "host h5 has SHARP_COLL_ENABLE_SAT=1, SHARP_COLL_LOG_LEVEL=3")
    assert (refused.outcome, refused.mend) == (FAILED, "unset SHARP_COLL_STATS_DUMP_MODE")
    assert (unread.outcome, "h7 cannot be read" in unread.found) == (UNTESTABLE, True)


def test_without_a_daemon_they_are_those_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARP_COLL_STATS_DUMP_MODE", "1")
    [found] = look("sharp-variables", Site(Asked(collective="sharp")))
    assert found == Finding(OK, "this shell has SHARP_COLL_STATS_DUMP_MODE=1")
    monkeypatch.delenv("SHARP_COLL_STATS_DUMP_MODE")
    [found] = look("sharp-variables", Site(Asked(collective="sharp")))
    assert found.found == "this shell has no SHARP_COLL_ variable"


# --- devices


def test_the_devices_of_the_setting_are_there_and_up_on_infiniband(tmp_path: Path) -> None:
    plant(tmp_path, port("mlx5_0") | port("mlx5_1", "2: INIT") | port("mlx5_2", layer="Ethernet"))
    devices = "mlx5_0:1,mlx5_0,mlx5_1:1,mlx5_2:1,mlx5_0:2"
    site = Site(root=tmp_path, hosts=[host("h0", f"sharp:devices={devices}")])
    up, alike, down, ethernet, absent = look("sharp-devices", site)
    assert up == alike == Finding(OK, "mlx5_0:1 is up on InfiniBand")
    assert (down.outcome, down.found) == (FAILED, "mlx5_1:1 is 2: INIT, not ACTIVE")
    assert "sminfo" in down.mend
    assert (ethernet.outcome, "is of link layer Ethernet" in ethernet.found) == (FAILED, True)
    assert ethernet.mend.startswith("mlxconfig -d mlx5_2")
    assert (absent.outcome, absent.found.startswith("there is no port mlx5_0:2; there are: mlx5_0:1")) == (
        FAILED,
        True,
    )


@pytest.mark.parametrize(
    ("ports", "outcome", "words"),
    [
        ([Port("mlx5_0:1", "4: ACTIVE", "InfiniBand")], OK, "up on InfiniBand: mlx5_0:1"),
        ([Port("rxe0:1", "4: ACTIVE", "Ethernet"), Port("a:1", "4: ACTIVE", "InfiniBand")], OK, ": a:1"),
        ([Port("rxe0:1", "4: ACTIVE", "Ethernet")], FAILED, "there are: rxe0:1 (is of link layer Ethernet"),
        ([Port("mlx5_0:1", "", "InfiniBand")], FAILED, "in no state that can be read, not ACTIVE"),
        ([], FAILED, "there are: none at all"),
    ],
)
def test_of_the_librarys_own_choice_one_port_is_enough(
    ports: list[Port], outcome: Outcome, words: str
) -> None:
    [found] = checks.look_at_devices("", ports)
    assert found.outcome is outcome
    assert words in found.found


# --- limits and terms


@pytest.mark.parametrize(("limit", "outcome"), [(8 << 20, FAILED), (1 << 30, WARNING), (-1, OK)])
def test_locked_memory(limit: int, outcome: Outcome) -> None:
    assert checks.look_at_memlock("host h0", limit).outcome is outcome


def test_locked_memory_is_that_of_the_daemon(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/5/limits": "Max locked memory         unlimited        unlimited        bytes\n"})
    found = look("sharp-memlock", Site(root=tmp_path, hosts=[host("h0", "sharp", 5)]))
    assert found == [Finding(OK, "host h0 may lock any amount of memory")]


def test_what_it_takes_is_said_and_what_the_switches_do_is_not() -> None:
    [found] = look("sharp-terms", Site(hosts=[host("h0", "sharp", kib_min=128)]))
    assert found.outcome is OK
    assert found.found.startswith(
        "host h0 tries all-reduces of 128 KiB to 512 MiB (sum, max, min of f32, i32,"
    )
    assert "bf16" not in found.found
    assert found.found.endswith("What the switches do of it, inaproto sharp probe says")
    assert "bf16" in checks.look_at_terms("h", SharpConfig(bfloat16=True), 64).found
    none = checks.look_at_terms("h", SharpConfig(), 1 << 20)
    assert (none.outcome, "takes no all-reduce" in none.found) == (FAILED, True)


@pytest.mark.parametrize(
    ("other", "alike"), [(host("h1", "sharp"), True), (host("h1", "sharp:bfloat16=1"), False),
                         (host("h1", "sharp", kib_min=1), False)],
)  # fmt: skip
def test_hosts_that_offer_different_all_reduces_are_warned(other: dict[str, Any], alike: bool) -> None:
    found = look("sharp-terms", Site(hosts=[host("h0", "sharp"), other]))
    assert outcomes(found) == [OK, OK] + ([] if alike else [WARNING])


# --- all of it


def test_a_host_that_lacks_nothing_and_its_json(sharp_double: Double, tmp_path: Path) -> None:
    root = plant(tmp_path / "root", port("mlx5_0") | {"proc/5/environ": "HOME=/\0", "proc/5/limits":
        "Max locked memory         unlimited        unlimited        bytes\n"})  # fmt: skip
    abi.record_passed(sharp_double.path, abi.AbiReport("/include", "cc", 1, (), ()))
    setting = f"sharp:library={sharp_double.path};devices=mlx5_0:1"
    told = report.records(examine(Site(root=root, hosts=[host("h0", setting, 5)]), checks.CHECKS))
    assert [(one["check"], one["outcome"]) for one in told] == [(one.name, "ok") for one in checks.CHECKS]
    assert all(set(one) == {"check", "outcome", "found", "why", "mend"} for one in told)
    assert not any("SHARP works" in one["found"] and "only" not in one["found"] for one in told)


@pytest.mark.parametrize("as_setting", [False, True])
def test_the_command_looks_at_a_library_that_is_named(
    sharp_double: Double, tmp_path: Path, as_setting: bool
) -> None:
    named = f"sharp:library={sharp_double.path};devices=mlx5_9:1" if as_setting else str(sharp_double.path)
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    ran = CliRunner().invoke(cli, ["doctor", "--json", "--nic", "softnic", "--sharp", named], env=environment)
    found = {one["check"]: one for one in json.loads(ran.stdout)}
    assert found["sharp-library"]["outcome"] == "ok"
    assert str(sharp_double.path) in found["sharp-library"]["found"]
    assert found["sharp-devices"]["outcome"] == "failed"
    assert ("mlx5_9:1" in found["sharp-devices"]["found"]) == as_setting
    assert ran.exit_code == 1
    bare = CliRunner().invoke(cli, ["doctor", "--json", "--nic", "softnic", "--sharp"], env=environment)
    assert "--sharp: the library that the system finds" in bare.stdout
