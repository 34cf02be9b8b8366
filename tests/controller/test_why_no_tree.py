"""Why a job has no tree is told in the plan's words, by what has kept the plan from giving it one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto_controller.cluster.capacity import CapacityModel, limited
from inaproto_controller.cluster.desired import Job, JobSpec, SetJob, applied
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.service.observed import Agent, Observed, Presence
from inaproto_controller.service.plan import without_trees
from tests.controller.planned_cluster import PlannedCluster, racks

UP = Agent(Presence.UP, has_collective=True)


class At:
    """Two racks of four hosts whose agents all report, and the reasons."""

    def __init__(self, topology: GraphTopology | None = None) -> None:
        self.cluster = PlannedCluster(topology or racks(hosts=4), 1)
        self.report(dict.fromkeys(self.cluster.agents, UP))
        self.numbers: dict[str, int] = {}

    def report(self, agents: dict[str, Agent]) -> None:
        self.cluster.observed.update(agents)

    def submit(self, name: str, hosts: int, model: str | None = None) -> None:
        self.numbers[name] = number = len(self.numbers) + 1
        spec = JobSpec(name=name, hosts=hosts, model=model)
        self.cluster.desired = applied(self.cluster.desired, [SetJob(Job(number=number, spec=spec))])
        self.look()

    def look(self) -> None:
        while self.cluster.look():
            pass

    def why(self, name: str) -> str:
        """Empty: it has one, or needs none."""
        observed = Observed(dict(self.cluster.observed))
        found = without_trees(self.cluster.desired, observed, self.cluster.planner)
        return found.get(self.numbers[name], "")


def test_who_has_a_tree_or_needs_none_has_no_reason() -> None:
    at = At()
    at.submit("big", 8)
    assert at.why("big") == ""
    at = At()
    at.submit("small", 1)
    assert at.why("small") == ""


@pytest.mark.parametrize("model", ["bert-base-4", "vit-base-4"])
def test_a_model_that_gains_nothing_is_named_though_all_slots_are_free(model: str) -> None:
    at = At()
    at.submit("big", 8, model)
    assert at.why("big") == f"{model} gains nothing by one: its steps would be as long"


def test_slots_of_others_are_named_with_who_has_them() -> None:
    at = At()
    at.submit("first", 6)
    at.submit("second", 2)
    assert at.why("first") == ""
    assert at.why("second") == "leaf1 is taken by first"


def test_switches_that_do_not_report_are_named() -> None:
    at = At()
    at.report({"spine0": Agent(Presence.GONE), "spine1": Agent(Presence.UNKNOWN)})
    at.submit("big", 8)
    assert at.why("big") == (
        "spine0 does not report as a tree needs it; spine1 does not report as a tree needs it"
    )
    at.report({"spine1": UP})
    at.look()
    assert at.why("big") == ""


def test_a_cluster_file_in_which_nobody_sums_is_named() -> None:
    topology = racks(hosts=4)
    at = At(replace(topology, switches=tuple(replace(one, jobs=None) for one in topology.switches)))
    at.submit("big", 8)
    assert at.why("big") == "no switch that sums is where the ways of its hosts meet"


def test_hosts_without_the_library_of_sharp_are_named() -> None:
    at = At(limited(racks(hosts=4), CapacityModel.SWITCH))
    at.report({"h5": replace(UP, has_collective=False)})
    at.submit("big", 8)
    assert at.why("big") == "h5 does not report as a tree needs it"
