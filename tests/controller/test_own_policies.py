"""A placement and a tree builder of one's own in a simulated cluster: what they may answer, and what not."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.requests import Request
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.planning.trees.builder import Changes, TreeJob
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.presets import make_setting
from inaproto_controller.simulate.results import Result
from inaproto_controller.simulate.scenario.command import simulate as simulate_command
from inaproto_controller.simulate.setting import Setting

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_policies.py"
SCENARIO = """
seeds = 2
until = 40.0
[cluster]
down = [4, 4]
up = [1, 2]
quota = "switch"
[failures]
host_mtbf = 300.0
host_mttr = 5.0
[stream]
count = 12
hosts = { 2 = 1, 4 = 1, 6 = 1 }
[[compare]]
placement = "first"
trees = "exclusive"
[[compare]]
"""
JOBS = [Request("vit-large-4", 4, 10), Request("opt-1.3b-4", 4, 10)]


def setting() -> Setting:
    return make_setting(FatTree((4, 4), (1, 2)), quota=Quota.SWITCH, placement="first", trees="first")


class Last:
    """The highest free hosts; ``more`` of them than are wanted."""

    def __init__(self, more: int = 0) -> None:
        self._more = more

    def place(self, occupancy: Occupancy, count: int) -> tuple[int, ...] | None:
        free: list[int] = np.flatnonzero(occupancy.free).tolist()
        return tuple(free[-count - self._more :]) if len(free) >= count else None


class Given:
    """The hosts that it is told."""

    def __init__(self, *hosts: int) -> None:
        self._hosts = hosts

    def place(self, occupancy: Occupancy, count: int) -> tuple[int, ...]:
        return self._hosts


class Always:
    """Who comes gets the tree of a number, or a slot of a number that tree."""

    wants_completions = False

    def __init__(self, tree: int, slot: int | None = None) -> None:
        self._tree, self._slot = tree, slot

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        return {jobs[index].slot if self._slot is None else self._slot: self._tree for index in new}


def ran(**own: Any) -> Result:
    return simulate(replace(setting(), **own), JOBS)


def test_hosts_and_trees_are_those_that_it_says() -> None:
    found = ran(placement=Last(), trees=Always(0))
    assert [job.placed_on for job in found.jobs] == [(12, 13, 14, 15), (8, 9, 10, 11)]
    assert all(job.ina_seconds for job in found.jobs)


@pytest.mark.parametrize("hosts", [(0, 1, 2), (0, 1, 2, 3, 4), (-1, 0, 1, 2), (0, 1, 2, 16), (0, 1, 2, 2)])
def test_hosts_that_a_job_cannot_have_are_refused(hosts: tuple[int, ...]) -> None:
    with pytest.raises(LocalMisuse, match=r"hosts for request 0, which wants 4|are not all free"):
        ran(placement=Given(*hosts))


def test_hosts_of_another_job_are_refused() -> None:
    with pytest.raises(LocalMisuse, match="are not all free"):
        ran(placement=Given(0, 1, 2, 3))


@pytest.mark.parametrize("tree", [-1, 1, 99])
def test_a_tree_that_a_job_has_not_is_refused(tree: int) -> None:
    """Four hosts of one rack have one candidate, and numbers beyond were once believed."""
    with pytest.raises(LocalMisuse, match=f"tree {tree} for request 0, which has 1"):
        ran(trees=Always(tree))


def test_a_tree_for_nobody_is_refused() -> None:
    with pytest.raises(LocalMisuse, match="slot 999"):
        ran(trees=Always(0, slot=999))


def test_the_example_meets_the_same_jobs_and_failures_as_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario, report = tmp_path / "scenario.toml", tmp_path / "report.json"
    scenario.write_text(SCENARIO)
    run_path(str(EXAMPLE))["main"](scenario)
    printed = capsys.readouterr().out
    assert CliRunner().invoke(simulate_command, [str(scenario), "--json", str(report)]).exit_code == 0
    rows = [row for row in csv.DictReader(printed.splitlines()) if row["variant"] != "ours"]
    variants = json.loads(report.read_text())["variants"]
    runs = {(variant["name"], str(run["seed"])): run for variant in variants for run in variant["runs"]}
    assert len(rows) == len(runs) == 4
    for row in rows:
        run = runs[row.pop("variant"), row.pop("seed")]
        assert row == {key: "" if run[key] is None else str(run[key]) for key in row}
    assert printed.count("ours,") == 2
