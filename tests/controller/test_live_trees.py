"""PARING's trees for jobs of a live cluster: what a fabric can execute, within what is free."""

from __future__ import annotations

import json
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from inaproto.core.plan.aggregation_tree import SwitchAddress
from inaproto.core.rendezvous.fabric.shapes import fault_of, tree_of
from inaproto.core.rendezvous.fabric_tree import FabricSwitch, LinkUp
from inaproto.errors import Infeasible
from inaproto.units import PortId
from inaproto.wire.messages.trees import FabricTree, TreeState
from inaproto_controller.cluster.graph_file import parse_json
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.fabric_trees import FabricTrees
from inaproto_controller.planning.paring.live_tree import LiveTree
from inaproto_controller.planning.paring.live_trees import (
    NO_ROOT,
    OUT_OF_ORDER,
    SEVERAL_HOMES,
    STRANGE,
    LiveTrees,
)
from inaproto_controller.planning.planned_options import PlannedOptions
from inaproto_controller.service.trees.plans import TreePlan, TreePlans
from tests.seeds import seeds

CAPACITIES: dict[str, int | Fraction] = {"a": 6, "c": Fraction(10, 3), "d": 4, "core-0": 10, "core-2": 5}
SWITCHES = ("core-0", "core-1", "core-2", "mid", "a", "b", "c", "d")
TRUNKS = (
    *(("a", "core-0"), ("b", "core-0"), ("b", "core-1"), ("c", "mid"), ("d", "mid")),
    *(("mid", "core-1"), ("core-0", "core-1"), ("core-1", "core-2"), ("core-0", "core-2")),
)
SEATS = ("a", "a", "a", "b", "b", "c", "c", "d", "d", "d", "core-2")
ALL = {name: Fraction(value) for name, value in CAPACITIES.items()}


def topology(**more: str) -> GraphTopology:
    links = [[f"h{number}", seat] for number, seat in enumerate(SEATS)]
    links += [*map(list, TRUNKS), *map(list, more.items())]
    document = {
        "hosts": [f"h{number}" for number in range(len(SEATS))],
        "switches": [{"name": name, **({"jobs": 1} if name in CAPACITIES else {})} for name in SWITCHES],
        "links": [{"between": one} for one in links],
    }
    return parse_json(json.dumps(document).encode())


def fabric() -> tuple[FabricSwitch, ...]:
    """With all trunks, in an order in which each leads up."""
    address, port = SwitchAddress(bytes(6), bytes(4)), PortId(0)
    made: list[FabricSwitch] = []
    for name in ("core-0", "core-2", "core-1", "mid", "a", "b", "c", "d"):
        ups = [
            other
            for one in made
            for other in [one.name]
            if (name, other) in TRUNKS or (other, name) in TRUNKS
        ]
        links = tuple(LinkUp(other, port, port) for other in ups)
        own = {"above": ups[0], "further": links[1:]} if ups else {}
        made.append(FabricSwitch(name, address, aggregates=name in CAPACITIES, **own))  # type: ignore[arg-type]
    return tuple(made)


def live(cap: Fraction = Fraction(100)) -> LiveTrees:
    return LiveTrees(topology(), ALL, cap)


@pytest.mark.parametrize("seed", seeds(25))
def test_jobs_that_come_and_go_have_trees_that_a_fabric_lays_within_what_is_free(seed: int) -> None:
    draw = Random(f"{seed}/live trees")
    trees = live(Fraction(draw.choice((1, 2, 5, 100))))
    switches = fabric()
    taken: dict[str, LiveTree] = {}
    for number in range(6):
        if taken and draw.random() < 0.3:
            del taken[draw.choice(sorted(taken))]
        hosts = sorted(draw.sample(range(len(SEATS)), draw.randint(2, 7)))
        names = [f"h{host}" for host in hosts]
        free = trees.free(taken.values())
        found = trees.planned(names, free)
        if isinstance(found, Infeasible):
            assert found.reason in (NO_ROOT, OUT_OF_ORDER)
            continue
        seats = [SEATS[host] for host in hosts]
        assert fault_of(switches, found.tree, seats) == ""
        root = tree_of(switches, seats, found.tree)
        assert root.ranks == tuple(range(len(hosts)))
        assert {one.name for one in root.walk() if one.aggregates} == set(found.adders) == set(found.loads)
        assert trees.of(found.tree, names, free) == found, "its rate, loads and links follow from the tree"
        for name, held in found.held.items():
            assert held <= (free[name] or 0)
        taken[str(number)] = found
        left = trees.free(taken.values())
        assert all(left[name] == (free[name] or 0) - found.held.get(name, 0) for name in free)


def test_a_switch_without_room_only_passes_on() -> None:
    trees = live(Fraction(2))
    hosts = ["h0", "h1", "h2"]
    first = trees.planned(hosts, trees.free([]))
    assert isinstance(first, LiveTree)
    assert (first.tree, first.rate, first.links) == (FabricTree("a"), Fraction(2), 3)
    second = trees.planned(hosts, trees.free([first]))
    assert isinstance(second, LiveTree)
    assert (second.tree, second.rate) == (FabricTree("core-0", (("a", "core-0"),), ("a",)), Fraction(2))


def test_what_has_no_tree_is_told_with_the_witness() -> None:
    trees = live()
    nothing = dict.fromkeys(ALL, Fraction(0))
    assert trees.planned(["h0", "h1"], nothing) == Infeasible(NO_ROOT, {"switches": 5, "with capacity": 0})
    assert trees.planned(["h0", "x"], trees.free([])) == Infeasible(STRANGE, {"hosts": 2, "known": 1})
    torn = LiveTrees(topology(h0="b"), ALL, Fraction(1))
    assert torn.planned(["h0", "h1"], torn.free([])) == Infeasible(SEVERAL_HOMES, {"host": "h0"})
    only = {**nothing, "a": Fraction(6), "core-0": Fraction(10)}
    found = trees.planned(["h0", "h5", "h1"], only)
    assert isinstance(found, LiveTree)
    assert found.tree.root == "a", "at core-0 a would add h0 and h1 first"
    assert trees.planned(["h0", "h5", "h1"], only, root="core-2") == Infeasible(
        NO_ROOT, {"switches": 5, "with capacity": 2}
    )


KNOWN = FabricTrees(topology(), share_max=2)
HOSTS = {"one": ("h0", "h1", "h2"), "two": ("h0", "h1", "h2"), "three": ("h0", "h1", "h2")}


def planned(plans: TreePlans, jobs: tuple[str, ...], **but: Any) -> TreePlan:
    given: dict[str, Any] = {
        "had": {},
        "held": frozenset(),
        "roots": {},
        "steps": {},
        "pins": {},
        "away": frozenset(),
        "barred": {},
    }
    states = {job: TreeState(job, HOSTS[job], 1, "parked") for job in jobs}
    return plans.plan(states, **(given | but))


def roots(plan: TreePlan) -> dict[str, str | None]:
    return {job: None if found is None else found.tree.root for job, found in plan.trees.items()}


def plans() -> TreePlans:
    return TreePlans(KNOWN, planned=PlannedOptions(KNOWN, live(Fraction(2))))


def test_jobs_are_planned_on_what_those_before_left_and_keep_their_trees() -> None:
    told = plans()
    first = planned(told, ("two",))
    assert roots(first) == {"two": "a"}
    had = {job: found.tree for job, found in first.trees.items() if found is not None}
    both = planned(told, ("one", "two"), had=had)
    assert roots(both) == {"one": "core-0", "two": "a"}, "though one comes first by name"
    assert both.trees["one"] is not None
    assert both.trees["one"].option.switches == ("core-0",), "a passes on, and lends no slot for that"
    assert told.planned is not None
    assert told.planned.document("two")["rate_gbit_s"] == "2"


def test_a_switch_that_is_away_and_a_tree_that_was_refused_are_planned_around() -> None:
    told = plans()
    assert roots(planned(told, ("one",), away=frozenset({"a"}))) == {"one": "core-0"}
    barred = {"one": frozenset({FabricTree("a")})}
    assert roots(planned(told, ("one",), had={"one": FabricTree("a")}, barred=barred)) == {"one": "core-0"}


def test_who_wants_a_root_has_the_best_tree_there() -> None:
    told = plans()
    assert roots(planned(told, ("one",), pins={"one": "core-2"})) == {"one": "core-2"}
    assert roots(planned(told, ("one",), pins={"one": "mid"})) == {"one": "a"}, "which adds nothing up"


def test_where_paring_has_no_tree_the_nearest_roots_are_taken_and_the_reason_is_told() -> None:
    nobody = TreePlans(KNOWN, planned=PlannedOptions(KNOWN, LiveTrees(topology(), {}, Fraction(1))))
    assert roots(planned(nobody, ("one",))) == {"one": "a"}
    assert nobody.planned is not None
    assert nobody.planned.document("one") == {
        "by": "roots",
        "reason": f"{NO_ROOT} (switches: 0, with capacity: 0)",
    }
