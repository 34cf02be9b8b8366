"""Where everything lies in the mapping that the ranks of one host share, and how a tensor is cut for it.

A tensor of ``n`` elements has a *slice* for each rank, elements ``n * r // ranks`` to ``n * (r + 1) //
ranks``: rank ``r`` reduces slice ``r`` (NetReduce section 3.4, "the i-th GPU would fetch the i-th piece"). A
*chunk* is one *piece* of every slice, as many bytes of each as have a place in a slot.

The mapping: two lines of control words, two call records and then, for each of two slots, an input area for
every rank and one result area. Each area has a place for a piece of every slice. All places begin at cache
lines of their own, so ranks that work at the same time do not write to the same line.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse

RANKS_MAX: Final = 64
"""As many descriptors go to each rank, and a message takes no more than 253."""
CHUNK_BYTES: Final = 1 << 20
CHUNK_BYTES_MAX: Final = 1 << 28
SLOTS: Final = 2
LINE_BYTES: Final = 64
WORDS: Final = LINE_BYTES // 8
_LINES_PER_RANK: Final = 2 + SLOTS

Bytes = NDArray[np.uint8]
Words = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of a mapping for ``ranks`` ranks, with chunks of ``chunk_bytes``. Raises ``LocalMisuse``."""

    ranks: int
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= RANKS_MAX:
            raise LocalMisuse(f"a shared-memory stage of {self.ranks} ranks; 1 to {RANKS_MAX} are possible")
        least = self.ranks * LINE_BYTES
        if not least <= self.chunk_bytes <= CHUNK_BYTES_MAX:
            raise LocalMisuse(
                f"chunks of {self.chunk_bytes} bytes; {least} (a cache line for each rank) to "
                f"{CHUNK_BYTES_MAX} are possible"
            )

    @property
    def piece_bytes(self) -> int:
        """Bytes of the place for one piece: whole cache lines."""
        return self.chunk_bytes // self.ranks // LINE_BYTES * LINE_BYTES

    @property
    def header_bytes(self) -> int:
        """Bytes of control words and call records: whole pages."""
        used = self.ranks * _LINES_PER_RANK * LINE_BYTES
        return used + -used % mmap.PAGESIZE

    @property
    def nbytes(self) -> int:
        """Bytes of the whole mapping."""
        used = self.header_bytes + SLOTS * (self.ranks + 1) * self.ranks * self.piece_bytes
        return used + -used % mmap.PAGESIZE

    def control(self, memory: Bytes) -> Words:
        """The control words of each rank, int64 ``(ranks, 8)``."""
        words: Words = self._header(memory)[0]
        return words

    def calls(self, memory: Bytes, slot: int) -> Words:
        """The call record of each rank, int64 ``(ranks, 8)``."""
        records: Words = self._header(memory)[2 + slot]
        return records

    def hands(self, memory: Bytes) -> Words:
        """What each rank says of what it writes to others, int64 ``(ranks, 8)``; see ``neighbours``."""
        words: Words = self._header(memory)[1]
        return words

    def input(self, memory: Bytes, slot: int, rank: int, piece: int, nbytes: int) -> Bytes:
        """The first bytes of the place for ``rank``'s input to slice ``piece``."""
        return self._place(memory, slot, rank, piece, nbytes)

    def result(self, memory: Bytes, slot: int, piece: int, nbytes: int) -> Bytes:
        """The first bytes of the place for what slice ``piece`` is reduced to."""
        return self._place(memory, slot, self.ranks, piece, nbytes)

    def _header(self, memory: Bytes) -> Words:
        used: Words = memory[: self.ranks * _LINES_PER_RANK * LINE_BYTES].view(np.int64)
        return used.reshape(_LINES_PER_RANK, self.ranks, WORDS)

    def _place(self, memory: Bytes, slot: int, area: int, piece: int, nbytes: int) -> Bytes:
        number = (slot * (self.ranks + 1) + area) * self.ranks + piece
        first = self.header_bytes + number * self.piece_bytes
        return memory[first : first + nbytes]


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor of ``elements`` of ``itemsize`` bytes, cut for a layout."""

    layout: Layout
    elements: int
    itemsize: int

    @property
    def chunks(self) -> int:
        """At least one: ranks meet for an empty tensor as well, to find that theirs are all empty."""
        longest = -(-self.elements // self.layout.ranks)
        return max(1, -(-longest // self._piece_elements))

    def slice_bounds(self, rank: int) -> tuple[int, int]:
        """First element of slice ``rank``, and the one behind its last."""
        ranks = self.layout.ranks
        return self.elements * rank // ranks, self.elements * (rank + 1) // ranks

    def piece(self, chunk: int, rank: int) -> tuple[int, int]:
        """First byte of slice ``rank``'s piece in ``chunk``, and the one behind its last; it may be empty."""
        first, end = self.slice_bounds(rank)
        start = min(first + chunk * self._piece_elements, end)
        return start * self.itemsize, min(start + self._piece_elements, end) * self.itemsize

    @property
    def _piece_elements(self) -> int:
        return self.layout.piece_bytes // self.itemsize
