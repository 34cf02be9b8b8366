"""Packets behind a gap: which have come, and the messages that they belong to (docs/protocol.md 4.4).

A packet is placed by its distance from the beginning of its message, whose address and length its first
packet said. So one whose message has not begun here cannot be placed; it is as if it had been lost. The same
holds for all that contradicts what is known: it will be judged when everything before it has come.

Distances are from the expected packet, which is missing: its bit is never set between steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inaproto.core.rdma.reliable_connection import packets_of
from inaproto.core.rdma.responder_events import MessageInProgress


@dataclass(slots=True)
class _Begun:
    """A message whose first packet came behind the gap."""

    at: int
    """Distance of its first packet."""
    packets: int
    begin: MessageInProgress


@dataclass(slots=True)
class PacketsBehind:
    mtu: int
    arrived: int = 0
    """Bit d: the packet at distance d is placed."""
    reach: int = 0
    """Largest distance of a packet that came, placed or not."""
    messages: list[_Begun] = field(default_factory=list)
    """In no order; each ends before another begins."""
    immediates: dict[int, int] = field(default_factory=dict)
    """Immediates of last packets, by distance."""

    def has(self, distance: int) -> bool:
        return bool(self.arrived >> distance & 1)

    def missing_from(self, distance: int, most: int) -> int:
        """How many packets from there on, at most ``most``, are all not here."""
        ahead = self.arrived >> distance & (1 << most) - 1
        return (ahead & -ahead).bit_length() - 1 if ahead else most

    @property
    def ready(self) -> int:
        """Packets from the expected one on that are here."""
        return (~self.arrived & self.arrived + 1).bit_length() - 1

    def mark(self, distance: int, packets: int) -> None:
        self.arrived |= (1 << packets) - 1 << distance

    def place_of(self, distance: int, message: MessageInProgress | None) -> MessageInProgress | None:
        """Where the packet at ``distance`` goes, and what remains of its message from there on.

        ``message`` is the one in progress at the expected packet. None: its message has not begun here.
        """
        if message is not None and distance < packets_of(message.remaining, self.mtu):
            return _further(message, distance * self.mtu)
        for begun in self.messages:
            if 0 <= distance - begun.at < begun.packets:
                return _further(begun.begin, (distance - begun.at) * self.mtu)
        return None

    def fits(self, distance: int, nbytes: int, message: MessageInProgress | None) -> bool:
        """Whether a message of ``nbytes`` may begin at ``distance``: in no other, and over none."""
        if message is not None and distance < packets_of(message.remaining, self.mtu):
            return False
        end = distance + packets_of(nbytes, self.mtu)
        return all(end <= begun.at or begun.at + begun.packets <= distance for begun in self.messages)

    def begin(self, distance: int, message: MessageInProgress) -> None:
        self.messages.append(_Begun(distance, packets_of(message.nbytes, self.mtu), message))

    def begun_here(self) -> MessageInProgress | None:
        """The message that begins with the expected packet, if that is known: it is in progress now."""
        for index, begun in enumerate(self.messages):
            if begun.at == 0:
                del self.messages[index]
                return begun.begin
        return None

    def advance(self, packets: int) -> None:
        """The expected packet is another one, so many further."""
        self.arrived >>= packets
        self.reach = max(0, self.reach - packets)
        for begun in self.messages:
            begun.at -= packets
        if self.immediates:
            self.immediates = {at - packets: imm for at, imm in self.immediates.items() if at >= packets}

    def forget_expected(self) -> None:
        """The expected packet, which had come, is missing again."""
        self.arrived &= ~1

    def forget(self) -> None:
        """The connection is over: no message that has begun behind the gap goes on."""
        self.messages.clear()


def _further(message: MessageInProgress, nbytes: int) -> MessageInProgress:
    return message._replace(va=message.va + nbytes, remaining=message.remaining - nbytes)
