"""Memory of operations that is no tensor: what a collective library adds, and what hosts vote.

Invariant: a tensor is read when an operation is tried, and written when its result is taken; nothing of what
lies here is given up before the vote on it is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from inaproto.core.host.collective import TakeTried, Try, Vote
from inaproto.core.host.collective_terms import counted, words_of
from inaproto.core.host.local_reduction import reduce_parts
from inaproto.core.host.operations import VOTE, Operation
from inaproto.core.host.performer import OutT_co, Tensors
from inaproto.errors import InvariantBroken


class WithVotes(Generic[OutT_co]):
    """The tensors of a host's ranks, and those of its votes: ``Tensors``, too."""

    def __init__(self, tensors: Tensors[OutT_co]) -> None:
        self.tensors = tensors
        self.ranks = tensors.ranks
        self._votes: dict[int, bytearray] = {}

    def views(self, op_index: int, offset: int, nbytes: int) -> Sequence[memoryview]:
        if op_index < VOTE:
            return self.tensors.views(op_index, offset, nbytes)
        return [memoryview(self._votes[op_index])[offset : offset + nbytes]]

    def payload(self, op_index: int, offset: int, nbytes: int) -> OutT_co:
        """Those of a tensor; votes go by way of staging slots."""
        return self.tensors.payload(op_index, offset, nbytes)

    def operation(self, op_index: int) -> Operation:
        """Whose a tensor is; votes have none."""
        return self.tensors.operation(op_index)

    def vote(self, order: Vote) -> None:
        self._votes[order.vote.index] = bytearray(words_of(order.said, stays=order.stays))

    def count(self, op_index: int) -> tuple[int, int, bool]:
        """The least and the most that was said of it, and whether all stay; that is forgotten."""
        return counted(self._votes.pop(VOTE | op_index))


class Apart:
    """What a host gives a collective library, and gets: one operation at a time."""

    def __init__(self) -> None:
        self._result: memoryview | None = None

    def fill(self, order: Try, tensors: Tensors[OutT_co], source: memoryview, into: memoryview) -> None:
        """Add the tensors of the ranks here into ``source``; the result is to lie in ``into``, which nobody
        else writes until it is taken or was redone. Both are as long as the operation."""
        operation = order.operation
        parts = tensors.views(operation.index, 0, operation.nbytes)
        reduce_parts(operation.dtype, operation.op, parts, source)
        self._result = into

    def take(self, order: TakeTried, tensors: Tensors[OutT_co]) -> None:
        """Copy the result into the tensors."""
        operation, result = order.operation, self._take(order.operation)
        for view in tensors.views(operation.index, 0, operation.nbytes):
            view[:] = result

    def _take(self, operation: Operation) -> memoryview:
        result, self._result = self._result, None
        if result is None or len(result) != operation.nbytes:
            raise InvariantBroken(f"all-reduce {operation.index} was not tried here")
        return result
