"""The open accumulators that travel along a chain of ranks (docs/protocol.md 9.2).

A rank of the chain gets, for each list of the reduction plan that has begun and not ended, what has been
added up in it so far: a *stack*, outermost list first. It adds its own input to the innermost list; a list
that ends there gives its value to the list around it. The last rank has the result.

An accumulator of one contribution is that contribution, in the element type. Of several, it is in the type
in which the reduction is computed: float16 and bfloat16 sums travel as float32 and are rounded once, when
their list ends.

Invariant: the last rank's result has the bytes of ``ReductionPlan.reduce``. What a stack holds, and how
wide, follows from plan, rank, dtype and operation alone, so all ranks agree on it without a word.

Payload of an accumulator message: for each entry of the stack, all elements of the message, then the next.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from inaproto.core.plan.half_precision import HALF, WIDE_BYTES, round_once, sums_are_wide, widen
from inaproto.core.plan.reduce import reduce_into
from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.errors import LocalMisuse
from inaproto.wire.control_messages import RingPath
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Turn:
    """One rank's: its lists, outermost first."""

    counts: tuple[int, ...]
    """Contributions that each of its lists has before this rank's; those without are not in the stack."""
    closes: int
    """How many of its lists, the innermost ones, end with this rank."""


@dataclass(frozen=True)
class Accumulators:
    """The stacks of a plan whose order of ranks is 0, 1, 2, ...: the order of the ring.

    Raises ``LocalMisuse`` for another order.
    """

    plan: ReductionPlan

    def __post_init__(self) -> None:
        if list(self.plan.ranks) != list(range(self.plan.size)):
            raise LocalMisuse(
                f"a chain follows its ring: the plan {self.plan} has the ranks in another order"
            )

    @cached_property
    def _turns(self) -> tuple[_Turn, ...]:
        return tuple(_turns(self.plan.children, (), 0))

    def stack_bytes(self, rank: int, dtype: Dtype, op: Op, nbytes: int) -> int:
        """Payload of what ``rank``, which is not the last, passes on of ``nbytes`` of tensor."""
        return self._came_bytes(rank + 1, dtype, op, nbytes)

    def _came_bytes(self, rank: int, dtype: Dtype, op: Op, nbytes: int) -> int:
        return sum(entry_bytes(count, dtype, op, nbytes) for count in self._turns[rank].counts if count)

    def slot_bytes(self, tensor_bytes: int) -> int:
        """Size of a slot that takes any message of the chain, its header included."""
        largest = max(
            self._came_bytes(rank, dtype, Op.SUM, tensor_bytes)
            for rank in range(self.plan.size)
            for dtype in Dtype
        )
        return INA_HEADER_BYTES + max(largest, tensor_bytes)

    def combine(self, rank: int, dtype: Dtype, op: Op, stack: Bytes, own: Bytes, out: Bytes) -> None:
        """Write into ``out`` what ``rank`` makes of ``stack``, which came to it, and its ``own`` input.

        uint8 arrays of one dimension; the first rank's ``stack`` is empty, and ``out`` of the last rank is
        the result. ``out`` may not overlap the others. Raises ``LocalMisuse`` for wrong sizes.
        """
        nbytes = own.size
        came = self._came_bytes(rank, dtype, op, nbytes)
        goes = self.stack_bytes(rank, dtype, op, nbytes) if rank < self.plan.size - 1 else nbytes
        if (stack.size, out.size) != (came, goes):
            raise LocalMisuse(
                f"rank {rank} combines {came} bytes into {goes}, not {stack.size} into {out.size}"
            )
        turn = self._turns[rank]
        entries: list[Bytes] = []
        at = 0
        for count in turn.counts:
            size = entry_bytes(count, dtype, op, nbytes) if count else 0
            entries.append(stack[at : at + size])
            at += size
        level = len(entries) - 1
        value = added(turn.counts[level], dtype, op, entries[level], own)
        for _ in range(turn.closes):
            if turn.counts[level] and sums_are_wide(dtype, op):
                value = round_once(dtype, value)
            level -= 1
            if level >= 0:
                value = added(turn.counts[level], dtype, op, entries[level], value)
        np.concatenate([*entries[: max(0, level)], value], out=out)


class RotatedAccumulators(Accumulators):
    """Those of a flat plan when another rank begins each message: rank ``serial mod size``.

    The methods take a rank's *turn* instead of the rank: its place in the order in which the ranks add to
    the message. Raises ``LocalMisuse`` for a plan with lists in it: its additions cannot begin anywhere.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not isinstance(child, int) for child in self.plan.children):
            raise LocalMisuse(f"messages begin at other ranks in turn: the plan {self.plan} is not flat")

    def combine(self, rank: int, dtype: Dtype, op: Op, stack: Bytes, own: Bytes, out: Bytes) -> None:
        """As any turn but the first does it: ``rank`` says nothing, and the sizes say which turn it is.

        They do where it matters. A complete sum is as wide as the input; of one that is not complete, only
        half-precision sums of several contributions are wider. Raises ``LocalMisuse`` for sizes of no turn.
        """
        last = self.plan.size - 1
        if out.size == own.size:
            turn = last
        else:
            turn = min(last, 1 if stack.size == own.size else 2)
        super().combine(turn, dtype, op, stack, own, out)


def accumulators_on(path: RingPath, plan: str, size: int) -> Accumulators:
    """Those of a ring of ``size`` hosts on ``chain`` or ``ring``; ``plan`` as in the message ``Ring``.

    Those of ``shared`` are the chain's.

    Raises ``LocalMisuse`` for a plan that is none, or in whose order they cannot add.
    """
    if path == "ring":
        return RotatedAccumulators(ReductionPlan.flat(size))
    return Accumulators(plan_of_text(plan, size))


def plan_of_text(plan: str, size: int) -> ReductionPlan:
    """``plan`` as in the message ``Ring``; empty: flat. Raises ``LocalMisuse`` for a plan that is none."""
    if not plan:
        return ReductionPlan.flat(size)
    try:
        lists = json.loads(plan)
    except (ValueError, RecursionError) as error:
        raise LocalMisuse(f"a reduction plan is nested lists in JSON: {error}") from None
    return ReductionPlan.from_lists(lists)


def _turns(children: PlanList, outer: tuple[int, ...], closing: int) -> list[_Turn]:
    """The turns of a list inside lists that have ``outer`` contributions.

    ``closing`` lists around it end when it ends.
    """
    turns: list[_Turn] = []
    for index, child in enumerate(children):
        counts = (*outer, index)
        closes = closing + 1 if index == len(children) - 1 else 0
        if isinstance(child, int):
            turns.append(_Turn(counts, closes))
        else:
            turns += _turns(child, counts, closes)
    return turns


def entry_bytes(count: int, dtype: Dtype, op: Op, nbytes: int) -> int:
    """Bytes of an accumulator of ``count`` contributions to ``nbytes`` of tensor."""
    return nbytes // dtype.itemsize * WIDE_BYTES if count > 1 and sums_are_wide(dtype, op) else nbytes


def added(count: int, dtype: Dtype, op: Op, accumulator: Bytes, value: Bytes) -> Bytes:
    """``accumulator``, of ``count`` contributions, and one more; half-precision sums are not rounded."""
    if count == 0:
        return value
    if not sums_are_wide(dtype, op):
        total = np.empty_like(value)
        reduce_into(dtype, op, [accumulator, value], total)
        return total
    wide = widen(dtype, accumulator) if count == 1 else accumulator.copy()
    with np.errstate(all="ignore"):
        wide.view(np.float32)[...] += widen(dtype, value).view(np.float32)
    return wide


assert all(dtype.itemsize <= WIDE_BYTES for dtype in HALF)
