"""All-reduces of one rank along a chain of hosts, without an accelerator (protocol.md section 5, "chain").

The connections are the ring's: each rank sends to its successor. Rank 0 starts a message with its own part;
each rank combines what comes with its own and passes the *accumulators* on
(:mod:`inaproto.core.accumulators`); the last rank has the *result*, which goes on, once more around, to the
last rank but one. Of each tensor byte a host sends two (more where accumulators are wider or several); a
bandwidth-optimal ring sends almost as many, but adds in another order for each part.

A rank starts message m, or passes its accumulators on, only when it has the result of m - N. So whoever has
result m knows that all have result m - N: N receive slots for each of the two kinds are enough, and ranks
are never more than N results apart, as on the path through the accelerator.

Slots: those of :mod:`inaproto.core.host_messages`. Accumulators are combined into staging slot
``serial mod N``; the last rank combines into the receive slot in which other ranks get the result, where it
is kept as theirs are.

Invariants: those of the operations (:mod:`inaproto.core.operation_queue`); nothing is combined, taken or
passed on unless every field of its header is the expected one; a header slot, and a slot that this rank
writes, is used again only when the send that used it is complete; after a failure, or once halted, nothing
is sent, combined or taken any more.

A result is passed on from the receive slot into which it was written. The predecessor writes the next one
there when the successor has this one, though its acknowledgement may still be on its way: a resend then has
other bytes, but the successor's transport has the message and drops what comes again.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple, assert_never

from inaproto.core.accumulators import Accumulators
from inaproto.core.host_messages import HostMessages
from inaproto.core.operation_queue import FROM_THE_START, OperationQueue, Part, RingView, Source
from inaproto.core.operations import (
    Fail,
    Operation,
    OperationDone,
    OperationFailed,
    Overdue,
    PostMessage,
    ResultArrived,
    RingBroken,
    RingConfig,
    RingEvent,
    SendCompleted,
    Stalled,
    Submit,
    TakeResult,
    Woke,
)
from inaproto.core.recovery import Recovery
from inaproto.errors import Blame, FabricLost, LocalMisuse
from inaproto.units import Instant, MsgId
from inaproto.wire.host_header import Kind


class Place(Enum):
    """Slots of a rank; in each, the payload begins behind the room for a header."""

    RECEIVED = "received"
    """Receive slots, 2N."""
    STAGED = "staged"
    """Staging slots, as many and of the same size; which of them are used, the engines say."""


class PostSlot(NamedTuple):
    """Write ``header`` into header slot ``slot``, then post it and ``nbytes`` of slot ``at`` of ``place``."""

    msg_id: MsgId
    slot: int
    header: bytes
    place: Place
    at: int
    nbytes: int


class Combine(NamedTuple):
    """``Accumulators.combine``: ``came`` bytes of receive slot ``slot`` with this rank's own part.

    The outcome, ``goes`` bytes, goes into slot ``out`` of ``place``. The own part is ``nbytes`` from
    ``offset`` on of the operation's buffer, or what ``source`` says instead.
    """

    slot: int
    came: int
    place: Place
    out: int
    goes: int
    operation: Operation
    source: Source
    offset: int
    nbytes: int


ChainAction = (
    PostMessage
    | PostSlot
    | Combine
    | TakeResult
    | OperationDone
    | OperationFailed
    | Stalled
    | Overdue
    | Blame
    | RingBroken
)


class _Forward(NamedTuple):
    serial: int
    part: Part
    slot: int


class ChainEngine:
    """One rank of one ring; see the module for its invariants.

    ``operations`` are those of a ring that was halted. They go on by this one from ``resume`` on; what other
    ranks send sooner waits.
    """

    def __init__(
        self,
        config: RingConfig,
        accumulators: Accumulators,
        operations: OperationQueue | None = None,
        recovery: Recovery = FROM_THE_START,
    ) -> None:
        self._messages = HostMessages(config, accumulators)
        self._config = config
        self._accumulators = accumulators
        self._last = config.ring_size - 1
        self._passes_results_on = config.rank < self._last - 1
        self._operations = OperationQueue(config) if operations is None else operations
        self._operations.resume(config, recovery)
        self._begun = self._first = self._due = max(0, recovery.progress - config.window_messages)
        """Serials: contributed by this rank; the first of this ring; the next result."""
        self._parts: deque[Part] = deque()
        """Contributed, their results not here."""
        self._arrived: deque[ResultArrived] = deque()
        """Accumulators that this rank has not added to yet."""
        self._forwards: deque[_Forward] = deque()
        """Results to be passed on."""
        self._runs = operations is None
        self._is_halted = False

    @property
    def config(self) -> RingConfig:
        return self._config

    @property
    def slot_bytes(self) -> int:
        """Size of receive and staging slots."""
        return self._accumulators.slot_bytes(self._config.tensor_bytes)

    @property
    def deadline(self) -> Instant | None:
        """When the running operation will have stalled (again), or be overdue."""
        return self._operations.deadline

    @property
    def operations_queued(self) -> int:
        """As ``view`` has it, for who asks at every operation."""
        return len(self._operations)

    @property
    def progress(self) -> int:
        """Results taken since the job began, by all rings."""
        return self._operations.progress

    def view(self) -> RingView:
        """``messages_sent`` and ``messages_received`` count contributions and results."""
        return RingView.of(
            self._operations,
            sent=self._begun - self._first,
            received=self._due - self._first,
            unacknowledged=self._messages.unacknowledged,
        )

    def step(self, event: RingEvent, now: Instant) -> list[ChainAction]:
        """Apply ``event``; the actions are to be performed in their order."""
        match event:
            case Submit(operation):
                return [*self._operations.submit(operation), *self._advance(now)]
            case ResultArrived():
                return [] if self._is_over else [*self._arrival(event, now), *self._advance(now)]
            case SendCompleted(msg_id):
                return [] if self._is_over else [*self._send_completed(msg_id), *self._advance(now)]
            case Fail():
                return [*self._operations.fail(event)]
            case Woke():
                return [*self._operations.woke(now)]
            case _:
                assert_never(event)

    def halt(self) -> OperationQueue:
        """Take and send nothing more: this ring has ended. What it gives goes on by another one.

        Until that one is there, this engine takes submissions, failures and wake-ups as before.
        """
        self._is_halted = True
        return self._operations

    def resume(self, now: Instant) -> list[ChainAction]:
        """All ranks have connected: let the operations go on where those of the halted ring were."""
        if self._runs:
            raise LocalMisuse(f"ring {self._config.ring_id} runs already")
        self._runs = True
        return self._advance(now)

    @property
    def _is_over(self) -> bool:
        return self._is_halted or self._operations.failure is not None

    # --- what this rank can do now

    def _advance(self, now: Instant) -> list[ChainAction]:
        """Start operations, contribute and pass on, until that has to wait for something."""
        actions: list[ChainAction] = []
        while self._runs and not self._is_over:
            actions += self._operations.start_next(now)
            if self._forwards and self._messages.may_send(Kind.RESULT, self._forwards[0].serial):
                actions.append(self._forward())
            elif self._may_contribute():
                actions += self._contribute(now)
            else:
                break
        return actions

    def _may_contribute(self) -> bool:
        rank = self._config.rank
        return (
            self._operations.unsent > 0
            and self._begun < self._due + self._config.window_messages
            and (rank == 0 or bool(self._arrived))
            and self._messages.may_send(Kind.RESULT if rank == self._last else Kind.ACCUMULATOR, self._begun)
        )

    def _contribute(self, now: Instant) -> list[ChainAction]:
        rank, n = self._config.rank, self._config.window_messages
        part, serial = self._operations.next_part(), self._begun
        self._begun += 1
        if rank == 0:
            self._parts.append(part)
            goes = self._accumulators_bytes(rank, part)
            return [part.post(*self._messages.send(Kind.ACCUMULATOR, serial, part, goes))]
        came = self._accumulators_bytes(rank - 1, part)
        wrong = self._messages.contradiction(self._arrived.popleft(), Kind.ACCUMULATOR, serial, part, came)
        if wrong is not None:
            return self._break(*wrong)
        received = self._messages.slot(Kind.ACCUMULATOR, serial)
        if rank < self._last:
            self._parts.append(part)
            place, out, goes = Place.STAGED, serial % n, self._accumulators_bytes(rank, part)
            kind = Kind.ACCUMULATOR
        else:
            kind, place, goes = Kind.RESULT, Place.RECEIVED, part.nbytes
            out = self._messages.slot(kind, serial)
        operation, offset, nbytes, _, source, _ = part
        actions: list[ChainAction] = [
            Combine(received, came, place, out, goes, operation, source, offset, nbytes)
        ]
        if rank == self._last:
            actions += self._take(part, out, now)
        sent = self._messages.send(kind, serial, part, goes)
        actions.append(PostSlot(*sent, place, out, goes))
        return actions

    def _take(self, part: Part, slot: int, now: Instant) -> list[ChainAction]:
        """The next result is in receive slot ``slot``."""
        operations = self._operations
        self._due += 1
        if not part.is_new:
            return []
        actions: list[ChainAction] = [operations.take(self._config.ring_id, slot, now)]
        if part.is_last:
            actions.append(operations.end(part.operation))
        return actions

    def _forward(self) -> PostSlot:
        serial, part, at = self._forwards.popleft()
        sent = self._messages.send(Kind.RESULT, serial, part, part.nbytes)
        return PostSlot(*sent, Place.RECEIVED, at, part.nbytes)

    # --- what comes in

    def _arrival(self, event: ResultArrived, now: Instant) -> list[ChainAction]:
        is_result = event.imm & 1
        rank, kind = self._config.rank, Kind.RESULT if is_result else Kind.ACCUMULATOR
        due = self._due if is_result else self._begun + len(self._arrived)
        expected = self._messages.msg_id(kind, due)
        name = kind.name.lower()
        evidence = f"{name} {event.imm} where {expected} is due"
        if rank == (self._last if is_result else 0):
            return self._break(Blame("predecessor", f"{name} at the wrong end of the chain", evidence))
        if event.imm != expected:
            return self._break(Blame("predecessor", f"{name} out of order", evidence))
        if not is_result:
            if len(self._arrived) == self._config.window_messages:
                return self._break(Blame("predecessor", "accumulator beyond the window", evidence))
            self._arrived.append(event)
            return []
        if not self._parts:
            return self._break(Blame("predecessor", "result of a message not sent", evidence))
        part = self._parts[0]
        wrong = self._messages.contradiction(event, kind, due, part, part.nbytes)
        if wrong is not None:
            return self._break(*wrong)
        self._parts.popleft()
        slot = expected % self._config.slots
        if self._passes_results_on:
            self._forwards.append(_Forward(due, part, slot))
        return self._take(part, slot, now)

    def _send_completed(self, msg_id: int) -> list[ChainAction]:
        wrong = self._messages.send_completed(msg_id)
        return [] if wrong is None else self._break(wrong)

    def _accumulators_bytes(self, rank: int, part: Part) -> int:
        return self._accumulators.stack_bytes(rank, part.operation.dtype, part.operation.op, part.nbytes)

    # --- failures

    def _break(self, blame: Blame, code: str = FabricLost.code) -> list[ChainAction]:
        if self._config.outlived:
            self._is_halted = True
        return [*self._operations.break_ring(self._config, blame, code=code)]
