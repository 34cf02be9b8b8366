"""A vector of bytes in pieces: which arrays it is put together from, or taken apart into.

A collective is an all-reduce of one vector (:mod:`inaproto.client.collectives`). The vector lies in shared
memory; the arrays of the caller are its pieces. What no array has is a gap: it reads as zeros, and what is
written to it goes nowhere. So arrays are copied once each way, whatever they are a part of.

Invariant: every byte of the vector is in one piece, in the order of the list.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Pieces:
    """Pieces are C-contiguous arrays of any dtype; a number is a gap of so many bytes."""

    def __init__(self, pieces: Sequence[NDArray[Any] | int]) -> None:
        self._ends: list[int] = []
        self._pieces: list[Bytes | None] = []
        self.nbytes = 0
        for piece in pieces:
            data = None if isinstance(piece, int) else as_bytes(piece)
            nbytes = piece if isinstance(piece, int) else piece.nbytes
            if nbytes:
                self.nbytes += nbytes
                self._ends.append(self.nbytes)
                self._pieces.append(data)

    def read(self, first: int, end: int, into: Bytes) -> None:
        """Copy bytes ``first`` to ``end`` of the vector to ``into``, which has as many."""
        for piece, begin, stop, at in self._between(first, end):
            here = into[at : at + stop - begin]
            here[:] = 0 if piece is None else piece[begin:stop]

    def write(self, first: int, end: int, data: Bytes) -> None:
        """Copy ``data`` to bytes ``first`` to ``end`` of the vector, which are as many."""
        for piece, begin, stop, at in self._between(first, end):
            if piece is not None:
                piece[begin:stop] = data[at : at + stop - begin]

    def _between(self, first: int, end: int) -> Iterator[tuple[Bytes | None, int, int, int]]:
        """(piece, its first byte, the one behind its last, where they are in ``first`` to ``end``)."""
        number, at = bisect_right(self._ends, first), first
        while at < end:
            start = self._ends[number - 1] if number else 0
            stop = min(self._ends[number], end)
            yield self._pieces[number], at - start, stop - start, at - first
            number, at = number + 1, stop


def as_bytes(array: NDArray[Any]) -> Bytes:
    """The memory of a C-contiguous array, uint8 ``(nbytes,)``."""
    if not array.size:
        return np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8)
