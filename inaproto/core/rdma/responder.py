"""RC responder: order, duplicates, gaps and placement of one queue pair's incoming RDMA WRITEs.

NetReduce §3.2 ("Reliability"): the receiver finds the missing PSN and sends a NAK, the sender goes
back. This core works on vectors: one event carries a run of packets of one opcode, and the answer
says which rows go to which address. A packet that arrives alone comes without arrays, which would cost
more than the rules; these are the same. Payload bytes stay with the shell.

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

Where a shell has compiled kernels it places what this core ``awaits`` itself, and tells it once of all
(``StretchPlaced``): packets of one message, the next ones, each intact and permitted, as ``_run`` would have
placed them.

Departures. An ACK may cover several packets that asked for one: the specification allows coalescing,
and every reply here covers all PSNs before it, so a later one says at least as much as an earlier ACK.
When the failed packet comes again, the fatal NAK is repeated, since the first may have been lost and a
requester that retries for ever would never learn; hardware stays silent.
"""

from __future__ import annotations

from collections import deque
from typing import Final, SupportsInt, assert_never

import numpy as np
from numpy.typing import NDArray

from inaproto.core.rdma.reliable_connection import (
    ACK,
    FATAL_NAKS,
    MESSAGE_BYTES_MAX,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_SEQUENCE,
    RNR_NAK,
)
from inaproto.core.rdma.responder_events import (
    Awaited,
    Deliver,
    MessageInProgress,
    PacketArrived,
    Place,
    PostReceive,
    ReceiveFlushed,
    Reply,
    ResponderAction,
    ResponderClosing,
    ResponderConfig,
    ResponderCounters,
    ResponderEvent,
    ResponderFailed,
    ResponderState,
    ResponderView,
    RunArrived,
    StretchBehind,
    StretchPlaced,
    append_reply,
)
from inaproto.errors import Blame, InvariantBroken, LocalMisuse
from inaproto.units import Instant
from inaproto.wire.roce import Opcode

__all__ = [
    "Awaited",
    "Deliver",
    "MessageInProgress",
    "PacketArrived",
    "Place",
    "PostReceive",
    "RcResponder",
    "ReceiveFlushed",
    "Reply",
    "ResponderAction",
    "ResponderClosing",
    "ResponderConfig",
    "ResponderCounters",
    "ResponderEvent",
    "ResponderFailed",
    "ResponderState",
    "ResponderView",
    "RunArrived",
    "StretchBehind",
    "StretchPlaced",
    "append_reply",
]

STARTS: Final = frozenset({Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM})
ENDS: Final = frozenset(
    {Opcode.RC_WRITE_LAST, Opcode.RC_WRITE_LAST_IMM, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM}
)
_IMMEDIATE: Final = frozenset({Opcode.RC_WRITE_LAST_IMM, Opcode.RC_WRITE_ONLY_IMM})
MIDDLE: Final = Opcode.RC_WRITE_MIDDLE
WRITES: Final = STARTS | ENDS | {MIDDLE}
_MSN_MASK: Final = 0xFF_FFFF


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

    @property
    def awaits(self) -> Awaited | None:
        """What may be placed before it is told, as :class:`StretchPlaced`; None: nothing may."""
        if self._state is not ResponderState.READY:
            return None
        return Awaited(self._expected, self._message, bool(self._receives))

    def expects(self, psn: int) -> bool:
        """Whether the next packet in order has that PSN."""
        return psn == self._expected

    def room_behind(self, psn: int) -> tuple[MessageInProgress, int] | None:
        """Where a packet behind a gap goes, neither the first nor the last of its message, and how many from
        it on may be placed there before it is told, as :class:`StretchBehind`; None: none may."""
        return None

    def place_of(self, psn: SupportsInt) -> MessageInProgress | None:
        """Where a packet without RETH goes, and what follows it in its message; None: nowhere.

        What has come already may be said to go anywhere.
        """
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
            case PacketArrived():
                return self._packet(event)
            case RunArrived():
                return self._run(event)
            case StretchPlaced():
                return self._placed(event)
            case StretchBehind():
                return self._placed_behind(event)
            case PostReceive():
                return self._post(event)
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

    # ---- packets ---------------------------------------------------------------------------------

    def _run(self, run: RunArrived) -> list[ResponderAction]:
        """Cut the run into stretches of expected, repeated and early packets and handle each whole."""
        n = len(run.psn)
        actions: list[ResponderAction] = []
        replies: list[Reply] = []
        row = 0
        while row < n:
            if self._state is not ResponderState.READY:
                self._ignored(n - row, replies, failed_again=self._expected in run.psn[row:])
                break
            ahead = self._ahead(run.psn[row:])
            nearest = int(ahead[0])
            if nearest == 0:
                stretch = leading(ahead == np.arange(n - row))
                row += self._in_order(run, row, stretch, actions, replies)
            elif nearest < 0:
                stretch = leading(ahead < 0)
                row += stretch
                self._repeated(stretch, replies)
            else:
                stretch = self._early(ahead)
                self._gap(run, row, nearest, stretch, actions, replies)
                row += stretch
        return _in_order_of_saying(actions, replies)

    def _packet(self, packet: PacketArrived) -> list[ResponderAction]:
        """What ``_run`` does with a run of one."""
        actions: list[ResponderAction] = []
        replies: list[Reply] = []
        ahead = (packet.psn - self._expected) & self.config.psn_mask
        if self._state is not ResponderState.READY:
            self._ignored(1, replies, failed_again=ahead == 0)
        elif ahead == 0:
            if self._take(packet, 0, 1, actions, replies) and packet.ack_request:
                if replies:
                    append_reply(replies, self._received())
                else:  # as ever on a lossless path
                    replies.append(self._received())
        elif ahead >= self._half:
            self._repeated(1, replies)
        else:
            self._gap(packet, 0, ahead, 1, actions, replies)
        return _in_order_of_saying(actions, replies) if replies else actions

    def _placed(self, stretch: StretchPlaced) -> list[ResponderAction]:
        """What ``_run`` does with packets that are right, but for ``Place``."""
        packets, nbytes, begun, ended, imm, asked = stretch
        message = self._message if begun is None else begun
        if (
            self._state is not ResponderState.READY
            or message is None
            or (begun is not None and self._message is not None)
            or not 0 <= asked <= packets
            or (message.remaining != nbytes if ended else not 0 < nbytes < message.remaining)
            or (imm is not None and not (ended and self._receives))
        ):
            raise InvariantBroken(f"{stretch} was placed where {self._message} is in progress")
        actions: list[ResponderAction] = []
        first, msn = self._expected, self._msn
        self._expected = (first + packets) & self.config.psn_mask
        self._silent = False
        self.counters.packets += packets
        if ended:
            self._message = None
            self._msn = (msn + 1) & _MSN_MASK
            self.counters.messages += 1
            if imm is not None:
                actions.append(Deliver(self._receives.popleft(), imm, message.nbytes))
        else:
            va, rkey, remaining, total = message
            self._message = MessageInProgress(va + nbytes, rkey, remaining - nbytes, total)
        if asked:
            newest = (first + asked - 1) & self.config.psn_mask
            actions.append(Reply(newest, ACK, self._msn if asked == packets else msn))
        return actions

    def _placed_behind(self, stretch: StretchBehind) -> list[ResponderAction]:
        raise InvariantBroken(f"{stretch} was placed where nothing is kept behind a gap")

    def _ignored(self, packets: int, replies: list[Reply], *, failed_again: bool) -> None:
        """Nothing passes any more; the packet that failed gets its answer again."""
        self.counters.ignored += packets
        if self._fatal is not None and failed_again:
            append_reply(replies, self._reply(self._fatal))

    def _repeated(self, packets: int, replies: list[Reply]) -> None:
        self.counters.duplicates += packets
        append_reply(replies, self._received())

    def _ahead(self, psn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Signed distance of PSNs from the expected one."""
        wrapped: NDArray[np.int64] = (psn - self._expected + self._half) & self.config.psn_mask
        return wrapped - self._half

    def _reply(self, syndrome: int) -> Reply:
        """NAKs name the expected PSN."""
        return Reply(self._expected, syndrome, self._msn)

    def _received(self) -> Reply:
        """What has come: the newest PSN received in order."""
        return Reply((self._expected - 1) & self.config.psn_mask, ACK, self._msn)

    def _early(self, ahead: NDArray[np.int64]) -> int:
        """How many rows behind a gap, the first of which is, are dealt with at once."""
        return leading(ahead > 0)

    def _gap(
        self,
        run: RunArrived | PacketArrived,
        row: int,
        distance: int,
        rows: int,
        actions: list[ResponderAction],
        replies: list[Reply],
    ) -> None:
        """Rows behind a gap; the first is that many PSNs behind the expected one."""
        self.counters.out_of_sequence += rows
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
            rows = self._take(run, row + placed, stretch - placed, actions, replies)
            if not rows:
                return placed + 1
            if run.ack_request[row + placed : row + placed + rows].any():
                append_reply(replies, self._received())
            placed += rows
        return placed

    def _take(
        self,
        run: RunArrived | PacketArrived,
        row: int,
        rows: int,
        actions: list[ResponderAction],
        replies: list[Reply],
    ) -> int:
        """Place the expected row, with up to ``rows`` that belong to it; 0 if it was refused."""
        fault = self._fault(run, self._message)
        if fault is not None:
            self._fail(run, fault, actions, replies)
            return 0
        if run.imm is not None and not self._receives:
            self._not_ready(replies)
            return 0
        return self._place(run, row, rows, actions)

    def _fault(
        self, run: RunArrived | PacketArrived, message: MessageInProgress | None
    ) -> tuple[int, str] | None:
        """Why a row may not be placed, ``message`` being in progress there: (NAK syndrome, rule); None if it
        may."""
        if run.opcode not in WRITES:
            return NAK_INVALID_REQUEST, "opcode not served"
        if (run.reth is not None) != (run.opcode in STARTS) or (run.imm is not None) != (
            run.opcode in _IMMEDIATE
        ):
            return NAK_INVALID_REQUEST, "headers do not fit the opcode"
        if run.reth is not None:
            if message is not None:
                return NAK_INVALID_REQUEST, "message begun inside another"
            left = run.reth[2]
        else:
            if message is None:
                return NAK_INVALID_REQUEST, "no message begun"
            left = message.remaining
        if run.opcode in ENDS:
            fits = run.payload_bytes == left <= self.config.mtu
        else:
            fits = run.payload_bytes == self.config.mtu < left <= MESSAGE_BYTES_MAX
        if not fits:
            return NAK_INVALID_REQUEST, "lengths do not add up"
        if left and not run.permitted:
            return NAK_REMOTE_ACCESS, "address not permitted"
        return None

    def _place(
        self, run: RunArrived | PacketArrived, row: int, rows: int, actions: list[ResponderAction]
    ) -> int:
        """Place the next row, or as many MIDDLE rows as belong to the message; returns how many."""
        if run.reth is not None:
            va, rkey, total = run.reth
            remaining = total
        else:
            assert self._message is not None  # _fault saw to it
            va, rkey, remaining, total = self._message
        if run.opcode == MIDDLE:
            rows = min(rows, (remaining - 1) // self.config.mtu)
        else:
            rows = 1
        nbytes = rows * run.payload_bytes
        if nbytes:
            actions.append(Place(va, rkey, row, rows))
        self._expected = (self._expected + rows) & self.config.psn_mask
        self._silent = False
        self.counters.packets += rows
        if run.opcode in ENDS:
            self._whole(run.imm, total, actions)
        else:
            self._message = MessageInProgress(va + nbytes, rkey, remaining - nbytes, total)
        return rows

    def _whole(self, imm: int | None, nbytes: int, actions: list[ResponderAction]) -> None:
        """The message in progress is whole; if it has an immediate, there is a receive for it."""
        self._message = None
        self._msn = (self._msn + 1) & _MSN_MASK
        self.counters.messages += 1
        if imm is not None:
            actions.append(Deliver(self._receives.popleft(), imm, nbytes))

    def _not_ready(self, replies: list[Reply]) -> None:
        """There is no receive for the expected packet."""
        self._silent = True
        self.counters.rnr_naks += 1
        append_reply(replies, self._reply(RNR_NAK | self.config.rnr_timer))

    def _fail(
        self,
        run: RunArrived | PacketArrived,
        fault: tuple[int, str],
        actions: list[ResponderAction],
        replies: list[Reply],
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


def _in_order_of_saying(actions: list[ResponderAction], replies: list[Reply]) -> list[ResponderAction]:
    """Replies behind what they confirm; a failed queue pair says so last, after its fatal NAK."""
    if not replies:
        return actions
    if actions and isinstance(actions[-1], ResponderFailed):
        return [*actions[:-1], *replies, actions[-1]]
    return actions + replies


def leading(flags: NDArray[np.bool_]) -> int:
    """How many flags at the beginning are set."""
    return len(flags) if flags.all() else int(flags.argmin())
