"""All-reduces of one rank of a ring: operations cut into messages, results put back (NetReduce section 3.1).

"Worker Sending Gradient" and "Worker Receiving Results": an operation is cut into messages of at
most ``message_packets`` packets, each an INA header and tensor bytes, which the window
(:mod:`inaproto.core.host.message_window`) lets out; the predecessor's result messages are checked
against what must come next and taken into the operation's buffer. The core moves no tensor byte: its
actions name slots and offsets.

Invariants: those of the operations (:mod:`inaproto.core.host.operations`); a result is delivered only if
every field of its header is the expected one and the accelerator has marked it as a result
(``RESULT``); after a failure, or once the engine is halted, nothing is sent or delivered any more.

A tensor without elements is one message of a header alone: the accelerator compares the headers, so
ranks whose tensors are not empty are found instead of waiting for this one.

Results replace the input *in place*, although the transport may still resend the message: the
result of m is here, so the accelerator has m of all ranks, keeps the sum and answers a resend with
that sum, whatever its payload; once its slot belongs to a later message, it drops the resend.

A ring that has ended is *halted*; its operations go on by another one, which ``resume``s them
(:mod:`inaproto.core.host.recovery`). It begins with the last N messages whose results exist: the donor sends
the results it has kept, all others neutral elements, so the path reduces them to those results again; who
lacks one takes it, whoever has it lets it go.

Departures from the paper: the last message of an operation may be shorter (padding costs 9-19 % at
1-4 MiB); the header carries more than ``MsgID, MsgLen, Rank, RingID`` (:mod:`inaproto.wire.ina_header`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, assert_never

from inaproto.core.host.engines.path import PathEngine
from inaproto.core.host.message_window import MessageWindow, WindowConfig
from inaproto.core.host.operation_queue import ADVICE, FROM_THE_START, OperationQueue, RingView, Run
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
from inaproto.errors import Blame, DecodeError, InvariantBroken
from inaproto.units import Epoch, Instant, MsgId
from inaproto.wire.ina_header import (
    FLAG_LAST,
    FLAG_RESULT,
    INA_HEADER_BYTES,
    InaHeader,
)

__all__ = [
    "Fail",
    "Operation",
    "OperationDone",
    "OperationFailed",
    "Overdue",
    "PostKept",
    "PostMessage",
    "PostNeutral",
    "ResultArrived",
    "RingAction",
    "RingBroken",
    "RingConfig",
    "RingEngine",
    "RingEvent",
    "RingView",
    "SendCompleted",
    "Stalled",
    "Submit",
    "TakeResult",
    "Woke",
]

NOT_AGGREGATED: Final = "result not aggregated"
_ADVICE_NOT_AGGREGATED: Final = "see that the path has an accelerator, then start it again"

_ID_AT: Final = slice(20, 24)
"""The message's id in an INA header."""

Result = tuple[int, int, bytes]
"""Id, bytes and header of a result message, as ``ResultArrived`` has them."""
RingAction = (
    PostMessage | TakeResult | OperationDone | OperationFailed | Stalled | Overdue | Blame | RingBroken
)


class RingEngine(PathEngine):
    """One rank of one ring; see the module for its invariants."""

    def __init__(
        self,
        config: RingConfig,
        operations: OperationQueue | None = None,
        recovery: Recovery | None = FROM_THE_START,
    ) -> None:
        self._epoch = config.epoch
        self._ring_id, self._slots, self._id_mask = config.ring_id, config.slots, (1 << config.id_bits) - 1
        self._window = MessageWindow(
            WindowConfig(config.window_messages, config.id_bits, config.unacknowledged_messages)
        )
        super().__init__(config, operations, recovery)
        self._expected: deque[tuple[bytes, int, bool]] = deque()
        """Header and bytes of the results that must come, in order, and whether this rank lacks them."""
        self._kind: tuple[int, int, bool, int] | None = None
        """Index of the operation, bytes, whether it is the last, epoch: of the messages of these headers."""
        self._header = self._result_header = (b"", b"")
        """Before and behind the id: of a message, and of its result."""

    def view(self) -> RingView:
        window = self._window.view()
        return RingView.of(
            self._operations, sent=window.sent, received=window.received, unacknowledged=window.unacknowledged
        )

    def step(self, event: RingEvent, now: Instant) -> list[RingAction]:
        """Apply ``event``; the actions are to be performed in their order."""
        match event:
            case ResultArrived(imm, nbytes, header):
                return self.exchanged((), ((imm, nbytes, header),), now)
            case SendCompleted(msg_id):
                return self.exchanged((msg_id,), (), now)
            case Submit(operation):
                return [*self._operations.submit(operation), *self._go_on(now)]
            case Filled():
                self._operations.filled(event)
                return self._go_on(now)
            case Fail():
                return self._fail(event)
            case Woke():
                return [*self._operations.woke(now)]
            case _:
                assert_never(event)

    def resume(self, now: Instant) -> list[RingAction]:
        """All ranks have connected: let the operations go on where those of the halted ring were."""
        self._connected()
        return self._go_on(now)

    def begin(self, epoch: Epoch | None, now: Instant) -> list[RingAction]:
        """The operation that was started is bound to this path, one of two; ``epoch`` is of its headers.

        None: that of the ring. The epoch fences who had the switches' memory before (MINA section IV-C).
        """
        self.has_turn = True
        self._epoch = self._config.epoch if epoch is None else epoch
        return self._offer(self._operations.messages, now)

    def _go_on(self, now: Instant) -> list[RingAction]:
        """Start what can be, and offer the window what it lacks of that."""
        if not self.starts or self._is_over or not self._runs:
            return []
        operations = self._operations
        done = [] if operations.is_settled else self._start_next(now)
        lacking = operations.unsent - self._window.unsent
        return [*done, *self._offer(lacking, now)] if lacking > 0 else [*done]

    def _offer(self, messages: int, now: Instant) -> list[RingAction]:
        self._window.offer(messages)
        return self._send([])

    # --- messages

    def _send(self, actions: list[RingAction]) -> list[RingAction]:
        """Append the messages that the window lets out."""
        serials = self._window.sendable()
        if self._operations.failure is not None:
            return actions  # they are of the operation that failed
        while serials:
            run = self._operations.next_run(len(serials))
            self._post(serials[: run.messages], run, actions)
            serials = serials[run.messages :]
        return actions

    def _post(self, serials: range, run: Run, actions: list[RingAction]) -> None:
        operation, offset, nbytes, _, is_last, _, is_new = run
        message_bytes = INA_HEADER_BYTES + nbytes
        kind = (operation.index, message_bytes, is_last, self._epoch)
        if kind != self._kind:  # those of an operation differ by their ids, but for the last one
            self._kind = kind
            self._set_headers(operation, message_bytes, is_last=is_last)
        order, index, expected = run.order, operation.index, self._expected
        mask, slots = self._id_mask, self._slots
        before, behind = self._header
        result_before, result_behind = self._result_header
        for serial in serials:
            msg_id = MsgId(serial & mask)
            id_bytes = msg_id.to_bytes(4, "big")
            expected.append((result_before + id_bytes + result_behind, message_bytes, is_new))
            actions.append(order(msg_id, msg_id % slots, before + id_bytes + behind, index, offset, nbytes))
            offset += nbytes

    def _set_headers(self, operation: Operation, nbytes: int, *, is_last: bool) -> None:
        config = self._config
        header = InaHeader(
            dtype=operation.dtype,
            op=operation.op,
            flags=FLAG_LAST if is_last else 0,
            ring_id=config.ring_id,
            epoch=self._epoch,
            op_index=operation.index,
            msg_id=0,
            rank=config.rank,
            ring_size=config.ring_size,
            msg_len=-(-nbytes // config.mtu),
            signature=operation.signature,
            key=config.key,
        )
        result = replace(header, flags=header.flags | FLAG_RESULT, rank=config.predecessor)
        self._header, self._result_header = _around_id(header), _around_id(result)

    def exchanged(
        self, acknowledged: Sequence[int], results: Sequence[Result], now: Instant
    ) -> list[RingAction]:
        """The same as ``SendCompleted`` and ``ResultArrived`` of each, one after the other, but that results
        are taken before anything is sent."""
        if self._is_halted:
            return []
        actions: list[RingAction] = []
        wrong = self._window.complete(acknowledged) if acknowledged else None
        may_go_on = False
        if wrong is None and results and self._operations.failure is None:
            wrong, may_go_on = self._take_all(results, now, actions)
        self._send(actions)
        if wrong is not None:
            return actions + self._break(wrong)
        return actions + self._go_on(now) if may_go_on else actions

    def _take_all(
        self, results: Sequence[Result], now: Instant, actions: list[RingAction]
    ) -> tuple[Blame | None, bool]:
        """Up to the first that is wrong, and what is; whether something else may be sent now."""
        expected, accept, slots = self._expected, self._window.accept, self._slots
        operations, has_ended = self._operations, False
        for imm, nbytes, header in results:
            wrong = None
            if not expected:
                wrong = Blame("predecessor", "result of a message not sent", f"result {imm}")
            elif header != expected[0][0] or nbytes != expected[0][1]:
                wrong = self._contradiction(imm, nbytes, header)
            wrong = wrong or accept(imm)
            if wrong is not None:
                return wrong, False
            if expected.popleft()[2]:
                actions.append(operations.take(self._ring_id, imm % slots, now))
                if operations.results == operations.messages:
                    self._end(now, actions)
                    has_ended = True
        return None, has_ended or not operations.is_settled

    def _contradiction(self, imm: int, nbytes: int, came: bytes) -> Blame | None:
        """What is wrong with a result message, if anything is."""
        header, nbytes_due, _ = self._expected[0]
        if came == header and nbytes == nbytes_due:
            return None
        predecessor = self._config.predecessor
        try:
            got = InaHeader.decode(came)
        except DecodeError as error:
            return Blame(f"rank {predecessor}", "result without a valid header", str(error))
        expected = InaHeader.decode(header)
        expected = replace(expected, flags=expected.flags & ~FLAG_RESULT, msg_id=imm)
        if replace(got, flags=got.flags & ~FLAG_RESULT) != expected:
            key = "" if got.key == expected.key else " and a wrong key"
            return Blame(f"rank {predecessor}", "result header", f"got {got}{key}, expected {expected}")
        if not got.is_result:
            evidence = (
                f"the payload of {got} came without having been aggregated; is there an accelerator on the "
                "path, did the switch restart?"
            )
            return Blame(f"rank {predecessor}", NOT_AGGREGATED, evidence)
        if nbytes != nbytes_due:
            return Blame(f"rank {predecessor}", "result size", f"{nbytes} bytes, expected {nbytes_due}")
        return None

    def _end(self, now: Instant, actions: list[RingAction]) -> None:
        """The running operation has all its results; what follows goes behind what the window lets out."""
        operations = self._operations
        if operations.running is None:
            raise InvariantBroken("a result belongs to no operation")
        actions.append(operations.end(operations.running))
        if self.starts:
            operations.start_next(now)

    # --- failures

    def _break(self, blame: Blame) -> list[RingAction]:
        advice = _ADVICE_NOT_AGGREGATED if blame.rule == NOT_AGGREGATED else ADVICE
        self._expected.clear()
        return [*self._break_ring(blame, advice=advice)]

    def _fail(self, failure: Fail) -> list[RingAction]:
        self._expected.clear()
        return [*self._operations.fail(failure)]


def _around_id(header: InaHeader) -> tuple[bytes, bytes]:
    data = header.encode()
    return data[: _ID_AT.start], data[_ID_AT.stop :]
