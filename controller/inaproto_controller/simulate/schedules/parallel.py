"""Parallel NetReduce (PN) and parallel ring all-reduce (PR): NetReduce section 3.4, appendix A equation (3).

``P`` ranks sit on machines of ``n``; the ``i``-th of each machine are the ``i``-th ring. Three stages:

1. reduce-scatter in the machine: the ``i``-th rank fetches the ``i``-th part of the tensor, 1/n of it, from
   all others there, and sums it;
2. the ``i``-th ring sums the ``i``-th part over the machines: in the network (PN), or as a ring does (PR);
3. all-gather in the machine: the ``i``-th rank hands the ``i``-th part out to the others.

The paper names stages 1 and 3 "one hop" and charges ``n - 1`` latencies for each: a rank talks to the others
one after the other. Who talks to whom rotates, so that no rank is talked to by two.

A rank sums its part of the machine beginning with its own value, so with more than two ranks on a machine the
order of additions differs by part, and no reduction plan describes it. With one or two it is exact (PN): a
machine is an innermost list of the plan, and the network does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.errors import LocalMisuse
from inaproto_controller.simulate.schedules.ring import ring_steps
from inaproto_controller.simulate.schedules.schedule import Aggregate, Schedule, Step, Transfer


def parallel_netreduce(machines: int, per_machine: int, *, plan: ReductionPlan | None = None) -> Schedule:
    """PN on ``machines`` of ``per_machine`` ranks; a block is a part.

    ``plan`` is that of the network, over machines (default: flat).
    """
    _refuse_what_is_no_job(machines, per_machine)
    over_machines = ReductionPlan.flat(machines) if plan is None else plan
    if over_machines.size != machines:
        raise LocalMisuse(f"{machines} machines cannot follow the plan {over_machines}")
    parts = [(block,) for block in range(per_machine)]
    steps: list[Step] = list(_reduce_scatter(machines, per_machine, parts))
    if machines > 1:
        for local in range(per_machine):
            members = tuple(range(local, machines * per_machine, per_machine))
            steps.append(Aggregate(members, local, over_machines))
    steps += _all_gather(machines, per_machine, parts)
    exact = per_machine <= 2
    return Schedule(
        name="parallel NetReduce",
        ranks=machines * per_machine,
        blocks=per_machine,
        transfers=tuple(steps),
        machine_of=_machine_of(machines, per_machine),
        plan=_with_machines(over_machines, per_machine) if exact else None,
    )


def parallel_ring(machines: int, per_machine: int) -> Schedule:
    """PR on ``machines`` of ``per_machine`` ranks; a part has a block for each machine."""
    _refuse_what_is_no_job(machines, per_machine)
    parts = [range(local * machines, (local + 1) * machines) for local in range(per_machine)]
    steps = list(_reduce_scatter(machines, per_machine, parts))
    for local, part in enumerate(parts):
        members = range(local, machines * per_machine, per_machine)
        steps += ring_steps(members, [(block,) for block in part])
    steps += _all_gather(machines, per_machine, parts)
    return Schedule(
        name="parallel ring",
        ranks=machines * per_machine,
        blocks=machines * per_machine,
        transfers=tuple(steps),
        machine_of=_machine_of(machines, per_machine),
    )


def _reduce_scatter(machines: int, per_machine: int, parts: Sequence[Sequence[int]]) -> Iterator[Step]:
    for distance in range(1, per_machine):
        seals = distance == per_machine - 1
        for src, dst in _rotation(machines, per_machine, distance):
            for block in parts[dst % per_machine]:
                yield Transfer(src, dst, block, reduce=True, seals=seals)


def _all_gather(machines: int, per_machine: int, parts: Sequence[Sequence[int]]) -> Iterator[Step]:
    for distance in range(1, per_machine):
        for src, dst in _rotation(machines, per_machine, distance):
            for block in parts[src % per_machine]:
                yield Transfer(src, dst, block)


def _rotation(machines: int, per_machine: int, distance: int) -> Iterator[tuple[int, int]]:
    """Every rank, and the one ``distance`` after it on its machine."""
    for machine in range(machines):
        for local in range(per_machine):
            first = machine * per_machine
            yield first + local, first + (local + distance) % per_machine


def _machine_of(machines: int, per_machine: int) -> tuple[int, ...]:
    return tuple(rank // per_machine for rank in range(machines * per_machine))


def _with_machines(over_machines: ReductionPlan, per_machine: int) -> ReductionPlan:
    """The plan over ranks: in place of each machine, the list of its ranks (the rank, if it has one)."""

    def of_list(children: PlanList) -> PlanList:
        return tuple(of_machine(child) if isinstance(child, int) else of_list(child) for child in children)

    def of_machine(machine: int) -> int | PlanList:
        ranks = tuple(range(machine * per_machine, (machine + 1) * per_machine))
        return ranks if per_machine > 1 else ranks[0]

    return ReductionPlan(of_list(over_machines.children))


def _refuse_what_is_no_job(machines: int, per_machine: int) -> None:
    if machines < 1 or per_machine < 1:
        raise LocalMisuse(f"{machines} machines of {per_machine} ranks are no job")
