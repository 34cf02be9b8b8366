"""Schedules: an all-reduce as a list of transfers between ranks, and of sums in the network.

A schedule is data: what a simulator times (NetReduce section 3.4), what hosts run when no accelerator can,
and what ``tests.schedule_run`` computes in memory are the same list.

The tensor is cut into ``blocks`` near-equal parts, and each step concerns one block. Steps are in *program
order*: one may start when all earlier ones that touch its block at one of its ranks are done. Blocks are cut
further, into segments, by whoever runs the schedule, and the rule holds for each segment by itself: so steps
that follow each other overlap. The rule fixes every addition; when things happen does not change the result.

Half-precision sums (float16, bfloat16) are kept in float32 by the rank that adds them up, until a step
*seals* them: the aggregation point is complete, and its sum is rounded. A *wide* transfer carries such a sum
before it is rounded, with four bytes an element. For all other types, and for max and min, both words are
without meaning.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from inaproto.core.plan.half_precision import WIDE_BYTES, sums_are_wide
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op


class Transfer(NamedTuple):
    """Rank ``src`` sends its value of ``block`` to rank ``dst``. A tuple: a ring of 1024 has two million."""

    src: int
    dst: int
    block: int
    reduce: bool = False
    """At ``dst``: value = what comes in (left operand) op own value; otherwise what comes in replaces it."""
    wide: bool = False
    """Half-precision sums go unrounded, as float32."""
    seals: bool = False
    """After this reduction ``dst`` rounds its half-precision sum."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The network sums ``block`` over ``ranks``, and each of them gets the result.

    ``ranks[i]`` is rank ``i`` of the ring that does it, in the sense of ``plan``.
    """

    ranks: tuple[int, ...]
    block: int
    plan: ReductionPlan

    def __post_init__(self) -> None:
        if len(set(self.ranks)) != len(self.ranks) or len(self.ranks) != self.plan.size:
            raise LocalMisuse(f"ranks {self.ranks} cannot follow the plan {self.plan}")


Step: TypeAlias = Transfer | Aggregate


class Traffic(NamedTuple):
    """Bytes by rank, without headers. Between ranks of one machine is intra, all else is inter."""

    sent_intra: tuple[int, ...]
    sent_inter: tuple[int, ...]
    received_intra: tuple[int, ...]
    received_inter: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """An all-reduce over ``ranks`` ranks. Raises ``LocalMisuse`` for steps that no ranks can take.

    ``machine_of[rank]`` is the machine it is on; left out, each has its own. ``plan``: the reduction plan
    that the result follows to the last bit, None if additions are in another order in each block.
    """

    name: str
    ranks: int
    blocks: int
    transfers: tuple[Step, ...]
    machine_of: tuple[int, ...] = ()
    plan: ReductionPlan | None = None

    def __post_init__(self) -> None:
        if not self.machine_of:
            object.__setattr__(self, "machine_of", tuple(range(self.ranks)))
        if self.ranks < 1 or self.blocks < 1 or len(self.machine_of) != self.ranks:
            raise LocalMisuse(
                f"schedule {self.name}: {self.ranks} ranks, {self.blocks} blocks, machines {self.machine_of}"
            )
        if self.plan is not None and self.plan.size != self.ranks:
            raise LocalMisuse(f"schedule {self.name}: {self.ranks} ranks cannot follow the plan {self.plan}")
        for step in self.transfers:
            if not self._is_possible(step):
                raise LocalMisuse(f"schedule {self.name}: impossible step {step}")

    def _is_possible(self, step: Step) -> bool:
        if isinstance(step, Aggregate):
            return min(step.ranks) >= 0 and max(step.ranks) < self.ranks and 0 <= step.block < self.blocks
        src, dst, block, reduce, wide, seals = step
        in_range = 0 <= src < self.ranks and 0 <= dst < self.ranks and 0 <= block < self.blocks
        return in_range and src != dst and (reduce or not (wide or seals))

    @property
    def exact(self) -> bool:
        """Whether the result is that of one plan, so that a switch that follows it gives the same bytes."""
        return self.plan is not None

    def block_bounds(self, elements: int) -> tuple[tuple[int, int], ...]:
        """First element of each block, and the one behind its last. Sizes differ by one at most."""
        edges = [elements * block // self.blocks for block in range(self.blocks + 1)]
        return tuple(itertools.pairwise(edges))

    def is_intra(self, step: Step) -> bool:
        """Whether a step stays within one machine."""
        return isinstance(step, Transfer) and self.machine_of[step.src] == self.machine_of[step.dst]

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each step the steps, by index, that must be done before it: in each segment, and directly.

        Who waits for these waits for all earlier steps on that block at its ranks: they wait for theirs.
        """
        last: list[int | None] = [None] * (self.ranks * self.blocks)
        found: list[tuple[int, ...]] = []
        for index, step in enumerate(self.transfers):
            before: list[int] = []
            for rank in touched(step):
                place = rank * self.blocks + step.block
                previous = last[place]
                if previous is not None and previous not in before:
                    before.append(previous)
                last[place] = index
            found.append(tuple(before))
        return tuple(found)

    def queues(self) -> dict[tuple[int, int], list[int]]:
        """Steps, by index and in program order, that touch ``(rank, block)``.

        A step may start, in a segment, when it is the first that is not done in the queues of all its ranks.
        """
        found: dict[tuple[int, int], list[int]] = {}
        for index, step in enumerate(self.transfers):
            for rank in touched(step):
                found.setdefault((rank, step.block), []).append(index)
        return found

    def bytes_of(self, step: Step, elements: int, dtype: Dtype, op: Op = Op.SUM) -> int:
        """Bytes that each sender of a step sends, of a tensor of ``elements``."""
        first, end = elements * step.block // self.blocks, elements * (step.block + 1) // self.blocks
        return (end - first) * element_bytes(step, dtype, op)

    def traffic(self, elements: int, dtype: Dtype, op: Op = Op.SUM) -> Traffic:
        """Bytes that each rank sends and receives for a tensor of ``elements``."""
        counts = [[0] * self.ranks for _ in Traffic._fields]
        for step in self.transfers:
            size = self.bytes_of(step, elements, dtype, op)
            if isinstance(step, Transfer):
                inter = not self.is_intra(step)
                counts[0 + inter][step.src] += size
                counts[2 + inter][step.dst] += size
            else:
                for rank in step.ranks:
                    counts[1][rank] += size
                    counts[3][rank] += size
        return Traffic(*(tuple(count) for count in counts))

    def bytes_sent_by_rank(self, elements: int, dtype: Dtype, op: Op = Op.SUM) -> tuple[int, ...]:
        """All that each rank sends, within its machine and beyond."""
        traffic = self.traffic(elements, dtype, op)
        return tuple(traffic.sent_intra[rank] + traffic.sent_inter[rank] for rank in range(self.ranks))


def touched(step: Step) -> Iterator[int]:
    """The ranks whose value a step reads or changes."""
    if isinstance(step, Transfer):
        yield step.src
        yield step.dst
    else:
        yield from step.ranks


def element_bytes(step: Step, dtype: Dtype, op: Op) -> int:
    """Bytes of one element on its way in ``step``."""
    wide = isinstance(step, Transfer) and step.wide and sums_are_wide(dtype, op)
    return WIDE_BYTES if wide else dtype.itemsize
