"""What an acknowledge packet of a selective connection says of packets behind a gap (docs/protocol.md 4.4).

It is the payload of a NAK for a sequence error, behind the AETH and under the ICRC: how far packets have
come, and which of those behind the missing one are there. A receiver that has never heard of it sees a NAK
like any other; a switch, an ACK.
"""

from __future__ import annotations

from typing import Final, NamedTuple

BEHIND_PACKETS_MAX: Final = 4096
"""Packets behind the missing one that a receiver keeps, and that a bitmap has."""
_REACH_BYTES: Final = 4
_WORD_BYTES: Final = 4


class BehindGap(NamedTuple):
    """The missing packet is that of the NAK's PSN."""

    reach: int
    """Distance from it to the newest packet that came, kept or not; at least 1."""
    arrived: int
    """Bit i: the packet of the PSN i + 1 behind the missing one is there."""

    def encode(self) -> bytes:
        """A multiple of 4 bytes. Raises ``OverflowError`` for what has no place in it."""
        words = -(-self.arrived.bit_length() // (8 * _WORD_BYTES))
        return self.reach.to_bytes(_REACH_BYTES, "big") + self.arrived.to_bytes(words * _WORD_BYTES, "little")

    @classmethod
    def decode(cls, data: bytes | memoryview) -> BehindGap | None:
        """None for what no receiver sends. Never raises."""
        longest = _REACH_BYTES + BEHIND_PACKETS_MAX // 8
        if not _REACH_BYTES <= len(data) <= longest or len(data) % _WORD_BYTES:
            return None
        reach = int.from_bytes(data[:_REACH_BYTES], "big")
        arrived = int.from_bytes(data[_REACH_BYTES:], "little")
        if not max(1, arrived.bit_length()) <= reach <= BEHIND_PACKETS_MAX:
            return None
        return cls(reach, arrived)
