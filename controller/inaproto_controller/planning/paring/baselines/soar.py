"""DeepSys+SOAR (PARING section V-B): which switches of a fixed tree add up, K at most, for least traffic.

SOAR is exact on a tree. With ``best(v, l, i)`` the least links that carry a gradient within v's subtree and
on the l links from v up to the next that adds up, where i switches of the subtree may add:

    a worker             l
    v adds up            l + least sum of best(child, 1, .) over all ways to share i - 1 among the children
    v passes on          least sum of best(child, l + 1, .) over all ways to share i

A gradient that v passes on is counted in its child's ``l + 1``. SOAR knows no capacity: what is added is all
that arrives, so the rate is that of the most loaded. Ties go to fewer switches. O(nodes * depth * K^2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.baselines.deepsys import plan_deepsys
from inaproto_controller.planning.paring.baselines.delivery_tree import DeliveryTree
from inaproto_controller.planning.paring.model import Node, PlacedTree, ProgrammableNetwork, Task


class _Best(NamedTuple):
    hops: int
    picks: tuple[Any, ...]
    """The switches that add, in nested tuples, so that a step of the program costs no copy."""


def plan_soar(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node] = (),
    *,
    ps: Node | None = None,
    switches_max: int | None = None,
) -> PlacedTree | Infeasible:
    """``switches_max``: K; None: all that are programmable."""
    placed = plan_deepsys(network, task, busy, ps=ps)
    if isinstance(placed, Infeasible):
        return placed
    paths = DeliveryTree.shortest(network.topology, placed.ps, placed.workers(network))
    allowed = network.programmable
    adds = switches_of_least_traffic(paths, allowed, len(allowed) if switches_max is None else switches_max)
    return PlacedTree(placed.ps, paths.contracted(adds))


def switches_of_least_traffic(
    paths: DeliveryTree, allowed: Collection[Node], switches_max: int
) -> tuple[Node, ...]:
    """Ascending; of ``allowed``, those that are to add up."""
    children = paths.children
    depth = {paths.root: 0}
    for node in reversed(list(paths.upwards())):
        if node != paths.root:
            depth[node] = depth[paths.parents[node]] + 1
    best: dict[tuple[Node, int], list[_Best]] = {}
    for node in paths.upwards():
        below = children.get(node, [])
        may_add = node in allowed and switches_max > 0
        adding = _share([best[child, 1] for child in below], switches_max - may_add)
        if node == paths.root:
            return tuple(sorted(_flat(adding[-1].picks)))
        for up in range(1, depth[node] + 1):
            if not below:
                best[node, up] = [_Best(up, ())]
                continue
            passing = _share([best[child, up + 1] for child in below], switches_max)
            best[node, up] = _with(node, up, passing, adding) if may_add else passing
    return ()


def _share(tables: Sequence[Sequence[_Best]], switches_max: int) -> list[_Best]:
    """Least sums by number of switches, which is not to be exceeded; ties go to fewer."""
    total = [_Best(0, ())]
    for table in tables:
        size = min(len(total) + len(table) - 2, switches_max) + 1
        sums = [_least(total, table, 0)]
        for count in range(1, size):
            sums.append(min(sums[-1], _least(total, table, count), key=lambda one: one.hops))
        total = sums
    return total


def _least(total: Sequence[_Best], table: Sequence[_Best], count: int) -> _Best:
    ways = range(max(0, count - len(total) + 1), min(count, len(table) - 1) + 1)
    hops, own = min((total[count - own].hops + table[own].hops, own) for own in ways)
    return _Best(hops, (total[count - own].picks, table[own].picks))


def _with(node: Node, up: int, passing: Sequence[_Best], adding: Sequence[_Best]) -> list[_Best]:
    """``passing``, or better where the node itself adds up."""
    found = [passing[0]]
    for count in range(1, max(len(passing), len(adding) + 1)):
        best, own = passing[min(count, len(passing) - 1)], adding[min(count - 1, len(adding) - 1)]
        best = min(found[-1], best, key=lambda one: one.hops)
        found.append(_Best(up + own.hops, (node, own.picks)) if up + own.hops < best.hops else best)
    return found


def _flat(picks: tuple[Any, ...]) -> Iterator[Node]:
    waiting: list[Any] = [picks]
    while waiting:
        one = waiting.pop()
        if isinstance(one, tuple):
            waiting += one
        else:
            yield one
