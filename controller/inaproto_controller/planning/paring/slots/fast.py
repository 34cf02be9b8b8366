"""A tree at the highest rate with nearly the least traffic, in milliseconds (mode ``fast``).

PARING's Algorithm 2 chooses the parameter server (PS) first, without a look at the switches; what comes out
may miss the highest rate, and has hops far from the fewest. Here a tree is grown (``slot_greedy``) for every
rack that the PS could be in, racks alike in all once, and the best of these are improved (``local_search``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Final

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.model import Node, PlacedTree, ProgrammableNetwork, Task
from inaproto_controller.planning.paring.slots.greedy import greedy_tree
from inaproto_controller.planning.paring.slots.local_search import improved
from inaproto_controller.planning.paring.slots.problem import RackTree, SlotProblem

STARTS_MAX: Final = 12
CHANGES_PER_ELEMENT: Final = 4000
"""Changes that are drawn, over all starts, by worker or switch that could be in the tree."""
CHANGES_MIN: Final = 300_000
"""At least: some 20 ms. Small trees are hard: one hop is several per cent."""


def plan_fast(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node] = (),
    *,
    fees: Mapping[Node, Fraction] | None = None,
) -> PlacedTree | Infeasible:
    """At the highest rate that workers as leaves reach; the servers ``busy`` are taken.

    ``fees``: of switches, in hops, which are to be few together with those of the tree (section IV-C.4).

    The network is of one plane (``planes``): the entrance (``planner``) sees to that.
    """
    problem = SlotProblem.of(network, task, busy)
    if isinstance(problem, Infeasible):
        return problem
    problem = problem.with_fees(fees) if fees else problem
    return fast_tree(problem).placed(problem)


def fast_tree(problem: SlotProblem) -> RackTree:
    def cost(tree: RackTree) -> tuple[int, int]:
        return tree.hops(problem), tree.ps_rack

    grown = sorted((greedy_tree(problem, alike[0]) for alike in problem.ps_rack_classes), key=cost)
    starts = grown[:STARTS_MAX]
    changes = max(CHANGES_MIN, CHANGES_PER_ELEMENT * (problem.workers + len(problem.switches)))
    return min((improved(problem, tree, changes // len(starts)) for tree in starts), key=cost)
