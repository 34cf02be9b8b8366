"""``inaproto bench plan``: rows beside each other, and the campaign of drawn requests."""

from __future__ import annotations

from fractions import Fraction
from io import StringIO
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from inaproto_controller.planning.paring.comparison import comparisons
from inaproto_hil.bench import bench
from inaproto_hil.bench.plan import (
    FAST,
    FLOW,
    FLOW_AS_PRINTED,
    GOAL,
    RATIOS,
    STAR,
    Config,
    exit_status,
    measured,
    of_masks,
    times,
)


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    return measured(Config(4, "e0.* a0.0", 5, 5, 2, 0), iter(range(2)))


def test_all_ways_of_the_printed_algorithm_give_its_tree(small: dict[str, Any]) -> None:
    rows = small["rows"]
    assert isinstance(rows, list)
    assert [row["row"] for row in rows] == [FAST, STAR, FLOW, FLOW_AS_PRINTED]
    assert len({(row["rate_gbit_s"], row["hops"]) for row in rows[1:]}) == 1
    assert all(len(row["samples_cpu_s"]) == 2 for row in rows)
    for row in rows:
        assert row["executed"]["is_as_planned"]
        assert (row["executed"]["rate_gbit_s"], row["executed"]["hops"]) == (
            row["rate_gbit_s"],
            str(row["hops"]),
        )
    assert small["ratio"] == rows[-1]["times_fast"]
    assert small["goal_ratio"] == GOAL
    times = {row["row"]: row["cpu_s"] for row in rows}
    assert [(told["of"], told["to"], told["ratio"]) for told in small["ratios"]] == [
        (one, other, times[one] / times[other]) for one, other in RATIOS
    ]
    assert [told["is_of_the_goal"] for told in small["ratios"]] == [True, False, False, False]
    assert [told["comes_to_goal"] for told in small["ratios"]] == [
        told["ratio"] >= GOAL for told in small["ratios"]
    ]
    assert {(FLOW_AS_PRINTED, FAST), (FLOW, FAST), (FLOW, STAR)} <= set(RATIOS)


@pytest.mark.parametrize(("is_met", "is_planned"), [(True, True), (False, True), (True, False)])
def test_a_goal_that_is_missed_is_told_and_is_the_exit_status(
    is_met: bool, is_planned: bool, small: dict[str, Any]
) -> None:
    rows = [{**row, "executed": {**row["executed"], "is_as_planned": is_planned}} for row in small["rows"]]
    ratios = [
        {**told, "comes_to_goal": is_met == told["is_of_the_goal"]} for told in small["ratios"]
    ]  # others may come to it where the first does not, and the other way round
    report = {**small, "rows": rows, "ratios": ratios, "within_goal": is_met}
    assert exit_status(report) == (0 if is_met and is_planned else 1)
    console = Console(width=80, record=True, file=StringIO())
    console.print(times(report))
    said = console.export_text()
    assert ("goal 500, missed" in said) == (not is_met)
    assert said.count("; less than 500") == (len(RATIOS) - 1 if is_met else 0)
    assert ("NOT all as planned" in said) == (not is_planned)
    for one, other in RATIOS:
        assert f"{one}: " in said
        assert f" times as long as {other}" in said


def test_drawn_requests_are_told_together() -> None:
    found = of_masks(list(comparisons(range(1))))
    assert (found["proved"], found["fast_reaches_the_highest_rate"]) == (1, 1)
    assert Fraction(found["rows"][0]["rate"]) > 0


def test_the_command_says_how_long_it_takes() -> None:
    done = CliRunner().invoke(bench, ["plan", "--help"])
    assert done.exit_code == 0
    assert "half a" in done.output
