"""Tree migration explored: the product holds, and each rule that is left out is missed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto.sim.explore.engine import Counterexample, Kind, Verdict, explore
from inaproto.sim.explore.migration.variants import VARIANTS, migration_config, migration_world
from inaproto_hil.explore import explore as command

KINDS = ("losses", "duplicates", "crashes", "reboots", "outages", "run_outs", "deaths")


def explored(
    variant: str = "product", scenario: str | None = None, *, reduced: bool = True, **sizes: Any
) -> Verdict:
    config = replace(migration_config(variant, scenario=scenario, reduced=reduced), **sizes)
    return explore(migration_world(variant, config), states_max=60_000)


def only(kind: str, times: int = 1) -> dict[str, Any]:
    return {its: times * (its == kind) for its in KINDS} | {"faults": times}


def found(variant: str) -> Counterexample:
    counterexample = explored(variant).counterexample
    assert counterexample is not None
    return counterexample


@pytest.mark.parametrize("scenario", ["swap", "swap-three", "first", "replaced"])
def test_without_faults_every_plan_is_carried_out(scenario: str) -> None:
    verdict = explored(scenario=scenario, faults=0)
    assert verdict.counterexample is None
    assert verdict.finished >= 1


def test_two_jobs_swap_whatever_fails_once() -> None:
    verdict = explored(scenario="swap", faults=1)
    assert verdict.counterexample is None
    assert verdict.states > 10_000


@pytest.mark.parametrize("kind", ["losses", "duplicates", "crashes", "outages"])
def test_a_tree_of_two_switches_passes_on_whatever_fails_twice_in_one_way(kind: str) -> None:
    assert explored("product", "first", reduced=True, **only(kind, 2)).counterexample is None


@pytest.mark.parametrize("kind", ["duplicates", "crashes", "outages"])
def test_reductions_change_no_verdict(kind: str) -> None:
    whole = explored("product", "first", reduced=False, **only(kind))
    folded = explored("product", "first", reduced=True, **only(kind))
    assert whole.counterexample is None
    assert folded.counterexample is None
    assert folded.states < whole.states


def test_two_slots_of_a_switch_are_lent_to_two_jobs() -> None:
    verdict = explored(scenario="swap", faults=0, capacity=2)
    assert verdict.counterexample is None


def test_acquiring_before_releasing_is_stuck_from_the_beginning() -> None:
    assert found("acquire-first").kind is Kind.STUCK


def test_partial_grants_that_are_kept_in_any_order_are_stuck() -> None:
    stuck = found("keep-partial")
    assert stuck.kind is Kind.STUCK


def test_the_barrier_is_not_what_prevents_the_deadlock() -> None:
    assert explored("no-barrier").counterexample is None


def test_without_leases_a_dead_job_keeps_its_slots() -> None:
    stuck = found("no-lease")
    assert stuck.kind is Kind.STUCK
    assert [its.splitlines()[0] for its in stuck.run] == [
        "the coordinator crashes, and will never return",
        "a host of job A dies",
    ]


def test_a_coordinator_that_forgets_its_jobs_takes_slots_that_they_use() -> None:
    broken = found("forget-jobs")
    assert broken.kind is Kind.BROKEN
    assert "which uses it" in broken.rule


def test_a_coordinator_that_forgets_its_term_uses_numbers_twice() -> None:
    broken = found("forget")
    assert broken.kind is Kind.BROKEN
    assert "used twice" in broken.rule


def test_the_command_tells_a_verdict(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    arguments = ["--world", "migration", "--set", "faults=0", "--json", str(path)]
    result = CliRunner().invoke(command, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    assert (report["world"], report["variant"], report["violations"]) == ("migration", "product", 0)
    assert report["config"]["scenario"]["name"] == "swap"
    assert f"{report['states']:,}" in result.output


def test_the_command_tells_a_shortest_run() -> None:
    result = CliRunner().invoke(command, ["--world", "migration", "--variant", "forget-jobs"])
    assert result.exit_code == 1, result.output
    assert "A shortest run, " in result.output
    assert "1. the coordinator crashes" in result.output


def test_the_help_names_every_variant() -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert all(f"    {name}: " in result.output for name in VARIANTS)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--world", "nonsense"],
            "--world 'nonsense' does not exist; there are ring, sharing, migration, overlay",
        ),
        (["--world", "migration", "--ranks", "3"], "--ranks is of the ring; use --set"),
        (["--set", "faults=1"], "--set is for worlds that are not the ring"),
        (["--world", "migration", "--set", "faults"], "--set must be NAME=VALUE"),
        (["--world", "migration", "--set", "faults=x"], "--set faults must be a number, not 'x'"),
        (["--world", "migration", "--set", "faults=9"], "faults must be 0 to 8, not 9"),
        (["--world", "migration", "--set", "capacity=0"], "capacity must be 1 to 4, not 0"),
        (["--world", "migration", "--set", "wind=1"], "--set wind: there are scenario, capacity"),
        (["--world", "migration", "--set", "scenario=no"], "scenario 'no' does not exist"),
        (["--world", "migration", "--variant", "no"], "--variant 'no' does not exist"),
    ],
    ids=str,
)
def test_a_bad_value_is_one_line(arguments: list[str], error: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert error in result.output.splitlines()[-1]
