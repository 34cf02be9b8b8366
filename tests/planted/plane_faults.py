"""Faults of the control plane: what rendezvous and switches hear of each other, and when."""

from __future__ import annotations

from typing import Final

from inaproto.core.rendezvous.control_plane import ControlPlane
from inaproto.core.rendezvous.fabric.one_switch import OneSwitch
from inaproto.core.rendezvous.fabric.shards import Shards
from inaproto.core.rendezvous.tree_moves import TreeMoves
from tests.planted.planting import Change, PlantedFault, fault
from tests.planted.shapes import across_racks, half_sums_of_hosts, with_shards

PLANE: Final = "NetReduce 3.3, table populating; inaproto.core.rendezvous.control_plane"
TESTS: Final = "tests/unit/test_shards.py"
SHARDS: Final = "inaproto.core.rendezvous.fabric.shards"
ALONE: Final = "NetReduce 3.1, rings; inaproto.core.rendezvous.fabric.one_switch"

PLANE_FAULTS: Final = (
    fault(
        "refusal_of_the_next_ring",
        ALONE,
        "takes what the accelerator refuses for the ring that comes after it",
        OneSwitch.step,
        "Tell(refusal)]",
        "Tell(type(refusal)(refusal.ring_id + 1, refusal.reason))]",
        shape=half_sums_of_hosts,
    ),
    fault(
        "hosts_all_at_the_root",
        PLANE,
        "lays every ring as if all its hosts were at the root of the fabric",
        ControlPlane._hear,
        "hello.switch or self._root",
        "self._root",
        shape=across_racks,
    ),
    fault(
        "rings_of_a_lost_shard_stand",
        SHARDS,
        "takes note that a shard is gone, and leaves its rings as they were",
        OneSwitch._lost,
        "actions.append(Tell(RingFault(ring_id, 0, SWITCH_LOST, evidence)))",
        "pass",
        shape=with_shards,
    ),
    fault(
        "shards_not_warned",
        SHARDS,
        "opens the ports of a shard that is started again without a word of the rings that it had",
        Shards.arrived,
        "return [one.spec for one in self._had[number].values() if one.until is None or now < one.until]",
        "return []",
        test=f"{TESTS}::test_a_shard_that_comes_again_hears_what_it_must_not_let_pass_before_its_ports_open",
    ),
    fault(
        "ring_at_a_shard_that_is_gone",
        SHARDS,
        "spreads rings over all shards, whether they are there or not",
        Shards.take,
        "rings = dict.fromkeys(sorted(self._present), 0)",
        "rings = dict.fromkeys(self._numbers.values(), 0)",
        test=f"{TESTS}::test_a_shard_that_dies_ends_its_rings_and_no_other",
    ),
    PlantedFault(
        "plan_without_the_fabric",
        PLANE,
        "lets the hosts add all in order, whichever switches they are at",
        (Change(TreeMoves._plan_on, "if switches else None", "if not switches else None"),),
        shape=across_racks,
    ),
    PlantedFault(
        "rings_given_up_left_in_switches",
        PLANE,
        "lets a ring that the rendezvous gives up stay in its switches",
        (Change(ControlPlane._ordered, "return self._to_switches(RingGone(ring_id), now)", "return []"),),
        shape=across_racks,
    ),
    PlantedFault(
        "lost_switch_not_told",
        PLANE,
        "takes note that a ring has lost a switch, and does not tell the rendezvous",
        (Change(ControlPlane._to_switches, "self._heard.append(said)", "pass"),),
        shape=across_racks,
    ),
)
