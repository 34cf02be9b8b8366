"""Arrays and reductions as callers name them, and as they travel."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op

DTYPES: tuple[tuple[np.dtype[Any], Dtype], ...] = (
    (np.dtype(np.float32), Dtype.F32),
    (np.dtype(np.int32), Dtype.I32),
    (np.dtype(np.float16), Dtype.F16),
    (np.dtype(ml_dtypes.bfloat16), Dtype.BF16),
    (np.dtype(np.float64), Dtype.F64),
    (np.dtype(np.int64), Dtype.I64),
)
OPS: dict[str, Op] = {"sum": Op.SUM, "max": Op.MAX, "min": Op.MIN}


def wire_dtype(dtype: np.dtype[Any]) -> Dtype:
    """Raises ``LocalMisuse`` for a dtype that is not summed in the network."""
    for known, code in DTYPES:
        if dtype == known:
            return code
    names = ", ".join(known.name for known, _ in DTYPES)
    swapped = " in the byte order of this machine" if not dtype.isnative else ""
    raise LocalMisuse(f"all_reduce: dtype {dtype} is not supported{swapped}; convert to one of {names}")


def wire_op(op: str) -> Op:
    """Raises ``LocalMisuse`` for an unknown reduction."""
    if op not in OPS:
        raise LocalMisuse(f"all_reduce: op {op!r} is not one of {', '.join(OPS)} (an average is sum / size)")
    return OPS[op]


def check_array(array: object, what: str) -> NDArray[Any]:
    """Raises ``LocalMisuse`` unless it is a C-contiguous numpy array."""
    if not isinstance(array, np.ndarray):
        raise LocalMisuse(f"all_reduce: {what} is a {type(array).__name__}, not a numpy array")
    if not array.flags.c_contiguous:
        raise LocalMisuse(
            f"all_reduce: {what} of shape {array.shape} is not C-contiguous; use ascontiguousarray({what})"
        )
    return array


def check_in_place(array: NDArray[Any], out: object) -> NDArray[Any]:
    """Raises ``LocalMisuse`` unless the result can be stored into ``array``, and nowhere else."""
    if out is not None and out is not array:
        raise LocalMisuse("all_reduce: in_place, and out is another array; give one of the two")
    if not array.flags.writeable:
        raise LocalMisuse("all_reduce: in_place, but the array is read-only")
    return array


def check_out(out: object, array: NDArray[Any]) -> NDArray[Any]:
    """Raises ``LocalMisuse`` unless a result like ``array`` can be stored into ``out``."""
    checked = check_array(out, "out")
    if checked.shape != array.shape or checked.dtype != array.dtype:
        raise LocalMisuse(
            f"all_reduce: out is {checked.dtype} {checked.shape}, the result is {array.dtype} {array.shape}"
        )
    if not checked.flags.writeable:
        raise LocalMisuse("all_reduce: out is read-only")
    return checked
