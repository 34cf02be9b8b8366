"""Reductions whose result is wanted in several places: of all who gave an input, or in two memories.

A compiled kernel reads each input once and writes each result once, in one pass (``kernels_reduce``); it adds
32-bit elements, float16 and bfloat16. Its twin, and all else that is reduced, is
:func:`inaproto.core.plan.reduce.reduce_into` with copies of what that gives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.kernels import Compiled, active
from inaproto.core.kernels.compiled import address_of
from inaproto.core.plan.reduce import reduce_into
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op

Bytes = NDArray[np.uint8]

SUMS: Final = {Dtype.F32: 1, Dtype.I32: 2, Dtype.F16: 3, Dtype.BF16: 4}
"""Element types that the kernel adds, by their number there."""


def fused(dtype: Dtype, op: Op) -> Compiled | None:
    """The kernels, if they do it in one pass."""
    kernels = active()
    if kernels is None or op is not Op.SUM or dtype not in SUMS:
        return None
    return kernels if dtype is not Dtype.F16 or kernels.sums_halves else None


def reduce_to_all(dtype: Dtype, op: Op, inputs: Sequence[Bytes], outs: Sequence[Bytes]) -> None:
    """Reduce ``inputs`` in order into each of ``outs``.

    All are uint8 ``(n,)``, contiguous, of one length, a whole number of little-endian elements of ``dtype``.
    The first of ``outs`` may be the first of ``inputs``, or any of them where :func:`fused` has kernels;
    others may be any of them; they overlap nothing else. Python's lock is not held where that takes long.
    Raises ``LocalMisuse`` for no input, no output, or lengths that differ.
    """
    if not inputs or not outs or len({array.shape for array in (*inputs, *outs)}) > 1:
        raise LocalMisuse("reduce_to_all needs at least one input and one output, all of one length")
    kernels = fused(dtype, op)
    if kernels is None:
        first, *others = outs
        reduce_into(dtype, op, inputs, first)
        for other in others:
            np.copyto(other, first)  # a copy of a view of memory would keep Python's lock
    elif outs[0].size:
        kernels.reduce(
            _addresses(inputs), len(inputs), _addresses(outs), len(outs), SUMS[dtype], outs[0].size
        )


def _addresses(arrays: Sequence[Bytes]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(arrays))(*map(address_of, arrays))
