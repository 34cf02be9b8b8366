"""A tree that reaches the highest rate, slot by slot: the first half of PARING's ``fast`` mode.

The idea is that of Algorithm 3 of the paper: again and again the spider of least hops a new worker (a centre
and its nearest idle servers; hops include the fee of the centre) is merged into the tree. But the paper's
centres take workers until all slots are gone, also those by which further switches were to be attached, and
then the rate falls. Here a spider leaves one slot open as long as switches are still needed. The open slots,
and what unused switches would add to them, less the workers to come, never change by a merger: so at the
highest rate, at which they suffice at first, they do to the end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.cluster.compiled import jit
from inaproto_controller.planning.paring.slots.problem import UNUSED, Counts, RackTree, SlotProblem


def greedy_tree(problem: SlotProblem, ps_rack: int) -> RackTree:
    switches = len(problem.switches)
    hops = np.hstack([problem.rack_to_switch, problem.rack_to_rack[:, [ps_rack]]])
    above = np.hstack([problem.between, problem.rack_to_switch[ps_rack][:, None]])
    idle = problem.free.copy()
    idle[ps_rack] -= 1
    parents, senders = np.full(switches, UNUSED, np.int64), np.zeros_like(hops)
    _grow(
        hops,
        above,
        np.ascontiguousarray(np.argsort(hops.T, axis=1, kind="stable")),
        np.append(problem.switch_slots, problem.ps_slots[ps_rack]),
        idle,
        np.append(problem.fees, 0),
        problem.workers,
        parents,
        senders,
    )
    return RackTree(ps_rack, parents, senders)


@jit
def _grow(
    hops: Counts,
    above: Counts,
    near_racks: Counts,
    slots: Counts,
    idle: Counts,
    fees: Counts,
    workers: int,
    parents: Counts,
    senders: Counts,
) -> None:
    """``hops`` (R, A) and ``above`` (S, A), to each aggregator, the last of which is the PS; ``near_racks``
    (A, R), the nearest first; ``slots`` and ``fees`` (A,); fills ``parents`` (S,) and ``senders`` (R, A)."""
    ps = len(slots) - 1
    is_in = np.zeros(len(slots), np.bool_)
    is_in[ps] = True
    left = slots.copy()
    open_ = slots[ps]
    while workers > 0:
        best, best_cost, best_count, best_parent = UNUSED, 0, 1, ps
        for centre in range(len(slots)):
            parent, cost, after = ps, 0, open_
            if not is_in[centre]:
                parent = _nearest_open(above[centre], is_in, left)
                cost, after = above[centre, parent] + fees[centre], open_ - 1 + slots[centre]
            most = min(left[centre], workers)
            if workers > after:
                most = min(most, after - 1)
            count = 0
            for rack in near_racks[centre]:
                taken = min(idle[rack], most - count)
                if taken <= 0:
                    continue
                count += taken
                cost += taken * hops[rack, centre]
                less = cost * best_count - best_cost * count
                if best == UNUSED or less < 0 or (less == 0 and count > best_count):
                    best, best_cost, best_count, best_parent = centre, cost, count, parent
        if not is_in[best]:
            is_in[best], parents[best] = True, best_parent
            left[best_parent] -= 1
            open_ += slots[best] - 1
        workers -= best_count
        open_ -= best_count
        left[best] -= best_count
        for rack in near_racks[best]:
            taken = min(idle[rack], best_count)
            idle[rack] -= taken
            senders[rack, best] += taken
            best_count -= taken


@jit
def _nearest_open(hops: Counts, is_in: NDArray[np.bool_], left: Counts) -> int:
    """The aggregator of the tree with an open slot."""
    best = UNUSED
    for aggregator in range(len(left)):
        if is_in[aggregator] and left[aggregator] and (best == UNUSED or hops[aggregator] < hops[best]):
            best = aggregator
    return best
