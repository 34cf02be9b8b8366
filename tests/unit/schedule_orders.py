"""What a schedule adds in which order, found by running it on names instead of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto_controller.simulate.schedules.schedule import Aggregate, Schedule

Node: TypeAlias = "int | PlanList"


@dataclass(frozen=True, slots=True)
class Value:
    """A rank's value of a block: rounded (one node), or an open sum of several that is not rounded yet."""

    nodes: tuple[Node, ...]
    is_open: bool = False

    @property
    def rounded(self) -> Node:
        return self.nodes if self.is_open else self.nodes[0]


def block_plans(schedule: Schedule) -> list[ReductionPlan]:
    """For each block the plan that describes its result, the same at all ranks.

    Reductions are commutative to the last bit, so an open sum takes in a rounded value from either side.
    """
    return [_block_plan(schedule, block) for block in range(schedule.blocks)]


def _block_plan(schedule: Schedule, block: int) -> ReductionPlan:
    values = [Value((rank,)) for rank in range(schedule.ranks)]
    for step in schedule.transfers:
        if step.block != block:
            continue
        if isinstance(step, Aggregate):
            node = _over(step.plan.children, [values[rank].rounded for rank in step.ranks])
            for rank in step.ranks:
                values[rank] = Value((node,))
        elif step.reduce:
            left = values[step.src]
            if not step.wide:
                left = Value((left.rounded,))
            values[step.dst] = _added(left, values[step.dst], seals=step.seals)
        else:
            values[step.dst] = Value((values[step.src].rounded,))
    assert len(set(values)) == 1, f"{schedule.name}: ranks differ in block {block}: {values}"
    result = values[0]
    assert not result.is_open
    node = result.nodes[0]
    return ReductionPlan((node,) if isinstance(node, int) else node)


def _added(left: Value, right: Value, *, seals: bool) -> Value:
    assert not (left.is_open and right.is_open), "two sums that are not rounded: no plan says that"
    nodes = (*right.nodes, *left.nodes) if right.is_open else (*left.nodes, *right.nodes)
    return Value((nodes,)) if seals else Value(nodes, is_open=True)


def _over(children: PlanList, nodes: list[Node]) -> Node:
    return tuple(nodes[child] if isinstance(child, int) else _over(child, nodes) for child in children)
