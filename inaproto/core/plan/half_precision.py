"""Half-precision values in float32, and back: what a sum in several steps needs to be rounded once.

``inaproto.core.plan.reduce`` widens, adds and rounds in one call. Where the operands of one aggregation point
come one after the other, the sum stays in float32 in between; these are the ways in and out, with the same
bits.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.wire.ina_header import Dtype, Op

HALF: Final = (Dtype.F16, Dtype.BF16)
WIDE_BYTES: Final = 4
"""Bytes of an element of a sum that is not rounded yet."""
_QUIET_NAN: Final = 0x7FC0_0000


def sums_are_wide(dtype: Dtype, op: Op) -> bool:
    """Whether a reduction is computed in a wider type than its elements."""
    return op is Op.SUM and dtype in HALF


def widen(dtype: Dtype, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Half-precision elements as float32, both as bytes. Exact; a new array."""
    if dtype is Dtype.F16:
        return values.view(np.float16).astype(np.float32).view(np.uint8)
    bits = values.view(np.uint16).astype(np.uint32)
    bits <<= 16
    return bits.view(np.uint8)


def round_once(dtype: Dtype, wide: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Float32 as half-precision elements, both as bytes: to nearest even, NaN canonical. A new array."""
    total = wide.view(np.float32).copy()
    total.view(np.uint32)[np.isnan(total)] = _QUIET_NAN
    if dtype is Dtype.F16:
        with np.errstate(all="ignore"):
            return total.astype(np.float16).view(np.uint8)
    bits = total.view(np.uint32)
    # Half of the last kept place, less one ulp unless that place is odd: then a tie goes up, to even.
    odd = (bits >> 16) & 1
    return ((bits + odd + 0x7FFF) >> 16).astype(np.uint16).view(np.uint8)
