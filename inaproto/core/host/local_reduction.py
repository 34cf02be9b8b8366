"""What the ranks of one host add among themselves (NetReduce section 3.4: reduce inside the machine first).

The parts of a host's ranks, in rank order, are one list of the reduction plan, hence one aggregation point:
float16 and bfloat16 sums are widened, added, and rounded once. A part alone is that part, as it is.

Where all ranks of a job are on one host, that is the whole all-reduce. It is done slice by slice, so that
whoever does it can look after other work in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from inaproto.core.host.operations import Operation
from inaproto.core.plan.reduce import reduce_into
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op

TURN_BYTES: Final = 4 << 20
"""Bytes of all ranks together that one turn reads: some milliseconds."""
_ELEMENT_BYTES_MAX: Final = 8


class Parts(Protocol):
    """The tensors of a host's ranks, by operation."""

    def views(self, op_index: int, offset: int, nbytes: int) -> Sequence[memoryview]:
        """The same bytes of the tensor of each rank, in rank order; to be read and written."""


def reduce_parts(dtype: Dtype, op: Op, parts: Sequence[memoryview], out: memoryview) -> None:
    """Reduce ``parts``, whole elements of one length, in order into ``out``; that may be the first of them.

    Raises ``LocalMisuse`` for no part, or lengths that differ.
    """
    if len(parts) == 1 and len(parts[0]) == len(out):
        out[:] = parts[0]
        return
    inputs = [np.frombuffer(part, np.uint8) for part in parts]
    reduce_into(dtype, op, inputs, np.frombuffer(out, np.uint8))


class SlicedReduction:
    """An all-reduce among the ``ranks`` ranks of one host, turn by turn, in place.

    Invariant: up to ``offset`` all tensors hold the result, behind it all hold their inputs.
    """

    def __init__(self, operation: Operation, ranks: int, *, turn_bytes: int = TURN_BYTES) -> None:
        """``turn_bytes``: what one turn reads at most; ``LocalMisuse`` if that is no element of each rank."""
        self.operation = operation
        self.offset = 0
        self._slice_bytes = turn_bytes // ranks // _ELEMENT_BYTES_MAX * _ELEMENT_BYTES_MAX
        if self._slice_bytes == 0:
            raise LocalMisuse(f"turns of {turn_bytes} bytes hold no element of each of {ranks} ranks")

    @property
    def is_done(self) -> bool:
        return self.offset == self.operation.nbytes

    def turn(self, tensors: Parts) -> None:
        """Do the next slice."""
        operation = self.operation
        nbytes = min(self._slice_bytes, operation.nbytes - self.offset)
        first, *others = tensors.views(operation.index, self.offset, nbytes)
        reduce_parts(operation.dtype, operation.op, (first, *others), first)
        for other in others:
            other[:] = first
        self.offset += nbytes
