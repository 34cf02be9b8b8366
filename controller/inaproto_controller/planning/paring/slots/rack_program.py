"""PARING's problem at a given rate as an integer program that counts servers by rack.

Servers of one rack are interchangeable (``slot_problem``), and so are, to every switch, those of a *group*:
racks at equal distances from all switches. With G groups, S switches, n workers, and the parameter server
(PS) in one of the racks q, of racks alike in all only the first, the variables are

- ``to_switch[g, s]``: workers of group g that send to switch s;
- ``direct[g, d, q]``: those that send straight to a PS in rack q, d hops away;
- ``ps[q]``, ``used[s]``: where the PS is, and which switches are in the tree;
- ``above[s, t]``, ``top[s, q]``: the parent of switch s is t, or the PS;
- ``flow[s, t]``, ``out[s]``: how many workers are below s, as told to its parent: at most n along an edge of
  the tree, none elsewhere, so no circle of switches hangs together without the PS.

A switch that is used costs its fee (section IV-C.4), in links; all of them together no more than a budget.

Two kinds of rows cut no best tree off, and speed proofs up several times: a switch has two children or more,
and so two workers below it (one with a single child can be taken out, as distances are those of shortest
paths); and of two switches at most one is the parent of the other, and only if both are in the tree.

Needs SciPy, whose HiGHS it calls: the extra ``planning``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import InvariantBroken, Unsupported
from inaproto_controller.planning.paring.slots.problem import UNUSED, Counts, RackTree, SlotProblem

_TIME_IS_UP: Final = 1
Costs = NDArray[np.float64]


class _Direct(NamedTuple):
    """Workers that send straight to the PS."""

    column: int
    group: int
    ps: int
    """Number of its rack among those that the PS may be in."""
    racks: tuple[int, ...]
    """Racks of the group, at equal distances from the PS."""


class _Columns:
    def __init__(self) -> None:
        self.costs: list[Costs] = []
        self.most: list[Costs] = []
        self.is_whole: list[int] = []

    def add(self, costs: Counts | Costs | int, most: Counts | int, *shape: int, whole: bool = True) -> Counts:
        """Numbers of new columns, from 0 to ``most``."""
        first = len(self.is_whole)
        for kept, values in ((self.costs, costs), (self.most, most)):
            kept.append(np.broadcast_to(np.asarray(values, np.float64), shape).ravel())
        self.is_whole += [whole] * self.costs[-1].size
        return np.arange(first, len(self.is_whole)).reshape(shape)


class _Rows:
    def __init__(self) -> None:
        self.entries: list[tuple[Costs, Counts, Counts]] = []
        self.least: list[float] = []
        self.most: list[float] = []

    def add(
        self, *terms: tuple[Counts, Counts | Costs | int], least: float = -inf, most: float = inf
    ) -> None:
        """``terms``: columns (rows, any), and what they are multiplied by."""
        first, count = len(self.least), len(terms[0][0])
        for columns, factors in terms:
            rows = np.broadcast_to(np.arange(first, first + count)[:, None], columns.shape)
            values = np.broadcast_to(np.asarray(factors, np.float64), columns.shape)
            self.entries.append((values.ravel(), rows.ravel(), columns.ravel()))
        self.least += [least] * count
        self.most += [most] * count


class RackProgram:
    def __init__(
        self, problem: SlotProblem, fees: Sequence[Fraction] = (), budget: Fraction | None = None
    ) -> None:
        """``fees``: of each switch; none where there are none."""
        self._problem = problem
        self._fees = np.array([float(fee) for fee in fees] or [0.0] * len(problem.switches))
        self._places = [alike[0] for alike in problem.ps_rack_classes]
        self._groups = _groups(problem)
        self._columns, self._rows = _Columns(), _Rows()
        self._add_columns()
        self._add_servers()
        self._add_slots()
        self._add_flow()
        if budget is not None:
            self._rows.add((self._used[None], self._fees), most=float(budget))

    def _add_columns(self) -> None:
        problem, add = self._problem, self._columns.add
        switches, places, workers = len(problem.switches), len(self._places), problem.workers
        firsts = [group[0] for group in self._groups]
        free = np.array([problem.free[list(group)].sum() for group in self._groups], np.int64)
        hops, most = problem.rack_to_switch[firsts], np.minimum(free[:, None], problem.switch_slots)
        self._to_switch = add(hops, most, len(firsts), switches)
        self._ps = add(0, 1, places)
        self._used = add(self._fees, 1, switches)
        self._direct = [
            direct
            for number in range(places)
            for group in range(len(firsts))
            for direct in self._direct_of(group, number)
        ]
        others = 1 - np.eye(switches, dtype=np.int64)
        self._above = add(problem.between, others, switches, switches)
        self._top = add(problem.rack_to_switch[self._places].T, 1, switches, places)
        self._flow = add(0, others * workers, switches, switches, whole=False)
        self._out = add(0, workers, switches, whole=False)

    def _direct_of(self, group: int, number: int) -> list[_Direct]:
        problem, place = self._problem, self._places[number]
        by_hops: dict[int, list[int]] = {}
        for rack in self._groups[group]:
            by_hops.setdefault(int(problem.rack_to_rack[rack, place]), []).append(rack)
        found = []
        for hops, racks in sorted(by_hops.items()):
            most = min(problem.free[racks].sum() - (place in racks), problem.ps_slots[place])
            found.append(_Direct(int(self._columns.add(hops, most, 1)[0]), group, number, tuple(racks)))
        return found

    def _add_servers(self) -> None:
        """One PS, n workers, and of each group no more than there are."""
        problem, add = self._problem, self._rows.add
        add((self._ps[None], 1), least=1, most=1)
        everyone = np.append(self._to_switch, [direct.column for direct in self._direct])
        add((everyone[None], 1), least=problem.workers, most=problem.workers)
        for number, group in enumerate(self._groups):
            columns = [direct.column for direct in self._direct if direct.group == number]
            columns += [int(self._ps[place]) for place, rack in enumerate(self._places) if rack in group]
            taken = np.append(self._to_switch[number], columns).astype(np.int64)
            add((taken[None], 1), most=int(problem.free[list(group)].sum()))

    def _add_slots(self) -> None:
        problem, add, used = self._problem, self._rows.add, self._used[:, None]
        for number, place in enumerate(self._places):
            columns = [direct.column for direct in self._direct if direct.ps == number]
            taken = np.append(self._top[:, number], columns).astype(np.int64)
            add((taken[None], 1), (self._ps[[[number]]], -problem.ps_slots[place]), most=0)
        add((self._above, 1), (self._top, 1), (used, -1), least=0, most=0)
        for slots, limit in ((problem.switch_slots[:, None], {"most": 0.0}), (2, {"least": 0.0})):
            add((self._to_switch.T, 1), (self._above.T, 1), (used, np.negative(slots)), **limit)

    def _add_flow(self) -> None:
        """Add the flow of workers up the tree; at least two where there is an edge."""
        add, workers, out = self._rows.add, self._problem.workers, self._out[:, None]
        add((self._flow, 1), (out, 1), (self._flow.T, -1), (self._to_switch.T, -1), least=0, most=0)
        edges, flows = self._above.reshape(-1, 1), self._flow.reshape(-1, 1)
        for factor, limit in ((-workers, {"most": 0.0}), (-2, {"least": 0.0})):
            add((out, 1), (self._top, factor), **limit)
            add((flows, 1), (edges, factor), **limit)
        for one, other in combinations(range(len(self._used)), 2):
            both = np.array([[self._above[one, other], self._above[other, one]]] * 2)
            add((both, 1), (self._used[[one, other]][:, None], -1), most=0)

    def solve(self, most: float, seconds: float) -> tuple[RackTree | None, float]:
        """A tree of ``most`` hops, fees included, or fewer, if one was found in time, and a lower bound of
        any's."""
        optimize, sparse = _scipy()
        columns, rows = self._columns, self._rows
        values, numbers, places = (np.concatenate(parts) for parts in zip(*rows.entries, strict=True))
        costs = np.concatenate(columns.costs)
        matrix = sparse.csr_matrix((values, (numbers, places)), (len(rows.least), costs.size))
        found = optimize.milp(
            costs,
            constraints=[
                optimize.LinearConstraint(matrix, rows.least, rows.most),
                optimize.LinearConstraint(costs[None], ub=most),
            ],
            integrality=np.array(columns.is_whole),
            bounds=optimize.Bounds(0, np.concatenate(columns.most)),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )
        bound = -inf if found.mip_dual_bound is None else float(found.mip_dual_bound)
        if found.x is not None:
            return self._tree(np.rint(found.x).astype(np.int64)), bound
        if found.status != _TIME_IS_UP:
            raise InvariantBroken(f"HiGHS, of a problem that has an answer: {found.message}")
        return None, bound

    def _tree(self, found: Counts) -> RackTree:
        problem, switches = self._problem, len(self._used)
        number = int(found[self._ps].argmax())
        parents = np.full(switches, UNUSED, np.int64)
        for switch in np.flatnonzero(found[self._used]):
            is_top = found[self._top[switch, number]]
            parents[switch] = switches if is_top else found[self._above[switch]].argmax()
        idle: list[int] = problem.free.tolist()
        idle[self._places[number]] -= 1
        senders = np.zeros((len(idle), switches + 1), np.int64)

        def send(racks: tuple[int, ...], parent: int, count: int) -> None:
            for rack in racks:
                taken = min(idle[rack], count)
                idle[rack] -= taken
                senders[rack, parent] += taken
                count -= taken

        for direct in self._direct:
            send(direct.racks, switches, int(found[direct.column]) * (direct.ps == number))
        for group, parent in np.argwhere(found[self._to_switch]).tolist():
            send(self._groups[group], parent, int(found[self._to_switch[group, parent]]))
        return RackTree(self._places[number], parents, senders)


def _groups(problem: SlotProblem) -> tuple[tuple[int, ...], ...]:
    """Racks at equal distances from all switches."""
    groups: dict[bytes, list[int]] = {}
    for rack, hops in enumerate(problem.rack_to_switch):
        groups.setdefault(hops.tobytes(), []).append(rack)
    return tuple(tuple(racks) for racks in groups.values())


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        raise Unsupported("exact plans", f"{error}; install inaproto[planning]") from None
    return optimize, sparse
