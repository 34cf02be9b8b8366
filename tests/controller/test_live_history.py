"""What the controller remembers for people: bounded, counted, and there again after a restart."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import trio
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.migration.moves import STABLE
from inaproto.core.sharing.events import Mark, Noted, PoolFree, SharingAction, TurnStands
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.messages.sharing import Version
from inaproto_controller.cluster.desired import Desired, Job, JobSpec, JobState, SetJob, TreeNames, applied
from inaproto_controller.service.history_records import (
    Fallback,
    TreeMove,
    TurnSeen,
    decode_event,
    encode_event,
)
from inaproto_controller.service.live_history import EVENTS_MAX, ROUNDS_MAX, TURNS_MAX, LiveHistory, Unsaved
from tests.controller.live_controllers import live_controller, turn


def job(number: int, *hosts: str, tree: TreeNames | None = None, state: JobState = JobState.RUNNING) -> Job:
    spec = JobSpec(name=f"job{number}", hosts=len(hosts))
    return Job(number=number, spec=spec, token_hash="", hosts=hosts, tree=tree, state=state)


def stands(job: str, epoch: int, until: int | None = None) -> TurnStands:
    return TurnStands(JobId(job), Epoch(epoch), OpIndex(3), None if until is None else OpIndex(until))


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def test_a_history_is_bounded_and_counts_all() -> None:
    clock = Clock()
    history = LiveHistory(clock)
    for again in (stands("a", 1), stands("a", 1, 9)):
        history.acted("p", again)
    (seen,) = history.turns(0.0)
    assert (seen.until, seen.ended_at) == (9, None)
    for epoch in range(2, TURNS_MAX + 10):
        history.acted("p", stands("b", epoch))
        history.acted("p", PoolFree(Epoch(epoch)))
    history.acted("p", PoolFree(Epoch(10**9)))
    assert len(history.turns(0.0)) == TURNS_MAX
    assert history.turns(0.0)[0] == seen, "one that stands is kept"
    assert history.status()["turns"] == TURNS_MAX + 9
    assert history.turns(5.0) == [seen]
    for _ in range(EVENTS_MAX + 1):
        history.fell_back("job", "x" * 10_000)
    assert len(history.fallbacks) == EVENTS_MAX
    assert len(history.fallbacks[0].reason) == 300
    assert history.status()["fallbacks"] == EVENTS_MAX + 1


def test_trees_that_change_are_migrations_and_those_that_go_are_fallbacks() -> None:
    history, desired = LiveHistory(Clock()), Desired()
    one, other = (TreeNames(root, (root,), ()) for root in ("leaf0", "leaf1"))
    for tree in (None, one, one, None, other, one):
        after = applied(desired, [SetJob(job(1, "h0", "h1", tree=tree))])
        history.committed(desired, after)
        desired = after
    assert [(move.old, move.new) for move in history.moves] == [("leaf0", "leaf1"), ("leaf1", "leaf0")]
    assert [fallback.job for fallback in history.fallbacks] == ["job1"]
    history.committed(desired, applied(desired, [SetJob(job(1, "h0", tree=None, state=JobState.ENDED))]))
    assert history.status()["fallbacks"] == 1, "a job that ends does not fall back"


class Rows:
    """Of a store."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}

    def keep(self, history: LiveHistory) -> None:
        while (unsaved := history.unsaved(3)) != Unsaved([], []):
            assert len(unsaved.rows) + len(unsaved.gone) <= 3
            self.rows.update(unsaved.rows)
            for number in unsaved.gone:
                self.rows.pop(number, None)

    def next_leader(self, clock: Clock, term: int = 2) -> LiveHistory:
        history = LiveHistory(clock)
        history.led(term, sorted(self.rows.items()), Desired())
        return history


def test_rounds_say_what_they_decided_or_why_they_did_not() -> None:
    clock = Clock()
    history = LiveHistory(clock)
    for action in (
        Noted(Mark.ROUND_BEGUN, Version(1, 1)),
        Noted(Mark.COMMITTED, Version(1, 1)),
        stands("a", 1),
        Noted(Mark.ROUND_BEGUN, Version(1, 2)),
        Noted(Mark.ABORTED_LATE, Version(1, 2)),
        Noted(Mark.ROUND_BEGUN, Version(1, 3)),
        Noted(Mark.COMMITTED, Version(1, 3)),
        PoolFree(Epoch(9)),
        stands("a", 1, 12),
        stands("b", 2),
        Noted(Mark.TURN_FORCED),
        stands("b", 2, 5),
        Noted(Mark.ROUND_BEGUN, Version(1, 4)),
    ):
        clock.now += 1.0
        history.acted("p", action)
    first, late, both, open_ = history.last_rounds
    assert (first.outcome, first.what) == ("committed", "turn 1 to a, from all-reduce 3 on")
    assert (first.began_at, first.ended_at) == (6.0, 7.0)
    assert (late.outcome, late.what) == ("votes are missing", "")
    assert both.what == "turn 1 of a ends before all-reduce 12; turn 2 to b, from all-reduce 3 on", (
        "a turn that is ended without a round is not of this one"
    )
    assert (open_.outcome, open_.ended_at) == ("", None)
    for number in range(10, ROUNDS_MAX + 20):
        history.acted("p", Noted(Mark.ROUND_BEGUN, Version(1, number)))
    assert len(history.last_rounds) == ROUNDS_MAX


def test_a_migration_has_its_phases_with_times() -> None:
    clock, rows = Clock(), Rows()
    history = LiveHistory(clock)
    one, other = (TreeNames(root, (root,), ()) for root in ("leaf0", "leaf1"))
    before = applied(Desired(), [SetJob(job(1, "h0", "h1", tree=one))])
    history.committed(Desired(), before)
    for phase in ("draining", "draining", "released", "acquiring"):
        clock.now += 0.25
        history.migrates("job1", "leaf0", "leaf1", phase)
    rows.keep(history)
    without = applied(before, [SetJob(job(1, "h0", "h1"))])
    history.committed(before, without)
    assert not history.fallbacks, "it has lost no tree: it migrates"
    later = rows.next_leader(clock)
    later.migrates("job1", "leaf0", "leaf1", "acquiring")
    clock.now += 0.25
    later.committed(without, applied(without, [SetJob(job(1, "h0", "h1", tree=other))]))
    later.migrates("job1", "leaf0", "leaf1", STABLE)
    assert later.moves == [
        TreeMove(
            "job1",
            "leaf0",
            "leaf1",
            5.25,
            (("draining", 5.25), ("released", 5.75), ("acquiring", 6.0), (STABLE, 6.25)),
            6.25,
        )
    ]
    assert history.status()["migrations"] == 1
    history.committed(without, applied(without, [SetJob(job(1, "h0", state=JobState.ENDED))]))
    (over,) = history.moves
    assert (over.phases[-1][0], over.ended_at) == ("job over", 6.25)


def test_the_next_leader_knows_what_was_before() -> None:
    clock, rows = Clock(), Rows()
    history = LiveHistory(clock)
    history.led(1, (), Desired())
    for action in (stands("a", 1), PoolFree(Epoch(1)), stands("b", 2), stands("c", 3)):
        clock.now += 1.0
        history.acted("p", action)
    history.fell_back("a", "its port is down")
    rows.keep(history)
    rows.rows[1000] = "of a program to come"
    clock.now = 100.0
    later = rows.next_leader(clock)
    assert [led.term for led in later.leaders] == [1, 2]
    assert later.fallbacks == [Fallback("a", "its port is down", 9.0)]
    later.acted("p", stands("c", 3, 77))
    ended, lost, stood = later.turns(0.0)
    assert (ended.began_at, ended.ended_at) == (6.0, 7.0)
    assert lost.ended_at == 9.0, "nobody says that it stands: it ended when nobody looked, so after that"
    assert (stood.job, stood.until, stood.ended_at) == ("c", 77, None), "its coordinator has said it again"
    assert later.status()["turns"] == 0, "counts are of this process"
    rows.keep(later)
    assert 1000 not in rows.rows
    assert max(rows.rows) == 1001, "numbers are not used again"


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3), st.booleans()), max_size=120))
def test_rows_are_the_history_however_often_they_are_written(
    steps: list[tuple[int, int, bool]],
) -> None:
    clock, rows = Clock(), Rows()
    history = LiveHistory(clock)
    for epoch, what, keeps in steps:
        clock.now += 1.0
        actions: tuple[SharingAction, ...] = (
            stands("a", epoch, 9),
            PoolFree(Epoch(epoch)),
            Noted(Mark.ROUND_BEGUN, Version(1, epoch)),
            Noted(Mark.ABORTED_CHANGED, Version(1, epoch)),
        )
        history.acted("p", actions[what])
        if keeps:
            rows.keep(history)
    for one in history.turns(0.0):  # what stands would be ended by who does not hear of it again
        history.acted("p", PoolFree(Epoch(one.epoch)))
    rows.keep(history)
    again = rows.next_leader(clock)
    assert sorted(again.turns(0.0), key=lambda one: one.epoch) == sorted(
        history.turns(0.0), key=lambda one: one.epoch
    )
    assert set(again.last_rounds) == set(history.last_rounds)


def test_what_is_forgotten_here_is_forgotten_there() -> None:
    rows, history = Rows(), LiveHistory(Clock())
    for number in range(EVENTS_MAX + 50):
        history.fell_back(f"job{number}", "x")
        if number % 7 == 0:
            rows.keep(history)
    rows.keep(history)
    assert len(rows.rows) == EVENTS_MAX
    assert rows.next_leader(Clock()).fallbacks == history.fallbacks


def test_rows_of_what_this_program_does_not_know_are_passed_over() -> None:
    seen = TurnSeen("p", "a", 1, 0, None, 5.0)
    assert decode_event(encode_event(seen)) == seen
    assert decode_event(encode_event(seen).replace("}", ',"more":1}')) == seen
    for body in ("", "{}", '{"kind":"dance"}', "[" * 10_000, encode_event(seen).replace("5.0", '"x"')):
        assert decode_event(body) is None


async def test_a_restarted_controller_shows_what_was_before(runtime_dir: Path) -> None:
    async with live_controller(runtime_dir) as live:
        turn(live, "pool", "train", 1)
        live.history.fell_back("train", "its port is down")
        with trio.fail_after(600):
            while not _kept(runtime_dir):  # written behind, so that a kill loses a moment of it
                await trio.lowlevel.checkpoint()
        live.history.fell_back("train", "said just before it is stopped")
        first = live.history.turns(0.0)
    async with live_controller(runtime_dir) as live:
        assert live.history.turns(0.0) == first
        assert [one.reason for one in live.history.fallbacks] == [
            "its port is down",
            "said just before it is stopped",
        ]
        assert [led.term for led in live.history.leaders] == [1, 2]


def _kept(directory: Path) -> bool:
    database = sqlite3.connect(directory / "store.db")
    try:
        ((count,),) = database.execute("SELECT count(*) FROM events WHERE body LIKE '%port is down%'")
    finally:
        database.close()
    return bool(count)
