"""PARING's evaluation in full, as ``inaproto reproduce paring`` computes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inaproto_hil.evaluation.paring.figures import FIGURES

pytestmark = [pytest.mark.figures, pytest.mark.timeout(3600)]
TREE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("paring")
    command = [sys.executable, "-m", "inaproto", "reproduce", "paring", "--report", str(out)]
    done = subprocess.run(command, cwd=TREE, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr
    assert len(list(out.glob("figure-*.svg"))) == len(FIGURES) - 1
    return json.loads((out / "report.json").read_text())


@pytest.mark.parametrize("key", [one.key for one in FIGURES])
def test_every_value_that_is_asked_for_is_inside(report: Any, key: str) -> None:
    assert [one["key"] for one in report["figures"]] == [one.key for one in FIGURES]
    assert [row["what"] for row in report["outside"] if row["figure"] == key] == []


def test_rows_that_are_not_asked_for_say_why(report: Any) -> None:
    for figure in report["figures"]:
        for row in figure["rows"]:
            is_asked = row["verdict"] in ("exact", "within tolerance", "outside")
            assert (row["inside"] is not None) == is_asked
            assert (row["why"] is not None) == (row["verdict"] in ("not reproducible", "differs"))
            told = [row[name] for name in ("least", "most", "two_pods") if row[name] is not None]
            if row["verdict"] == "differs":
                assert not min(told) <= row["paper"] <= max(told)


def test_the_fast_planner_has_the_highest_rate_wherever_a_switch_may_add_partly(report: Any) -> None:
    """And whatever the draw: no benchmark's tree is faster."""
    for figure in report["figures"]:
        if figure["key"] not in ("3", "6", "9"):
            continue
        curves = figure["curves"]["ours"]
        fast = curves["fast"]["least"]
        assert curves["fast"]["most"] == fast
        for system, curve in curves.items():
            if not system.startswith("printed"):
                assert all(ours >= theirs for ours, theirs in zip(fast, curve["most"], strict=True)), system
