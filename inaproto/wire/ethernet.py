"""Ethernet II header, without preamble and FCS (frames cross our ports as QEMU and AF_PACKET carry them).

A frame may be shorter than the 60 bytes that a wire demands, and longer than its content: who sends
onto a real wire pads, so lengths come from the layers above. VLAN tags are not taken apart
here but in :mod:`inaproto.wire.vlan`: a tagged frame has ``ethertype`` 0x8100.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

from inaproto.errors import DecodeError, LocalMisuse

ETHERNET_HEADER_BYTES: Final = 14
ETHERTYPE_IPV4: Final = 0x0800
BROADCAST: Final = b"\xff" * 6


def mac_text(mac: bytes) -> str:
    """``52:54:00:00:00:01``."""
    return mac.hex(":")


@dataclass(frozen=True, slots=True, kw_only=True)
class EthernetHeader:
    dst: bytes
    src: bytes
    ethertype: int = ETHERTYPE_IPV4

    def encode(self) -> bytes:
        if len(self.dst) != 6 or len(self.src) != 6:
            raise LocalMisuse(f"Ethernet: MAC addresses of {len(self.dst)} and {len(self.src)} bytes, not 6")
        if not 0 <= self.ethertype <= 0xFFFF:
            raise LocalMisuse(f"Ethernet: ethertype {self.ethertype:#x} does not fit 16 bits")
        return self.dst + self.src + struct.pack(">H", self.ethertype)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read the header at the start of ``data``; the rest is ignored."""
        if len(data) < ETHERNET_HEADER_BYTES:
            raise DecodeError("Ethernet", f"{len(data)} bytes, needs {ETHERNET_HEADER_BYTES}", len(data))
        return cls(dst=bytes(data[0:6]), src=bytes(data[6:12]), ethertype=int.from_bytes(data[12:14], "big"))

    def __str__(self) -> str:
        return f"{mac_text(self.src)} > {mac_text(self.dst)} 0x{self.ethertype:04x}"
