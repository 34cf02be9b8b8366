"""Chain all-reduce: any reduction plan by the hosts alone, bit for bit (ours; NetReduce has no fallback).

The *holder* of a list of the plan is its last rank, at which its sum appears. Within a list the sum goes from
holder to holder, left to right, and each adds its own value, or the sum of the list it holds, on the right.
Lists that share no rank work at the same time. The result comes back along the same edges.

The whole tensor is one block, so segments follow each other up and back down. In a flat plan a rank sends
at most the tensor twice, against ``2 (W-1)/W`` of it in a ring. With lists in lists each rank still sends its
sum once, but gets one for each list it is the last of, and sends as many results back: ``depth + 1`` tensors
at most. Half-precision sums that are not complete go as float32, twice as long: from all but the first child
of a list.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan, holder
from inaproto_controller.simulate.schedules.schedule import Schedule, Transfer


def chain(plan: ReductionPlan, *, machine_of: tuple[int, ...] = ()) -> Schedule:
    """The chain that follows ``plan``."""
    up = list(_up(plan.children))
    down = [Transfer(edge.dst, edge.src, 0) for edge in reversed(up)]
    return Schedule(
        name="chain",
        ranks=plan.size,
        blocks=1,
        transfers=(*up, *down),
        machine_of=machine_of,
        plan=plan,
    )


def _up(children: PlanList) -> Iterator[Transfer]:
    for child in children:
        if not isinstance(child, int):
            yield from _up(child)
    last = len(children) - 1
    for place, (left, right) in enumerate(itertools.pairwise(map(holder, children)), 1):
        yield Transfer(left, right, 0, reduce=True, wide=place > 1, seals=place == last)
