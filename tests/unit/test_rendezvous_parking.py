"""Rings that are to leave their switches, and cannot: a host does not park, or does not know how to."""

from __future__ import annotations

from typing import Any, Final

import pytest

from inaproto.core.switch.accelerator import RemoveRing
from inaproto.units import Instant, S
from inaproto.wire.control_messages import Halt, Start
from inaproto.wire.messages.ina import InaPark, InaStands
from inaproto.wire.messages.trees import FabricTree, TreeState
from tests.unit.rendezvous_fabrics import TWO_SPINES
from tests.unit.rendezvous_hosts import World, sent
from tests.unit.rendezvous_tree_moves import (
    CONFIG,
    HOSTS,
    SPINE0,
    SPINE1,
    park_all,
    parked,
    parks,
    stand,
    started,
    state,
    wish,
)
from tests.unit.test_rendezvous_shared import THREE, asks_all, halted_all

OLD: Final = "h1: of a release whose rings cannot move to another tree"


def begun(**changes: Any) -> World:
    """As ``started``, on three hosts of which some may be old."""
    world = World(THREE, **CONFIG | changes)
    asks_all(world)
    halted_all(world)
    stand(world, world.ready())
    return world


@pytest.mark.parametrize("target", [None, SPINE1])
def test_a_host_that_does_not_park_its_ring_ends_the_generation_and_not_the_move(
    target: FabricTree | None,
) -> None:
    """An all-reduce on it waits for a rank that writes a checkpoint; or the host lost what it was told."""
    world = started(park_ns=9 * S)
    ring_id = world.job.ina_ring_id
    wish(world, 3, target)
    assert world.core.deadline == 9 * S
    parks(world, 0, 4, 3)
    assert world.woke_at(9 * S - 1) == []
    actions = world.woke_at(9 * S)
    assert actions[0] == RemoveRing(ring_id)
    assert {halt.reason for _, halt in sent(actions, Halt)} == {
        "its ring was to be parked within 9 s: waits for h1, h2"
    }
    assert world.core.view().counters["parkings_given_up"] == 1
    assert world.core.deadline == 14 * S, "that of its ranks"
    halted_all(world, 12)
    stand(world, world.ready())
    pool = "" if target is None else "shared@spine1"
    phase = "parked" if target is None else "standing"
    assert state(world) == TreeState("train", HOSTS, 3, phase, pool)  # type: ignore[arg-type]
    assert world.job.path == "shared"
    assert world.core.deadline is None


def test_a_ring_that_is_parked_in_time_has_no_deadline_any_more() -> None:
    world = started()
    parked(world)
    assert world.core.deadline is None
    stand(world, wish(world, 4, SPINE1))
    wish(world, 5, None)
    park_all(world, 60, 5)
    assert world.woke_at(99 * S) == []


def test_hosts_may_have_all_time_to_park() -> None:
    world = started(park_ns=0)
    wish(world, 3, None)
    assert state(world).phase == "parking"
    assert world.core.deadline is None


def test_a_ring_of_a_host_that_cannot_park_leaves_the_switches_for_good() -> None:
    world = begun(old=[1])
    actions = wish(world, 3, None)
    assert sent(actions, InaPark) == []
    assert {halt.path for _, halt in sent(actions, Halt)} == {"chain"}
    halted_all(world, 5)
    [start] = {start for _, start in sent(world.ready(), Start)}
    assert (start.ina_ring_id, world.installed, world.job.path) == (0, {}, "chain")
    assert state(world) == TreeState("train", HOSTS, 3, "parked"), "its slots may be had by others"
    for epoch, tree in ((4, SPINE1), (5, SPINE0)):
        assert wish(world, epoch, tree) == []
        assert state(world) == TreeState("train", HOSTS, epoch, "refused", reason=OLD)
        assert world.core.deadline is None, "to try anew would end a generation for nothing"
    assert (world.job.fallback, world.job.recoveries) == (OLD, 1)


def test_a_ring_of_a_host_that_cannot_park_stays_where_it_is_wished_to_be() -> None:
    world = begun(old=[1], **TWO_SPINES)
    assert wish(world, 3, SPINE0) == []
    assert state(world) == TreeState("train", HOSTS, 3, "standing", "shared")
    world.broken(1, 20)
    halted_all(world, 20)
    stand(world, world.ready())
    assert state(world) == TreeState("train", HOSTS, 3, "standing", "shared")


@pytest.mark.parametrize("is_early", [False, True])
def test_what_is_wished_before_it_starts_counts_for_a_host_that_cannot_park(is_early: bool) -> None:
    """Such a host hears neither that a ring is parked from the start, nor where it has its turns."""
    world = World(THREE, old=[1], **CONFIG)
    if is_early:
        wish(world, 3, SPINE1)
    asks_all(world)
    halted_all(world)
    if not is_early:
        assert wish(world, 3, SPINE1) == []
        stand(world, world.ready())
        halted_all(world, 0)
    actions = world.ready()
    assert {start.ina_ring_id for _, start in sent(actions, Start)} == {0}
    assert sent(actions, InaStands) == []
    assert state(world) == TreeState("train", HOSTS, 3, "refused", reason=OLD)
    assert world.core.deadline in (None, Instant(0))
