"""``inaproto bench decision``: a table, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from inaproto_hil.bench import bench


def test_rows_are_told_with_their_spread_and_the_goal(tmp_path: Path) -> None:
    out = tmp_path / "decision.json"
    arguments = ["decision", "--operations", "200", "--rounds", "3", "--warmup", "0", "--json", str(out)]
    done = CliRunner().invoke(bench, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["config"] == {"operations": 200, "rounds": 3, "warmup": 0}
    assert found["goal_us"] == 50.0
    for row in found["rows"]:
        low, high = row["cpu_us_spread"]
        assert 0 < low <= row["cpu_us"] <= high
        assert len(row["samples_us"]) == 3
    assert {row["row"] for row in found["rows"]} >= {
        "seat, no turn",
        "seat, in a turn",
        "seat, a round under way",
    }
    assert "seat, in a turn" in done.output
