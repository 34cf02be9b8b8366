"""What a slot's payloads must sum to (docs/protocol.md 8.1): by numpy, apart from the product's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inaproto.wire.ina_header import Dtype, Op

_QUIET_NAN: Final = {Dtype.F32: 0x7FC0_0000, Dtype.F16: 0x7E00, Dtype.BF16: 0x7FC0}


def reduced(dtype: Dtype, op: Op, inputs: Sequence[bytes]) -> bytes:
    """The payloads of all ranks as one, in the order of ranks."""
    if dtype is Dtype.I32:
        return _whole(op, [np.frombuffer(one, "<i4") for one in inputs]).tobytes()
    values = [_widened(dtype, one) for one in inputs]
    with np.errstate(all="ignore"):
        total = _sum(values) if op is Op.SUM else _extreme(op, values)
    return _narrowed(dtype, total)


def _whole(op: Op, values: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    if op is not Op.SUM:
        stack = np.stack(values)
        return np.asarray(stack.max(axis=0) if op is Op.MAX else stack.min(axis=0))
    total = values[0].copy()
    for one in values[1:]:
        total += one
    return total


def _sum(values: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    total = values[0].copy()
    for one in values[1:]:
        total += one
    return total


def _extreme(op: Op, values: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """-0 is below +0, and a NaN anywhere is the result."""
    stack = np.stack(values)
    best: NDArray[np.float32] = stack.max(axis=0) if op is Op.MAX else stack.min(axis=0)
    zeros, minus = stack == 0, np.signbit(stack)
    has_minus = (zeros & minus).any(axis=0) if op is Op.MIN else ~(zeros & ~minus).any(axis=0)
    best = np.where(best == 0, np.where(has_minus, np.float32(-0.0), np.float32(0.0)), best)
    best[np.isnan(stack).any(axis=0)] = np.nan
    return best.astype(np.float32)


def _widened(dtype: Dtype, data: bytes) -> NDArray[np.float32]:
    if dtype is Dtype.F32:
        return np.frombuffer(data, "<f4")
    if dtype is Dtype.F16:
        return np.frombuffer(data, "<f2").astype(np.float32)
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


def _narrowed(dtype: Dtype, values: NDArray[np.float32]) -> bytes:
    """Rounded once, to nearest even."""
    with np.errstate(all="ignore"):
        bits: NDArray[Any]
        if dtype is Dtype.F32:
            bits = values.view(np.uint32).copy()
        elif dtype is Dtype.F16:
            bits = values.astype(np.float16).view(np.uint16).copy()
        else:
            wide = values.view(np.uint32).astype(np.uint64)
            bits = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    bits[np.isnan(values)] = _QUIET_NAN[dtype]
    return bits.tobytes()
