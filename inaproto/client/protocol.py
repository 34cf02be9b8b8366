"""What a training process and its host daemon say to each other, without I/O.

Bytes and descriptors go in and out at the edges (:mod:`inaproto.client.channel`); here is what they
mean: one communicator's join, its operations, its failure, its leaving.

Invariants: operations are numbered from 0 in the order of the calls; each ends once, as done or with
an error; a communicator that has failed stays failed, with the same error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from inaproto.errors import DaemonUnreachable, DecodeError, JobError, LocalMisuse, TensorMismatch
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import (
    Error,
    Message,
    PathAsked,
    Regroup,
    Regrouped,
    Status,
    StatusReply,
    decode_message,
    encode_message,
    job_error,
)
from inaproto.wire.ina_header import Dtype, Op, call_words
from inaproto.wire.messages.client import (
    AllReduce,
    Buffer,
    Done,
    Filled,
    Join,
    Joined,
    JoinWaits,
    Leave,
    Ok,
    Taken,
)

REASON_CHARACTERS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Waited:
    """The process has waited for results: how long ago the first wait began, and the last one ended."""

    began_ago_ns: int
    ended_ago_ns: int


@dataclass(slots=True)
class PendingOperation:
    """An operation from its submission on; ``ended`` when it has its result or its error."""

    op_index: int
    memory: object
    """Kept alive until the operation has ended: the daemon writes to it until then."""
    call: str = ""
    """What was asked for, in words."""
    ended: bool = False
    error: JobError | None = None
    path: str = ""
    daemon_ns: int = 0
    """From submission to result, as the daemon saw it."""
    takes: Callable[[int], None] | None = None
    """Called with how many bytes are the result, from the first on, while it is not whole."""
    told: Callable[[], None] | None = None

    def tell(self, told: Callable[[], None]) -> None:
        """Call ``told`` when the operation ends, or now if it has; whoever reads the socket calls it."""
        if self.ended:
            told()
        else:
            self.told = told

    def end(self, error: JobError | None = None) -> None:
        self.ended = True
        self.error = error
        self.memory = self.takes = None
        told, self.told = self.told, None
        if told is not None:
            told()


class Telling(Protocol):
    """An operation, or several that count as one."""

    def tell(self, told: Callable[[], None]) -> None: ...


def tell_when_all(operations: Sequence[Telling], told: Callable[[], None]) -> None:
    """Call ``told`` when the last of them ends, or now if all have."""
    left = len(operations)

    def tell_last() -> None:
        nonlocal left
        left -= 1
        if not left:
            told()

    for operation in operations:
        operation.tell(tell_last)


class ClientProtocol:
    """One communicator's side of the conversation."""

    def __init__(self) -> None:
        self._decoder = ControlDecoder()
        self._ids = count(1)
        self._next_op = 0
        self._pending: dict[int, PendingOperation] = {}
        self._join_id = 0
        self._leave_id = -1
        self._regroup_id = -1
        self.operations_done = 0
        """All-reduces that this rank has the results of: operations end in order."""
        self.regrouped: Regrouped | JobError | None = None
        """The answer to :meth:`regroup`."""
        self.joined: Joined | None = None
        self.refused = ""
        """Ranks that this one waits for while it joins and that were refused, as the daemon said last."""
        self.failure: JobError | None = None
        self.has_left = False
        """The daemon has confirmed ``Leave``, or is gone anyway."""
        self.status: dict[str, Any] | None = None
        """The latest answer to :meth:`ask_status`."""

    @property
    def operations_called(self) -> int:
        """All-reduces that the daemon was asked for."""
        return self._next_op

    @property
    def pending(self) -> int:
        """Operations that have not ended."""
        return len(self._pending)

    def has_room(self, operations: int) -> bool:
        """So many more can be called."""
        return self.joined is None or self.pending + operations <= self.joined.operations_max

    def require_room(self, operations: int = 1) -> None:
        """Raises ``LocalMisuse``."""
        if not self.has_room(operations):
            raise LocalMisuse(
                f"all_reduce: {self.pending} all-reduces have not ended, the limit; wait for one of them"
            )

    # --- out

    def join(
        self,
        *,
        job: str,
        rank: int,
        size: int,
        key: str,
        pid: int,
        path: PathAsked = "auto",
        exact_plan: bool = True,
        elastic: bool = False,
    ) -> bytes:
        self._join_id = next(self._ids)
        return encode_message(
            Join(
                id=self._join_id,
                job=job,
                rank=rank,
                size=size,
                key=key,
                pid=pid,
                path=path,
                exact_plan=exact_plan,
                elastic=elastic,
            )
        )

    def buffer(self, segment: int, nbytes: int) -> bytes:
        """The message that announces a segment, to be sent with its descriptor."""
        return encode_message(Buffer(id=next(self._ids), segment=segment, nbytes=nbytes))

    def all_reduce(
        self,
        *,
        segment: int,
        offset: int,
        nbytes: int,
        dtype: Dtype,
        op: Op,
        shape: tuple[int, ...],
        memory: object,
        whole: tuple[int, ...] | None = None,
        waited: Waited | None = None,
        filled: int | None = None,
        call: str = "",
    ) -> tuple[PendingOperation, bytes]:
        """``whole``: the shape of the tensor that this is a part of. ``filled``: bytes that are there by now,
        if not all are; :meth:`filled` says when more are. ``call``: what it is, if not an all-reduce of one
        tensor.

        Raises ``LocalMisuse`` for one more operation than the daemon keeps.
        """
        self.require_room()
        index = self._next_op
        data = encode_message(
            AllReduce(
                id=next(self._ids),
                op_index=index,
                segment=segment,
                offset=offset,
                nbytes=nbytes,
                dtype=dtype,
                op=op,
                shape=shape,
                whole=whole,
                wait_ns=None if waited is None else waited.began_ago_ns,
                work_ns=None if waited is None else waited.ended_ago_ns,
                filled=filled,
                call=call,
            )
        )
        self._next_op += 1
        called = shape if whole is None else whole
        words = call_words(dtype, op, called, call)
        operation = PendingOperation(index, memory, words)
        if self.failure is not None:
            operation.end(self.failure)
        else:
            self._pending[index] = operation
        return operation, data

    def filled(self, operation: PendingOperation, nbytes: int) -> bytes:
        """The first ``nbytes`` of what ``operation`` reduces are there."""
        return encode_message(Filled(id=next(self._ids), op_index=operation.op_index, nbytes=nbytes))

    def ask_status(self) -> bytes:
        self.status = None
        return encode_message(Status(id=next(self._ids)))

    def regroup(self, *, job: str, rank: int) -> bytes:
        self.regrouped = None
        self._regroup_id = next(self._ids)
        return encode_message(
            Regroup(
                id=self._regroup_id,
                job=job,
                ring_id=0,
                rank=rank,
                operations_done=self.operations_done,
            )
        )

    def leave(self, reason: str = "") -> bytes:
        """``reason``: this rank cannot go on, and the others are to be told why."""
        self._leave_id = next(self._ids)
        return encode_message(Leave(id=self._leave_id, reason=reason[:REASON_CHARACTERS_MAX]))

    # --- in

    def receive(self, data: bytes) -> None:
        """Bytes from the daemon."""
        try:
            for record in self._decoder.feed(data):
                self._handle(decode_message(record))
        except DecodeError as error:
            self.fail(DaemonUnreachable(f"the host daemon sent what is no message: {error}; is it one?"))

    def end_of_stream(self, reason: str) -> None:
        """The daemon has closed the connection."""
        self.has_left = True
        self.fail(DaemonUnreachable(f"the host daemon is gone ({reason}); look at its log, then join again"))

    def fail(self, error: JobError) -> None:
        """End all that is pending, and refuse what comes; the first error stays."""
        if self.failure is None:
            index, running = min(self._pending.items(), default=(0, None))
            if isinstance(error, TensorMismatch) and running is not None and running.call not in str(error):
                # A digest tells that calls differ, and a daemon of an older release no more than that.
                error = TensorMismatch(f"{error}; all-reduce {index} of this rank is {running.call}")
            error.operations_done = self.operations_done if self.joined is not None else None
            self.failure = error
        while self._pending:
            _, operation = self._pending.popitem()
            operation.end(self.failure)

    def _handle(self, message: Message) -> None:
        match message:
            case Done(op_index=op_index, path=path, ns=ns):
                operation = self._pending.pop(op_index, None)
                if operation is not None:
                    self.operations_done += 1
                    operation.path, operation.daemon_ns = path, ns
                    operation.end()
            case Taken(op_index=op_index, nbytes=nbytes):
                running = self._pending.get(op_index)
                if running is not None and running.takes is not None:
                    running.takes(nbytes)
            case Joined():
                self.joined = message
            case JoinWaits(refused=refused):
                self.refused = refused
            case Error(op_index=int(op_index)):
                operation = self._pending.pop(op_index, None)
                if operation is not None:
                    operation.end(job_error(message))
            case Error(of=of) if of == self._regroup_id:
                self.regrouped = job_error(message)
            case Regrouped(id=of) if of == self._regroup_id:
                self.regrouped = message
            case Error():
                self.fail(job_error(message))
            case Ok(id=of):
                self.has_left = self.has_left or of == self._leave_id
            case StatusReply(body=body):
                self.status = dict(body)
            case _:
                pass  # of a later version: what this side needs to know, it has asked for
