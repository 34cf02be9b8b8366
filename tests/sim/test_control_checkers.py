"""The laws of control worlds, each broken by hand; and what stands for disk, network and pool in them."""

from __future__ import annotations

from functools import partial

import pytest

from inaproto.core.migration.events import JobRecord, MigrationRecord, Tree
from inaproto.core.sharing.events import Path
from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.campaign.rules import rules_of
from inaproto.sim.control.checkers.checker import ControlChecker
from inaproto.sim.control.checkers.checkers import (
    DrainedFirst,
    OneDecision,
    PoolApart,
    SlotsKept,
    all_checkers,
)
from inaproto.sim.control.config import ControlFault, FaultKind
from inaproto.sim.control.pool import Pool
from inaproto.sim.control.seat import SimSeat
from inaproto.sim.control.world import ControlWorld
from inaproto.sim.kernel.machine import Timer
from inaproto.sim.kernel.store import Store
from inaproto.sim.kernel.violated import Violated
from inaproto.units import MS, Instant, S
from inaproto.wire.messages.slots import Lease, Order, SlotRequest
from tests.planted.sharing_faults import FAULTS
from tests.sim.test_control_world import world

LEASE = Lease("job0", 0, 1)
OTHER = Lease("job1", 0, 2)


def begun(checker: ControlChecker) -> ControlWorld:
    """A world in which nothing has happened, but both jobs have rings."""
    here = ControlWorld(world())
    for switch in here.switches:
        switch.rings = {LEASE: None, OTHER: None}
    checker.begin(here)
    return here


def run_out(here: ControlWorld) -> None:
    """Until nothing happens any more."""
    while here.agenda.run_next():
        pass


def seat(here: ControlWorld, host: int, job: str = "job0") -> SimSeat:
    return SimSeat(here.hosts[host], here.jobs[job])


def test_an_operation_under_two_epochs_is_found() -> None:
    checker = OneDecision()
    here = begun(checker)
    checker.began(seat(here, 0), 4, Path.INA, 3, LEASE)
    checker.began(seat(here, 1), 4, Path.FALLBACK, None, None)
    assert "seats bound an operation differently" in here.marks
    with pytest.raises(Violated, match=r"under epoch 5 .* under epoch 3"):
        checker.began(seat(here, 1), 4, Path.INA, 5, LEASE)


def test_a_wrong_sum_is_found() -> None:
    checker = OneDecision()
    here = begun(checker)
    one = seat(here, 0)
    checker.ended(one, 4, one.job.total(4))
    with pytest.raises(Violated, match="not the sum"):
        checker.ended(one, 4, one.job.total(5))


def test_two_jobs_in_a_pool_for_one_are_found() -> None:
    checker = PoolApart()
    here = begun(checker)
    first, second = seat(here, 0), seat(here, 0, "job1")
    checker.began(first, 4, Path.INA, 3, LEASE)
    checker.drained(first, 4)
    checker.began(second, 0, Path.INA, 4, OTHER)
    checker.seat_gone(second)
    checker.began(first, 5, Path.INA, 5, LEASE)
    with pytest.raises(Violated, match="while these have not drained: job0 on host0"):
        checker.began(second, 1, Path.INA, 6, OTHER)


def test_a_pool_is_free_when_no_switch_has_the_ring() -> None:
    checker = PoolApart()
    here = begun(checker)
    checker.began(seat(here, 0), 4, Path.INA, 3, LEASE)
    for switch in here.switches:
        del switch.rings[LEASE]
        checker.ring_removed(switch, LEASE)
    checker.began(seat(here, 0, "job1"), 0, Path.INA, 4, OTHER)


def test_a_slot_too_many_and_one_too_long_are_found() -> None:
    checker = SlotsKept()
    here = begun(checker)
    switch = here.switches[0]
    checker.slot_taken(switch, LEASE)
    checker.slot_taken(switch, OTHER)
    with pytest.raises(Violated, match="has 2 slots"):
        checker.slot_taken(switch, Lease("job2", 0, 3))
    checker.slot_freed(switch, OTHER, has_run_out=False)
    checker.ring_removed(switch, OTHER)
    with pytest.raises(Violated, match="which it had not lent"):
        checker.slot_freed(switch, OTHER, has_run_out=False)
    with pytest.raises(Violated, match="still lends"):
        checker.end(here)


def test_a_lease_whose_tree_has_stood_is_not_lent_again_nor_its_epoch_used() -> None:
    checker = SlotsKept()
    here = begun(checker)
    switch = here.switches[0]
    checker.slot_taken(switch, LEASE)
    checker.slot_freed(switch, LEASE, has_run_out=False)
    checker.slot_taken(switch, LEASE)
    with pytest.raises(Violated, match="has the epoch of job job0's tree 0"):
        checker.slot_taken(switch, Lease("job1", 0, LEASE.epoch))
    checker.tree_stands(LEASE)
    checker.slot_freed(switch, LEASE, has_run_out=False)
    with pytest.raises(Violated, match="whose tree has stood"):
        checker.slot_taken(switch, LEASE)


def test_slots_that_are_asked_for_before_that_is_on_disk_are_found() -> None:
    checker = SlotsKept()
    here = begun(checker)
    tree = Tree(LEASE.tree, ("switch0",))
    here.store.disk["migration"] = MigrationRecord(1, 1, 1, (JobRecord(LEASE.job, tree, LEASE.epoch, tree),))
    checker.said(SlotRequest(1, 1, "boot", Order.ACQUIRE, LEASE))
    checker.said(SlotRequest(1, 2, "boot", Order.RELEASE, OTHER))
    with pytest.raises(Violated, match="is asked for, and on disk are"):
        checker.said(SlotRequest(1, 3, "boot", Order.ACQUIRE, OTHER))


def test_a_slot_that_is_taken_from_under_an_operation_is_found() -> None:
    checker = DrainedFirst()
    here = begun(checker)
    switch, user = here.switches[0], seat(here, 0)
    user.job.seats[0] = user
    user.in_ina[4] = LEASE
    checker.slot_freed(switch, LEASE, has_run_out=True)
    with pytest.raises(Violated, match=r"job0 on host0 runs \[4\] there"):
        checker.slot_freed(switch, LEASE, has_run_out=False)
    user.in_ina.clear()
    checker.slot_freed(switch, LEASE, has_run_out=False)
    with pytest.raises(Violated, match="which was released"):
        checker.began(user, 5, Path.INA, 3, LEASE)
    checker.slot_taken(switch, LEASE)
    checker.began(user, 5, Path.INA, 3, LEASE)
    user.in_ina[5] = LEASE
    here.jobs["job0"].is_over = True
    checker.slot_freed(switch, LEASE, has_run_out=False)


def test_a_lock_that_outlives_its_lease_is_found() -> None:
    crash = ControlFault(1, FaultKind.CONTROLLER_CRASH, 0, 200 * MS, moment="a seat voted", occurrence=7)
    config = world("equal-index", faults=(crash,), weather_until_ns=400 * MS, silent_ns=10 * S)
    kept = ControlWorld(config).run()
    assert kept.violation is None
    assert kept.marks["sharing: in doubt"]
    with FAULTS["lease_too_long"]():
        broken = ControlWorld(config).run().violation
    assert broken is not None
    assert broken.rule == "no lock for ever"


def test_every_law_has_a_name_and_a_meaning() -> None:
    rules = rules_of(WorldKind.CONTROL)
    assert {checker.name for checker in all_checkers()} <= set(rules)
    assert all(rules.values())


def test_a_timer_that_is_due_for_ever_is_found() -> None:
    here = ControlWorld(world())
    node = here.hosts[0]
    node.is_up = True
    Timer(node, lambda: Instant(0), lambda: None).arm()
    with pytest.raises(Violated, match="due for ever"):
        run_out(here)


def test_a_crash_keeps_a_first_part_of_what_was_being_written() -> None:
    kept = set()
    for name in range(30):
        here = ControlWorld(world(seed=str(name)))
        store = Store(here)
        told: list[int] = []
        for number in range(4):
            store.persist(f"record {number}", number, partial(told.append, number))
        here.agenda.run_next()
        assert told == [0]
        store.crash()
        run_out(here)
        assert told == [0], "nobody is told after a crash"
        assert list(store.disk.values()) == list(range(len(store.disk)))
        kept.add(len(store.disk))
    assert kept == {1, 2, 3, 4}


def test_a_pool_takes_no_part_of_an_earlier_turn() -> None:
    pool = Pool(0, 1)
    unit = pool.put("job0", 0, 3, 10, 100)
    assert unit is not None
    assert unit.parts == {0: 100}
    assert pool.put("job1", 0, 4, 2, 7) is not None
    assert (pool.stale, pool.conflicts) == (0, 1), "the first operation was not finished"
    assert pool.put("job0", 1, 3, 10, 100) is None
    assert pool.put("job1", 0, 4, 1, 7) is None, "an earlier operation of its own turn"
    assert pool.stale == 2
