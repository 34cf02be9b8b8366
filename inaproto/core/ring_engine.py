"""All-reduces of one rank of a ring: operations cut into messages, results put back (NetReduce section 3.1).

"Worker Sending Gradient" and "Worker Receiving Results": an operation is cut into messages of at
most ``message_packets`` packets, each an INA header and tensor bytes, which the window
(:mod:`inaproto.core.message_window`) lets out; the predecessor's result messages are checked
against what must come next and taken into the operation's buffer. The core moves no tensor byte: its
actions name slots and offsets.

Invariants: operations run in the order of submission, one at a time (MINA section IV-C), and end
once, as done or as failed; a result is delivered only if every field of its header is the expected
one and the accelerator has marked it as a result (``RESULT``); after a failure nothing is sent or
delivered any more.

A tensor without elements is one message of a header alone: the accelerator compares the headers, so
ranks whose tensors are not empty are found instead of waiting for this one.

Results replace the input *in place*, although the transport may still resend the message: the
result of m is here, so the accelerator has m of all ranks, keeps the sum and answers a resend with
that sum, whatever its payload; once its slot belongs to a later message, it drops the resend.

Departures from the paper: the last message of an operation may be shorter (padding costs 9-19 % at
1-4 MiB); the header carries more than ``MsgID, MsgLen, Rank, RingID`` (:mod:`inaproto.wire.ina_header`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, assert_never

from inaproto.core.message_window import (
    MessageWindow,
    Offered,
    ResultAccepted,
    SendMessage,
    WindowAction,
    WindowConfig,
)
from inaproto.core.message_window import ResultArrived as WindowResultArrived
from inaproto.core.message_window import SendCompleted as WindowSendCompleted
from inaproto.errors import Blame, DecodeError, FabricLost, InvariantBroken, LocalMisuse
from inaproto.units import MS, Epoch, Instant, MsgId, OpIndex, Rank, RingId
from inaproto.wire.ina_header import (
    FLAG_LAST,
    FLAG_RESULT,
    FLAGS_OFFSET,
    INA_HEADER_BYTES,
    Dtype,
    InaHeader,
    Op,
)

NOT_AGGREGATED: Final = "result not aggregated"
_ADVICE: Final = "start it again, and report this if it comes back"
_ADVICE_NOT_AGGREGATED: Final = "see that the path has an accelerator, then start it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class RingConfig:
    ring_id: RingId
    epoch: Epoch
    key: int
    """Secret of the ring, in every header."""
    rank: Rank
    ring_size: int
    mtu: int = 1024
    message_packets: int = 170
    window_messages: int = 2
    stall_ns: int = 1000 * MS
    """An operation without progress for this long is reported, and again after each such time."""
    timeout_ns: int = 0
    """An operation that has not ended this long after its start is overdue; 0: never."""
    operations_max: int = 4096
    """Operations submitted and not ended."""
    id_bits: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ring_size < 1 << 16:
            raise LocalMisuse(f"rank {self.rank} in a ring of {self.ring_size}")
        if self.mtu not in (256, 512, 1024, 2048, 4096):
            raise LocalMisuse(f"mtu {self.mtu} is not a RoCE path MTU (256, 512, 1024, 2048 or 4096)")
        if not 0 < self.message_packets < 1 << 16:
            raise LocalMisuse(f"message_packets {self.message_packets} does not fit the header's 16 bits")

    @property
    def message_bytes(self) -> int:
        """A full message, its header included: the size of a slot."""
        return self.message_packets * self.mtu

    @property
    def tensor_bytes(self) -> int:
        """Tensor bytes of a full message; a multiple of 8, so no element is cut in two."""
        return self.message_bytes - INA_HEADER_BYTES

    @property
    def slots(self) -> int:
        return 2 * self.window_messages


@dataclass(frozen=True, slots=True)
class Operation:
    index: OpIndex
    """Serial in the job, from 0; each rank numbers its own calls, so equal numbers belong together."""
    dtype: Dtype
    op: Op
    nbytes: int
    signature: int


class Submit(NamedTuple):
    operation: Operation


@dataclass(frozen=True, slots=True)
class ResultArrived:
    """A message arrived whole in the receive slot ``imm mod 2N``."""

    imm: int
    nbytes: int
    header: bytes
    """Its first 40 bytes, fewer if it has fewer."""


class SendCompleted(NamedTuple):
    msg_id: int


@dataclass(frozen=True, slots=True)
class Fail:
    """End every operation, and every later one, with this error."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Woke:
    """The deadline may have passed."""


RingEvent = Submit | ResultArrived | SendCompleted | Fail | Woke


class PostMessage(NamedTuple):
    """Write ``header`` into header slot ``slot``, then post header and tensor bytes as one message."""

    msg_id: MsgId
    slot: int
    header: bytes
    op_index: OpIndex
    offset: int
    nbytes: int


class TakeResult(NamedTuple):
    """Copy the ``nbytes`` behind the header in receive slot ``slot`` into the operation's buffer."""

    slot: int
    op_index: OpIndex
    offset: int
    nbytes: int


class OperationDone(NamedTuple):
    op_index: OpIndex


@dataclass(frozen=True, slots=True)
class OperationFailed:
    op_index: OpIndex
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Stalled:
    """The running operation made no progress for ``for_ns``: ask the switch whom it waits for."""

    operation: Operation
    for_ns: int
    messages: int
    results: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """The running operation started ``for_ns`` ago, longer than it may take. Said once."""

    operation: Operation
    for_ns: int
    messages: int
    results: int


@dataclass(frozen=True, slots=True)
class RingBroken:
    """This rank found its ring unusable; its operations have failed with the same words."""

    code: str
    message: str


RingAction = (
    PostMessage | TakeResult | OperationDone | OperationFailed | Stalled | Overdue | Blame | RingBroken
)


@dataclass(frozen=True, slots=True)
class RingView:
    operations_submitted: int
    operations_done: int
    operations_failed: int
    operations_queued: int
    """Submitted and not ended, the running one included."""
    running: Operation | None
    messages: int
    """Of the running operation."""
    results: int
    """Of the running operation, here already."""
    since: Instant
    """When the running operation last made progress."""
    bytes_reduced: int
    messages_sent: int
    messages_received: int
    unacknowledged: int
    stalls: int
    failure: Fail | None


class RingEngine:
    """One rank of one ring; see the module for its invariants."""

    def __init__(self, config: RingConfig) -> None:
        self._config = config
        self._tensor_bytes = config.tensor_bytes
        self._predecessor = (config.rank - 1) % config.ring_size
        self._window = MessageWindow(WindowConfig(config.window_messages, config.id_bits))
        self._queue: deque[Operation] = deque()
        self._next_index = 0
        self._running: Operation | None = None
        self._messages = 0
        self._messages_posted = 0
        self._results = 0
        self._expected: deque[bytes] = deque()
        """Headers of the results that must come, in order: one for each message whose result is not here."""
        self._started = Instant(0)
        self._since = Instant(0)
        self._reported = Instant(0)
        self._is_overdue = False
        self._failure: Fail | None = None
        self._done = 0
        self._failed = 0
        self._bytes = 0
        self._stalls = 0

    @property
    def config(self) -> RingConfig:
        return self._config

    @property
    def deadline(self) -> Instant | None:
        """When the running operation will have stalled (again), or be overdue."""
        if self._running is None:
            return None
        stalled = Instant(self._reported + self._config.stall_ns)
        overdue = self._overdue_at
        return stalled if overdue is None or stalled < overdue else overdue

    @property
    def _overdue_at(self) -> Instant | None:
        if self._config.timeout_ns == 0 or self._is_overdue:
            return None
        return Instant(self._started + self._config.timeout_ns)

    @property
    def operations_queued(self) -> int:
        """As ``view`` has it, for who asks at every operation."""
        return len(self._queue) + (self._running is not None)

    def view(self) -> RingView:
        window = self._window.view()
        return RingView(
            operations_submitted=self._next_index,
            operations_done=self._done,
            operations_failed=self._failed,
            operations_queued=self.operations_queued,
            running=self._running,
            messages=self._messages,
            results=self._results,
            since=self._since,
            bytes_reduced=self._bytes,
            messages_sent=window.sent,
            messages_received=window.received,
            unacknowledged=window.unacknowledged,
            stalls=self._stalls,
            failure=self._failure,
        )

    def step(self, event: RingEvent, now: Instant) -> list[RingAction]:
        """Apply ``event``; the actions are to be performed in their order."""
        match event:
            case Submit(operation):
                return self._submit(operation, now)
            case ResultArrived():
                return self._result(event, now)
            case SendCompleted(msg_id):
                return self._window_actions(self._window.step(WindowSendCompleted(msg_id), now), now)
            case Fail():
                return self._fail(event)
            case Woke():
                return self._woke(now)
            case _:
                assert_never(event)

    # --- operations

    def _submit(self, operation: Operation, now: Instant) -> list[RingAction]:
        if operation.index != self._next_index:
            raise LocalMisuse(f"operation {operation.index} where {self._next_index} is next")
        if operation.nbytes < 0 or operation.nbytes % operation.dtype.itemsize:
            raise LocalMisuse(f"{operation.nbytes} bytes are not whole {operation.dtype.name} elements")
        if len(self._queue) >= self._config.operations_max:
            raise LocalMisuse(f"{len(self._queue)} operations wait already; wait for one of them first")
        self._next_index += 1
        if self._failure is not None:
            self._failed += 1
            return [OperationFailed(operation.index, self._failure.code, self._failure.message)]
        self._queue.append(operation)
        return self._start_next(now)

    def _start_next(self, now: Instant) -> list[RingAction]:
        actions: list[RingAction] = []
        while self._running is None and self._queue:
            operation = self._queue.popleft()
            if self._config.ring_size == 1:
                actions.append(self._end(operation))
                continue
            self._running = operation
            self._messages = max(1, -(-operation.nbytes // self._config.tensor_bytes))
            self._messages_posted = self._results = 0
            self._started = self._since = self._reported = now
            self._is_overdue = False
            actions += self._window_actions(self._window.step(Offered(self._messages), now), now)
        return actions

    def _end(self, operation: Operation) -> OperationDone:
        self._done += 1
        self._bytes += operation.nbytes
        return OperationDone(operation.index)

    # --- messages

    def _window_actions(self, window_actions: list[WindowAction], now: Instant) -> list[RingAction]:
        actions: list[RingAction] = []
        for action in window_actions:
            match action:
                case SendMessage(msg_id, slot):
                    if self._failure is None:  # else it is of the operation that failed
                        actions.append(self._post(msg_id, slot))
                case ResultAccepted(_, slot):
                    actions += self._take(slot, now)
                case Blame():
                    actions += self._break(action)
                case _:
                    assert_never(action)
        return actions

    def _part(self, message: int) -> tuple[int, int]:
        """(offset, bytes) of the running operation's message number ``message``."""
        if self._running is None:
            raise InvariantBroken("a message belongs to no operation")
        offset = message * self._tensor_bytes
        return offset, min(self._tensor_bytes, self._running.nbytes - offset)

    def _header(self, msg_id: int, message: int, rank: int) -> InaHeader:
        config, operation = self._config, self._running
        if operation is None:
            raise InvariantBroken("a header belongs to no operation")
        _, nbytes = self._part(message)
        return InaHeader(
            dtype=operation.dtype,
            op=operation.op,
            flags=FLAG_LAST if message == self._messages - 1 else 0,
            ring_id=config.ring_id,
            epoch=config.epoch,
            op_index=operation.index,
            msg_id=msg_id,
            rank=rank,
            ring_size=config.ring_size,
            msg_len=-(-(INA_HEADER_BYTES + nbytes) // config.mtu),
            signature=operation.signature,
            key=config.key,
        )

    def _post(self, msg_id: MsgId, slot: int) -> PostMessage:
        if self._running is None:
            raise InvariantBroken("a message belongs to no operation")
        message = self._messages_posted
        self._messages_posted += 1
        header = self._header(msg_id, message, self._config.rank).encode()
        self._expected.append(
            header[:FLAGS_OFFSET]
            + bytes([header[FLAGS_OFFSET] | FLAG_RESULT])
            + header[FLAGS_OFFSET + 1 : 24]
            + self._predecessor.to_bytes(2, "big")
            + header[26:]
        )
        return PostMessage(msg_id, slot, header, self._running.index, *self._part(message))

    def _result(self, event: ResultArrived, now: Instant) -> list[RingAction]:
        if self._failure is not None:
            return []  # a late result of an operation that has already failed
        if self._running is None or self._results == self._messages_posted:
            return self._break(Blame("predecessor", "result of a message not sent", f"result {event.imm}"))
        wrong = self._contradiction(event)
        if wrong is not None:
            return self._break(wrong)
        return self._window_actions(self._window.step(WindowResultArrived(event.imm), now), now)

    def _contradiction(self, event: ResultArrived) -> Blame | None:
        """What is wrong with a result message, if anything is."""
        nbytes = INA_HEADER_BYTES + self._part(self._results)[1]
        if event.header == self._expected[0] and event.nbytes == nbytes:
            return None
        predecessor = self._predecessor
        try:
            got = InaHeader.decode(event.header)
        except DecodeError as error:
            return Blame(f"rank {predecessor}", "result without a valid header", str(error))
        expected = self._header(event.imm, self._results, predecessor)
        if replace(got, flags=got.flags & ~FLAG_RESULT) != expected:
            key = "" if got.key == expected.key else " and a wrong key"
            return Blame(f"rank {predecessor}", "result header", f"got {got}{key}, expected {expected}")
        if not got.is_result:
            evidence = (
                f"the payload of {got} came without having been aggregated; is there an accelerator on the "
                "path, did the switch restart?"
            )
            return Blame(f"rank {predecessor}", NOT_AGGREGATED, evidence)
        if event.nbytes != nbytes:
            return Blame(f"rank {predecessor}", "result size", f"{event.nbytes} bytes, expected {nbytes}")
        return None

    def _take(self, slot: int, now: Instant) -> list[RingAction]:
        operation = self._running
        if operation is None:
            raise InvariantBroken("a result belongs to no operation")
        actions: list[RingAction] = [TakeResult(slot, operation.index, *self._part(self._results))]
        self._results += 1
        self._expected.popleft()
        self._since = self._reported = now
        if self._results == self._messages:
            self._running = None
            actions.append(self._end(operation))
            actions += self._start_next(now)
        return actions

    # --- stalls and failures

    def _woke(self, now: Instant) -> list[RingAction]:
        operation = self._running
        if operation is None:
            return []
        actions: list[RingAction] = []
        if now >= self._reported + self._config.stall_ns:
            self._reported = now
            self._stalls += 1
            actions.append(Stalled(operation, now - self._since, self._messages, self._results))
        overdue_at = self._overdue_at
        if overdue_at is not None and now >= overdue_at:
            self._is_overdue = True
            actions.append(Overdue(operation, now - self._started, self._messages, self._results))
        return actions

    def _break(self, blame: Blame) -> list[RingAction]:
        if self._failure is not None:
            return [blame]
        advice = _ADVICE_NOT_AGGREGATED if blame.rule == NOT_AGGREGATED else _ADVICE
        message = (
            f"rank {self._config.rank} of ring {self._config.ring_id} got a wrong message ({blame}); "
            f"the job cannot go on: {advice}"
        )
        return [blame, *self._fail(Fail(FabricLost.code, message)), RingBroken(FabricLost.code, message)]

    def _fail(self, failure: Fail) -> list[RingAction]:
        if self._failure is not None:
            return []
        self._failure = failure
        ended = [*self._queue] if self._running is None else [self._running, *self._queue]
        self._running = None
        self._queue.clear()
        self._expected.clear()
        self._failed += len(ended)
        return [OperationFailed(operation.index, failure.code, failure.message) for operation in ended]
