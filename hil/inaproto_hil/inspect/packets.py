"""A captured frame as the inspection takes it, and the rules that need the frame alone (IBTA annex A17)."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

import numpy as np

from inaproto.errors import DecodeError
from inaproto.wire.files.pcapng import CapturedFrame, Direction
from inaproto.wire.icrc import icrc
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, INA_HEADER_BYTES, MAGIC, InaHeader
from inaproto.wire.ipv4 import internet_checksum, ip_text
from inaproto.wire.outer import addresses_of, peel
from inaproto.wire.packet import Packet, decode_packet
from inaproto.wire.roce import Opcode, opcode_name
from inaproto.wire.vector import EXTENSIONS, PlainRun, decode_runs
from inaproto.wire.vlan import TAG_BYTES
from inaproto_hil.inspect.findings import ICRC, IP_CHECKSUM, MALFORMED, Books, Broken, Rule

OPENING: Final = frozenset({Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM})
ENDING: Final = frozenset(
    {Opcode.RC_WRITE_LAST, Opcode.RC_WRITE_LAST_IMM, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM}
)
WRITES: Final = OPENING | ENDING | {Opcode.RC_WRITE_MIDDLE}
Connection = tuple[bytes, bytes, int]
"""(source IP, destination IP, destination queue pair)"""

_TAG: Final = MAGIC.to_bytes(4, "big")
_NOT_READ: Final = {
    b"\x86\xdd": "frames of IPv6 that are no RoCEv2",
    b"\x81\x00": "frames with a VLAN tag that are no RoCEv2",
}
_ROCE_PORT: Final = 4791
_BTH_AT: Final = 42
_HEADERS_BYTES: Final = 54
_FLAGS_AT: Final = 43


@dataclass(slots=True)
class Seen:
    """A RoCEv2 packet whose frame is in order."""

    frame: CapturedFrame
    """In plain form, whatever form was captured."""
    packet: Packet
    outer: bytes = b""
    """What it had around that: a VLAN tag, IPv6, IPv4 options (:mod:`inaproto.wire.outer`)."""
    ina: InaHeader | None = None
    """INA header of a first packet, less the mark of a result."""
    is_result: bool = False
    ina_fault: DecodeError | None = None
    reth: tuple[int, int, int] | None = None
    imm: int | None = None
    aeth: tuple[int, int] | None = None
    connection: Connection = field(init=False)

    def __post_init__(self) -> None:
        packet = self.packet
        self.connection = _connection(packet, self.outer)
        self.reth, self.imm, self.aeth = packet.extensions()
        if packet.opcode not in OPENING or packet.payload_bytes < INA_HEADER_BYTES:
            return
        head = bytearray(packet.payload()[:INA_HEADER_BYTES])
        if head[:4] != _TAG:
            return
        self.is_result = bool(head[FLAGS_OFFSET] & FLAG_RESULT)
        head[FLAGS_OFFSET] &= ~FLAG_RESULT
        try:
            self.ina = InaHeader.decode(head)
        except DecodeError as error:
            self.ina_fault = error

    @property
    def is_inbound(self) -> bool:
        return self.frame.direction is Direction.INBOUND

    @property
    def is_outbound(self) -> bool:
        return self.frame.direction is Direction.OUTBOUND

    @property
    def summed_from(self) -> int:
        """Offset in the frame of what is summed."""
        return self.packet.header_bytes + INA_HEADER_BYTES * (self.ina is not None)

    def name(self) -> str:
        return connection_text(self.connection)

    def breaks(self, rule: Rule, expected: str, got: str, wrong: range = range(0)) -> Broken:
        """This packet breaks ``rule``, and shows it itself."""
        return Broken(
            rule,
            self.frame,
            self.name(),
            self.packet.psn,
            expected,
            got,
            self.frame.number,
            wrong,
        )


def connection_text(connection: Connection) -> str:
    source, target = (str(ip_address(ip)) for ip in connection[:2])
    return f"{source} -> {target} qp {connection[2]}"


def _connection(packet: Packet, outer: bytes) -> Connection:
    source, target = addresses_of(outer) or (packet.src_ip, packet.dst_ip)
    return source, target, packet.dest_qp


def _plain(frame: CapturedFrame) -> tuple[CapturedFrame, bytes]:
    """The frame in the form that is looked at, and what was taken off for that."""
    if not frame.is_whole or not frame.data:
        return frame, b""
    (outer, (rows,)), *_ = peel([np.frombuffer(frame.data, np.uint8).reshape(1, -1)])
    if not outer:
        return frame, b""
    return frame._replace(data=rows.tobytes(), wire_bytes=rows.shape[1]), outer


def look(frame: CapturedFrame, books: Books) -> Seen | Broken | None:
    """The packet that a frame is, or what is wrong with it; None for what is not looked at."""
    frame, outer = _plain(frame)
    data = frame.data
    if not _is_roce(data):
        kind = _NOT_READ.get(data[12:14], "frames that are no RoCEv2")
        books.note(kind)
        return None
    if not frame.is_whole:
        books.note("frames cut by the capture, not looked at")
        return None
    books.check(MALFORMED)
    total = int.from_bytes(data[16:18], "big")
    if len(data) > 14 + total >= _HEADERS_BYTES + 4:  # Ethernet padding
        data = data[: 14 + total]
    packet = decode_packet(data)
    if packet is None:
        if len(data) > _BTH_AT and data[_BTH_AT] not in EXTENSIONS:
            books.note(f"packets with {opcode_name(data[_BTH_AT])}, not looked at")
            return None
        return _malformed(frame, _why(data))
    has_own_header = len(outer) <= TAG_BYTES
    books.check(*((IP_CHECKSUM,) if has_own_header else ()), ICRC)
    if has_own_header and internet_checksum(data[14:34]) != 0:
        right = bytearray(data[14:34])
        right[10:12] = bytes(2)
        expected = f"0x{internet_checksum(bytes(right)):04x}"
        return _bad(frame, outer, packet, IP_CHECKSUM, expected, f"0x{data[24:26].hex()}", range(24, 26))
    if not packet.intact():
        return _wrong_icrc(frame, outer, packet)
    if packet.data[_FLAGS_AT] & 15:
        return _bad(
            frame, outer, packet, MALFORMED, "BTH version 0", f"{packet.data[_FLAGS_AT] & 15}", range(43, 44)
        )
    if packet.pad != -packet.payload_bytes % 4:
        got = f"{packet.pad} pad bytes behind {packet.payload_bytes}"
        return _bad(
            frame, outer, packet, MALFORMED, f"{-packet.payload_bytes % 4} pad bytes", got, range(43, 44)
        )
    return Seen(frame, packet, outer)


def _is_roce(data: bytes) -> bool:
    """UDP to RoCE's port over IPv4, neither a fragment nor with IP options."""
    return (
        len(data) >= _BTH_AT
        and data[12:15] == b"\x08\x00\x45"
        and data[23] == 17
        and not data[20] & 0x3F
        and not data[21]
        and int.from_bytes(data[36:38], "big") == _ROCE_PORT
    )


def _why(data: bytes) -> str:
    run = next(iter(decode_runs(np.frombuffer(data, np.uint8).reshape(1, -1))))
    return run.why if isinstance(run, PlainRun) else "lengths do not fit"


def _malformed(frame: CapturedFrame, why: str) -> Broken:
    total, udp = int.from_bytes(frame.data[16:18], "big"), int.from_bytes(frame.data[38:40], "big")
    got = f"{why}: frame of {len(frame.data)} bytes, IP length {total}, UDP length {udp}"
    return Broken(
        MALFORMED, frame, _text(frame.data), None, MALFORMED.states, got, frame.number, range(16, 40)
    )


def _text(data: bytes) -> str:
    return f"{ip_text(data[26:30])} -> {ip_text(data[30:34])}"


def _wrong_icrc(frame: CapturedFrame, outer: bytes, packet: Packet) -> Broken:
    end = len(packet.data)
    stored = int.from_bytes(packet.data[-4:], "little")
    expected = f"0x{icrc(packet.data):08x}"
    return _bad(frame, outer, packet, ICRC, expected, f"0x{stored:08x}", range(end - 4, end))


def _bad(
    frame: CapturedFrame, outer: bytes, packet: Packet, rule: Rule, expected: str, got: str, wrong: range
) -> Broken:
    name = connection_text(_connection(packet, outer))
    return Broken(rule, frame, name, packet.psn, expected, got, frame.number, wrong)
