"""Sums of the arrays of all ranks where they are, by the compiled kernel: many blocks in one call.

What a rank reads of the others is added while it is in the processor's cache. Where ranks write to each other
(:mod:`inaproto.client.stage.neighbours`), the sum goes out from there, too, to the lines that were just read:
of each array half as many bytes move as when every rank reads the sums of all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inaproto.client.stage.layout import Bytes, Words
from inaproto.client.stage.neighbours import Neighbours
from inaproto.core.kernels import Compiled
from inaproto.core.kernels.compiled import address_of
from inaproto.core.plan.reduce_to_all import SUMS
from inaproto.wire.ina_header import Dtype


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """What rank ``rank`` adds, ``source``, and where sums go, ``out``: the two may be the same array.

    ``rows`` is memory for a block of each rank: uint8 ``(ranks, block)``. ``places`` are the addresses of the
    ``source`` and ``out`` of all ranks, ``seen`` those where they are mapped here, or 0.
    """

    rank: int
    source: Bytes
    out: Bytes
    rows: Bytes
    places: Sequence[Sequence[int]]
    seen: Sequence[Sequence[int]]


class Gathering:
    """Ranks are added in ``order``. ``hands``: those of the layout, where ranks write to each other."""

    def __init__(
        self,
        neighbours: Neighbours,
        kernels: Compiled,
        dtype: Dtype,
        order: Sequence[int],
        arrays: Arrays,
        hands: Words | None,
    ) -> None:
        self._neighbours = neighbours
        self._kernels = kernels
        self._arrays = arrays
        (read, write), (processes, number_at, numbers) = neighbours.words()
        places = np.array(arrays.places, np.uint64).T.copy()
        seen = np.array(arrays.seen, np.uint64).T.copy()
        self._tables = np.array(order, np.int64), processes, places, seen, number_at, numbers
        said = 0 if hands is None else int(hands[arrays.rank].ctypes.data)
        self._words = np.array(
            [
                *(read, write if said else 0, len(order), arrays.rank, SUMS[dtype]),
                *(self._tables[0].ctypes.data, processes.ctypes.data),
                *(places[0].ctypes.data, places[1].ctypes.data, number_at.ctypes.data, numbers.ctypes.data),
                *(said, address_of(arrays.rows), arrays.rows.shape[1]),
                *(
                    address_of(arrays.source),
                    address_of(arrays.out),
                    seen[0].ctypes.data,
                    seen[1].ctypes.data,
                ),
            ],
            np.int64,
        )
        self._fault = np.zeros(1, np.int64)
        self._at = int(self._words.ctypes.data), int(self._fault.ctypes.data)

    def add(self, first: int, end: int) -> None:
        """Sum bytes ``first`` to ``end``. Raises as :meth:`Neighbours.read`."""
        words, fault = self._at
        rank = self._kernels.gather(words, first, end, fault)
        if rank >= 0:
            raise self._neighbours.loss(rank, int(self._fault[0]))
