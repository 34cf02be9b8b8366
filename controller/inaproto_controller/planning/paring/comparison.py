"""PARING's modes side by side on random masks: how near the optimum, how long.

A *mask* says which switches of a fat tree can add up; PARING's section V draws a few. Here a seed draws how
many, which of all layers, and how many workers there are. ``fast`` mode is held against the proved optimum of
``exact``. The printed algorithm seldom reaches the highest rate, and at a lower one fewer hops are needed, so
it is held against the highest rate, and its hops against the proved optimum at its own rate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from time import perf_counter, process_time
from typing import Final, TypeVar

from inaproto.errors import Infeasible, InvariantBroken
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.paring.model import Node, ProgrammableNetwork, Task, measure
from inaproto_controller.planning.paring.slots.exact import plan_exact
from inaproto_controller.planning.paring.slots.fast import plan_fast
from inaproto_controller.planning.paring.spiders.printed import plan_printed

_Plan = TypeVar("_Plan")

CAPACITY: Final = Fraction(10)
RATE_CAP: Final = Fraction(100)
"""In Gbit/s; more than any capacity, so that it never binds."""
SWITCHES: Final = (2, 16)
WORKERS: Final = (8, 40)
"""Least and most that are drawn."""


@dataclass(frozen=True, slots=True)
class Mask:
    network: ProgrammableNetwork
    task: Task

    @classmethod
    def of(cls, degree: int, switches: Collection[Node], workers: int) -> Mask:
        topology = GraphTopology.of_fat_tree(FatTree.of_degree(degree), Quota.SWITCH)
        network = ProgrammableNetwork.uniform(topology, dict.fromkeys(switches, CAPACITY), CAPACITY)
        return cls(network, Task(workers, 1, RATE_CAP))

    @classmethod
    def drawn(
        cls,
        seed: int,
        *,
        degree: int = 6,
        switches: tuple[int, int] = SWITCHES,
        workers: tuple[int, int] = WORKERS,
    ) -> Mask:
        """``switches``, ``workers``: how many at least and at most. All switches are equally likely."""
        draw = random.Random(f"{seed}/paring mask")
        count, placed = draw.randint(*switches), draw.randint(*workers)
        first, layers = degree**3 // 4, 5 * degree**2 // 4
        return cls.of(degree, sorted(draw.sample(range(first, first + layers), count)), placed)


@dataclass(frozen=True, slots=True)
class Spent:
    seconds: float
    cpu_seconds: float
    """Processor time of this process: what another one takes of a busy machine does not count."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison for one mask. Rates in Gbit/s."""

    seed: int
    switches: int
    workers: int
    rate: Fraction
    """r*."""
    hops: int
    """The fewest at r*, or the fewest that were found in time."""
    bound: int
    exact: Spent
    fast_rate: Fraction
    fast_hops: int
    fast: Spent
    printed_rate: Fraction
    printed_hops: int
    printed_bound: int
    """No tree at the printed algorithm's rate has fewer hops."""
    printed: Spent

    @property
    def is_proved(self) -> bool:
        return self.hops == self.bound

    @property
    def fast_gap(self) -> float:
        """Hops above the optimum, as a share of it."""
        return self.fast_hops / self.bound - 1

    @property
    def printed_gap(self) -> float:
        return self.printed_hops / self.printed_bound - 1

    @property
    def printed_rate_share(self) -> float:
        """Share of the highest rate that the printed one reaches."""
        return float(self.printed_rate / self.rate)


def compare(mask: Mask, seed: int, *, exact_seconds: float) -> Compared:
    """``exact_seconds``: at most, of each of two optima."""
    network, task = mask.network, mask.task
    exact, exact_spent = timed(lambda: plan_exact(network, task, seconds=exact_seconds))
    fast, fast_spent = timed(lambda: plan_fast(network, task))
    printed, printed_spent = timed(lambda: plan_printed(network, task))
    best, near, far = (measure(network, task, tree) for tree in (exact.tree, fast, printed))
    own = plan_exact(network, replace(task, rate_cap=far.rate), seconds=exact_seconds)
    return Compared(
        seed,
        len(network.programmable),
        task.workers,
        best.rate,
        best.hops,
        exact.bound,
        exact_spent,
        near.rate,
        near.hops,
        fast_spent,
        far.rate,
        far.hops,
        _planned(own).bound,
        printed_spent,
    )


def comparisons(seeds: Iterable[int], *, exact_seconds: float = 60.0) -> Iterator[Compared]:
    """Comparisons for the masks that the seeds draw at k = 6; what is compiled on first use is so before."""
    plan_fast(*_parts(Mask.drawn(0)))
    for seed in seeds:
        yield compare(Mask.drawn(seed), seed, exact_seconds=exact_seconds)


def _parts(mask: Mask) -> tuple[ProgrammableNetwork, Task]:
    return mask.network, mask.task


def timed(planned: Callable[[], _Plan | Infeasible]) -> tuple[_Plan, Spent]:
    began, cpu = perf_counter(), process_time()
    plan = _planned(planned())
    return plan, Spent(perf_counter() - began, process_time() - cpu)


def _planned(plan: _Plan | Infeasible) -> _Plan:
    if isinstance(plan, Infeasible):
        raise InvariantBroken(f"a fat tree that holds all workers has a tree: {plan}")
    return plan
