"""Reads captures of Ethernet frames in pieces: pcapng of either byte order, and classic pcap.

``CaptureReader`` takes a file or a live stream in pieces of any size and gives the frames that are whole.

Limits: a block or record above ``BLOCK_BYTES_MAX``, or more than ``INTERFACES_MAX`` interfaces, is a
``DecodeError``; the reader holds no more than one unfinished block. Offsets are those in the whole stream.

Invariant: what ``CaptureWriter`` wrote is read back unchanged. Unknown blocks and options are skipped. Not
read: the modified pcap of 1999, and the packet block that the enhanced one replaced (it is skipped).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from inaproto.errors import DecodeError
from inaproto.units import S
from inaproto.wire.files.pcapng import (
    ENHANCED,
    INTERFACE,
    INTERFACES_MAX,
    LAYER,
    OPTION_DROPPED,
    OPTION_FLAGS,
    OPTION_LOST,
    OPTION_NAME,
    OPTION_RECEIVED,
    OPTION_RESOLUTION,
    ORDER_MAGIC,
    SECTION,
    SIMPLE,
    STATISTICS,
    CapturedFrame,
    Direction,
    Interface,
)

BLOCK_BYTES_MAX: Final = 1 << 20
_OPTION_TIME_OFFSET: Final = 14
_MICROSECONDS: Final = 6
_GZIP_MAGIC: Final = b"\x1f\x8b"
_PCAP_MAGICS: Final = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
"""First bytes of a classic pcap file: byte order, and nanoseconds of its unit of time."""
_PCAP_HEADER_BYTES: Final = 24
_PCAP_RECORD_BYTES: Final = 16


class CaptureReader:
    """Reads pcapng or pcap in pieces: ``for frame in reader.feed(data)``, and ``finish`` at the end.

    Raises ``DecodeError`` with the offset of what is damaged; frames before it have been given.
    """

    def __init__(self) -> None:
        self.interfaces: list[Interface] = []
        """Interfaces of all sections, in the order of the file."""
        self.received: dict[int, int] = {}
        """Frames that interfaces had received, by index in ``interfaces``, where the file says so."""
        self.lost: dict[int, int] = {}
        self.skipped: dict[int, int] = {}
        """Blocks of unknown types, by type."""
        self._buffer = bytearray()
        self._at = 0
        """Offset of the buffer's first byte in the stream."""
        self._order = ""
        self._pcap_unit_ns = 0
        self._section_from = 0
        self._frames = 0

    def feed(self, data: bytes) -> Iterator[CapturedFrame]:
        """The frames that ``data`` completes, read as they are asked for."""
        self._buffer += data
        return self._frames_whole()

    def _frames_whole(self) -> Iterator[CapturedFrame]:
        used = 0
        try:
            while (taken := self._next(used)) is not None:
                nbytes, frame = taken
                used += nbytes
                if frame is not None:
                    yield frame
        finally:
            del self._buffer[:used]
            self._at += used

    def finish(self) -> None:
        """The stream is at its end. Raises ``DecodeError`` if it ends inside a block or is no capture."""
        if self._buffer:
            raise DecodeError(LAYER, f"ends {len(self._buffer)} bytes into a block", self._at)
        if not self._at:
            raise DecodeError(LAYER, "is empty")

    def _next(self, used: int) -> tuple[int, CapturedFrame | None] | None:
        """The bytes that the next block takes, and its frame if it is one; None until it is whole."""
        left = len(self._buffer) - used
        if not self._order:
            if left < 4:
                return None
            first = bytes(self._buffer[used : used + 4])
            if first in _PCAP_MAGICS:
                return self._pcap_header(used, *_PCAP_MAGICS[first])
            if first[:2] == _GZIP_MAGIC:
                raise DecodeError(LAYER, "is compressed by gzip: unpack it first (gunzip)", self._at + used)
            if first != SECTION.to_bytes(4, "big"):
                raise DecodeError(LAYER, f"begins {first.hex()}: neither pcapng nor pcap", self._at + used)
        if self._pcap_unit_ns:
            return self._pcap_record(used)
        return self._block(used)

    # -- pcapng

    def _block(self, used: int) -> tuple[int, CapturedFrame | None] | None:
        if len(self._buffer) - used < 12:
            return None
        at = self._at + used
        is_section = self._buffer[used : used + 4] == SECTION.to_bytes(4, "big")
        if is_section:
            self._order = self._byte_order(bytes(self._buffer[used + 8 : used + 12]), at)
        kind, total = struct.unpack_from(self._order + "II", self._buffer, used)
        if not 12 <= total <= BLOCK_BYTES_MAX or total % 4:
            raise DecodeError(LAYER, f"a block of {total} bytes", at + 4)
        if len(self._buffer) - used < total:
            return None
        again = struct.unpack_from(self._order + "I", self._buffer, used + total - 4)[0]
        if again != total:
            raise DecodeError(LAYER, f"a block of {total} bytes says {again} at its end", at + total - 4)
        body = bytes(self._buffer[used + 8 : used + total - 4])
        frame = None
        if is_section:
            self._section(body, at)
        elif kind == INTERFACE:
            self._add_interface(body, at)
        elif kind == ENHANCED:
            frame = self._enhanced(body, at)
        elif kind == SIMPLE:
            frame = self._simple(body, at)
        elif kind == STATISTICS:
            self._statistics(body, at)
        else:
            self.skipped[kind] = self.skipped.get(kind, 0) + 1
        return total, frame

    @staticmethod
    def _byte_order(magic: bytes, at: int) -> str:
        for order in "<>":
            if struct.unpack(order + "I", magic)[0] == ORDER_MAGIC:
                return order
        raise DecodeError(LAYER, f"byte-order magic {magic.hex()}", at + 8)

    def _section(self, body: bytes, at: int) -> None:
        _, major, _, _ = self._unpack("IHHq", body, at)
        if major != 1:
            raise DecodeError(LAYER, f"pcapng version {major}", at + 12)
        self._section_from = len(self.interfaces)

    def _add_interface(self, body: bytes, at: int) -> None:
        if len(self.interfaces) == INTERFACES_MAX:
            raise DecodeError(LAYER, f"more than {INTERFACES_MAX} interfaces", at)
        linktype, _, snaplen = self._unpack("HHI", body, at)
        name, resolution, shift_s = "", _MICROSECONDS, 0
        for code, value in self._options(body, 8, at):
            if code == OPTION_NAME:
                name = _printable(value)
            elif code == OPTION_RESOLUTION and len(value) == 1:
                resolution = value[0]
            elif code == _OPTION_TIME_OFFSET and len(value) == 8:
                shift_s = struct.unpack(self._order + "q", value)[0]
        self.interfaces.append(Interface(name, linktype, snaplen, resolution, shift_s))

    def _enhanced(self, body: bytes, at: int) -> CapturedFrame:
        index, high, low, kept, wire_bytes = self._unpack("IIIII", body, at)
        end = 20 + kept
        if end > len(body) or kept > wire_bytes:
            raise DecodeError(LAYER, f"{kept} bytes of a frame of {wire_bytes} in a block too short", at + 20)
        direction, dropped = Direction.UNKNOWN, 0
        for code, value in self._options(body, end + -kept % 4, at):
            if code == OPTION_FLAGS and len(value) == 4:
                flags = struct.unpack(self._order + "I", value)[0] & 3
                direction = Direction(flags) if flags < 3 else Direction.UNKNOWN
            elif code == OPTION_DROPPED and len(value) == 8:
                dropped = struct.unpack(self._order + "Q", value)[0]
        interface = self._interface(index, at)
        when_ns = _nanoseconds(high << 32 | low, interface)
        return self._frame(interface, when_ns, direction, body[20:end], wire_bytes, dropped, at)

    def _simple(self, body: bytes, at: int) -> CapturedFrame:
        (wire_bytes,) = self._unpack("I", body, at)
        interface = self._interface(0, at)
        kept = min(wire_bytes, interface.snaplen or wire_bytes)
        if 4 + kept > len(body):
            raise DecodeError(LAYER, f"a frame of {kept} bytes in a block too short", at + 8)
        return self._frame(interface, None, Direction.UNKNOWN, body[4 : 4 + kept], wire_bytes, 0, at)

    def _statistics(self, body: bytes, at: int) -> None:
        index, _, _ = self._unpack("III", body, at)
        self._interface(index, at)
        for code, value in self._options(body, 12, at):
            if code in (OPTION_RECEIVED, OPTION_LOST) and len(value) == 8:
                counts = self.received if code == OPTION_RECEIVED else self.lost
                counts[self._section_from + index] = struct.unpack(self._order + "Q", value)[0]

    def _interface(self, index: int, at: int) -> Interface:
        if index >= len(self.interfaces) - self._section_from:
            raise DecodeError(LAYER, f"interface {index} was not described", at + 8)
        return self.interfaces[self._section_from + index]

    def _options(self, body: bytes, begin: int, at: int) -> Iterator[tuple[int, bytes]]:
        while begin + 4 <= len(body):
            code, nbytes = struct.unpack_from(self._order + "HH", body, begin)
            if code == 0:
                return
            end = begin + 4 + nbytes
            if end > len(body):
                raise DecodeError(LAYER, f"option {code} of {nbytes} bytes passes its block", at + 8 + begin)
            yield code, body[begin + 4 : end]
            begin = end + -nbytes % 4

    def _unpack(self, layout: str, body: bytes, at: int) -> tuple[int, ...]:
        packed = struct.Struct(self._order + layout)
        if len(body) < packed.size:
            raise DecodeError(LAYER, f"a block body of {len(body)} bytes, needs {packed.size}", at + 8)
        return packed.unpack_from(body)

    # -- classic pcap

    def _pcap_header(self, used: int, order: str, unit_ns: int) -> tuple[int, None] | None:
        if len(self._buffer) - used < _PCAP_HEADER_BYTES:
            return None
        major, _, _, _, snaplen, linktype = struct.unpack_from(order + "HHiIII", self._buffer, used + 4)
        if major != 2:
            raise DecodeError(LAYER, f"pcap version {major}", self._at + used + 4)
        self._order, self._pcap_unit_ns = order, unit_ns
        self.interfaces.append(Interface("", linktype & 0xFFFF, snaplen))
        return _PCAP_HEADER_BYTES, None

    def _pcap_record(self, used: int) -> tuple[int, CapturedFrame] | None:
        if len(self._buffer) - used < _PCAP_RECORD_BYTES:
            return None
        at = self._at + used
        seconds, parts, kept, wire_bytes = struct.unpack_from(self._order + "IIII", self._buffer, used)
        if kept > BLOCK_BYTES_MAX or kept > wire_bytes:
            raise DecodeError(LAYER, f"{kept} bytes of a frame of {wire_bytes}", at + 8)
        end = _PCAP_RECORD_BYTES + kept
        if len(self._buffer) - used < end:
            return None
        data = bytes(self._buffer[used + _PCAP_RECORD_BYTES : used + end])
        when_ns = seconds * S + parts * self._pcap_unit_ns
        return end, self._frame(self.interfaces[0], when_ns, Direction.UNKNOWN, data, wire_bytes, 0, at)

    def _frame(
        self,
        interface: Interface,
        when_ns: int | None,
        direction: Direction,
        data: bytes,
        wire_bytes: int,
        dropped: int,
        at: int,
    ) -> CapturedFrame:
        self._frames += 1
        return CapturedFrame(
            self._frames, interface, when_ns, direction, data, wire_bytes, dropped, offset=at
        )


def _printable(text: bytes) -> str:
    """Names are shown on terminals, which obey what is in a file of anybody's."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text.decode(errors="replace"))


def _nanoseconds(ticks: int, interface: Interface) -> int:
    exponent = interface.resolution & 0x7F
    if interface.resolution & 0x80:
        whole = ticks * S >> exponent
    else:
        whole = ticks * S // 10**exponent
    return whole + interface.time_offset_s * S


def read_capture(data: bytes) -> list[CapturedFrame]:
    """All frames of a whole capture. Raises ``DecodeError``."""
    reader = CaptureReader()
    frames = list(reader.feed(data))
    reader.finish()
    return frames
