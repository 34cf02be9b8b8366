"""``inaproto bench plan``: rows beside each other, and the campaign of drawn requests."""

from __future__ import annotations

from fractions import Fraction

import pytest
from click.testing import CliRunner

from inaproto_controller.paring.comparison import comparisons
from inaproto_hil.bench import bench
from inaproto_hil.bench.plan import FAST, FLOW, FLOW_AS_PRINTED, GOAL, STAR, Config, measured, of_masks


@pytest.fixture(scope="module")
def small() -> dict[str, object]:
    return measured(Config(4, "e0.* a0.0", 5, 5, 2, 0), iter(range(2)))


def test_all_ways_of_the_printed_algorithm_give_its_tree(small: dict[str, object]) -> None:
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


def test_drawn_requests_are_told_together() -> None:
    found = of_masks(list(comparisons(range(1))))
    assert (found["proved"], found["fast_reaches_the_highest_rate"]) == (1, 1)
    assert Fraction(found["rows"][0]["rate"]) > 0


def test_the_command_says_how_long_it_takes() -> None:
    done = CliRunner().invoke(bench, ["plan", "--help"])
    assert done.exit_code == 0
    assert "half a" in done.output
