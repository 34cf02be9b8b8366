"""Fees of switches, and a budget for them (PARING section IV-C.4).

A switch that adds up costs its fee once, in links: as much as that many more links of traffic. What is to be
least is then links and fees together, at the highest rate; that a rate is worth any fee is our reading, for
the paper does not say. All planners know fees; none knows a budget, but for exact mode. Where the budget does
not allow what a planner finds, it is asked again: with the switches that are cheapest together, and with fees
told as more than they are.

A budget limits the sum of the fees. The least that a rate can cost is known by counting, as the highest rate
is: a knapsack of the places that switches add. So a budget that no tree of this rate can keep is told with
the rate that it would allow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.logical_graph import LogicalGraph
from inaproto_controller.planning.paring.model import (
    ZERO,
    Node,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.planning.paring.rates import slots, switch_slots, worker_slots

ABOVE_BUDGET: Final = "the fees of every tree of the highest rate are above the budget"

Fees = Mapping[Node, Fraction]
"""Fees of switches, in links; of others nothing is asked."""

Planner = Callable[[ProgrammableNetwork, Fees], PlacedTree | Infeasible]
_DOUBLINGS_MAX: Final = 8


def fee_of(network: ProgrammableNetwork, tree: PlacedTree, fees: Fees) -> Fraction:
    """Fee of all switches of a tree, in links."""
    return sum((fees.get(switch, ZERO) for switch in tree.switches(network)), ZERO)


def above_budget(answers: Sequence[Infeasible], rate: Fraction) -> Infeasible | None:
    """Say of the planes of a network what is to be said if all that go faster than ``rate`` cost too much.

    The least fees for the highest rate, and the highest rate that the budget allows in any plane.
    """
    dear = [answer for answer in answers if answer.reason == ABOVE_BUDGET]

    def of(answer: Infeasible, what: str) -> Fraction:
        return Fraction(str(answer.witness[what]))

    if not dear or max(of(answer, "rate") for answer in dear) <= rate:
        return None
    first = min(dear, key=lambda answer: (-of(answer, "rate"), of(answer, "least fees")))
    within = max([rate, *(of(answer, "highest rate within the budget") for answer in dear)])
    return replace(first, witness={**first.witness, "highest rate within the budget": str(within)})


@dataclass(frozen=True)
class Thrift:
    """Looks for the cheapest tree at one rate, which all switches together reach."""

    network: ProgrammableNetwork
    task: Task
    graph: LogicalGraph
    fees: Fees
    planner: Planner
    """Planner of a tree with the switches and the fees that it is given."""
    rate: Fraction

    def within(self, budget: Fraction | None, best: PlacedTree) -> PlacedTree | Infeasible:
        """``best``, if the budget allows it, else the cheapest tree that is found."""
        if budget is None or fee_of(self.network, best, self.fees) <= budget:
            return best
        least, chosen = self._least(self.rate)
        if least > budget:
            return Infeasible(
                ABOVE_BUDGET,
                {
                    "budget": str(budget),
                    "least fees": str(least),
                    "rate": str(self.rate),
                    "highest rate within the budget": str(self._highest(budget)),
                },
            )
        cheapest = self._tree(self._with(chosen), self.fees)
        assert cheapest is not None, "the chosen switches were counted to be enough"
        dearer = self._dearer(budget)
        return cheapest if dearer is None else min(cheapest, dearer, key=self._rank)

    def _dearer(self, budget: Fraction) -> PlacedTree | None:
        """Where fees are told as twice, four times, ... what they are, a tree uses fewer switches."""
        for doublings in range(1, _DOUBLINGS_MAX + 1):
            found = self._tree(
                self.network, {switch: fee * 2**doublings for switch, fee in self.fees.items()}
            )
            if found is not None and fee_of(self.network, found, self.fees) <= budget:
                return found
        return None

    def _rank(self, tree: PlacedTree) -> tuple[Fraction, Fraction]:
        return -measure(self.network, self.task, tree).rate, self._cost(tree)

    def _cost(self, tree: PlacedTree) -> Fraction:
        """Links and fees."""
        hops = sum(self.network.hops(node, parent) for node, parent in tree.parents.items())
        return hops + fee_of(self.network, tree, self.fees)

    def _with(self, switches: set[Node]) -> ProgrammableNetwork:
        hosts = self.network.topology.hosts
        capacities = (
            capacity if node < hosts or node in switches else ZERO
            for node, capacity in enumerate(self.network.capacities)
        )
        return replace(self.network, capacities=tuple(capacities))

    def _tree(self, network: ProgrammableNetwork, fees: Fees) -> PlacedTree | None:
        found = self.planner(network, fees)
        return None if isinstance(found, Infeasible) else found

    def _reaches(self, switches: set[Node], rate: Fraction) -> bool:
        gained = sum(gain for switch, gain in self._gains(rate).items() if switch in switches)
        return gained >= self._needed(rate)

    def _gains(self, rate: Fraction) -> dict[Node, int]:
        """Gains by switch that gains anything: places for children, less its own."""
        rooms = {
            switch: switch_slots(self.network.capacities[switch], rate, self.task)
            for switch in self.graph.switches
        }
        return {switch: room - 1 for switch, room in rooms.items() if room >= 2}

    def _needed(self, rate: Fraction) -> int:
        """Gains needed for a tree of this rate."""
        n = self.task.workers
        able = (self.network.capacities[server] for rack in self.graph.racks for server in rack)
        return n - max(slots(one, rate, n) for one in able) - n * worker_slots(rate, self.task)

    def _least(self, rate: Fraction) -> tuple[Fraction, set[Node]]:
        """Fees with which the rate can be had, and for which switches: a knapsack of gains."""
        needed = max(0, self._needed(rate))
        best: list[tuple[Fraction, frozenset[Node]] | None] = [None] * (needed + 1)
        best[0] = ZERO, frozenset()
        for switch, gain in self._gains(rate).items():
            fee = self.fees.get(switch, ZERO)
            for gained in range(needed - 1, -1, -1):
                entry = best[gained]
                if entry is None:
                    continue
                at = min(needed, gained + gain)
                other = best[at]
                if other is None or entry[0] + fee < other[0]:
                    best[at] = entry[0] + fee, entry[1] | {switch}
        found = best[needed]
        assert found is not None, "all switches together reach the rate"
        return found[0], set(found[1])

    def _highest(self, budget: Fraction) -> Fraction:
        """Rate of a tree whose fees are within the budget."""
        n = self.task.workers
        servers = {self.network.capacities[server] for rack in self.graph.racks for server in rack}
        able = servers | {self.network.capacities[one] for one in self.graph.switches}
        able.add(self.task.worker_capacity)
        cap = self.task.rate_cap
        rates = {cap} | {one / share for one in able if one for share in range(1, n + 1) if one / share < cap}
        rising = sorted(rates)
        above = bisect_left(rising, True, key=lambda rate: not self._affords(rate, budget))
        return rising[above - 1] if above else ZERO

    def _affords(self, rate: Fraction, budget: Fraction) -> bool:
        return self._reaches(set(self.graph.switches), rate) and self._least(rate)[0] <= budget
