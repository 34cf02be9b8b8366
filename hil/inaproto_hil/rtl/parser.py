"""What the accelerator has to know of a frame, read from its first words at once (NetReduce section 4).

Combinational. Two readings stand side by side:

- the strict one, of what a NIC emits (:mod:`inaproto.wire.vector`): all fields at fixed places, the INA
  header at one of two, behind RETH or behind RETH and IMM;
- the lenient one, of what a receiver's stack might take for a packet of a connection
  (:mod:`inaproto.wire.connection`): up to three VLAN tags and any IP options. Both are whole words long, so
  words are chosen, never bytes.

Invariants: nothing past the frame's end is taken for a field of it. ``HEAD_WORDS`` have all that is looked
at: the lenient reading ends at byte 14 + 3 tags * 4 + 60 + 8 + 8 = 102 of the frame, the INA header at 114.
``is_plainly_other`` needs no gates: it holds for no frame in which ``lenient_connection`` finds one.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES, ETHERTYPE_IPV4
from inaproto.wire.ina_header import (
    FLAG_LAST,
    FLAG_RESULT,
    INA_HEADER_BYTES,
    MAGIC,
    VERSION,
    Dtype,
    Op,
)
from inaproto.wire.ipv4 import IPV4_HEADER_BYTES, PROTOCOL_UDP
from inaproto.wire.roce import RETH_BYTES, Opcode, extension_bytes
from inaproto.wire.udp import ROCE_PORT
from inaproto_hil.rtl.layout import SEEN
from inaproto_hil.rtl.parameters import HEAD_WORDS, ICRC_BYTES, SHIFT_BYTES, WORD_BYTES

BTH_END = 54
ARP_HEAD = 0x0806_0001_0800_0604
"""Ethernet type ARP, then the head of ARP for IPv4 over Ethernet."""
ARP_SENDER_END = 28
VLAN_TAGS = (0x8100, 0x88A8)
VLAN_DEPTH_MAX = 3
IHL_MIN = 5
IHL_MAX = 15
FRAGMENT_OFFSET = 0x1FFF
MORE_FRAGMENTS = 0x2000

WORD_BITS = 8 * WORD_BYTES
WITH_RETH = tuple(int(opcode) for opcode in Opcode if extension_bytes(opcode) >= RETH_BYTES)
"""Opcodes of the packets that may open a message, hence have an INA header."""

INA_FIELDS = (
    ("dtype", 5, 1),
    ("op", 6, 1),
    ("flags", 7, 1),
    ("ring_id", 8, 4),
    ("epoch", 12, 4),
    ("op_index", 16, 4),
    ("msg_id", 20, 4),
    ("rank", 24, 2),
    ("ring_size", 26, 2),
    ("msg_len", 28, 2),
    ("signature", 30, 2),
    ("key", 32, 8),
)
"""(name, offset, bytes) in the INA header."""


class Parser(wiring.Component):
    """Reads ``head``, the beginning of an aligned frame, zero past its end; ``frame_bytes`` is the length of
    the plain one.

    ``roce``, ``whole``, ``too_short``, ``contradicts``, ``lenient``, ``magic`` and ``ina_fault`` hold for
    every frame; where it is no well-formed packet that opens a message, ``magic`` is 0 and ``ina_fault`` 1.
    The MAC addresses hold unless ``too_short``, IP addresses and fields of the packet if ``roce``, those of
    the lenient reading if ``lenient``, those of the INA header unless ``ina_fault``.
    """

    def __init__(self) -> None:
        super().__init__(
            {"head": In(WORD_BITS * HEAD_WORDS), "frame_bytes": In(16), "seen": Out(SEEN)},
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += [
            self.seen.dst_mac.eq(self._at(0, 6)),
            self.seen.src_mac.eq(self._at(6, 6)),
            self.seen.too_short.eq(self.frame_bytes < ETHERNET_HEADER_BYTES),
            # A sender that is cut off is another one too, even where zeros stand for the bytes that miss.
            self.seen.contradicts.eq(
                (self._at(12, 8) == ARP_HEAD)
                & ((self.frame_bytes < ARP_SENDER_END) | (self._at(22, 6) != self._at(6, 6)))
            ),
        ]
        self._strict(m)
        self._lenient(m)
        self._ina(m)
        return m

    def _at(self, at: int, size: int) -> Value:
        """The number in ``size`` bytes at byte ``at`` of the plain frame."""
        return number(self.head, SHIFT_BYTES + at, size)

    def _strict(self, m: Module) -> None:
        seen = self.seen
        known = Signal()
        with m.Switch(seen.opcode):
            for size in sorted({extension_bytes(opcode) for opcode in Opcode}):
                with m.Case(*(int(opcode) for opcode in Opcode if extension_bytes(opcode) == size)):
                    m.d.comb += [known.eq(1), seen.header_bytes.eq(BTH_END + size)]

        total = self._at(16, 2)
        end = Signal(17)
        # Signed: below zero where headers and pad do not fit the datagram.
        payload_bytes = end - ICRC_BYTES - seen.header_bytes - seen.pad
        m.d.comb += [
            end.eq(total + ETHERNET_HEADER_BYTES),
            seen.src_ip.eq(self._at(26, 4)),
            seen.dst_ip.eq(self._at(30, 4)),
            seen.opcode.eq(self._at(42, 1)),
            seen.pad.eq(self._at(43, 1)[4:6]),
            seen.dest_qp.eq(self._at(47, 3)),
            seen.psn.eq(self._at(51, 3)),
            seen.payload_bytes.eq(payload_bytes),
            # That the frame has room for every header follows from the last two lines and ``known``.
            seen.roce.eq(
                (self._at(12, 2) == ETHERTYPE_IPV4)
                & (self._at(14, 1) == 0x45)
                & (self._at(20, 2) & (MORE_FRAGMENTS | FRAGMENT_OFFSET) == 0)
                & (self._at(23, 1) == PROTOCOL_UDP)
                & (self._at(36, 2) == ROCE_PORT)
                & (self._at(38, 2) + IPV4_HEADER_BYTES == total)
                & known
                & (end <= self.frame_bytes)
                & (payload_bytes >= 0)
            ),
            # Headers are whole words, and so is all that comes before the IP header.
            seen.whole.eq(seen.roce & (total[:2] == 0)),
        ]

    def _ina(self, m: Module) -> None:
        seen = self.seen
        first = Signal(8 * INA_HEADER_BYTES)
        begin, begin_imm = ((SHIFT_BYTES + at) * 8 for at in (BTH_END + 16, BTH_END + 20))
        with_imm = seen.opcode == Opcode.RC_WRITE_ONLY_IMM
        m.d.comb += first.eq(Mux(with_imm, self.head[begin_imm:], self.head[begin:]))
        m.d.comb += [seen[name].eq(number(first, at, size)) for name, at, size in INA_FIELDS]

        right = (
            (number(first, 4, 1) == VERSION)
            & (seen.dtype <= max(Dtype))
            & (seen.op <= max(Op))
            & (seen.flags & ~(FLAG_LAST | FLAG_RESULT) == 0)
            & (seen.rank < seen.ring_size)
            & (seen.msg_len != 0)
        )
        m.d.comb += [
            seen.magic.eq(
                seen.roce
                & seen.opcode.matches(*WITH_RETH)
                & (seen.payload_bytes >= INA_HEADER_BYTES)
                & (number(first, 0, 4) == MAGIC)
            ),
            seen.ina_fault.eq(~(seen.magic & right)),
            seen.ina_last.eq((seen.flags & FLAG_LAST) != 0),
            seen.ina_result.eq((seen.flags & FLAG_RESULT) != 0),
        ]

    def _lenient(self, m: Module) -> None:
        seen = self.seen
        tagged = [self._at(12 + WORD_BYTES * depth, 2).matches(*VLAN_TAGS) for depth in range(VLAN_DEPTH_MAX)]
        tags = Signal(range(VLAN_DEPTH_MAX + 1))
        m.d.comb += tags.eq(Mux(tagged[0], Mux(tagged[1], Mux(tagged[2], 3, 2), 1), 0))

        # Ethernet type in the last two bytes of the first word, then the IP header.
        ip = Signal(WORD_BITS * 6)
        with m.Switch(tags):
            for skipped in range(VLAN_DEPTH_MAX + 1):
                with m.Case(skipped):
                    m.d.comb += ip.eq(self.head[WORD_BITS * (3 + skipped) :])
        version, ihl = number(ip, 4, 1)[4:], number(ip, 4, 1)[:4]

        # UDP header and the first half of the BTH.
        udp = Signal(WORD_BITS * 4)
        skip = Signal(range(IHL_MAX + VLAN_DEPTH_MAX + 1))  # words of tags and IP header
        m.d.comb += skip.eq(tags + ihl)
        with m.Switch(skip):
            for skipped in range(IHL_MIN, IHL_MAX + VLAN_DEPTH_MAX + 1):
                with m.Case(skipped):
                    m.d.comb += udp.eq(self.head[WORD_BITS * (4 + skipped) :])

        m.d.comb += [
            seen.lenient_src_ip.eq(number(ip, 16, 4)),
            seen.lenient_dst_ip.eq(number(ip, 20, 4)),
            seen.lenient_opcode.eq(number(udp, 8, 1)),
            seen.lenient_qp.eq(number(udp, 13, 3)),
            # The Ethernet type may be damaged where all else is a packet's.
            seen.lenient.eq(
                ((number(ip, 2, 2) == ETHERTYPE_IPV4) | (ihl == IHL_MIN))
                & (version == 4)
                & (ihl >= IHL_MIN)
                & (number(ip, 10, 2) & FRAGMENT_OFFSET == 0)
                & (number(ip, 13, 1) == PROTOCOL_UDP)
                & (number(udp, 2, 2) == ROCE_PORT)
                & (self.frame_bytes >= ETHERNET_HEADER_BYTES + 16 + WORD_BYTES * skip)
            ),
        ]


def number(of: Value, at: int, size: int) -> Value:
    """The big-endian number in ``size`` bytes at byte ``at``, where byte 0 is in the lowest bits."""
    return Cat(*(of.word_select(at + size - 1 - i, 8) for i in range(size)))
