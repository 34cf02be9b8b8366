"""Numbers of trees, roots that people want, and who renews the slots of a switch (MINA section IV-A)."""

from __future__ import annotations

import pytest

from inaproto.core.migration.events import JobRecord, MigrationRecord, Tree
from inaproto.core.migration.ledger import (
    CapacityTold,
    FromController,
    LedgerWoke,
    Renewed,
    SlotFreed,
    SlotLedgerConfig,
    SlotTaken,
    ToController,
    ToHost,
)
from inaproto.core.migration.numbers import StoredTrees, TreeNumbers, numbers_in
from inaproto.core.migration.service_events import ServiceConfig
from inaproto.core.migration.slot_lender import RingsAre, SlotLender
from inaproto.core.migration.wanted_roots import ROOTS_MAX, WantedRoots
from inaproto.errors import LocalMisuse
from inaproto.units import Instant
from inaproto.wire.messages.slots import Lease, Order, SlotRequest, SlotsChanged
from inaproto.wire.messages.trees import FabricTree

ONE, TWO, THREE = (FabricTree(root) for root in ("spine0", "spine1", "spine2"))


# --- numbers of trees


def record(*trees: tuple[int | None, int | None]) -> MigrationRecord:
    """Jobs with (tree, target)."""
    its = [tuple(None if one is None else Tree(one, ("s",)) for one in pair) for pair in trees]
    return MigrationRecord(
        1, 1, 9, tuple(JobRecord(f"job{at}", tree, at, target) for at, (tree, target) in enumerate(its))
    )


def test_the_numbers_of_a_record_are_those_of_trees_that_jobs_have_or_are_to_have() -> None:
    assert numbers_in(record((7, None), (None, 3), (3, 5), (None, None))) == [3, 5, 7]


def test_a_tree_keeps_its_number_and_a_number_its_tree() -> None:
    numbers = TreeNumbers({4: ONE}, 6)
    assert [numbers.of(tree) for tree in (TWO, ONE, THREE, TWO)] == [6, 4, 7, 6]
    assert (dict(numbers.trees), numbers.next) == ({4: ONE, 6: TWO, 7: THREE}, 8)
    its = record((4, 6))
    assert numbers.stored(its) == StoredTrees(its, {4: ONE, 6: TWO}, 8), "the third tree is nobody's"


def test_a_tree_that_nobody_has_gets_another_number_when_it_is_wanted_again() -> None:
    numbers = TreeNumbers({4: ONE, 5: TWO}, 6)
    numbers.keep({5})
    assert dict(numbers.trees) == {5: TWO}
    assert [numbers.of(TWO), numbers.of(ONE)] == [5, 6]


# --- roots that people want


def test_what_is_wanted_later_is_written_with_what_was_wanted_before() -> None:
    wanted = WantedRoots({"a": "x"}, 10)
    assert wanted.want("b", "y") == {"a": "x", "b": "y"}
    found = wanted.want("a", "z")
    assert list(found.items()) == [("b", "y"), ("a", "z")], "the oldest wish is the first"
    assert wanted.durable == {"a": "x"}, "until it is on disk"
    wanted.persisted(found)
    assert wanted.durable == found
    assert wanted.want("b", "") == {"a": "z"}


def test_one_root_too_many_takes_the_place_of_the_oldest() -> None:
    wanted = WantedRoots({str(number): "x" for number in range(ROOTS_MAX - 1)}, 10)
    assert len(wanted.want("a", "y")) == ROOTS_MAX
    found = wanted.want("b", "y")
    assert (len(found), next(iter(found)), list(found)[-2:]) == (ROOTS_MAX, "1", ["a", "b"])


def test_a_job_that_was_missed_for_long_enough_is_over() -> None:
    wanted = WantedRoots({"a": "x", "b": "x", "c": "x"}, 10)
    assert wanted.forget({"b"}, Instant(5)) is None
    assert wanted.forget({"b", "c"}, Instant(14)) is None
    found = wanted.forget({"b"}, Instant(15))
    assert found == {"b": "x", "c": "x"}, "c was there meanwhile"
    assert wanted.durable.keys() == {"a", "b", "c"}, "until it is on disk"
    assert wanted.want("d", "y") == {**found, "d": "y"}


def test_a_job_that_is_wanted_again_is_missed_from_then_on() -> None:
    wanted = WantedRoots({"a": "x"}, 10)
    assert wanted.forget((), Instant(0)) is None
    wanted.want("a", "y")
    assert wanted.forget((), Instant(10)) is None
    assert wanted.forget((), Instant(20)) == {}


@pytest.mark.parametrize(("last", "then"), [({"b": "y"}, {"b": "y"}), (None, {"a": "x"})])
def test_what_has_not_come_to_disk_is_not_written_with_the_next(
    last: dict[str, str] | None, then: dict[str, str]
) -> None:
    wanted = WantedRoots({"a": "x"}, 10)
    wanted.want("c", "z")
    wanted.newest_is(last)
    assert wanted.want("d", "z") == {**then, "d": "z"}


# --- slots of a switch

A, B, C = (Lease(job, 1, number + 1) for number, job in enumerate("abc"))


def lender() -> SlotLender:
    """From 7 on; renews every 25."""
    return SlotLender(SlotLedgerConfig("s", "b1", capacity=3, lease_ns=102), Instant(7))


def lends(core: SlotLender, number: int, lease: Lease, now: int) -> None:
    taken, _ = core.step(FromController(SlotRequest(1, number, "b1", Order.ACQUIRE, lease)), Instant(now))
    assert taken == SlotTaken(lease)


def held(core: SlotLender) -> dict[str, int]:
    return {lease.job: until for lease, until in core.view().held}


def test_leases_are_renewed_four_times_in_their_life_while_rings_stand() -> None:
    core = lender()
    assert core.deadline == 32
    lends(core, 1, A, 10)
    lends(core, 2, B, 12)
    assert core.step(RingsAre(frozenset("a")), Instant(40)) == [], "it renews nothing by itself"
    assert held(core) == {"a": 112, "b": 114}
    assert core.step(LedgerWoke(), Instant(31)) == []
    assert core.step(LedgerWoke(), Instant(32)) == [ToHost("s", Renewed(A, 102))]
    assert (held(core), core.deadline) == ({"a": 134, "b": 114}, 57)
    for now in (57, 82, 107):
        core.step(LedgerWoke(), Instant(now))
    assert core.deadline == 114, "then the lease that nobody renews runs out"
    assert core.step(LedgerWoke(), Instant(114)) == [
        SlotFreed(B, has_run_out=True),
        ToController(SlotsChanged("s", "b1")),
    ]
    assert (held(core), core.deadline) == ({"a": 209}, 132)


def test_before_any_ring_is_known_nothing_is_renewed() -> None:
    core = lender()
    lends(core, 1, A, 10)
    assert core.step(LedgerWoke(), Instant(32)) == []
    assert (held(core), core.deadline) == ({"a": 112}, 57)


def test_a_switch_that_was_suspended_makes_up_for_all_renewals() -> None:
    core = lender()
    for number, lease in enumerate((A, B, C)):
        lends(core, number + 1, lease, 10 + number)
    core.step(RingsAre(frozenset("bc")), Instant(12))
    found = core.step(CapacityTold(5), Instant(512))
    renewed = [one.message for one in found if isinstance(one, ToHost)]
    assert renewed == [Renewed(lease, 102) for _ in range(17) for lease in (B, C)], "from 112 to 512, each 25"
    freed = [one for one in found if isinstance(one, SlotFreed)]
    assert (freed, core.view().capacity) == ([SlotFreed(A, has_run_out=True)], 5)
    assert (held(core), core.deadline) == ({"b": 614, "c": 614}, 537)
    core.step(RingsAre(frozenset()), Instant(512))
    assert core.step(LedgerWoke(), Instant(540)) == []
    assert core.deadline == 565, "with nothing to renew, too"


# --- configuration of the service


@pytest.mark.parametrize("name", ["look_ns", "resend_ns", "bar_ns", "absent_ns", "forget_ns"])
def test_a_time_of_the_service_is_at_least_a_nanosecond(name: str) -> None:
    ServiceConfig(1, None, **{name: 1})  # type: ignore[arg-type]
    with pytest.raises(LocalMisuse, match=f"^{name} must be at least 1, not 0$"):
        ServiceConfig(1, None, **{name: 0})  # type: ignore[arg-type]
