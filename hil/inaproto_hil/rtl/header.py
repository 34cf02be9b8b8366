"""Headers that are made here, on connections whose own packets do not come by (NetReduce section 3.3).

``packet_header`` of :mod:`inaproto.core.switch.tree.translation`, in words of an aligned frame: what the
engine says of the connection and the packet, right lengths and IP checksum, no UDP checksum.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from inaproto.wire.ipv4 import PROTOCOL_UDP
from inaproto.wire.roce import Opcode
from inaproto.wire.tree_note import MAGIC, VERSION
from inaproto.wire.udp import ROCE_PORT
from inaproto_hil.rtl.parameters import SHIFT_BYTES, WORD_BYTES
from inaproto_hil.rtl.tree_parser import RAW_BYTES

WORDS = 19
"""Of the longest one."""
ETHERNET_BYTES = 14
IP_END = 34
DONT_FRAGMENT = 0x4000
TTL = 64
PARTITION = 0xFFFF_00
"""And the byte behind it."""
CHECKSUM_WORD = 6
"""It has the IP checksum in its upper half, and was made with zeros there."""

HEADER = data.StructLayout(
    {
        "dst_mac": 48,
        "src_mac": 48,
        "tos": 8,
        "ip_id": 16,
        "fragment": 16,
        "ttl": 8,
        "src_ip": 32,
        "dst_ip": 32,
        "source_port": 16,
        "flags": 8,
        "partition": 24,
        "dst_qp": 24,
        "ack": 1,
        "psn": 24,
        "reth": 128,
        "imm": 32,
        "rank": 16,
        "is_result": 1,
    }
)
"""``rank`` and ``is_result`` are for the INA header of a first packet; ``partition`` has one byte more."""

TOLD = data.StructLayout(
    {
        "kind": 8,
        "rank": 16,
        "ring_id": 32,
        "epoch": 32,
        "msg_id": 32,
        "offset": 16,
        "count": 16,
        "key": 64,
        "raw": 8 * RAW_BYTES,
    }
)
"""A note that is made here; ``raw`` are the headers that it carries, if it does."""
_CHECKSUM_AT = 40


def note_of(told: Any) -> Value:
    """The payload of a note, in words; pad behind it is zero."""
    raw = told.raw
    return Cat(
        _big(Const(MAGIC, 32), 4),
        Const(VERSION, 8),
        told.kind,
        _big(told.rank, 2),
        *(_big(each, 4) for each in (told.ring_id, told.epoch, told.msg_id)),
        _big(told.offset, 2),
        _big(told.count, 2),
        _big(told.key, 8),
        raw[: 8 * _CHECKSUM_AT],
        Const(0, 16),
        raw[8 * _CHECKSUM_AT + 16 :],
        Const(0, 8 * (-RAW_BYTES % WORD_BYTES)),
    )


def words_of(m: Module, header: Any, opcode: Value, total_words: Value, pad: Value) -> Value:
    """All ``WORDS``, of a packet of so many words, ICRC included."""
    frame_bytes = Signal(16)
    m.d.comb += frame_bytes.eq((total_words << 2) - SHIFT_BYTES)
    ip_bytes, udp_bytes = Signal(16), Signal(16)
    m.d.comb += [ip_bytes.eq(frame_bytes - ETHERNET_BYTES), udp_bytes.eq(frame_bytes - IP_END)]
    begin = Cat(
        _big(Const(0, 16), SHIFT_BYTES),
        _big(header.dst_mac, 6),
        _big(header.src_mac, 6),
        _big(Const(0x0800_45, 24), 3),
        header.tos,
        _big(ip_bytes, 2),
        _big(header.ip_id, 2),
        _big(header.fragment, 2),
        header.ttl,
        _big(Const(PROTOCOL_UDP << 16, 24), 3),
        _big(header.src_ip, 4),
        _big(header.dst_ip, 4),
        _big(header.source_port, 2),
        _big(Const(ROCE_PORT, 16), 2),
        _big(udp_bytes, 2),
        Const(0, 16),
        opcode,
        Cat(header.flags[:4], pad, header.flags[6:]),
        _big(header.partition, 3),
        _big(header.dst_qp, 3),
        Cat(Const(0, 7), header.ack),
        _big(header.psn, 3),
    )
    reth, imm = _big(header.reth, 16), _big(header.imm, 4)
    found = Signal(8 * WORD_BYTES * WORDS)
    m.d.comb += found.eq(Cat(begin, Mux(opcode == Opcode.RC_WRITE_LAST_IMM, imm, Cat(reth, imm))))
    return found


def ip_checksum(m: Module, words: Value) -> Value:
    """Of the IP header in these words, a cycle later; its own place is taken for zero."""
    halves = [words.word_select(at, 16) for at in range(8, 18)]
    del halves[5]
    total, folded = Signal(20), Signal(17)
    m.d.sync += total.eq(sum(_swapped(half) for half in halves))
    m.d.comb += folded.eq(total[:16] + total[16:])
    return _swapped(~(folded[:16] + folded[16])[:16])


def _swapped(half: Value) -> Value:
    return Cat(half[8:16], half[:8])


def _big(number: Any, size: int) -> Value:
    """A number as ``size`` bytes of a frame, where the first one is in the lowest bits."""
    value = Value.cast(number)
    return Cat(value[8 * at : 8 * at + 8] for at in reversed(range(size)))
