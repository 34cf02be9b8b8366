"""CRC-32 of many rows at once, and of rows that are copied: by the compiled kernel, or its twin in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.core.kernels.compiled import Compiled
from inaproto.wire.crc import copy_rows, crc_rows

Bytes = NDArray[np.uint8]
Crcs = NDArray[np.uint32]


class Rows(NamedTuple):
    """Rows are uint8 (n, nbytes), each contiguous; CRCs are uint32 (n,), with start value 0."""

    crc: Callable[[Bytes], Crcs]
    copy: Callable[[Bytes, Bytes], Crcs]
    """``copy(source, target)``: the CRCs of what was copied."""


def rows_by(kernels: Compiled | None) -> Rows:
    """Both functions, in ``kernels`` or as their twins."""
    if kernels is None:
        return Rows(crc_rows, copy_rows)
    call = kernels.rows

    def crc(rows: Bytes) -> Crcs:
        n, nbytes = rows.shape
        crcs = np.empty(n, np.uint32)
        call(rows.ctypes.data, rows.strides[0], None, 0, n, nbytes, crcs.ctypes.data)
        return crcs

    def copy(source: Bytes, target: Bytes) -> Crcs:
        n, nbytes = source.shape
        crcs = np.empty(n, np.uint32)
        from_, to = source.ctypes.data, target.ctypes.data
        call(from_, source.strides[0], to, target.strides[0], n, nbytes, crcs.ctypes.data)
        return crcs

    return Rows(crc, copy)
