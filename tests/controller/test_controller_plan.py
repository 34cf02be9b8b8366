"""plan.py: from what is promised and what is seen to what is to change."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from inaproto.errors import InvariantBroken
from inaproto_controller.cluster.desired import Desired, Free, Give, Grant, GrantKind, JobState, Slot, applied
from inaproto_controller.planning.placement.occupancy import fragments
from inaproto_controller.service.observed import Agent, Hold, Observed, Phase, Presence
from inaproto_controller.service.plan import BEHIND, plan, rests_on
from tests.controller.planned_cluster import PlannedCluster, racks


def settled(cluster: PlannedCluster) -> PlannedCluster:
    cluster.settle()
    return cluster


def states(cluster: PlannedCluster) -> list[JobState]:
    return [cluster.desired.jobs[number].state for number in sorted(cluster.desired.jobs)]


def set_phase(cluster: PlannedCluster, job: int, phase: Phase) -> None:
    for agent in cluster.agents.values():
        for number, (grant, _) in agent.holds.items():
            if grant.job == job and grant.kind is GrantKind.SEATS:
                agent.holds[number] = grant, Hold(phase)


@pytest.mark.parametrize("seed", range(40))
def test_no_slot_has_two_jobs_whatever_is_lost(seed: int) -> None:
    limits = [(1, None), (2, None), (None, 1), (None, 2)][seed % 4]
    cluster = PlannedCluster(racks(hosts=1 + seed % 2, jobs=limits[0], per_port=limits[1]), seed)
    for _ in range(1000):
        cluster.walk()
        cluster.check()
    cluster.settle()
    for job in cluster.desired.live():
        cluster.cancel(job.number)
    cluster.settle()
    assert cluster.desired.grants == {}
    assert all(agent.holds == {} for agent in cluster.agents.values())


@pytest.mark.parametrize("seed", range(40))
def test_a_second_look_at_the_same_changes_nothing(seed: int) -> None:
    cluster = PlannedCluster(racks(), seed)
    for _ in range(200):
        cluster.walk()
        cluster.look()
        assert cluster.look() == ()


@pytest.mark.parametrize("seed", range(40))
def test_what_is_settled_is_what_brute_force_finds(seed: int) -> None:
    """First in, first out; hosts of least fragments; no tree left that somebody without one could have."""
    cluster = PlannedCluster(racks(racks=2, hosts=3), seed)
    random = cluster.random
    free = set(range(6))
    for name in cluster.agents:
        cluster.observed[name] = Agent(Presence.UP)
    for _ in range(random.randint(1, 5)):
        number = cluster.submit(random.randint(1, 6))
        cluster.settle()
        job = cluster.desired.jobs[number]
        earlier = [one.state for one in cluster.desired.live() if one.number < number]
        if JobState.QUEUED in earlier:
            assert (job.state, job.why) == (JobState.QUEUED, BEHIND)
            continue
        assert (job.state is JobState.PLACED) == (job.spec.hosts <= len(free))
        if job.state is JobState.QUEUED:
            assert f"{len(free)} of 6 are free" in job.why
            continue
        chosen = {int(name[1:]) for name in job.hosts}
        assert chosen <= free
        assert _score(cluster, chosen, free) == min(
            _score(cluster, set(some), free) for some in combinations(sorted(free), job.spec.hosts)
        )
        free -= chosen
    _check_trees(cluster)


def _score(cluster: PlannedCluster, chosen: set[int], free: set[int]) -> float:
    def count(hosts: set[int]) -> int:
        members = np.zeros(6, np.bool_)
        members[sorted(hosts)] = True
        return fragments(cluster.planner.topology, members)

    return count(chosen) + 0.5 * count(free - chosen)


def _check_trees(cluster: PlannedCluster) -> None:
    held: dict[str, int] = {}
    for job in cluster.desired.live():
        for switch in () if job.tree is None else job.tree.switches:
            assert held.setdefault(switch, job.number) == job.number
    for job in cluster.desired.live():
        if job.state is JobState.PLACED and job.spec.hosts > 1 and job.tree is None:
            for tree in cluster.planner.candidates(job.number):
                assert any(switch in held for switch in tree.switches)


def test_a_job_that_names_its_hosts_gets_these_in_its_order() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(2, on=("h3", "h1"))
    job = settled(cluster).desired.jobs[number]
    assert (job.state, job.hosts) == (JobState.PLACED, ("h3", "h1"))


def test_who_names_taken_hosts_holds_up_only_those() -> None:
    cluster = PlannedCluster(racks(), 0)
    first = cluster.submit(1, on=("h1",))
    waiting = cluster.submit(2, on=("h1", "h2"))
    behind = cluster.submit(1, on=("h2",))
    beside = cluster.submit(1, on=("h0",))
    anywhere = cluster.submit(1)
    jobs = settled(cluster).desired.jobs
    assert jobs[waiting].why == "waits for hosts that it names: h1 is taken"
    assert jobs[behind].why == "waits for hosts that it names: h2 is taken"
    assert (jobs[beside].hosts, jobs[anywhere].hosts) == (("h0",), ("h3",))
    cluster.cancel(first)
    jobs = settled(cluster).desired.jobs
    assert jobs[waiting].hosts == ("h1", "h2")
    assert jobs[behind].why == "waits for hosts that it names: h2 is taken"
    cluster.cancel(waiting)
    assert settled(cluster).desired.jobs[behind].hosts == ("h2",)


def test_who_names_hosts_waits_behind_a_job_that_takes_any() -> None:
    cluster = PlannedCluster(racks(), 0)
    cluster.submit(1, on=("h0",))
    cluster.submit(4)
    named = cluster.submit(1, on=("h1",))
    job = settled(cluster).desired.jobs[named]
    assert (job.state, job.why) == (JobState.QUEUED, BEHIND)


def test_a_named_host_that_is_away_or_gone_is_said() -> None:
    cluster = PlannedCluster(racks(), 0)
    cluster.observed["h0"] = Agent(Presence.UP)
    number = cluster.submit(3, on=("h0", "h1", "h9"))
    cluster.look()
    assert cluster.desired.jobs[number].why == (
        "waits for hosts that it names: h1 does not report, h9, which the cluster file has no more"
    )


def test_a_host_is_taken_out_by_a_job_that_names_it() -> None:
    """docs/operating.md, "A controller": it waits for who is there, and has the host before all others,
    also when that was away."""
    cluster = PlannedCluster(racks(), 0)
    there = cluster.submit(1, on=("h1",))
    out = cluster.submit(1, on=("h1",))
    assert settled(cluster).desired.jobs[out].why == "waits for hosts that it names: h1 is taken"
    cluster.cancel(there)
    assert settled(cluster).desired.jobs[out].hosts == ("h1",)
    cluster.observed["h1"] = Agent(Presence.GONE)
    cluster.look()
    other = cluster.submit(3)
    behind = cluster.submit(1)
    cluster.look()
    jobs = cluster.desired.jobs
    assert jobs[out].why == "waits for hosts that it names: h1 does not report"
    assert set(jobs[other].hosts) == {"h0", "h2", "h3"}
    assert jobs[behind].state is JobState.QUEUED
    cluster.observed["h1"] = Agent(Presence.UP)
    jobs = settled(cluster).desired.jobs
    assert jobs[out].hosts == ("h1",)
    assert jobs[behind].state is JobState.QUEUED


def test_a_job_goes_its_way() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(4)
    job = settled(cluster).desired.jobs[number]
    assert (job.state, job.hosts, job.group) == (JobState.PLACED, ("h0", "h1", "h2", "h3"), number)
    assert job.tree is not None
    assert len(job.tree.switches) == 3
    set_phase(cluster, number, Phase.RUNNING)
    assert settled(cluster).desired.jobs[number].state is JobState.RUNNING
    set_phase(cluster, number, Phase.ENDED)
    assert settled(cluster).desired.jobs[number].state is JobState.ENDED
    assert cluster.desired.grants == {}


def test_hosts_that_do_not_report_are_not_given_away() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(4)
    cluster.look()
    told = "waits for 4 hosts: 0 of 4 are free, 4 do not report: h0, h1, h2, h3"
    assert cluster.desired.jobs[number].why == told


def test_of_many_hosts_that_do_not_report_some_are_named() -> None:
    cluster = PlannedCluster(racks(racks=3), 0)
    number = cluster.submit(4)
    cluster.look()
    told = "waits for 4 hosts: 0 of 6 are free, 6 do not report: h0, h1, h2, h3 and 2 more"
    assert cluster.desired.jobs[number].why == told


def test_what_an_agent_may_still_have_is_not_given_away() -> None:
    cluster = PlannedCluster(racks(), 0)
    first, second = cluster.submit(4), cluster.submit(4)
    settled(cluster).cancel(first)
    cluster.look()
    assert states(cluster) == [JobState.CANCELLED, JobState.QUEUED]
    for name in ("h0", "h1", "h2"):
        cluster.agents[name].take(cluster.wishes(name))
        cluster.agents[name].give_up()
        cluster.observed[name] = cluster.agents[name].report()
    cluster.look()
    assert cluster.desired.jobs[second].why == "waits for 4 hosts: 3 of 4 are free"
    assert states(settled(cluster)) == [JobState.CANCELLED, JobState.PLACED]


def test_a_report_from_before_the_release_frees_nothing() -> None:
    cluster = PlannedCluster(racks(), 0)
    for name in cluster.agents:
        cluster.observed[name] = Agent(Presence.UP)
    number = cluster.submit(1)
    cluster.look()  # the host has not heard of it, and has reported that it has nothing
    cluster.cancel(number)
    cluster.look()
    assert [grant.released for grant in cluster.desired.grants.values()] == [cluster.desired.revision]


def test_what_is_still_held_is_not_freed() -> None:
    """Its agent has heard that it is to give it up, and is not done yet."""
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(1)
    settled(cluster).cancel(number)
    cluster.look()
    agent = cluster.agents["h0"]
    agent.take(cluster.wishes("h0"))
    cluster.observed["h0"] = agent.report()
    assert cluster.look() == ()
    agent.give_up()
    cluster.observed["h0"] = agent.report()
    assert cluster.look() == (Free(1),)


def test_a_running_job_is_lost_with_a_host() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(2)
    cluster.settle()
    set_phase(cluster, number, Phase.RUNNING)
    cluster.settle()
    cluster.observed["h0"] = Agent(Presence.UNKNOWN)
    assert cluster.look() == ()
    cluster.observed["h0"] = Agent(Presence.GONE)
    cluster.look()
    job = cluster.desired.jobs[number]
    assert (job.state, job.why[:13]) == (JobState.FAILED, "host h0 is lo")
    cluster.observed["h1"] = cluster.agents["h1"].report()
    cluster.look()
    assert "h0" in {grant.agent for grant in cluster.desired.grants.values()}  # it may still run its ranks


def test_a_running_job_is_lost_with_a_host_that_the_cluster_file_has_no_more() -> None:
    """It died, and was taken out: nobody will ever hear of it again."""
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(3)
    cluster.settle()
    set_phase(cluster, number, Phase.RUNNING)
    cluster.settle()
    cluster.edit("h1")
    cluster.look()
    job = cluster.desired.jobs[number]
    assert (job.state, job.why) == (JobState.FAILED, "host h1 is lost: the cluster file has it no more")
    assert "h1" not in {grant.agent for grant in cluster.desired.grants.values()}
    assert "h0" in {grant.agent for grant in cluster.desired.grants.values()}, "it may still run its ranks"


def test_a_job_that_was_only_placed_goes_elsewhere_than_a_host_that_was_taken_out() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(2)
    cluster.settle()
    cluster.edit("h0")
    for name in ("h1", "h2", "h3"):
        cluster.observed[name] = cluster.agents[name].report()
    cluster.look()
    job = cluster.desired.jobs[number]
    assert (job.state, job.hosts) == (JobState.PLACED, ("h2", "h3"))


def test_a_host_that_is_put_into_the_file_again_gets_nothing_before_it_is_rid_of_what_it_had() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(4)
    cluster.settle()
    set_phase(cluster, number, Phase.RUNNING)
    cluster.settle()
    cluster.edit("h1")
    cluster.look()
    cluster.edit()
    second = cluster.submit(1)
    cluster.observed["h1"] = cluster.agents["h1"].report()
    cluster.look()
    assert cluster.desired.jobs[second].state is JobState.QUEUED
    cluster.check()
    assert settled(cluster).desired.jobs[second].state is JobState.PLACED


def test_slots_of_a_switch_that_the_cluster_file_has_no_more_are_freed() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(4)
    settled(cluster)
    topology = cluster.topology
    plain = [replace(one, jobs=None) if one.name == "leaf0" else one for one in topology.switches]
    cluster.topology = replace(topology, switches=tuple(plain))
    cluster.edit()
    cluster.look()
    assert all(
        grant.kind is GrantKind.SEATS or grant.agent != "leaf0" for grant in cluster.desired.grants.values()
    )
    assert cluster.desired.jobs[number].state is JobState.PLACED


def test_a_job_for_which_the_cluster_has_become_too_small_holds_nobody_up() -> None:
    cluster = PlannedCluster(racks(), 0)
    large, small = cluster.submit(4), cluster.submit(2)
    cluster.edit("h0")
    for name in ("h1", "h2", "h3"):
        cluster.observed[name] = cluster.agents[name].report()
    cluster.look()
    jobs = cluster.desired.jobs
    assert (jobs[large].state, jobs[large].why) == (JobState.QUEUED, "waits for 4 hosts: the cluster has 3")
    assert jobs[small].state is JobState.PLACED
    assert cluster.look() == ()


def test_a_host_that_was_started_anew_has_lost_its_ranks() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(2)
    cluster.settle()
    set_phase(cluster, number, Phase.RUNNING)
    cluster.settle()
    cluster.agents["h1"].holds, cluster.agents["h1"].applied = {}, 0
    job = settled(cluster).desired.jobs[number]
    assert (job.state, job.why) == (
        JobState.FAILED,
        "host h1 was started anew, and its ranks have not come back",
    )


def test_ranks_may_come_back_to_a_host_that_was_started_anew() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(2)
    cluster.settle()
    set_phase(cluster, number, Phase.RUNNING)
    cluster.settle()
    up = cluster.observed["h1"]
    for holds in ({}, {grant: Hold() for grant in up.holds}):  # before it has its wishes, and after
        cluster.observed["h1"] = replace(up, applied=0, holds=holds, is_anew=True)
        cluster.look()
        assert cluster.desired.jobs[number].state is JobState.RUNNING
    cluster.observed["h1"] = replace(cluster.observed["h1"], is_anew=False)  # none has, for too long
    cluster.look()
    job = cluster.desired.jobs[number]
    assert (job.state, job.why) == (
        JobState.FAILED,
        "host h1 was started anew, and its ranks have not come back",
    )


def test_a_job_that_was_only_placed_is_placed_again() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(2)
    cluster.settle()
    assert cluster.desired.jobs[number].hosts == ("h0", "h1")
    cluster.observed["h0"] = Agent(Presence.GONE)
    cluster.look()
    job = cluster.desired.jobs[number]
    assert (job.state, job.hosts) == (JobState.PLACED, ("h2", "h3"))


def test_a_tree_is_given_up_with_its_switch_and_another_given() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(4)
    tree = settled(cluster).desired.jobs[number].tree
    assert tree is not None
    cluster.observed[tree.root] = Agent(Presence.GONE)
    cluster.look()
    assert cluster.desired.jobs[number].tree is None  # its leaves are still the old tree's
    for name in ("leaf0", "leaf1"):
        cluster.agents[name].take(cluster.wishes(name))
        cluster.agents[name].give_up()
        cluster.observed[name] = cluster.agents[name].report()
    cluster.look()
    other = cluster.desired.jobs[number].tree
    assert other is not None
    assert other.root != tree.root


def test_a_host_with_something_unknown_is_left_alone() -> None:
    cluster = PlannedCluster(racks(), 0)
    for name in cluster.agents:
        cluster.observed[name] = Agent(Presence.UP)
    cluster.observed["h0"] = Agent(Presence.UP, 0, {77: Hold()})
    number = cluster.submit(4)
    cluster.look()
    assert cluster.desired.jobs[number].state is JobState.QUEUED
    assert settled(cluster).desired.jobs[number].state is JobState.PLACED


def test_two_grants_of_a_slot_are_a_fault_of_ours() -> None:
    def give(number: int) -> Give:
        slots = (Slot("h0", "", 0),)
        return Give(Grant(number=number, job=1, kind=GrantKind.SEATS, agent="h0", slots=slots))

    with pytest.raises(InvariantBroken, match="but it is of"):
        applied(Desired(), [give(1), give(2)])
    with pytest.raises(InvariantBroken, match="the next one is 2"):
        applied(Desired(), [give(1), give(1)])


def test_what_was_planned_is_made_unless_one_of_its_jobs_was_changed_meanwhile() -> None:
    cluster = PlannedCluster(racks(), 0)
    for name in cluster.agents:
        cluster.observed[name] = Agent(Presence.UP)
    one = cluster.submit(2)
    before = cluster.desired
    changes = plan(before, Observed(cluster.observed), cluster.planner)
    assert any(isinstance(change, Give) for change in changes)
    assert rests_on(changes, before, before)
    other = cluster.submit(2)
    assert rests_on(changes, before, cluster.desired), "one more waits, which is no change of the first"
    made = applied(cluster.desired, changes)
    assert (made.jobs[one].state, made.jobs[other].state) == (JobState.PLACED, JobState.SUBMITTED)
    cluster.cancel(one)
    assert not rests_on(changes, before, cluster.desired)


@pytest.mark.parametrize("seed", range(20))
def test_who_looks_at_news_alone_comes_to_the_same(seed: int) -> None:
    cluster = PlannedCluster(racks(), seed)
    compared = 0
    for _ in range(300):
        cluster.look()
        seen, planner = Observed(dict(cluster.observed)), cluster.planner
        cluster.walk()
        if cluster.planner is not planner:
            continue  # for another cluster file a controller is started anew, and looks at all
        observed = Observed(dict(cluster.observed))
        news = {name for name in cluster.agents if observed.agent(name) != seen.agent(name)}
        of_all = plan(cluster.desired, observed, planner)
        assert plan(cluster.desired, observed, planner, news_of=news) == of_all
        compared += of_all != ()
    assert compared > 5


def test_what_was_planned_to_be_freed_is_freed_though_its_job_is_there_no_more() -> None:
    grant = Grant(number=1, job=1, kind=GrantKind.SEATS, agent="h0", slots=(Slot("h0", "", 0),), released=1)
    desired = Desired(grants={1: grant}, revision=1, next_grant=2)
    assert rests_on([Free(1)], desired, replace(desired, revision=2))


def test_jobs_that_are_over_are_forgotten_in_order() -> None:
    cluster = PlannedCluster(racks(), 0)
    for _ in range(4):
        cluster.cancel(cluster.submit(1))
    changes = plan(cluster.desired, Observed(), cluster.planner, history_max=1)
    assert sorted(applied(cluster.desired, changes).jobs) == [4]


def test_a_job_that_was_there_for_long_is_not_forgotten_when_it_ends() -> None:
    """Why it ended is asked now; jobs that came after it have been over for longer."""
    cluster = PlannedCluster(racks(), 0)
    first, *others = [cluster.submit(1) for _ in range(4)]
    for number in (*others, first):
        cluster.cancel(number)
    changes = plan(cluster.desired, Observed(), cluster.planner, history_max=2)
    assert sorted(applied(cluster.desired, changes).jobs) == [first, others[-1]]
