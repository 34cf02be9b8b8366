"""Elements that change no reduction: what is combined with them, in any order, keeps its bits.

With them a path that can only reduce can also copy: one rank contributes the bytes, all others neutral
elements, and every rank gets those bytes (:mod:`inaproto.core.host.recovery`). It holds for bytes that are
themselves results: of NaNs they have the canonical one alone.

The neutral element of a float sum is -0: ``-0 + -0`` is -0, and ``+0 + -0`` is +0; 0 would turn -0 into +0.
"""

from __future__ import annotations

import struct
from typing import Final

from inaproto.wire.ina_header import Dtype, Op

_INF: Final = float("inf")
_ELEMENTS: Final[dict[tuple[Dtype, Op], bytes]] = {
    (Dtype.F16, Op.SUM): struct.pack("<e", -0.0),
    (Dtype.F16, Op.MAX): struct.pack("<e", -_INF),
    (Dtype.F16, Op.MIN): struct.pack("<e", _INF),
    (Dtype.BF16, Op.SUM): struct.pack("<f", -0.0)[2:],
    (Dtype.BF16, Op.MAX): struct.pack("<f", -_INF)[2:],
    (Dtype.BF16, Op.MIN): struct.pack("<f", _INF)[2:],
    (Dtype.F32, Op.SUM): struct.pack("<f", -0.0),
    (Dtype.F32, Op.MAX): struct.pack("<f", -_INF),
    (Dtype.F32, Op.MIN): struct.pack("<f", _INF),
    (Dtype.F64, Op.SUM): struct.pack("<d", -0.0),
    (Dtype.F64, Op.MAX): struct.pack("<d", -_INF),
    (Dtype.F64, Op.MIN): struct.pack("<d", _INF),
    (Dtype.I32, Op.SUM): struct.pack("<i", 0),
    (Dtype.I32, Op.MAX): struct.pack("<i", -(1 << 31)),
    (Dtype.I32, Op.MIN): struct.pack("<i", (1 << 31) - 1),
    (Dtype.I64, Op.SUM): struct.pack("<q", 0),
    (Dtype.I64, Op.MAX): struct.pack("<q", -(1 << 63)),
    (Dtype.I64, Op.MIN): struct.pack("<q", (1 << 63) - 1),
}


def neutral_bytes(dtype: Dtype, op: Op, nbytes: int) -> bytes:
    """``nbytes`` of little-endian elements, a whole number of them."""
    return _ELEMENTS[dtype, op] * (nbytes // dtype.itemsize)
