"""Entries of an append-only log that survives torn writes: how they are laid out, and read again.

An entry is a head (magic, CRC-32 of all that follows, length of the body, how many bytes of the file were
known to be on disk when it was written), the body, and zeros up to a multiple of 8 bytes.

After a power cut the last bytes of a file, those that were written since its last ``fsync``, may be torn in
any way. What was on disk before may not: a fault there is damage, and going on without it would take back
what others were promised. The two are told apart by the last field: where an entry is not valid and a later
one says that it was on disk already, the file is damaged; else the log ends there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.crc import crc32

ALIGNMENT: Final = 8
_HEAD: Final = struct.Struct("<4sIQQ")
HEAD_BYTES: Final = _HEAD.size
_MAGIC: Final = b"iPLe"
_CRC_AT: Final = 8
_LAYER: Final = "log"


class Entries(NamedTuple):
    bodies: list[memoryview]
    end: int
    """End of the last valid entry: bytes behind it are torn, and to be cut off."""


def encode_entry(body: Sequence[memoryview], synced_bytes: int) -> list[memoryview]:
    """The parts of an entry, of which those of ``body`` are not copied.

    ``synced_bytes``: of this file, on disk now.
    """
    parts = [part.cast("B") for part in body]
    nbytes = sum(part.nbytes for part in parts)
    head = _HEAD.pack(_MAGIC, 0, nbytes, synced_bytes)
    crc = crc32(head[_CRC_AT:])
    for part in parts:
        crc = crc32(part, crc)
    head = _HEAD.pack(_MAGIC, crc, nbytes, synced_bytes)
    return [memoryview(head), *parts, memoryview(bytes(-(HEAD_BYTES + nbytes) % ALIGNMENT))]


def decode_entries(data: memoryview) -> Entries:
    """Those of a whole file, views of it. Raises ``DecodeError`` for a file that is damaged."""
    if not data.c_contiguous or data.format != "B":
        raise LocalMisuse("log: a file is a contiguous view of bytes")
    bodies: list[memoryview] = []
    at = 0
    while (entry := _entry_at(data, at)) is not None:
        bodies.append(entry.body)
        at = entry.end
    later = _later_entry(data, at)
    if later is not None and later.synced_bytes > at:
        raise DecodeError(
            _LAYER,
            f"no valid entry, though {later.synced_bytes} bytes were on disk when a later one was written: "
            "the file is damaged",
            at,
        )
    return Entries(bodies, at)


class _Entry(NamedTuple):
    body: memoryview
    end: int
    synced_bytes: int


def _entry_at(data: memoryview, at: int) -> _Entry | None:
    """None: there is none that is valid."""
    if data.nbytes - at < HEAD_BYTES:
        return None
    magic, crc, nbytes, synced = _HEAD.unpack_from(data, at)
    end = at + HEAD_BYTES + nbytes + -(HEAD_BYTES + nbytes) % ALIGNMENT
    if magic != _MAGIC or end > data.nbytes or synced > at:
        return None
    body_end = at + HEAD_BYTES + nbytes
    if crc32(data[at + _CRC_AT : body_end]) != crc or any(data[body_end:end]):
        return None
    return _Entry(data[at + HEAD_BYTES : body_end], end, synced)


def _later_entry(data: memoryview, at: int) -> _Entry | None:
    """The last valid one of those that begin behind ``at``, at any aligned place."""
    raw, found = bytes(data[at:]), None
    place = raw.find(_MAGIC, 1)
    while place >= 0:
        if (at + place) % ALIGNMENT == 0:
            found = _entry_at(data, at + place) or found
        place = raw.find(_MAGIC, place + 1)
    return found
