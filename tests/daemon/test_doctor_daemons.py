"""``inaproto doctor`` about daemons that run: what they say is what the checks read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from inaproto.cli import cli
from inaproto.daemon.observe.status import ask_daemons
from inaproto.doctor import daemons, limits, pacing
from inaproto.doctor.checklist import all_checks
from inaproto.doctor.findings import Outcome
from inaproto.doctor.site import Asked, Site
from tests.clusters.loopback import open_cluster

SMALL: dict[str, Any] = {"mtu": 256, "message_packets": 3}


async def site_of(directory: Path) -> Site:
    report = await ask_daemons(directory, ())
    assert report.switch is not None
    asked = Asked(bandwidth=10**11, round_trip_ns=100_000, nic="softnic")
    return Site(
        asked, switches=[report.switch], hosts=report.hosts, problems=report.problems, daemons_asked="x"
    )


async def test_daemons_that_are_well(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        for work in [comm.all_reduce(np.ones(10, np.float32)) for comm in comms]:
            await work
        site = await site_of(cluster.directory)
        for check in (daemons.DAEMONS, daemons.VERSIONS, daemons.PATHS, limits.DESCRIPTORS):
            assert {found.outcome for found in check.look(site)} == {Outcome.OK}, check.name
        [path] = daemons.PATHS.look(site)
        assert path.found == "job j is summed by: switch"
        [window] = pacing.WINDOW.look(site)
        assert window.outcome is Outcome.WARNING  # two messages of 3 packets are little for 100 Gbit/s
        assert "3 packets of 256 bytes" in window.found


async def test_a_job_that_the_switch_has_no_memory_for(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await cluster.start_switch(memory_kib=1)
        for _ in range(2):
            await cluster.start_host()
        await cluster.job("j", 2)
        [found] = daemons.PATHS.look(await site_of(cluster.directory))
        assert found.outcome is Outcome.WARNING
        assert "memory" in found.found


def test_the_command_names_every_check(runtime_dir: Path) -> None:
    """What it finds is this machine's; that it says something of each check, and of no daemons, is not."""
    environment = {"XDG_RUNTIME_DIR": str(runtime_dir)}
    ran = CliRunner().invoke(cli, ["doctor", "--json", "--nic", "softnic"], env=environment)
    found = json.loads(ran.output)
    assert list(dict.fromkeys(one["check"] for one in found)) == [check.name for check in all_checks()]
    assert ran.exit_code == int(any(one["outcome"] == "failed" for one in found))
    shown = CliRunner().invoke(
        cli, ["doctor", "--dir", str(runtime_dir)], env=environment | {"COLUMNS": "200"}
    )
    assert shown.exit_code == 1
    assert "no inaproto daemon has its socket here" in shown.output
    assert shown.output.splitlines()[-1].endswith("not testable here")


def test_a_capture_of_no_switch(runtime_dir: Path) -> None:
    ran = CliRunner().invoke(cli, ["capture", str(runtime_dir)])
    assert ran.exit_code == 1
    assert "no switch has its socket here" in ran.output
    ran = CliRunner().invoke(cli, ["capture", str(runtime_dir), "-o", str(runtime_dir / "no" / "x.pcapng")])
    assert ran.exit_code == 1
    kept = runtime_dir / "kept.pcapng"
    kept.write_bytes(b"of yesterday")
    assert CliRunner().invoke(cli, ["capture", str(runtime_dir / "control.sock"), "-o", str(kept)]).exit_code
    assert kept.read_bytes() == b"of yesterday"
