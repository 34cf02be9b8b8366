"""Connections as a capture shows them: positions of PSNs, messages, and what each port has seen (IBTA 9.7.2).

A connection's packets have one sequence of PSNs on both sides of an accelerator, so messages belong to the
connection. Bytes differ between the sides, so what a PSN carried belongs to a *stream*: one connection in
one direction at one port. Positions are PSNs without the wrap. All tables are bounded; the oldest goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from inaproto.units import PSN_MASK
from inaproto.wire.crc import crc32
from inaproto.wire.files.pcapng import CapturedFrame, Direction
from inaproto.wire.host_header import HOST_MAGIC
from inaproto.wire.ina_header import InaHeader
from inaproto_hil.inspect.packets import ENDING, OPENING, WRITES, Connection, Seen

MESSAGES_MAX: Final = 64
"""Most messages of a connection that are remembered."""
EARLY_MAX: Final = 1024
"""Packets of a connection that a switch holds for the first one of their message."""
PACKETS_MAX: Final = 1024
"""Most packets of a stream that are remembered."""
FAR: Final = 1 << 16
"""Positions further apart are of two connections that had one name after the other."""
_HOST_TAG: Final = HOST_MAGIC.to_bytes(4, "big")
_HALF: Final = (PSN_MASK + 1) >> 1
_EXTENSIONS_AT: Final = 54


@dataclass(frozen=True, slots=True)
class Message:
    """One RDMA WRITE, from its first packet."""

    begin: int
    packets: int
    mtu: int
    nbytes: int
    rkey: int
    frame: int
    ina: InaHeader | None
    between_hosts: bool = False
    """Whether it is of a path that needs no accelerator: hosts add, and take results into what they sent
    from."""

    @property
    def end(self) -> int:
        return self.begin + self.packets

    def payload_bytes(self, offset: int) -> int:
        return self.mtu if offset < self.packets - 1 else self.nbytes - self.mtu * (self.packets - 1)


class Carried(NamedTuple):
    """What a PSN carried when it was first seen on a stream."""

    digest: int
    frame: CapturedFrame
    is_result: bool


class Gap(NamedTuple):
    """Positions that were jumped over, and the frame that did."""

    begin: int
    end: int
    frame: CapturedFrame


@dataclass(slots=True)
class Stream:
    direction: Direction
    port: str
    high: int | None = None
    carried: dict[int, Carried] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    is_result: bool | None = None
    """What its last first packet of an INA message said."""
    is_mixed: bool = False
    """Both sides of an accelerator are seen here: what a PSN carries cannot be compared."""

    def gap_in(self, begin: int, end: int) -> Gap | None:
        """A gap between two positions of which nothing has come since."""
        for gap in self.gaps:
            if begin < gap.begin and gap.end <= end and not any(map(self.carried.get, range(*gap[:2]))):
                return gap
        return None


@dataclass(slots=True)
class Flow:
    connection: Connection
    since: int
    """Number of the frame with which it began."""
    udp_port: int = 0
    """Source port of its first packet."""
    high: int | None = None
    messages: dict[int, Message] = field(default_factory=dict)
    """Messages by position."""
    by_id: dict[int, Message] = field(default_factory=dict)
    """INA messages, by message id."""
    streams: dict[tuple[Direction, str], Stream] = field(default_factory=dict)
    ring_id: int | None = None
    rank: int | None = None
    rkey: int | None = None
    first: tuple[int, int | None] | None = None
    """Position of the first packet seen, and its message id if it opened one."""
    due: int | None = None
    """Position of the next new result."""
    placed: set[int] = field(default_factory=set)
    """Positions from ``due`` on that came in, of messages whose first packet had come."""
    left: set[int] = field(default_factory=set)
    """Positions behind ``due`` whose results have left."""
    early: dict[int, Seen] = field(default_factory=dict)
    """Packets that came in before the first one of their message, by position."""
    packets: int = 0
    again: int = 0
    acks: int = 0
    naks: int = 0

    def place(self, psn: int) -> int:
        """The position that is nearest to the highest one."""
        if self.high is None:
            return psn
        return self.high + ((psn - self.high + _HALF) & PSN_MASK) - _HALF

    def message_at(self, position: int) -> Message | None:
        for message in reversed(self.messages.values()):
            if message.begin <= position < message.end:
                return message
        return None

    def ended(self, begin: int, end: int) -> int:
        """Messages whose last packet is behind ``begin``, and not behind ``end``."""
        return sum(begin < message.end - 1 <= end for message in self.messages.values())

    def stream(self, seen: Seen) -> Stream:
        key = seen.frame.direction, seen.frame.interface.name
        found = self.streams.get(key)
        if found is None:
            found = self.streams[key] = Stream(*key)
        return found

    def high_at(self, direction: Direction, port: str) -> int | None:
        """The highest position that went in a direction at a port; None if there was none."""
        stream = self.streams.get((direction, port))
        return None if stream is None else stream.high

    def is_another(self, seen: Seen) -> bool:
        """Whether a packet can only be of a later connection with the same name."""
        if self.high is None:
            return False
        position = self.place(seen.packet.psn)
        if abs(position - self.high) > FAR:
            return True
        if seen.ina is None or self.ring_id in (None, seen.ina.ring_id):
            return False
        latest = max((message.end for message in self.messages.values()), default=position)
        return self.message_at(position) is None and position != latest

    def open_message(self, position: int, seen: Seen) -> None:
        """Open a message by its first packet, which is in order."""
        if position in self.messages or seen.reth is None:
            return
        message = message_of(position, seen)
        self.messages[position] = message
        if seen.ina is not None:
            self.by_id[seen.ina.msg_id] = message
            self.ring_id, self.rank, self.rkey = seen.ina.ring_id, seen.ina.rank, message.rkey
        if len(self.messages) > MESSAGES_MAX:
            oldest = self.messages.pop(next(iter(self.messages)))
            if oldest.ina is not None and self.by_id.get(oldest.ina.msg_id) is oldest:
                del self.by_id[oldest.ina.msg_id]

    def carry(self, stream: Stream, position: int, seen: Seen) -> tuple[bool, bool]:
        """Note what a position carried; whether it came before on this stream, and whether it came late."""
        self.packets += 1
        self.high = position if self.high is None else max(self.high, position)
        if self.first is None:
            self.first = position, None if seen.ina is None else seen.ina.msg_id
        again = position in stream.carried
        late = not again and stream.high is not None and position < stream.high
        if stream.high is not None and position > stream.high + 1:
            stream.gaps.append(Gap(stream.high + 1, position, seen.frame))
            del stream.gaps[:-MESSAGES_MAX]
        stream.high = position if stream.high is None else max(stream.high, position)
        if again:
            self.again += 1
        else:
            stream.carried[position] = Carried(digest(seen), seen.frame, seen.is_result)
            if len(stream.carried) > PACKETS_MAX:
                del stream.carried[next(iter(stream.carried))]
        if seen.ina is not None:
            stream.is_result = seen.is_result
        return again, late

    def keep_early(self, position: int, seen: Seen) -> None:
        """It may be of a message whose first packet is to come; of too many the oldest are forgotten."""
        self.early.setdefault(position, seen)
        if len(self.early) > EARLY_MAX:
            del self.early[next(iter(self.early))]

    def came_in(self, position: int) -> None:
        """Note that it came in to the accelerator, which can place it; positions whose results have left are
        forgotten."""
        if self.due is None or position >= self.due:
            self.placed.add(position)


def message_of(position: int, seen: Seen) -> Message:
    """The message that a first packet with RETH opens."""
    assert seen.reth is not None, "a message is opened by a packet with RETH"
    _, rkey, nbytes = seen.reth
    mtu = max(seen.packet.payload_bytes, 1)
    packets = 1 if seen.packet.opcode in ENDING else max(2, -(-nbytes // mtu))
    between_hosts = bytes(seen.packet.payload()[:4]) == _HOST_TAG
    return Message(position, packets, mtu, nbytes, rkey, seen.frame.number, seen.ina, between_hosts)


def digest(seen: Seen) -> int:
    """Digest of all that a retransmission must repeat: opcode, extension headers, payload and pad."""
    data = seen.packet.data
    return crc32(data[_EXTENSIONS_AT:-4], seen.packet.opcode << 8 | len(data) & 0xFF)


def is_write(seen: Seen) -> bool:
    return seen.packet.opcode in WRITES


def is_opening(seen: Seen) -> bool:
    return seen.packet.opcode in OPENING
