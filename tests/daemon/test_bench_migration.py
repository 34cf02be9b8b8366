"""``inaproto bench migration``: what it makes of moves, and a few of them by real daemons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto_hil.bench.migration import PHASES, is_good, migration_bench, percentile, summary
from inaproto_hil.bench.migration import Traffic as JobTraffic


def row(**given: float) -> dict[str, Any]:
    return {f"{phase}_ms": 0.0 for phase in PHASES} | {
        "total_ms": 0.0,
        "downtime_ms": 0.0,
        "felt_downtime_ms": 0.0,
        "fallback_operations": 0,
        **given,
    }


def test_percentiles_are_values_that_were_there() -> None:
    assert percentile([], 50) is None
    assert [percentile([3.0, 1.0, 2.0], one) for one in (1, 50, 95, 100)] == [1.0, 2.0, 3.0, 3.0]
    assert percentile([float(one) for one in range(1, 101)], 95) == 95.0


def test_phases_are_summed_up_as_the_paper_names_them() -> None:
    rows = [
        row(drain_ms=10.0, release_ms=20.0, barrier_ms=5.0, acquire_ms=30.0, install_ms=40.0, total_ms=105.0)
    ]
    found = summary(rows)
    assert (found["release"]["p50"], found["release"]["paper"]) == (30.0, 125.0)
    assert (found["acquire"]["p50"], found["acquire"]["paper"]) == (70.0, 294.0)
    assert (found["total"]["p99"], found["total"]["paper"]) == (105.0, 559.0)
    assert found["phase barrier"] == {"p50": 5.0, "p95": 5.0, "p99": 5.0, "max": 5.0, "paper": None}
    assert summary([])["total"]["p50"] is None


def test_what_is_lost_differs_or_begins_anew_is_not_good() -> None:
    good = {"identical": True, "lost": 0, "generation_changes": 0}
    assert is_good({"totals": good})
    for fault in ({"identical": False}, {"lost": 1}, {"generation_changes": 1}):
        assert not is_good({"totals": good | fault})


@pytest.mark.parametrize(
    ("paths", "felt"),
    [
        ("SSSS", None),
        ("SSHH", None),
        ("SSHHS", (3.0, 2)),
        ("SSSSHS", (2.0, 1)),
        ("HHS", (2.0, 1)),
    ],
    ids=["not begun", "not over", "two by hosts", "begun late", "none before"],
)
def test_downtime_is_felt_from_the_last_by_switches_to_the_next(
    paths: str, felt: tuple[float, int] | None
) -> None:
    """The move is wished for at 1.5; S: by the switches, H: by the hosts, one a second."""
    traffic = JobTraffic.__new__(JobTraffic)
    traffic.log = [(float(second), path == "S") for second, path in enumerate(paths)]
    assert traffic.felt(1.5) == felt


@pytest.mark.timeout(900)
def test_jobs_move_under_all_reduces_and_nothing_is_lost(tmp_path: Path) -> None:
    """Times are not judged here: this machine may be busy, and rounds late."""
    file = tmp_path / "report.json"
    words = ["--moves", "2", "--bytes", "2048", "--json", str(file), "--logs", str(tmp_path / "logs")]
    found = CliRunner().invoke(migration_bench, words)
    report = json.loads(file.read_text())
    totals = report["totals"]
    assert (totals["lost"], totals["identical"], totals["moves"]) == (0, True, 2), found.output
    assert found.exit_code == (0 if totals["generation_changes"] == 0 else 1)
    assert [one["to"] for one in report["rows"]] == ["spine1", "spine"]
    for one in report["rows"]:
        parts = sum(one[f"{phase}_ms"] for phase in PHASES)
        assert parts <= one["total_ms"] * 1.01
        assert one["felt_downtime_ms"] > 0
