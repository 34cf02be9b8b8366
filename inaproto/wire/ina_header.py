"""The INA header: 40 bytes at the head of each message's data (NetReduce section 3.1).

It is the paper's ``InetTag`` header made exact (docs/protocol.md 3.5). Only the first packet of
a message carries it; the accelerator learns from it where the packets that follow belong, and never
sums it. All fields are big-endian::

     0 magic u32 | 4 version u8 | 5 dtype u8 | 6 op u8 | 7 flags u8
     8 ring_id u32 | 12 epoch u32 | 16 op_index u32 | 20 msg_id u32
    24 rank u16 | 26 ring_size u16 | 28 msg_len u16 | 30 signature u16 | 32 key u64

Invariants: a decoded header has a known dtype and operation, no unknown flag, ``rank < ring_size``
and ``msg_len >= 1``. ``encode(decode(b)) == b`` for the 40 bytes of every header that decodes.

Additions to the paper's header, which has a magic, MsgID, MsgLen, Rank and RingID:

- ``flags`` bit 0 is ``LAST``: the message ends its operation. The accelerator has to know where an
  operation ends, and a short ``msg_len`` does not say so when the tensor fills its last message.
- ``flags`` bit 1 is ``RESULT``: set by the accelerator in what it emits, never by a sender. Without it a
  receiver could not tell the sum from a neighbour's raw gradient that merely passed (a plain switch on
  the path, a switch that restarted), and would return it without an error.
- bytes 30-31 carry ``signature``, a digest of (dtype, op, shape). The accelerator
  compares signature and ``LAST`` across ranks, so tensors that differ are found before any rank gets
  a result; without it equal byte counts with different shapes would be summed in silence.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Self

from inaproto.errors import DecodeError, LocalMisuse

INA_HEADER_BYTES: Final = 40
MAGIC: Final = 0x494E4150
"""``INAP``: the paper's ``InetTag``."""
VERSION: Final = 1
FLAGS_OFFSET: Final = 7
FLAG_LAST: Final = 1
"""The last message of the operation."""
FLAG_RESULT: Final = 2
"""The payload is a reduction."""
DIMENSIONS_MAX: Final = 64

_LAYOUT: Final = struct.Struct(">IBBBBIIIIHHHHQ")
assert _LAYOUT.size == INA_HEADER_BYTES


class Dtype(IntEnum):
    """Element types, by their number on the wire."""

    F32 = 0
    I32 = 1
    F16 = 2
    BF16 = 3
    F64 = 4
    I64 = 5

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]


_ITEMSIZE: Final = {Dtype.F32: 4, Dtype.I32: 4, Dtype.F16: 2, Dtype.BF16: 2, Dtype.F64: 8, Dtype.I64: 8}


_NAMES: Final = {
    Dtype.F32: "float32",
    Dtype.I32: "int32",
    Dtype.F16: "float16",
    Dtype.BF16: "bfloat16",
    Dtype.F64: "float64",
    Dtype.I64: "int64",
}
"""As callers know them."""


class Op(IntEnum):
    """Reductions, by their number on the wire."""

    SUM = 0
    MAX = 1
    MIN = 2


_DTYPES: Final = {int(member): member for member in Dtype}
_OPS: Final = {int(member): member for member in Op}

_RANGES: Final = (
    ("flags", 8),
    ("ring_id", 32),
    ("epoch", 32),
    ("op_index", 32),
    ("msg_id", 32),
    ("rank", 16),
    ("ring_size", 16),
    ("msg_len", 16),
    ("signature", 16),
    ("key", 64),
)
"""Fields after the operation, in their order on the wire, and their bits."""


def field_at(at: int) -> str:
    """Name of the field that byte ``at`` of a header is of."""
    for name, bits in (("magic", 32), ("version", 8), ("dtype", 8), ("op", 8), *_RANGES):
        at -= bits // 8
        if at < 0:
            return name
    raise LocalMisuse(f"INA header: no byte {at} behind its end")


def call_words(dtype: Dtype, op: Op, shape: Sequence[int], call: str = "") -> str:
    """What a process calls, for people: ``sum of float32 (30,)``, or ``call``, its own words for another
    collective."""
    return call or f"{op.name.lower()} of {_NAMES[dtype]} {tuple(shape)}"


def signature(dtype: int, op: int, shape: Sequence[int], call: str = "") -> int:
    """16-bit digest of an operation's element type, reduction and shape, and of what a process calls it.

    ``call`` is empty for an all-reduce: other collectives are all-reduces of vectors that alone do not tell
    which one it is.

    A CRC-16 finds every difference within 16 neighbouring bits, hence every pair that differs in
    dtype and op alone, or in one dimension below 2**16; other pairs escape with probability 2**-16.
    """
    if len(shape) > DIMENSIONS_MAX:
        raise LocalMisuse(f"signature: {len(shape)} dimensions, at most {DIMENSIONS_MAX}")
    try:
        record = struct.pack(f">BBB{len(shape)}Q", len(shape), dtype, op, *shape)
    except struct.error as error:
        raise LocalMisuse(f"signature of dtype {dtype}, op {op}, shape {tuple(shape)}: {error}") from None
    return binascii.crc_hqx(record + call.encode(), 0xFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class InaHeader:
    dtype: Dtype
    op: Op
    flags: int = 0
    ring_id: int
    epoch: int
    op_index: int
    """Serial number of the all-reduce in its job."""
    msg_id: int
    """Serial number of the message in its ring; wraps at 2**32."""
    rank: int
    ring_size: int
    msg_len: int
    """Packets in this message."""
    signature: int
    key: int = field(repr=False)
    """Secret of the ring: a stranger cannot write into it."""

    @property
    def is_last(self) -> bool:
        return bool(self.flags & FLAG_LAST)

    @property
    def is_result(self) -> bool:
        return bool(self.flags & FLAG_RESULT)

    def encode(self) -> bytes:
        """The 40 bytes. Raises ``LocalMisuse`` for values that no decoder would take."""
        if self.dtype not in _DTYPES or self.op not in _OPS:
            raise LocalMisuse(f"INA header: dtype {self.dtype!r} or op {self.op!r} does not exist")
        for name, bits in _RANGES:
            value = getattr(self, name)
            if not 0 <= value < 1 << bits:
                raise LocalMisuse(f"INA header: {name} = {value} does not fit {bits} bits")
        wrong = _contradiction(self.flags, self.rank, self.ring_size, self.msg_len)
        if wrong is not None:
            raise LocalMisuse(f"INA header: {wrong[0]}")
        numbers = [getattr(self, name) for name, _ in _RANGES]
        return _LAYOUT.pack(MAGIC, VERSION, self.dtype, self.op, *numbers)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read the header at the start of ``data``, the payload of a first packet; the rest is ignored."""
        if len(data) < INA_HEADER_BYTES:
            raise DecodeError("INA header", f"{len(data)} bytes, needs {INA_HEADER_BYTES}", len(data))
        magic, version, dtype, op, flags, ring_id, epoch, *rest = _LAYOUT.unpack_from(data)
        op_index, msg_id, rank, ring_size, msg_len, digest, key = rest
        if magic != MAGIC:
            raise DecodeError("INA header", f"magic is 0x{magic:08x}, not 0x{MAGIC:08x}", 0)
        if version != VERSION:
            raise DecodeError("INA header", f"version {version}, this side speaks {VERSION}", 4)
        if dtype not in _DTYPES:
            raise DecodeError("INA header", f"unknown dtype {dtype}", 5)
        if op not in _OPS:
            raise DecodeError("INA header", f"unknown op {op}", 6)
        wrong = _contradiction(flags, rank, ring_size, msg_len)
        if wrong is not None:
            raise DecodeError("INA header", *wrong)
        return cls(
            dtype=_DTYPES[dtype],
            op=_OPS[op],
            flags=flags,
            ring_id=ring_id,
            epoch=epoch,
            op_index=op_index,
            msg_id=msg_id,
            rank=rank,
            ring_size=ring_size,
            msg_len=msg_len,
            signature=digest,
            key=key,
        )

    def __str__(self) -> str:
        """One line for a log; the key is a secret and stays out."""
        last = " last" * self.is_last + " result" * self.is_result
        return (
            f"INA ring {self.ring_id} epoch {self.epoch} op {self.op_index} {self.op.name.lower()} "
            f"{self.dtype.name.lower()} msg {self.msg_id} x{self.msg_len}{last} "
            f"rank {self.rank}/{self.ring_size} sig 0x{self.signature:04x}"
        )


def _contradiction(flags: int, rank: int, ring_size: int, msg_len: int) -> tuple[str, int] | None:
    """What is wrong between the fields, with its offset; None if nothing is."""
    if flags & ~(FLAG_LAST | FLAG_RESULT):
        return f"unknown flags 0x{flags:02x}", 7
    if rank >= ring_size:
        return f"rank {rank} in a ring of {ring_size}", 24
    if msg_len == 0:
        return "a message of no packets", 28
    return None
