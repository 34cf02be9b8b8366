"""Notes between the switches of an aggregation tree: what results need on connections that end elsewhere.

NetReduce section 3.3 sends a copy of each message's first header along its route; ours is a record of its
own, the payload of a RoCE SEND Only packet on the virtual connection. All fields are big-endian::

     0 magic u32 | 4 version u8 | 5 kind u8 | 6 rank u16
     8 ring_id u32 | 12 epoch u32 | 16 msg_id u32
    20 offset u16 | 22 count u16 | 24 key u64 | 32 header (OPENS only)

``rank`` is the one whose connection it is about. OPENS carries the headers of the message's first packet,
Ethernet to the last extension header; REPEATS the ``count`` packets from ``offset`` on that the rank's
host sent again; GAP the first packet (``offset``) that is missing.

Invariant: ``encode(decode(b)) == b`` for every record that decodes. What a header holds beyond its form
(addresses, queue pair) is for the receiver to compare with the ring.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Self

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.packet import HEADER_BYTES
from inaproto.wire.roce import Opcode

MAGIC: Final = 0x494E4154
"""``INAT``."""
VERSION: Final = 1
NOTE_BYTES: Final = 32
"""Without a header."""

_LAYOUT: Final = struct.Struct(">IBBHIIIHHQ")
_RANGES: Final = (
    ("rank", 16),
    ("ring_id", 32),
    ("epoch", 32),
    ("msg_id", 32),
    ("offset", 16),
    ("count", 16),
    ("key", 64),
)
_OPENING: Final = frozenset(
    {int(Opcode.RC_WRITE_FIRST), int(Opcode.RC_WRITE_ONLY), int(Opcode.RC_WRITE_ONLY_IMM)}
)
_OPCODE_AT: Final = 42
_ROCE_PORT_BYTES: Final = b"\x12\xb7"


class NoteKind(IntEnum):
    """What a note tells."""

    OPENS = 1
    """A message begins."""
    REPEATS = 2
    """The host sent packets again: its results may be lost."""
    GAP = 3
    """A packet of the host is missing, later ones came."""


_KINDS: Final = {int(kind): kind for kind in NoteKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNote:
    kind: NoteKind
    rank: int
    ring_id: int
    epoch: int
    msg_id: int
    offset: int = 0
    count: int = 0
    key: int = field(repr=False)
    """Secret of the ring, as in INA headers."""
    header: bytes = b""

    def encode(self) -> bytes:
        """The record. Raises ``LocalMisuse`` for values that no decoder would take."""
        for name, bits in _RANGES:
            value = getattr(self, name)
            if not 0 <= value < 1 << bits:
                raise LocalMisuse(f"tree note: {name} = {value} does not fit {bits} bits")
        wrong = _contradiction(self.kind, self.offset, self.count, self.header)
        if wrong is not None:
            raise LocalMisuse(f"tree note: {wrong[0]}")
        fixed = _LAYOUT.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.rank,
            self.ring_id,
            self.epoch,
            self.msg_id,
            self.offset,
            self.count,
            self.key,
        )
        return fixed + self.header

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read the record that ``data`` is, all of it."""
        if len(data) < NOTE_BYTES:
            raise DecodeError("tree note", f"{len(data)} bytes, needs {NOTE_BYTES}", len(data))
        magic, version, kind, rank, ring_id, epoch, msg_id, offset, count, key = _LAYOUT.unpack_from(data)
        if magic != MAGIC:
            raise DecodeError("tree note", f"magic is 0x{magic:08x}, not 0x{MAGIC:08x}", 0)
        if version != VERSION:
            raise DecodeError("tree note", f"version {version}, this side speaks {VERSION}", 4)
        if kind not in _KINDS:
            raise DecodeError("tree note", f"unknown kind {kind}", 5)
        header = bytes(data[NOTE_BYTES:])
        wrong = _contradiction(_KINDS[kind], offset, count, header)
        if wrong is not None:
            raise DecodeError("tree note", *wrong)
        return cls(
            kind=_KINDS[kind],
            rank=rank,
            ring_id=ring_id,
            epoch=epoch,
            msg_id=msg_id,
            offset=offset,
            count=count,
            key=key,
            header=header,
        )

    def __str__(self) -> str:
        """One line for a log; the key is a secret and stays out."""
        which = f" packets {self.offset} to {self.offset + self.count - 1}" if self.count else ""
        which = f" packet {self.offset}" if self.kind is NoteKind.GAP else which
        return f"{self.kind.name.lower()} ring {self.ring_id} rank {self.rank} msg {self.msg_id}{which}"


def _contradiction(kind: NoteKind, offset: int, count: int, header: bytes) -> tuple[str, int] | None:
    """What is wrong between the fields, with its offset; None if nothing is."""
    if kind is NoteKind.OPENS:
        if offset or count:
            return "a message opens with its first packet", 20
        return _header_fault(header)
    if header:
        return f"{len(header)} bytes behind a note without header", NOTE_BYTES
    if (kind is NoteKind.REPEATS) != (count > 0):
        return f"{count} packets in a note of kind {kind.name.lower()}", 22
    if offset + count > 1 << 16:
        return f"{count} packets from packet {offset} on", 20
    return None


def _header_fault(header: bytes) -> tuple[str, int] | None:
    opcode = header[_OPCODE_AT] if len(header) > _OPCODE_AT else -1
    if opcode not in _OPENING:
        return "the header opens no RDMA WRITE", NOTE_BYTES
    if len(header) != HEADER_BYTES[opcode]:
        return f"{len(header)} bytes of header, opcode {opcode:#04x} has {HEADER_BYTES[opcode]}", NOTE_BYTES
    if header[12:15] != b"\x08\x00\x45" or header[20] & 0x3F or header[21] or header[23] != 17:
        return "the header is no plain IPv4 and UDP", NOTE_BYTES + 12
    if header[36:38] != _ROCE_PORT_BYTES:
        return "the header is not of RoCEv2", NOTE_BYTES + 36
    return None
