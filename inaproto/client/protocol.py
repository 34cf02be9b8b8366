"""What a training process and its host daemon say to each other, without I/O.

Bytes and descriptors go in and out at the edges (:mod:`inaproto.client.channel`); here is what they
mean: one communicator's join, its operations, its failure, its leaving.

Invariants: operations are numbered from 0 in the order of the calls; each ends once, as done or with
an error; a communicator that has failed stays failed, with the same error. To the successor of its daemon it
says anew all that has not ended: nothing that the one daemon said is taken after that.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any, Protocol

from inaproto.errors import DaemonUnreachable, DecodeError, JobError, LocalMisuse, TensorMismatch
from inaproto.wire.control import why_not
from inaproto.wire.control_messages import (
    Dialogue,
    Error,
    Message,
    PathAsked,
    Regroup,
    Regrouped,
    Status,
    StatusReply,
    job_error,
)
from inaproto.wire.ina_header import Dtype, Op, call_words
from inaproto.wire.messages.client import (
    AllReduce,
    Buffer,
    Done,
    Filled,
    HasLeft,
    Join,
    Joined,
    JoinWaits,
    Leave,
    Ok,
    Rejoin,
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
    asked: AllReduce
    """What the daemon was asked for."""
    filled: int | None = None
    """Bytes of it that the daemon knows to be there, if not all are."""
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


class Spans(Protocol):
    """Whoever traces operations."""

    def begin(
        self, op_index: int, memory: object, asked: AllReduce, filled: int | None, call: str
    ) -> PendingOperation:
        """The operation, which ends its span when it ends; ``asked`` of it names the span to the daemon."""

    def returned(self, operations: Iterable[PendingOperation]) -> None:
        """A successor of the daemon has taken these on."""


class ClientProtocol:
    """One communicator's side of the conversation."""

    def __init__(self) -> None:
        self._dialogue = Dialogue()
        self._ids = count(1)
        self._next_op = 0
        self._pending: dict[int, PendingOperation] = {}
        self._unread: deque[Message] = deque()
        """What has come, and is to be taken by whoever reads."""
        self._place: Join | None = None
        """What it was asked for."""
        self._leave: Leave | None = None
        self._rejoin_id = -1
        self._regroup_id = -1
        self._asks_status = False
        self.operations_done = 0
        """All-reduces that this rank has the results of: operations end in order."""
        self.regrouped: Regrouped | JobError | None = None
        """The answer to :meth:`regroup`."""
        self.joined: Joined | None = None
        self.spans: Spans | None = None
        """None: nothing is traced."""
        self.returns = 0
        """How often a successor of its daemon has taken the rank on."""
        self.refused = ""
        """Ranks that this one waits for while it joins and that were refused, as the daemon said last."""
        self.others_left: set[int] = set()
        """Ranks that have left, of a job whose ranks are all on this host."""
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
        life: str = "",
        meets: tuple[str, ...] = (),
    ) -> bytes:
        self._place = Join(
            id=next(self._ids),
            job=job,
            rank=rank,
            size=size,
            key=key,
            pid=pid,
            path=path,
            exact_plan=exact_plan,
            elastic=elastic,
            life=life,
            meets=meets,
        )
        return self._dialogue.encode(self._place)

    def buffer(self, segment: int, nbytes: int) -> bytes:
        """The message that announces a segment, to be sent with its descriptor."""
        return self._dialogue.encode(Buffer(id=next(self._ids), segment=segment, nbytes=nbytes))

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
        asked = AllReduce(
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
        self._next_op += 1
        called = shape if whole is None else whole
        words = call_words(dtype, op, called, call)
        if self.spans is None:
            operation = PendingOperation(index, memory, asked, filled, words)
        else:
            operation = self.spans.begin(index, memory, asked, filled, words)
            asked = operation.asked
        if self.failure is not None:
            operation.end(self.failure)
        else:
            self._pending[index] = operation
        return operation, self._dialogue.encode(asked)

    def filled(self, operation: PendingOperation, nbytes: int) -> bytes:
        """The first ``nbytes`` of what ``operation`` reduces are there."""
        operation.filled = nbytes if nbytes < operation.asked.nbytes else None
        return self._dialogue.encode(Filled(id=next(self._ids), op_index=operation.op_index, nbytes=nbytes))

    def ask_status(self) -> bytes:
        self.status = None
        self._asks_status = True
        return self._dialogue.encode(Status(id=next(self._ids)))

    def regroup(self, *, job: str, rank: int) -> bytes:
        self.regrouped = None
        self._regroup_id = next(self._ids)
        return self._dialogue.encode(
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
        self._leave = Leave(id=next(self._ids), reason=reason[:REASON_CHARACTERS_MAX])
        return self._dialogue.encode(self._leave)

    # --- to a successor of the daemon

    @property
    def is_joining(self) -> bool:
        """It was asked for its place, and has none yet."""
        return self._place is not None and self.joined is None and self.failure is None

    @property
    def is_rejoining(self) -> bool:
        """It has said ``Rejoin``, and the answer is not known."""
        return self._rejoin_id >= 0

    @property
    def may_return(self) -> bool:
        """A successor is of use: nothing that is known, or has come, ends the rank."""
        ends = any(isinstance(each, Error) or self._confirms_leave(each) for each in self._unread)
        return self.failure is None and not self.has_left and not ends

    def join_again(self) -> bytes:
        """To a daemon that has not heard of it, if the other is gone before it had a place."""
        assert self._place is not None
        self._dialogue = Dialogue()
        return self._dialogue.encode(self._place)

    def rejoin(self) -> bytes:
        """The message that comes first. What the daemon before sent, and is not read yet, is never read."""
        assert self._place is not None
        self._dialogue = Dialogue()
        self._rejoin_id = next(self._ids)
        said = {each.name: getattr(self._place, each.name) for each in fields(Join) if each.name != "meets"}
        done = next(iter(self._open()), self._next_op)
        return self._dialogue.encode(
            Rejoin(**said | {"id": self._rejoin_id, "done": done, "called": self._next_op})
        )

    def call_again(self) -> list[bytes]:
        """What was called and has not ended, and what else was asked; after the segments."""
        said = [
            self._dialogue.encode(
                replace(
                    operation.asked, id=next(self._ids), wait_ns=None, work_ns=None, filled=operation.filled
                )
            )
            for operation in self._open().values()
        ]
        if self._asks_status and self.status is None:
            said.append(self.ask_status())
        if self._leave is not None:
            said.append(self._dialogue.encode(self._leave))
        return said

    def _open(self) -> dict[int, PendingOperation]:
        """Operations whose end has not come; they end in their order."""
        ended = {each.op_index for each in self._unread if isinstance(each, Done)}
        return {index: operation for index, operation in self._pending.items() if index not in ended}

    # --- in

    def receive(self, data: bytes) -> None:
        """Bytes from the daemon."""
        try:
            for message in self._dialogue.decode(data):
                self._unread.append(message)
                self.read()
        except DecodeError as error:
            why = why_not(error, "the host daemon sent what is no message; is it one?")
            self.fail(DaemonUnreachable(why))

    def keep(self, data: bytes) -> None:
        """Bytes from a daemon that is gone, to be taken by :meth:`read`. What is no message is left out."""
        with contextlib.suppress(DecodeError):
            self._unread.extend(self._dialogue.decode(data))

    def read(self) -> bool:
        """Take what has come. Whether anything has."""
        has_come = bool(self._unread)
        while self._unread:
            self._handle(self._unread.popleft())
        return has_come

    def end_of_stream(self, reason: str, waited: str = "") -> None:
        """The daemon has closed the connection. ``waited``: for a successor, how long and where."""
        self.has_left = True
        gone = f"the host daemon is gone ({reason}){waited}"
        self.fail(DaemonUnreachable(f"{gone}; look at its log, then join again"))

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
            case HasLeft(rank=rank):
                self.others_left.add(rank)
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
            case Ok(id=of) if of == self._rejoin_id:
                self._rejoin_id = -1
                self.returns += 1
                if self.spans is not None:
                    self.spans.returned(self._pending.values())
            case Ok():
                self.has_left = self.has_left or self._confirms_leave(message)
            case StatusReply(body=body):
                self.status = dict(body)
                self._asks_status = False
            case _:
                pass  # of a later version: what this side needs to know, it has asked for

    def _confirms_leave(self, message: Message) -> bool:
        return isinstance(message, Ok) and self._leave is not None and message.id == self._leave.id
