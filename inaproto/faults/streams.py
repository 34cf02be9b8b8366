"""Named streams of random bits: one seed gives as many independent streams as there are purposes.

A stream belongs to one purpose ("weather/port-0/in"), so that a draw added for one purpose moves no
other. The bits are those of PCG64, whose output numpy keeps stable over its releases; its
distributions it does not, so whoever must replay a run in a year draws raw bits (``random_raw``) and
compares integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

T = TypeVar("T")
_BLOCK: Final = 256

Seed = int | str
"""What a person gives; an ``int`` and its decimal text are the same seed."""


def named_bits(seed: Seed, purpose: str) -> np.random.PCG64:
    """The bit stream of ``purpose`` under ``seed``, from its beginning."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return np.random.PCG64(int.from_bytes(digest, "big"))


class Draws:
    """Integers of one stream. Python integers throughout, so no release of numpy can change a draw."""

    def __init__(self, seed: Seed, purpose: str) -> None:
        self._bits = named_bits(seed, purpose)
        self._block: list[int] = []

    def raw(self) -> int:
        """64 random bits."""
        if not self._block:
            self._block = self._bits.random_raw(_BLOCK).tolist()[::-1]
        return self._block.pop()

    def below(self, limit: int) -> int:
        """Uniform in ``0 .. limit - 1``; ``limit`` up to 2**64 (the bias is below ``limit / 2**64``)."""
        return self.raw() * limit >> 64

    def between(self, least: int, most: int) -> int:
        """Uniform, both ends included."""
        return least + self.below(most - least + 1)

    def chance(self, numerator: int, denominator: int) -> bool:
        return self.below(denominator) < numerator

    def choice(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def magnitude(self, least: int, most: int) -> int:
        """Each power of two between the ends is as likely as any other: sizes, times, rates."""
        bits = self.between(least.bit_length(), most.bit_length())
        return min(max(self.between(1 << (bits - 1), (1 << bits) - 1), least), most)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        left = list(items)
        for index in range(len(left) - 1, 0, -1):
            other = self.below(index + 1)
            left[index], left[other] = left[other], left[index]
        return left
