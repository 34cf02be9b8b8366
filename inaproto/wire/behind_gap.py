"""What acknowledge packets of a selective connection say of packets behind a gap (protocol 4.4, 6.14).

It is the payload of a NAK for a sequence error, behind the AETH and under the ICRC. That of a receiver says
how far packets have come, and which of those behind the missing one are there. A receiver that has never
heard of it sees a NAK like any other; a switch, an ACK. That of a switch says what has come there, and
acknowledges nothing: senders get it that have said that they know it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

BEHIND_PACKETS_MAX: Final = 4096
"""Packets behind the missing one that a receiver keeps, and that a bitmap has."""
_REACH_BYTES: Final = 4
_WORD_BYTES: Final = 4


_OF_SWITCH: Final = 1 << 31
"""Bit of the first word by which a switch's is known: no reach has it."""


class AtSwitch(NamedTuple):
    """What has come to the switch: all before the packet of the NAK's PSN, and what is said of others."""

    reach: int
    """Distance from it to the newest packet that is spoken of, which came, or something behind it did. 0: it
    has come, nothing is said of others, and results are lost behind the switch."""
    arrived: int
    """Bit i: the packet of the PSN i behind it is there; of the others up to ``reach`` none is. Bit 0 is not
    set."""

    def encode(self) -> bytes:
        """A multiple of 4 bytes. Raises ``OverflowError`` for what has no place in it."""
        words = -(-self.arrived.bit_length() // (8 * _WORD_BYTES))
        first = (_OF_SWITCH | self.reach).to_bytes(_REACH_BYTES, "big")
        return first + self.arrived.to_bytes(words * _WORD_BYTES, "little")

    @classmethod
    def decode(cls, data: bytes | memoryview) -> AtSwitch | None:
        """None for what no switch sends. Never raises."""
        longest = _REACH_BYTES + BEHIND_PACKETS_MAX // 8 + _WORD_BYTES
        if not _REACH_BYTES <= len(data) <= longest or len(data) % _WORD_BYTES:
            return None
        reach = int.from_bytes(data[:_REACH_BYTES], "big") ^ _OF_SWITCH
        arrived = int.from_bytes(data[_REACH_BYTES:], "little")
        if reach > BEHIND_PACKETS_MAX or arrived & 1 or arrived.bit_length() > reach + 1:
            return None
        return cls(reach, arrived)


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


def decode_behind(data: bytes | memoryview) -> BehindGap | AtSwitch | None:
    """What a NAK says; None for what nobody sends. Never raises."""
    return AtSwitch.decode(data) if len(data) and data[0] & 0x80 else BehindGap.decode(data)
