"""MLNet section 4, its simulation: the network, the schemes' flows, and the phase times that are exact."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from inaproto.errors import LocalMisuse
from inaproto_hil.evaluation.flows.fat_tree_links import FatTreeLinks, drawn_choices
from inaproto_hil.evaluation.flows.paths import NO_LINK, Ints
from inaproto_hil.evaluation.flows.phase import Load, carry
from inaproto_hil.evaluation.flows.trees import Edges, Scheme, edges

SMALL = FatTreeLinks(8)


def placed(network: FatTreeLinks, workers: int, servers: int, seed: int = 0) -> tuple[Ints, Ints]:
    draw = np.random.default_rng(seed)
    hosts = network.servers
    return draw.choice(hosts, workers, replace=False), draw.choice(hosts, servers, replace=False)


def small_edges(scheme: Scheme, servers: int = 12) -> tuple[Edges, Ints, Ints]:
    workers, on = placed(SMALL, 100, servers)
    return edges(scheme, workers, on, SMALL.half, np.random.default_rng(1)), workers, on


# -- the network


def test_the_cluster_has_1024_servers_320_switches_and_128_racks_of_8() -> None:
    network = FatTreeLinks(16, 4.0)
    assert (network.servers, network.switches, network.racks, network.half) == (1024, 320, 128, 8)
    capacities = network.capacities()
    assert len(capacities) == 6144
    assert np.unique(capacities, return_counts=True)[1].tolist() == [4096, 2048], "core links, servers' links"
    assert capacities.min() == 0.25


def test_the_workload_is_the_paper_s_arithmetic() -> None:
    """141 TB over 800 workers; at 100 to 200 MB/s that is 59 to 29 synchronisations, 30 s apart."""
    per_worker = Fraction(141 * 10**12, 800)
    assert per_worker == Fraction("176.25") * 10**9
    seconds = [per_worker / (rate * 10**6) for rate in (100, 200)]
    assert seconds == [Fraction("1762.5"), Fraction("881.25")]
    assert [one / 30 for one in seconds] == [Fraction("58.75"), Fraction("29.375")]


def test_a_path_goes_up_as_far_as_it_must_and_comes_down_the_same_column() -> None:
    network = FatTreeLinks(4)
    sources, sinks = np.array([0, 0, 0, 0]), np.array([0, 1, 2, 15])
    paths = network.paths(sources, sinks, np.array([3, 3, 3, 3]))
    assert paths.hops.tolist() == [0, 2, 4, 6]
    rack_of_7, last_pod = 7 * 2, 3 * 4
    expected = [0, 48 + 1, 0, 16 + 1, 64 + 1 * 2 + 1, 48 + 2]
    expected += [0, 16 + 1, 32 + 3, 80 + last_pod + 3, 64 + rack_of_7 + 1, 48 + 15]
    assert paths.links.tolist() == expected


def test_ecmp_takes_every_path_between_pods_alike() -> None:
    flows = 64000
    choices = drawn_choices(FatTreeLinks(16), flows, np.random.default_rng(0))
    counts = np.bincount(choices, minlength=64)
    assert len(counts) == 64
    assert abs(counts - flows / 64).max() < 5 * np.sqrt(flows / 64)


def test_paths_back_are_the_same_links_the_other_way() -> None:
    draw = np.random.default_rng(0)
    ends = draw.integers(0, SMALL.servers, (2, 300))
    choices = drawn_choices(SMALL, 300, draw)
    there = SMALL.paths(ends[0], ends[1], choices)
    back = SMALL.mirrored(there)
    again = SMALL.paths(ends[1], ends[0], choices)
    assert back.first.tolist() == again.first.tolist()
    assert back.links.tolist() == again.links.tolist()
    assert NO_LINK not in back.links


@pytest.mark.parametrize(("ports", "oversubscription"), [(3, 1.0), (0, 1.0), (4, 0.5)])
def test_what_is_no_fat_tree_is_refused(ports: int, oversubscription: float) -> None:
    with pytest.raises(LocalMisuse):
        FatTreeLinks(ports, oversubscription)


# -- the schemes


@pytest.mark.parametrize("scheme", list(Scheme))
def test_every_worker_sends_once_for_each_server_and_all_of_it_arrives_there(scheme: Scheme) -> None:
    found, workers, servers = small_edges(scheme)
    sources = found.sources.reshape(len(servers), -1)
    assert all(sorted(one) == sorted(workers) for one in sources)
    above = dict(zip(found.before.tolist(), found.after.tolist(), strict=True))
    for edge in range(len(found.sources)):
        if edge in above:
            assert found.sinks[edge] == found.sources[above[edge]]
        else:
            assert found.sinks[edge] == servers[edge // len(workers)]
        assert edge not in above or above[edge] // len(workers) == edge // len(workers)


@pytest.mark.parametrize(
    ("scheme", "height", "in_degree"),
    [
        (Scheme.BASELINE, 1, 100),
        (Scheme.RACK, 2, 32),
        (Scheme.BINARY, 6, 2),
        (Scheme.BINARY_SHARED, 6, 2),
        (Scheme.CHAIN, 100, 1),
    ],
)
def test_heights_and_in_degrees(scheme: Scheme, height: int, in_degree: int) -> None:
    found, _, _ = small_edges(scheme)
    assert (found.height, found.in_degree) == (height, in_degree)


def test_rack_has_one_aggregator_for_each_rack_and_server_and_only_it_leaves_the_rack() -> None:
    found, workers, servers = small_edges(Scheme.RACK)
    aggregated = set(found.before.tolist())
    heads = [edge for edge in range(len(found.sources)) if edge not in aggregated]
    racks = SMALL.rack_of(found.sources[heads]).reshape(len(servers), -1)
    assert all(len(set(one)) == len(one) == len(set(SMALL.rack_of(workers))) for one in racks)
    inner = sorted(aggregated)
    assert (SMALL.rack_of(found.sources[inner]) == SMALL.rack_of(found.sinks[inner])).all()


@pytest.mark.parametrize(
    ("scheme", "is_shared"),
    [(Scheme.RACK_SHARED, True), (Scheme.BINARY_SHARED, True), (Scheme.RACK, False), (Scheme.BINARY, False)],
)
def test_shared_trees_are_the_same_for_all_servers(scheme: Scheme, is_shared: bool) -> None:
    found, _, servers = small_edges(scheme)
    sources = found.sources.reshape(len(servers), -1)
    assert (sources == sources[0]).all() == is_shared


@pytest.mark.parametrize("scheme", [Scheme.RACK_TURNS, Scheme.RACK_THEN_BINARY, Scheme.CHAIN])
def test_in_turns_no_worker_of_a_rack_receives_for_many_more_servers_than_another(scheme: Scheme) -> None:
    """Ours: with as many servers as any rack has workers, each aggregates for as many."""
    workers = np.arange(128)
    found = edges(scheme, workers, np.arange(128)[::4], SMALL.half, np.random.default_rng(0))
    inner = found.sinks[found.before]
    received = np.bincount(inner, minlength=128)
    assert received.max() <= 2 * received.mean()


# -- phase times


@pytest.mark.parametrize(("servers", "time"), [(50, 16.0), (200, 4.0), (300, 8 / 3), (400, 2.0)])
def test_without_oversubscription_a_baseline_phase_is_800_over_p(servers: int, time: float) -> None:
    network = FatTreeLinks(16)
    assert phase(network, Scheme.BASELINE, 800, servers) == pytest.approx(time, rel=1e-9)


def phase(network: FatTreeLinks, scheme: Scheme, workers: int, servers: int, seed: int = 0) -> float:
    found = edges(scheme, *placed(network, workers, servers, seed), network.half, np.random.default_rng(seed))
    choices = drawn_choices(network, len(found.sources), np.random.default_rng(seed + 1))
    paths = network.paths(found.sources, found.sinks, choices)
    load = Load.of(paths, np.full(len(paths), 1 / servers))
    there = carry(network.capacities(), load).time
    assert there == pytest.approx((load.on_links(network.links) / network.capacities()).max(), rel=1e-9)
    back = carry(network.capacities(), Load.of(network.mirrored(paths), load.volumes)).time
    assert back == pytest.approx(there, rel=1e-9), "the pull phase is the push phase's mirror image"
    return there


def test_with_1024_servers_and_50_parameter_servers_binary_is_before_rack_and_with_1_to_4_behind_it() -> None:
    """The exact times of whole phases; how long those take to compute is measured by the report."""
    times = {
        over: [
            phase(FatTreeLinks(16, over), scheme, 800, 50)
            for scheme in (Scheme.BINARY, Scheme.RACK, Scheme.BASELINE)
        ]
        for over in (1.0, 4.0)
    }
    binary, rack, baseline = times[1.0]
    assert binary < rack < baseline
    binary, rack, baseline = times[4.0]
    assert rack < binary < baseline


def test_trees_that_wait_for_their_children_are_no_faster_than_streamed_ones() -> None:
    for scheme in (Scheme.RACK, Scheme.BINARY, Scheme.BINARY_SHARED):
        found, _, servers = small_edges(scheme)
        choices = drawn_choices(SMALL, len(found.sources), np.random.default_rng(0))
        paths = SMALL.paths(found.sources, found.sinks, choices)
        volumes = np.full(len(paths), 1 / len(servers))
        streamed = carry(SMALL.capacities(), Load.of(paths, volumes))
        load = Load.of(paths, volumes, before=found.before, after=found.after)
        stored = carry(SMALL.capacities(), load)
        near = carry(SMALL.capacities(), load, slack=0.001)
        assert streamed.time < stored.time
        assert near.time == pytest.approx(stored.time, rel=0.02), "rates held for 0.1 % of the time"
