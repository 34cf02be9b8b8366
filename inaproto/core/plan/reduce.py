"""Element-wise reductions, defined bit for bit.

Every path that computes a reduction (accelerator, shared memory, chain, reference) uses these
functions, or is tested equal to them to the last bit. The rules (docs/concepts.md, "Exactness"):

- Inputs are combined left to right in rank order, in the element type.
- float16 and bfloat16 sums are widened to float32, added there, and rounded once to nearest even.
- Integers wrap.
- NaN propagates; any NaN result is the canonical quiet NaN (sign 0, payload 0), because the
  payload and sign of a hardware NaN depend on instruction set and operand order.
- max and min of floats order -0 below +0, because what a processor returns for equal zeros
  depends on whether an element fell into a vector lane or into the remainder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op

Bytes2D = NDArray[np.uint8]
Array = NDArray[Any]

_FUNCTION: Final = {Op.SUM: np.add, Op.MAX: np.maximum, Op.MIN: np.minimum}
_INTEGER: Final = {Dtype.I32: np.int32, Dtype.I64: np.int64}
_FLOAT: Final = {Dtype.F32: np.float32, Dtype.F64: np.float64}
# (signed, unsigned, bits of the canonical quiet NaN, bits of +infinity) by float type
_FLOAT_BITS: Final[dict[Dtype, tuple[Any, Any, int, int]]] = {
    Dtype.F32: (np.int32, np.uint32, 0x7FC0_0000, 0x7F80_0000),
    Dtype.F64: (np.int64, np.uint64, 0x7FF8_0000_0000_0000, 0x7FF0_0000_0000_0000),
    Dtype.F16: (np.int16, np.uint16, 0x7E00, 0x7C00),
    Dtype.BF16: (np.int16, np.uint16, 0x7FC0, 0x7F80),
}


def reduce_into(dtype: Dtype, op: Op, inputs: Sequence[Bytes2D], out: Bytes2D) -> None:
    """Reduce ``inputs`` in order into ``out``.

    ``inputs`` and ``out`` are uint8 arrays of equal shape (a row, or rows) whose last axis is
    contiguous and a whole number of elements long; they hold little-endian elements of ``dtype``.
    ``out`` may be ``inputs[0]`` but no other input. Raises ``LocalMisuse`` for no input or a shape
    that differs.
    """
    shape = out.shape
    if not inputs or [x for x in inputs if x.shape != shape]:
        raise LocalMisuse("reduce_into needs at least one input, all of the shape of the output")
    if dtype in _INTEGER:
        kind = _INTEGER[dtype]
        _fold(_FUNCTION[op], [x.view(kind) for x in inputs], out.view(kind))
        return
    with np.errstate(all="ignore"):
        if op is Op.SUM:
            _float_sum(dtype, inputs, out)
        else:
            _float_extreme(dtype, op, inputs, out)


def _fold(function: Callable[..., Any], inputs: Sequence[Array], out: Array) -> None:
    if len(inputs) == 1:
        out[...] = inputs[0]
        return
    function(inputs[0], inputs[1], out=out)
    for operand in inputs[2:]:
        function(out, operand, out=out)


def _float_sum(dtype: Dtype, inputs: Sequence[Bytes2D], out: Bytes2D) -> None:
    if dtype in _FLOAT:
        kind = _FLOAT[dtype]
        result = out.view(kind)
        _fold(np.add, [x.view(kind) for x in inputs], result)
        _canonical_nan(dtype, result)
    elif dtype is Dtype.F16:
        total = inputs[0].view(np.float16).astype(np.float32)
        for operand in inputs[1:]:
            total += operand.view(np.float16)
        _canonical_nan(Dtype.F32, total)
        out.view(np.float16)[...] = total
    else:
        total = _bf16_to_f32(inputs[0])
        for operand in inputs[1:]:
            total += _bf16_to_f32(operand)
        _canonical_nan(Dtype.F32, total)
        bits = total.view(np.uint32)
        # Round to nearest even: add half of the last kept place, less one ulp unless that place is odd.
        odd = (bits >> 16) & 1
        odd += 0x7FFF
        odd += bits
        odd >>= 16
        out.view(np.uint16)[...] = odd


def _bf16_to_f32(rows: Bytes2D) -> NDArray[np.float32]:
    wide = rows.view(np.uint16).astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def _canonical_nan(dtype: Dtype, values: Array) -> None:
    """Rewrite every NaN in place. The test is one fast pass: a minimum propagates NaN."""
    if not values.size:
        return
    if math.isnan(values.min()):
        _, unsigned, quiet, _ = _FLOAT_BITS[dtype]
        values.view(unsigned)[np.isnan(values)] = quiet


def _float_extreme(dtype: Dtype, op: Op, inputs: Sequence[Bytes2D], out: Bytes2D) -> None:
    """max or min through integer keys that order floats totally: ..., -1, -0, +0, +1, ..."""
    signed, _, quiet, infinity = _FLOAT_BITS[dtype]
    magnitude = np.iinfo(signed).max
    sign_shift = np.iinfo(signed).bits - 1
    nan = np.zeros(out.view(signed).shape, np.bool_)
    keys = []
    for operand in inputs:
        bits = operand.view(signed)
        nan |= (bits & magnitude) > infinity
        keys.append(bits ^ ((bits >> sign_shift) & magnitude))
    result = out.view(signed)
    _fold(_FUNCTION[op], keys, result)
    result ^= (result >> sign_shift) & magnitude
    if nan.any():
        result[nan] = quiet
