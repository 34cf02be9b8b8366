"""Translation of connections (NetReduce section 3.3): under which headers sums and results leave a switch.

In a tree the traffic changes its volume from hop to hop, so connections cannot be spliced: what leaves a
switch leaves on another connection than what came. ``translations`` is the paper's connection translation
table (Table 3) for one switch and ring. The packets themselves get whole headers, made here:

- on a virtual connection from its two addresses, with a PSN that follows from (message, offset) and the
  ring's key, so both ends place packets without learnt state, and what is left on the way of an earlier ring
  falls nowhere;
- on a host's connection that begins elsewhere, from the headers of its message's first packet.

Headers that are made here for hosts ask for an ACK in every packet: how the sender cut its ACK groups is
not known here, and one whose window closes inside a message would wait for its timer. A receiver answers
once for a run of packets.

Departure: the paper populates leaf entries once, when the connection is set up. A first packet's header
holds the message's PSN and address, so it is needed for each message.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.core.plan.aggregation_tree import VIRTUAL_QP_BASE
from inaproto.core.switch.message_packets import FIRST, LAST_IMM, MIDDLE, ONLY, ONLY_IMM
from inaproto.core.switch.region_kernels import LastPacket
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.wire.crc import byte_table, crc32, pair_table, shift
from inaproto.wire.icrc import ICRC_BYTES, masked_header
from inaproto.wire.ipv4 import internet_checksum
from inaproto.wire.messages.switch import VirtualConnection
from inaproto.wire.vector import BTH_END, FlowTemplate, RoceRun

Connection = tuple[bytes, bytes, int]
"""(source IP, destination IP, destination queue pair)"""

VIRTUAL_UDP_PORT: Final = 0x494E
"""UDP source port of virtual connections; NICs use 0xc000 and above."""
_VIRTUAL_UDP_PORT_BYTES: Final = VIRTUAL_UDP_PORT.to_bytes(2, "big")
_ACK_REQUEST: Final = 0x80


class Direction(Enum):
    """Direction of a translation, as in Table 3 of the paper."""

    AGGREGATION = "aggregation"
    MULTICAST = "multicast"
    BOTH = "aggregation and multicast"


class Translation(NamedTuple):
    """Packets that came on ``came_on`` let packets leave on ``leaves_on``."""

    direction: Direction
    came_on: Connection
    leaves_on: Connection


def outward(connection: VirtualConnection) -> Connection:
    """What leaves here for the peer."""
    return (connection.here_ip, connection.there_ip, connection.qp)


def inward(connection: VirtualConnection) -> Connection:
    """What comes from the peer."""
    return (connection.there_ip, connection.here_ip, connection.qp)


def start_psn(spec: RingSpec) -> int:
    """PSN of the first packet of message 0 on every virtual connection of the ring."""
    secret = spec.key.to_bytes(8, "big") + spec.ring_id.to_bytes(4, "big") + spec.epoch.to_bytes(4, "big")
    return crc32(secret) & ((1 << spec.psn_bits) - 1)


def is_virtual(run: RoceRun) -> bool:
    """Whether packets are between switches, of whatever ring.

    One row that shows it speaks for all: rows of a run may differ in the source port where it was damaged.
    """
    if not run.dest_qp & VIRTUAL_QP_BASE:
        return False
    source_ports = run.frames[:, 34:36].tobytes()
    return _VIRTUAL_UDP_PORT_BYTES in (source_ports[at : at + 2] for at in range(0, len(source_ports), 2))


def translations(spec: RingSpec) -> tuple[Translation, ...]:
    """The connection translation table of the switch that has ``spec.role``; empty where it has none."""
    role = spec.role
    if role is None or not role.inputs:
        return ()
    sources = [
        inward(entry) if isinstance(entry, VirtualConnection) else spec.flows[entry].connection
        for entry in role.inputs
    ]
    targets = [spec.flows[rank].connection for rank in role.delivers]
    targets += [outward(child) for child in role.children]
    if role.parent is None:
        return tuple(Translation(Direction.BOTH, come, leave) for come in sources for leave in targets)
    up, down = outward(role.parent), inward(role.parent)
    return (
        *(Translation(Direction.AGGREGATION, come, up) for come in sources),
        *(Translation(Direction.MULTICAST, down, leave) for leave in targets),
    )


class MessageHeaders(NamedTuple):
    """What the headers of one message's packets on one connection follow from."""

    base: bytes
    """Ethernet to BTH: 54 bytes, of which lengths, checksums, opcode, pad and PSN are made anew."""
    psn0: int
    psn_mask: int
    reth: bytes
    """RETH of the first packet, 16 bytes."""
    imm: int
    """Immediate of the last packet, if it is one with immediate."""
    ack: bool

    def first(self, mtu: int) -> bytes:
        """Headers of the first packet of several."""
        return self._header(FIRST, 0, mtu, self.reth)

    def last(self, packets: int, layout: LastPacket) -> bytes:
        """Headers of the last packet, which may be the only one."""
        extension = self.reth if layout.opcode in (ONLY, ONLY_IMM) else b""
        if layout.opcode in (LAST_IMM, ONLY_IMM):
            extension += self.imm.to_bytes(4, "big")
        return self._header(layout.opcode, packets - 1, layout.payload_bytes, extension)

    def middles(self, packets: int, mtu: int) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
        """(headers, shares in the ICRCs) of packets 1 to ``packets - 2``: uint8 (n, 54), uint32 (n,)."""
        header = packet_header(self.base, MIDDLE, 0, mtu, ack=self.ack)
        psns = (self.psn0 + np.arange(1, packets - 1)) & self.psn_mask
        rows = np.empty((len(psns), BTH_END), np.uint8)
        rows[:] = np.frombuffer(header, np.uint8)
        rows[:, 51] = psns >> 16
        rows[:, 52] = psns >> 8 & 0xFF
        rows[:, 53] = psns & 0xFF
        share = pair_table(mtu)[psns & 0xFFFF] ^ byte_table(2 + mtu)[psns >> 16]
        share ^= np.uint32(share_of(header, mtu))
        return rows, share

    def _header(self, opcode: int, offset: int, payload_bytes: int, extension: bytes) -> bytes:
        psn = (self.psn0 + offset) & self.psn_mask
        return packet_header(self.base, opcode, psn, payload_bytes, extension, ack=self.ack)


def packet_header(
    base: bytes, opcode: int, psn: int, payload_bytes: int, extension: bytes = b"", *, ack: bool = False
) -> bytes:
    """A packet's headers: the addresses of ``base``, right lengths and IP checksum, no UDP checksum."""
    pad = -payload_bytes % 4
    udp_bytes = 8 + 12 + len(extension) + payload_bytes + pad + ICRC_BYTES
    ip = bytearray(base[14:34])
    ip[2:4] = (20 + udp_bytes).to_bytes(2, "big")
    ip[10:12] = bytes(2)
    ip[10:12] = internet_checksum(ip).to_bytes(2, "big")
    return b"".join(
        (
            base[:14],
            ip,
            base[34:38],
            udp_bytes.to_bytes(2, "big"),
            bytes(2),
            bytes((opcode, base[43] & 0xCF | pad << 4)),
            base[44:50],
            bytes((_ACK_REQUEST if ack else 0,)),
            psn.to_bytes(3, "big"),
            extension,
        )
    )


def share_of(header: bytes | bytearray, tail_bytes: int) -> int:
    """Share of whole headers in the ICRC, before ``tail_bytes`` of payload and pad."""
    return shift(crc32(masked_header(header, len(header))), tail_bytes)


def base_header(connection: VirtualConnection) -> bytes:
    """``MessageHeaders.base`` of what leaves on a virtual connection."""
    return FlowTemplate(
        src_mac=connection.here_mac,
        dst_mac=connection.there_mac,
        src_ip=connection.here_ip,
        dst_ip=connection.there_ip,
        udp_source_port=VIRTUAL_UDP_PORT,
        dest_qp=connection.qp,
    ).header(MIDDLE, 0)
