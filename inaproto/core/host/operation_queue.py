"""All-reduces of one rank, whatever path carries them: their order, their clock, their end.

What outlives a ring of queue pairs is here: the operations that wait, how many results the rank has taken,
when the running operation last made progress, and which message is the next. All ranks cut an operation into
the same messages, so a message has one *serial*, counted from the job's start, on every path.

The window is of messages, not of operations: while the last messages of one operation are on their way those
of the next follow them (``look_ahead``), as many as the window takes. The operation that *runs* is the one
whose results come next; clock, stall and blame are its. What lies ahead of it is sent only if no operation
before it that has not ended uses the same memory (``Operation.memory``): its input would be theirs to write.
That each host decides by itself, for a host that waits so sends later, and nothing else.

A tensor may be *filled* while its operation is under way: a message is sent when all its bytes are there, and
no later one before it. What was filled stays as it is until its result has replaced it, so an operation that
goes on by another ring finds, from its ``results`` on, the input.

Invariants: operations run in the order of submission, one at a time, and end once, as done or as failed;
after a failure all of them fail with its words. Messages are sent, and results taken, in serial order; the
last N results, N being the window, are ``kept`` for ranks that lack them when a ring ends
(:mod:`inaproto.core.host.recovery`). Nothing is sent ahead unless an engine asks for it; one that binds each
operation to a path when it starts (MINA section IV-C) does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from inaproto.core.host.operations import (
    Fail,
    Filled,
    Operation,
    OperationDone,
    OperationFailed,
    Overdue,
    PostKept,
    PostMessage,
    PostNeutral,
    RingBroken,
    RingConfig,
    Stalled,
    TakeResult,
)
from inaproto.core.host.recovery import Recovery
from inaproto.errors import Blame, FabricLost, InvariantBroken, LocalMisuse
from inaproto.units import Instant, MsgId, OpIndex, RingId

ADVICE: Final = "start it again, and report this if it comes back"
FROM_THE_START: Final = Recovery(progress=0, donor=0)


class KeptResult(NamedTuple):
    """Result ``serial`` of the job: ``nbytes`` behind the header in receive slot ``slot`` of ``ring_id``.

    Whoever gives that slot's memory up first copies what lies in it.
    """

    serial: int
    operation: Operation
    is_last: bool
    """Whether it is the last message of its operation."""
    offset: int
    nbytes: int
    ring_id: RingId
    slot: int


class Source(Enum):
    """What a rank contributes to a message."""

    OWN = "own"
    """Its part of the tensor."""
    KEPT = "kept"
    """The result, which it has kept from an earlier ring."""
    NEUTRAL = "neutral"
    """Elements that change no reduction: the result exists, and the donor contributes it."""


class _Cut(NamedTuple):
    """An operation whose messages are being sent, and how many it has."""

    operation: Operation
    messages: int


class Run(NamedTuple):
    """Messages one after the other: each ``nbytes`` of an operation's tensor, from ``offset`` on."""

    operation: Operation
    offset: int
    nbytes: int
    messages: int
    is_last: bool
    """Whether it is the last message of its operation, which is a run of its own."""
    source: Source
    is_new: bool
    """Whether this rank lacks the results."""

    @property
    def order(self) -> type[PostMessage]:
        """What to order for each of them."""
        return PostMessage if self.source is _OWN else _POST[self.source]


class Part(NamedTuple):
    """One message: ``nbytes`` of ``operation``'s tensor from ``offset`` on."""

    operation: Operation
    offset: int
    nbytes: int
    is_last: bool
    """Whether it is the last message of its operation."""
    source: Source
    is_new: bool
    """Whether this rank lacks the result."""

    def post(self, msg_id: MsgId, slot: int, header: bytes) -> PostMessage:
        """The order to send it, the header by way of header slot ``slot``."""
        kind = PostMessage if self.source is _OWN else _POST[self.source]
        return kind(msg_id, slot, header, self.operation.index, self.offset, self.nbytes)


_OWN: Final = Source.OWN
_POST: Final = {Source.OWN: PostMessage, Source.KEPT: PostKept, Source.NEUTRAL: PostNeutral}


@dataclass(frozen=True, slots=True)
class RingView:
    operations_submitted: int
    operations_done: int
    operations_failed: int
    operations_queued: int
    """Submitted and not ended, the running one included."""
    running: Operation | None
    messages: int
    """Messages of the running operation."""
    results: int
    """Results of the running operation that are here already."""
    since: Instant
    """When the running operation last made progress."""
    bytes_reduced: int
    messages_sent: int
    messages_received: int
    unacknowledged: int
    stalls: int
    failure: Fail | None

    @staticmethod
    def of(operations: OperationQueue, *, sent: int, received: int, unacknowledged: int) -> RingView:
        """The operations', with the counts of one ring's messages."""
        return RingView(
            operations_submitted=operations.submitted,
            operations_done=operations.done,
            operations_failed=operations.failed,
            operations_queued=len(operations),
            running=operations.running,
            messages=operations.messages,
            results=operations.results,
            since=operations.since,
            bytes_reduced=operations.bytes_reduced,
            messages_sent=sent,
            messages_received=received,
            unacknowledged=unacknowledged,
            stalls=operations.stalls,
            failure=operations.failure,
        )


class OperationQueue:
    """The operations of one rank; see the module for its invariants.

    ``running``, ``messages``, ``results``, ``progress`` and ``failure`` are for reading: the running
    operation, its messages, how many of their results have been taken, the same of the whole job, and why
    all operations fail.
    """

    def __init__(self, config: RingConfig) -> None:
        self.tensor_bytes = config.tensor_bytes
        self.ring_size = config.ring_size
        self.window_messages = config.window_messages
        self.running: Operation | None = None
        self.messages = 0
        self.results = 0
        self.progress = 0
        self.failure: Fail | None = None
        self._kept: deque[tuple[int, Operation, bool, int, int, RingId, int]] = deque(
            maxlen=config.window_messages
        )
        """Fields of ``KeptResult``: one is made for each message, and hardly any is looked at."""
        self.submitted = 0
        self.done = 0
        self.failed = 0
        self.bytes_reduced = 0
        self.stalls = 0
        self.since = Instant(0)
        self._stall_ns = config.stall_ns
        self._timeout_ns = config.timeout_ns
        self._operations_max = config.operations_max
        self._waiting: deque[Operation] = deque()
        self._ahead = 0
        """How many of the first that wait may be sent already."""
        self._started = Instant(0)
        self._reported = Instant(0)
        self._is_overdue = False
        self._to_send: deque[_Cut] = deque()
        """Operations that are not sent whole: the running one and those ahead, in order."""
        self._sent = 0
        """Messages of the first of these, on the present ring."""
        self._unsent = 0
        """Messages of all of these that are not."""
        self._again: deque[KeptResult] = deque()
        """Results of earlier rings whose messages are to be sent before all others."""
        self._again_source = Source.NEUTRAL
        self._filling: dict[OpIndex, int] = {}
        """Bytes that are there of the operations whose tensors are not there as a whole."""
        self._neutral = 0
        """The next messages to which this rank adds nothing: their results exist."""

    def take_over(
        self,
        kept: Iterable[KeptResult],
        *,
        progress: int,
        first: OpIndex,
        running: Operation | None,
        results: int,
        now: Instant,
    ) -> None:
        """Be where another one was: with ``progress`` results, of which it had ``kept`` the last.

        ``first`` is the first operation that lacks some; it runs if it has some.
        """
        self.progress, self.running, self.results = progress, running, results
        self._kept.extend(kept)
        self.done = first
        self.submitted = first + (running is not None)
        self.since = self._started = self._reported = now
        self.messages = 0 if running is None else self._messages_of(running)

    @property
    def kept(self) -> list[KeptResult]:
        """The last results, N at most, that others may lack when a ring ends."""
        return [KeptResult(*fields) for fields in self._kept]

    def __len__(self) -> int:
        """Operations submitted and not ended, the running one included."""
        return len(self._waiting) + (self.running is not None)

    @property
    def unended(self) -> list[Operation]:
        """Submitted and not ended, in order."""
        return [*self._waiting] if self.running is None else [self.running, *self._waiting]

    @property
    def started(self) -> int:
        """Operations that have started, hence the index of the one that starts next."""
        return self.submitted - len(self._waiting)

    @property
    def in_flight(self) -> int:
        """Operations of which messages are sent, that have not ended."""
        if self.running is None:
            return 0
        return 1 + self._ahead - len(self._to_send) + (self._sent > 0)

    def lacks_several(self, progress: int) -> bool:
        """Whether the results up to ``progress`` of the job are of more operations than the running one."""
        return self.progress - self.results + self.messages < progress

    @property
    def is_settled(self) -> bool:
        """Nothing can start, or be sent ahead, that has not been."""
        return self.running is not None and self._ahead >= len(self._waiting)

    @property
    def next_index(self) -> OpIndex | None:
        """Index of the operation that starts when none runs."""
        return self._waiting[0].index if self._waiting else None

    @property
    def deadline(self) -> Instant | None:
        """When the running operation will have stalled (again), or be overdue."""
        if self.running is None:
            return None
        stalled = Instant(self._reported + self._stall_ns)
        overdue = self._overdue_at
        return stalled if overdue is None or stalled < overdue else overdue

    @property
    def _overdue_at(self) -> Instant | None:
        if self._timeout_ns == 0 or self._is_overdue:
            return None
        return Instant(self._started + self._timeout_ns)

    def submit(self, operation: Operation) -> list[OperationFailed]:
        """Put it behind all others. Raises ``LocalMisuse`` for what cannot be submitted."""
        if operation.index != self.submitted and not operation.is_vote:
            raise LocalMisuse(f"operation {operation.index} where {self.submitted} is next")
        if operation.nbytes < 0 or operation.nbytes % operation.dtype.itemsize:
            raise LocalMisuse(f"{operation.nbytes} bytes are not whole {operation.dtype.name} elements")
        if len(self._waiting) >= self._operations_max:
            raise LocalMisuse(f"{len(self._waiting)} operations wait already; wait for one of them first")
        self.submitted += not operation.is_vote
        if self.failure is not None:
            self.failed += not operation.is_vote
            return [OperationFailed(operation.index, self.failure.code, self.failure.message)]
        self._waiting.append(operation)
        if operation.filled is not None and operation.filled < operation.nbytes:
            self._filling[operation.index] = operation.filled
        return []

    def filled(self, event: Filled) -> None:
        """More of a tensor is there."""
        before = self._filling.get(event.op_index)
        if before is None:
            return
        operation = next(it for it in (self.running, *self._waiting) if it and it.index == event.op_index)
        if not before <= event.nbytes <= operation.nbytes:
            raise LocalMisuse(f"{event} of {operation}, of which {before} bytes were there")
        if event.nbytes == operation.nbytes:
            del self._filling[event.op_index]
        else:
            self._filling[event.op_index] = event.nbytes

    def start_next(self, now: Instant) -> list[OperationDone]:
        """Let the next operation run, if none does. A rank that is alone has done all of them by that."""
        ended: list[OperationDone] = []
        while self.running is None and self._waiting:
            operation = self._waiting.popleft()
            if self.ring_size == 1:
                ended.append(self.end(operation))
                continue
            self.running = operation
            self.messages = self._messages_of(operation)
            self.results = 0
            self._started = self.since = self._reported = now
            self._is_overdue = False
            if self._ahead:
                self._ahead -= 1
            else:
                self._send(operation)
        return ended

    def look_ahead(self) -> None:
        """Let operations behind the running one be sent, as far as the window can take them by now."""
        waiting = self._waiting
        while (
            self._unsent < self.window_messages
            and self._ahead < len(waiting)
            and self.running is not None
            and not self._is_in_use(waiting[self._ahead])
        ):
            self._send(waiting[self._ahead])
            self._ahead += 1

    def _send(self, operation: Operation) -> None:
        messages = self._messages_of(operation)
        self._to_send.append(_Cut(operation, messages))
        self._unsent += messages

    def _messages_of(self, operation: Operation) -> int:
        return max(1, -(-operation.nbytes // self.tensor_bytes))

    def _is_in_use(self, operation: Operation) -> bool:
        """One that has not ended uses memory of this one, which is the next to be sent."""
        before = [self.running, *islice(self._waiting, self._ahead)]
        return any(it.shares_memory_with(operation) for it in before if it is not None)

    def resume(self, config: RingConfig, recovery: Recovery) -> None:
        """The next message is the first that the ranks go through again; see
        :mod:`inaproto.core.host.recovery`.

        Raises ``LocalMisuse`` for a ring on which these operations cannot go on, or not from there.
        """
        self.check_ring(config)
        rank, first = config.rank, max(0, recovery.progress - self.window_messages)
        is_donor = rank == recovery.donor
        if not (recovery.progress if is_donor else first) <= self.progress <= recovery.progress:
            raise LocalMisuse(f"rank {rank} has {self.progress} results and cannot take part in {recovery}")
        self._again = deque(kept for kept in self.kept if kept.serial >= first)
        self._again_source = Source.KEPT if is_donor else Source.NEUTRAL
        self._neutral = recovery.progress - self.progress
        self._to_send.clear()
        self._ahead = self._sent = self._unsent = 0
        if self.running is not None:
            self._send(self.running)
            self._sent = self.results
            self._unsent -= self._sent

    def check_ring(self, config: RingConfig) -> None:
        """Raises ``LocalMisuse`` for a ring on which these operations would be cut into other messages."""
        asked = (config.ring_size, config.tensor_bytes, config.window_messages)
        have = (self.ring_size, self.tensor_bytes, self.window_messages)
        if asked != have:
            raise LocalMisuse(
                f"ring {config.ring_id} has (ranks, tensor bytes of a message, window) {asked}, "
                f"the operations that are to go on have {have}"
            )

    @property
    def unsent(self) -> int:
        """Messages that can be sent: those that are repeated, of the running operation and of those ahead."""
        return len(self._again) + (self._there if self._filling else self._unsent)

    def is_filling(self, op_index: OpIndex) -> bool:
        """Its tensor is not there as a whole."""
        return op_index in self._filling

    @property
    def _there(self) -> int:
        """Messages whose bytes are there, and those of all before them."""
        found, sent = 0, self._sent
        for operation, messages in self._to_send:
            filled = self._filling.get(operation.index)
            if filled is not None:
                return found + max(0, filled // self.tensor_bytes - sent)
            found, sent = found + messages - sent, 0
        return found

    def next_run(self, most: int) -> Run:
        """Up to ``most`` of the next messages, which count as sent: one at least."""
        if self._again:
            kept = self._again.popleft()
            operation, source = kept.operation, self._again_source
            return Run(operation, kept.offset, kept.nbytes, 1, kept.is_last, source, is_new=False)
        if not self._to_send:
            raise InvariantBroken("a message belongs to no operation")
        operation, messages = self._to_send[0]
        size, sent = self.tensor_bytes, self._sent
        offset, left, source = sent * size, messages - sent, Source.OWN
        if self._neutral:
            self._neutral -= 1
            most, source = 1, Source.NEUTRAL
        if left == 1:
            self._to_send.popleft()
            self._sent = 0
            self._unsent -= 1
            return Run(operation, offset, operation.nbytes - offset, 1, True, source, is_new=True)
        count = most if most < left else left - 1
        self._sent = sent + count
        self._unsent -= count
        return Run(operation, offset, size, count, False, source, is_new=True)

    def next_part(self) -> Part:
        """The next message; it counts as sent."""
        operation, offset, nbytes, _, is_last, source, is_new = self.next_run(1)
        return Part(operation, offset, nbytes, is_last, source, is_new)

    def take(self, ring_id: RingId, slot: int, now: Instant) -> TakeResult:
        """The next result lies in receive slot ``slot`` of that ring: take it."""
        operation = self.running
        if operation is None:
            raise InvariantBroken("a result belongs to no operation")
        nbytes = self.tensor_bytes
        offset = self.results * nbytes
        self.results += 1
        is_last = self.results == self.messages
        if is_last:
            nbytes = operation.nbytes - offset
        self._kept.append((self.progress, operation, is_last, offset, nbytes, ring_id, slot))
        self.progress += 1
        self.since = self._reported = now
        return TakeResult(slot, operation.index, offset, nbytes)

    def end(self, operation: Operation) -> OperationDone:
        """All its results have been taken."""
        self.running = None
        if not operation.is_vote:
            self.done += 1
            self.bytes_reduced += operation.nbytes
        return OperationDone(operation.index)

    def done_elsewhere(self, operation: Operation) -> None:
        """It has its result without these rings. Raises ``LocalMisuse`` if another one is next."""
        if operation.index != self.submitted:
            raise LocalMisuse(f"operation {operation.index} is done where {self.submitted} is next")
        self.submitted += 1
        self.done += 1
        self.bytes_reduced += operation.nbytes

    def woke(self, now: Instant) -> list[Stalled | Overdue]:
        """What the clock says of the running operation."""
        operation = self.running
        if operation is None:
            return []
        actions: list[Stalled | Overdue] = []
        if now >= self._reported + self._stall_ns:
            self._reported = now
            self.stalls += 1
            actions.append(Stalled(operation, now - self.since, self.messages, self.results))
        overdue_at = self._overdue_at
        if overdue_at is not None and now >= overdue_at:
            self._is_overdue = True
            actions.append(Overdue(operation, now - self._started, self.messages, self.results))
        return actions

    def fail(self, failure: Fail) -> list[OperationFailed]:
        """End all operations, once."""
        if self.failure is not None:
            return []
        self.failure = failure
        ended = self.unended
        self.running = None
        self._waiting.clear()
        self._filling.clear()
        self._to_send.clear()
        self._ahead = self._sent = self._unsent = 0
        self.failed += sum(not operation.is_vote for operation in ended)
        return [OperationFailed(operation.index, failure.code, failure.message) for operation in ended]

    def break_ring(
        self, config: RingConfig, blame: Blame, advice: str = ADVICE, code: str = FabricLost.code
    ) -> list[Blame | OperationFailed | RingBroken]:
        """A wrong message came in on that ring: say so; unless they outlive it, all operations fail."""
        if self.failure is not None:
            return [blame]
        message = f"rank {config.rank} of ring {config.ring_id} got a wrong message ({blame}); "
        if config.outlived:
            return [blame, RingBroken(code, message + "the ring cannot go on")]
        message += f"the job cannot go on: {advice}"
        return [blame, *self.fail(Fail(code, message)), RingBroken(code, message)]
