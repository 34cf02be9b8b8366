"""What the ranks of one host add among themselves (NetReduce section 3.4: reduce inside the machine first).

The parts of a host's ranks, in rank order, are one list of the reduction plan, hence one aggregation point:
float16 and bfloat16 sums are widened, added, and rounded once. A part alone is that part, as it is.

Where all ranks of a job are on one host, that is the whole all-reduce. It is handed out slice by slice, to
as many as can add at a time. A slice is added block by block, and can be given up in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from inaproto.core.host.operations import Operation
from inaproto.core.plan.reduce_to_all import reduce_to_all
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op

SLICE_BYTES: Final = 16 << 20
"""Most bytes of all ranks together in one slice: some milliseconds."""
SLICES: Final = 2
"""An all-reduce is cut into at least so many, so that two can add it; more cost more than they bring."""
_LEAST_PART: Final = 8
"""But no slice has less than this part of ``SLICE_BYTES``."""
BLOCK_BYTES: Final = 2 << 20
"""Bytes of each rank that are added at once: so many that threads seldom need Python's lock. To wait for it
takes longer than shorter blocks, which stay in the processor's cache, save."""
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
    reduce_to_all(dtype, op, inputs, [np.frombuffer(out, np.uint8)])


class Slice:
    """A part of the tensors of all ranks of a host, which somebody adds, in place."""

    def __init__(self, of: SlicedReduction, offset: int, parts: Sequence[memoryview]) -> None:
        """``parts``: the bytes from ``offset`` on of each rank, in rank order; one length."""
        self.of = of
        self.offset = offset
        self.nbytes = len(parts[0])
        self.ranks = len(parts)
        self._parts = [np.frombuffer(part, np.uint8) for part in parts]
        self._done = 0

    def block(self) -> bool:
        """Add the next block, into the tensors of all ranks; whether there is another one."""
        operation, begin, end = self.of.operation, self._done, min(self._done + BLOCK_BYTES, self.nbytes)
        if self.ranks > 1:
            parts = [part[begin:end] for part in self._parts]
            reduce_to_all(operation.dtype, operation.op, parts, parts)
        self._done = end
        return end < self.nbytes


class SlicedReduction:
    """An all-reduce among the ``ranks`` ranks of one host, in place, slice by slice.

    Invariants: each byte is handed out once; what is not handed out is input in all tensors, what was added
    is the result in all of them. A slice that was given up halfway is neither: its job has failed.
    """

    def __init__(self, operation: Operation, ranks: int, *, slice_bytes: int = SLICE_BYTES) -> None:
        """``slice_bytes``: the most of all ranks together; ``LocalMisuse`` if that is too few for so many."""
        self.operation = operation
        self.offset = 0
        """Up to here it was handed out."""
        self._added = 0
        least = slice_bytes // _LEAST_PART
        total = min(max(operation.nbytes * ranks // SLICES, least), slice_bytes)
        self._slice_bytes = -(-(total // ranks) // _ELEMENT_BYTES_MAX) * _ELEMENT_BYTES_MAX
        if least < ranks * _ELEMENT_BYTES_MAX:
            raise LocalMisuse(f"slices of {slice_bytes} bytes hold too few elements of each of {ranks} ranks")

    @property
    def is_done(self) -> bool:
        return self._added == self.operation.nbytes

    def take(self, tensors: Parts) -> Slice | None:
        """The next slice, for whoever adds it and says so; None if all were handed out."""
        nbytes = min(self._slice_bytes, self.operation.nbytes - self.offset)
        if not nbytes:
            return None
        taken = Slice(self, self.offset, tensors.views(self.operation.index, self.offset, nbytes))
        self.offset += nbytes
        return taken

    def added(self, part: Slice) -> None:
        """Count a slice, once, that is the result in all tensors."""
        self._added += part.nbytes
