"""Places in SHARP as the plan gives and takes them: a tree is released before another is asked for.

The paper's rule is MINA, section IV-A, for switches that no daemon of ours speaks for: what is known of them
is what the hosts of a job say of their places.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from inaproto_controller.cluster.desired import Change, Give, Grant, GrantKind, JobState, SetJob, applied
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.cluster.reserved import UFM
from inaproto_controller.planning.cluster_planner import Resource
from inaproto_controller.service.observed import Agent, Hold, Observed, Phase, Presence
from inaproto_controller.service.plan import plan
from inaproto_controller.service.sharp.moves import Wished, who_moves
from inaproto_controller.service.sharp.places import MOVES_MAX, PlaceMove, Places, Standing
from inaproto_controller.service.store.opening import open_store
from tests.controller.planned_cluster import PlannedCluster, racks
from tests.controller.test_controller_plan import set_phase
from tests.controller.test_reservation_plan import ReservedCluster
from tests.seeds import seeds


def spread(spines: int = 3, hosts: int = 4) -> GraphTopology:
    """Two racks, in which a leaf sums for some jobs and a spine for one."""
    names = tuple(f"h{number}" for number in range(hosts))
    switches = [GraphSwitch(f"leaf{rack}", 4, sharp=True) for rack in range(2)]
    switches += [GraphSwitch(f"spine{number}", 1, sharp=True) for number in range(spines)]
    links = [GraphLink(host, hosts + host % 2) for host in range(hosts)]
    links += [GraphLink(hosts + rack, hosts + 2 + spine) for rack in range(2) for spine in range(spines)]
    return GraphTopology(names, tuple(switches), tuple(links))


def sharing(spines: int = 3, jobs: int = 2) -> tuple[PlannedCluster, list[int]]:
    """Jobs of two hosts each, in different racks, with a spine each."""
    cluster = PlannedCluster(spread(spines), 0)
    numbers = [cluster.submit(2) for _ in range(jobs)]
    cluster.settle()
    return cluster, numbers


def root(cluster: PlannedCluster, number: int) -> str:
    tree = cluster.desired.jobs[number].tree
    return "" if tree is None else tree.root


def places(cluster: PlannedCluster, number: int, *, released: bool = False) -> dict[str, Grant]:
    """Places of a job, by host."""
    return {
        one.agent: one
        for one in cluster.desired.grants.values()
        if (one.job, one.kind) == (number, GrantKind.PLACE) and (one.released is not None) is released
    }


def hear(cluster: PlannedCluster, *hosts: str, gives_up: bool = True) -> None:
    """These hear their wishes, follow them, and report."""
    for name in hosts:
        agent = cluster.agents[name]
        agent.take(cluster.wishes(name))
        if gives_up:
            agent.give_up()
        cluster.observed[name] = agent.report()


# --- who gets a tree, and places


def test_no_agent_is_asked_for_at_a_switch_of_sharp() -> None:
    cluster = PlannedCluster(racks(sharp=True), 0)
    number = cluster.submit(4)
    cluster.settle()
    assert set(cluster.agents) == {"h0", "h1", "h2", "h3"}
    assert root(cluster, number).startswith("spine")
    assert set(places(cluster, number)) == {"h0", "h1", "h2", "h3"}
    assert all(one.slots == () for one in places(cluster, number).values())


def test_a_switch_of_sharp_is_never_lost() -> None:
    cluster = PlannedCluster(racks(sharp=True), 0)
    number = cluster.submit(4)
    cluster.settle()
    cluster.observed[root(cluster, number)] = Agent(Presence.GONE)
    assert cluster.look() == ()


def test_a_tree_of_other_switches_has_no_places() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(4)
    cluster.settle()
    assert cluster.desired.jobs[number].tree is not None
    assert places(cluster, number) == {}


def test_who_has_a_host_without_a_collective_library_gets_no_tree_there() -> None:
    cluster = PlannedCluster(racks(sharp=True), 0)
    cluster.agents["h3"].has_collective = False
    number = cluster.submit(4)
    cluster.settle()
    assert cluster.desired.jobs[number].state is JobState.PLACED
    assert (root(cluster, number), places(cluster, number)) == ("", {})
    cluster.agents["h3"].has_collective = True
    cluster.settle()
    assert len(places(cluster, number)) == 4


def test_a_tree_is_not_given_while_a_host_does_not_report() -> None:
    cluster = PlannedCluster(racks(sharp=True), 0)
    cluster.agents["h3"].has_collective = False
    number = cluster.submit(4)
    cluster.settle()
    cluster.observed["h3"] = Agent(Presence.UNKNOWN, has_collective=True)
    assert cluster.look() == ()
    cluster.observed["h3"] = replace(cluster.agents["h3"].report(), has_collective=True)
    cluster.look()
    assert root(cluster, number)


def test_a_host_that_comes_back_without_its_library_costs_the_job_its_tree() -> None:
    cluster = PlannedCluster(racks(sharp=True), 0)
    number = cluster.submit(4)
    cluster.settle()
    agent = cluster.agents["h0"]
    agent.applied, agent.holds, agent.has_collective = 0, {}, False
    cluster.settle()
    assert cluster.desired.jobs[number].state is JobState.PLACED
    assert (root(cluster, number), places(cluster, number)) == ("", {})


def test_a_host_that_was_started_anew_is_told_of_its_place_again() -> None:
    cluster = PlannedCluster(racks(sharp=True), 0)
    number = cluster.submit(4)
    cluster.settle()
    before = places(cluster, number)
    agent = cluster.agents["h0"]
    agent.applied, agent.holds = 0, {}
    cluster.settle()
    assert places(cluster, number) == before
    assert before["h0"].number in agent.holds


def test_a_place_that_is_missing_is_given() -> None:
    """Whatever the store has: the plan looks at all of it."""
    cluster = PlannedCluster(racks(sharp=True), 0)
    number = cluster.submit(4)
    cluster.settle()
    lost = places(cluster, number)["h2"].number
    left = {key: one for key, one in cluster.desired.grants.items() if key != lost}
    cluster.desired = replace(cluster.desired, grants=left)
    cluster.look()
    assert set(places(cluster, number)) == {"h0", "h1", "h2", "h3"}
    assert cluster.look() == ()


# --- with UFM


def test_places_follow_a_reservation_that_stands() -> None:
    """Of others UFM refuses the jobs."""
    cluster = ReservedCluster(racks(sharp=True), 0, by_app=False)
    number = cluster.submit(4)
    for name in cluster.agents:
        cluster.observed[name] = cluster.agents[name].report()
    for phase, expected in ((None, 0), (Phase.HELD, 0), (Phase.RUNNING, 4)):
        reserved = [g.number for g in cluster.desired.grants.values() if g.kind is GrantKind.RESERVATION]
        holds = {} if phase is None else {one: Hold(phase) for one in reserved}
        for _ in range(2):
            observed = Observed({**cluster.observed, UFM: Agent(Presence.UP, 0, holds)})
            cluster.commit(plan(cluster.desired, observed, cluster.planner, pool=cluster.pool))
        assert root(cluster, number)
        assert len(places(cluster, number)) == expected


def test_a_move_keeps_the_reservation() -> None:
    cluster = ReservedCluster(racks(sharp=True), 0, by_app=False)
    number = cluster.submit(4)
    cluster.settle()
    before = dict(cluster.ufm)
    other = {"spine0": "spine1", "spine1": "spine0"}[root(cluster, number)]
    cluster.wish(number, other)
    cluster.is_reliable = True
    cluster.look()
    assert cluster.ufm == before
    cluster.settle()
    assert (root(cluster, number), cluster.ufm) == (other, before)
    assert len(places(cluster, number)) == 4


# --- release before acquire


def test_a_tree_is_released_before_another_is_asked_for() -> None:
    """MINA, section IV-A: no host of the job has the new place while any has the old one."""
    cluster, (number,) = sharing(jobs=1)
    first = root(cluster, number)
    old = places(cluster, number)
    hosts = sorted(old)
    other = next(name for name in ("spine0", "spine1", "spine2") if name != first)
    cluster.wish(number, other)
    cluster.look()
    assert root(cluster, number) == ""
    assert set(places(cluster, number, released=True)) == set(hosts)
    hear(cluster, hosts[0])
    cluster.look()
    assert root(cluster, number) == ""
    assert places(cluster, number) == {}
    hear(cluster, hosts[1], gives_up=False)
    cluster.look()
    assert root(cluster, number) == "", "it has heard, and is still attached"
    hear(cluster, hosts[1])
    cluster.look()
    assert root(cluster, number) == other
    assert set(places(cluster, number)) == set(hosts)
    assert not {one.number for one in places(cluster, number).values()} & {one.number for one in old.values()}


def test_slots_of_sharp_are_taken_until_the_last_host_gives_its_place_back() -> None:
    cluster = PlannedCluster(racks(sharp=True), 0)
    first = cluster.submit(4)
    cluster.settle()
    tree = cluster.slots(first)
    cluster.cancel(first)
    cluster.look()
    hear(cluster, "h0", "h1", "h2")
    cluster.look()
    assert {one.agent for one in places(cluster, first, released=True).values()} == {"h3"}
    assert tree <= set(cluster.desired.taken())
    hear(cluster, "h3", gives_up=False)
    cluster.look()
    assert tree <= set(cluster.desired.taken())
    hear(cluster, "h3")
    cluster.look()
    assert cluster.desired.grants == {}


def test_slots_that_a_lost_host_may_use_are_not_given_away() -> None:
    cluster = PlannedCluster(racks(hosts=4, sharp=True), 0)
    first = cluster.submit(8)
    cluster.settle()
    tree = cluster.slots(first)
    set_phase(cluster, first, Phase.RUNNING)
    cluster.settle()
    cluster.agents["h0"].is_up = False
    cluster.observed["h0"] = Agent(Presence.GONE)
    second = cluster.submit(7)
    cluster.look()
    hear(cluster, *(f"h{number}" for number in range(1, 8)))
    cluster.look()
    assert cluster.desired.jobs[first].state is JobState.FAILED
    assert cluster.desired.jobs[second].state is JobState.PLACED
    assert root(cluster, second) == ""
    assert tree <= set(cluster.desired.taken())
    cluster.settle()
    assert root(cluster, second)


# --- wishes


def test_two_jobs_swap_their_trees() -> None:
    cluster, (one, other) = sharing(spines=2)
    roots = root(cluster, one), root(cluster, other)
    cluster.wish(one, roots[1])
    cluster.look()
    assert root(cluster, one) == roots[0], "the other one stays"
    cluster.wish(other, roots[0])
    cluster.settle()
    assert (root(cluster, one), root(cluster, other)) == roots[::-1]


def test_who_swaps_waits_for_the_other_though_there_is_a_third() -> None:
    cluster, (one, other) = sharing()
    roots = root(cluster, one), root(cluster, other)
    cluster.wish(one, roots[1])
    cluster.wish(other, roots[0])
    cluster.look()
    late = cluster.submit(2)
    hear(cluster, *cluster.desired.jobs[one].hosts)
    cluster.look()
    assert (root(cluster, one), root(cluster, other)) == ("", "")
    hear(cluster, *cluster.desired.jobs[other].hosts)
    cluster.look()
    assert (root(cluster, one), root(cluster, other)) == roots[::-1]
    assert root(cluster, late) == ""


def test_a_tree_without_places_is_another_at_once() -> None:
    """Its reservation has never stood, so nobody was attached."""
    cluster = ReservedCluster(racks(sharp=True), 0, by_app=False)
    number = cluster.submit(4)
    observed = Observed({name: agent.report() for name, agent in cluster.agents.items()})
    cluster.commit(plan(cluster.desired, observed, cluster.planner, pool=cluster.pool))
    other = {"spine0": "spine1", "spine1": "spine0"}[root(cluster, number)]
    cluster.wish(number, other)
    cluster.commit(plan(cluster.desired, observed, cluster.planner, pool=cluster.pool))
    assert root(cluster, number) == other
    assert plan(cluster.desired, observed, cluster.planner, pool=cluster.pool) == ()


def test_three_jobs_go_round() -> None:
    cluster = PlannedCluster(spread(hosts=6), 0)
    numbers = [cluster.submit(2) for _ in range(3)]
    cluster.settle()
    before = [root(cluster, number) for number in numbers]
    assert len(set(before)) == 3
    wished = [*before[1:], before[0]]
    for number, name in zip(numbers, wished, strict=True):
        cluster.wish(number, name)
    cluster.settle()
    assert [root(cluster, number) for number in numbers] == wished


def test_who_wishes_for_what_is_taken_keeps_what_he_has() -> None:
    cluster, (one, other) = sharing()
    before = root(cluster, one)
    cluster.wish(one, root(cluster, other))
    assert cluster.look() == ()
    assert root(cluster, one) == before
    cluster.cancel(other)
    cluster.settle()
    assert root(cluster, one) == cluster.desired.jobs[one].root


def test_a_wish_for_what_no_tree_of_the_job_has_changes_nothing() -> None:
    cluster, (number, _) = sharing()
    before = root(cluster, number)
    cluster.wish(number, "h0")
    assert cluster.look() == ()
    assert root(cluster, number) == before


def test_nobody_moves_whose_host_does_not_report() -> None:
    cluster, (number,) = sharing(jobs=1)
    other = next(name for name in ("spine0", "spine1") if name != root(cluster, number))
    cluster.observed["h0"] = Agent(Presence.UNKNOWN)
    cluster.wish(number, other)
    assert cluster.look() == ()


def test_a_job_that_waits_for_its_wish_gets_no_other_tree_and_nobody_gets_its_own() -> None:
    """Its old place is still held at a host, and what it wishes will be free."""
    cluster, (number,) = sharing(spines=2, jobs=1)
    first = root(cluster, number)
    other = {"spine0": "spine1", "spine1": "spine0"}[first]
    cluster.wish(number, other)
    cluster.look()
    late = cluster.submit(2)
    cluster.look()
    assert (root(cluster, number), root(cluster, late)) == ("", ""), "one is taken, the other is wished"
    cluster.settle()
    assert (root(cluster, number), root(cluster, late)) == (other, first)


def test_nobody_waits_with_a_job_for_a_host_that_is_lost() -> None:
    """The job was placed again, elsewhere; what is left of its old tree may be for ever."""
    cluster = PlannedCluster(spread(spines=2, hosts=6), 0)
    number = cluster.submit(2)
    cluster.settle()
    other = {"spine0": "spine1", "spine1": "spine0"}[root(cluster, number)]
    cluster.wish(number, other)
    (lost, _) = cluster.desired.jobs[number].hosts
    cluster.observed[lost] = Agent(Presence.GONE)
    cluster.look()
    late = cluster.submit(2)
    cluster.look()
    assert root(cluster, number) == ""
    assert lost not in cluster.desired.jobs[number].hosts
    assert root(cluster, late) == other


def test_nobody_waits_for_the_tree_of_another_whose_host_is_lost() -> None:
    """Two swap; a host of the one is lost before it has said that it has given its place back."""
    cluster, (one, other) = sharing()
    roots = root(cluster, one), root(cluster, other)
    (third,) = {"spine0", "spine1", "spine2"} - set(roots)
    for number in (one, other):
        set_phase(cluster, number, Phase.RUNNING)
    cluster.settle()
    cluster.wish(one, roots[1])
    cluster.wish(other, roots[0])
    cluster.look()
    lost, left = cluster.desired.jobs[other].hosts
    tree = cluster.slots(other)
    cluster.agents[lost].is_up = False
    cluster.observed[lost] = Agent(Presence.GONE)
    for _ in range(3):
        hear(cluster, *cluster.desired.jobs[one].hosts, left)
        cluster.look()
    assert cluster.desired.jobs[other].state is JobState.FAILED
    assert root(cluster, one) in (roots[0], third), "what is wished may be for ever"
    assert tree <= set(cluster.desired.taken())
    cluster.settle()
    assert root(cluster, one) == roots[1]


def test_a_job_takes_what_there_is_if_its_wish_has_no_room() -> None:
    cluster, (one, other) = sharing()
    taken = root(cluster, other)
    third = next(name for name in ("spine0", "spine1", "spine2") if name not in (root(cluster, one), taken))
    cluster.cancel(one)
    cluster.settle()
    late = cluster.submit(2)
    cluster.wish(late, taken)
    cluster.settle()
    assert root(cluster, late) not in ("", taken)
    cluster.wish(late, third)
    cluster.settle()
    assert root(cluster, late) == third


def test_a_wish_is_kept_over_a_restart(tmp_path: Path) -> None:
    """Of the controller: it goes on from the store in the middle of a move."""
    cluster, (number,) = sharing(jobs=1)
    other = next(name for name in ("spine0", "spine1") if name != root(cluster, number))
    before = cluster.desired
    cluster.wish(number, other)
    store = open_store(str(tmp_path / "store"))
    assert store.lead() is not None
    empty = store.load()
    given = sorted(before.grants.items())
    changes: list[Change] = [SetJob(cluster.desired.jobs[number]), *(Give(grant) for _, grant in given)]
    store.commit(changes, applied(empty, changes))
    store.resign()
    assert store.lead() is not None
    found = store.load()
    store.resign()
    assert found.jobs[number].root == other
    assert found.grants == before.grants
    cluster.look()
    cluster.edit()  # nothing in memory is left
    cluster.settle()
    assert root(cluster, number) == other


# --- who moves, by itself


A, B, C, D = (Resource(name, "") for name in "abcd")


@pytest.mark.parametrize(
    ("room", "wished", "moving"),
    [
        ({A: 0, B: 1}, {1: ([A], [B])}, {1}),
        ({A: 0, B: 0}, {1: ([A], [B])}, set()),
        ({A: 0, B: 0}, {1: ([A], [B]), 2: ([B], [A])}, {1, 2}),
        ({A: 0, B: 0, C: 0}, {1: ([A], [B]), 2: ([B], [C]), 3: ([C], [A])}, {1, 2, 3}),
        ({A: 0, B: 0, C: 0}, {1: ([A], [B]), 2: ([B], [C])}, set()),
        ({A: 0, B: 0, C: 1}, {1: ([A], [C]), 2: ([B], [C])}, {1}),
        ({A: 0, B: 0, C: 1}, {1: ([A], [B]), 2: ([B], [C])}, {1, 2}),
        ({A: 0, B: 0, C: 1, D: 0}, {1: ([A], [D]), 2: ([B], [C])}, {2}),
        ({A: 0, B: 0, C: 0}, {1: ([A, C], [B, C]), 2: ([B], [A])}, {1, 2}),
        ({A: 0, B: -1}, {1: ([A], [B])}, set()),
    ],
)
def test_who_moves_is_who_comes_to_what_he_wishes(
    room: dict[Resource, int], wished: dict[int, tuple[list[Resource], list[Resource]]], moving: set[int]
) -> None:
    assert who_moves(room, {number: Wished(*both) for number, both in wished.items()}) == moving


# --- how long it took


def test_a_move_is_timed_from_commit_to_commit_and_until_all_are_attached() -> None:
    cluster, (number,) = sharing(jobs=1)
    hosts = sorted(places(cluster, number))
    seen = Places(cluster.planner.sharp)

    def look(now: float) -> list[PlaceMove]:
        cluster.look()
        return seen.heed(cluster.desired, Observed(dict(cluster.observed)), now)

    def attach(host: str) -> None:
        agent = cluster.agents[host]
        agent.take(cluster.wishes(host))
        agent.holds = {
            one: (grant, Hold(Phase.RUNNING if grant.kind is GrantKind.PLACE else hold.phase))
            for one, (grant, hold) in agent.holds.items()
        }
        cluster.observed[host] = agent.report()

    assert look(0.0) == []
    old = root(cluster, number)
    assert seen.standings[number] == Standing(2, 2, 0, old, "")
    other = next(name for name in ("spine0", "spine1") if name != old)
    cluster.wish(number, other)
    assert look(10.0) == []
    assert seen.standings[number] == Standing(2, 0, 0, "", other)
    hear(cluster, hosts[0])
    assert look(11.0) == []
    hear(cluster, hosts[1])
    assert look(12.5) == []
    attach(hosts[0])
    assert look(13.0) == []
    assert not seen.stands_at(number, other)
    attach(hosts[1])
    move = PlaceMove(f"job{number}", old, other, 2.5, 2.0, 4.5)
    assert look(14.5) == [move]
    assert seen.stands_at(number, other)
    assert seen.last_move(move.job) == asdict(move)
    assert look(15.0) == []
    status = seen.status(cluster.desired)
    assert status is not None
    assert (status["under_way"], status["moves"]) == ([], [asdict(move)])
    assert status["jobs"] == {move.job: asdict(Standing(2, 2, 2, other, other))}


def test_the_last_hundred_moves_are_remembered_and_none_of_who_led_before() -> None:
    cluster, (number,) = sharing(jobs=1)
    seen = Places(cluster.planner.sharp)
    for now in range(2 * MOVES_MAX + 20):
        for agent in cluster.agents.values():
            agent.holds = {one: (grant, Hold(Phase.RUNNING)) for one, (grant, _) in agent.holds.items()}
        observed = Observed({name: agent.report() for name, agent in cluster.agents.items()})
        seen.heed(cluster.desired, observed, float(now))
        cluster.wish(number, "spine0" if root(cluster, number) == "spine1" else "spine1")
        cluster.settle()
    assert len(seen.moves) == MOVES_MAX
    cluster.wish(number, "spine2")
    cluster.look()
    seen.heed(cluster.desired, Observed(), 1e4)
    status = seen.status(cluster.desired)
    assert status is not None
    assert status["under_way"] == [f"job{number}"]
    seen.lead()
    status = seen.status(cluster.desired)
    assert status is not None
    assert (status["under_way"], status["jobs"]) == ([], {})


# --- whatever comes late


TOPOLOGIES = (
    racks(hosts=2, sharp=True),
    racks(hosts=2, jobs=None, per_port=1, sharp=True),
    spread(hosts=6),
    racks(racks=3, hosts=2, jobs=None, per_port=1, sharp=True, spines=3),
)


@pytest.mark.parametrize("seed", range(64))
def test_no_two_jobs_are_attached_where_their_trees_meet_whatever_is_lost(seed: int) -> None:
    cluster = PlannedCluster(TOPOLOGIES[seed % 4], seed)
    for _ in range(4):
        for _ in range(400):
            cluster.walk()
            cluster.check()
        cluster.settle()
        for job in cluster.desired.live():
            having = set() if job.tree is None else set(job.hosts)
            assert set(places(cluster, job.number)) == having
    for job in cluster.desired.live():
        cluster.cancel(job.number)
    cluster.settle()
    assert cluster.desired.grants == {}
    assert cluster.trees, "no place was given"


@pytest.mark.parametrize("seed", range(24))
def test_jobs_that_live_long_move_again_and_again_whatever_comes_late(seed: int) -> None:
    cluster = PlannedCluster(spread(spines=4 + seed % 2, hosts=6), seed)
    numbers = [cluster.submit(2) for _ in range(3)]
    cluster.settle()
    steps = [cluster._wish, *[cluster._send, cluster._deliver, cluster._report, cluster.look] * 10]
    for _ in range(2000):
        cluster.random.choice(steps)()
        if cluster.random.random() < 0.002:
            cluster._crash()
        cluster.check()
    assert len(cluster.trees) >= 6 + 2 * 2, "fewer than two trees were given anew"
    cluster.settle()
    assert all(root(cluster, number) for number in numbers)


@pytest.mark.parametrize("seed", range(64))
def test_a_second_look_at_the_same_changes_nothing_in_sharp(seed: int) -> None:
    cluster = PlannedCluster(TOPOLOGIES[seed % 4], seed)
    if seed % 4 == 2:
        for _ in range(3):
            cluster.submit(2)
        cluster.settle()
    for _ in range(400):
        cluster._wish() if cluster.random.random() < 0.1 else cluster.walk()
        cluster.look()
        assert cluster.look() == ()


@pytest.mark.parametrize("seed", seeds(16))
def test_reservations_and_places_end_together_whatever_is_lost(seed: int) -> None:
    cluster = ReservedCluster(racks(hosts=2, sharp=True), seed, by_app=bool(seed % 2))
    for _ in range(4):
        for _ in range(100):
            cluster.walk()
            cluster.check()
        cluster.settle()
    for job in cluster.desired.live():
        cluster.cancel(job.number)
    cluster.settle()
    assert (cluster.ufm, cluster.double, cluster.desired.grants) == ({}, [], {})
