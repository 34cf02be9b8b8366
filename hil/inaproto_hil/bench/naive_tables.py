"""Records and arithmetic of the per-packet accelerator (:mod:`inaproto_hil.bench.naive`).

Positions are pairs (message serial, packet offset); they order all packets of a ring.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from inaproto.core.plan.reduce import reduce_into
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.wire.ina_header import Dtype, Op

Position = tuple[int, int]

ITEMSIZE: Final = {0: 4, 1: 4, 2: 2, 3: 2, 4: 8, 5: 8}
_INA: Final = struct.Struct(">IBBBBIIIIHHHHQ")
_MAGIC: Final = 0x494E4150
_ONES: Final = b"\xff" * 8
# Sums that numpy does in the element type, and the bits of the NaN that stands for all: (type, words, NaN).
_SUMS: Final[dict[int, tuple[Any, Any, int]]] = {
    0: (np.float32, np.uint32, 0x7FC0_0000),
    1: (np.int32, None, 0),
    4: (np.float64, np.uint64, 0x7FF8 << 48),
    5: (np.int64, None, 0),
}


def crc(head: bytes, tail: bytes) -> int:
    """ICRC of a packet whose headers (with what else is not summed) and payload with pad are these."""
    masked = bytearray(head)
    masked[6:14] = _ONES
    masked[15] = masked[22] = masked[24] = masked[25] = masked[40] = masked[41] = masked[46] = 0xFF
    return zlib.crc32(tail, zlib.crc32(memoryview(masked)[6:]))


@dataclass(frozen=True, slots=True)
class Ina:
    """The fields of an INA header after its version; ``agreed`` are those that ranks must share."""

    agreed: tuple[int, ...]
    ring_id: int
    epoch: int
    msg_id: int
    rank: int
    ring_size: int
    msg_len: int
    key: int

    @classmethod
    def read(cls, payload: bytes) -> Ina | None:
        if len(payload) < 40:
            return None
        magic, version, dtype, op, flags, ring_id, epoch, op_index, *rest = _INA.unpack_from(payload)
        msg_id, rank, size, msg_len, signature, key = rest
        if magic != _MAGIC or version != 1 or dtype > 5 or op > 2 or flags > 1 or rank >= size or not msg_len:
            return None
        agreed = (op_index, dtype, op, msg_len, flags, signature)
        return cls(agreed, ring_id, epoch, msg_id, rank, size, msg_len, key)


class Slot:
    """One packet of a message: what came from each rank last, and the result once all have sent."""

    __slots__ = ("heads", "missing", "result", "tails")

    def __init__(self, ranks: int) -> None:
        self.heads: list[bytes] = [b""] * ranks
        self.tails: list[bytes | None] = [None] * ranks
        self.missing = ranks
        self.result: bytes | None = None


class Message:
    __slots__ = ("agreed", "last", "packets", "serial", "slots")

    def __init__(self, serial: int, ina: Ina, ranks: int) -> None:
        self.serial = serial
        self.agreed = ina.agreed
        self.packets = ina.msg_len
        self.last: tuple[int, int] | None = None
        """Opcode and payload bytes of the last packet."""
        self.slots = [Slot(ranks) for _ in range(ina.msg_len)]


@dataclass(slots=True)
class Flow:
    ring: Ring
    rank: int
    opened: list[tuple[int, int, int] | None]
    """Entry of the connection lookup table: (serial, first PSN, packets) of the last 2N messages."""
    latest: int = 0
    port: int = -1
    mac: bytes = b""
    mac_before: bytes = b""
    replay_next: Position | None = None
    gap_signalled: Position | None = None
    reached: Position = (-1, 0)
    early: list[tuple[int, bytes, int]] = field(default_factory=list)
    """(port, packet, PSN) of what came before the first packet of its message."""


@dataclass(slots=True)
class Ring:
    spec: RingSpec
    messages: list[Message | None]
    flows: list[Flow] = field(default_factory=list)
    serial: int = 0
    """Message of the frontier, with ``offset``: the first packet whose result has not gone out."""
    offset: int = 0
    done_high: Position = (-1, 0)
    failed: bool = False

    def at(self, serial: int) -> Message | None:
        message = self.messages[serial % len(self.messages)]
        return message if message is not None and message.serial == serial else None

    def walk(self, begin: Position, end: Position) -> Iterator[tuple[int, int, Slot]]:
        """(serial, offset, slot) of the packets from ``begin`` up to before ``end`` that are still held."""
        serial, offset = begin
        while (serial, offset) < end:
            message = self.at(serial)
            if message is None or offset >= message.packets:
                serial, offset = serial + 1, 0
                continue
            yield serial, offset, message.slots[offset]
            offset += 1

    def after(self, position: Position) -> Position:
        message = self.at(position[0])
        whole = message is not None and position[1] + 1 >= message.packets
        return (position[0] + 1, 0) if whole else (position[0], position[1] + 1)


def reduce_packet(dtype: int, op: int, tails: Sequence[bytes | None], pad: int) -> bytes:
    """The result of one packet's payloads in rank order, with its pad of zeros."""
    parts = [tail[: len(tail) - pad] for tail in tails if tail is not None]
    if not parts[0]:
        return bytes(pad)
    if op or dtype not in _SUMS:
        out = np.empty(len(parts[0]), np.uint8)
        reduce_into(Dtype(dtype), Op(op), [np.frombuffer(part, np.uint8) for part in parts], out)
        return out.tobytes() + bytes(pad)
    kind, words, quiet = _SUMS[dtype]
    total = np.add(np.frombuffer(parts[0], kind), np.frombuffer(parts[1], kind))
    for part in parts[2:]:
        np.add(total, np.frombuffer(part, kind), out=total)
    if words is not None and np.isnan(total.min()):
        total.view(words)[np.isnan(total)] = quiet
    return total.tobytes() + bytes(pad)
