"""One rank's part of a collective over shared memory: what it copies and adds, and where it must wait.

First and last stage of NetReduce's parallel all-reduce (section 3.4, figure 6B): reduce-scatter and
all-gather among the ranks of one machine. Everything here works on plain arrays. A call is an iterator that
stops wherever all ranks must have come before this one may go on (``None``), so the same code runs between
processes and, rank by rank in any order, in a test.

A call has two or three stages, each of them a chunk behind the one before; so while chunk ``t`` is copied in,
chunk ``t - 1`` is reduced and chunk ``t - 2`` copied out, with one barrier to a chunk.

Where ranks may read each other's memory (:mod:`inaproto.client.stage.neighbours`), a large all-reduce needs
no areas: each rank adds its slice from where the inputs are, into its own array, and then reads the slices of
all others. Three barriers: all arrays are there; all slices are sums; all have read them. Between the first
two a rank writes its own slice only, which nobody but itself reads then. Where ranks may write to each other
as well, each writes its sums into the arrays of all: two barriers, between which nobody else reads or writes
its slice of any array. A rank that does not come to the second one takes back that others may write.

Invariants, with two slots that take turns over all calls:

- What a rank reads in a phase, no rank writes in that phase: stages next to each other use different slots.
- No barrier follows a call's last phase. The next call begins with the other slot, and nobody passes its
  first barrier before all have left the call before.
- Ranks that make different calls find out behind the first barrier, all of them, before any has a result;
  behind one more each knows what all others call, in words. They are still in step, and the next call works.
- Sums are those of ``ReductionPlan.reduce``: every element is reduced by one rank, in the plan's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from inaproto.client.huge_pages import private
from inaproto.client.stage.gathering import Arrays, Gathering
from inaproto.client.stage.layout import LINE_BYTES, SLOTS, Bytes, Cut, Layout
from inaproto.client.stage.neighbours import Neighbours
from inaproto.client.stage.views import Home
from inaproto.client.stage.waits import TURN, Wait
from inaproto.core.kernels.compiled import address_of
from inaproto.core.kernels.copies import copy_past_caches
from inaproto.core.plan.reduce import reduce_into
from inaproto.core.plan.reduce_to_all import fused, reduce_to_all
from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.core.rendezvous.disputes import ADVICE
from inaproto.errors import TensorMismatch
from inaproto.wire.ina_header import Dtype, Op, call_words

BLOCK_BYTES: Final = 128 << 10
"""Reduced at once: the sum stays in the processor's cache until its last operand."""

READ_BYTES_MIN: Final = 1 << 20
"""An all-reduce of so many bytes reads the arrays of others where they are: below, a barrier costs more."""
READ_AT_ONCE_BYTES: Final = 1 << 20
"""Bytes of all ranks together: what was read is still in the processor's cache when it is added."""
GIVE_AT_ONCE_BYTES: Final = 512 << 10
"""The same where sums are written to all ranks: what was read of them is still there, too."""
TURN_BYTES: Final = 8 << 20
"""After so many, other tasks of the process have a turn."""
WORDS_BYTES_MAX: Final = 512
"""The longest text in which a rank says what it calls, where the calls differ."""
_AGREED: Final = 6
"""Words of a call record that all ranks must agree on; behind them are addresses."""

PAST_CACHES_BYTES: Final = 4 << 20
"""Results of so many bytes do not stay in a cache until they are read again."""


class Kind(IntEnum):
    """What ranks call. Those from 4 on are all-reduces of vectors that do not tell what they are."""

    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    BROADCAST = 4
    AVERAGE = 5
    LIST = 6


@dataclass(frozen=True, slots=True)
class Call:
    """What all ranks must agree on; ``signature`` is the digest of type, operation and shape."""

    kind: Kind
    dtype: Dtype
    op: Op
    elements: int
    signature: int
    shape: tuple[int, ...] | None = field(default=None, compare=False)
    words: str = field(default="", compare=False)
    """What the caller calls it who calls it something else."""

    def __str__(self) -> str:
        shape = (self.elements,) if self.shape is None else self.shape
        words = call_words(self.dtype, self.op, shape, self.words)
        if self.kind is Kind.ALL_GATHER:
            return f"all_gather of {words.partition(' of ')[2]}"
        return f"reduce_scatter: {words}" if self.kind is Kind.REDUCE_SCATTER else words


class Exchange:
    """Rank ``rank`` of a host whose mapping is ``memory``, uint8 ``(layout.nbytes,)``."""

    def __init__(self, rank: int, plan: ReductionPlan, layout: Layout, memory: Bytes) -> None:
        self.rank = rank
        self.plan = plan
        self.layout = layout
        self._memory = memory
        self.neighbours: Neighbours | None = None
        """Set where all ranks may read each other's memory."""
        self._rows = np.empty(0, np.uint8)
        """What was read of others."""
        self.given: Bytes | None = None
        """To what others may be writing, from before the first barrier of a call until behind its last."""
        self._first_slot = 0
        self._calls = 0

    @property
    def calls(self) -> int:
        """How many were begun."""
        return self._calls

    def forget_memory(self) -> None:
        """Let go of the mapping; no call may follow."""
        self._memory = np.empty(0, np.uint8)

    def all_reduce(
        self, call: Call, source: Bytes, out: Bytes, home: Home | None = None
    ) -> Iterator[Wait | None]:
        """Reduce the ``source`` of all ranks to the ``out`` of all; the two may be the same array.

        ``home``: the shared segment in which they lie, if others may map it.
        """
        neighbours = self.neighbours
        if neighbours is not None and source.size >= READ_BYTES_MIN and self.layout.ranks > 1:
            yield from self._reading(call, source, out, neighbours, home)
            return
        cut = Cut(self.layout, call.elements, call.dtype.itemsize)

        def put(chunk: int) -> None:
            self._put_inputs(cut, chunk, source)

        def add(chunk: int) -> None:
            first, end = cut.piece(chunk, self.rank)
            result = self.layout.result(self._memory, self._slot(chunk), self.rank, end - first)
            self._add(call, chunk, source[first:end], [result, out[first:end]])

        def take(chunk: int) -> None:
            self._take_results(cut, chunk, out)

        yield from self._run(call, cut.chunks, (put, add, take))

    def _reading(
        self, call: Call, source: Bytes, out: Bytes, neighbours: Neighbours, home: Home | None
    ) -> Iterator[Wait | None]:
        """The same, without areas."""
        order, kernels = _flat(self.plan), neighbours.gives(call.dtype, call.op)
        self._calls += 1
        self._record(call, address_of(source), address_of(out))
        neighbours.views.show(self.layout.hands(self._memory), home)
        self.given = out if order is not None and kernels is not None else None
        yield None
        if not self._agrees():
            self.given = None
            yield from self._telling(call)
        places = self.layout.calls(self._memory, self._calls % SLOTS)[:, _AGREED:].tolist()
        cut = Cut(self.layout, call.elements, call.dtype.itemsize)
        slices = map(cut.slice_bounds, range(self.layout.ranks))
        bounds = [(first * cut.itemsize, end * cut.itemsize) for first, end in slices]
        if kernels is None or order is None:
            yield from self._add_read(call, bounds[self.rank], places, source, out)
            yield None
            yield from self._take_read(bounds, places, out)
        else:
            hands = self.layout.hands(self._memory)
            seen = neighbours.seen(hands, places, source.size)
            arrays = Arrays(self.rank, source, out, self._rows_for(GIVE_AT_ONCE_BYTES), places, seen)
            gathering = Gathering(neighbours, kernels, call.dtype, order, arrays, hands)
            del hands  # which would keep the mapping
            for first, end in _steps(*bounds[self.rank], TURN_BYTES):
                gathering.add(first, end)
                yield TURN
        yield None
        self.given = None

    def _take_read(
        self, bounds: Sequence[tuple[int, int]], places: Sequence[Sequence[int]], out: Bytes
    ) -> Iterator[Wait | None]:
        """The slices that others have added."""
        neighbours = self.neighbours
        assert neighbours is not None
        for rank in (*range(self.rank + 1, self.layout.ranks), *range(self.rank)):
            begin, stop = bounds[rank]
            for first, end in _steps(begin, stop, TURN_BYTES):
                neighbours.read(rank, places[rank][1] + first, out[first:end])
                yield TURN

    def _rows_for(self, at_once: int) -> Bytes:
        """Memory for a block of each rank, ``at_once`` bytes together: uint8 ``(ranks, block)``."""
        ranks = self.layout.ranks
        block = max(LINE_BYTES, at_once // ranks // LINE_BYTES * LINE_BYTES)
        if self._rows.size < ranks * block:
            self._rows = np.frombuffer(private(ranks * block), np.uint8)
        return self._rows[: ranks * block].reshape(ranks, block)

    def _add_read(
        self,
        call: Call,
        bounds: tuple[int, int],
        places: Sequence[Sequence[int]],
        source: Bytes,
        out: Bytes,
    ) -> Iterator[Wait | None]:
        """This rank's slice of the arrays that are at ``places``, block by block, into ``out``."""
        neighbours = self.neighbours
        assert neighbours is not None
        rows = self._rows_for(READ_AT_ONCE_BYTES)
        block = rows.shape[1]
        kernels, order = fused(call.dtype, call.op), _at_once(self.plan, call.dtype, call.op)
        if kernels is not None and order is not None:
            seen = neighbours.seen(self.layout.hands(self._memory), places, source.size)
            arrays = Arrays(self.rank, source, out, rows, places, seen)
            gathering = Gathering(neighbours, kernels, call.dtype, order, arrays, None)
            for first, end in _steps(*bounds, TURN_BYTES):
                gathering.add(first, end)
                yield TURN
            return
        for count, (first, end) in enumerate(_steps(*bounds, block), 1):
            inputs = [
                source[first:end] if rank == self.rank else row[: end - first]
                for rank, row in enumerate(rows)
            ]
            for rank, (place, _) in enumerate(places):
                if rank != self.rank:
                    neighbours.read(rank, place + first, inputs[rank])
            outs = [rows[self.rank, : end - first], out[first:end]]
            reduce_blocks(self.plan, inputs, call.dtype, call.op, outs)
            if count * block % TURN_BYTES < block:
                yield TURN

    def reduce_scatter(self, call: Call, source: Bytes, out: Bytes) -> Iterator[Wait | None]:
        """Reduce the ``source`` of all ranks; ``out`` gets this rank's slice of it."""
        cut = Cut(self.layout, call.elements, call.dtype.itemsize)
        start = cut.slice_bounds(self.rank)[0] * cut.itemsize

        def put(chunk: int) -> None:
            self._put_inputs(cut, chunk, source)

        def add(chunk: int) -> None:
            first, end = cut.piece(chunk, self.rank)
            self._add(call, chunk, source[first:end], [out[first - start : end - start]])

        yield from self._run(call, cut.chunks, (put, add))

    def all_gather(self, call: Call, source: Bytes, out: Bytes) -> Iterator[Wait | None]:
        """Put the slices together: ``source`` is this rank's, ``out`` gets all."""
        cut = Cut(self.layout, call.elements, call.dtype.itemsize)
        start = cut.slice_bounds(self.rank)[0] * cut.itemsize

        def put(chunk: int) -> None:
            first, end = cut.piece(chunk, self.rank)
            result = self.layout.result(self._memory, self._slot(chunk), self.rank, end - first)
            result[...] = source[first - start : end - start]
            out[first:end] = result

        def take(chunk: int) -> None:
            self._take_results(cut, chunk, out)

        yield from self._run(call, cut.chunks, (put, take))

    def _run(self, call: Call, chunks: int, stages: Sequence[Callable[[int], None]]) -> Iterator[Wait | None]:
        self._calls += 1
        self._record(call)
        last = chunks + len(stages) - 2
        for phase in range(last + 1):
            for behind, stage in enumerate(stages):
                if 0 <= phase - behind < chunks:
                    stage(phase - behind)
            if phase < last:
                yield None
            if phase == 0 and not self._agrees():
                yield from self._telling(call)
        self._first_slot += chunks

    def _slot(self, chunk: int) -> int:
        return (self._first_slot + chunk) % SLOTS

    def _put_inputs(self, cut: Cut, chunk: int, source: Bytes) -> None:
        """For all others: a rank's own slice it reads where it is."""
        for piece in range(self.layout.ranks):
            first, end = cut.piece(chunk, piece)
            if piece != self.rank and first < end:
                place = self.layout.input(self._memory, self._slot(chunk), self.rank, piece, end - first)
                place[...] = source[first:end]

    def _add(self, call: Call, chunk: int, own: Bytes, outs: Sequence[Bytes]) -> None:
        slot = self._slot(chunk)
        inputs = [
            own if rank == self.rank else self.layout.input(self._memory, slot, rank, self.rank, own.size)
            for rank in range(self.layout.ranks)
        ]
        reduce_blocks(self.plan, inputs, call.dtype, call.op, outs)

    def _take_results(self, cut: Cut, chunk: int, out: Bytes) -> None:
        for piece in range(self.layout.ranks):
            first, end = cut.piece(chunk, piece)
            if piece != self.rank and first < end:
                result = self.layout.result(self._memory, self._slot(chunk), piece, end - first)
                if out.size < PAST_CACHES_BYTES:
                    out[first:end] = result
                else:
                    copy_past_caches(result, out[first:end])

    def _record(self, call: Call, source: int = 0, out: int = 0) -> None:
        record = (self._calls, call.kind, call.dtype, call.op, call.elements, call.signature, source, out)
        self.layout.calls(self._memory, self._calls % SLOTS)[self.rank] = record

    def _agrees(self) -> bool:
        """Whether all ranks have made this call: alike for all of them."""
        records = self.layout.calls(self._memory, self._calls % SLOTS)[:, :_AGREED]
        return bool((records == records[self.rank]).all())

    def _telling(self, call: Call) -> Iterator[Wait | None]:
        """Tell all ranks in words what this one calls, where they do not agree. Raises ``TensorMismatch``, on
        all ranks.
        """
        slot, ranks = self._slot(0), self.layout.ranks
        self._first_slot += 1  # nobody writes into this slot before all have read it
        room = min(WORDS_BYTES_MAX, ranks * self.layout.piece_bytes)
        told = str(call).encode("ascii", "backslashreplace")
        told = told if len(told) <= room else told[: room - 3] + b"..."
        place = self.layout.input(self._memory, slot, self.rank, 0, room)
        place[...] = np.frombuffer(told.ljust(room, b"\0"), np.uint8)
        yield None
        who: dict[str, list[str]] = {}
        for rank in range(ranks):
            # A copy: the traceback of the error would hold a view, and so the mapping.
            heard = self.layout.input(self._memory, slot, rank, 0, room).tobytes()
            who.setdefault(heard.rstrip(b"\0").decode("ascii", "replace"), []).append(str(rank))
        del place
        named = "; ".join(f"rank{'s' * (len(of) > 1)} {', '.join(of)}: {words}" for words, of in who.items())
        raise TensorMismatch(
            f"call {self._calls} of the shared-memory stage differs between ranks: {named}; {ADVICE}"
        )


def reduce_blocks(
    plan: ReductionPlan,
    inputs: Sequence[Bytes],
    dtype: Dtype,
    op: Op,
    outs: Sequence[Bytes],
    block_bytes: int = BLOCK_BYTES,
) -> None:
    """``plan.reduce(inputs, dtype, op)`` into each of ``outs``, a block at a time.

    The first of ``outs`` is none of the inputs, unless they are reduced at once (:func:`_at_once`); others
    may be.
    """
    order = _at_once(plan, dtype, op)
    if order is not None:
        reduce_to_all(dtype, op, [inputs[rank] for rank in order], outs)
        return
    for first in range(0, outs[0].size, block_bytes):
        block = slice(first, first + block_bytes)
        _reduce_into(plan.children, [values[block] for values in inputs], dtype, op, outs[0][block])
        for other in outs[1:]:
            other[block] = outs[0][block]


def _reduce_into(children: PlanList, inputs: Sequence[Bytes], dtype: Dtype, op: Op, out: Bytes) -> None:
    operands = [_operand(child, inputs, dtype, op) for child in children]
    if len(operands) == 1:
        out[...] = operands[0]
    else:
        reduce_into(dtype, op, operands, out)


def _operand(child: int | PlanList, inputs: Sequence[Bytes], dtype: Dtype, op: Op) -> Bytes:
    if isinstance(child, int):
        return inputs[child]
    if len(child) == 1:
        return _operand(child[0], inputs, dtype, op)
    out = np.empty_like(inputs[0])
    _reduce_into(child, inputs, dtype, op, out)
    return out


def _at_once(plan: ReductionPlan, dtype: Dtype, op: Op) -> list[int] | None:
    """The order of the ranks, if a kernel reduces them in one pass."""
    return _flat(plan) if fused(dtype, op) is not None else None


def _flat(plan: ReductionPlan) -> list[int] | None:
    """The order of the ranks, if they are added one after the other."""
    order = [child for child in plan.children if isinstance(child, int)]
    return order if 1 < len(order) == len(plan.children) else None


def _steps(first: int, end: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """``first`` to ``end``, at most ``nbytes`` at a time."""
    return ((at, min(at + nbytes, end)) for at in range(first, end, nbytes))
