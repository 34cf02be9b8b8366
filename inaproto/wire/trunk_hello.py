"""The first frame on a trunk, each way: who is at its end, and which control plane has admitted it.
Later the same frame says from time to time that this end lives.

A trunk may join two switches only while the control plane that runs now has admitted both: what one sends
for a ring must meet another that knows the ring (:mod:`inaproto.core.rendezvous.fabric.control`). Both ends
compare what they hear with what they know, before the port counts as up. The frame is of an experimental
EtherType (IEEE 802, local experimental 1) to an address that no bridge forwards::

     0 01:80:c2:00:00:0e | 6 source mac | 12 0x88b5
    14 magic u32 | 18 version u8 | 19 switch: u8 length, UTF-8 | peer: likewise | boot_id: likewise | zeros

Invariant: a frame that decodes is the encoding of what it decodes to.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

from inaproto.errors import DecodeError, LocalMisuse

LAYER: Final = "trunk hello"
MAGIC: Final = 0x494E4154
"""``INAT``."""
VERSION: Final = 1
FRAME_BYTES_MIN: Final = 60
"""The least that Ethernet carries, without FCS."""
TEXT_BYTES_MAX: Final = 128
_DESTINATION: Final = bytes.fromhex("0180c200000e")
_ETHERTYPE: Final = b"\x88\xb5"
_PREFIX: Final = struct.Struct(">IB")
_TEXTS_AT: Final = 14 + _PREFIX.size


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkHello:
    mac: bytes
    """Address of the sender, 6 bytes."""
    switch: str
    """The sender."""
    peer: str
    """For whom it takes the far side."""
    boot_id: str
    """Boot of the control plane that has admitted the sender."""

    def encode(self) -> bytes:
        """The frame, without FCS. Raises ``LocalMisuse`` for values that no decoder would take."""
        if len(self.mac) != 6:
            raise LocalMisuse(f"{LAYER}: {self.mac!r} is not 6 bytes")
        frame = _DESTINATION + self.mac + _ETHERTYPE + _PREFIX.pack(MAGIC, VERSION)
        for text in (self.switch, self.peer, self.boot_id):
            data = text.encode()
            if not 1 <= len(data) <= TEXT_BYTES_MAX:
                raise LocalMisuse(f"{LAYER}: a text of {len(data)} bytes, not 1 to {TEXT_BYTES_MAX}")
            frame += bytes([len(data)]) + data
        return frame.ljust(FRAME_BYTES_MIN, b"\0")

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Raises ``DecodeError``."""
        if len(frame) < FRAME_BYTES_MIN:
            raise DecodeError(LAYER, f"is {len(frame)} bytes, not {FRAME_BYTES_MIN} or more")
        if frame[:6] != _DESTINATION or frame[12:14] != _ETHERTYPE:
            raise DecodeError(LAYER, "is another frame", 12)
        magic, version = _PREFIX.unpack_from(frame, 14)
        if (magic, version) != (MAGIC, VERSION):
            raise DecodeError(LAYER, f"magic {magic:#x}, version {version}", 14)
        texts, at = [], _TEXTS_AT
        for _ in range(3):
            text, at = _text(frame, at)
            texts.append(text)
        if len(frame) != max(at, FRAME_BYTES_MIN) or any(frame[at:]):
            raise DecodeError(LAYER, "more follows", at)
        return cls(mac=frame[6:12], switch=texts[0], peer=texts[1], boot_id=texts[2])


def _text(frame: bytes, at: int) -> tuple[str, int]:
    """The text at ``at``, and where the next begins."""
    size = frame[at] if at < len(frame) else 0
    end = at + 1 + size
    if not 1 <= size <= TEXT_BYTES_MAX or end > len(frame):
        raise DecodeError(LAYER, f"a text of {size} bytes in a frame of {len(frame)}", at)
    try:
        return frame[at + 1 : end].decode(), end
    except UnicodeDecodeError:
        raise DecodeError(LAYER, "is not UTF-8", at) from None
