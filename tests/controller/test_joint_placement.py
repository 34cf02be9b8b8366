"""Hosts and trees of jobs that are chosen together (PARING section III), as a controller plans them."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations
from random import Random
from typing import Any

import pytest

from inaproto.errors import Infeasible
from inaproto.wire.messages.trees import FabricTree, TreeState
from inaproto_controller.cluster.desired import GrantKind, Job, JobState, Route
from inaproto_controller.cluster.graph_file import parse_json
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.fabric_trees import FabricTrees
from inaproto_controller.planning.paring.live_placement import JointPlacement
from inaproto_controller.planning.paring.live_tree import LivePlace, LiveTree
from inaproto_controller.planning.paring.live_trees import FEW_IDLE, NO_ROOT, LiveTrees
from inaproto_controller.planning.planned_options import PlannedOptions
from inaproto_controller.service.observed import Agent, Presence
from inaproto_controller.service.plan import BEHIND, without_trees
from inaproto_controller.service.trees.plans import TreePlans
from tests.controller.planned_cluster import PlannedCluster, racks
from tests.seeds import seeds

CAP = Fraction(4)


def drawn(draw: Random, *, switches: int, hosts: int, more: int) -> LiveTrees:
    """A network without order, of which most switches add up; ``more``: links besides those of a tree."""
    names = [f"s{number}" for number in range(switches)]
    links = {(names[number], names[draw.randrange(number)]) for number in range(1, switches)}
    for _ in range(more):
        one, other = sorted(draw.sample(range(switches), 2))
        links.add((names[other], names[one]))
    ends = [*sorted(links), *((f"h{host}", draw.choice(names)) for host in range(hosts))]
    document = {
        "hosts": [f"h{host}" for host in range(hosts)],
        "switches": [{"name": name, "jobs": 1} for name in names],
        "links": [{"between": list(pair)} for pair in ends],
    }
    capacities = {name: Fraction(draw.choice((4, 6, 8, 10, 20))) for name in names if draw.random() < 0.8}
    return LiveTrees(parse_json(json.dumps(document).encode()), capacities, CAP)


def names(live: LiveTrees) -> tuple[str, ...]:
    return live.topology.host_names


@pytest.mark.parametrize("seed", seeds(12))
def test_section_3_what_is_chosen_together_is_never_worse_than_hosts_first_and_then_their_tree(
    seed: int,
) -> None:
    draw = Random(f"{seed}/joint placement")
    live = drawn(draw, switches=6, hosts=10, more=3)
    idle, taken = list(names(live)), list[LiveTree]()
    while len(idle) >= 2:
        count = draw.randint(2, min(4, len(idle)))
        first = sorted(draw.sample(idle, count))
        free = live.free(taken)
        found, after = live.placed(count, idle, free, first), live.planned(first, free)
        if isinstance(found, Infeasible):
            assert found.reason == NO_ROOT
            assert isinstance(after, Infeasible)
            break
        assert isinstance(after, Infeasible) or found.tree.worth >= after.worth
        assert len(set(found.hosts)) == count
        assert set(found.hosts) <= set(idle)
        assert live.of(found.tree.tree, found.hosts, free) == found.tree, "all of it follows from the tree"
        assert live.again(found.tree.tree, found.hosts, found.tree.rate) == found.tree
        for name, held in found.tree.held.items():
            assert held <= (free[name] or 0)
        taken.append(found.tree)
        idle = [host for host in idle if host not in found.hosts]
    for name, capacity in live.capacities.items():
        assert capacity is not None
        assert sum(tree.held.get(name, 0) for tree in taken) <= capacity


def test_ranks_are_given_in_the_order_in_which_the_tree_adds() -> None:
    out_of_order = 0
    for seed in range(12):
        live = drawn(Random(f"{seed}/order"), switches=6, hosts=8, more=3)
        idle, free = names(live), live.free([])
        found = live.placed(6, idle, free)
        if isinstance(found, LivePlace):
            again = live.planned(found.hosts, free, root=found.tree.tree.root)
            assert isinstance(again, LiveTree), again
            out_of_order += found.hosts != tuple(sorted(found.hosts))
    assert out_of_order, "the cluster file's order would not have done"


def test_section_3_tiny_networks_by_brute_force() -> None:
    """All choices of hosts, each with its tree: none is better, and first fit is worse for most."""
    first_is_worse = 0
    for seed in range(12):
        draw = Random(f"{seed}/by force")
        live = drawn(draw, switches=4, hosts=5, more=2)
        count, free = draw.randint(2, 3), live.free([])
        some = [live.placed(count, chosen, free) for chosen in combinations(names(live), count)]
        best = max(one.tree.worth for one in some if isinstance(one, LivePlace))
        found = live.placed(count, names(live), free)
        assert isinstance(found, LivePlace)
        assert found.tree.worth == best
        first = live.placed(count, names(live)[:count], free)
        first_is_worse += isinstance(first, Infeasible) or first.tree.worth < best
    assert first_is_worse >= 6


def test_too_few_hosts_and_no_switch_are_told_with_the_witness() -> None:
    live = drawn(Random("0"), switches=4, hosts=6, more=2)
    assert live.placed(7, names(live), live.free([])) == Infeasible(FEW_IDLE, {"hosts": 7, "idle": 6})
    nothing = dict.fromkeys(live.capacities, Fraction(0))
    refusal = Infeasible(NO_ROOT, {"switches": len(nothing), "with capacity": 0})
    assert live.placed(2, names(live), nothing) == refusal


def test_a_switch_without_a_slot_left_adds_nothing_up() -> None:
    topology = racks(racks=2, hosts=2)
    live = LiveTrees(topology, dict.fromkeys(("leaf0", "leaf1"), Fraction(100)), CAP, slots={"leaf0": 1})
    first = live.placed(2, names(live), live.free([]), names(live)[:2])
    assert isinstance(first, LivePlace)
    assert first.tree.tree == FabricTree("leaf0")
    assert live.free([first.tree]) == {"leaf0": 0, "leaf1": 100}


# --- as the controller's plan has it


def leaves_add(topology: GraphTopology) -> JointPlacement:
    """At each leaf there is room for one job of two hosts at the full rate, and at no spine."""
    leaves = {one.name: 2 * CAP for one in topology.switches if one.name.startswith("leaf")}
    return JointPlacement(LiveTrees(topology, leaves, CAP))


def cluster(*, racks_of: int = 2, hosts: int) -> PlannedCluster:
    found = PlannedCluster(racks(racks=racks_of, hosts=hosts), 0, joint=leaves_add)
    found.settle()
    return found


def job_of(on: PlannedCluster, number: int) -> Job:
    on.settle()
    return on.desired.jobs[number]


def assert_within_capacities(on: PlannedCluster) -> None:
    joint = on.planner.joint
    assert joint is not None
    held: dict[str, Fraction] = {}
    for job in on.desired.live():
        tree = joint.tree(job)
        for name, rate in {} if tree is None else tree.held.items():
            held[name] = held.get(name, Fraction(0)) + rate
    assert all(rate <= 2 * CAP for rate in held.values()), held


def test_a_job_has_hosts_and_tree_of_one_plan_and_the_next_one_what_is_left() -> None:
    on = cluster(hosts=3)
    on.submit(1, on=("h0",))
    first, second, third = on.submit(2), on.submit(2), on.submit(1)
    jobs = [job_of(on, number) for number in (first, second, third)]
    assert [job.hosts for job in jobs] == [("h1", "h2"), ("h3", "h4"), ("h5",)]
    assert [job.route for job in jobs] == [
        Route(FabricTree("leaf0"), CAP),
        Route(FabricTree("leaf1"), CAP),
        None,
    ]
    assert jobs[0].tree is not None
    assert (jobs[0].tree.root, jobs[0].tree.switches) == ("leaf0", ("leaf0",))
    kinds = {grant.kind for grant in on.desired.grants.values()}
    assert kinds == {GrantKind.SEATS}, "its tree takes no slots of the cluster file's"


def test_where_there_is_no_tree_hosts_are_chosen_without_and_the_reason_is_told() -> None:
    on = cluster(racks_of=1, hosts=4)
    first, second = on.submit(2), on.submit(2)
    assert job_of(on, first).route == Route(FabricTree("leaf0"), CAP)
    other = job_of(on, second)
    assert other.state is JobState.PLACED
    assert other.hosts == ("h2", "h3")
    assert other.route is not None
    assert other.route.tree is None
    assert NO_ROOT in other.route.why
    assert without_trees(on.desired, on.seen, on.planner) == {second: other.route.why}
    on.cancel(first)
    third = on.submit(2)
    assert job_of(on, third).route == Route(FabricTree("leaf0"), CAP), "what the first had is free again"


def test_who_cannot_be_placed_holds_up_those_behind_and_who_names_hosts_only_itself() -> None:
    on = cluster(hosts=2)
    first = on.submit(2)
    named = on.submit(2, on=("h3", "h1"))
    big, behind = on.submit(4), on.submit(1)
    on.settle()
    jobs = on.desired.jobs
    assert jobs[first].hosts == ("h0", "h1")
    assert jobs[named].why == "waits for hosts that it names: h1 is taken"
    assert jobs[big].state is jobs[behind].state is JobState.QUEUED
    assert jobs[behind].why == BEHIND
    on.cancel(big)
    on.cancel(first)
    job = job_of(on, named)
    assert job.hosts == ("h3", "h1")
    assert job.route is not None
    assert job.route.rate > 0, "its hosts are given, and its tree is planned for them"


def test_a_switch_that_is_away_is_planned_around() -> None:
    on = cluster(hosts=2)
    on.observed["leaf0"] = Agent(Presence.GONE)
    number = on.submit(2)
    on.look()
    job = on.desired.jobs[number]
    assert job.hosts == ("h2", "h3")
    assert job.route == Route(FabricTree("leaf1"), CAP)


def test_a_job_whose_ring_is_to_come_has_another_tree_when_its_switch_is_lost() -> None:
    on = cluster(hosts=2)
    number = on.submit(2)
    assert job_of(on, number).route == Route(FabricTree("leaf0"), CAP)
    on.observed["leaf0"] = Agent(Presence.GONE)
    on.look()
    job = on.desired.jobs[number]
    assert job.hosts == ("h0", "h1")
    assert job.route is not None
    assert job.route.tree is not None
    assert job.route.tree.root == "leaf1", "its hosts stay"
    assert on.look() == ()
    on.observed["leaf1"] = Agent(Presence.GONE)
    on.look()
    job = on.desired.jobs[number]
    assert job.route is not None
    assert job.route.tree is None
    assert job.tree is None
    assert job.route.why.startswith("switch leaf1 is lost: ")
    assert on.look() == ()


def test_a_job_whose_host_is_lost_before_it_runs_is_placed_anew() -> None:
    on = cluster(hosts=2)
    number = on.submit(2)
    assert job_of(on, number).hosts == ("h0", "h1")
    on.observed["h1"] = Agent(Presence.GONE)
    on.look()
    job = on.desired.jobs[number]
    assert (job.state, job.hosts) == (JobState.PLACED, ("h2", "h3"))
    assert job.route == Route(FabricTree("leaf1"), CAP)


def test_a_job_has_the_tree_that_its_ring_has() -> None:
    on = cluster(hosts=2)
    number = on.submit(2)
    hosts = job_of(on, number).hosts
    joint = on.planner.joint
    assert joint is not None
    elsewhere = joint.planned(hosts, (), away={"leaf0"})
    assert isinstance(elsewhere, LiveTree)
    on.rings["job1"] = LivePlace(("h2", "h3"), elsewhere)
    on.look()
    assert on.desired.jobs[number].route == Route(FabricTree("leaf0"), CAP), "another job of that name"
    on.rings["job1"] = LivePlace(hosts, elsewhere)
    on.look()
    job = on.desired.jobs[number]
    assert job.route == Route(elsewhere.tree, elsewhere.rate)
    assert job.tree is not None
    assert job.tree.root == "leaf1"
    assert on.look() == ()


def test_another_rule_begins_and_ends_with_the_next_look() -> None:
    on = PlannedCluster(racks(racks=2, hosts=2), 0)
    on.settle()
    number = on.submit(2)
    assert job_of(on, number).tree is not None
    on.joint = leaves_add
    on.edit()
    job = job_of(on, number)
    assert (job.tree, job.route) == (None, None)
    assert {grant.kind for grant in on.desired.grants.values()} == {GrantKind.SEATS}
    other = on.submit(2)
    assert job_of(on, other).route is not None
    on.joint = lambda topology: None
    on.edit()
    jobs = [job_of(on, one) for one in (number, other)]
    assert [job.route for job in jobs] == [None, None]
    assert all(job.tree is not None for job in jobs)


@pytest.mark.parametrize("seed", seeds(8))
def test_capacities_are_kept_and_a_second_look_changes_nothing_whatever_is_lost(seed: int) -> None:
    on = PlannedCluster(racks(hosts=3), seed, joint=leaves_add)
    for _ in range(250):
        on.walk()
        on.check()
        on.look()
        assert on.look() == ()
        assert_within_capacities(on)
    for job in on.desired.live():
        assert job.route is None or (job.route.tree is None) == bool(job.route.why)
        assert job.hosts or job.route is None


# --- as the service of trees has it


TOPOLOGY = racks(racks=2, hosts=3)
KNOWN = FabricTrees(TOPOLOGY, share_max=4)
ONE = ("h0", "h1")


def given(plans: TreePlans, jobs: dict[str, tuple[str, ...]], **but: Any) -> dict[str, str | None]:
    empty: dict[str, Any] = {
        "had": {},
        "held": frozenset(),
        "roots": {},
        "steps": {},
        "pins": {},
        "away": frozenset(),
        "barred": {},
    }
    states = {job: TreeState(job, hosts, 1, "parked") for job, hosts in jobs.items()}
    found = plans.plan(states, **(empty | but)).trees
    return {job: None if one is None else one.tree.root for job, one in found.items()}


def promising() -> TreePlans:
    """The tree at leaf1 is promised to job ``one``, whose hosts are below leaf0."""
    live = LiveTrees(TOPOLOGY, {"leaf0": 3 * CAP, "leaf1": 2 * CAP}, CAP)
    options = PlannedOptions(KNOWN, live)
    promised = live.planned(ONE, live.free([], without={"leaf0"}))
    assert isinstance(promised, LiveTree)
    options.promised = {"one": LivePlace(ONE, promised)}
    return TreePlans(KNOWN, planned=options)


def test_a_ring_has_the_tree_that_was_planned_with_its_hosts() -> None:
    plans = promising()
    assert given(plans, {"one": ONE}) == {"one": "leaf1"}, "though leaf0 is nearer"
    assert plans.planned is not None
    assert plans.planned.rings() == plans.planned.promised
    assert given(promising(), {"one": ("h1", "h2")}) == {"one": "leaf0"}, "other hosts"


def test_what_is_promised_is_not_free_before_its_ring_is_there() -> None:
    plans = promising()
    assert given(plans, {"other": ("h3", "h4")}) == {"other": "leaf0"}, "leaf1 is promised, at the full rate"
    assert plans.planned is not None
    assert plans.planned.rings().keys() == {"other"}
    plans.planned.promised = {}
    assert given(plans, {"another": ("h3", "h4")}) == {"another": "leaf1"}


def test_what_was_promised_to_a_job_is_free_for_the_one_that_goes_on_without_a_lost_rank() -> None:
    plans = promising()
    assert given(plans, {"one~1": ("h3", "h4")}) == {"one~1": "leaf1"}
    assert given(plans, {"one": ONE, "one~1": ("h3", "h4")}) == {"one": "leaf1", "one~1": "leaf0"}


def test_a_promise_that_cannot_be_kept_is_planned_around() -> None:
    assert given(promising(), {"one": ONE}, away=frozenset({"leaf1"})) == {"one": "leaf0"}
    plans = promising()
    assert plans.planned is not None
    refused = {"one": frozenset({plans.planned.promised["one"].tree.tree})}
    assert given(plans, {"one": ONE}, barred=refused) == {"one": "leaf0"}
    assert given(promising(), {"one": ONE}, pins={"one": "leaf0"}) == {"one": "leaf0"}


def test_after_a_restart_a_ring_has_what_was_promised_to_it() -> None:
    plans = promising()
    assert plans.planned is not None
    promise = plans.planned.promised["one"]
    had = {"one": promise.tree.tree}
    assert given(plans, {"one": ONE}, had=had, held=frozenset({"one"})) == {"one": "leaf1"}
    assert plans.planned.rings() == {"one": promise}, "at its rate"
