"""``inaproto bench verbs``: a table, and the same as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from inaproto_hil.bench import bench


def test_rows_are_told_with_what_was_asked_of_the_device(tmp_path: Path) -> None:
    out = tmp_path / "verbs.json"
    arguments = ["verbs", "--mtu", "1024", "--packets", "3", "--messages", "16", "--rounds", "2"]
    before = set(sys.modules)
    done = CliRunner().invoke(bench, [*arguments, "--json", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["config"] == {"mtu": 1024, "packets": 3, "window": 8, "messages": 16, "rounds": 2}
    assert found["goal_us"] == 20.0
    assert [(row["results_a_wake_up"], row["copies"]) for row in found["rows"]] == [
        (8, False),
        (8, True),
        (1, False),
        (1, True),
    ]
    for row in found["rows"]:
        us = row["us_a_message"]
        assert 0 < us["least"] <= us["median"] <= us["most"]
        assert row["device_calls_a_message"]["writes"] == 1
        assert row["device_calls_a_message"]["completions"] == 1.5
    assert "3 x 1024 bytes, N = 8" in done.output
    left = {name for name in set(sys.modules) - before if name.partition(".")[0] == "pyverbs"}
    assert all(sys.modules[name].__spec__ is not None for name in left), "the stub is gone"


@pytest.mark.parametrize("window", ["3", "0"])
def test_a_window_that_is_no_power_of_two_is_refused(window: str) -> None:
    done = CliRunner().invoke(bench, ["verbs", "--window", window])
    assert done.exit_code == 2
    assert "--window" in done.output
