"""Vectors of RoCEv2 packets: many frames of one length decoded, checked and built at once.

A *run* is ``n`` frames that agree in everything except the IP identification and checksum, PSN,
AckReq, payload and ICRC: what a NIC emits for the middle of a message. Python then pays per run, not
per packet. The scalar codec in :mod:`inaproto.wire.roce` decodes the same fields of one frame;
tests hold the two equal.

ICRC of a run: the header's share is computed for the first row and corrected by one table look-up
for each covered header byte that varies between rows; only payloads go through the CRC. The header's
share (``header_crc``) is kept: a device that replaces the payload reseals the packet with
``header_crc ^ crc(new payload)``.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.units import PSN_MASK, Frames
from inaproto.wire.crc import byte_table, crc32, crc_rows, shift
from inaproto.wire.icrc import ICRC_BYTES, MASKED_OFFSETS, masked_header

BTH_END: Final = 54
_ETHERTYPE_IPV4: Final = b"\x08\x00"
_ROCE_PORT: Final = 4791

_RETH: Final = 16
_IMM: Final = 4
_AETH: Final = 4
# Extension headers by opcode of the reliable connection service: (RETH, IMM, AETH). An opcode that
# is absent is not decoded as a run; its frames pass as plain ones.
EXTENSIONS: Final[dict[int, tuple[bool, bool, bool]]] = {
    0x00: (False, False, False),  # SEND_FIRST
    0x01: (False, False, False),  # SEND_MIDDLE
    0x02: (False, False, False),  # SEND_LAST
    0x03: (False, True, False),  # SEND_LAST_IMM
    0x04: (False, False, False),  # SEND_ONLY
    0x05: (False, True, False),  # SEND_ONLY_IMM
    0x06: (True, False, False),  # WRITE_FIRST
    0x07: (False, False, False),  # WRITE_MIDDLE
    0x08: (False, False, False),  # WRITE_LAST
    0x09: (False, True, False),  # WRITE_LAST_IMM
    0x0A: (True, False, False),  # WRITE_ONLY
    0x0B: (True, True, False),  # WRITE_ONLY_IMM
    0x11: (False, False, True),  # ACK
}

# Columns in which all rows of a run agree. Time to live, type of service, UDP source port and the
# masked fields may differ without being another flow.
_KEY_COLUMNS: Final = np.array(
    [*range(15), 16, 17, 20, 21, 23, *range(26, 34), *range(36, 40), *range(42, 46), *range(47, 50)]
)
HEADER_COLUMNS: Final = 56
"""Bytes of a frame that are looked at to split runs: up to the BTH's end, in whole 8-byte words."""
_MIX: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIX_2: Final = np.uint64(0xC2B2_AE3D_27D4_EB4F)
_FLOW_KEY: Final = np.zeros(HEADER_COLUMNS, np.uint8)
_FLOW_KEY[_KEY_COLUMNS] = 0xFF
# What says which packets of a connection follow each other: not the source address, nor don't-fragment,
# flags and partition. Compiled kernels ask for no more either (inaproto/core/kernels/nic.c), so both find the
# same runs, and one ACK covers the same packets.
_CONNECTION_KEY: Final = _FLOW_KEY.copy()
_CONNECTION_KEY[[*range(6, 12), 44, 45]] = 0
_CONNECTION_KEY[[20, 43]] = 0x3F, 0x30
_COVERED: Final = np.ones(BTH_END + _RETH + _IMM, np.bool_)
_COVERED[:14] = False
_COVERED[list(MASKED_OFFSETS)] = False


@dataclass(slots=True)
class PlainRun:
    """Frames that are no well-formed RoCEv2 packets; ``why`` says what is missing.

    All rows have the same MAC addresses, empty when the frame is too short to have any; by connection the
    source is that of the first.
    """

    frames: Frames
    dst_mac: bytes
    src_mac: bytes
    why: str


@dataclass(slots=True)
class RoceRun:
    """``n`` RoCEv2 packets of one flow, opcode and length (see the module)."""

    frames: Frames
    opcode: int
    header_bytes: int
    """Ethernet header to the last extension header."""
    payload_bytes: int
    """Without pad."""
    pad: int
    dest_qp: int
    src_ip: bytes
    dst_ip: bytes
    src_mac: bytes
    dst_mac: bytes
    psn: NDArray[np.int64]
    """int64, shape (n,)."""
    reth: tuple[int, int, int] | None = None
    """(virtual address, rkey, DMA length of the whole message)"""
    imm: int | None = None
    aeth: tuple[int, int] | None = None
    """(syndrome, message sequence number)"""
    headers: NDArray[np.uint8] | None = field(default=None, repr=False)
    """Contiguous copy of the frames up to the end of the BTH, if there is one: uint8 (n, 56)."""
    varying: NDArray[np.bool_] | None = field(default=None, repr=False)
    """Columns below the end of the BTH in which rows differ, where known: bool (54,)."""
    _header_crc: NDArray[np.uint32] | None = field(default=None, repr=False)

    @property
    def ack_request(self) -> NDArray[np.bool_]:
        """Mask of the packets that ask for an ACK: bool (n,)."""
        asked: NDArray[np.bool_] = self.frames[:, 50] >= 0x80
        return asked

    @property
    def headers_view(self) -> NDArray[np.uint8]:
        """The headers up to the BTH's end, from the contiguous copy where there is one: uint8 (n, >= 54)."""
        return self.frames if self.headers is None else self.headers

    @property
    def tail(self) -> NDArray[np.uint8]:
        """Payload and pad: what the ICRC covers after the headers; uint8 (n, payload_bytes + pad)."""
        return self.frames[:, self.header_bytes : self.header_bytes + self.payload_bytes + self.pad]

    def payload(self) -> NDArray[np.uint8]:
        """uint8, shape (n, payload_bytes), a view."""
        return self.frames[:, self.header_bytes : self.header_bytes + self.payload_bytes]

    @property
    def header_crc(self) -> NDArray[np.uint32]:
        """Share of the headers in each packet's ICRC: uint32 (n,)."""
        if self._header_crc is None:
            source = self.frames
            if self.headers is not None and self.header_bytes == BTH_END:
                source = self.headers
            self._header_crc = header_share(
                source, self.header_bytes, self.payload_bytes + self.pad, self.varying
            )
        return self._header_crc

    @property
    def icrc(self) -> NDArray[np.uint32]:
        """The ICRC as received: uint32 (n,)."""
        end = self.header_bytes + self.payload_bytes + self.pad
        stored: NDArray[np.uint32] = self.frames[:, end : end + ICRC_BYTES].view("<u4")[:, 0]
        return stored

    def select(self, rows: NDArray[np.bool_]) -> RoceRun:
        """The run that only the packets marked in ``rows``, bool (n,), make."""
        share = None if self._header_crc is None else self._header_crc[rows]
        return replace(
            self,
            frames=self.frames[rows],
            psn=self.psn[rows],
            headers=None,
            varying=None,
            _header_crc=share,
        )

    def intact(self) -> bool:
        """Whether every packet carries the right ICRC; quicker than :meth:`verify` for a single one."""
        if len(self.frames) > 1:
            return bool(self.verify().all())
        end = self.header_bytes + self.payload_bytes + self.pad
        row = memoryview(self.frames[0])
        tail = crc32(row[self.header_bytes : end])
        header = shift(crc32(masked_header(row, self.header_bytes)), end - self.header_bytes)
        self._header_crc = np.array([header], np.uint32)
        return (header ^ tail) == int.from_bytes(row[end : end + ICRC_BYTES], "little")

    def verify(self, crc: Callable[[NDArray[np.uint8]], NDArray[np.uint32]] = crc_rows) -> NDArray[np.bool_]:
        """Mask of the packets that carry the right ICRC: bool (n,). ``crc`` does what ``crc_rows`` does."""
        right: NDArray[np.bool_] = (crc(self.tail) ^ self.header_crc) == self.icrc
        return right


def header_share(
    frames: Frames, header_bytes: int, tail_bytes: int, varying: NDArray[np.bool_] | None = None
) -> NDArray[np.uint32]:
    """Share of the first ``header_bytes`` of each frame in its ICRC, uint32 (n,).

    The ICRC is this XOR the CRC-32 (start value 0) of the ``tail_bytes`` that follow. ``varying``
    marks the columns in which rows differ, as far as it reaches; the columns behind it are equal.
    """
    n = len(frames)
    first = shift(crc32(masked_header(frames[0, :header_bytes].tobytes(), header_bytes)), tail_bytes)
    share = np.full(n, first, np.uint32)
    if n == 1:
        return share
    if varying is None:
        varying = (frames[:, :header_bytes] != frames[0, :header_bytes]).any(axis=0)
    for column in np.flatnonzero(varying & _COVERED[: len(varying)]).tolist():
        table = byte_table(header_bytes - 1 - column + tail_bytes)
        values = frames[:, column]
        share ^= table[values ^ values[0]]
    return share


def decode_runs(frames: Frames, *, by_connection: bool = False) -> Iterator[RoceRun | PlainRun]:
    """Split frames of one length into runs, in order. Never raises: what is not RoCEv2 is a ``PlainRun``.

    ``by_connection``: connections one after the other, each in order, so that those whose packets alternate
    have runs too. Rows may then differ in what no receiver of a connection looks at: source address,
    don't-fragment, partition and flags.
    """
    n, length = frames.shape
    if n == 0:
        return
    if length < 14:
        yield PlainRun(frames, b"", b"", f"{length} bytes are no Ethernet frame")
        return
    if n == 1:
        yield _decode_uniform(frames)
        return
    headers = header_columns(frames)
    words = headers.view(np.uint64)
    differs = np.bitwise_or.reduce(words ^ words[0], axis=0)
    key = (_CONNECTION_KEY if by_connection else _FLOW_KEY).view(np.uint64)
    if not (differs & key).any():
        run = _decode_uniform(frames, headers)
        if isinstance(run, RoceRun):
            if run.header_bytes > BTH_END:
                yield from _split_extensions(run)
                return
            run.varying = differs.view(np.uint8)[:BTH_END] != 0
        yield run
        return
    if by_connection:
        order = _connection_by_connection(headers)
        frames, words = frames[order], words[order]
    picked = words & key
    changes = np.flatnonzero((picked[1:] != picked[:-1]).any(axis=1)) + 1
    bounds = [0, *changes.tolist(), n]
    for begin, end in itertools.pairwise(bounds):
        run = _decode_uniform(frames[begin:end])
        if end - begin > 1 and isinstance(run, RoceRun) and run.header_bytes > BTH_END:
            yield from _split_extensions(run)
        else:
            yield run


def _connection_by_connection(headers: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Rows in the order of their connections' first ones, int64 (n,): a connection's are together, in order.

    Two connections might be taken for one: then their rows alternate as they came.
    """
    addresses = headers[:, 26:34].view(np.uint64)[:, 0]
    queue_pairs = (headers[:, 46:50].view(">u4")[:, 0] & 0xFF_FFFF).astype(np.uint64)
    _, first, which = np.unique(
        addresses * _MIX + queue_pairs * _MIX_2, return_index=True, return_inverse=True
    )
    return np.argsort(first[which], kind="stable")


def header_columns(frames: Frames) -> NDArray[np.uint8]:
    """Contiguous copy of the first columns, uint8 (n, 56): one pass over cold rows, then cache hits.

    What a frame is too short for, or what lies behind the BTH, is zero.
    """
    headers = np.zeros((len(frames), HEADER_COLUMNS), np.uint8)
    width = min(frames.shape[1], BTH_END)
    headers[:, :width] = frames[:, :width]
    return headers


def _split_extensions(run: RoceRun) -> Iterator[RoceRun | PlainRun]:
    """Rows with extension headers share them in a run: cut where they change."""
    extensions = run.frames[:, BTH_END : run.header_bytes]
    changes = np.flatnonzero((extensions[1:] != extensions[:-1]).any(axis=1)) + 1
    bounds = [0, *changes.tolist(), len(extensions)]
    for begin, end in itertools.pairwise(bounds):
        yield _decode_uniform(run.frames[begin:end])


def _decode_uniform(frames: Frames, headers: NDArray[np.uint8] | None = None) -> RoceRun | PlainRun:
    """Decode rows that agree in all key columns, from the first row. ``headers`` may hold their copy."""
    head = frames[0, :74].tobytes()
    length = frames.shape[1]
    dst_mac, src_mac = head[0:6], head[6:12]

    def plain(why: str) -> PlainRun:
        return PlainRun(frames, dst_mac, src_mac, why)

    if head[12:14] != _ETHERTYPE_IPV4:
        return plain("not IPv4")
    if length < BTH_END + ICRC_BYTES or head[14] != 0x45:
        return plain("too short for RoCEv2, or IP options")
    if head[23] != 17 or head[20] & 0x3F or head[21]:
        return plain("not UDP, or a fragment")
    total, udp_port, udp_length = struct.unpack_from(">H18xHH", head, 16)
    if udp_port != _ROCE_PORT:
        return plain("not the RoCEv2 port")
    end = 14 + total
    if end > length or udp_length != total - 20 or end < BTH_END + ICRC_BYTES:
        return plain("IP or UDP length does not fit the frame")
    opcode, flags = head[42], head[43]
    kinds = EXTENSIONS.get(opcode)
    if kinds is None:
        return plain(f"opcode {opcode:#04x} is not handled")
    has_reth, has_imm, has_aeth = kinds
    header_bytes = BTH_END + _RETH * has_reth + _IMM * has_imm + _AETH * has_aeth
    pad = (flags >> 4) & 3
    payload_bytes = end - ICRC_BYTES - header_bytes - pad
    if payload_bytes < 0:
        return plain("shorter than its extension headers and pad")
    if len(frames) == 1:
        psn = np.array([int.from_bytes(head[51:54], "big")])
    else:
        words = (frames if headers is None else headers)[:, 50:54].view(">u4")[:, 0].astype(np.int64)
        words &= PSN_MASK
        psn = words
    run = RoceRun(
        frames=frames,
        headers=headers,
        opcode=opcode,
        header_bytes=header_bytes,
        payload_bytes=payload_bytes,
        pad=pad,
        dest_qp=int.from_bytes(head[47:50], "big"),
        src_ip=head[26:30],
        dst_ip=head[30:34],
        src_mac=src_mac,
        dst_mac=dst_mac,
        psn=psn,
    )
    offset = BTH_END
    if has_reth:
        run.reth = struct.unpack_from(">QII", head, offset)
        offset += _RETH
    if has_imm:
        run.imm = int.from_bytes(head[offset : offset + _IMM], "big")
    if has_aeth:
        word = int.from_bytes(head[offset : offset + _AETH], "big")
        run.aeth = (word >> 24, word & 0xFF_FFFF)
    return run


@dataclass(frozen=True, slots=True)
class FlowTemplate:
    """Headers of one direction of a reliable connection; builds its packets in vectors.

    Frames are as a kernel's RoCE stack emits them: no IP options, don't-fragment, TTL 64, UDP
    checksum 0, P_Key 0xffff.
    """

    src_mac: bytes
    dst_mac: bytes
    src_ip: bytes
    dst_ip: bytes
    udp_source_port: int
    dest_qp: int
    ttl: int = 64
    tos: int = 0

    def header(
        self,
        opcode: int,
        payload_bytes: int,
        *,
        reth: tuple[int, int, int] | None = None,
        imm: int | None = None,
        aeth: tuple[int, int] | None = None,
    ) -> bytes:
        """Headers with IP id, IP checksum and PSN zero; length fields for ``payload_bytes`` plus pad."""
        extension = b""
        if reth is not None:
            extension += struct.pack(">QII", *reth)
        if imm is not None:
            extension += imm.to_bytes(4, "big")
        if aeth is not None:
            extension += (aeth[0] << 24 | aeth[1]).to_bytes(4, "big")
        pad = -payload_bytes % 4
        udp_length = 8 + 12 + len(extension) + payload_bytes + pad + ICRC_BYTES
        return (
            self.dst_mac
            + self.src_mac
            + _ETHERTYPE_IPV4
            + struct.pack(
                ">BBHHHBBH4s4s",
                0x45,
                self.tos,
                20 + udp_length,
                0,
                0x4000,
                self.ttl,
                17,
                0,
                self.src_ip,
                self.dst_ip,
            )
            + struct.pack(">HHHH", self.udp_source_port, _ROCE_PORT, udp_length, 0)
            + struct.pack(">BBHII", opcode, pad << 4, 0xFFFF, self.dest_qp, 0)
            + extension
        )

    def build(
        self,
        *,
        opcode: int,
        psns: NDArray[np.int64],
        ack_request: NDArray[np.bool_],
        ip_id: int,
        payload: NDArray[np.uint8],
        reth: tuple[int, int, int] | None = None,
        imm: int | None = None,
        aeth: tuple[int, int] | None = None,
    ) -> Frames:
        """``n`` sealed frames: ``psns``, ``ack_request`` of shape (n,), ``payload`` uint8 (n, payload_bytes).

        IP ids count up from ``ip_id``. The payload is padded to a multiple of 4 bytes.
        """
        n, payload_bytes = payload.shape
        header = self.header(opcode, payload_bytes, reth=reth, imm=imm, aeth=aeth)
        header_bytes = len(header)
        pad = -payload_bytes % 4
        end = header_bytes + payload_bytes + pad
        frames = np.empty((n, end + ICRC_BYTES), np.uint8)
        frames[:, :header_bytes] = np.frombuffer(header, np.uint8)
        ids = (ip_id + np.arange(n)) & 0xFFFF
        frames[:, 18:20].view(">u2")[:, 0] = ids
        total = sum(struct.unpack_from(">10H", header, 14)) + ids
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        frames[:, 24:26].view(">u2")[:, 0] = ~total & 0xFFFF
        frames[:, 50:54].view(">u4")[:, 0] = (psns & PSN_MASK) | (ack_request.astype(np.int64) << 31)
        frames[:, header_bytes : header_bytes + payload_bytes] = payload
        if pad:
            frames[:, end - pad : end] = 0
        share = header_share(frames, header_bytes, payload_bytes + pad)
        frames[:, end:].view("<u4")[:, 0] = share ^ crc_rows(frames[:, header_bytes:end])
        return frames
