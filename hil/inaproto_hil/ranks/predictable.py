"""Predictable data: every rank can say what every other rank sent, so each element can be checked.

Values are small integers, so that their sum is exact in every element type, bfloat16 (8 significant
bits) included: a wrong element is a wrong element, never a rounding. They differ by rank, iteration
and element, without a period that a packet or a message could hide in: a payload that lands in the
wrong place, or one from an earlier operation, is seen. (nccl-tests draws its data so too.)
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

SUM_MAX: Final = 256
"""All integers up to here are bfloat16 numbers."""
RANKS_MAX: Final = 128


class Pattern:
    """The inputs of all ranks for operations on ``count`` elements."""

    def __init__(self, *, count: int, ranks: int) -> None:
        if not 1 <= ranks <= RANKS_MAX:
            raise ValueError(f"{ranks} ranks: must be 1..{RANKS_MAX}, or their sum is not exact in bfloat16")
        self._span = 2 * SUM_MAX // ranks
        self._spread = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1)

    def values(self, *, rank: int, iteration: int) -> NDArray[np.int32]:
        """Integers in ``-span/2 .. span/2 - 1`` where span = 512 / ranks; shape (count,)."""
        start = (rank * 0x85EBCA6B + (iteration + 1) * 0xC2B2AE35) & 0xFFFFFFFF
        mixed = self._spread + np.uint32(start)
        mixed ^= mixed >> np.uint32(15)
        mixed *= np.uint32(0x2C1B3C6D)
        mixed >>= np.uint32(16)
        mixed *= np.uint32(self._span)
        mixed >>= np.uint32(16)
        return mixed.view(np.int32) - np.int32(self._span // 2)


def differing(result: NDArray[Any], expected: NDArray[Any]) -> tuple[int, str]:
    """How many elements differ, and the first of them in words."""
    if result.dtype != expected.dtype or result.shape != expected.shape:
        shapes = f"{result.dtype}{result.shape}, expected {expected.dtype}{expected.shape}"
        return expected.size, f"the result is {shapes}"
    where = np.flatnonzero(result != expected)
    if not len(where):
        return 0, ""
    first = int(where[0])
    return len(where), f"element {first} is {result[first]}, expected {expected[first]}"
