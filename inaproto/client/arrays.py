"""Arrays and reductions as callers name them, and as they travel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
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
AVERAGE = "avg"
"""The sum of all ranks, divided by their number; not an operation of the wire."""
_FLOATS = (Dtype.F32, Dtype.F16, Dtype.BF16, Dtype.F64)
_CPU_DEVICES = (1, 3)
"""DLPack's numbers of memory that the CPU reads: its own, and its own pinned for CUDA."""


def wire_dtype(dtype: np.dtype[Any], call: str = "all_reduce") -> Dtype:
    """Raises ``LocalMisuse`` for a dtype that is not summed in the network."""
    for known, code in DTYPES:
        if dtype == known:
            return code
    if dtype.newbyteorder("=") in [known for known, _ in DTYPES]:
        raise LocalMisuse(
            f"{call}: dtype {dtype} has its bytes in the other order than this machine; convert with "
            f"array.astype({dtype.newbyteorder('=').name!r})"
        )
    names = ", ".join(known.name for known, _ in DTYPES)
    raise LocalMisuse(f"{call}: dtype {dtype} is not supported; convert to one of {names}")


def wire_op(op: str, call: str = "all_reduce") -> Op:
    """Raises ``LocalMisuse`` for an unknown reduction."""
    if op not in OPS:
        raise LocalMisuse(f"{call}: op {op!r:.40} is not one of {', '.join(OPS)}, {AVERAGE}")
    return OPS[op]


def check_average(dtype: Dtype, name: str, call: str) -> None:
    """Raises ``LocalMisuse`` for elements that have no average of their own type."""
    if dtype not in _FLOATS:
        raise LocalMisuse(
            f"{call}: op 'avg' of {name}: an average of integers is no integer; take the sum, and divide "
            "it as you need"
        )


def divide(array: NDArray[Any], by: int) -> None:
    """Divide floats by the number of ranks, in place: one division each, rounded once to nearest, even.

    float16 and bfloat16 are divided as float32 and then rounded: float32 has more than twice their digits, so
    that is the rounding of the exact quotient, and numbers of ranks that they lack are exact.
    """
    with np.errstate(all="ignore"):  # a NaN or an infinity of somebody's is a result like others
        if array.dtype in (np.float32, np.float64):
            np.divide(array, array.dtype.type(by), out=array)
            return
        flat = array.reshape(-1)
        for first in range(0, flat.size, 1 << 16):
            block = flat[first : first + (1 << 16)]
            block[:] = (block.astype(np.float32) / np.float32(by)).astype(array.dtype)


def as_array(value: object, what: str, call: str = "all_reduce", *, shared: bool = False) -> NDArray[Any]:
    """``value`` as a C-contiguous numpy array: an array of numpy, a tensor of torch on the CPU, something
    else with ``__array__`` or DLPack on the CPU, a number. With ``shared`` it is the memory of ``value``: a
    result is to go there.

    Raises ``LocalMisuse`` that says what to do.
    """
    array = value if type(value) is np.ndarray else _converted(value, what, call, shared)
    if array.dtype.hasobject or not array.dtype.itemsize:
        raise LocalMisuse(
            f"{call}: {what} has dtype {array.dtype}, whose elements have no fixed size in bytes"
        )
    if not array.flags.c_contiguous:
        raise LocalMisuse(
            f"{call}: {what} of shape {array.shape} is not C-contiguous; use ascontiguousarray({what})"
        )
    return array


def _converted(value: object, what: str, call: str, shared: bool) -> NDArray[Any]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(value, what, call)
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    if isinstance(value, list | tuple):
        raise LocalMisuse(
            f"{call}: {what} is a {type(value).__name__}, not an array; use numpy.array({what}, dtype=...)"
        )
    if isinstance(value, bool | int | float | complex | np.generic) and not shared:
        array: NDArray[Any] = np.asarray(value)
        return array
    device = getattr(value, "__dlpack_device__", None)
    if device is not None and device()[0] not in _CPU_DEVICES:
        raise LocalMisuse(f"{call}: {what} is in the memory of another device; copy it to the CPU's first")
    converters: dict[str, Callable[[Any], Any]] = {"__dlpack__": np.from_dlpack}
    if not shared:  # which may be a copy
        converters["__array__"] = np.asarray
    for name, convert in converters.items():
        if hasattr(value, name):
            with suppress(TypeError, ValueError, BufferError, RuntimeError):  # bfloat16 by DLPack, for one
                found: NDArray[Any] = convert(value)
                return found
    raise LocalMisuse(
        f"{call}: {what} is a {type(value).__name__}, not "
        + ("memory that numpy can write to" if shared else "an array of numpy or one that numpy can read")
    )


def _of_torch(tensor: Any, what: str, call: str) -> NDArray[Any]:
    """A view of a CPU tensor's memory; types that numpy lacks are those of ml_dtypes, by their bits."""
    if tensor.device.type != "cpu":
        raise LocalMisuse(f"{call}: {what} is on {tensor.device}; use {what}.cpu()")
    if str(tensor.layout) != "torch.strided":
        raise LocalMisuse(f"{call}: {what} has the layout {tensor.layout}; use {what}.to_dense()")
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise LocalMisuse(
            f"{call}: {what} of shape {tuple(tensor.shape)} is not contiguous; use {what}.contiguous()"
        )
    plain, torch = tensor.detach(), sys.modules["torch"]
    try:
        array: NDArray[Any] = plain.numpy()
    except (TypeError, RuntimeError):
        name = str(tensor.dtype).removeprefix("torch.")
        kind = getattr(ml_dtypes, name, None)
        if kind is None:
            raise LocalMisuse(f"{call}: {what} has dtype {tensor.dtype}, which numpy lacks") from None
        bits = {1: torch.uint8, 2: torch.int16}[tensor.element_size()]
        array = plain.view(bits).numpy().view(np.dtype(kind))
    return array


def check_array(array: object, what: str) -> NDArray[Any]:
    """Raises ``LocalMisuse`` unless it is a C-contiguous numpy array."""
    if not isinstance(array, np.ndarray):
        raise LocalMisuse(f"all_reduce: {what} is a {type(array).__name__}, not a numpy array")
    return as_array(array, what)


def check_writable(array: NDArray[Any], what: str, call: str) -> None:
    """Raises ``LocalMisuse`` unless a result can be stored into it."""
    if not array.flags.writeable:
        raise LocalMisuse(f"{call}: {what} is read-only")


def check_out(out: object, array: NDArray[Any]) -> NDArray[Any]:
    """Raises ``LocalMisuse`` unless a result like ``array`` can be stored into ``out``."""
    return check_result(check_array(out, "out"), array.shape, array.dtype, "out", "all_reduce")


def check_result(
    out: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any], what: str, call: str
) -> NDArray[Any]:
    """Raises ``LocalMisuse`` unless a result of this shape and dtype can be stored into ``out``."""
    if out.shape != shape or out.dtype != dtype:
        raise LocalMisuse(f"{call}: {what} is {out.dtype} {out.shape}, the result is {dtype} {shape}")
    check_writable(out, what, call)
    return out
