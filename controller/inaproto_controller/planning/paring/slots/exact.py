"""The least traffic at the highest rate, with a proof: an integer program (mode ``exact``).

PARING's section III-C states its problem as such a program over single servers, and does not solve it. The
one of ``rack_program`` counts servers by rack instead, so that HiGHS proves its optimum, in seconds at some
fifty servers and in minutes at a thousand. The answer is never worse than that of ``fast`` mode, whatever
the time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isfinite, lcm
from typing import Final

from inaproto.errors import Infeasible, InvariantBroken
from inaproto_controller.planning.paring.model import ZERO, Node, PlacedTree, ProgrammableNetwork, Task
from inaproto_controller.planning.paring.slots.fast import fast_tree
from inaproto_controller.planning.paring.slots.problem import RackTree, SlotProblem
from inaproto_controller.planning.paring.slots.rack_program import RackProgram

_ROUNDING: Final = 1e-6
"""HiGHS has its bounds as floats; hops are whole."""
_TELLING: Final = 0.1
"""Share of the least step between two sums of hops and fees: by less than that bounds of HiGHS may be off."""


@dataclass(frozen=True, slots=True)
class ExactPlan:
    tree: PlacedTree
    hops: int
    bound: int
    """No tree of leaf workers at the highest rate has fewer hops, with the PS where it was allowed."""

    @property
    def is_proved(self) -> bool:
        return self.hops == self.bound


def plan_exact(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node] = (),
    *,
    seconds: float,
    ps_racks: Sequence[int] | None = None,
) -> ExactPlan | Infeasible:
    """A tree of fewest hops at the highest rate; after ``seconds`` the best that was found, and a bound.

    The network is of one plane (``planes``), or nothing is proved: the entrance (``planner``) sees to that.
    ``ps_racks``: which of the racks (``LogicalGraph``) the PS may be in; all by default. Raises
    ``Unsupported`` without SciPy.
    """
    problem = SlotProblem.of(network, task, busy)
    if isinstance(problem, Infeasible):
        return problem
    if ps_racks is not None:
        problem = problem.within(ps_racks)
        if not problem.ps_racks:
            racks = ", ".join(map(str, ps_racks)) or "none"
            return Infeasible("no rack that it may be in can hold the parameter server", {"racks": racks})
    tree, bound = exact_tree(problem, seconds)
    return ExactPlan(tree.placed(problem), tree.hops(problem), bound)


def plan_cheapest(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node] = (),
    *,
    start: PlacedTree,
    fees: Mapping[Node, Fraction],
    budget: Fraction | None,
    seconds: float,
) -> tuple[PlacedTree, Fraction]:
    """A tree of fewest hops and fees together (section IV-C.4) at the highest rate, whose fees are within the
    budget, and a lower bound of any's. ``start``: such a tree, which is the answer if none better is found.

    Fees are floats to HiGHS: where one is so large, or so odd, that they cannot be told from their sums, the
    bound is 0.
    """
    problem = SlotProblem.of(network, task, busy)
    if isinstance(problem, Infeasible):
        raise InvariantBroken(f"a task that has a tree is refused: {problem}")

    def cost(tree: PlacedTree) -> tuple[Fraction, Fraction]:
        """Hops and fees of it."""
        hops = sum(network.hops(node, parent) for node, parent in tree.parents.items())
        fee = sum((fees.get(switch, ZERO) for switch in tree.switches(network)), ZERO)
        return hops + fee, fee

    own = [fees.get(switch, ZERO) for switch in problem.switches]
    best, (least, _) = start, cost(start)
    found, bound = RackProgram(problem, own, budget).solve(float(least), seconds)
    if found is not None:
        tree = found.placed(problem)
        told, fee = cost(tree)
        if told < least and (budget is None or fee <= budget):
            best, least = tree, told
    parts = lcm(*(fee.denominator for fee in own))
    rounding = _ROUNDING * max([1.0, *map(float, own)])
    if not isfinite(bound) or rounding * parts >= _TELLING:
        return best, ZERO
    return best, min(least, Fraction(ceil((bound - rounding) * parts), parts))


def exact_tree(problem: SlotProblem, seconds: float) -> tuple[RackTree, int]:
    """The best tree that was found, and a lower bound of the hops of any."""
    best = fast_tree(problem)
    found, least = RackProgram(problem).solve(best.hops(problem), seconds)
    if found is not None:
        best = found
    hops = best.hops(problem)
    return best, min(hops, ceil(least - _ROUNDING)) if isfinite(least) else 0
