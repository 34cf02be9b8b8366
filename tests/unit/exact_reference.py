"""Reductions by other formulas than those of the product, for tests that demand equal bytes.

numpy and ml_dtypes are the outside judges: half types are cast to float32, added there in rank order
and cast back once; extremes come from ``max``/``min`` of the values, with the sign of a zero and NaN
decided separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from inaproto.wire.ina_header import Dtype, Op

NUMPY: Final[dict[Dtype, np.dtype[Any]]] = {
    Dtype.F32: np.dtype("<f4"),
    Dtype.I32: np.dtype("<i4"),
    Dtype.F16: np.dtype("<f2"),
    Dtype.BF16: np.dtype(ml_dtypes.bfloat16),
    Dtype.F64: np.dtype("<f8"),
    Dtype.I64: np.dtype("<i8"),
}
QUIET_NAN: Final = {
    Dtype.F32: bytes.fromhex("0000c07f"),
    Dtype.F64: bytes.fromhex("000000000000f87f"),
    Dtype.F16: bytes.fromhex("007e"),
    Dtype.BF16: bytes.fromhex("c07f"),
}
HALF: Final = (Dtype.F16, Dtype.BF16)


def exact(dtype: Dtype, op: Op, inputs: Sequence[bytes]) -> bytes:
    """The reduction of one packet's or tensor's bytes, one item a rank, in rank order."""
    values = [np.frombuffer(data, NUMPY[dtype]) for data in inputs]
    with np.errstate(all="ignore"):
        result = _sum(dtype, values) if op is Op.SUM else _extreme(dtype, op, values)
    if dtype in QUIET_NAN:
        is_nan = result != result  # noqa: PLR0124  a NaN is what differs from itself
        result.view(np.dtype((np.void, dtype.itemsize)))[is_nan] = QUIET_NAN[dtype]
    return result.tobytes()


def _sum(dtype: Dtype, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    total: NDArray[Any] = values[0].astype(np.float32) if dtype in HALF else values[0].copy()
    for operand in values[1:]:
        total = total + operand.astype(total.dtype)
    return total.astype(NUMPY[dtype])


def _extreme(dtype: Dtype, op: Op, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if dtype not in QUIET_NAN:
        stack = np.stack(values)
        return np.asarray(stack.max(axis=0) if op is Op.MAX else stack.min(axis=0))
    wide = np.stack([value.astype(np.float64) for value in values])
    best = wide.max(axis=0) if op is Op.MAX else wide.min(axis=0)
    negative_zero = (wide == 0) & np.signbit(wide)
    positive_zero = (wide == 0) & ~np.signbit(wide)
    sign = ~positive_zero.any(axis=0) if op is Op.MAX else negative_zero.any(axis=0)
    best = np.where(best == 0, np.where(sign, -0.0, 0.0), best)
    best[np.isnan(wide).any(axis=0)] = np.nan
    return best.astype(NUMPY[dtype])
