"""A NIC as verbs name its parts: work requests, completions, addresses, memory, and what is done at once.

The records that links of hosts (:mod:`inaproto.core.host.link`) and NICs have in common. What a whole NIC is,
with its waits, is :class:`inaproto.ports.Nic`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple, Protocol

from inaproto.wire.messages.infiniband import InfinibandPort

ACK_GROUP_PACKETS_MAX: Final = 256
"""Packets of a long message after which an ACK is asked for before its end: by then a few may be lost."""

SIGNALS_OF_WINDOW: Final = 4
"""How many completions of a window of messages are told apart. One that is told late keeps a later message
back: with one for the whole window nothing would be sent until all of it is acknowledged."""


class Status(Enum):
    """Outcome of a work request, named as verbs name them."""

    SUCCESS = "success"
    RETRY_EXCEEDED = "transport retry counter exceeded"
    RNR_RETRY_EXCEEDED = "receiver-not-ready retry counter exceeded"
    REMOTE_ACCESS = "remote access error"
    REMOTE_INVALID_REQUEST = "remote invalid request"
    REMOTE_OPERATION = "remote operational error"
    FLUSHED = "work request flushed"


class CompletionKind(Enum):
    SEND = "send"
    RECEIVE_IMM = "receive with immediate"


class Completion(NamedTuple):
    qpn: int
    kind: CompletionKind
    wr_id: int
    status: Status
    imm: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """Registered memory. ``va`` is the address that peers use; ``rkey`` their permission to write."""

    key: int
    va: int
    nbytes: int


class Segment(NamedTuple):
    """One gather element of a work request: ``nbytes`` at ``va`` inside the region ``key``."""

    key: int
    va: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class QpAddress:
    """Everything a peer must know of a queue pair to connect to it."""

    mac: bytes
    ip: bytes
    qpn: int
    psn: int
    """First PSN that this side will send."""
    selective: bool = False
    """Whether it can tell what is there behind a gap, and be told (docs/protocol.md 4.4). A connection does
    so if both ends can."""
    repaired: bool = False
    """Whether a switch may tell it what has come there (docs/protocol.md 6.14)."""
    infiniband: InfinibandPort | None = None
    """Where it is on InfiniBand; ``mac`` and ``ip`` are zeros then."""


@dataclass(frozen=True, slots=True)
class QpAttributes:
    mtu: int = 1024
    timeout: int = 14
    """Exponent: the retransmission timer is 4.096 us * 2**timeout; 0 disables it."""
    retry_count: int = 7
    """Retries without progress before the queue pair fails; 7 never gives up, as Soft-RoCE does it."""
    rnr_retry: int = 7
    ack_every: int = 64
    """An ACK is requested at least this often, and on the last packet of each message."""
    outstanding_packets: int = 512
    """Packets that are not acknowledged yet, at most, where the NIC can limit them."""
    udp_source_port: int = 0
    """From which its packets are sent, where the NIC can do that; 0: the NIC derives one from both ends."""
    traffic_class: int = 0
    """TOS byte of all packets, DSCP * 4: by it the network sorts them into its lossless class."""
    signal_every: int = 1
    """A NIC may tell the completion of each so many-th write alone, and of the last one, where several are
    posted in one go; it says the same of those before."""
    service_level: int = 0
    """What an RDMA device at a VLAN makes the priority in the tag."""
    spread_timers: bool = True
    """From the third timeout in a row, timers of several queue pairs differ, where the NIC can do that: those
    in lock step would overrun a queue that they share each time anew."""

    def for_messages(self, messages: int, nbytes: int) -> QpAttributes:
        """The same, for up to so many messages of up to ``nbytes`` on the way at once.

        Their packets fit the window, so none leaves in pieces, and each is acknowledged once, at its end.
        """
        packets = max(1, -(-nbytes // self.mtu))
        return replace(
            self,
            ack_every=min(packets, ACK_GROUP_PACKETS_MAX),
            outstanding_packets=messages * packets,
            signal_every=max(1, messages // SIGNALS_OF_WINDOW),
        )


class Verbs(Protocol):
    """What every NIC does at once and without looking at a clock.

    Misuse raises ``LocalMisuse``; a queue pair that failed completes everything it holds with its status,
    then ``FLUSHED``. A queue pair may get connected later than ``connect_qp`` returns: what its peer sends
    before is lost (:meth:`inaproto.ports.Nic.wait_connected`).
    """

    def register_memory(self, buffer: memoryview) -> MemoryRegion: ...
    def deregister_memory(self, region: MemoryRegion) -> None: ...
    def create_qp(self, *, psn: int) -> QpAddress: ...
    def connect_qp(self, qpn: int, remote: QpAddress, attributes: QpAttributes) -> None: ...
    def post_receive(self, qpn: int, wr_id: int) -> None: ...
    def destroy_qp(self, qpn: int) -> None: ...
    def statistics(self) -> dict[str, int]:
        """Monotonic counters.

        At least ``packets_sent``, ``packets_received``, ``retransmits``, ``timeouts``, ``naks_sent``,
        ``naks_received``, ``duplicates``, ``out_of_sequence`` and ``icrc_errors``.
        """
        ...
