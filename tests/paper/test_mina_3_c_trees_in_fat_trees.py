"""Fat trees: counts of the published simulator, and conflicts against trees built link by link."""

from __future__ import annotations

import random
from math import prod

import pytest

from inaproto.errors import ConfigError
from inaproto_controller.cluster.topology import FatTree, Quota
from tests.data.mina.reference import reference


def test_counts_are_those_of_the_published_simulator() -> None:
    for case in reference("ref07_topology")["topologies"]:
        tree = FatTree(tuple(case["down"]), tuple(case["up"]))
        assert [tree.nodes(layer) for layer in range(tree.layers + 1)] == case["nodes_by_layer"]
        assert [tree.links(layer) for layer in range(tree.layers)] == case["edges_by_layer"]
        for one in case["trees"]:
            footprint = tree.footprint(one["hosts"])
            colours = list(tree.colours(footprint.height))
            assert footprint.height == one["first_root_layer"]
            assert len(colours) == len(set(colours)) == one["root_count"]
            switches = list(tree.tree_switches(footprint, colours[0]))
            assert len(set(switches)) == one["switches"]
            assert len(set(tree.tree_links(footprint, colours[0]))) == one["edges"]
            by_layer = [sum(switch.layer == layer for switch in switches) for layer in range(1, 4)]
            assert [len(one["hosts"]), *by_layer] == one["nodes_per_layer"]


@pytest.mark.parametrize(
    "tree",
    [
        FatTree.of_degree(16),
        FatTree.of_degree(8, uplinks=2),
        FatTree((2, 3, 2, 3), (2, 1, 3, 2)),
        FatTree((4, 4), (1, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("quota", Quota)
def test_trees_conflict_exactly_if_they_share_a_link_or_a_switch(tree: FatTree, quota: Quota) -> None:
    """MINA, section III-C; judged by the sets of links and switches themselves."""
    draw = random.Random(f"{tree} {quota}")
    parts = tree.tree_links if quota is Quota.LINK else tree.tree_switches
    seen = set()
    for _ in range(3000):
        # Within few racks, so that many share something.
        within = min(tree.hosts, draw.choice([1, 2, 4, 32]) * prod(tree.down[:2]))
        count = draw.randint(1, min(8, within // 2))
        chosen = draw.sample(range(within), 2 * count)
        one, other = tree.footprint(chosen[:count]), tree.footprint(chosen[count:])
        mine = draw.choice(list(tree.colours(one.height)))
        its = draw.choice(list(tree.colours(other.height)))
        shared = set(parts(one, mine)) & set(parts(other, its))
        assert tree.conflict(one, mine, other, its, quota) is bool(shared)
        assert tree.conflict(other, its, one, mine, quota) is bool(shared)
        seen.add(bool(shared))
    assert seen == {False, True}


def test_links_of_a_tree_connect_its_switches() -> None:
    tree = FatTree.of_degree(8)
    footprint = tree.footprint([0, 1, 5, 40, 100])
    for colour in tree.colours(footprint.height):
        links, switches = list(tree.tree_links(footprint, colour)), set(tree.tree_switches(footprint, colour))
        assert len(links) == 5 + len(switches) - 1


def test_what_is_no_fat_tree_is_refused() -> None:
    with pytest.raises(ConfigError, match="even"):
        FatTree.of_degree(7)
    with pytest.raises(ConfigError, match="positive"):
        FatTree((2, 2), (1, 0))
    with pytest.raises(ConfigError, match="as many"):
        FatTree((2, 2), (1,))
