"""Fabrics for tests of the rendezvous: the order in which a job adds follows from where its hosts are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.core.rendezvous.fabric.shapes import plan_of
from inaproto.core.rendezvous.fabric_tree import FabricSwitch, LinkUp
from inaproto.units import PortId
from inaproto.wire.messages.trees import FabricTree
from tests.unit.test_tree_control import switch


def fabric_adding(plan: ReductionPlan) -> tuple[tuple[FabricSwitch, ...], tuple[str, ...]]:
    """One whose own tree adds so, with hosts, by position, at the switches that are returned."""
    switches = [switch("root")]
    seats: dict[int, str] = {}

    def lay(parts: PlanList, name: str) -> None:
        for part in parts:
            if isinstance(part, int):
                seats[part] = name
            else:
                below = f"switch{len(switches)}"
                switches.append(switch(below, name, len(switches)))
                lay(part, below)

    lay(plan.children, "root")
    at = tuple(seats[position] for position in range(len(seats)))
    assert plan_of(tuple(switches), at) == plan, "no tree of switches adds in that order"
    return tuple(switches), at


def leaf(number: int, *further: str) -> FabricSwitch:
    """Below spine0, with further links up."""
    links = tuple(LinkUp(above, PortId(2 + at), PortId(1 + number)) for at, above in enumerate(further))
    return replace(switch(f"leaf{number}", "spine0", 1 + number), further=links)


TWO_SPINES: Final[dict[str, Any]] = {
    "switches": (switch("spine0"), switch("spine1"), leaf(0, "spine1"), leaf(1, "spine1")),
    "at": ("leaf0", "leaf1", "leaf1"),
}
"""Its own tree is that of spine0; along spine1 the same hosts add in the same order."""
IN_TURN: Final = FabricTree("spine0", (("leaf0", "spine0"), ("leaf1", "spine0"), ("leaf2", "spine0")))
"""The own tree of ``THREE_LEAVES``: one host after the other."""
OTHER: Final = FabricTree("spine1", (("leaf0", "spine1"), ("leaf1", "leaf0"), ("leaf2", "spine1")))
"""The first two of three hosts are added first."""
OTHER_PLAN: Final = ReductionPlan(((0, (1,)), (2,)))
CROSSED: Final = FabricTree("spine1", (("leaf0", "spine1"), ("leaf1", "spine1"), ("leaf2", "leaf0")))
"""The first and the last of three hosts are added first, which no chain can follow."""
THREE_LEAVES: Final[dict[str, Any]] = {
    "switches": (
        switch("spine0"),
        switch("spine1"),
        leaf(0, "spine1"),
        leaf(1, "spine1", "leaf0"),
        leaf(2, "spine1", "leaf0"),
    ),
    "at": ("leaf0", "leaf1", "leaf2"),
}
