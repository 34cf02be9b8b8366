"""How heuristics are compared with the best: each best is judged by brute force."""

from __future__ import annotations

import io
import json
import random
from itertools import combinations, product

import numpy as np
import pytest
from rich.console import Console

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.graph_network import GraphNetwork
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.model import SHARING, measured
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.placement.occupancy import fragments
from inaproto_controller.planning.trees.builder import TreeJob
from inaproto_controller.planning.trees.exclusive import FirstFitL
from inaproto_hil.evaluation.yardsticks import Instances, Report, report
from inaproto_hil.evaluation.yardsticks.comparison import row_of
from inaproto_hil.evaluation.yardsticks.placements import best_placement
from inaproto_hil.evaluation.yardsticks.trees import Moment, first_fit, most, peeled, thinned

SMALL = Instances(placements=12, trees=4, triples=3, drawn=6)


def moments(quota: Quota, capacity: int, count: int) -> list[tuple[GraphNetwork, list[list[int]], Moment]]:
    tree, draw, found = FatTree((2, 2, 2), (1, 2, 1)), random.Random(f"moments {quota} {capacity}"), []
    network = GraphNetwork(GraphTopology.of_fat_tree(tree, quota, jobs=capacity))
    for _ in range(count):
        hosts = draw.sample(range(8), 8)
        jobs = [[hosts.pop() for _ in range(draw.choice([1, 2, 2]))] for _ in range(4)]
        found.append((network, jobs, Moment.of(network, jobs)))
    return found


def most_by_force(moment: Moment) -> int:
    best = 0
    for roots in product(*(range(-1, len(candidates)) for candidates in moment.needs)):
        served = [candidates[root] for candidates, root in zip(moment.needs, roots, strict=True) if root >= 0]
        used = np.bincount([one for needed in served for one in needed], minlength=len(moment.capacities))
        if (used <= moment.capacities).all():
            best = max(best, len(served))
    return best


@pytest.mark.parametrize(("quota", "capacity"), [(Quota.LINK, 1), (Quota.SWITCH, 1), (Quota.SWITCH, 2)])
def test_most_trees_of_a_moment_by_force(quota: Quota, capacity: int) -> None:
    for _, _, moment in moments(quota, capacity, 25):
        best = most_by_force(moment)
        assert most(moment) == best
        assert first_fit(moment) <= best
        if capacity == 1:
            assert peeled(moment) <= best
            thin = thinned(moment, 1, random.Random(1))
            assert [len(candidates) for candidates in thin.needs] == [1] * len(moment.needs)
            assert peeled(thin) <= most_by_force(thin) <= best


@pytest.mark.parametrize("quota", Quota)
def test_first_fit_of_a_moment_is_that_of_the_builder(quota: Quota) -> None:
    times, seen = StepTimes(measured("opt-125m-4"), SHARING, hosts=2), set()
    for network, hosts, moment in moments(quota, 1, 25):
        jobs = [
            TreeJob(slot, slot, len(one), times, network.enter(slot, one)) for slot, one in enumerate(hosts)
        ]
        changes = FirstFitL(network).build(jobs, range(len(jobs)), now=0.0, completed=False)
        assert sum(root is not None for root in changes.values()) == first_fit(moment)
        seen.add(first_fit(moment))
        for slot in range(len(jobs)):
            network.leave(slot)
    assert len(seen) > 1


def test_best_placements_by_their_definition() -> None:
    draw = random.Random("best placements")
    for tree in (FatTree((2, 2, 2), (1, 2, 2)), FatTree((3, 3), (1, 1)), FatTree((7,), (1,))):
        for alpha in (0.5, 0.25, 2.0) * 6:
            free = draw.sample(range(tree.hosts), draw.randint(1, tree.hosts))
            count = draw.randint(1, len(free))
            costs = {}
            for chosen in combinations(sorted(free), count):
                job = np.isin(np.arange(tree.hosts), chosen)
                rest = np.isin(np.arange(tree.hosts), free) & ~job
                costs[chosen] = fragments(tree, job) + alpha * fragments(tree, rest)
            best = best_placement(tree, free, count, alpha=alpha)
            assert best is not None
            assert best.cost == min(costs.values())
            assert best.hosts == next(chosen for chosen, cost in costs.items() if cost == best.cost)


def test_what_is_too_much_to_try_and_what_is_not_free() -> None:
    tree = FatTree.of_degree(4)
    assert best_placement(FatTree.of_degree(6), range(54), 10) is None
    for count in (0, 3):
        with pytest.raises(LocalMisuse):
            best_placement(tree, [1, 2], count)


def test_rows_are_shares_and_distances() -> None:
    row = row_of("trees", "first fit", [0.0, 0.25, 1e-12, 0.75])
    assert (row.instances, row.equal_share, row.worst_distance) == (4, 0.5, 0.75)
    assert row.mean_distance == pytest.approx(0.25)
    assert row_of("trees", "first fit", []).equal_share is None


@pytest.fixture(scope="module")
def small() -> Report:
    return report(seed="small", sizes=SMALL)


def test_the_report_knows_what_must_be(small: Report) -> None:
    """Nothing is better than the best; least fragments are the best; INA makes no job end later."""
    rows = {(row.yardstick, row.heuristic): row for row in small.rows}
    for row in small.rows:
        assert row.mean_distance is not None
        assert row.worst_distance is not None
        assert row.equal_share is not None
        assert 0 <= row.mean_distance <= row.worst_distance
        assert (row.equal_share == 1) == (row.worst_distance <= 1e-9)
    assert rows["placement", "least fragments"].worst_distance == pytest.approx(0, abs=1e-9)
    assert rows["placement", "random"].instances == SMALL.placements
    for yardstick in ("trees, a job a link", "trees, a job a switch", "trees, 2 jobs a switch"):
        assert rows[yardstick, "first fit"].instances == SMALL.trees
    for kind, groups in {"measured pairs": 28, "measured triples": 3, "drawn jobs": 6}.items():
        lost = {policy: rows[f"time lost, {kind}", policy] for policy in ("score", "greedy", "none")}
        assert {row.instances for row in lost.values()} == {groups}
        assert lost["none"].worst_distance == max(row.worst_distance or 0 for row in lost.values())
    assert small.left_out == 0


def test_the_report_depends_on_its_seed_alone(small: Report) -> None:
    again = report(seed="small", sizes=SMALL)
    assert again == small
    other = report(seed="other", sizes=Instances(placements=12, trees=0, triples=0, drawn=0))
    assert next(row for row in other.rows if row.heuristic == "random") != small.rows[2]


def test_table_and_json_say_the_same(small: Report) -> None:
    document = json.loads(json.dumps(small.document()))
    assert document["instances"] == {"placements": 12, "trees": 4, "triples": 3, "drawn": 6}
    text = io.StringIO()
    Console(file=text, width=140).print(small.table())
    lines = text.getvalue().splitlines()
    for row in document["rows"]:
        line = next(line for line in lines if row["yardstick"] in line and f" {row['heuristic']} " in line)
        assert f"{row['mean_distance']:.1%}" in line
        assert f" {row['instances']} " in line
