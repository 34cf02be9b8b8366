"""Random trees of real accelerators: every rank gets the nested reduction, whatever the links do.

Longer: ``INAPROTO_SEEDS=0:2000 pytest tests/property/test_hierarchy.py``. One seed: ``INAPROTO_SEEDS=17:18``.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise

import pytest

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.accelerator import PortDown, PortUp
from tests.property.hierarchy_world import NOW, HierarchyWorld
from tests.seeds import seeds

SEEDS = seeds(20)


def test_every_rank_gets_the_nested_reduction_and_all_that_can_happen_does() -> None:
    happened: dict[str, int] = {}
    depths = set()
    for seed in range(24):
        world = HierarchyWorld(seed)
        world.run()
        depths.add(depth_of(world.tree))
        for accelerator in world.switches.values():
            counters = asdict(accelerator.counters)
            for name, count in {**counters.pop("dropped"), **counters}.items():
                happened[name] = happened.get(name, 0) + count
    assert depths == {1, 2, 3}
    for name in (
        "sums_up",
        "sums_up_again",
        "results_in",
        "results_down",
        "results_down_again",
        "notes_in",
        "notes_out",
        "steered",
        "replayed",
        "gaps_signalled",
        "wrong ICRC",
        "first packet of the message not seen",
    ):
        assert happened.get(name), f"{name} never happened in these worlds"


@pytest.mark.parametrize("seed", SEEDS)
def test_rough_weather(seed: int) -> None:
    HierarchyWorld(seed, weather=0.3).run()


def test_partial_trees() -> None:
    for seed in range(2000, 2010):
        HierarchyWorld(seed, partial=0.6, weather=0.1).run()


@pytest.mark.parametrize("selective", [False, True])
def test_without_loss_each_link_carries_each_packet_once_a_way_and_one_note_a_message(
    selective: bool,
) -> None:
    for seed in range(3000, 3012):
        world = HierarchyWorld(seed, weather=0.0, partial=0.0, selective=selective)
        world.run()
        packets = len(world.ring.flows[0].packets)
        notes = len(world.ring.flows[0].ends)
        if selective:  # each of several packets opens twice
            notes += sum(end - begin > 1 for begin, end in pairwise([0, *world.ring.flows[0].ends]))
        for switch in world.tree.walk():
            counters = world.counters(switch.name)
            role = world.specs()[switch.name].role
            assert role is not None
            assert counters.sums_up == (packets if role.parent else 0)
            assert counters.results_in == (packets if role.parent else 0)
            assert counters.results_down == packets * len(role.children)
            assert counters.notes_out == notes * len(role.notes)
            again = counters.sums_up_again + counters.results_down_again
            assert (again, counters.replayed, counters.gaps_signalled, counters.dropped) == (0, 0, 0, {})


def test_links_between_switches_may_go_down_and_come_back() -> None:
    for seed in range(4000, 4008):
        world = HierarchyWorld(seed, weather=0.02)
        links = [
            (switch.name, child.name)
            for switch in world.tree.walk()
            for child in switch.children
            if isinstance(child, TreeSwitch)
        ]
        for turn, (above, below) in enumerate(links * 2):
            ends = [(above, world.ports[above][below]), (below, world.ports[below][above])]
            for _ in range(20 + 7 * turn):
                world.turn()
            for name, port in ends:
                world.switches[name].step(PortDown(port), NOW)
                world.wires.queues[name, int(port)].clear()
            for _ in range(40):
                world.turn()
            for name, port in ends:
                world.wires.queues[name, int(port)].clear()
                world.switches[name].step(PortUp(port), NOW)
        world.run()


def depth_of(tree: TreeSwitch) -> int:
    return 1 + max((depth_of(child) for child in tree.children if isinstance(child, TreeSwitch)), default=0)
