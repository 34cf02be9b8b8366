"""RC responder: order, duplicates, gaps and placement of one queue pair's incoming RDMA WRITEs.

NetReduce §3.2 ("Reliability"): the receiver finds the missing PSN and sends a NAK, the sender goes
back. This core works on vectors: one event carries a run of packets of one opcode, and the answer
says which rows go to which address. Payload bytes stay with the shell.

* The expected packet, and all that follow it in order, are placed. A packet that asks for an ACK gets
  a cumulative one: of several in one run, only the last, which says all that the others would have.
* An earlier PSN is a duplicate: it is not placed, and answered with the newest PSN received in order.
  A stretch of duplicates in one run gets one ACK. Soft-RoCE sends one for each; all would be equal.
* A later PSN is a gap: one NAK names the expected PSN, then silence until that has arrived.
* An immediate needs a posted receive; without one, RNR NAK, then silence until the packet comes again.
* A packet that RC forbids (a MIDDLE without its FIRST, a length that does not add up, an address
  outside registered memory) is answered with a fatal NAK and puts the queue pair in its error state.

Invariants:
1. Rows are placed in PSN order, each PSN once; the addresses of a message are contiguous from its RETH.
2. A receive is consumed, in order of posting, exactly when the last packet of a message with immediate
   is placed; the message's rows are placed before that, by the same or earlier steps.
3. ``msn`` counts whole messages; it never exceeds the PSNs received.
4. Between two NAKs for gaps or missing receives, an expected packet has been placed.
5. After a fatal NAK nothing is placed or consumed, and nothing answered but the failed PSN.

Memory permission is a fact that comes with each run (``permitted``): the shell looks up the address
that the run starts at, ``place_at`` for a message in progress, so a region that was deregistered in
mid-message stops the message.

Departures. An ACK may cover several packets that asked for one: the specification allows coalescing,
and every reply here covers all PSNs before it, so a later one says at least as much as an earlier ACK.
When the failed packet comes again, the fatal NAK is repeated, since the first may have been lost and a
requester that retries for ever would never learn; hardware stays silent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from inaproto.core.rc_types import (
    ACK,
    FATAL_NAKS,
    MESSAGE_BYTES_MAX,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_SEQUENCE,
    RNR_NAK,
    RNR_TIMER_NS,
    Outcome,
)
from inaproto.errors import Blame, ConfigError, LocalMisuse
from inaproto.units import PSN_MASK, Instant
from inaproto.wire.roce import Opcode

_STARTS: Final = frozenset({Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM})
_ENDS: Final = frozenset(
    {Opcode.RC_WRITE_LAST, Opcode.RC_WRITE_LAST_IMM, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM}
)
_IMMEDIATE: Final = frozenset({Opcode.RC_WRITE_LAST_IMM, Opcode.RC_WRITE_ONLY_IMM})
_WRITES: Final = _STARTS | _ENDS | {Opcode.RC_WRITE_MIDDLE}
_MSN_MASK: Final = 0xFF_FFFF


@dataclass(frozen=True, slots=True)
class ResponderConfig:
    initial_psn: int
    """First PSN that the peer sends."""
    mtu: int = 1024
    receives_max: int = 1024
    rnr_timer: int = 12
    """Code of the wait that an RNR NAK asks for; 12 is 0.64 ms."""
    psn_mask: int = PSN_MASK

    def __post_init__(self) -> None:
        limits = (
            ("initial_psn", 0, self.psn_mask),
            ("mtu", 1, 4096),
            ("receives_max", 1, 1 << 20),
            ("rnr_timer", 0, len(RNR_TIMER_NS) - 1),
        )
        for name, least, most in limits:
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be {least} to {most}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class PostReceive:
    wr_id: int


@dataclass(frozen=True, slots=True, eq=False)
class RunArrived:
    """Packets of one opcode, payload length and extension headers, in arrival order, ICRC verified."""

    opcode: int
    psn: NDArray[np.int64]
    """int64, shape (n,)."""
    ack_request: NDArray[np.bool_]
    payload_bytes: int
    """Of each packet, without pad."""
    reth: tuple[int, int, int] | None
    """(virtual address, rkey, DMA length)"""
    imm: int | None
    permitted: bool
    """The peer may write where this run starts (its RETH, or ``place_at``) up to the message's end."""


@dataclass(frozen=True, slots=True)
class ResponderClosing:
    """The queue pair goes away: posted receives are flushed."""


ResponderEvent = PostReceive | RunArrived | ResponderClosing


class MessageInProgress(NamedTuple):
    """Where the next packet of a started message goes."""

    va: int
    rkey: int
    remaining: int
    nbytes: int
    """Of the whole message."""


@dataclass(frozen=True, slots=True)
class Place:
    """Copy the payloads of ``rows`` rows of the run, from ``first_row`` on, to ``va`` and following."""

    va: int
    rkey: int
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """A message with immediate is whole; it consumed the receive ``wr_id``."""

    wr_id: int
    imm: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Send an acknowledge packet."""

    psn: int
    syndrome: int
    msn: int


@dataclass(frozen=True, slots=True)
class ReceiveFlushed:
    wr_id: int


@dataclass(frozen=True, slots=True)
class ResponderFailed:
    """The queue pair must go to its error state; the flushed receives and the fatal NAK precede this."""

    outcome: Outcome


ResponderAction = Place | Deliver | Reply | ReceiveFlushed | ResponderFailed | Blame


class ResponderState(Enum):
    READY = "ready"
    ERROR = "error"
    CLOSED = "closed"


@dataclass(slots=True)
class ResponderCounters:
    packets: int = 0
    """Placed, each PSN once."""
    messages: int = 0
    duplicates: int = 0
    out_of_sequence: int = 0
    naks: int = 0
    rnr_naks: int = 0
    ignored: int = 0
    """Arrived after the queue pair had failed."""


@dataclass(frozen=True, slots=True)
class ResponderView:
    state: ResponderState
    expected_psn: int
    msn: int
    receives: int
    silent: bool
    in_progress: MessageInProgress | None


def append_reply(replies: list[Reply], reply: Reply) -> None:
    """Add the newest reply of a queue pair to those not sent yet; it makes an ACK just before it needless."""
    if replies and replies[-1].syndrome == ACK:
        replies.pop()
    replies.append(reply)


class RcResponder:
    """The state machine; see the module's text for its rules and invariants."""

    def __init__(self, config: ResponderConfig) -> None:
        self.config: Final = config
        self.counters: Final = ResponderCounters()
        self._half = (config.psn_mask + 1) >> 1
        self._state = ResponderState.READY
        self._expected = config.initial_psn
        self._msn = 0
        self._silent = False  # a NAK asked for the expected packet
        self._fatal: int | None = None  # syndrome that ended it
        self._message: MessageInProgress | None = None
        self._receives: deque[int] = deque()

    @property
    def deadline(self) -> Instant | None:
        """A responder never waits."""
        return None

    @property
    def place_at(self) -> MessageInProgress | None:
        return self._message

    def view(self) -> ResponderView:
        return ResponderView(
            state=self._state,
            expected_psn=self._expected,
            msn=self._msn,
            receives=len(self._receives),
            silent=self._silent,
            in_progress=self._message,
        )

    def step(self, event: ResponderEvent, now: Instant) -> list[ResponderAction]:
        """Raises ``LocalMisuse`` for a receive that does not fit or comes after closing."""
        match event:
            case PostReceive():
                return self._post(event)
            case RunArrived():
                return self._arrived(event)
            case ResponderClosing():
                actions = self._flush()
                self._state = ResponderState.CLOSED
                self._fatal = None
                return actions
            case _:
                assert_never(event)

    def _post(self, receive: PostReceive) -> list[ResponderAction]:
        if self._state is ResponderState.CLOSED:
            raise LocalMisuse("receive posted to a closed queue pair")
        if self._state is ResponderState.ERROR:
            return [ReceiveFlushed(receive.wr_id)]
        if len(self._receives) >= self.config.receives_max:
            raise LocalMisuse(f"receive queue full: {self.config.receives_max} receives are not used yet")
        self._receives.append(receive.wr_id)
        return []

    def _flush(self) -> list[ResponderAction]:
        flushed: list[ResponderAction] = [ReceiveFlushed(wr_id) for wr_id in self._receives]
        self._receives.clear()
        self._message = None
        return flushed

    # ---- runs ------------------------------------------------------------------------------------

    def _arrived(self, run: RunArrived) -> list[ResponderAction]:
        """Cut the run into stretches of expected, repeated and early packets and handle each whole."""
        n = len(run.psn)
        actions: list[ResponderAction] = []
        replies: list[Reply] = []
        row = 0
        while row < n:
            if self._state is not ResponderState.READY:
                self.counters.ignored += n - row
                if self._fatal is not None and self._expected in run.psn[row:]:
                    append_reply(replies, self._reply(self._fatal))
                break
            ahead = self._ahead(run.psn[row:])
            nearest = int(ahead[0])
            if nearest == 0:
                stretch = _leading(ahead == np.arange(n - row))
                row += self._in_order(run, row, stretch, actions, replies)
            elif nearest < 0:
                stretch = _leading(ahead < 0)
                row += stretch
                self.counters.duplicates += stretch
                append_reply(replies, self._reply(ACK))
            else:
                stretch = _leading(ahead > 0)
                row += stretch
                self._gap(stretch, replies)
        # A failed queue pair says so last, after its fatal NAK.
        if actions and isinstance(actions[-1], ResponderFailed):
            return [*actions[:-1], *replies, actions[-1]]
        return actions + replies

    def _ahead(self, psn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Signed distance of PSNs from the expected one."""
        wrapped: NDArray[np.int64] = (psn - self._expected + self._half) & self.config.psn_mask
        return wrapped - self._half

    def _reply(self, syndrome: int) -> Reply:
        """ACKs name the newest PSN received in order, NAKs the expected one."""
        psn = self._expected - 1 if syndrome == ACK else self._expected
        return Reply(psn & self.config.psn_mask, syndrome, self._msn)

    def _gap(self, packets: int, replies: list[Reply]) -> None:
        self.counters.out_of_sequence += packets
        if not self._silent:
            self._silent = True
            self.counters.naks += 1
            append_reply(replies, self._reply(NAK_SEQUENCE))

    def _in_order(
        self, run: RunArrived, row: int, stretch: int, actions: list[ResponderAction], replies: list[Reply]
    ) -> int:
        """Place up to ``stretch`` expected rows; returns how many rows are dealt with, at least one."""
        placed = 0
        while placed < stretch:
            fault = self._fault(run)
            if fault is not None:
                self._fail(run, fault, actions, replies)
                return placed + 1
            if run.opcode in _IMMEDIATE and not self._receives:
                self._silent = True
                self.counters.rnr_naks += 1
                append_reply(replies, self._reply(RNR_NAK | self.config.rnr_timer))
                return placed + 1
            rows = self._place(run, row + placed, stretch - placed, actions)
            if run.ack_request[row + placed : row + placed + rows].any():
                append_reply(replies, self._reply(ACK))
            placed += rows
        return placed

    def _fault(self, run: RunArrived) -> tuple[int, str] | None:
        """Why the next row may not be placed: (NAK syndrome, rule); None if it may."""
        if run.opcode not in _WRITES:
            return NAK_INVALID_REQUEST, "opcode not served"
        if (run.reth is not None) != (run.opcode in _STARTS) or (run.imm is not None) != (
            run.opcode in _IMMEDIATE
        ):
            return NAK_INVALID_REQUEST, "headers do not fit the opcode"
        if run.reth is not None:
            if self._message is not None:
                return NAK_INVALID_REQUEST, "message begun inside another"
            left = run.reth[2]
        else:
            if self._message is None:
                return NAK_INVALID_REQUEST, "no message begun"
            left = self._message.remaining
        if run.opcode in _ENDS:
            fits = run.payload_bytes == left <= self.config.mtu
        else:
            fits = run.payload_bytes == self.config.mtu < left <= MESSAGE_BYTES_MAX
        if not fits:
            return NAK_INVALID_REQUEST, "lengths do not add up"
        if left and not run.permitted:
            return NAK_REMOTE_ACCESS, "address not permitted"
        return None

    def _place(self, run: RunArrived, row: int, rows: int, actions: list[ResponderAction]) -> int:
        """Place the next row, or as many MIDDLE rows as belong to the message; returns how many."""
        if run.reth is not None:
            self._message = MessageInProgress(*run.reth, run.reth[2])
        message = self._message
        assert message is not None  # _fault saw to it
        middles = (message.remaining - 1) // self.config.mtu
        rows = min(rows, middles) if run.opcode == Opcode.RC_WRITE_MIDDLE else 1
        nbytes = rows * run.payload_bytes
        if nbytes:
            actions.append(Place(message.va, message.rkey, row, rows))
        self._message = message._replace(va=message.va + nbytes, remaining=message.remaining - nbytes)
        self._expected = (self._expected + rows) & self.config.psn_mask
        self._silent = False
        self.counters.packets += rows
        if run.opcode in _ENDS:
            self._message = None
            self._msn = (self._msn + 1) & _MSN_MASK
            self.counters.messages += 1
            if run.imm is not None:
                actions.append(Deliver(self._receives.popleft(), run.imm, message.nbytes))
        return rows

    def _fail(
        self, run: RunArrived, fault: tuple[int, str], actions: list[ResponderAction], replies: list[Reply]
    ) -> None:
        syndrome, rule = fault
        evidence = (
            f"opcode 0x{run.opcode:02x} with {run.payload_bytes} bytes, RETH {run.reth}, "
            f"at PSN {self._expected}, message {self._message}"
        )
        self.counters.naks += 1
        append_reply(replies, self._reply(syndrome))
        actions.append(Blame("requester", rule, evidence))
        actions += self._flush()
        self._state = ResponderState.ERROR
        self._fatal = syndrome
        actions.append(ResponderFailed(FATAL_NAKS[syndrome]))


def _leading(flags: NDArray[np.bool_]) -> int:
    """How many flags at the beginning are set."""
    return len(flags) if flags.all() else int(flags.argmin())
