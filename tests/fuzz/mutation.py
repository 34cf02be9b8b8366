"""Seeded mutation of valid records: the fuzzer of the test suite, and where atheris has no wheel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

INPUT_BYTES_MAX: Final = 4096

_EDGES: Final = (0, 1, 2, 3, 4, 7, 8, 15, 16, 19, 20, 21, 31, 32, 63, 64, 127, 128, 254, 255)
# First bytes of msgpack's types, the unassigned one among them.
_MSGPACK_HEADS: Final = bytes((0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, *range(0xC0, 0xE0), 0xFF))


class Mutator:
    """An endless stream of inputs, a function of its corpus and the seed alone."""

    def __init__(self, corpus: Sequence[bytes], seed: str) -> None:
        self._corpus = corpus
        self._random = Random(seed)
        self._steps: tuple[Callable[[bytearray], None], ...] = (
            self._flip_bits,
            self._set_byte,
            self._lie_about_a_length,
            self._truncate,
            self._delete,
            self._repeat,
            self._insert,
            self._splice,
        )

    def next_input(self) -> bytes:
        """One record of the corpus, changed in one to four ways; now and then plain noise."""
        random = self._random
        if random.random() < 0.02:
            return random.randbytes(random.choice(_EDGES))
        data = bytearray(random.choice(self._corpus))
        for _ in range(random.randint(1, 4)):
            random.choice(self._steps)(data)
        return bytes(data[:INPUT_BYTES_MAX])

    def _position(self, data: bytearray) -> int:
        """A place to change: more often near the front, where headers are."""
        if not data:
            return 0
        limit = len(data) if self._random.random() < 0.5 else min(len(data), 64)
        return self._random.randrange(limit)

    def _flip_bits(self, data: bytearray) -> None:
        for _ in range(self._random.choice((1, 1, 2, 8))):
            if data:
                data[self._position(data)] ^= 1 << self._random.randrange(8)

    def _set_byte(self, data: bytearray) -> None:
        if data:
            random = self._random
            value = random.choice(
                (random.choice(_EDGES), random.choice(_MSGPACK_HEADS), random.randrange(256))
            )
            data[self._position(data)] = value

    def _lie_about_a_length(self, data: bytearray) -> None:
        """A big-endian number that is a likely length, a bit off, or absurd."""
        random = self._random
        at = self._position(data)
        width = random.choice((1, 2, 2, 4))
        near = random.choice(
            (0, at, len(data), len(data) - at, (1 << 8 * width) - 1, 1 << (8 * width - 1), 20, 58)
        )
        value = (near + random.choice((-4, -1, 0, 0, 1, 4))) % (1 << 8 * width)
        data[at : at + width] = value.to_bytes(width, "big")

    def _truncate(self, data: bytearray) -> None:
        del data[self._random.randint(0, len(data)) :]

    def _delete(self, data: bytearray) -> None:
        at = self._position(data)
        del data[at : at + self._random.choice((1, 2, 4, 14, 20))]

    def _repeat(self, data: bytearray) -> None:
        at = self._position(data)
        span = data[at : at + self._random.choice((1, 2, 4, 16, 64))]
        data[at:at] = span * self._random.choice((1, 1, 2, 30))

    def _insert(self, data: bytearray) -> None:
        at = self._position(data)
        data[at:at] = self._random.randbytes(self._random.choice((1, 2, 4, 46)))

    def _splice(self, data: bytearray) -> None:
        """The head of this record, the tail of another."""
        other = self._random.choice(self._corpus)
        at = self._position(data)
        data[at:] = other[self._random.choice((min(at, len(other)), self._random.randint(0, len(other)))) :]
