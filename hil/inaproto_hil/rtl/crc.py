"""CRC-32 of 32-bit words, as many at a time as a bus is wide: for the ICRCs that NetReduce's Combinator makes
(section 4).

Bits are polynomials over GF(2), reflected as Ethernet sends them: the highest bit of a word is x^0, its
lowest x^31, and words go from the highest power to the lowest. What is computed here is their *remainder*
modulo the CRC's polynomial. It is not the CRC yet, which is the remainder with one word of zeros behind. Four
facts make the hardware small:

- The remainder is linear. That of a message is the last one, moved past a beat, XOR the beat's own, so only
  32 bits are in a loop, and a beat's own remainder may take as many steps of a pipeline as it likes.
- Zero words in front change nothing, and a CRC that begins with some register is one that begins with zeros
  and has that register XORed into the first word. So a message may begin anywhere in a beat.
- Zero words behind multiply by x^32 each, and x has an inverse. So a message may end anywhere in a beat: fill
  the beat with zeros and take them back.
- With its CRC behind it, every message leaves the same remainder: ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from operator import xor
from typing import Final

from amaranth.hdl import Mux, Value

POLYNOMIAL: Final = 0xEDB88320
"""Of CRC-32, reflected, without x^32."""
ONE: Final = 1 << 31
"""The polynomial 1."""
INTACT: Final = 0xFFFF_FFFF
"""Remainder of any message with its CRC behind it."""


def _times_x(remainder: int) -> int:
    return remainder >> 1 ^ (POLYNOMIAL if remainder & 1 else 0)


def _over_x(remainder: int) -> int:
    # The polynomial has its highest bit set, so that bit tells whether ``_times_x`` added it.
    return ((remainder ^ POLYNOMIAL) << 1 | 1) if remainder & ONE else remainder << 1


def _power(exponent: int) -> int:
    """The remainder of x to any power, a negative one too."""
    step = _times_x if exponent > 0 else _over_x
    power = ONE
    for _ in range(abs(exponent)):
        power = step(power)
    return power


@cache
def columns(words: int, behind: int = 0) -> tuple[int, ...]:
    """The remainder of each single bit of so many words, with ``behind`` words of zeros behind them.

    A negative ``behind`` takes as many back that are counted already.
    """
    powers = [_power(32 * behind)]
    while len(powers) < 32 * words:
        powers.append(_times_x(powers[-1]))
    return tuple(reversed(powers))


def remainder(number: int, words: int, behind: int = 0) -> int:
    """Of ``words`` words, the first one in the lowest bits, with ``behind`` words of zeros behind."""
    bits = (column for bit, column in enumerate(columns(words, behind)) if number >> bit & 1)
    return reduce(xor, bits, 0)


def remainder_value(words: Sequence[Value], behind: int = 0) -> Value:
    """The same as hardware: a tree of XORs, for a power of two of words, each a signal of its own."""
    # It is written by columns: a bit adds the remainder of its place. By rows, each as the XOR of some bits,
    # it would be the same gates, but a compiled model would gather thousands of single bits, and take minutes
    # to compile.
    bits = (bit for word in words for bit in word)
    terms = [Mux(bit, column, 0) for bit, column in zip(bits, columns(len(words), behind), strict=True)]
    while len(terms) > 1:
        terms = [early ^ late for early, late in zip(terms[::2], terms[1::2], strict=True)]
    return terms[0]
