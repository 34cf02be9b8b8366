"""What becomes of an elastic job at the controller, by what is seen of its seats."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from inaproto.core.grants.verdict import (
    OTHERS_WENT_ON,
    AsItWas,
    Fate,
    HostSeen,
    Over,
    PlacedAgain,
    Runs,
    SeatSeen,
    seat_seen,
    verdict,
)
from inaproto_controller.cluster.desired import GrantKind, Job, JobState
from inaproto_controller.service.observed import Agent, Hold, Phase, Presence
from tests.controller.planned_cluster import PlannedCluster, racks
from tests.controller.test_controller_plan import set_phase

BEGUN = (Fate.RUNNING, Fate.ENDED, Fate.FAILED)
NOTHING_LEFT = (Fate.ENDED, Fate.FAILED, Fate.LOST)


def of(fates: tuple[Fate, ...], *, is_running: bool, is_elastic: bool = True) -> object:
    seats = [SeatSeen(fate, f"{fate.name} {number}") for number, fate in enumerate(fates)]
    return verdict(seats, is_running=is_running, is_elastic=is_elastic)


@pytest.mark.parametrize("is_running", [False, True])
def test_it_is_over_with_its_last_seat_and_with_no_other(is_running: bool) -> None:
    over = (*NOTHING_LEFT, Fate.ABSENT) if is_running else NOTHING_LEFT
    for fates in product(Fate, repeat=3):
        found = of(fates, is_running=is_running)
        has_begun = is_running or any(fate in BEGUN for fate in fates)
        if not has_begun:
            again = Fate.LOST in fates
            assert found == (PlacedAgain(f"LOST {fates.index(Fate.LOST)}") if again else AsItWas()), fates
        elif all(fate in over for fate in fates):
            assert isinstance(found, Over), fates
            assert found.has_failed == (Fate.ENDED not in fates), fates
            named = f"FAILED {fates.index(Fate.FAILED)}" if Fate.FAILED in fates else ""
            assert named in found.why, fates
        else:
            is_unsure = is_running and Fate.AWAITED in fates
            assert isinstance(found, AsItWas if is_unsure else Runs), fates


@pytest.mark.parametrize("is_running", [False, True])
def test_another_job_is_over_with_the_first_seat_that_is_not_well(is_running: bool) -> None:
    bad = (Fate.LOST, Fate.FAILED, Fate.ABSENT) if is_running else (Fate.LOST, Fate.FAILED)
    for fates in product(Fate, repeat=3):
        found = of(fates, is_running=is_running, is_elastic=False)
        first = next((number for number, fate in enumerate(fates) if fate in bad), None)
        if first is not None:
            why = f"{fates[first].name} {first}"
            is_over = is_running or fates[first] is Fate.FAILED
            assert found == (Over(True, why) if is_over else PlacedAgain(why)), fates
        elif set(fates) == {Fate.ENDED}:
            assert found == Over(False)
        elif not is_running and set(fates) <= {Fate.RUNNING, Fate.ENDED}:
            assert found == Runs()
        else:
            assert found == AsItWas()


def test_a_job_without_seats_is_as_it_was() -> None:
    assert verdict([], is_running=False, is_elastic=True) == AsItWas()


def test_what_befell_it_is_said_and_nothing_where_nothing_did() -> None:
    well = SeatSeen(Fate.ENDED)
    assert verdict([well, well], is_running=True, is_elastic=True) == Over(False, "")
    hurt = SeatSeen(Fate.ENDED, "host h1: rank 1 is lost")
    told = f"host h1: rank 1 is lost; {OTHERS_WENT_ON}"
    assert verdict([well, hurt], is_running=True, is_elastic=True) == Over(False, told)
    gone = SeatSeen(Fate.LOST, "")
    assert verdict([gone, gone], is_running=True, is_elastic=True) == Over(True, "")


def test_what_a_host_reports_of_a_seat_is_said_under_its_name() -> None:
    up = HostSeen("h1", "up")
    assert seat_seen(up, "running", "rank 1 is lost") == SeatSeen(Fate.RUNNING, "host h1: rank 1 is lost")
    assert seat_seen(up, "ended", "rank 1 is lost") == SeatSeen(Fate.ENDED, "host h1: rank 1 is lost")
    assert seat_seen(up, "ended", "") == SeatSeen(Fate.ENDED)
    assert seat_seen(HostSeen("h1", "unknown"), "failed", "of old") == SeatSeen(Fate.AWAITED)
    assert seat_seen(HostSeen("h1", "up", is_anew=True), "held", "") == SeatSeen(Fate.AWAITED)


# --- by the plan


def running(cluster: PlannedCluster, hosts: int = 3) -> int:
    number = cluster.submit(hosts, elastic=True)
    cluster.settle()
    set_phase(cluster, number, Phase.RUNNING)
    cluster.settle()
    assert job_of(cluster, number).state is JobState.RUNNING
    return number


def job_of(cluster: PlannedCluster, number: int) -> Job:
    return cluster.desired.jobs[number]


def say(cluster: PlannedCluster, host: str, phase: Phase, reason: str = "") -> None:
    """Of its seat."""
    up = cluster.observed[host]
    seats = {
        number
        for number, grant in cluster.desired.grants.items()
        if grant.agent == host and grant.kind is GrantKind.SEATS
    }
    holds = {number: Hold(phase, reason) if number in seats else hold for number, hold in up.holds.items()}
    cluster.observed[host] = replace(up, holds=holds)


def test_the_others_go_on_when_a_seat_fails() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = running(cluster)
    say(cluster, "h0", Phase.FAILED, "rank 0: it is gone")
    cluster.look()
    job = job_of(cluster, number)
    assert (job.state, job.why) == (JobState.RUNNING, "host h0: rank 0: it is gone; the others go on")
    assert cluster.look() == ()
    held = [grant for grant in cluster.desired.grants.values() if grant.kind is GrantKind.SEATS]
    assert [(grant.agent, grant.released) for grant in held] == [("h0", None), ("h1", None), ("h2", None)]
    say(cluster, "h1", Phase.ENDED)
    cluster.look()
    assert job_of(cluster, number).state is JobState.RUNNING
    say(cluster, "h2", Phase.ENDED)
    cluster.look()
    job = job_of(cluster, number)
    assert (job.state, job.why) == (
        JobState.ENDED,
        "host h0: rank 0: it is gone; the others went on to the end",
    )
    assert all(grant.released is not None for grant in cluster.desired.grants.values())


def test_the_others_go_on_when_a_host_is_lost_and_it_may_come_back() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = running(cluster)
    there = cluster.observed["h1"]
    cluster.observed["h1"] = Agent(Presence.UNKNOWN)
    assert cluster.look() == ()
    cluster.observed["h1"] = Agent(Presence.GONE)
    cluster.look()
    assert job_of(cluster, number).why == (
        "host h1 is lost: nothing was heard of it for longer than its lease; the others go on"
    )
    cluster.observed["h1"] = there
    cluster.look()
    assert (job_of(cluster, number).state, job_of(cluster, number).why) == (JobState.RUNNING, "")


def test_it_has_failed_when_no_seat_of_it_has_ended() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = running(cluster)
    cluster.observed["h0"] = Agent(Presence.GONE)
    say(cluster, "h1", Phase.FAILED, "rank 1: it is gone")
    cluster.look()
    assert job_of(cluster, number).state is JobState.RUNNING
    say(cluster, "h2", Phase.FAILED, "rank 0 of train~2: it is gone")
    cluster.look()
    job = job_of(cluster, number)
    assert (job.state, job.why) == (JobState.FAILED, "host h1: rank 1: it is gone")


def test_a_host_that_was_started_anew_has_lost_its_ranks_alone() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = running(cluster)
    cluster.agents["h1"].holds, cluster.agents["h1"].applied = {}, 0
    cluster.settle()
    job = job_of(cluster, number)
    assert (job.state, job.why) == (
        JobState.RUNNING,
        "host h1 was started anew, and its ranks have not come back; the others go on",
    )


def test_one_that_was_only_placed_is_placed_again() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(2, elastic=True)
    cluster.settle()
    cluster.observed["h0"] = Agent(Presence.GONE)
    cluster.look()
    assert job_of(cluster, number).hosts == ("h2", "h3")


def test_a_host_that_is_lost_before_all_were_seen_to_run_ends_no_job_that_has_begun() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(2, elastic=True)
    cluster.settle()
    say(cluster, "h1", Phase.RUNNING)
    cluster.observed["h0"] = Agent(Presence.GONE)
    cluster.look()
    job = job_of(cluster, number)
    assert (job.state, job.hosts) == (JobState.RUNNING, ("h0", "h1"))


def test_a_host_that_says_late_that_its_ranks_are_there_is_waited_for() -> None:
    """Those of another one were lost at once. What it says after it has heard of that counts."""
    cluster = PlannedCluster(racks(), 0)
    number = cluster.submit(2, elastic=True)
    cluster.settle()
    say(cluster, "h0", Phase.FAILED, "rank 0: it is gone")
    cluster.look()
    job = job_of(cluster, number)
    assert (job.state, job.why) == (JobState.RUNNING, "host h0: rank 0: it is gone; the others go on")
    assert cluster.look() == ()
    for phase in (Phase.RUNNING, Phase.HELD):
        say(cluster, "h1", phase)
        cluster.look()
        assert job_of(cluster, number).state is JobState.RUNNING
    cluster.observed["h1"] = replace(cluster.observed["h1"], applied=job.begun)
    cluster.look()
    job = job_of(cluster, number)
    assert (job.state, job.why) == (JobState.FAILED, "host h0: rank 0: it is gone")


def test_a_host_that_is_taken_out_of_the_file_is_lost_and_the_others_go_on() -> None:
    cluster = PlannedCluster(racks(), 0)
    number = running(cluster)
    cluster.edit("h1")
    for name in ("h0", "h2", "h3"):
        cluster.observed[name] = cluster.agents[name].report()
    cluster.look()
    job = job_of(cluster, number)
    assert (job.state, job.why) == (
        JobState.RUNNING,
        "host h1 is lost: the cluster file has it no more; the others go on",
    )
    assert cluster.look() == ()
    set_phase(cluster, number, Phase.ENDED)
    for name in ("h0", "h2"):
        cluster.observed[name] = cluster.agents[name].report()
    cluster.look()
    assert job_of(cluster, number).state is JobState.ENDED
