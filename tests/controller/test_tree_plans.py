"""Which tree each job of a fabric is to have, by what is reported of it and of the switches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from inaproto.wire.messages.trees import FabricTree, TreeState
from inaproto_controller.cluster.model import CLUSTER, measured
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.fabric_trees import FabricTrees
from inaproto_controller.planning.trees.shared_roots import SharedJob, assign_roots
from inaproto_controller.service.trees.plans import TreePlan, TreePlans
from tests.controller.planned_cluster import racks

HOSTS: Final = ("h0", "h2")
TREES: Final = FabricTrees(racks(), share_max=2)


def tree(root: str) -> FabricTree:
    return next(one.tree for one in TREES.options(HOSTS) if one.tree.root == root)


def planned(plans: TreePlans | None = None, **but: Any) -> TreePlan:
    """One job, ``a``, to be at spine1, without a ring now."""
    states = {"a": TreeState("a", HOSTS, 3, "parked")}
    given: dict[str, Any] = {
        "had": {"a": tree("spine1")},
        "held": frozenset(),
        "roots": {"a": "spine0"},
        "steps": {},
        "pins": {},
        "away": frozenset(),
        "barred": {},
    }
    return (plans or TreePlans(TREES)).plan(states, **(given | but))


def root(plan: TreePlan) -> str | None:
    found = plan.trees["a"]
    return None if found is None else found.tree.root


def test_a_job_on_its_way_to_a_switch_goes_there() -> None:
    assert root(planned()) == "spine1"


def test_a_job_on_its_way_to_a_switch_that_dies_goes_elsewhere() -> None:
    """It has nothing there yet, and would wait for that switch though another one is free."""
    assert root(planned(away=frozenset({"spine1"}))) == "spine0"


def test_a_tree_that_is_held_is_kept_while_a_switch_of_it_is_away() -> None:
    assert root(planned(held=frozenset({"a"}), away=frozenset({"spine1"}))) == "spine1"


def test_what_is_asked_again_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked after whatever is heard of a switch."""
    asked: list[int] = []

    def counted(jobs: Sequence[SharedJob], *others: Any) -> dict[str, int | None]:
        asked.append(len(jobs))
        return assign_roots(jobs, *others)

    monkeypatch.setattr("inaproto_controller.service.trees.plans.assign_roots", counted)
    plans = TreePlans(TREES)
    times = StepTimes(measured("opt-125m-4"), CLUSTER, hosts=4)
    for change, place, count in (
        ({}, "spine1", 1),
        ({"barred": {"b": frozenset({tree("spine1")})}}, "spine1", 1),
        ({"pins": {"a": "spine0"}}, "spine0", 2),
        ({"away": frozenset({"spine1"})}, "spine0", 3),
        ({}, "spine1", 4),
        ({"steps": {"a": times}}, "spine1", 5),
        ({"steps": {"a": times}}, "spine1", 5),
        ({}, "spine1", 5),
    ):
        assert root(planned(plans, **change)) == place
        assert len(asked) == count


def test_where_every_tree_needs_a_switch_that_is_away_there_is_none() -> None:
    plan = planned(away=frozenset({"leaf0"}))
    assert (root(plan), plan.unserved) == (None, ())
