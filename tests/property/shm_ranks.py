"""The ranks of a shared-memory stage in one thread, taking turns in any order that barriers permit."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from inaproto.client.stage.exchange import Call, Exchange, Kind
from inaproto.client.stage.layout import Cut, Layout
from inaproto.client.stage.neighbours import Neighbours
from inaproto.client.stage.waits import TURN, Wait
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.wire.ina_header import Dtype, Op, signature

Bytes = NDArray[np.uint8]
Way = Literal["copied", "read", "given"]
WAYS: tuple[Way, ...] = get_args(Way)
CACHE_LINE = 64


class Ranks:
    """All ranks of ``plan`` on one array; ``choose(k)`` says which of ``k`` ranks that may go on does."""

    def __init__(
        self,
        plan: ReductionPlan,
        *,
        lines: int = 1,
        choose: Callable[[int], int] = lambda ready: 0,
        way: Way = "copied",
    ) -> None:
        """A piece has ``lines`` cache lines. Inputs are "copied", or "read" where they are; or read, and sums
        "given" to all."""
        self.plan = plan
        self.layout = Layout(plan.size, plan.size * lines * CACHE_LINE)
        noise = np.random.default_rng(1)
        memory = noise.integers(0, 256, self.layout.nbytes, dtype=np.uint8)
        self.exchanges = [Exchange(rank, plan, self.layout, memory) for rank in range(plan.size)]
        self._choose = choose
        if way != "copied":
            self._let_read(self.layout.control(memory), self.layout.hands(memory), writes=way == "given")

    def _let_read(self, words: NDArray[np.int64], hands: NDArray[np.int64], *, writes: bool) -> None:
        words[:, 4] = os.getpid()
        neighbours = [Neighbours(rank, words, hands) for rank in range(self.plan.size)]
        for each in neighbours:
            each.show()
        for each in neighbours:
            each.look()
        for exchange, each in zip(self.exchanges, neighbours, strict=True):
            assert each.why_not() == ""
            if writes:
                each.agree()
            exchange.neighbours = each

    def run(self, programs: Sequence[Iterator[Wait | None]]) -> None:
        """Run each rank's program to its end: it stops at a barrier until all others have come to it."""
        passed = [0] * len(programs)
        running = dict(enumerate(programs))
        while running:
            ready = [rank for rank in running if passed[rank] == min(passed)]
            rank = ready[self._choose(len(ready))]
            passed[rank] += 1
            try:
                while next(running[rank]) is TURN:
                    pass
            except StopIteration:
                del running[rank]
                passed[rank] = 1 << 60

    def call(self, kind: Kind, elements: int, dtype: Dtype, op: Op = Op.SUM) -> Call:
        return Call(kind, dtype, op, elements, signature(dtype, op, (elements,)))

    def all_reduce(self, inputs: Sequence[Bytes], dtype: Dtype, op: Op) -> list[Bytes]:
        """Results by rank."""
        call = self.call(Kind.ALL_REDUCE, inputs[0].size // dtype.itemsize, dtype, op)
        outs = [np.empty_like(values) for values in inputs]
        self.run(
            [each.all_reduce(call, inputs[each.rank], outs[each.rank]) for each in self.exchanges],
        )
        return outs

    def reduce_scatter(self, inputs: Sequence[Bytes], dtype: Dtype, op: Op) -> list[Bytes]:
        """Slices by rank."""
        call = self.call(Kind.REDUCE_SCATTER, inputs[0].size // dtype.itemsize, dtype, op)
        parts = self.empty_slices(call)
        self.run(
            [each.reduce_scatter(call, inputs[each.rank], parts[each.rank]) for each in self.exchanges],
        )
        return parts

    def all_gather(self, parts: Sequence[Bytes], elements: int, dtype: Dtype) -> list[Bytes]:
        """Tensors by rank."""
        call = self.call(Kind.ALL_GATHER, elements, dtype)
        outs = [np.empty(elements * dtype.itemsize, np.uint8) for _ in parts]
        self.run([each.all_gather(call, parts[each.rank], outs[each.rank]) for each in self.exchanges])
        return outs

    def empty_slices(self, call: Call) -> list[Bytes]:
        cut = Cut(self.layout, call.elements, call.dtype.itemsize)
        bounds = [cut.slice_bounds(rank) for rank in range(self.layout.ranks)]
        return [np.empty((end - first) * cut.itemsize, np.uint8) for first, end in bounds]


def in_any_order(draw: random.Random) -> Callable[[int], int]:
    """Sometimes fair, sometimes with one rank far ahead."""
    ahead = draw.random() < 0.5

    def choose(ready: int) -> int:
        return 0 if ahead and draw.random() < 0.9 else draw.randrange(ready)

    return choose


def as_bytes(values: NDArray[Any]) -> Bytes:
    return values.reshape(-1).view(np.uint8)
