"""A ring of hosts that does not exist: the packets that its NICs would send, and the results that must come
back.

Rank r is at port r and sends to rank r + 1. Everything is a function of the ring's number, so a packet that
is sent again is the same but for what a rule changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.units import PSN_MASK
from inaproto.wire.ethernet import EthernetHeader
from inaproto.wire.ina_header import (
    FLAG_LAST,
    FLAG_RESULT,
    FLAGS_OFFSET,
    INA_HEADER_BYTES,
    Dtype,
    InaHeader,
    Op,
)
from inaproto.wire.ipv4 import Ipv4Header
from inaproto.wire.roce import Aeth, Bth, Imm, Opcode, Reth, RocePacket
from inaproto.wire.udp import UdpHeader
from inaproto_hil.conformance.sums import reduced

OPENING: Final = (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM)
_WITH_IMMEDIATE: Final = (0x03, 0x05, Opcode.RC_WRITE_LAST_IMM, Opcode.RC_WRITE_ONLY_IMM)


def mac(port: int) -> bytes:
    """Of the host at a port."""
    return bytes([2, 0x1A, 0, 0, 0, port])


def ip(port: int) -> bytes:
    """Of the host at a port."""
    return bytes([10, 77, 0, port + 1])


@dataclass(frozen=True)
class Ring:
    """``number`` tells rings of one bench apart; ``dtype`` and ``op`` are of its all-reduces."""

    number: int
    ranks: int = 2
    window: int = 2
    packets: int = 4
    """Of a message, at most."""
    mtu: int = 64
    first_message: int = 0
    psn0: int = 1000
    """Of rank 0's first packet; those of the others begin elsewhere."""
    dtype: Dtype = Dtype.F32
    op: Op = Op.SUM
    immediate: bool = True
    values: tuple[tuple[bytes, ...], ...] = field(default=(), repr=False)
    """Data of packets by rank and offset, where they matter; else drawn."""

    @property
    def spec(self) -> RingSpec:
        return RingSpec(
            ring_id=0x5000 + self.number,
            epoch=3,
            key=0xC0FFEE_0000_0000 + self.number,
            window_messages=self.window,
            message_packets=self.packets,
            mtu=self.mtu,
            first_message=self.first_message,
            flows=tuple(
                FlowSpec(
                    rank,
                    ip(rank),
                    ip(self.after(rank)),
                    self.queue_pair(self.after(rank)),
                    mac(rank),
                    mac(self.after(rank)),
                )
                for rank in range(self.ranks)
            ),
        )

    def after(self, rank: int) -> int:
        """The rank that receives its results, which is also the port by which they leave."""
        return (rank + 1) % self.ranks

    def queue_pair(self, rank: int) -> int:
        """Into which the results for ``rank`` come."""
        return 0x1000 + 0x40 * self.number + rank

    def psn(self, rank: int, serial: int, offset: int) -> int:
        """As if all messages had all their packets."""
        first = self.psn0 + 7777 * rank
        return (first + (serial - self.first_message) * self.packets + offset) & PSN_MASK

    def header(self, rank: int, serial: int, packets: int) -> InaHeader:
        return InaHeader(
            dtype=self.dtype,
            op=self.op,
            flags=FLAG_LAST,
            ring_id=0x5000 + self.number,
            epoch=3,
            op_index=serial & 0xFFFF_FFFF,
            msg_id=serial & 0xFFFF_FFFF,
            rank=rank,
            ring_size=self.ranks,
            msg_len=packets,
            signature=0x5151,
            key=0xC0FFEE_0000_0000 + self.number,
        )

    def data(self, rank: int, serial: int, offset: int, nbytes: int) -> bytes:
        """What a rank contributes to a packet: all bit patterns, NaN and infinities among them."""
        if self.values:
            return self.values[rank][offset]
        return np.random.default_rng((self.number, rank, serial & 0xFFFF_FFFF, offset)).bytes(nbytes)

    def opcode(self, offset: int, packets: int) -> Opcode:
        if packets == 1:
            return Opcode.RC_WRITE_ONLY_IMM if self.immediate else Opcode.RC_WRITE_ONLY
        if offset == 0:
            return Opcode.RC_WRITE_FIRST
        if offset < packets - 1:
            return Opcode.RC_WRITE_MIDDLE
        return Opcode.RC_WRITE_LAST_IMM if self.immediate else Opcode.RC_WRITE_LAST

    def size(self, offset: int, packets: int, last_bytes: int | None) -> int:
        """Payload bytes of a packet."""
        return self.mtu if last_bytes is None or offset < packets - 1 else last_bytes

    def packet(
        self,
        rank: int,
        serial: int,
        offset: int,
        *,
        packets: int | None = None,
        last_bytes: int | None = None,
        ip_id: int = 1,
        opcode: int | None = None,
        psn: int | None = None,
        payload: bytes | None = None,
        source: bytes | None = None,
        ina: Mapping[str, Any] = MappingProxyType({}),
    ) -> bytes:
        """One packet as the NIC of ``rank`` sends it; ``ina`` are fields of its INA header that differ."""
        packets = self.packets if packets is None else packets
        opcode = self.opcode(offset, packets) if opcode is None else opcode
        if payload is None:
            size = self.size(offset, packets, last_bytes)
            head = b"" if offset else replace(self.header(rank, serial, packets), **ina).encode()
            payload = head + self.data(rank, serial, offset, size - len(head))
        to = self.after(rank)
        return RocePacket(
            eth=EthernetHeader(dst=mac(to), src=mac(rank) if source is None else source),
            ip=Ipv4Header(src=ip(rank), dst=ip(to), total_length=0, identification=ip_id),
            udp=UdpHeader(src_port=0xC000 + self.number % 0x1000, length=0),
            bth=Bth(
                opcode=opcode,
                dest_qp=self.queue_pair(to),
                psn=self.psn(rank, serial, offset) if psn is None else psn,
                ack_request=offset == packets - 1,
            ),
            reth=Reth(va=0x10_0000 * (serial % (2 * self.window)), rkey=5, dma_length=packets * self.mtu)
            if opcode in OPENING
            else None,
            imm=Imm(serial & 0xFFFF_FFFF) if opcode in _WITH_IMMEDIATE else None,
            payload=payload,
        ).encode_frame()

    def result(self, rank: int, serial: int, offset: int, **changes: Any) -> bytes:
        """What leaves on the connection of ``rank`` when all have sent (docs/protocol.md 6.6); ``changes``
        are those of its own packet."""
        packets = self.packets if changes.get("packets") is None else changes["packets"]
        skip = 0 if offset else INA_HEADER_BYTES
        nbytes = self.size(offset, packets, changes.get("last_bytes")) - skip
        parts = [self.data(other, serial, offset, nbytes) for other in range(self.ranks)]
        own = RocePacket.decode_frame(self.packet(rank, serial, offset, **changes))
        header = bytearray(own.payload[:skip])
        if header:
            header[FLAGS_OFFSET] |= FLAG_RESULT
        return replace(own, payload=bytes(header) + reduced(self.dtype, self.op, parts)).encode_frame()

    def results(
        self, serial: int, offset: int, ranks: Iterable[int] | None = None, **changes: Any
    ) -> list[tuple[int, bytes]]:
        """(port, frame) for all ranks, or for ``ranks``."""
        return [
            (self.after(rank), self.result(rank, serial, offset, **changes))
            for rank in (range(self.ranks) if ranks is None else ranks)
        ]

    def answer(self, rank: int, syndrome: int = 0x1F) -> tuple[int, bytes]:
        """An ACK, or a NAK, of who receives the results of ``rank``, and the port where it comes in."""
        by = self.after(rank)
        return by, self._answer(by, rank, 0x900 + rank, syndrome)

    def answer_under_its_own_name(self, rank: int) -> bytes:
        """An ACK from ``rank`` to the queue pair into which it sends, as its connection is known by."""
        to = self.after(rank)
        return self._answer(rank, to, self.queue_pair(to), 0x1F)

    def _answer(self, by: int, to: int, queue_pair: int, syndrome: int) -> bytes:
        return RocePacket.build(
            src_mac=mac(by),
            dst_mac=mac(to),
            src_ip=ip(by),
            dst_ip=ip(to),
            udp_source_port=0xC111,
            bth=Bth(opcode=Opcode.RC_ACK, dest_qp=queue_pair, psn=self.psn0),
            aeth=Aeth(syndrome=syndrome, msn=1),
        ).encode_frame()
