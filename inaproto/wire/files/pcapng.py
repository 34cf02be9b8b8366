"""Captures of Ethernet frames as pcapng (draft-ietf-opsawg-pcapng-03): the records, and their writer.

``CaptureWriter`` makes the bytes of a file: one section, one interface per port of a switch, each frame
with its time and its direction as seen by the switch. A batch of frames of one length becomes one buffer
without a loop, because a switch captures at the rate of its data path.
:mod:`inaproto.wire.files.capture_reader` reads it back, and what others write.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse
from inaproto.units import FRAME_BYTES_MAX, Frames

LAYER: Final = "capture"
LINKTYPE_ETHERNET: Final = 1
INTERFACES_MAX: Final = 4096
SECTION: Final = 0x0A0D0D0A
INTERFACE: Final = 1
SIMPLE: Final = 3
STATISTICS: Final = 5
ENHANCED: Final = 6
"""Types of blocks."""
ORDER_MAGIC: Final = 0x1A2B3C4D
OPTION_NAME: Final = 2
OPTION_RESOLUTION: Final = 9
"""Option of an interface."""
OPTION_FLAGS: Final = 2
OPTION_DROPPED: Final = 4
"""Option of an enhanced packet block."""
OPTION_RECEIVED: Final = 4
OPTION_LOST: Final = 5
"""Option of interface statistics."""
_OPTION_APPLICATION: Final = 4
_NANOSECONDS: Final = 9
_ENHANCED_BYTES: Final = 28
"""Bytes of an enhanced packet block before its frame."""
_TEXT_BYTES_MAX: Final = 255


class Direction(IntEnum):
    """Direction of a frame, seen from what captured it; the numbers of ``epb_flags``."""

    UNKNOWN = 0
    INBOUND = 1
    OUTBOUND = 2


@dataclass(frozen=True, slots=True)
class Interface:
    """Where frames were captured."""

    name: str
    """Empty if the file does not say."""
    linktype: int = LINKTYPE_ETHERNET
    snaplen: int = 0
    """Longest part of a frame that is kept, in bytes; 0: all of it."""
    resolution: int = _NANOSECONDS
    """``if_tsresol``: a time unit is 10**-n s, or with the top bit set 2**-n s."""
    time_offset_s: int = 0


class CapturedFrame(NamedTuple):
    """One frame of a capture."""

    number: int
    """From 1, as Wireshark counts."""
    interface: Interface
    when_ns: int | None
    """Since 1970, if the file is by the clock; None where a block carries no time."""
    direction: Direction
    data: bytes
    """What was kept of the frame, without FCS."""
    wire_bytes: int
    """How long it was."""
    dropped: int
    """Frames that were lost on this interface between the one before and this."""
    offset: int
    """Offset of its block in the file."""

    @property
    def is_whole(self) -> bool:
        return len(self.data) == self.wire_bytes


# --- writing


class CaptureWriter:
    """Makes the bytes of a pcapng file; the caller puts them where it likes, in this order.

    First ``header``, then ``packets`` and ``statistics`` in any order. Interfaces are named by their index.
    Raises ``LocalMisuse`` for names over 255 bytes and for interfaces that do not exist.
    """

    def __init__(self, interfaces: Sequence[Interface], *, application: str = "inaproto") -> None:
        if len(interfaces) > INTERFACES_MAX:
            raise LocalMisuse(f"{LAYER}: {len(interfaces)} interfaces, at most {INTERFACES_MAX}")
        self._interfaces: Final = list(interfaces)
        self._application: Final = application

    def header(self) -> bytes:
        """Section header and the interfaces known so far."""
        fixed = struct.pack("<IHHq", ORDER_MAGIC, 1, 0, -1)
        section = _block(SECTION, fixed + _options((_OPTION_APPLICATION, _text(self._application))))
        return section + b"".join(map(_interface_block, self._interfaces))

    def add_interface(self, interface: Interface) -> tuple[int, bytes]:
        """A port that came up later: its index, and its block, which goes before its packets."""
        if len(self._interfaces) == INTERFACES_MAX:
            raise LocalMisuse(f"{LAYER}: more than {INTERFACES_MAX} interfaces")
        block = _interface_block(interface)
        self._interfaces.append(interface)
        return len(self._interfaces) - 1, block

    def packets(
        self,
        interface: int,
        when_ns: int | NDArray[np.int64],
        frames: Frames,
        direction: Direction = Direction.UNKNOWN,
        *,
        dropped: int = 0,
    ) -> NDArray[np.uint8]:
        """Blocks of ``n`` frames of one length: uint8, one contiguous axis, a buffer to be written.

        ``when_ns`` is one time since 1970 for all or int64 (n,). ``dropped`` frames were lost on this
        interface just before the first. Frames longer than the interface's ``snaplen`` are cut.
        """
        where = self._interface(interface)
        n, wire_bytes = frames.shape
        if wire_bytes > FRAME_BYTES_MAX:
            raise LocalMisuse(f"{LAYER}: a frame of {wire_bytes} bytes, at most {FRAME_BYTES_MAX}")
        kept = min(wire_bytes, where.snaplen or wire_bytes)
        options = struct.pack("<HHI", OPTION_FLAGS, 4, direction) if direction else b""
        if dropped:
            options += struct.pack("<HHQ", OPTION_DROPPED, 8, dropped)
        if options:
            options += bytes(4)
        end = _ENHANCED_BYTES + kept
        tail = bytes(-kept % 4) + options
        total = end + len(tail) + 4
        head = struct.pack("<IIIIIII", ENHANCED, total, interface, 0, 0, kept, wire_bytes)
        blocks = np.empty((n, total), np.uint8)
        blocks[:, :_ENHANCED_BYTES] = np.frombuffer(head, np.uint8)
        times = np.broadcast_to(np.asarray(when_ns, np.int64), (n,))
        words = np.empty((n, 2), "<u4")
        words[:, 0] = times >> 32
        words[:, 1] = times & 0xFFFF_FFFF
        blocks[:, 12:20] = words.view(np.uint8)
        blocks[:, _ENHANCED_BYTES:end] = frames[:, :kept]
        blocks[:, end:] = np.frombuffer(tail + total.to_bytes(4, "little"), np.uint8)
        if dropped and n > 1:  # they were lost once
            rest = self.packets(interface, times[1:], frames[1:], direction)
            return np.concatenate([blocks[0], rest])
        return blocks.reshape(-1)

    def statistics(self, interface: int, when_ns: int, *, received: int, dropped: int) -> bytes:
        """Frames received and lost on an interface since the capture began; goes at the end."""
        self._interface(interface)
        fixed = struct.pack("<III", interface, when_ns >> 32, when_ns & 0xFFFF_FFFF)
        counts = _options(
            (OPTION_RECEIVED, received.to_bytes(8, "little")), (OPTION_LOST, dropped.to_bytes(8, "little"))
        )
        return _block(STATISTICS, fixed + counts)

    def _interface(self, index: int) -> Interface:
        if not 0 <= index < len(self._interfaces):
            raise LocalMisuse(f"{LAYER}: interface {index} of {len(self._interfaces)}")
        return self._interfaces[index]


def _interface_block(interface: Interface) -> bytes:
    if interface.resolution != _NANOSECONDS or interface.time_offset_s:
        raise LocalMisuse(f"{LAYER}: {interface.name}: times are written in nanoseconds since 1970")
    options = [(OPTION_NAME, _text(interface.name))] if interface.name else []
    fixed = struct.pack("<HHI", interface.linktype, 0, interface.snaplen)
    return _block(INTERFACE, fixed + _options(*options, (OPTION_RESOLUTION, bytes([_NANOSECONDS]))))


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) > _TEXT_BYTES_MAX:
        raise LocalMisuse(f"{LAYER}: a text of {len(data)} bytes, at most {_TEXT_BYTES_MAX}")
    return data


def _options(*options: tuple[int, bytes]) -> bytes:
    parts = [struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4) for code, value in options]
    return b"".join(parts) + bytes(4)


def _block(kind: int, body: bytes) -> bytes:
    total = len(body) + 12
    return struct.pack("<II", kind, total) + body + total.to_bytes(4, "little")
