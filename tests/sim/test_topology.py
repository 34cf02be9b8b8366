"""Trees of switches: which links are active, where hosts hang, and the reduction plan that follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.plan.aggregation_tree import SwitchAddress, TreeSwitch
from inaproto.core.rendezvous.fabric.shapes import tree_of
from inaproto.core.rendezvous.fabric_tree import FabricSwitch
from inaproto.errors import ConfigError
from inaproto.sim.campaign.kinds import FRAME_KINDS, draw_kind, kind_of
from inaproto.sim.frames.draw.racks import draw_racks
from inaproto.sim.frames.draw.topology import (
    LinkConfig,
    Plan,
    SwitchConfig,
    Topology,
    fat_tree,
    leaf_spine,
    map_trunks,
    node_names,
    parse_topology,
)
from inaproto.wire.messages.trees import FabricTree


def test_a_fat_tree_of_4_has_13_switches_in_its_active_tree() -> None:
    tree = fat_tree(4, 16)
    assert len(tree.switches) == 1 + 4 + 8
    assert (tree.standby_switches, tree.standby_links) == (20 - 13, 32 - 12)
    assert [tree.attached.count(number) for number in range(13)] == [0, *([0, 2, 2] * 4)]
    assert [tree.switches[switch].name for switch in tree.path_up(tree.attached[5])] == [
        "pod1-edge0",
        "pod1-agg0",
        "core0",
    ]


def test_pods_without_hosts_are_on_standby() -> None:
    tree = fat_tree(4, 5)
    assert node_names(tree) == ("core0", "pod0-agg0", "pod0-edge0", "pod0-edge1", "pod1-agg0", "pod1-edge0")
    assert tree.attached == (2, 2, 3, 3, 5)
    assert (tree.standby_switches, tree.standby_links) == (14, 27)


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_a_full_fat_tree_has_all_its_hosts(k: int) -> None:
    tree = fat_tree(k, k**3 // 4)
    edges = [number for number in range(len(tree.switches)) if number in tree.attached]
    assert len(edges) == k * k // 2
    assert all(tree.attached.count(edge) == k // 2 for edge in edges)
    assert len(tree.switches) + tree.standby_switches == k * k * 5 // 4
    assert len(tree.switches) - 1 + tree.standby_links == k**3 // 2


def test_racks_under_a_spine() -> None:
    tree = leaf_spine(3, 7)
    assert node_names(tree) == ("spine", "leaf0", "leaf1", "leaf2")
    assert tree.attached == (1, 1, 1, 2, 2, 3, 3)
    assert tree.plan((0, 3, 6, 1)) == ((0, 3), (1,), (2,))
    assert tree.plan((4, 3)) == (0, 1)


def test_the_plan_of_a_deep_tree_is_nested_as_deep() -> None:
    assert fat_tree(4, 16).plan(tuple(range(8))) == (((0, 1), (2, 3)), ((4, 5), (6, 7)))
    assert fat_tree(4, 16).plan((2, 0, 3)) == ((0, 2), (1,))


def test_what_steers_is_part_of_the_list_above() -> None:
    tree = leaf_spine(2, 4)
    steering = replace(tree.switches[1], aggregates=False)
    tree = replace(tree, switches=(tree.switches[0], steering, tree.switches[2]))
    assert tree.plan((0, 2, 1, 3)) == (0, 2, (1, 3))
    assert tree.plan((1, 0)) == (0, 1)


def test_words_for_topologies() -> None:
    assert parse_topology("fat-tree:4", 16) == fat_tree(4, 16)
    assert parse_topology("leaf-spine:2", 5) == leaf_spine(2, 5)


@pytest.mark.parametrize(
    ("text", "hosts", "words"),
    [
        ("ring:4", 4, "write fat-tree:K"),
        ("fat-tree", 4, "write fat-tree:K"),
        ("fat-tree:x", 4, "write fat-tree:K"),
        ("fat-tree:3", 4, "k is even"),
        ("fat-tree:4", 17, "1 to k\\^3/4 = 16 hosts"),
        ("leaf-spine:0", 4, "1 to 4 racks"),
        ("leaf-spine:5", 4, "1 to 4 racks"),
    ],
)
def test_words_that_name_no_topology(text: str, hosts: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_topology(text, hosts)


@pytest.mark.parametrize(
    ("switches", "attached", "words"),
    [
        ((), (), "1 to 255 switches"),
        ((SwitchConfig("a"), SwitchConfig("a", 0)), (), "each of its own name"),
        ((SwitchConfig("host1"),), (0,), "no host's"),
        ((SwitchConfig("A>b"),), (0,), "small letters"),
        ((SwitchConfig("a"), SwitchConfig("b", 1)), (), "b comes before the switch above"),
        ((SwitchConfig("a"), SwitchConfig("b")), (), "b comes before the switch above"),
        ((SwitchConfig("a", 0),), (), "a comes before the switch above"),
        ((SwitchConfig("a", aggregates=False),), (), "the root must aggregate"),
        ((SwitchConfig("a"),), (1,), "switches are 0 to 0"),
    ],
)
def test_topologies_that_cannot_be(
    switches: tuple[SwitchConfig, ...], attached: tuple[int, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Topology(switches, attached)


def test_trunks_are_changed_one_by_one() -> None:
    changed = map_trunks(leaf_spine(2, 2), lambda trunk: replace(trunk, delay_ns=7))
    assert [switch.trunk.delay_ns for switch in changed.switches] == [LinkConfig().delay_ns, 7, 7]


def test_a_kind_of_world_is_known_by_its_configuration() -> None:
    for kind in FRAME_KINDS:
        assert kind_of(draw_kind(3, kind)) is kind


def nested(tree: TreeSwitch) -> list[int | Plan]:
    """By the rule of the trees themselves."""
    found: list[int | Plan] = []
    for child in tree.children:
        if isinstance(child, int):
            found.append(child)
        elif child.aggregates:
            found.append(tuple(nested(child)))
        else:
            found += nested(child)
    return found


def test_the_plan_is_that_of_the_tree_which_the_control_plane_makes() -> None:
    """Two programs, one order of addition."""
    address = SwitchAddress(bytes(6), bytes(4))
    depths = set()
    for seed in range(300):
        config = draw_racks(seed)
        topology = config.topology
        assert topology is not None
        fabric = tuple(
            FabricSwitch(
                switch.name,
                address,
                topology.switches[switch.above].name if switch.above >= 0 else None,
                aggregates=switch.aggregates,
            )
            for switch in topology.switches
        )
        for job in config.jobs:
            seats = [topology.switches[topology.attached[host]].name for host in job.hosts]
            tree = tree_of(fabric, seats)
            assert topology.plan(job.hosts) == tuple(nested(tree))
            depths.add(len(list(tree.walk())))
    assert len(depths) > 4


def test_below_a_switch_that_passes_sums_on_others_are_points_too() -> None:
    switches = (
        SwitchConfig("root"),
        SwitchConfig("mid", 0, aggregates=False),
        SwitchConfig("leaf0", 1),
        SwitchConfig("leaf1", 1),
    )
    plain = Topology(switches, (2, 2, 3, 0))
    assert plain.plan((0, 1, 2, 3)) == (0, 1, 2, 3)
    mid = replace(switches[1], passes_sums=True)
    passing = replace(plain, switches=(switches[0], mid, *switches[2:]))
    assert passing.plan((0, 1, 2, 3)) == ((0, 1), (2,), 3)
    assert passing.own_tree() == FabricTree("root", (("leaf0", "mid"), ("leaf1", "mid"), ("mid", "root")))
