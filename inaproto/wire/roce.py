"""RoCEv2 packets, one at a time: BTH, RETH, IMM, AETH and the whole frame from Ethernet to ICRC.

The scalar form for people, tests and rare packets; :mod:`inaproto.wire.vector` is the data path and
decodes the same frames to the same fields. Source: InfiniBand Architecture Specification, sections
9.2-9.6 and annex A17; checked against captures of a kernel's RoCE stack, scapy and tshark.

What counts as a RoCEv2 packet here: IPv4 without options, not a fragment; UDP to port 4791 whose
length is that of the IP payload, so that there is one place where the ICRC can lie; an opcode of the
reliable connection service without reads, atomics and invalidation; room for its extension headers,
the pad and the ICRC. Bytes after the IP datagram are Ethernet padding and ignored. All else is a
``DecodeError``, and the accelerator switches it like any other frame.

Invariant: ``decode_frame(f).encode_frame() == f`` for every frame that decodes, has right IP checksum
and ICRC, no Ethernet padding, and as many pad bytes as its payload needs, all zero.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Self

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire import icrc as invariant_crc
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES, ETHERTYPE_IPV4, EthernetHeader
from inaproto.wire.ipv4 import IPV4_HEADER_BYTES, PROTOCOL_UDP, Ipv4Header, ip_text
from inaproto.wire.udp import ROCE_PORT, UDP_HEADER_BYTES, UdpHeader

BTH_BYTES: Final = 12
RETH_BYTES: Final = 16
IMM_BYTES: Final = 4
AETH_BYTES: Final = 4
ICRC_BYTES: Final = 4
PKEY_DEFAULT: Final = 0xFFFF

_BTH: Final = struct.Struct(">BBHII")
_RETH: Final = struct.Struct(">QII")

Bytes = bytes | bytearray | memoryview


class Opcode(IntEnum):
    """BTH opcodes of the reliable connection service that are understood here."""

    RC_SEND_FIRST = 0x00
    RC_SEND_MIDDLE = 0x01
    RC_SEND_LAST = 0x02
    RC_SEND_LAST_IMM = 0x03
    RC_SEND_ONLY = 0x04
    RC_SEND_ONLY_IMM = 0x05
    RC_WRITE_FIRST = 0x06
    RC_WRITE_MIDDLE = 0x07
    RC_WRITE_LAST = 0x08
    RC_WRITE_LAST_IMM = 0x09
    RC_WRITE_ONLY = 0x0A
    RC_WRITE_ONLY_IMM = 0x0B
    RC_ACK = 0x11


_WITH_RETH: Final = frozenset({Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM})
_WITH_IMM: Final = frozenset(
    {Opcode.RC_SEND_LAST_IMM, Opcode.RC_SEND_ONLY_IMM, Opcode.RC_WRITE_LAST_IMM, Opcode.RC_WRITE_ONLY_IMM}
)
_OPCODES: Final = {int(member): member for member in Opcode}
_EXTENSION_BYTES: Final = {
    int(opcode): RETH_BYTES * (opcode in _WITH_RETH)
    + IMM_BYTES * (opcode in _WITH_IMM)
    + AETH_BYTES * (opcode == Opcode.RC_ACK)
    for opcode in Opcode
}


def extension_bytes(opcode: int) -> int:
    """Bytes of the extension headers after the BTH. Raises ``LocalMisuse`` for no member of ``Opcode``."""
    size = _EXTENSION_BYTES.get(opcode)
    if size is None:
        raise LocalMisuse(f"opcode {opcode:#04x} is not handled")
    return size


def opcode_name(opcode: int) -> str:
    known = _OPCODES.get(opcode)
    return known.name if known is not None else f"opcode {opcode:#04x}"


def _check_ranges(layer: str, record: object, ranges: tuple[tuple[str, int], ...]) -> None:
    for name, bits in ranges:
        value = getattr(record, name)
        if not 0 <= value < 1 << bits:
            raise LocalMisuse(f"{layer}: {name} = {value} does not fit {bits} bits")


def _need(layer: str, data: Bytes, nbytes: int) -> None:
    if len(data) < nbytes:
        raise DecodeError(layer, f"{len(data)} bytes, needs {nbytes}", len(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bth:
    """Base transport header. Any opcode: whether it is understood is for ``RocePacket`` to say."""

    opcode: int
    dest_qp: int
    psn: int
    ack_request: bool = False
    pad: int = 0
    """Bytes added to the payload to make it a multiple of 4."""
    solicited: bool = False
    migration: bool = False
    version: int = 0
    pkey: int = PKEY_DEFAULT
    congestion: int = 0
    """FECN, BECN and 6 reserved bits: the byte that the ICRC leaves out."""
    reserved: int = 0
    """The 7 bits beside AckReq."""

    def encode(self) -> bytes:
        _check_ranges("BTH", self, _BTH_RANGES)
        return _BTH.pack(
            self.opcode,
            self.solicited << 7 | self.migration << 6 | self.pad << 4 | self.version,
            self.pkey,
            self.congestion << 24 | self.dest_qp,
            self.ack_request << 31 | self.reserved << 24 | self.psn,
        )

    @classmethod
    def decode(cls, data: Bytes) -> Self:
        _need("BTH", data, BTH_BYTES)
        opcode, flags, pkey, qp_word, psn_word = _BTH.unpack_from(data)
        return cls(
            opcode=opcode,
            dest_qp=qp_word & 0xFF_FFFF,
            psn=psn_word & 0xFF_FFFF,
            ack_request=bool(psn_word >> 31),
            pad=flags >> 4 & 3,
            solicited=bool(flags >> 7),
            migration=bool(flags >> 6 & 1),
            version=flags & 15,
            pkey=pkey,
            congestion=qp_word >> 24,
            reserved=psn_word >> 24 & 0x7F,
        )

    def __str__(self) -> str:
        ack = " ackreq" if self.ack_request else ""
        return f"{opcode_name(self.opcode)} qp {self.dest_qp:#x} psn {self.psn:#x}{ack}"


_BTH_RANGES: Final = (
    ("opcode", 8),
    ("dest_qp", 24),
    ("psn", 24),
    ("ack_request", 1),
    ("pad", 2),
    ("solicited", 1),
    ("migration", 1),
    ("version", 4),
    ("pkey", 16),
    ("congestion", 8),
    ("reserved", 7),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reth:
    """RDMA extended transport header."""

    va: int
    rkey: int
    dma_length: int
    """Length of the whole message, in bytes."""

    def encode(self) -> bytes:
        _check_ranges("RETH", self, (("va", 64), ("rkey", 32), ("dma_length", 32)))
        return _RETH.pack(self.va, self.rkey, self.dma_length)

    @classmethod
    def decode(cls, data: Bytes) -> Self:
        _need("RETH", data, RETH_BYTES)
        va, rkey, dma_length = _RETH.unpack_from(data)
        return cls(va=va, rkey=rkey, dma_length=dma_length)

    def __str__(self) -> str:
        return f"va {self.va:#x} rkey {self.rkey:#x} length {self.dma_length}"


@dataclass(frozen=True, slots=True)
class Imm:
    """Immediate data."""

    value: int

    def encode(self) -> bytes:
        _check_ranges("IMM", self, (("value", 32),))
        return self.value.to_bytes(4, "big")

    @classmethod
    def decode(cls, data: Bytes) -> Self:
        _need("IMM", data, IMM_BYTES)
        return cls(int.from_bytes(data[:IMM_BYTES], "big"))

    def __str__(self) -> str:
        return f"imm {self.value}"


class NakCode(IntEnum):
    """The low 5 bits of a NAK's syndrome."""

    PSN_SEQUENCE_ERROR = 0
    INVALID_REQUEST = 1
    REMOTE_ACCESS_ERROR = 2
    REMOTE_OPERATIONAL_ERROR = 3
    INVALID_RD_REQUEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Aeth:
    """Acknowledge extended transport header."""

    syndrome: int
    msn: int
    """Message sequence number: how many messages the responder has completed, modulo 2**24."""

    @property
    def is_ack(self) -> bool:
        return self.syndrome >> 5 & 3 == 0

    @property
    def is_rnr(self) -> bool:
        """Receiver not ready; ``value`` is the code of the delay that it asks for."""
        return self.syndrome >> 5 & 3 == 1

    @property
    def is_nak(self) -> bool:
        return self.syndrome >> 5 & 3 == 3

    @property
    def value(self) -> int:
        """Credits of an ACK, timer of an RNR NAK, code of a NAK."""
        return self.syndrome & 0x1F

    def encode(self) -> bytes:
        _check_ranges("AETH", self, (("syndrome", 8), ("msn", 24)))
        return (self.syndrome << 24 | self.msn).to_bytes(4, "big")

    @classmethod
    def decode(cls, data: Bytes) -> Self:
        _need("AETH", data, AETH_BYTES)
        return cls(syndrome=data[0], msn=int.from_bytes(data[1:AETH_BYTES], "big"))

    def __str__(self) -> str:
        if self.is_ack:
            kind = "ack"
        elif self.is_rnr:
            kind = f"rnr timer {self.value}"
        elif self.is_nak:
            kind = f"nak {_NAK_NAMES.get(self.value, self.value)}"
        else:
            kind = f"reserved syndrome {self.syndrome:#04x}"
        return f"{kind} msn {self.msn}"


_NAK_NAMES: Final = {int(code): code.name.lower() for code in NakCode}
SYNDROME_ACK: Final = 0x1F
"""ACK that grants no credits: no limit."""
SYNDROME_NAK: Final = 0x60
"""Syndrome of a NAK, to be or-ed with a ``NakCode``."""
SYNDROME_RNR: Final = 0x20
"""Syndrome of an RNR NAK, to be or-ed with the code of the delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocePacket:
    """One whole frame. Length fields, pad and checksums are derived when it is encoded."""

    eth: EthernetHeader
    ip: Ipv4Header
    udp: UdpHeader
    bth: Bth
    reth: Reth | None = None
    imm: Imm | None = None
    aeth: Aeth | None = None
    payload: bytes = b""
    """Without pad."""
    icrc: int = 0
    """As received; ``encode_frame`` makes it anew."""

    @classmethod
    def build(
        cls,
        *,
        src_mac: bytes,
        dst_mac: bytes,
        src_ip: bytes,
        dst_ip: bytes,
        udp_source_port: int,
        bth: Bth,
        reth: Reth | None = None,
        imm: Imm | None = None,
        aeth: Aeth | None = None,
        payload: bytes = b"",
        ip_id: int = 0,
        ttl: int = 64,
    ) -> Self:
        """A packet as a kernel's RoCE stack emits it, lengths, pad and ICRC filled in."""
        packet = cls(
            eth=EthernetHeader(dst=dst_mac, src=src_mac),
            ip=Ipv4Header(src=src_ip, dst=dst_ip, total_length=0, identification=ip_id, ttl=ttl),
            udp=UdpHeader(src_port=udp_source_port, length=0),
            bth=bth,
            reth=reth,
            imm=imm,
            aeth=aeth,
            payload=payload,
        )
        return cls.decode_frame(packet.encode_frame())

    @property
    def pad(self) -> int:
        return self.bth.pad

    @property
    def opcode(self) -> int:
        return self.bth.opcode

    def encode_frame(self) -> bytes:
        """The frame, sealed: lengths, pad, IP checksum and ICRC follow from the content."""
        self._check_extensions()
        pad = -len(self.payload) % 4
        extension = b"".join(part.encode() for part in (self.reth, self.imm, self.aeth) if part is not None)
        udp_length = UDP_HEADER_BYTES + BTH_BYTES + len(extension) + len(self.payload) + pad + ICRC_BYTES
        frame = bytearray(
            self.eth.encode()
            + replace(self.ip, total_length=IPV4_HEADER_BYTES + udp_length).encode()
            + replace(self.udp, length=udp_length).encode()
            + replace(self.bth, pad=pad).encode()
            + extension
            + self.payload
            + bytes(pad + ICRC_BYTES)
        )
        invariant_crc.seal(frame)
        return bytes(frame)

    def _check_extensions(self) -> None:
        opcode = self.bth.opcode
        extension_bytes(opcode)
        for name, present, wanted in (
            ("RETH", self.reth is not None, opcode in _WITH_RETH),
            ("IMM", self.imm is not None, opcode in _WITH_IMM),
            ("AETH", self.aeth is not None, opcode == Opcode.RC_ACK),
        ):
            if present != wanted:
                raise LocalMisuse(f"{opcode_name(opcode)} {'needs' if wanted else 'has no'} {name}")
        if self.eth.ethertype != ETHERTYPE_IPV4 or self.ip.protocol != PROTOCOL_UDP:
            raise LocalMisuse("RoCEv2 needs ethertype IPv4 and protocol UDP")
        if self.ip.options or self.ip.is_fragment or self.udp.dst_port != ROCE_PORT:
            raise LocalMisuse(f"RoCEv2 goes without IP options and fragments, to UDP port {ROCE_PORT}")

    @classmethod
    def decode_frame(cls, frame: Bytes, *, verify: bool = False) -> Self:
        """Take a frame (no FCS) apart; with ``verify``, the IP checksum and the ICRC must be right."""
        eth = EthernetHeader.decode(frame)
        if eth.ethertype != ETHERTYPE_IPV4:
            raise DecodeError("RoCEv2", f"ethertype {eth.ethertype:#06x} is not IPv4", 12)
        view = memoryview(frame)
        at = ETHERNET_HEADER_BYTES
        ip = Ipv4Header.decode(view[at:], verify_checksum=verify)
        if ip.options or ip.is_fragment or ip.protocol != PROTOCOL_UDP:
            raise DecodeError("RoCEv2", "IP options, a fragment, or not UDP", at)
        end = at + ip.total_length
        at += IPV4_HEADER_BYTES
        udp = UdpHeader.decode(view[at:end])
        if udp.dst_port != ROCE_PORT:
            raise DecodeError("RoCEv2", f"UDP port {udp.dst_port} is not {ROCE_PORT}", at + 2)
        if at + udp.length != end:
            raise DecodeError("RoCEv2", f"UDP length {udp.length} in {end - at} bytes of IP payload", at + 4)
        at += UDP_HEADER_BYTES
        bth = Bth.decode(view[at:end])
        if bth.opcode not in _OPCODES:
            raise DecodeError("RoCEv2", f"{opcode_name(bth.opcode)} is not handled", at)
        at += BTH_BYTES
        payload_end = end - ICRC_BYTES - bth.pad
        payload_at = at + extension_bytes(bth.opcode)
        if payload_end < payload_at:
            raise DecodeError(
                "RoCEv2",
                f"{end - at} bytes after the BTH of {opcode_name(bth.opcode)}, "
                f"needs {payload_at - at + bth.pad + ICRC_BYTES}",
                at,
            )
        reth, imm, aeth = _decode_extensions(bth.opcode, view[at:payload_at])
        if verify and not invariant_crc.verify(frame):
            raise DecodeError("RoCEv2", "wrong ICRC", end - ICRC_BYTES)
        return cls(
            eth=eth,
            ip=ip,
            udp=udp,
            bth=bth,
            reth=reth,
            imm=imm,
            aeth=aeth,
            payload=bytes(view[payload_at:payload_end]),
            icrc=int.from_bytes(view[end - ICRC_BYTES : end], "little"),
        )

    def __str__(self) -> str:
        parts = [f"{ip_text(self.ip.src)} > {ip_text(self.ip.dst)} {self.bth}"]
        parts += [str(part) for part in (self.reth, self.imm, self.aeth) if part is not None]
        if self.payload:
            parts.append(f"payload {len(self.payload)}" + (f" pad {self.pad}" if self.pad else ""))
        return ", ".join(parts)


def _decode_extensions(opcode: int, data: memoryview) -> tuple[Reth | None, Imm | None, Aeth | None]:
    """Extension headers of a known opcode; ``data`` is exactly them."""
    reth = Reth.decode(data) if opcode in _WITH_RETH else None
    imm = Imm.decode(data[RETH_BYTES if reth is not None else 0 :]) if opcode in _WITH_IMM else None
    aeth = Aeth.decode(data) if opcode == Opcode.RC_ACK else None
    return reth, imm, aeth
