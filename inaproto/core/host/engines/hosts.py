"""A rank of a ring whose hosts add up themselves, without an accelerator (docs/protocol.md 9).

What the two such paths share, the chain (:mod:`inaproto.core.host.engines.chain`) and the ring
(:mod:`inaproto.core.host.engines.ring`): a rank starts a message with its own part, or combines what
came with its own part and passes *accumulators* on (:mod:`inaproto.core.plan.accumulators`), or, the last
one, has the *result*, which it passes on too. A rank's *turn* at a message is how many have added to it
before.

Slots: those of :mod:`inaproto.core.host.engines.host_messages`; staging slots have the numbers of the header
slots with which they are sent. The last rank of a message combines into the receive slot in which others get
the result.

Invariants: those of the operations (:mod:`inaproto.core.host.operation_queue`); nothing is combined, taken or
passed on unless every field of its header is the expected one; a header slot, and a slot that this rank
writes, is used again only when the send that used it is complete; after a failure, or once halted, nothing
is sent, combined or taken any more.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, assert_never

from inaproto.core.host.engines.host_messages import HostMessages
from inaproto.core.host.engines.path import PathEngine
from inaproto.core.host.operation_queue import OperationQueue, Part, RingView, Source
from inaproto.core.host.operations import (
    Fail,
    Filled,
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
from inaproto.core.host.recovery import Recovery
from inaproto.core.plan.accumulators import Accumulators
from inaproto.errors import Blame, FabricLost
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


HostsAction = (
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


class HostsEngine(PathEngine):
    """What comes in, what a rank adds and what it takes; when it may, the paths say."""

    def __init__(
        self,
        config: RingConfig,
        accumulators: Accumulators,
        operations: OperationQueue | None,
        recovery: Recovery,
    ) -> None:
        self._messages = HostMessages(config, accumulators)
        super().__init__(config, operations, recovery)
        self._accumulators = accumulators
        self._last_turn = config.ring_size - 1
        self._first = self._due = max(0, recovery.progress - config.window_messages)
        """The first message of this ring; the next result to be taken. Counted as the job's, where no other
        path is beside it."""

    @property
    def slot_bytes(self) -> int:
        """Size of receive and staging slots."""
        return self._accumulators.slot_bytes(self._config.tensor_bytes)

    def view(self) -> RingView:
        """``messages_sent`` and ``messages_received`` count contributions and results taken."""
        return RingView.of(
            self._operations,
            sent=self._contributed,
            received=self._due - self._first,
            unacknowledged=self._messages.unacknowledged,
        )

    def step(self, event: RingEvent, now: Instant) -> list[HostsAction]:
        """Apply ``event``; the actions are to be performed in their order."""
        match event:
            case Submit(operation):
                return [*self._operations.submit(operation), *self._advance(now)]
            case ResultArrived():
                return [] if self._is_over else [*self._arrival(event, now), *self._advance(now)]
            case SendCompleted(msg_id):
                return [] if self._is_over else [*self._send_completed(msg_id), *self._advance(now)]
            case Filled():
                self._operations.filled(event)
                return self._advance(now)
            case Fail():
                return [*self._operations.fail(event)]
            case Woke():
                return [*self._operations.woke(now)]
            case _:
                assert_never(event)

    def resume(self, now: Instant) -> list[HostsAction]:
        """All ranks have connected: let the operations go on where those of the halted ring were."""
        self._connected()
        return self._advance(now)

    def _add(
        self, serial: int, part: Part, turn: int, arrived: ResultArrived | None, now: Instant
    ) -> list[HostsAction]:
        """Contribute to a message: start it, at turn 0, or combine accumulators that arrived."""
        if arrived is None:
            goes = self._accumulators_bytes(turn, part)
            return [part.post(*self._messages.send(Kind.ACCUMULATOR, serial, part, goes))]
        came = self._accumulators_bytes(turn - 1, part)
        wrong = self._messages.contradiction(arrived, Kind.ACCUMULATOR, serial, part, came)
        if wrong is not None:
            return self._break(*wrong)
        if turn == self._last_turn:
            kind, place, goes = Kind.RESULT, Place.RECEIVED, part.nbytes
        else:
            kind, place, goes = Kind.ACCUMULATOR, Place.STAGED, self._accumulators_bytes(turn, part)
        out = self._messages.slot(kind, serial)
        received = self._messages.slot(Kind.ACCUMULATOR, serial)
        operation, offset, nbytes, _, source, _ = part
        actions: list[HostsAction] = [
            Combine(received, came, place, out, goes, operation, source, offset, nbytes)
        ]
        if kind is Kind.RESULT:
            actions += self._has_result(serial, now)
        actions.append(PostSlot(*self._messages.send(kind, serial, part, goes), place, out, goes))
        return actions

    def _take(self, serial: int, part: Part, now: Instant) -> list[HostsAction]:
        """Take the result that is due, that of ``part``, from its receive slot."""
        self._due = serial + 1
        if not part.is_new:
            return []
        actions: list[HostsAction] = [
            self._operations.take(self._config.ring_id, self._messages.slot(Kind.RESULT, serial), now)
        ]
        if part.is_last:
            actions.append(self._operations.end(part.operation))
            actions += self._start_next(now)
        return actions

    def _pass_on(self, serial: int, part: Part) -> PostSlot:
        """Send a result from the receive slot into which it was written."""
        sent = self._messages.send(Kind.RESULT, serial, part, part.nbytes)
        return PostSlot(*sent, Place.RECEIVED, sent.slot, part.nbytes)

    def _send_completed(self, msg_id: int) -> list[HostsAction]:
        wrong = self._messages.send_completed(msg_id)
        return [] if wrong is None else self._break(wrong)

    def _accumulators_bytes(self, turn: int, part: Part) -> int:
        return self._accumulators.stack_bytes(turn, part.operation.dtype, part.operation.op, part.nbytes)

    def _break(self, blame: Blame, code: str = FabricLost.code) -> list[HostsAction]:
        return [*self._break_ring(blame, code=code)]

    # --- what is for the path to say

    @property
    def _contributed(self) -> int:
        """Messages of this ring that this rank has contributed to."""
        raise NotImplementedError

    def _advance(self, now: Instant) -> list[HostsAction]:
        """Start operations, contribute and pass on, until that has to wait for something."""
        raise NotImplementedError

    def _arrival(self, event: ResultArrived, now: Instant) -> list[HostsAction]:
        """A message came in, of a ring that is not over."""
        raise NotImplementedError

    def _has_result(self, serial: int, now: Instant) -> list[HostsAction]:
        """The result of a message to which this rank has contributed is in its receive slot."""
        raise NotImplementedError
