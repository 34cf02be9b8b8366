"""Heuristics against the best there is, in numbers: placement, trees, schedules.

Instances are small and drawn from a seed, at the paper's ``sharing`` speeds where times matter. A distance is
0 where a heuristic is as good as the best:

- placement: cost above the least, as a share of it;
- trees: jobs that go without a tree though they could have one, as a share of those that could;
- schedules: time lost, as a share of the least total time; and saving missed, as a share of what the best
  schedule saves over none with INA.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, combinations_with_replacement, pairwise
from random import Random
from typing import Any, Final

import numpy as np
from rich.table import Table

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto_controller.cluster.graph_network import GraphNetwork
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.model import EVALUATED, SHARING, measured
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.placement.least_fragments import LeastFragments
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.planning.placement.simple import FirstFit, RandomFit
from inaproto_controller.planning.trees.rebuild_all import CANDIDATES_MAX
from inaproto_controller.planning.turns.policy import Policy
from inaproto_hil.evaluation.yardsticks.placements import best_placement, placement_costs
from inaproto_hil.evaluation.yardsticks.schedules import (
    FiniteJob,
    best_schedule,
    by_policy,
    coarse,
    finite_job,
    run_schedule,
)
from inaproto_hil.evaluation.yardsticks.trees import Moment, first_fit, most, peeled, thinned

VERSION: Final = 1
EQUAL: Final = 1e-9

_PLACED_IN: Final = (FatTree((2, 2, 4), (1, 2, 2)), FatTree((4, 4), (1, 4)), FatTree((3, 2, 2), (1, 1, 1)))
_HOSTS: Final = 3
"""Hosts of jobs that share a switch: how many changes no time."""
_STEPS: Final = 2
_OPERATIONS: Final = 4
"""Operations of coarse traces; whole ones have up to 97."""

Distances = dict[tuple[str, str], list[float]]
"""Distances by yardstick and heuristic."""


@dataclass(frozen=True, slots=True)
class Instances:
    """How many of each kind."""

    placements: int = 200
    trees: int = 60
    """For each quota, and for two jobs a switch."""
    triples: int = 40
    """Groups of three jobs; of two there are as many as pairs of models."""
    drawn: int = 60
    """Groups of jobs with drawn traces."""


@dataclass(frozen=True, slots=True)
class Row:
    yardstick: str
    heuristic: str
    instances: int
    equal_share: float | None
    """Share of instances in which it is as good as the best; None without any, as the others."""
    mean_distance: float | None
    worst_distance: float | None


@dataclass(frozen=True, slots=True)
class Report:
    seed: int | str
    sizes: Instances
    rows: tuple[Row, ...]
    left_out: int
    """Instances too large to know the best."""

    def document(self) -> dict[str, Any]:
        """For ``json.dump``."""
        return {
            "version": VERSION,
            "seed": self.seed,
            "instances": asdict(self.sizes),
            "left_out": self.left_out,
            "rows": [asdict(row) for row in self.rows],
        }

    def table(self) -> Table:
        title = f"Distance from the best there is, seed {self.seed}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column("yardstick")
        table.add_column("heuristic", no_wrap=True)
        for head in ("cases", "equal", "mean", "worst"):
            table.add_column(head, justify="right", no_wrap=True)
        for row in self.rows:
            shares = (row.equal_share, row.mean_distance, row.worst_distance)
            said = ("-" if share is None else f"{share:.1%}" for share in shares)
            table.add_row(row.yardstick, row.heuristic, str(row.instances), *said)
        return table


def report(*, seed: int | str = 0, sizes: Instances = Instances()) -> Report:
    """Some seconds with the sizes that are default. Raises ``Unsupported`` without SciPy."""
    found: Distances = {}
    left_out = 0
    for one in (*_placements(sizes.placements, seed), *_trees(sizes.trees, seed), *_schedules(sizes, seed)):
        left_out += one is None
        for name, distance in (one or {}).items():
            found.setdefault(name, []).append(distance)
    # As they came, but all rules of a yardstick together.
    places = {yardstick: place for place, (yardstick, _) in reversed([*enumerate(found)])}
    names = sorted(found, key=lambda name: places[name[0]])
    rows = tuple(row_of(*name, found[name]) for name in names)
    return Report(seed, sizes, rows, left_out)


def row_of(yardstick: str, heuristic: str, distances: Iterable[float]) -> Row:
    values = np.array(list(distances))
    if not values.size:
        return Row(yardstick, heuristic, 0, None, None, None)
    equal = float((values <= EQUAL).mean())
    return Row(yardstick, heuristic, values.size, equal, float(values.mean()), float(values.max()))


_One = Mapping[tuple[str, str], float] | None
"""Distances in one instance; None if the best is not known."""


_Rule = LeastFragments | FirstFit | RandomFit


def _placements(count: int, seed: int | str) -> Iterator[_One]:
    draw, random = Random(f"{seed}/yardsticks of placement"), RandomFit(seed)
    planners = {tree: LeastFragments(tree) for tree in _PLACED_IN}
    for _ in range(count):
        tree = draw.choice(_PLACED_IN)
        occupancy = Occupancy(tree)
        occupancy.take(draw.sample(range(tree.hosts), draw.randint(0, tree.hosts * 3 // 4)))
        free = np.flatnonzero(occupancy.free).tolist()
        hosts = draw.randint(1, len(free))
        best = best_placement(tree, free, hosts)
        if best is None:
            yield None
            continue
        rules: dict[str, _Rule] = {
            "least fragments": planners[tree],
            "first fit": FirstFit(),
            "random": random,
        }
        distances = {}
        for name, rule in rules.items():
            placed = rule.place(occupancy, hosts)
            assert placed is not None, "as many are free"
            cost = float(placement_costs(tree, free, np.array([placed]))[0])
            distances["placement", name] = (cost - best.cost) / best.cost
        yield distances


def _trees(count: int, seed: int | str) -> Iterator[_One]:
    tree = FatTree.of_degree(6)
    kinds = (
        ("trees, a job a link", Quota.LINK, 1),
        ("trees, a job a switch", Quota.SWITCH, 1),
        ("trees, 2 jobs a switch", Quota.SWITCH, 2),
    )
    for name, quota, capacity in kinds:
        network = GraphNetwork(GraphTopology.of_fat_tree(tree, quota, jobs=capacity))
        draw = Random(f"{seed}/yardsticks of trees/{name}")
        for _ in range(count):
            hosts = draw.sample(range(tree.hosts), tree.hosts)
            counts = [draw.choice([2, 2, 3, 4, 6]) for _ in range(draw.randint(4, 8 + 4 * capacity))]
            ends = [0, *(end for end in accumulate(counts) if end <= tree.hosts)]
            jobs = [hosts[first:end] for first, end in pairwise(ends)]
            yield _tree_distances(name, Moment.of(network, jobs), capacity, draw)


def _tree_distances(name: str, moment: Moment, capacity: int, draw: Random) -> _One:
    best = most(moment)
    if best is None:
        return None
    served = {"first fit": first_fit(moment)}
    if capacity == 1:
        served["reducing-peeling"] = peeled(moment)
        served[f"reducing-peeling, k = {CANDIDATES_MAX}"] = peeled(thinned(moment, CANDIDATES_MAX, draw))
    return {(name, rule): (best - jobs) / best for rule, jobs in served.items()}


def _schedules(sizes: Instances, seed: int | str) -> Iterator[_One]:
    draw = Random(f"{seed}/yardsticks of schedules")
    job = partial(finite_job, speeds=SHARING, hosts=_HOSTS, steps=_STEPS)
    models = [job(coarse(measured(model), _OPERATIONS)) for model in EVALUATED]
    for pair in combinations_with_replacement(models, 2):
        yield _schedule_distances("measured pairs", pair)
    for _ in range(sizes.triples):
        yield _schedule_distances("measured triples", draw.choices(models, k=3))
    for _ in range(sizes.drawn):
        traces = [_drawn_trace(draw) for _ in range(draw.choice([2, 3]))]
        yield _schedule_distances("drawn jobs", [job(trace) for trace in traces])


def _drawn_trace(draw: Random) -> ModelTrace:
    """Up to four operations that take about as long as the computing around them."""
    count = draw.randint(1, 4)
    ready = sorted(draw.uniform(0.0, 0.1) for _ in range(count))
    sizes = tuple(int(draw.uniform(1e7, 1e9)) for _ in range(count))
    return ModelTrace("drawn", ready[-1] + draw.uniform(0.0, 0.02), tuple(ready), sizes)


def _schedule_distances(kind: str, jobs: Iterable[FiniteJob]) -> _One:
    group = list(jobs)
    best = best_schedule(group)
    if best is None:
        return None
    plain = run_schedule(group, by_policy(Policy.NONE)).seconds
    distances = {}
    for policy in (Policy.SCORE, Policy.GREEDY, Policy.NONE):
        lost = run_schedule(group, by_policy(policy)).seconds - best.seconds
        distances[f"time lost, {kind}", policy.value] = lost / best.seconds
        if plain > best.seconds and policy is not Policy.NONE:
            distances[f"saving missed, {kind}", policy.value] = lost / (plain - best.seconds)
    return distances
