"""RoCEv2 packets one at a time, without arrays: for frames that come and go alone.

A vector of one row costs nearly as much as one of a hundred. :func:`decode_packet` reads the same fields as
:func:`inaproto.wire.vector.decode_runs` and takes only what a NIC emits; what it does not take may still be
RoCEv2 (Ethernet padding behind it, say), and the vector decoder decides. :class:`PacketBuilder` makes the
same bytes as ``FlowTemplate.build``. ``tests/unit/test_wire_packet.py`` holds them equal.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.units import PSN_MASK, Frames
from inaproto.wire.crc import copy_rows, crc32
from inaproto.wire.icrc import ICRC_BYTES, masked_header
from inaproto.wire.roce import Opcode
from inaproto.wire.run_builder import CopyRows, RunBuilder
from inaproto.wire.vector import BTH_END, EXTENSIONS, FlowTemplate

_HEADERS: Final = struct.Struct(">6s6sHBxH2xHxB2x4s4s2xHH2xBB2xII")
"""What of Ethernet, IPv4 and UDP header and BTH tells one packet from another."""
_RETH: Final = struct.Struct(">QII")
_FIXED: Final = (0x0800, 0x45, 17, 4791)
"""Ethernet type, IP version and header length, protocol, UDP port."""
_FRAGMENTED: Final = 0x3FFF
_IP_OFFSET: Final = 14
_FRAME_BYTES_MIN: Final = BTH_END + ICRC_BYTES
_QP_MASK: Final = 0xFF_FFFF
_ACK_REQUEST: Final = 1 << 31

HEADER_BYTES: Final = {
    opcode: BTH_END + 16 * reth + 4 * imm + 4 * aeth for opcode, (reth, imm, aeth) in EXTENSIONS.items()
}
"""Ethernet header to the last extension header, by opcode."""
ACK_BYTES: Final = HEADER_BYTES[Opcode.RC_ACK] + ICRC_BYTES
"""Length of an acknowledgement."""
_LAYOUTS_MAX: Final = 64


class Packet(NamedTuple):
    """A RoCEv2 packet with nothing behind its ICRC, which has not been verified yet."""

    data: bytes
    """The frame."""
    dst_mac: bytes
    src_mac: bytes
    src_ip: bytes
    dst_ip: bytes
    dest_qp: int
    opcode: int
    psn: int
    ack_request: bool
    header_bytes: int
    """Ethernet header to the last extension header."""
    payload_bytes: int
    """Without pad."""
    pad: int

    @property
    def tail(self) -> memoryview:
        """Payload and pad: what the ICRC covers after the headers."""
        return memoryview(self.data)[self.header_bytes : -ICRC_BYTES]

    def payload(self) -> memoryview:
        return memoryview(self.data)[self.header_bytes : self.header_bytes + self.payload_bytes]

    def extensions(
        self,
    ) -> tuple[tuple[int, int, int] | None, int | None, tuple[int, int] | None]:
        """(RETH, immediate, AETH), as ``RoceRun`` has them."""
        data = self.data
        with_reth, with_imm, with_aeth = EXTENSIONS[self.opcode]
        reth = _RETH.unpack_from(data, BTH_END) if with_reth else None
        imm = int.from_bytes(data[self.header_bytes - 4 : self.header_bytes], "big") if with_imm else None
        aeth = (data[BTH_END], int.from_bytes(data[BTH_END + 1 : BTH_END + 4], "big")) if with_aeth else None
        return reth, imm, aeth

    def intact(self) -> bool:
        """Whether the packet carries the right ICRC."""
        return self.header_share() is not None

    def header_share(self) -> int | None:
        """Share of the headers in the ICRC, as ``RoceRun.header_crc`` has it; None if the ICRC is wrong."""
        data, header_bytes = self.data, self.header_bytes
        tail = memoryview(data)[header_bytes:-ICRC_BYTES]
        stored = int.from_bytes(data[-ICRC_BYTES:], "little")
        if crc32(tail, crc32(masked_header(data, header_bytes))) != stored:
            return None
        return stored ^ crc32(tail)


def decode_packet(data: bytes) -> Packet | None:
    """The packet that a whole frame is; None leaves it to the vector decoder. Never raises."""
    length = len(data)
    if length < _FRAME_BYTES_MIN:
        return None
    (
        dst_mac,
        src_mac,
        ethertype,
        version,
        total,
        fragment,
        protocol,
        src_ip,
        dst_ip,
        udp_port,
        udp_length,
        opcode,
        flags,
        qp,
        word,
    ) = _HEADERS.unpack_from(data)
    header_bytes = HEADER_BYTES.get(opcode)
    if (
        header_bytes is None
        or (ethertype, version, protocol, udp_port) != _FIXED
        or fragment & _FRAGMENTED
        or total != length - _IP_OFFSET
        or udp_length != total - 20
    ):
        return None
    pad = flags >> 4 & 3
    payload_bytes = length - ICRC_BYTES - header_bytes - pad
    if payload_bytes < 0:
        return None
    return Packet(
        data,
        dst_mac,
        src_mac,
        src_ip,
        dst_ip,
        qp & _QP_MASK,
        opcode,
        word & PSN_MASK,
        word >= _ACK_REQUEST,
        header_bytes,
        payload_bytes,
        pad,
    )


def ack_key(data: bytes) -> bytes:
    """All of a frame of ``ACK_BYTES`` that :func:`decode_packet` looks at, but for its PSN.

    What has the key of an acknowledgement is one, between the same two.
    """
    return data[:18] + data[20:24] + data[26:50]


class _Layout(NamedTuple):
    """What all packets of one opcode and length have in common, cut at the fields that differ."""

    before_id: bytes
    before_checksum: bytes
    before_psn: bytes
    masked_before_id: bytes
    """As the ICRC sees it: masked, behind its eight ones."""
    masked_before_psn: bytes
    word_sum: int
    """Sum of the IP header's words, less id and checksum."""
    pad: bytes


class PacketBuilder:
    """Builds packets of one flow, a few at a time."""

    def __init__(self, flow: FlowTemplate, copy: CopyRows = copy_rows) -> None:
        """``copy``: see :class:`RunBuilder`."""
        self.flow: Final = flow
        self._copy = copy
        self._layouts: dict[tuple[int, int], _Layout] = {}
        self._runs: dict[tuple[int, int], RunBuilder] = {}

    def build(
        self,
        *,
        opcode: int,
        psn: int,
        ack_requests: Sequence[bool],
        ip_id: int,
        payload: memoryview | bytes,
        reth: tuple[int, int, int] | None = None,
        imm: int | None = None,
        aeth: tuple[int, int] | None = None,
    ) -> Frames:
        """Sealed frames, one for each of ``ack_requests``; PSNs and IP ids count up from those given.

        ``payload`` is that of all of them, in equal parts.
        """
        n = len(ack_requests)
        payload_bytes = len(payload) // n
        layout = self._layouts.get((opcode, payload_bytes))
        if layout is None:
            layout = self._lay_out(opcode, payload_bytes)
        before_id, before_checksum, before_psn, masked_before_id, masked_before_psn, word_sum, pad = layout
        extension = b"" if reth is None else _RETH.pack(*reth)
        if imm is not None:
            extension += imm.to_bytes(4, "big")
        if aeth is not None:
            extension += (aeth[0] << 24 | aeth[1]).to_bytes(4, "big")
        parts: list[bytes | memoryview] = []
        for row, asks in enumerate(ack_requests):
            number = (ip_id + row) & 0xFFFF
            total = word_sum + number
            total = (total & 0xFFFF) + (total >> 16)
            total = (total & 0xFFFF) + (total >> 16)
            ident = number.to_bytes(2, "big")
            word = (((psn + row) & PSN_MASK) | (_ACK_REQUEST if asks else 0)).to_bytes(4, "big") + extension
            tail = payload if n == 1 else payload[row * payload_bytes : (row + 1) * payload_bytes]
            if pad:
                tail = bytes(tail) + pad
            icrc = crc32(tail, crc32(masked_before_id + ident + masked_before_psn + word))
            parts += (
                before_id,
                ident,
                before_checksum,
                (~total & 0xFFFF).to_bytes(2, "big"),
                before_psn,
                word,
                tail,
                icrc.to_bytes(ICRC_BYTES, "little"),
            )
        data = bytearray().join(parts)
        return np.ndarray((n, len(data) // n), np.uint8, data)

    def build_run(
        self, opcode: int, *, psn: int, asking: Sequence[int], ip_id: int, payload: NDArray[np.uint8]
    ) -> Frames:
        """Sealed frames of an opcode without extension headers, with ``payload``, uint8 (n, payload_bytes).

        Rows ``asking`` ask for an ACK; PSNs and IP ids count up from those given.
        """
        n, payload_bytes = payload.shape
        frames: Frames | None = None
        if not payload_bytes & 3:
            run = self._runs.get((opcode, payload_bytes))
            if run is None:
                if len(self._runs) >= _LAYOUTS_MAX:
                    self._runs.clear()
                run = self._runs[opcode, payload_bytes] = RunBuilder(self.flow, opcode, payload_bytes)
            frames = run.build(psn=psn, asking=asking, ip_id=ip_id, payload=payload, copy=self._copy)
        if frames is None:
            asks = np.zeros(n, np.bool_)
            asks[asking] = True
            psns = psn + np.arange(n)
            frames = self.flow.build(opcode=opcode, psns=psns, ack_request=asks, ip_id=ip_id, payload=payload)
        return frames

    def _lay_out(self, opcode: int, payload_bytes: int) -> _Layout:
        with_reth, with_imm, with_aeth = EXTENSIONS[opcode]
        header = self.flow.header(
            opcode,
            payload_bytes,
            reth=(0, 0, 0) if with_reth else None,
            imm=0 if with_imm else None,
            aeth=(0, 0) if with_aeth else None,
        )
        masked = masked_header(header, BTH_END)
        ones = len(masked) - (BTH_END - _IP_OFFSET)
        if len(self._layouts) >= _LAYOUTS_MAX:  # lengths of last packets can be anything
            self._layouts.clear()
        layout = self._layouts[opcode, payload_bytes] = _Layout(
            before_id=header[:18],
            before_checksum=header[20:24],
            before_psn=header[26:50],
            masked_before_id=masked[: ones + 18 - _IP_OFFSET],
            masked_before_psn=masked[ones + 20 - _IP_OFFSET : ones + 50 - _IP_OFFSET],
            word_sum=sum(struct.unpack_from(">10H", header, _IP_OFFSET)),
            pad=bytes(-payload_bytes % 4),
        )
        return layout
