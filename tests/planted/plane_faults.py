"""Faults of the control plane: what rendezvous and switches hear of each other, and when."""

from __future__ import annotations

from typing import Final

from inaproto.core.rendezvous.control_plane import ControlPlane
from inaproto.core.rendezvous.fabric.one_switch import OneSwitch
from inaproto.core.rendezvous.tree_moves import TreeMoves
from tests.planted.planting import Change, PlantedFault, fault
from tests.planted.shapes import across_racks, half_sums_of_hosts

PLANE: Final = "NetReduce 3.3, table populating; inaproto.core.rendezvous.control_plane"
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
