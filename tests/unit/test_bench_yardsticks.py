"""``inaproto bench yardsticks``: a table, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from inaproto_hil.bench import bench


def test_rows_are_told_as_a_table_and_as_json(tmp_path: Path) -> None:
    out = tmp_path / "yardsticks.json"
    done = CliRunner().invoke(bench, ["yardsticks", "--instances", "2", "--seed", "3", "--json", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["seed"] == 3
    placed = next(row for row in found["rows"] if row["heuristic"] == "least fragments")
    assert (placed["instances"], placed["equal_share"], placed["worst_distance"]) == (2, 1.0, 0.0)
    assert "least fragments" in done.output
