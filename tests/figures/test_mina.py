"""MINA's evaluation in full, as ``inaproto reproduce mina`` computes it, and its longer references."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from inaproto_controller.planning.turns.policy import Policy
from inaproto_hil.evaluation.mina.figures import FIGURES, MINA
from inaproto_hil.evaluation.mina.paper import PAPER
from inaproto_hil.evaluation.mina.published import published
from inaproto_hil.evaluation.mina.runs import ClusterFound, ClusterRun, ConflictFound, ConflictRun, perform
from inaproto_hil.evaluation.performing import perform_all
from tests.data.mina.reference import reference

pytestmark = [pytest.mark.figures, pytest.mark.timeout(3600)]
TREE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of all, with 5 draws."""
    out = tmp_path_factory.mktemp("mina") / "report.json"
    command = [sys.executable, "-m", "inaproto", "reproduce", "mina", "--json", str(out)]
    done = subprocess.run(command, cwd=TREE, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr
    assert out.exists(), done.stderr
    return json.loads(out.read_text())


OPEN = {"13": ["8:3, least fragments less first fit"]}
"""By figure, what is outside its tolerance, and so the command's status 1: with first-fit hosts 8:3 scores
.490 over five draws, .473 to .514; the paper's one draw .449. What 40 further draws say: docs/planning.md."""


@pytest.mark.parametrize("key", [one.key for one in FIGURES])
def test_every_figure_and_table_is_inside_but_for_what_is_open(report: Any, key: str) -> None:
    assert [one["key"] for one in report["figures"]] == [one.key for one in FIGURES]
    assert [row["what"] for row in report["outside"] if row["figure"] == key] == OPEN.get(key, [])


def exclusive_runs() -> Iterator[Any]:
    for row in published("ref13_later_algorithm_link_quota")["traces"]:
        for name, placement in (("smart", "least-fragments"), ("first", "first")):
            expected = row[f"{name}_placement_exclusive_first_tree_greedy"]
            yield pytest.param(row["trace"], placement, expected, id=f"{row['trace']}-{name}")


@pytest.mark.parametrize(("trace", "placement", "expected"), list(exclusive_runs()))
def test_exclusive_trees_score_what_the_extended_revision_s_do(
    trace: int, placement: str, expected: Any
) -> None:
    _, found = perform(ClusterRun(trace, placement, "exclusive", Policy.GREEDY))
    assert isinstance(found, ClusterFound)
    assert found.score == pytest.approx(expected["JCTScore"], abs=1e-9)
    assert found.utilisation == pytest.approx(expected["SharpRatio"], abs=1e-9)


def test_5000_requests_conflict_as_in_figure_2() -> None:
    expected = reference("ref11_tree_conflicts")
    _, found = perform(ConflictRun())
    assert isinstance(found, ConflictFound)
    assert list(map(int, found.without_tree)) == expected["conflict"]
    assert [list(row) for row in found.fragments] == expected["fragments"]


def test_mina_ends_when_it_ends_in_the_paper_s_revision() -> None:
    for seed in range(5):
        _, found = perform(replace(MINA, seed=seed))
        assert isinstance(found, ClusterFound)
        assert found.score is not None
        assert -0.015 < found.score - 0.9823834196894121 < 0.02
        assert found.utilisation == pytest.approx(0.22423394361417337, abs=0.005)
        assert found.end == pytest.approx(332.0654631122496, abs=0.5)


def test_processes_find_what_one_process_finds() -> None:
    runs = PAPER.needed([next(one for one in FIGURES if one.key == "12")], 1)[:6]
    quiet = Console(stderr=True, quiet=True)
    two, one = (
        perform_all(perform, runs, jobs, "local", quiet, compile_once=PAPER.warm_up) for jobs in (2, 1)
    )
    assert two == one
