"""Reductions by numpy alone, by other formulas than those of the accelerator (architecture section 8).

Inputs are added in rank order in the element type; half types in float32, rounded once to nearest even. NaN
is the canonical one; -0 lies below +0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inaproto.wire.ina_header import Dtype, Op

_NUMPY: Final[dict[Dtype, np.dtype[Any]]] = {
    Dtype.F32: np.dtype("<f4"),
    Dtype.I32: np.dtype("<i4"),
    Dtype.F16: np.dtype("<f2"),
    Dtype.F64: np.dtype("<f8"),
    Dtype.I64: np.dtype("<i8"),
}
_QUIET: Final = {
    Dtype.F32: 0x7FC0_0000,
    Dtype.F64: 0x7FF8_0000_0000_0000,
    Dtype.F16: 0x7E00,
    Dtype.BF16: 0x7FC0,
}


def reduction(dtype: Dtype, op: Op, inputs: Sequence[bytes]) -> bytes:
    """One packet's payloads, a rank each, in rank order."""
    values = [elements(dtype, data) for data in inputs]
    with np.errstate(all="ignore"):
        if op is Op.SUM:
            total = values[0].astype(np.float32) if dtype is Dtype.F16 else values[0].copy()
            for operand in values[1:]:
                total = total + operand.astype(total.dtype)
        else:
            total = _extreme(dtype, op, values)
    return _as_bytes(dtype, total)


def elements(dtype: Dtype, data: bytes) -> NDArray[Any]:
    """As numbers: bfloat16 as the float32 that it stands for."""
    if dtype is Dtype.BF16:
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, _NUMPY[dtype])


def _extreme(dtype: Dtype, op: Op, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    stack = np.stack(values)
    best = np.asarray(stack.max(axis=0) if op is Op.MAX else stack.min(axis=0))
    if dtype not in _QUIET:
        return best
    zeros = stack == 0
    signs = np.signbit(stack)
    negative = (zeros & signs).any(axis=0) if op is Op.MIN else ~(zeros & ~signs).any(axis=0)
    zero = np.where(negative, -0.0, 0.0).astype(best.dtype)
    best = np.where(best == 0, zero, best)
    best[np.isnan(stack).any(axis=0)] = np.nan
    return best


def _as_bytes(dtype: Dtype, values: NDArray[Any]) -> bytes:
    if dtype not in _QUIET:
        return values.astype(_NUMPY[dtype]).tobytes()
    is_nan = np.isnan(values)
    if dtype is Dtype.BF16:
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        words = ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype("<u2")
    else:
        with np.errstate(over="ignore"):
            words = values.astype(_NUMPY[dtype]).view(f"<u{dtype.itemsize}")
    words = words.copy()
    words[is_nan] = _QUIET[dtype]
    return words.tobytes()
