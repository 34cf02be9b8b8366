"""MINA section IV-A: aggregation trees move under running jobs; and what ours adds to it."""

from __future__ import annotations

import pytest

from inaproto.core.migration.events import (
    DrainJob,
    JobDrained,
    MigrationConfig,
    Phase,
    PlanStands,
    TreeStands,
)
from inaproto.core.migration.ledger import SlotFreed, SlotTaken
from inaproto.sim.explore.engine import Kind, explore
from inaproto.sim.explore.migration.variants import migration_config, migration_world
from inaproto.units import MS, S
from inaproto.wire.messages.slots import Order
from tests.unit.migrating_jobs import LEASE_NS, MigratingJobs, plan


def settled(switches: str, **targets: str) -> MigratingJobs:
    world = MigratingJobs(switches)
    world.tell(plan(1, **targets))
    assert world.settle()
    world.log.clear()
    return world


def told(world: MigratingJobs, job: str) -> list[type]:
    """What the job's hosts were told, in order."""
    mine = [its for _, its in world.log if isinstance(its, DrainJob | TreeStands) and its.job == job]
    return [type(its) for its in mine]


def phase(world: MigratingJobs, job: str) -> Phase:
    return next(its.phase for its in world.core.view().jobs if its.job == job)


def test_a_job_releases_after_its_current_operation() -> None:
    world = settled("ab", A="a")
    world.drain_ns = 3 * S
    world.tell(plan(2, A="b"))
    assert not world.run(2 * S, lambda: bool(world.orders(Order.RELEASE)))
    assert told(world, "A") == [DrainJob]
    assert world.settle()
    released = next(at for at, its in world.log if isinstance(its, SlotFreed))
    assert 3 * S < released < 3 * S + 10 * MS


def test_a_job_that_uses_no_tree_is_not_asked_to_drain() -> None:
    world = settled("ab")
    world.tell(plan(2, A="ab"))
    assert world.settle()
    assert told(world, "A") == [TreeStands]


def test_every_job_of_a_plan_releases_before_any_acquires() -> None:
    world = settled("abc", A="a", B="bc")
    world.drain_ns = 10 * S
    world.tell(plan(2, A="b", B="a"))
    assert world.run(1 * S, lambda: told(world, "A") == told(world, "B") == [DrainJob])
    first = world.hosts["A"].uses
    assert first is not None
    world.hosts["A"].uses = None
    world.tell(JobDrained("A", first.epoch))
    assert world.run(1 * S, lambda: phase(world, "A") is Phase.RELEASED)
    assert not world.run(5 * S, lambda: bool(world.orders(Order.ACQUIRE))), "B has not released"
    assert world.settle()
    kinds = [type(its) for _, its in world.log if isinstance(its, SlotFreed | SlotTaken)]
    assert kinds == [SlotFreed] * 3 + [SlotTaken] * 2


def test_two_jobs_swap_their_trees() -> None:
    world = settled("ab", A="a", B="b")
    world.tell(plan(2, A="b", B="a"))
    assert world.settle()
    assert [its.job for its in world.held("a")] == ["B"]
    assert [its.job for its in world.held("b")] == ["A"]
    assert any(isinstance(its, PlanStands) for _, its in world.log)


def test_to_acquire_before_releasing_is_the_deadlock_that_the_paper_warns_of() -> None:
    def explored(variant: str) -> Kind | None:
        config = migration_config(variant, scenario="swap", faults=0)
        found = explore(migration_world(variant, config), states_max=10_000).counterexample
        return None if found is None else found.kind

    assert explored("acquire-first") is Kind.STUCK
    assert explored("product") is None


def test_operations_go_on_without_ina_until_the_new_tree_is_acquired() -> None:
    world = settled("ab", A="a")
    world.drain_ns = 5 * MS
    world.tell(plan(2, A="b"))
    assert world.run(1 * S, lambda: phase(world, "A") is Phase.ACQUIRING)
    assert not world.uses("A")
    assert world.settle()
    assert told(world, "A") == [DrainJob, TreeStands]
    uses = world.uses("A")
    assert uses
    assert uses.tree.switches == ("b",)


def test_slots_are_acquired_in_ascending_order_of_switches() -> None:
    world = settled("abc")
    world.tell(plan(2, A="abc"))
    assert world.settle()
    assert world.orders(Order.ACQUIRE) == [("A", "a"), ("A", "b"), ("A", "c")]


def test_what_was_granted_is_given_back_when_a_switch_refuses() -> None:
    world = settled("abc", A="c")
    world.tell(plan(2, A="c", B="abc"))
    assert world.run(1 * S, lambda: phase(world, "B") is Phase.BACKING_OFF)
    assert world.orders(Order.ACQUIRE) == [("B", "a"), ("B", "b"), ("B", "c")]
    assert (world.held("a"), world.held("b")) == ([], [])
    assert [its.job for its in world.held("c")] == ["A"]
    world.tell(plan(3, A="", B="abc"))
    assert world.settle()
    assert [its.job for its in world.held("c")] == ["B"]


def test_a_job_tries_again_after_a_back_off_that_doubles_with_jitter_that_comes_in() -> None:
    config = MigrationConfig(
        ("a", "b"), backoff_ns=10 * MS, backoff_max_ns=40 * MS, jitter_ns=(1 * MS, 3 * MS)
    )
    world = MigratingJobs("ab", config=config)
    world.tell(plan(1, A="b"))
    assert world.settle()
    world.tell(plan(2, A="b", B="b"))
    taken: list[int] = []
    while len(taken) < 5:
        assert world.run(1 * S, lambda: phase(world, "B") is Phase.BACKING_OFF)
        begun = world.now
        assert world.run(1 * S, lambda: phase(world, "B") is Phase.ACQUIRING)
        taken.append(world.now - begun)
    assert taken == [11 * MS, 23 * MS, 41 * MS, 43 * MS, 41 * MS]


@pytest.mark.parametrize("variant", ["keep-partial", "keep-partial-ascending"])
def test_keeping_partial_grants_is_a_deadlock_unless_all_acquire_in_one_order(variant: str) -> None:
    found = explore(migration_world(variant, migration_config(variant)), states_max=50_000).counterexample
    assert (found is not None) == (variant == "keep-partial")


def test_slots_of_a_job_whose_hosts_and_coordinator_died_come_back() -> None:
    world = settled("ab", A="ab")
    world.run(10 * LEASE_NS)
    assert len(world.held("a")) == 1, "its hosts renew"
    world.crash()
    world.hosts["A"].uses = None
    begun = world.now
    assert world.run(2 * LEASE_NS, lambda: not world.held("a") and not world.held("b"))
    assert world.now - begun <= LEASE_NS


def test_a_switch_that_restarts_is_empty_and_says_so() -> None:
    world = settled("ab", A="ab")
    world.reboot("b")
    assert world.run(1 * S, lambda: bool(told(world, "A")))
    assert world.settle()
    assert told(world, "A") == [DrainJob, TreeStands]
    assert world.orders(Order.RELEASE) == [("A", "a")], "all or nothing"


def test_how_long_each_step_took_is_measured() -> None:
    world = settled("ab", A="a", B="b")
    world.drain_ns = 7 * MS
    world.tell(plan(2, A="b", B="a"))
    assert world.settle()
    first, second = world.core.view().migrations[-2:]
    for its in (first, second):
        assert (its.drain_ns, its.release_ns, its.barrier_ns, its.acquire_ns) == (7 * MS, 2 * MS, 0, 2 * MS)
        assert (its.downtime_ns, its.total_ns, its.refusals) == (4 * MS, 11 * MS, 0)
