"""A tree of hosts shaped like a reduction plan (docs/protocol.md 9.3; MLNet section 3.2).

Hosts alone sum as the accelerators of the plan's tree would. The values of a list of the plan are gathered by
one of its ranks, its *head*, which adds them left to right; what a list gives is a value of the list around
it, at that rank. Every rank but one, the *root*, thus sends one payload up for a message, to its *parent*,
and gets the result from there; the root is where the outermost list ends. The tree follows a plan with its
ranks in any order, which a chain along a ring cannot.

In-degree: a host that gathers k values receives k messages where it sends one, and sends the result k times,
so lists are gathered in *runs* of bounded length. The first run has a head that adds up its values; every
further one begins with what the run before has added up, its *accumulator*, as a chain does. The order of
additions is that of the plan, whatever the bound, and heads of later runs gather while earlier ones add.
(MLNet bounds the in-degree by a tree of more levels, which would add in another order; passing inputs on as
they are would keep the order, but the last host would receive all of them.)

With a bound of 1 a flat plan is a chain; with ``size - 1`` it is a star. The head of a run is the rank in it
that gathers least so far, the first of several; a rank that gathers inside a list may so gather around it as
well.

What is passed up is one value: in the element type, or, of half-precision sums that are not complete, as
float32, rounded when the list ends (:mod:`inaproto.core.plan.accumulators`). How wide it is follows from
plan, bound, dtype and operation alone.

Invariants: what the root has is ``ReductionPlan.reduce``, bit for bit. Of a message a rank receives at most
``in_degree`` payloads or, if it has as many of the lists inside, one more for each list around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.plan.accumulators import added, entry_bytes, plan_of_text
from inaproto.core.plan.half_precision import round_once, sums_are_wide
from inaproto.core.plan.reduce import reduce_into
from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op

Bytes = NDArray[np.uint8]
OWN: Final = -1
"""Instead of a rank: what this one has itself, from the run that it heads inside, or its input."""


@dataclass(frozen=True, slots=True)
class Run:
    """Values of one list that one rank adds up."""

    before: int
    """Values of the list that are in the accumulator, the first of ``operands``; 0: it begins here."""
    operands: tuple[int, ...]
    """In the order of addition: ranks from which they come, or ``OWN``."""
    closes: bool
    """The list ends here."""

    @property
    def values(self) -> int:
        """Values of its list, when it has been added up."""
        return self.before + len(self.operands) - (self.before > 0)


@dataclass(frozen=True)
class OverlayTree:
    """The tree of a plan over positions, and a bound. Raises ``LocalMisuse`` for a bound below 1."""

    plan: ReductionPlan
    in_degree: int

    def __post_init__(self) -> None:
        if self.in_degree < 1:
            raise LocalMisuse(f"an overlay of in-degree {self.in_degree}: it is at least 1")

    @cached_property
    def _built(self) -> _Builder:
        return _Builder(self.plan, self.in_degree)

    @property
    def root(self) -> int:
        """The rank that has the result first."""
        return self._built.root

    @property
    def parents(self) -> tuple[int | None, ...]:
        """Parents by rank; None: the root's."""
        return self._built.parents

    def runs(self, rank: int) -> tuple[Run, ...]:
        """Runs that the rank heads, innermost list first."""
        return tuple(self._built.runs[rank])

    def children(self, rank: int) -> tuple[int, ...]:
        """Ranks from which it gathers, as the operands of its runs come."""
        return self._children[rank]

    @cached_property
    def _children(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(operand for run in runs for operand in run.operands if operand != OWN)
            for runs in self._built.runs
        )

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """Hops from the farthest rank below each, by rank."""
        found = [0] * self.plan.size
        for rank in self._upwards:
            parent = self.parents[rank]
            if parent is not None:
                found[parent] = max(found[parent], found[rank] + 1)
        return tuple(found)

    @property
    def levels(self) -> int:
        """Hops from the farthest rank to the root."""
        return self.heights[self.root]

    @cached_property
    def _upwards(self) -> tuple[int, ...]:
        """All ranks, each before its parent."""
        order = [self.root]
        for rank in order:
            order += self.children(rank)
        return tuple(reversed(order))

    def downwards(self, rank: int) -> tuple[int, ...]:
        """Indices of its children in the order in which they get a result: who has more levels below
        first."""
        heights = [self.heights[child] for child in self.children(rank)]
        return tuple(sorted(range(len(heights)), key=lambda index: -heights[index]))

    def up_bytes(self, rank: int, dtype: Dtype, op: Op, nbytes: int) -> int:
        """Payload of what ``rank`` sends up of ``nbytes`` of tensor; of the root, the result."""
        return entry_bytes(self._passed(rank), dtype, op, nbytes)

    def _passed(self, rank: int) -> int:
        """Values in what a rank sends up that is not rounded yet."""
        runs = self._built.runs[rank]
        return 1 if not runs or runs[-1].closes else runs[-1].values

    def slot_bytes(self, tensor_bytes: int) -> int:
        """Size of a slot that takes any message, its header included; alike at all ranks and for all
        bounds."""
        largest = max(entry_bytes(2, dtype, Op.SUM, tensor_bytes) for dtype in Dtype)
        return INA_HEADER_BYTES + max(largest, tensor_bytes)

    def fold(self, rank: int, dtype: Dtype, op: Op, came: Sequence[Bytes], own: Bytes, out: Bytes) -> None:
        """Write into ``out`` what ``rank`` makes of its ``own`` input and of what ``came``.

        uint8 arrays of one dimension; ``came`` in the order of ``children``. ``out`` may not overlap the
        others. Raises ``LocalMisuse`` for wrong sizes, and at a rank that gathers nothing.
        """
        children, nbytes = self.children(rank), own.size
        expected = [self.up_bytes(child, dtype, op, nbytes) for child in children]
        goes = self.up_bytes(rank, dtype, op, nbytes)
        if not children or [each.size for each in came] != expected or out.size != goes:
            sizes = [each.size for each in came]
            raise LocalMisuse(
                f"rank {rank} gathers {expected} bytes into {goes}, not {sizes} into {out.size}"
            )
        incoming = iter(came)
        value = own
        for run in self._built.runs[rank]:
            operands = [value if operand == OWN else next(incoming) for operand in run.operands]
            value = _run(run, dtype, op, operands)
        out[:] = value


def _run(run: Run, dtype: Dtype, op: Op, operands: Sequence[Bytes]) -> Bytes:
    if len(operands) == 1:
        return operands[0]
    if not sums_are_wide(dtype, op):
        total = np.empty_like(operands[0])
        reduce_into(dtype, op, operands, total)
        return total
    count, total = max(1, run.before), operands[0]
    for operand in operands[1:]:
        total = added(count, dtype, op, total, operand)
        count += 1
    return round_once(dtype, total) if run.closes else total


def overlay_on(plan: str, size: int, in_degree: int) -> OverlayTree:
    """The tree of a ring of ``size`` hosts; ``plan`` and ``in_degree`` as in the message ``Ring``.

    Raises ``LocalMisuse`` for a plan that is none, or of other hosts.
    """
    tree = OverlayTree(plan_of_text(plan, size), in_degree)
    if tree.plan.size != size:
        raise LocalMisuse(f"a plan of {tree.plan.size} hosts for a ring of {size}")
    return tree


class _Builder:
    """Parents and runs of a tree."""

    def __init__(self, plan: ReductionPlan, in_degree: int) -> None:
        self._in_degree = in_degree
        self._load = [0] * plan.size
        """Payloads of a message that each rank receives."""
        self.runs: list[list[Run]] = [[] for _ in range(plan.size)]
        parents: list[int | None] = [None] * plan.size
        self._parents = parents
        self.root = self._gather(plan.children)
        self.parents = tuple(parents)

    def _gather(self, children: PlanList) -> int:
        """Where the sum of a list appears."""
        holders = [child if isinstance(child, int) else self._gather(child) for child in children]
        carrier, before = OWN, 0
        while holders:
            run = self._next_run(holders, carrier)
            del holders[: len(run)]
            head = min(run, key=self._load.__getitem__)
            for rank in run:
                if rank != head:
                    self._parents[rank] = head
            operands = tuple(OWN if rank == head else rank for rank in run)
            if carrier != OWN:
                self._parents[carrier] = head
                operands = (carrier, *operands)
            if len(operands) > 1:
                self._load[head] += len(operands) - 1
                self.runs[head].append(Run(before, operands, not holders))
            before += len(run)
            carrier = head
        return carrier

    def _next_run(self, holders: Sequence[int], carrier: int) -> list[int]:
        """Take as many of the values that are left as the head may gather; so many that something is
        added."""
        begun = carrier != OWN
        size = 1 if begun or len(holders) == 1 else 2
        while size < len(holders):
            least = min(self._load[rank] for rank in holders[: size + 1])
            if least + size + begun > self._in_degree:
                break
            size += 1
        return list(holders[:size])
