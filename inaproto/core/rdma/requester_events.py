"""Configuration, events, actions and counters of the RC requester (:mod:`inaproto.core.rdma.requester`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from inaproto.core.rdma.reliable_connection import RETRY_FOREVER, TIMEOUT_EXPONENT_MAX, Outcome
from inaproto.errors import Blame, ConfigError
from inaproto.units import PSN_MASK, Instant, S
from inaproto.wire.behind_gap import BEHIND_PACKETS_MAX, AtSwitch, BehindGap


@dataclass(frozen=True, slots=True)
class RequesterConfig:
    initial_psn: int
    mtu: int = 1024
    outstanding_packets_max: int = 512
    """Widest window in PSNs; Soft-RoCE has 129."""
    messages_max: int = 1024
    """Depth of the send queue."""
    ack_every: int = 64
    timeout: int = 14
    """The first retransmission timer is 4.096 us * 2**timeout; 0 disables it."""
    retry_count: int = RETRY_FOREVER
    rnr_retry: int = RETRY_FOREVER
    backoff_doublings_max: int = 6
    retransmit_ns_max: int = S
    """Bound of the doubled timer; a longer first timer is kept as it is."""
    spread: int = 0
    """Number of its own, 32 bits, from which follows how much sooner a timer expires that was doubled
    ``SPREAD_DOUBLINGS`` times or more: by up to a quarter. 0: not at all."""
    psn_mask: int = PSN_MASK
    behind_max: int = 0
    """Packets behind a missing one that the peer keeps, on a selective connection; 0: it keeps none."""
    pace_burst_bytes: int = 0
    pace_quantum_ns: int = 0
    """How packets leave that have a rate: :class:`~inaproto.core.rdma.pacing.PaceConfig`."""

    def __post_init__(self) -> None:
        limits = (
            ("initial_psn", 0, self.psn_mask),
            ("mtu", 1, 4096),
            ("outstanding_packets_max", 1, self.psn_mask >> 1),
            ("behind_max", 0, min(BEHIND_PACKETS_MAX, self.psn_mask >> 1)),
            ("messages_max", 1, 1 << 20),
            ("ack_every", 1, self.psn_mask),
            ("timeout", 0, TIMEOUT_EXPONENT_MAX),
            ("retry_count", 0, RETRY_FOREVER),
            ("rnr_retry", 0, RETRY_FOREVER),
            ("backoff_doublings_max", 0, 31),
            ("spread", 0, 0xFFFF_FFFF),
        )
        for name, least, most in limits:
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be {least} to {most}, not {getattr(self, name)}")


class PostWrite(NamedTuple):
    """Send ``nbytes`` as one RDMA WRITE, with immediate unless ``imm`` is None."""

    wr_id: int
    nbytes: int
    remote_va: int
    rkey: int
    imm: int | None


class AckArrived(NamedTuple):
    """An acknowledge packet with a valid ICRC came back: its PSN and AETH."""

    psn: int
    syndrome: int
    msn: int
    behind: BehindGap | AtSwitch | None = None
    """What a NAK of a selective connection said of packets behind the missing one."""


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """The deadline may have passed, and all that was received until now has been handed over; too early a
    call does nothing."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The queue pair goes away: everything still held is flushed."""


@dataclass(frozen=True, slots=True)
class RateChanged:
    """Packets leave at this rate from now on; None: as the window lets them."""

    rate_bps: int | None


@dataclass(frozen=True, slots=True)
class LinkWasSilent:
    """Since that instant nothing has left, as the link was paused; what was sent since then leaves now."""

    since: Instant


RequesterEvent = PostWrite | AckArrived | TimerExpired | RateChanged | LinkWasSilent | Closing


class Message(NamedTuple):
    """A posted write with its place in the sequence space."""

    write: PostWrite
    serial: int
    first_seq: int
    packets: int


class Transmit(NamedTuple):
    """Send ``count`` packets of a message from packet ``first_packet`` on, the first with ``psn``."""

    message: Message
    first_packet: int
    count: int  # type: ignore[assignment]  # of packets; a tuple's own ``count`` means nothing here
    psn: int
    ack_packets: range
    """Packets of the message, within those to send, that carry AckReq (besides a last packet)."""


class Complete(NamedTuple):
    """A work request ended. ``message`` is None if it was refused because the queue pair had failed."""

    wr_id: int
    outcome: Outcome
    message: Message | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The queue pair went to its error state; the completions that belong to it precede this."""

    outcome: Outcome


RequesterAction = Transmit | Complete | Failed | Blame


class RequesterState(Enum):
    READY = "ready"
    ERROR = "error"
    CLOSED = "closed"


@dataclass(slots=True)
class RequesterCounters:
    packets: int = 0
    retransmits: int = 0
    timeouts: int = 0
    timers_late: int = 0
    """Timers that were set again because the process had not run."""
    naks: int = 0
    naks_ignored: int = 0
    rnr_naks: int = 0
    acks_ignored: int = 0


@dataclass(frozen=True, slots=True)
class RequesterView:
    state: RequesterState
    una_psn: int
    next_psn: int
    outstanding: int
    window: int
    messages: int
    retries: int
    rnr_waiting: bool
    round_trip_ns: int | None
