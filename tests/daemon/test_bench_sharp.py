"""``inaproto bench sharp`` over the double: what it reports; how much the adapter costs, no test asks."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from inaproto_hil.bench import bench
from tests.sharp_double import Double


def test_it_reports_both_for_each_size(sharp_double: Double, tmp_path: Path) -> None:
    report_at = tmp_path / "report.json"
    words = ["sharp", "--library", str(sharp_double.path), "--sizes", "4K,1M", "--rounds", "2"]
    done = CliRunner().invoke(bench, [*words, "--json", str(report_at)])
    assert done.exit_code == 0, done.output
    report = json.loads(report_at.read_text())
    assert [row["bytes"] for row in report["rows"]] == [4096, 1 << 20]
    assert [row["wrong"] for row in report["rows"]] == [0, 0]
    assert all(row["adapter_us"] > 0 < row["loop_us"] for row in report["rows"])
    assert report["config"]["block"] == [200, 32]
    assert len(report["library"]["sha256"]) == 64


def test_what_is_no_library_is_said_at_once(tmp_path: Path) -> None:
    empty = tmp_path / "libempty.so"
    empty.write_bytes(b"no library")
    done = CliRunner().invoke(bench, ["sharp", "--library", str(empty)])
    assert done.exit_code == 1
    assert "cannot be loaded" in done.output
