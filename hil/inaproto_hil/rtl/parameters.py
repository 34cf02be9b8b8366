"""Sizes that are fixed when the RTL is made, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from inaproto.errors import LocalMisuse
from inaproto_adapters.fpga.register_map import Counter

WORD_BYTES = 4
SHIFT_BYTES = 2
"""Zeros in front of every frame inside the accelerator: with them IP header, payload and ICRC begin at whole
words, as the data of a RoCEv2 packet always begins at 2 mod 4."""
HEAD_WORDS = 32
"""Words of an aligned frame that the parser looks at: Ethernet to INA header, VLAN tags or IP options too."""
NOTE_HEAD_WORDS = 41
"""Words of a note between switches: headers, the note itself, the header that it carries."""
HEADER_BYTES_MAX = 74
"""Ethernet, IPv4, UDP, BTH, RETH and IMM."""
ICRC_BYTES = 4


@dataclass(frozen=True)
class Parameters:
    """Raises ``LocalMisuse`` for sizes that no accelerator can have."""

    ports: int = 4
    words: int = 4
    """Width of the bus: 32-bit words, a power of two; 16 are 512 bits."""
    rings: int = 2
    children: int = 4
    """Ranks of a ring, at most."""
    window: int = 4
    """Messages in flight, at most: a power of two. A ring's array holds twice as many."""
    slots: int = 128
    """Packets of all rings' arrays together."""
    mtu: int = 256
    """Payload bytes of a packet, at most."""
    addresses: int = 16
    """Ethernet addresses that the bridge learns."""
    trees: int = 0
    """Ranks of a ring that spans several switches, at most; 0: all rings are of one switch."""

    def __post_init__(self) -> None:
        if self.words < 2 or self.words & (self.words - 1) or self.words > 32:
            raise LocalMisuse(f"a bus of {self.words} words: 2, 4, 8, 16 or 32 are possible")
        if self.window < 1 or self.window & (self.window - 1):
            raise LocalMisuse(f"a window of {self.window} messages is no power of two")
        if not 2 <= self.children <= 32 or self.ports < 2 or self.rings < 1:
            raise LocalMisuse(
                "an accelerator has two ports, two ranks and a ring at least, and 32 ranks at most"
            )
        if self.mtu < 64 or self.mtu % 8:
            raise LocalMisuse(f"MTU {self.mtu} is below 64 or no multiple of 8")
        if self.trees and not 2 <= self.trees <= 128:
            raise LocalMisuse(
                f"{self.trees} ranks of a ring that spans several switches: 2 to 128 are possible"
            )

    @property
    def bus_bytes(self) -> int:
        return WORD_BYTES * self.words

    @property
    def regions(self) -> int:
        """Messages that a ring's array holds, at most: 2N (NetReduce section 3.1)."""
        return 2 * self.window

    @property
    def rows(self) -> int:
        """Connections of a ring: of its inputs; in a tree of all ranks, and of the switch above, too."""
        return self.children + (self.trees + 1 if self.trees else 0)

    @property
    def connections(self) -> int:
        return self.rings * self.rows

    @property
    def banks(self) -> int:
        """Payload memories: one for each input, in a tree one for results, too."""
        return self.children + (self.trees > 0)

    @property
    def absent_counters(self) -> range:
        """Those of trees, where it has none."""
        return range(0) if self.trees else range(Counter.SUMS_UP, Counter.DROP_NOBODY + 1)

    @property
    def head_words(self) -> int:
        """Words of a frame that are looked at."""
        return NOTE_HEAD_WORDS if self.trees else HEAD_WORDS

    @property
    def frame_bytes(self) -> int:
        """The longest aligned frame of a ring: shift, headers, payload, ICRC."""
        return SHIFT_BYTES + HEADER_BYTES_MAX + self.mtu + ICRC_BYTES

    @property
    def frame_beats(self) -> int:
        return -(-self.frame_bytes // self.bus_bytes)

    @property
    def foreign_bytes(self) -> int:
        """The longest aligned frame of anything: what a link with room for this MTU carries."""
        return max(self.frame_bytes, SHIFT_BYTES + 1518)

    @property
    def foreign_beats(self) -> int:
        return -(-self.foreign_bytes // self.bus_bytes)


def parameters_of(text: str, defaults: Mapping[str, int] | None = None) -> Parameters:
    """``ports=4,slots=512`` as sizes; what is not named is as in ``defaults``. Raises ``LocalMisuse``."""
    names = [field.name for field in fields(Parameters)]
    sizes = dict(defaults or {})
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in names or not value.isdecimal():
            raise LocalMisuse(f"{part!r} is no NAME=NUMBER with one of {', '.join(names)}")
        sizes[name] = int(value)
    return Parameters(**sizes)
