"""scapy's RoCE layer as an outside judge: it reads what we write, we read what it writes, ICRCs agree."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.roce import AETH, BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from inaproto.wire.ethernet import mac_text
from inaproto.wire.ipv4 import ip_text
from inaproto.wire.roce import Opcode, RocePacket
from tests.unit.wire_strategies import EMITTED, packets, u

# scapy takes a datagram for another protocol by its source port alone; RoCE uses the ephemeral ones.
roce_ports = st.integers(0xC000, 0xFFFF)


@st.composite
def emitted(draw: st.DrawFn) -> RocePacket:
    packet = draw(packets(EMITTED, payload_bytes_max=200))
    return RocePacket.build(
        src_mac=packet.eth.src,
        dst_mac=packet.eth.dst,
        src_ip=packet.ip.src,
        dst_ip=packet.ip.dst,
        udp_source_port=draw(roce_ports),
        ip_id=packet.ip.identification,
        ttl=packet.ip.ttl,
        bth=packet.bth,
        reth=packet.reth,
        imm=packet.imm,
        aeth=packet.aeth,
        payload=packet.payload,
    )


def after_bth(packet: RocePacket) -> bytes:
    """Extension headers, payload and pad."""
    parts = [part.encode() for part in (packet.reth, packet.imm, packet.aeth) if part is not None]
    return b"".join(parts) + packet.payload + bytes(packet.pad)


@given(emitted())
def test_scapy_reads_what_we_write(packet: RocePacket) -> None:
    frame = packet.encode_frame()
    read: Any = Ether(frame)
    bth = read[BTH]
    assert (read.src, read.dst) == (mac_text(packet.eth.src), mac_text(packet.eth.dst))
    assert (read[IP].src, read[IP].dst) == (ip_text(packet.ip.src), ip_text(packet.ip.dst))
    assert (read[IP].flags, read[IP].id, read[IP].len) == ("DF", packet.ip.identification, len(frame) - 14)
    assert (read[UDP].sport, read[UDP].dport) == (packet.udp.src_port, 4791)
    assert (bth.opcode, bth.dqpn, bth.psn) == (packet.opcode, packet.bth.dest_qp, packet.bth.psn)
    assert (bth.ackreq, bth.padcount, bth.pkey) == (packet.bth.ack_request, packet.pad, packet.bth.pkey)
    assert (bth.solicited, bth.migreq, bth.version) == (packet.bth.solicited, packet.bth.migration, 0)
    assert (bth.fecn, bth.becn, bth.resv6) == (packet.bth.congestion >> 7, packet.bth.congestion >> 6 & 1, 0)
    assert bytes(bth.payload) == after_bth(packet)
    assert bth.icrc == int.from_bytes(frame[-4:], "big")
    if packet.aeth is not None:
        assert (bth[AETH].syndrome, bth[AETH].msn) == (packet.aeth.syndrome, packet.aeth.msn)


@given(emitted())
def test_scapy_computes_our_checksums(packet: RocePacket) -> None:
    frame = packet.encode_frame()
    read: Any = Ether(frame)
    del read[IP].chksum, read[BTH].icrc
    assert bytes(read) == frame


@given(emitted(), u(8))
def test_we_read_what_scapy_writes(packet: RocePacket, tos: int) -> None:
    bth = packet.bth
    written: Any = (
        Ether(src=mac_text(packet.eth.src), dst=mac_text(packet.eth.dst))
        / IP(
            src=ip_text(packet.ip.src),
            dst=ip_text(packet.ip.dst),
            id=packet.ip.identification,
            ttl=packet.ip.ttl,
            flags="DF",
            tos=tos,
        )
        / UDP(sport=packet.udp.src_port, dport=4791, chksum=0)
        / BTH(
            opcode=int(bth.opcode),
            solicited=bth.solicited,
            migreq=bth.migration,
            padcount=packet.pad,
            pkey=bth.pkey,
            fecn=bth.congestion >> 7,
            becn=bth.congestion >> 6 & 1,
            dqpn=bth.dest_qp,
            ackreq=bth.ack_request,
            psn=bth.psn,
        )
    )
    if packet.opcode == Opcode.RC_ACK:
        assert packet.aeth is not None
        written /= AETH(syndrome=packet.aeth.syndrome, msn=packet.aeth.msn)
    elif after_bth(packet):
        written /= Raw(after_bth(packet))
    frame = bytes(written)
    read = RocePacket.decode_frame(frame, verify=True)
    assert read.ip.tos == tos
    assert (read.bth, read.reth, read.imm, read.aeth) == (bth, packet.reth, packet.imm, packet.aeth)
    assert (read.payload, read.icrc) == (packet.payload, packet.icrc)
    assert read.encode_frame() == frame
