"""Which tree each job of a fabric is to have, by what is reported of it and of the switches."""

from __future__ import annotations

from typing import Any, Final

from inaproto.core.fabric_tree import FabricTree
from inaproto.core.rendezvous_types import TreeState, TreeWished
from inaproto_controller.fabric_trees import FabricTrees
from inaproto_controller.tree_plans import TreePlan, TreePlans
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
        "wishes": {"a": TreeWished("a", 3, None)},
        "now": 0.0,
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


def test_where_every_tree_needs_a_switch_that_is_away_there_is_none() -> None:
    plan = planned(away=frozenset({"leaf0"}))
    assert (root(plan), plan.unserved) == (None, ())
