"""What a schedule computes: in memory, with real bytes, in any order that its dependencies permit.

``RankTensor`` is one rank's side of it: what it sends, and what it does with what comes in. ``run_schedule``
joins those of all ranks in one process, segment by segment; it is the judge of schedules, and of what runs
them over a network.

Invariant: the result does not depend on which of the steps that may run is run first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from inaproto.core.plan.half_precision import round_once, sums_are_wide, widen
from inaproto.core.plan.reduce import reduce_into
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op
from inaproto_controller.simulate.schedules.schedule import Aggregate, Schedule, Step

Bytes: TypeAlias = NDArray[np.uint8]
Span: TypeAlias = tuple[int, int]
"""First element and the one behind the last. A rank is asked for the same spans in all steps on a block."""


class RankTensor:
    """A rank's value while a schedule runs: elements, and half-precision sums that are not rounded yet."""

    def __init__(self, values: Bytes, dtype: Dtype, op: Op) -> None:
        """``values`` are copied: the rank's own, a whole number of elements."""
        self._values = values.copy()
        self._dtype = dtype
        self._op = op
        self._sums: dict[Span, Bytes] = {}
        """Float32 by span: sums of half-precision elements that no step has sealed."""

    def outgoing(self, span: Span, *, wide: bool = False) -> Bytes:
        """A copy of the value of ``span`` as it is sent: ``wide``, a half-precision sum is float32."""
        total = self._sums.get(span)
        if wide and sums_are_wide(self._dtype, self._op):
            return widen(self._dtype, self._at(span)) if total is None else total.copy()
        return self._at(span).copy() if total is None else round_once(self._dtype, total)

    def absorb(self, span: Span, incoming: Bytes, *, wide: bool = False, seals: bool = False) -> None:
        """Value = ``incoming`` op value. ``wide`` as it was sent; ``seals``: it is complete, round it."""
        if not sums_are_wide(self._dtype, self._op):
            self._at(span)[...] = _reduced(self._dtype, self._op, incoming, self._at(span))
            return
        left = incoming if wide else widen(self._dtype, incoming)
        total = _reduced(Dtype.F32, Op.SUM, left, self.outgoing(span, wide=True))
        if seals:
            self.replace(span, round_once(self._dtype, total))
        else:
            self._sums[span] = total

    def replace(self, span: Span, incoming: Bytes) -> None:
        """Value = ``incoming``, elements."""
        self._sums.pop(span, None)
        self._at(span)[...] = incoming

    def result(self) -> Bytes:
        """The whole tensor. Raises ``LocalMisuse`` if a sum was left unrounded: such a schedule is wrong."""
        if self._sums:
            raise LocalMisuse(f"sums of elements {sorted(self._sums)} were never sealed")
        return self._values

    def _at(self, span: Span) -> Bytes:
        size = self._dtype.itemsize
        return self._values[span[0] * size : span[1] * size]


def run_schedule(
    schedule: Schedule,
    inputs: Sequence[Bytes],
    dtype: Dtype,
    op: Op,
    *,
    segment_bytes: int,
    choose: Callable[[int], int] = lambda ready: 0,
) -> list[Bytes]:
    """Results by rank of ``schedule`` on ``inputs``, uint8 arrays of one length.

    Blocks are cut into segments of ``segment_bytes``, rounded down to whole elements. Whenever ``k`` pairs of
    a step and a segment may run, ``choose(k)`` says which is run next, ``0 .. k - 1``.
    """
    if len(inputs) != schedule.ranks or len({values.shape for values in inputs}) != 1:
        raise LocalMisuse(f"schedule {schedule.name} needs {schedule.ranks} inputs of one length")
    if segment_bytes < dtype.itemsize:
        raise LocalMisuse(f"segments of {segment_bytes} bytes hold no element of {dtype.itemsize}")
    elements = len(inputs[0]) // dtype.itemsize
    segments = [
        _cut(first, end, segment_bytes // dtype.itemsize) for first, end in schedule.block_bounds(elements)
    ]
    tensors = [RankTensor(values, dtype, op) for values in inputs]
    order = _Order(schedule, [len(spans) for spans in segments])
    while order.ready:
        index, segment = order.take(choose(len(order.ready)))
        step = schedule.transfers[index]
        _perform(step, segments[step.block][segment], tensors, dtype, op)
        order.done(index, segment)
    return [tensor.result() for tensor in tensors]


def _cut(first: int, end: int, elements: int) -> list[Span]:
    return [(start, min(start + elements, end)) for start in range(first, end, elements)]


def _perform(step: Step, span: Span, tensors: Sequence[RankTensor], dtype: Dtype, op: Op) -> None:
    if isinstance(step, Aggregate):
        members = [tensors[rank] for rank in step.ranks]
        total = step.plan.reduce([member.outgoing(span) for member in members], dtype, op)
        for member in members:
            member.replace(span, total)
    elif step.reduce:
        incoming = tensors[step.src].outgoing(span, wide=step.wide)
        tensors[step.dst].absorb(span, incoming, wide=step.wide, seals=step.seals)
    else:
        tensors[step.dst].replace(span, tensors[step.src].outgoing(span))


def _reduced(dtype: Dtype, op: Op, left: Bytes, right: Bytes) -> Bytes:
    out = np.empty_like(left)
    reduce_into(dtype, op, (left, right), out)
    return out


class _Order:
    """Which steps may run, in which segment."""

    def __init__(self, schedule: Schedule, segments: Sequence[int]) -> None:
        """``segments``: how many each block has."""
        self.ready: list[tuple[int, int]] = []
        self._missing: list[list[int]] = []
        """By step and segment: how many steps must be done before."""
        self._successors: list[list[int]] = [[] for _ in schedule.transfers]
        for index, before in enumerate(schedule.predecessors):
            count = segments[schedule.transfers[index].block]
            self._missing.append([len(before)] * count)
            for previous in before:
                self._successors[previous].append(index)
            if not before:
                self.ready += [(index, segment) for segment in range(count)]

    def take(self, place: int) -> tuple[int, int]:
        """Take one out; the last takes its place."""
        self.ready[place], self.ready[-1] = self.ready[-1], self.ready[place]
        return self.ready.pop()

    def done(self, index: int, segment: int) -> None:
        for successor in self._successors[index]:
            self._missing[successor][segment] -= 1
            if self._missing[successor][segment] == 0:
                self.ready.append((successor, segment))
