"""MINA, section III-C: conflicts of the trees of running jobs, slot by slot, against the trees' own."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.network import FatTreeNetwork, Ints
from inaproto_controller.cluster.topology import FatTree, Footprint, Quota

TREES = [
    FatTree.of_degree(16),
    FatTree.of_degree(8, uplinks=2),
    FatTree((2, 3, 2, 3), (2, 1, 3, 2)),
    FatTree((4, 4), (1, 3)),
    FatTree((2, 80, 2), (1, 2, 2)),
]


def numbers(*values: int) -> Ints:
    return np.array(values, np.int64)


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("quota", Quota)
def test_trees_conflict_as_their_links_and_switches_say(tree: FatTree, quota: Quota) -> None:
    """Jobs come and go, slots are used anew; every pair of candidate trees that is drawn is compared."""
    draw = random.Random(f"{tree} {quota} slots")
    network = FatTreeNetwork(tree, quota)
    assert network.hosts == tree.hosts
    footprints: dict[int, Footprint] = {}
    hosts: dict[int, list[int]] = {}
    pairs, seen = 0, set()
    for _ in range(60):
        free = sorted(set(range(tree.hosts)) - {host for taken in hosts.values() for host in taken})
        if footprints and (len(free) < 4 or draw.random() < 0.4):
            slot = draw.choice(sorted(footprints))
            network.leave(slot)
            del footprints[slot], hosts[slot]
            continue
        slot = min(set(range(len(footprints) + 1)) - set(footprints))
        within = free[: draw.choice([4, 2 * prod(tree.down[:2]), tree.hosts])]
        hosts[slot] = draw.sample(within, draw.randint(1, min(8, len(within))))
        footprints[slot] = tree.footprint(hosts[slot])
        colours = {one: list(tree.colours(print_.height)) for one, print_ in footprints.items()}
        assert network.enter(slot, hosts[slot]) == len(colours[slot])
        trees = [(one, draw.randrange(len(colours[one]))) for one in footprints for _ in range(3)]
        slots, roots = numbers(*(one for one, _ in trees)), numbers(*(root for _, root in trees))
        found = network.conflicts(slots, roots)
        assert found.dtype == np.bool_
        for index, (one, its) in enumerate(trees):
            against = network.conflicts_with(one, its, slots, roots)
            for other_index, (other, others) in enumerate(trees):
                if one == other:
                    assert not against[other_index]
                    assert found[index, other_index] == (index != other_index)
                    continue
                expected = tree.conflict(
                    footprints[one], colours[one][its], footprints[other], colours[other][others], quota
                )
                assert found[index, other_index] == against[other_index] == expected
                pairs += 1
                seen.add(expected)
        switches = list(tree.tree_switches(footprints[slot], colours[slot][0]))
        links = list(tree.tree_links(footprints[slot], colours[slot][0]))
        assert network.tree_size(slot, 0) == (len(switches), len(links))
    assert pairs > 800
    assert seen == {False, True}


def test_moduli_say_the_same_for_each_pair_of_slots() -> None:
    tree = FatTree.of_degree(8)
    network = FatTreeNetwork(tree, Quota.LINK)
    network.enter(0, [0, 4])
    network.enter(70, [1, 5, 20])
    network.enter(3, [8, 25])
    assert network.modulus(0, 70) == network.modulus(70, 0) == 4  # racks of one pod: alike up from them
    assert network.modulus(70, 3) == 16
    assert network.modulus(0, 0) == network.modulus(0, 5) == 0
    assert network.near(70).tolist() == [0, 3]
    network.leave(70)
    assert network.modulus(0, 70) == network.modulus(70, 0) == 0
    assert network.near(0).tolist() == network.near(3).tolist() == []


def test_slots_that_are_not_what_a_call_needs_are_refused() -> None:
    network = FatTreeNetwork(FatTree.of_degree(4), Quota.SWITCH)
    network.enter(1, [0, 1])
    for slot, hosts in ((1, [2]), (-1, [2]), (0, []), (0, [16]), (0, [-1])):
        with pytest.raises(LocalMisuse):
            network.enter(slot, hosts)
    for slot in (0, 7, -1):
        with pytest.raises(LocalMisuse):
            network.leave(slot)
        with pytest.raises(LocalMisuse):
            network.tree_size(slot, 0)
    assert network.enter(0, [2]) == 1
    assert network.tree_size(0, 0) == (0, 0)
    network.leave(1)
    assert network.enter(1, [3, 4]) > 1


@pytest.mark.parametrize("tree", TREES[:4], ids=str)
def test_roots_through_a_switch_are_those_whose_trees_have_it(tree: FatTree) -> None:
    draw = random.Random(f"{tree} switches")
    network = FatTreeNetwork(tree, Quota.LINK)
    first = [sum(tree.nodes(layer) for layer in range(1, above)) for above in range(1, tree.layers + 1)]
    for _ in range(20):
        hosts = draw.sample(range(tree.hosts), draw.randint(1, 6))
        network.enter(3, hosts)
        footprint = tree.footprint(hosts)
        passed: dict[int, list[int]] = {switch: [] for switch in range(network.switches)}
        for root, colour in enumerate(tree.colours(footprint.height)):
            for layer, number in tree.tree_switches(footprint, colour):
                passed[first[layer - 1] + number].append(root)
        for switch, roots in passed.items():
            assert network.roots_through(3, switch).tolist() == roots
            assert set(network.slots_through(switch)) >= ({3} if roots else set())
        network.leave(3)
    racks = [network.hosts_at(switch).tolist() for switch in range(tree.nodes(1))]
    for switch in range(0, tree.nodes(1), tree.up[0]):
        assert racks[switch : switch + tree.up[0]] == [racks[switch]] * tree.up[0]
    assert [host for switch in range(0, tree.nodes(1), tree.up[0]) for host in racks[switch]] == list(
        range(tree.hosts)
    )
    assert network.hosts_at(network.switches - 1).size == (tree.hosts if tree.layers == 1 else 0)
    with pytest.raises(LocalMisuse, match="no switch"):
        network.hosts_at(network.switches)
