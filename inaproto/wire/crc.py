"""CRC-32 as the ICRC uses it, and its linear algebra over vectors of packets.

CRC-32 is linear: for two byte strings of one length, ``crc(a) ^ crc(b)`` depends on ``a ^ b`` alone,
and ``crc(A + B) = shift(crc(A), len(B)) ^ crc(B)``. Both facts together let a vector of packets be
checked with one CRC call per payload and a table look-up per header byte that differs between
packets, and let the accelerator reseal a packet whose payload it replaced without reading the
header again. Source of the identities: the CRC combination in zlib's ``crc32_combine``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

CrcFunction = Callable[..., int]

try:  # The vectorised instruction-set library is 3 to 6 times faster than zlib on packets.
    from isal.isal_zlib import crc32 as _isal_crc32

    crc32: CrcFunction = cast("CrcFunction", _isal_crc32)
    CRC_IMPLEMENTATION: Final[str] = "isal"
except ImportError:  # no wheel for this platform: same results, slower
    crc32 = zlib.crc32
    CRC_IMPLEMENTATION = "zlib"  # type: ignore[misc]

_ZEROS: Final = bytes(1 << 16)


def shift(crc: int, nbytes: int) -> int:
    """``crc`` moved past ``nbytes`` (0 to 65,536) further bytes: its share in the longer string's CRC."""
    zeros = memoryview(_ZEROS)[:nbytes]
    return crc32(zeros, crc) ^ crc32(zeros, 0)


@lru_cache(maxsize=4096)
def byte_table(distance: int) -> NDArray[np.uint32]:
    """How the CRC changes when one byte changes by XOR ``d``, ``distance`` bytes before the end.

    Returns uint32, shape (256,), indexed by ``d``; read-only.
    """
    table = np.zeros(256, np.uint32)
    for bit in range(8):
        size = 1 << bit
        basis = shift(crc32(bytes([size])) ^ crc32(b"\0"), distance)
        table[size : 2 * size] = table[:size] ^ np.uint32(basis)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=32)
def pair_table(distance: int) -> NDArray[np.uint32]:
    """The same for two bytes that change together, ``distance`` bytes behind the second one.

    Returns uint32, shape (65536,), indexed by the big-endian pair; read-only.
    """
    table = np.bitwise_xor.outer(byte_table(distance + 1), byte_table(distance)).reshape(-1)
    table.flags.writeable = False
    return table


def crc_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """CRC-32 (start value 0) of every row: uint8 (n, nbytes), last axis contiguous -> uint32 (n,)."""
    return np.fromiter(map(crc32, rows), np.uint32, len(rows))


def copy_rows(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Copy rows, uint8 (n, nbytes), and give the CRC-32 of each: uint32 (n,)."""
    target[:] = source
    return crc_rows(target)
