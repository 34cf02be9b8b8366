"""The checks of ``inaproto crashes``, each against a story in which a controller breaks its word."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from io import StringIO
from typing import Any

import pytest
import trio
from rich.console import Console
from trio.testing import MockClock

from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.messages.controller import (
    AgentReport,
    AgentWelcome,
    AgentWishes,
    GrantRecord,
    HoldRecord,
    SlotRecord,
)
from inaproto.wire.messages.sharing import (
    Abort,
    Commit,
    Decision,
    Done,
    Drained,
    Prepare,
    Rule,
    Seat,
    SeatHold,
    SharingSeats,
    Turn,
    Version,
)
from inaproto.wire.messages.slots import Lease, Outcome, SlotAnswer
from inaproto.wire.messages.trees import FabricTree, TreeWished, TreeWishes
from inaproto_hil.crashes.campaign import Findings, Phase, Plan
from inaproto_hil.crashes.cluster import CrashCluster
from inaproto_hil.crashes.leader import Leader
from inaproto_hil.crashes.leases import SEAT_LEASE_S, Leases
from inaproto_hil.crashes.moments import WEIGHTS, Aim, Gun, Moment, draw
from inaproto_hil.crashes.promises import Promises
from inaproto_hil.crashes.report import HOST, SEAT, SEAT_THEN, document, shortfalls, show, verdict
from inaproto_hil.crashes.stops import Operations, row
from inaproto_hil.crashes.witness import Witness

HOSTS = ("h0", "h1")
LEASE_S = 3.0


def seat(job: str, host: str) -> Seat:
    return Seat(JobId(job), host, 1)


class Story:
    """Two jobs on two hosts, which have found a controller."""

    def __init__(self) -> None:
        self.witness = Witness(lease_s=LEASE_S)
        self.now = 0.0
        self.life = 1
        for host in HOSTS:
            self.welcome(host, 1)
            self.sits(host, "a", "b")

    def welcome(self, host: str, term: int) -> None:
        self.witness.told(host, self.life, AgentWelcome(term=term, report_ms=500), self.now)

    def sits(self, host: str, *jobs: str) -> None:
        rings = {"a": 1, "b": 2}
        holds = tuple(
            SeatHold(pool="shared", job=job, life=1, ring_id=rings[job], hosts=len(HOSTS)) for job in jobs
        )
        self.witness.heard(host, SharingSeats(seats=holds))

    def prepare(self, number: int, job: str) -> None:
        for host in HOSTS:
            said = Prepare(
                seat=seat(job, host),
                term=1,
                version=Version(term=1, number=number),
                rule=Rule.BY_INDEX,
                granted=JobId(job),
                over_below=Epoch(0),
                margin=0,
                lease_ns=200_000_000,
                peers=tuple(seat(job, one) for one in HOSTS),
            )
            self.witness.told(host, self.life, said, self.now)

    def commit(
        self, number: int, job: str, epoch: int, *, hosts: Sequence[str] = HOSTS, first: int = 10
    ) -> None:
        grant = Turn(JobId(job), Epoch(epoch), OpIndex(first))
        for host in hosts:
            said = Commit(
                seat=seat(job, host),
                term=1,
                version=Version(term=1, number=number),
                decision=Decision(grant),
            )
            self.witness.told(host, self.life, said, self.now)

    def done(self, number: int, job: str, hosts: Sequence[str] = HOSTS) -> None:
        for host in hosts:
            version = Version(term=1, number=number)
            self.witness.heard(host, Done(seat=seat(job, host), version=version))

    def turn(self, number: int, job: str, epoch: int) -> None:
        self.prepare(number, job)
        self.commit(number, job, epoch)
        self.done(number, job)

    def drained(self, job: str, epoch: int, hosts: Sequence[str] = HOSTS) -> None:
        for host in hosts:
            self.witness.heard(host, Drained(seat=seat(job, host), epoch=Epoch(epoch)))

    def abort(self, number: int, job: str, host: str) -> None:
        version = Version(term=1, number=number)
        self.witness.told(host, self.life, Abort(seat=seat(job, host), term=1, version=version), self.now)

    def wishes(self, host: str, revision: int, *grants: tuple[int, int, int]) -> None:
        """``grants``: number, job and slot of each."""
        records = tuple(
            GrantRecord(grant=number, job=job, name=f"j{job}", kind="seats", slots=(SlotRecord(number=slot),))
            for number, job, slot in grants
        )
        said = AgentWishes(term=1, revision=revision, grants=records)
        self.witness.told(host, self.life, said, self.now)

    def holds(self, host: str, *grants: int) -> None:
        records = tuple(HoldRecord(grant=number, phase="held") for number in grants)
        self.witness.heard(host, AgentReport(revision=1, holds=records))

    @property
    def faults(self) -> list[str]:
        return self.witness.faults


def test_turns_one_after_the_other_are_one_story() -> None:
    story = Story()
    for number in range(1, 5):
        job = "ab"[number % 2]
        story.turn(number, job, number)
        story.drained(job, number)
    assert story.faults == []
    assert story.witness.counts["turns"] == 4
    for host in HOSTS:
        story.sits(host)
    assert story.witness.left() == []


def test_a_turn_before_the_last_one_has_drained_shares_a_slot() -> None:
    story = Story()
    story.turn(1, "a", 1)
    story.drained("a", 1, ["h0"])
    story.turn(2, "b", 2)
    assert story.faults == [
        "pool shared: epoch 2 is given to job b, but epoch 1 of job a is not drained at a@h1"
    ]


@pytest.mark.parametrize("how", ["its host says so", "another host of its ring says so", "the lease is over"])
def test_a_seat_that_is_gone_has_drained(how: str) -> None:
    story = Story()
    story.turn(1, "a", 1)
    story.drained("a", 1, ["h0"])
    if how == "its host says so":
        story.sits("h1", "b")
    elif how == "another host of its ring says so":
        story.sits("h0", "b")
    else:
        story.witness.disconnected("h1", 1.0)
        story.now = 1.0 + LEASE_S
    story.turn(2, "b", 2)
    assert story.faults == []


def test_a_seat_of_a_host_that_was_away_for_less_than_the_lease_has_not_drained() -> None:
    story = Story()
    story.turn(1, "a", 1)
    story.drained("a", 1, ["h0"])
    story.witness.disconnected("h1", 1.0)
    story.now = 1.0 + LEASE_S - 0.1
    story.turn(2, "b", 2)
    assert len(story.faults) == 1


def test_an_epoch_that_is_not_higher_goes_back() -> None:
    story = Story()
    story.turn(1, "a", 7)
    story.drained("a", 7)
    story.turn(2, "b", 7)
    assert story.faults == ["pool shared: epoch 7 of job b after epoch 7"]


def test_a_decision_that_was_told_stays_and_reaches_all_before_the_next_round() -> None:
    story = Story()
    story.prepare(1, "a")
    story.commit(1, "a", 1, hosts=["h0"])
    story.done(1, "a", ["h0"])
    story.prepare(2, "b")
    [fault] = story.faults
    assert "a@h1 has not applied" in fault
    assert "was told to a@h0" in fault


def test_a_decision_told_again_by_the_next_life_is_the_same() -> None:
    story = Story()
    story.prepare(1, "a")
    story.commit(1, "a", 1, hosts=["h0"])
    story.life = 2
    story.commit(1, "a", 1, first=11, hosts=["h1"])
    [fault] = story.faults
    assert "has two decisions" in fault


def test_what_was_committed_is_aborted_for_nobody_who_waits() -> None:
    story = Story()
    story.prepare(1, "a")
    story.commit(1, "a", 1, hosts=["h0"])
    story.done(1, "a", ["h0"])
    story.abort(1, "a", "h0")  # it has applied it, and this is stale to it
    assert story.faults == []
    story.abort(1, "a", "h1")
    assert story.faults == ["round Version(term=1, number=1) is aborted for a@h1, and was committed for a@h0"]


def test_what_was_aborted_is_committed_for_nobody() -> None:
    story = Story()
    story.prepare(1, "a")
    story.abort(1, "a", "h1")
    story.commit(1, "a", 1)
    assert story.faults == ["round Version(term=1, number=1) is committed for a@h0, and was aborted for a@h1"]
    story.prepare(2, "a")
    story.abort(2, "a", "h1")  # and nothing else: the next one may be committed
    assert len(story.faults) == 2, "the round before it had not been applied"
    story.done(1, "a")
    story.drained("a", 1)
    story.turn(3, "b", 2)
    assert len(story.faults) == 2


def test_terms_are_of_one_life_and_grow() -> None:
    story = Story()
    story.life = 2
    story.welcome("h0", 1)
    assert story.faults[0] == "term 1 is of two lives of controllers, 1 and 2"
    story.welcome("h0", 2)
    story.life = 3
    story.welcome("h0", 1)
    assert len(story.faults) > 2


def test_a_slot_is_of_one_job_until_its_agent_has_given_it_up() -> None:
    story = Story()
    story.wishes("h0", 1, (1, 1, 0))
    story.holds("h0", 1)
    story.wishes("h0", 2)
    story.holds("h0", 1)
    story.wishes("h0", 3, (2, 2, 0))
    assert story.faults == ["h0: slot /0 is of j1 and j2"]


def test_a_slot_that_was_given_up_may_be_another_jobs() -> None:
    story = Story()
    story.wishes("h0", 1, (1, 1, 0), (2, 2, 1))
    story.holds("h0", 1, 2)
    story.wishes("h0", 2, (2, 2, 1))
    story.holds("h0", 2)
    story.wishes("h0", 3, (2, 2, 1), (3, 3, 0))
    assert story.faults == []
    assert len(story.witness.left()) == 4 + 2  # seats of four ranks, and two grants


def test_a_grant_is_of_one_job_and_revisions_do_not_go_back() -> None:
    story = Story()
    story.wishes("h0", 5, (1, 1, 0))
    story.holds("h0", 1)
    story.life = 2
    story.wishes("h1", 4)
    story.wishes("h0", 4, (1, 2, 0))
    assert story.faults == [
        "h1: life 2 tells revision 4, one before it told 5",
        "h0: revision 4 after 5",
        "h0: life 2 tells revision 4, one before it told 5",
        "h0: grant 1 of job 1 is of job 2 now",
    ]


def lends(switch: str, *leases: tuple[str, int]) -> SlotAnswer:
    records = tuple(Lease(job=job, tree=1, epoch=epoch) for job, epoch in leases)
    return SlotAnswer(
        switch=switch, boot="1", term=1, number=1, outcome=Outcome.TOLD, held=records, newest_term=1
    )


def test_a_switch_lends_no_more_slots_than_it_has() -> None:
    story = Story()
    story.witness.told("s0", 1, AgentWelcome(term=1, report_ms=500, slots=1), 0.0)
    story.witness.heard("s0", lends("s0", ("a", 1)))
    assert story.faults == []
    assert "s0 lends a slot to job a" in story.witness.left()
    story.witness.heard("s0", lends("s0", ("a", 1), ("b", 2)))
    assert story.faults == ["s0: lends 2 slots, and has 1: a, b"]


def test_the_epoch_of_a_lease_is_of_one_job_and_that_of_a_jobs_tree_does_not_go_back() -> None:
    story = Story()
    tree = FabricTree("s0")
    for revision, (job, epoch) in enumerate((("a", 3), ("b", 3), ("a", 2))):
        wish = TreeWished(job=job, epoch=epoch, tree=tree)
        story.witness.told("s0", 1, TreeWishes(term=1, revision=revision, trees=(wish,)), 0.0)
    assert story.faults == [
        "a lease's epoch 3 was of job a, and is of job b",
        "job a: a tree of epoch 2 is wished after one of 3",
    ]


# --- answers to clients


def job(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "number": 1, "state": "queued", "hosts": [], "revision": 1, "why": ""} | fields


def test_answers_that_agree() -> None:
    promises = Promises()
    promises.submitted("a", {"job": job("a"), "token": "t"}, 0, 1)
    promises.submitted("a", {"job": job("a"), "token": "t"}, 1, 2)
    promises.looked(job("a", state="placed", hosts=["h0"], revision=2), 2, 3)
    promises.cancelled("a", job("a", state="cancelled", hosts=["h0"], revision=3), 3, 4)
    promises.listed([job("a", state="cancelled", hosts=["h0"], revision=3)], 4, 5)
    assert promises.faults == []
    assert promises.counts == {"submitted": 1, "cancelled": 1, "lists checked": 1, "promises checked": 1}


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ([], "was promised, and is not there"),
        ([job("a", number=2, state="placed", hosts=["h0"], revision=6)], "was number 1, and is number 2"),
        ([job("a", state="placed", hosts=["h0"], revision=4)], "revision 4 after 5"),
        ([job("a", state="placed", hosts=["h1"], revision=6)], "had hosts ('h0',), and has ('h1',)"),
        ([job("a", state="failed", hosts=["h0"], revision=6, why="lost")], "failed: lost"),
    ],
)
def test_answers_that_do_not_agree(later: list[dict[str, Any]], said: str) -> None:
    promises = Promises()
    promises.submitted("a", {"job": job("a"), "token": "t"}, 0, 1)
    promises.looked(job("a", state="placed", hosts=["h0"], revision=5), 2, 3)
    promises.listed(later, 4, 5)
    assert any(said in fault for fault in promises.faults), promises.faults


def test_what_is_over_stays_over() -> None:
    promises = Promises()
    promises.cancelled("a", job("a", state="cancelled"), 0, 1)
    promises.looked(job("a", state="placed", revision=2), 2, 3)
    assert promises.faults == ["job a: was cancelled, and is placed", "job a: was cancelled, and is placed"]


def test_an_answer_that_was_under_way_meanwhile_may_be_older() -> None:
    promises = Promises()
    promises.cancelled("a", job("a", state="cancelled", revision=2), 1, 3)
    promises.looked(job("a", revision=1), 2, 4)
    promises.listed([], 2, 4)
    assert promises.faults == []


def test_another_token_is_a_broken_promise() -> None:
    promises = Promises()
    promises.submitted("a", {"job": job("a"), "token": "t"}, 0, 1)
    promises.submitted("a", {"job": job("a"), "token": "u"}, 1, 2)
    assert promises.faults == ["job a: its token is another one now"]


# --- kills


class Sleepers(CrashCluster):
    """Programs that wait, in the place of controllers."""

    def _argv(self, name: str) -> list[str]:
        return [sys.executable, "-c", "input()"]


def test_a_kill_that_comes_late_hits_no_later_life() -> None:
    """Kills come at any time, from any thread: when that controller was started again, too."""
    with closing(Sleepers(log_dir=None, lease_ms=3000)) as cluster:
        cluster.start_again("controller")
        life = cluster.life("controller")
        assert cluster.kill("controller", life)
        assert not cluster.kill("controller", life)
        cluster.check()
        cluster.start_again("controller")
        assert not cluster.kill("controller", life)
        cluster.check()
        assert cluster.kill("controller", cluster.life("controller"))


# --- times and moments


def test_a_stop_begins_when_something_is_due_and_nothing_ends() -> None:
    operations = Operations(2)
    for rank, late in ((0, 0.0), (1, 0.5)):
        operations.note(0, 1.0 + late, 3.0)  # due at 1.5, when the second rank has called it
        operations.note(1, 2.0 + late, 4.0 + late)  # after the end of the first, at 3
        operations.note(2, 9.0, 9.25 - late / 2)  # nothing is due between 4.5 and 9
        assert bool(operations.ended) == bool(rank)
    assert operations.stops() == [(1.5, 1.5), (3.0, 1.5), (9.0, 0.25)]
    assert [length for _, length in operations.gaps()] == [1.5, 4.75]
    found = row(length for _, length in operations.stops())
    assert (found["count"], found["p50"], found["max"]) == (3, 1.5, 1.5)
    assert row([]) == {"count": 0, "p50": None, "p95": None, "p99": None, "p99.9": None, "max": None}


KILLS = 100
SEEN = {
    "welcomes": 500,
    "rounds": 40,
    "turns": 30,
    "decisions": 30,
    "leases": 9,
    "wishes of trees": 9,
    "promises checked": 99,
}


def campaign(
    *, kills: dict[float, int], decoy: dict[float, int] | None = None, lease_s: float = 0.0
) -> Findings:
    """Stops by their lengths; ``lease_s``: that the job's seats were told once, before all else."""
    found = Findings(Plan(stop=KILLS), seen=dict(SEEN), paths={"chain": 9, "switch": 9})
    now = 1000.0
    if lease_s:
        found.leases.told("a.1", now, lease_s)
    stops = found.stops["a.1"] = []
    for name, its in (("decoy", decoy), ("kills", kills)):
        if its is not None:
            phase = Phase(name, now)
            for length, count in its.items():
                for _ in range(count):
                    now += 10
                    stops.append((now, length))
            now += 10
            phase.ended = now
            found.phases.append(phase)
    found.gaps = dict(found.stops)
    return found


def test_a_stop_is_judged_by_the_lease_that_was_in_force_then() -> None:
    leases = Leases()
    leases.told("a", 100.0, 0.4)
    leases.told("a", 200.0, 0.2)
    assert leases.in_force("a", 100.3, 101.0) == 0.4
    assert leases.in_force("a", 99.0, 100.1) == 0.4
    assert leases.in_force("a", 101.0, 102.0) == SEAT_LEASE_S
    assert leases.in_force("a", 199.0, 201.0) == SEAT_LEASE_S
    assert leases.in_force("b", 100.0, 101.0) == SEAT_LEASE_S
    assert (leases.longest_s, Leases().longest_s) == (0.4, SEAT_LEASE_S)


def test_one_lease_that_was_stretched_excuses_no_stop_but_its_own() -> None:
    found = campaign(kills={0.05: 1000, 3.0: 100}, lease_s=3.2)
    assert verdict(found) == "no"
    report = document(found)
    assert report["training"][-1]["stops_beyond"] == {
        SEAT: 100,
        SEAT_THEN: 100,
        "2 times the lease of a seat in force then": 100,
        "4 times the lease of a seat in force then": 100,
        "8 times the lease of a seat in force then": 100,
        HOST: 0,
    }
    assert report["leases"] == {SEAT: 0.2, "lease of a seat, longest told": 3.2, HOST: 3.0}
    told = StringIO()
    show(report, Console(file=told, width=120))
    assert "0.2 s" in told.getvalue()
    assert "of a host 3 s" in told.getvalue()
    assert "of 1,100 stops 100 were longer than that, 100 than 0.2 s, 0 than 3 s" in told.getvalue()


@pytest.mark.parametrize(
    ("kills", "decoy", "said"),
    [
        ({0.19: 100}, None, "yes"),
        ({}, {0.1: 9}, "not judged"),
        ({0.1: 99, 0.3: 1}, None, "no"),
        ({0.1: 99, 0.3: 1}, {0.1: 98, 0.25: 2}, "as without kills"),
        ({0.1: 90, 0.3: 10}, {0.1: 98, 9.0: 2}, "no"),  # the longest of all is without kills
        ({0.1: 99, 1.3: 1}, {0.1: 90, 0.3: 10}, "no"),  # and here more are long, but not so long
        ({0.1: 99, 3.1: 1}, {0.1: 90, 1.7: 10}, "no"),
    ],
)
def test_stops_are_compared_by_how_many_are_long(
    kills: dict[float, int], decoy: dict[float, int] | None, said: str
) -> None:
    assert verdict(campaign(kills=kills, decoy=decoy)) == said


def test_a_campaign_that_has_seen_nothing_proves_nothing() -> None:
    """A planner that never wishes for a turn, and aims that never come, would break no promise."""
    found = campaign(kills={0.1: 9})
    assert shortfalls(found) == []
    found.seen["turns"] = KILLS // 10 - 1
    assert shortfalls(found) == ["9 turns were seen, not 10"]
    found.seen["turns"] = KILLS
    found.kills = {"any": 50, "commit": 30, "commit (not seen)": 10, "vote (not seen)": 10}
    assert shortfalls(found) == []
    found.kills["vote (not seen)"] = 25
    assert shortfalls(found) == ["of 65 kills that were aimed at something 35 did not see it"]
    assert len(shortfalls(Findings(Plan(stop=1)))) == len(SEEN) + 1


def test_moments_are_those_of_the_seed_and_the_number() -> None:
    drawn = [draw(1, number, file=True) for number in range(300)]
    assert drawn == [draw(1, number, file=True) for number in range(300)]
    assert {moment.aim for moment in drawn} == set(WEIGHTS)
    assert drawn != [draw(2, number, file=True) for number in range(300)]
    assert Aim.DISK not in {draw(1, number, file=False).aim for number in range(300)}


def test_what_is_aimed_at_is_shot_when_it_is_seen_so_often() -> None:
    shots: list[str] = []
    seen: list[str] = []
    gun = Gun(lambda: shots.append("shot"), on_seen=lambda: seen.append("seen"))
    gun.aim(Moment(0, Aim.VOTE, count=2))
    for aim in (Aim.VOTE, Aim.COMMIT):
        assert not gun.saw(aim)
        gun.shoot_if_due()
    assert (shots, seen) == ([], [])
    assert gun.saw(Aim.VOTE)
    gun.shoot_if_due()
    assert (shots, seen) == (["shot"], ["seen"])
    assert not gun.saw(Aim.VOTE)
    gun.aim(Moment(1, Aim.VOTE, fraction=0.5))
    assert gun.saw(Aim.VOTE)
    gun.shoot_if_due()
    assert (shots, seen) == (["shot"], ["seen", "seen"])  # the delay is kept by who waits


async def test_a_kill_may_hit_the_controller_that_does_not_lead(autojump_clock: MockClock) -> None:
    """The other has all agents already: none of them will find a controller anew."""
    leader = Leader(("a", "b"))
    leader.welcomed("a", "h0")
    leader.killed("a")
    assert leader.name == "b"  # as is expected; but a, started again, is faster
    leader.welcomed("a", "h0")
    leader.killed("b")
    assert leader.name == "a"
    with trio.fail_after(600):
        await leader.wait_found()


async def test_after_a_kill_of_the_leader_an_agent_has_to_find_the_next(
    autojump_clock: MockClock,
) -> None:
    leader = Leader(("a", "b"))
    leader.welcomed("a", "h0")
    leader.killed("a")
    assert leader.disconnected("a", "h0")
    assert not leader.disconnected("a", "h1")
    with trio.move_on_after(60) as scope:
        await leader.wait_found()
    assert scope.cancelled_caught
    leader.welcomed("b", "h0")
    with trio.fail_after(600):
        await leader.wait_found()
    assert leader.name == "b"
