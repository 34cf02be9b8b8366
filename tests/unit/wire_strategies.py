"""Hypothesis strategies for packets, and the frames that a kernel's RoCE stack was captured sending."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from inaproto.wire.ina_header import Dtype, InaHeader, Op
from inaproto.wire.roce import Aeth, Bth, Imm, Opcode, Reth, RocePacket

CAPTURED_ACK: Final = bytes.fromhex(
    "5254000000015254000000020800450000308c45400040119a750a0000020a000001c12112b7001c0000"
    "1100ffff000000110000013f1f000001f1f52d51"
)
"""ACK of PSN 0x13f with MSN 1, from a guest's rdma_rxe."""
CAPTURED_NAK: Final = bytes.fromhex(
    "525400000001525400000002080045000030904f40004011966b0a0000020a000001c19012b7001c0000"
    "1100ffff000000140000010a6000000073d48c7f"
)
"""NAK of PSN 0x10a, from a guest's rdma_rxe."""

EMITTED: Final = (
    Opcode.RC_WRITE_FIRST,
    Opcode.RC_WRITE_MIDDLE,
    Opcode.RC_WRITE_LAST,
    Opcode.RC_WRITE_LAST_IMM,
    Opcode.RC_WRITE_ONLY,
    Opcode.RC_WRITE_ONLY_IMM,
    Opcode.RC_ACK,
)
"""What our own NIC and accelerator put on a wire."""


def u(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


macs = st.binary(min_size=6, max_size=6)
ips = st.binary(min_size=4, max_size=4)


def has_reth(opcode: int) -> bool:
    return opcode in {Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM}


def has_imm(opcode: int) -> bool:
    return opcode in {
        Opcode.RC_WRITE_LAST_IMM,
        Opcode.RC_WRITE_ONLY_IMM,
        Opcode.RC_SEND_LAST_IMM,
        Opcode.RC_SEND_ONLY_IMM,
    }


reths = st.builds(Reth, va=u(64), rkey=u(32), dma_length=u(32))
imms = st.builds(Imm, u(32))
aeths = st.builds(Aeth, syndrome=u(8), msn=u(24))
bths = st.builds(
    Bth,
    opcode=u(8),
    dest_qp=u(24),
    psn=u(24),
    ack_request=st.booleans(),
    pad=u(2),
    solicited=st.booleans(),
    migration=st.booleans(),
    version=u(4),
    pkey=u(16),
    congestion=u(8),
    reserved=u(7),
)


@st.composite
def packets(
    draw: st.DrawFn, opcodes: tuple[Opcode, ...] = tuple(Opcode), payload_bytes_max: int = 300
) -> RocePacket:
    """Well-formed packets of the given opcodes, sealed."""
    opcode = draw(st.sampled_from(opcodes))
    payload = b"" if opcode == Opcode.RC_ACK else draw(st.binary(max_size=payload_bytes_max))
    return RocePacket.build(
        src_mac=draw(macs),
        dst_mac=draw(macs),
        src_ip=draw(ips),
        dst_ip=draw(ips),
        udp_source_port=draw(u(16)),
        ip_id=draw(u(16)),
        ttl=draw(u(8)),
        bth=Bth(
            opcode=opcode,
            dest_qp=draw(u(24)),
            psn=draw(u(24)),
            ack_request=draw(st.booleans()),
            solicited=draw(st.booleans()),
            migration=draw(st.booleans()),
            pkey=draw(u(16)),
            congestion=draw(st.sampled_from((0, 0x40, 0x80, 0xC0))),
        ),
        reth=draw(reths) if has_reth(opcode) else None,
        imm=draw(imms) if has_imm(opcode) else None,
        aeth=draw(aeths) if opcode == Opcode.RC_ACK else None,
        payload=payload,
    )


@st.composite
def ina_headers(draw: st.DrawFn) -> InaHeader:
    ring_size = draw(st.integers(1, 0xFFFF))
    return InaHeader(
        dtype=draw(st.sampled_from(Dtype)),
        op=draw(st.sampled_from(Op)),
        flags=draw(u(2)),
        ring_id=draw(u(32)),
        epoch=draw(u(32)),
        op_index=draw(u(32)),
        msg_id=draw(u(32)),
        rank=draw(st.integers(0, ring_size - 1)),
        ring_size=ring_size,
        msg_len=draw(st.integers(1, 0xFFFF)),
        signature=draw(u(16)),
        key=draw(u(64)),
    )
