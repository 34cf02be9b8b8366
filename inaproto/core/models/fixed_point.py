"""Fixed point: reals as integers times 2**-bits, so that sums do not depend on the order of additions.

Ours (MLNet is silent): what a tree of hosts sums after a failure it may sum in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inaproto.errors import LocalMisuse
from inaproto.wire.messages.arrays import Numbers


def quantised(values: Numbers, bits: int, dtype: np.dtype[Any]) -> Numbers:
    """Nearest integers to ``values * 2**bits`` (ties to even), of ``dtype``, a new array.

    Raises ``LocalMisuse`` for what is no number, or too great.
    """
    scaled = _scaled(values, bits)
    if not _fits(scaled, dtype):
        raise LocalMisuse(
            f"fixed point with {bits} fraction bits in {dtype}: a value is not finite or too great"
        )
    result: Numbers = scaled.astype(dtype)
    return result


def is_quantisable(values: Numbers, bits: int, dtype: np.dtype[Any]) -> bool:
    return _fits(_scaled(values, bits), dtype)


def _scaled(values: Numbers, bits: int) -> Numbers:
    with np.errstate(over="ignore"):
        scaled: Numbers = np.rint(np.ldexp(values.astype(np.float64), bits))
    return scaled


def _fits(scaled: Numbers, dtype: np.dtype[Any]) -> bool:
    return bool(np.all(np.abs(scaled) < -float(np.iinfo(dtype).min)))


def dequantised(numbers: Numbers, bits: int) -> Numbers:
    """The float64 values; exact below 2**53; a new array that nobody can write."""
    values: Numbers = np.ldexp(numbers.astype(np.float64), -bits)
    values.setflags(write=False)
    return values
