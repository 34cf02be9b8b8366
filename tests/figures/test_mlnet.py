"""MLNet's evaluation in full, as ``inaproto reproduce mlnet`` computes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inaproto_hil.evaluation.flows.fat_tree_links import FatTreeLinks, drawn_choices
from inaproto_hil.evaluation.flows.max_min import Engine
from inaproto_hil.evaluation.flows.phase import Load, carry
from inaproto_hil.evaluation.flows.trees import Scheme, edges
from inaproto_hil.evaluation.mlnet.figures import FIGURES

pytestmark = [pytest.mark.figures, pytest.mark.timeout(7200)]
TREE = Path(__file__).resolve().parents[2]
NOT_REPRODUCED = {
    ("1b", "BINARY over BASELINE, P = 50"): 0.431,
    ("3", "both, 95th percentile, %, compute 2"): -41.34,
}
"""For 0.34 ± 0.06, over 5 draws of 0.32 to 0.56; and for -54 ± 10, over 20 draws, whose mean's interval
reaches -46.1: over 100 draws it is -43.1 ± 1.8."""
CPU_S = 5.0


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("mlnet")
    command = [sys.executable, "-m", "inaproto", "reproduce", "mlnet", "--report", str(out)]
    done = subprocess.run(command, cwd=TREE, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(out.glob("figure-*.svg"))) == len(FIGURES) - 1
    return json.loads((out / "report.json").read_text())


def test_every_value_that_is_asked_for_is_inside_but_for_two_that_say_why_they_do_not_reproduce(
    report: Any,
) -> None:
    assert [one["key"] for one in report["figures"]] == [one.key for one in FIGURES]
    assert report["outside"] == []
    found = {(row["figure"], row["what"]): row["ours"] for row in report["not_reproduced"]}
    assert found == pytest.approx(NOT_REPRODUCED, abs=0.05)
    assert all(
        "the interval of the mean reaches the tolerance" in row["why"] for row in report["not_reproduced"]
    )


def test_what_is_outside_or_not_asked_for_says_why(report: Any) -> None:
    for figure in report["figures"]:
        for row in figure["rows"]:
            if row["paper"] is not None and row["inside"] is not True:
                assert row["why"], row["what"]


def test_a_phase_of_1024_servers_takes_at_most_five_seconds_of_one_processor(report: Any) -> None:
    assert report["slowest_phase"]["cpu_s"] <= CPU_S


def test_the_kept_rates_of_a_whole_phase_are_those_of_the_reference() -> None:
    """800 workers, 10 parameter servers, 1:4: some hundred sets of rates, each found anew in NumPy."""
    network, draw = FatTreeLinks(16, 4.0), np.random.default_rng(0)
    workers, servers = draw.choice(1024, 800, replace=False), draw.choice(1024, 10, replace=False)
    tree = edges(Scheme.BINARY, workers, servers, network.half, draw)
    choices = drawn_choices(network, len(tree.sources), draw)
    load = Load.of(network.paths(tree.sources, tree.sinks, choices), np.full(len(choices), 0.1))
    found = [carry(network.capacities(), load, engine=one).ended for one in Engine]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
