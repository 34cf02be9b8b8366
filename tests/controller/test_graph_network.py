"""Trees in clusters of any shape: fat trees judge conflicts, NetworkX judges trees."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from inaproto.errors import ConfigError, LocalMisuse
from inaproto_controller.cluster.graph_network import GraphNetwork, GraphTree
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.cluster.network import FatTreeNetwork, Network
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.placement.least_fragments import LeastFragments
from inaproto_controller.planning.placement.occupancy import Occupancy, fragments
from inaproto_controller.planning.placement.simple import FirstFit, RandomFit
from tests.controller.graphs import HDR, NDR, cluster, drawn, faults

TREES = [FatTree.of_degree(4), FatTree((3, 2, 2), (2, 2, 3)), FatTree((4, 4), (1, 3)), FatTree((5,), (1,))]


def networks(tree: FatTree, quota: Quota) -> tuple[Network, Network]:
    return FatTreeNetwork(tree, quota), GraphNetwork(GraphTopology.of_fat_tree(tree, quota), roots_max=100)


def leaves_and_spines(leaf: dict[str, int], spine: dict[str, int]) -> GraphTopology:
    hosts = {f"h{number}": f"leaf{number // 2}" for number in range(6)}
    switches = {f"leaf{number}": leaf for number in range(3)} | {
        f"spine{number}": spine for number in range(2)
    }
    links = [(f"leaf{one}", f"spine{other}") for one in range(3) for other in range(2)]
    return cluster(hosts, switches, *links)


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("quota", Quota)
def test_a_fat_tree_as_a_graph_has_its_roots_trees_and_conflicts(tree: FatTree, quota: Quota) -> None:
    """Random jobs come and go; all pairs of all their candidates."""
    draw = random.Random(f"graph {tree} {quota}")
    network = GraphNetwork(GraphTopology.of_fat_tree(tree, quota), roots_max=100)
    jobs: dict[int, list[int]] = {}
    seen = set()
    for _ in range(60):
        if len(jobs) > 3:
            slot = draw.choice(list(jobs))
            network.leave(slot)
            del jobs[slot]
        free = sorted(set(range(tree.hosts)) - {host for hosts in jobs.values() for host in hosts})
        if not free:
            continue
        slot = next(number for number in range(99) if number not in jobs)
        jobs[slot] = draw.sample(free, draw.randint(1, min(5, len(free))))
        footprint = tree.footprint(jobs[slot])
        colours = list(tree.colours(footprint.height))
        assert network.enter(slot, jobs[slot]) == len(colours)
        for root, colour in enumerate(colours):
            size = (
                len(list(tree.tree_switches(footprint, colour))),
                len(list(tree.tree_links(footprint, colour))),
            )
            assert network.tree_size(slot, root) == size
        seen |= check_conflicts(tree, quota, network, jobs)
    assert seen >= ({False, True} if tree.layers > 1 else {False})


def check_conflicts(
    tree: FatTree, quota: Quota, network: GraphNetwork, jobs: dict[int, list[int]]
) -> set[bool]:
    trees = [
        (slot, root, tree.footprint(hosts), colour)
        for slot, hosts in jobs.items()
        for root, colour in enumerate(tree.colours(tree.footprint(hosts).height))
    ]
    slots, roots = (np.array([one[number] for one in trees], np.int64) for number in range(2))
    found = network.conflicts(slots, roots)
    seen = set()
    for one, (slot, root, footprint, colour) in enumerate(trees):
        row = network.conflicts_with(slot, root, slots, roots)
        for other, (its_slot, _, its, others) in enumerate(trees):
            exclude = tree.conflict(footprint, colour, its, others, quota)
            if slot == its_slot:
                assert found[one, other] == (one != other)
                assert not row[other]
                continue
            assert found[one, other] == row[other] == exclude
            seen.add(exclude)
    return seen


@pytest.mark.parametrize("quota", Quota)
def test_both_networks_answer_alike(quota: Quota) -> None:
    """With the numbers of roots and slots that builders see, jobs coming and going, in a larger tree."""
    tree, draw = FatTree.of_degree(8), random.Random(f"both {quota}")
    both, jobs, taken = networks(tree, quota), dict[int, int](), dict[int, list[int]]()
    for _ in range(80):
        slot = draw.randrange(20)
        if jobs.pop(slot, None) is not None:
            for network in both:
                network.leave(slot)
            del taken[slot]
            continue
        free = sorted(set(range(tree.hosts)) - {host for hosts in taken.values() for host in hosts})
        taken[slot] = draw.sample(free, draw.choice([1, 2, 3, 4]))
        closed, graph = (network.enter(slot, taken[slot]) for network in both)
        assert closed == graph
        jobs[slot] = closed
        slots = np.array([draw.choice(list(jobs)) for _ in range(60)], np.int64)
        roots = np.array([draw.randrange(jobs[one]) for one in slots.tolist()], np.int64)
        closed_pairs, graph_pairs = (network.conflicts(slots, roots) for network in both)
        assert (closed_pairs == graph_pairs).all()
        closed_row, graph_row = (
            network.conflicts_with(slot, jobs[slot] - 1, slots, roots) for network in both
        )
        assert (closed_row == graph_row).all()
        closed_size, graph_size = (network.tree_size(slot, 0) for network in both)
        assert closed_size == graph_size
        switch = draw.randrange(both[0].switches)
        through, graph_through = (network.roots_through(slot, switch).tolist() for network in both)
        assert through == graph_through
        at_it, graph_at_it = (network.hosts_at(switch).tolist() for network in both)
        assert at_it == graph_at_it


def test_trees_are_shortest_ways_whose_inputs_join_where_they_are_summed() -> None:
    """Judged by NetworkX in random graphs; trees of a job differ, capacities are those of what they use."""
    draw, jobs, without = random.Random("trees in graphs"), 0, 0
    for _ in range(300):
        topology = drawn(draw)
        network = GraphNetwork(topology, slack=draw.choice([0, 0, 1, 9]))
        hosts = draw.sample(range(topology.hosts), draw.randint(2, min(6, topology.hosts)))
        count = network.enter(0, hosts)
        trees = [network.tree(0, root) for root in range(count)]
        assert len({(tree.switches, tree.links) for tree in trees}) == count
        for root, tree in enumerate(trees):
            assert faults(topology, tree, hosts) == []
            passed = [topology.switches[number] for number in tree.switches]
            expected = [one.jobs for one in passed if one.aggregates and one.jobs is not None]
            expected += [limit for link in tree.links if (limit := topology.link_jobs(topology.links[link]))]
            assert sorted(network.capacities[list(network.resources(0, root))]) == sorted(expected)
        jobs += 1
        without += count == 0
    assert 0 < without < jobs / 2


def test_the_same_hosts_have_the_same_candidates_always() -> None:
    topology = GraphTopology.of_fat_tree(FatTree.of_degree(6), Quota.LINK)
    network = GraphNetwork(topology)
    hosts = [0, 1, 9, 17, 30]
    first = network.candidates(hosts)
    for other in range(40):
        network.enter(other, [other, other + 1])
    assert (
        network.candidates(hosts) == first == GraphNetwork(topology).candidates(sorted(hosts, reverse=True))
    )


def test_nearest_roots_come_first_and_others_where_slack_allows() -> None:
    topology = leaves_and_spines(NDR, NDR)
    assert [tree.root for tree in GraphNetwork(topology).candidates([0, 1])] == [0]
    assert [tree.root for tree in GraphNetwork(topology).candidates([0, 2])] == [3, 4]
    assert [tree.root for tree in GraphNetwork(topology, roots_max=1).candidates([0, 2])] == [3]
    # A leaf's trees are those of the spines that they lead through: the same links are no new tree.
    assert [tree.root for tree in GraphNetwork(topology, slack=1).candidates([0, 2])] == [3, 4]


def test_switches_that_do_not_sum_are_passed_but_nothing_joins_there() -> None:
    """Only leaves sum: one is the root, through either spine; the other has the same trees."""
    topology = leaves_and_spines(HDR, {})
    network = GraphNetwork(topology)
    assert [(tree.root, tree.switches) for tree in network.candidates([0, 2])] == [
        (0, (0, 1, 3)),
        (0, (0, 1, 4)),
    ]
    assert [tree.root for tree in network.candidates([0, 2, 4])] == []
    network = GraphNetwork(leaves_and_spines({}, HDR))
    assert [tree.root for tree in network.candidates([0, 2])] == [3, 4]
    assert network.candidates([0, 1]) == (), "their leaf does not sum, and all ways lead through it"
    assert network.enter(0, [0, 1]) == 0


def test_generations_are_mixed_in_one_cluster() -> None:
    """Two HDR leaves, quota by switch; one NDR spine, quota by port."""
    topology = cluster(
        {"a": "hdr0", "b": "hdr1", "c": "ndr0", "d": "ndr1", "e": "hdr0", "f": "ndr0", "g": "ndr1"},
        {"hdr0": HDR, "hdr1": HDR, "ndr0": NDR, "ndr1": NDR, "top": NDR},
        ("hdr0", "top"),
        ("hdr1", "top"),
        ("ndr0", "top"),
        ("ndr1", "top"),
    )
    number = {name: node for node, name in enumerate(topology.host_names)}
    network = GraphNetwork(topology)

    def exclude(one: str, other: str) -> bool:
        slots, roots = np.array([0, 1]), np.array([0, 0])
        for slot, names in enumerate((one, other)):
            assert network.enter(slot, [number[name] for name in names]) == 1
        found = bool(network.conflicts(slots, roots)[0, 1])
        network.leave(0)
        network.leave(1)
        return found

    assert not exclude("ab", "cd"), "they meet at the top, at ports of their own"
    assert exclude("ab", "ec"), "both are summed by hdr0"
    assert exclude("ac", "df") is True, "both go from ndr0 to the top"
    assert not exclude("cf", "dg"), "a leaf each"
    assert not exclude("ab", "cf")


def test_capacities_above_one_exclude_no_pair() -> None:
    topology = GraphTopology.of_fat_tree(FatTree((2, 2), (1, 1)), Quota.SWITCH, jobs=2)
    network = GraphNetwork(topology)
    for slot, hosts in enumerate([[0, 2], [1, 3]]):
        assert network.enter(slot, hosts) == 1
    assert network.resources(0, 0) == network.resources(1, 0) == (0, 1, 2)
    assert network.capacities.tolist() == [2, 2, 2]
    pair = np.array([0, 1]), np.array([0, 0])
    assert not network.conflicts(*pair).any()
    assert not network.conflicts_with(0, 0, *pair).any()
    assert network.conflicts(np.array([0, 0]), np.array([0, 0])).tolist() == [[False, True], [True, False]]


def test_one_host_has_an_empty_tree() -> None:
    network = GraphNetwork(leaves_and_spines(HDR, HDR))
    assert network.enter(3, [5]) == 1
    assert network.tree(3, 0) == GraphTree(-1, (), ())
    assert network.tree_size(3, 0) == (0, 0)
    assert network.resources(3, 0) == ()
    assert network.conflicts(np.array([], np.int64), np.array([], np.int64)).shape == (0, 0)


def test_misuse_of_slots_and_hosts() -> None:
    network = GraphNetwork(leaves_and_spines(HDR, HDR))
    network.enter(0, [0])
    for slot, hosts in ((0, [1]), (-1, [1]), (1, []), (1, [6]), (1, [-1])):
        with pytest.raises(LocalMisuse):
            network.enter(slot, hosts)
    with pytest.raises(LocalMisuse):
        network.leave(1)
    with pytest.raises(ConfigError):
        GraphNetwork(network.topology, roots_max=0)


def test_links_without_jobs_are_not_in_trees() -> None:
    hosts, switches = {"a": "x", "b": "y"}, {"x": NDR, "y": NDR, "z": NDR}
    ways: list[tuple[str, str]] = [("x", "z"), ("z", "y")]
    near = GraphNetwork(cluster(hosts, switches, ("x", "y"), *ways))
    assert near.candidates([0, 1])[0].root == 0
    far = GraphNetwork(cluster(hosts, switches, ("x", "y", 0), *ways))
    assert [tree.root for tree in far.candidates([0, 1])] == [2]


# -- placement


@pytest.mark.parametrize("tree", [*TREES, FatTree((2, 2, 2, 2), (1, 2, 1, 2))], ids=str)
def test_distances_find_the_pods_of_a_fat_tree(tree: FatTree) -> None:
    topology = GraphTopology.of_fat_tree(tree, Quota.LINK)
    assert topology.levels == tuple(
        tuple(host // tree.pod_hosts(layer) for host in range(tree.hosts))
        for layer in range(1, tree.layers + 1)
    )
    assert topology.hierarchy().down == tree.down
    draw = random.Random(f"fragments {tree}")
    for _ in range(100):
        chosen = draw.sample(range(tree.hosts), draw.randint(0, tree.hosts))
        members = np.isin(np.arange(tree.hosts), chosen)
        assert fragments(topology, members) == fragments(tree, members)
    free = Occupancy(topology)
    free.take([0])
    hosts = LeastFragments(topology.hierarchy()).place(free, prod(tree.down[:1]))
    assert hosts == LeastFragments(tree).place(free, prod(tree.down[:1]))


def test_uneven_clusters_have_fragments_but_no_equal_pods() -> None:
    topology = cluster(
        {"a": "x", "b": "x", "c": "y", "d": "y", "e": "y"},
        {"x": HDR, "y": HDR, "z": HDR},
        ("x", "z"),
        ("y", "z"),
    )
    assert topology.levels == ((0, 0, 1, 1, 1), (0, 0, 0, 0, 0))
    with pytest.raises(ConfigError, match="level 1 hold 2 to 3"):
        topology.hierarchy()
    occupancy = Occupancy(topology)
    assert occupancy.free_fragments() == 1
    assert FirstFit().place(occupancy, 3) == (0, 1, 2)
    assert RandomFit(1).place(occupancy, 6) is None
    occupancy.take([0, 1, 2])
    assert (occupancy.busy_fragments(), occupancy.free_fragments()) == (2, 2)
    mixed = cluster({"a": "x", "b": "y", "c": "x", "d": "y"}, {"x": HDR, "y": HDR}, ("x", "y"))
    with pytest.raises(ConfigError, match="not in order"):
        mixed.hierarchy()


@pytest.mark.parametrize(
    ("hosts", "switches", "links", "message"),
    [
        ("", "s", [], "at least one host"),
        ("ab", "s", [(0, 2)], "host b: no link"),
        ("ab", "s", [(0, 2), (0, 1)], "a - b: both are hosts"),
        ("aa", "s", [(0, 2), (1, 2)], "a: 2 nodes"),
        ("a", "a", [(0, 1)], "a: 2 nodes"),
        ("a", "s", [(0, 1), (1, 1)], "s - s: from a node to itself"),
        ("a", "s", [(0, 2)], "nodes are 0 to 1"),
        ("ab", "st", [(0, 2), (1, 3)], "host b: no path leads to it from host a"),
    ],
)
def test_what_is_no_cluster_is_named(
    hosts: str, switches: str, links: list[tuple[int, int]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        GraphTopology(
            tuple(hosts),
            tuple(GraphSwitch(name, jobs=1) for name in switches),
            tuple(GraphLink(*one) for one in links),
        )


def test_hosts_are_linked_to_switches_by_links_without_trees_too() -> None:
    """Plain operations go over them: such a host is not cut off."""
    topology = GraphTopology(
        ("a", "b"), (GraphSwitch("leaf", jobs=1),), (GraphLink(0, 2), GraphLink(1, 2, jobs=0))
    )
    assert GraphNetwork(topology).hosts_at(0).tolist() == [0, 1]
