"""What ``inaproto bench sharing`` reports."""

from __future__ import annotations

import json

from click.testing import CliRunner

from inaproto_hil.bench.sharing import measure, sharing_bench


def test_the_report_has_a_row_for_each_rule_and_weather() -> None:
    report = measure(0, 3)
    rows = {(row["weather"], row["rule"]): row for row in report["rows"]}
    assert set(rows) == {
        (weather, rule) for weather in ("clear", "faults") for rule in ("equal-index", "by-index")
    }
    for (_, rule), row in rows.items():
        assert row["worlds"] == 3
        assert row["rounds"] >= row["committed"]
        assert 0 <= row["abort_rate"] < 1
        assert row["operations"] > 0
        if rule == "by-index":
            assert row["lock_stalls"] == row["lock_stalled_ms"] == 0
            assert row["lock_stall_mean_us"] is None
    assert rows["clear", "by-index"]["jobs"] == rows["clear", "equal-index"]["jobs"]
    assert rows == {(row["weather"], row["rule"]): row for row in measure(0, 3)["rows"]}, "times are virtual"


def test_the_command_prints_json_and_refuses_nonsense() -> None:
    done = CliRunner().invoke(sharing_bench, ["--seeds", "1:2", "--json", "-"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["config"]["seeds"] == [1, 2]
    assert "abort_rate" in done.stderr
    assert CliRunner().invoke(sharing_bench, ["--seeds", "3:2"]).exit_code == 2
