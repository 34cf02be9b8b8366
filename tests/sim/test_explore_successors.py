"""Host daemons that die and are replaced, every interleaving: the product holds, planted faults are found.

Sizes are for every day; ``inaproto explore --world successors`` runs larger ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto.errors import ConfigError
from inaproto.sim.explore.engine import Counterexample, Kind, Verdict, explore
from inaproto.sim.explore.successors.config import SuccessorsConfig
from inaproto.sim.explore.successors.world import SuccessorsExplored
from inaproto_hil.explore import explore as command
from inaproto_hil.explore.worlds import SUCCESSORS
from tests.planted.catalogue import install

STATES_MAX = 500_000


def search(**sizes: Any) -> Verdict:
    return explore(SuccessorsExplored(SuccessorsConfig(**sizes)), states_max=STATES_MAX, must_end=True)


def broken(**sizes: Any) -> Counterexample:
    found = search(**sizes).counterexample
    assert found is not None, "it holds"
    return found


def test_one_all_reduce_and_one_death_anywhere() -> None:
    verdict = search(second=0)
    assert verdict.counterexample is None
    assert verdict.finished


@pytest.mark.parametrize("variant", SUCCESSORS)
def test_the_product_holds(variant: str) -> None:
    verdict = search(**SUCCESSORS[variant][2])
    assert verdict.counterexample is None
    assert verdict.finished


@pytest.mark.parametrize(
    ("fault", "rule", "crashes"),
    [
        ("torn_result_not_copied_again", "all ranks have the same bytes", 1),
        ("taken_before_it_is_copied", "what is counted is copied", 1),
        ("mended_before_it_is_copied", "what is counted is copied", 2),
        ("kept_where_the_slots_were", "no journal is half written", 2),
    ],
)
def test_a_fault_of_the_journal_is_found(fault: str, rule: str, crashes: int) -> None:
    with install(fault):
        found = broken(second=0, crashes=crashes)
    assert found.kind is Kind.BROKEN
    assert found.rule.startswith(rule)
    assert sum(" dies" in step for step in found.run) == crashes


def test_one_journal_stands_for_those_that_read_alike() -> None:
    reduced, full = (search(first=0, second=0, reduced=reduced) for reduced in (True, False))
    assert reduced.counterexample is full.counterexample is None
    assert reduced.states < full.states


def test_a_size_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="window must be 1 to 2, not 9"):
        SuccessorsConfig(window=9)
    with pytest.raises(ConfigError, match="gone must be at most crashes, 0, not 1"):
        SuccessorsConfig(crashes=0, gone=1)


def test_the_command_explores_and_says_what_it_has_covered(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    sizes = [f"--set={size}" for size in ("second=0", "first=1", "crashes=0")]
    arguments = ["--world", "successors", "--variant", "chain", *sizes, "--json", str(path)]
    result = CliRunner().invoke(command, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    assert report["violations"] == 0
    assert report["config"]["crashes"] == 0
    assert f"{report['states']:,}" in result.output
    assert "control plane" in report["covered"]["local states"]
    assert "assumed: a host deals with one completion at a time" in result.output


def test_the_command_tells_a_counterexample_and_fails() -> None:
    arguments = ["--world", "successors", "--variant", "chain", "--set", "second=0"]
    with install("taken_before_it_is_copied"):
        result = CliRunner().invoke(command, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "what is counted is copied: result 0 of h" in result.output
    assert "A shortest run" in result.output
    assert "the daemon of h1 dies while it does this: message 0 lands at h1" in result.output
