"""``inaproto bench controller`` in small: a controller, and a pair on PostgreSQL, with agents."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto.errors import Unsupported
from inaproto_controller.service.job_client import ControllerUnreachable
from inaproto_hil.bench.controller import command
from inaproto_hil.bench.controller.measure import Load, measure
from inaproto_hil.rigs.cluster import inaproto_command
from inaproto_hil.rigs.postgresql_server import programs
from tests.conftest import end_without

SMALL = ("--hosts", "8,16", "--jobs", "4", "--rounds", "2", "--restarts", "1", "--batches", "1")


@pytest.mark.parametrize("pair", [False, True], ids=["alone", "pair"])
def test_every_phase_is_measured(tmp_path: Path, pair: bool) -> None:
    if pair:
        try:
            programs()
        except Unsupported as why:
            end_without("postgresql", why)
    report, picture = tmp_path / "report.json", tmp_path / "curves.svg"
    words = (*SMALL, "--json", str(report), "--plot", str(picture), *(("--pair",) if pair else ()))
    done = subprocess.run(
        [inaproto_command(), "bench", "controller", *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert [row["hosts"] for row in found["rows"]] == [8, 16]
    for row in found["rows"]:
        assert row["pair"] is pair
        assert row["jobs"]["durable_ms"]["n"] == row["jobs"]["placed_ms"]["n"] == 4
        assert row["turns"]["round_ms"]["n"] == row["moves"]["move_ms"]["n"] == 2
        assert row["restarts"]["all_back_s"]["n"] == 1
        assert row["loop"]["steps"] > 0
        assert row["rss_bytes"] > 1 << 20
    assert found["over"] == "hosts"
    assert found["exponents"]["all agents arrive"]["half_width"] is None, "two sizes leave it open"
    assert "exponent" in done.stdout
    assert picture.read_text().startswith("<?xml")


def test_a_size_that_fails_costs_those_before_it_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(load: Load, **_: object) -> dict[str, Any]:
        if load.hosts == 64:
            raise ExceptionGroup("nursery", [ControllerUnreachable("controller.sock: nobody listens there")])
        return measure(load)

    monkeypatch.setattr(command, "measure", measured)
    report = tmp_path / "report.json"
    words = (*SMALL, "--hosts", "8,64,128", "--json", str(report), "--plot", str(tmp_path / "curves.svg"))
    done = CliRunner().invoke(command.controller_bench, words)
    assert done.exit_code == 1
    assert "64 hosts, 4 jobs: controller.sock: nobody listens there" in done.stderr
    found = json.loads(report.read_text())
    assert [row["hosts"] for row in found["rows"]] == [8]
    assert found["failed"].startswith("64 hosts")
