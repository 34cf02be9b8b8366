"""One rank of one ring on its host, from joining to leaving (NetReduce section 3.1).

It carries out what its engine (:mod:`inaproto.core.ring_engine`) orders on its link
(:mod:`inaproto.daemon.ring_link`): tensor bytes go out straight from the client's shared memory,
results are copied into it.

Invariants: calls never block and never wait; whatever ends a member ends it once, tells its owner
once, and gives its queue pairs and memory back. A rank that left keeps both until all have left
(``Closed``): its transport may still have to repeat what a neighbour lacks, or to acknowledge.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, assert_never

from inaproto.core.ring_engine import (
    Fail,
    Operation,
    OperationDone,
    OperationFailed,
    Overdue,
    PostMessage,
    ResultArrived,
    RingAction,
    RingBroken,
    RingConfig,
    RingEngine,
    RingEvent,
    SendCompleted,
    Stalled,
    Submit,
    TakeResult,
    Woke,
)
from inaproto.daemon.config import HostSettings
from inaproto.daemon.operation_watch import OperationWatch
from inaproto.daemon.ring_link import RingLink
from inaproto.daemon.shared_buffers import SharedBuffer, check_request
from inaproto.errors import (
    JOB_ERRORS,
    Blame,
    FabricLost,
    InvariantBroken,
    JobError,
    JoinRefused,
    LocalMisuse,
    OperationTimeout,
)
from inaproto.ports import (
    Completion,
    CompletionKind,
    Nic,
    QpAttributes,
    RandomBits,
    Segment,
    Status,
)
from inaproto.units import MS, Epoch, Instant, Rank, RingId
from inaproto.wire.control_messages import (
    AllReduce,
    Gone,
    JobStatus,
    Join,
    Left,
    Member,
    Message,
    OpStarted,
    Ready,
    Ring,
)

REASON_CHARACTERS_MAX = 1000
OPERATIONS_MAX = 4096
"""All-reduces of a rank that have not ended."""


class Phase(Enum):
    JOINING = "joining"
    """Announced to the switch; other ranks are missing."""
    CONNECTING = "connecting"
    """Connected; other ranks are not, yet."""
    RUNNING = "running"
    LEFT = "left"
    """Left in good order; other ranks have not, yet."""
    ENDED = "ended"


class Owner(Protocol):
    """Whoever speaks to the training process."""

    def joined(self, ring_id: int, operations_max: int) -> None: ...
    def operation_done(self, op_index: int, path: str, duration_ns: int) -> None: ...
    def member_failed(self, error: JobError) -> None:
        """And with it every operation that has not ended."""

    def member_closed(self) -> None: ...
    def announce_again(self) -> None: ...
    def process_is_gone(self) -> bool:
        """Whether the process has closed its connection, even if what it sent before is not read yet."""


@dataclass(slots=True)
class _Pending:
    buffer: SharedBuffer
    offset: int
    since: Instant


class RingMember:
    """A rank from its ``Join`` to its end; ``tell`` sends a message to the switch.

    Raises ``JoinRefused`` when memory or the NIC's resources are short.
    """

    def __init__(
        self,
        join: Join,
        *,
        settings: HostSettings,
        nic: Nic,
        owner: Owner,
        tell: Callable[[Message], None],
        clock: Callable[[], Instant],
        log: Callable[[str], None],
        random_bits: RandomBits,
    ) -> None:
        self.join = join
        self.phase = Phase.JOINING
        self.segments: dict[int, SharedBuffer] = {}
        self._settings = settings
        self._owner = owner
        self._tell = tell
        self._clock = clock
        self._log = log
        self._watch = OperationWatch()
        self._engine: RingEngine | None = None
        self._pending: dict[int, _Pending] = {}
        self._ring: Ring | None = None
        slot_bytes = settings.message_packets * settings.mtu
        try:
            self._link = RingLink(
                nic, slots=2 * settings.window_messages, slot_bytes=slot_bytes, random_bits=random_bits
            )
        except (LocalMisuse, OSError) as error:
            raise JoinRefused(f"{self}: host {settings.name} has no room for it: {error}") from None

    def __str__(self) -> str:
        return f"rank {self.join.rank} of job {self.join.job!r} (pid {self.join.pid})"

    @property
    def nic(self) -> Nic:
        return self._link.nic

    @property
    def queue_pairs(self) -> tuple[int, int]:
        return self._link.out.qpn, self._link.into.qpn

    @property
    def ring_id(self) -> int | None:
        return None if self._ring is None else self._ring.ring_id

    @property
    def is_orphan(self) -> bool:
        """Its process gave up waiting for the others; nobody depends on it yet."""
        return self.phase in (Phase.JOINING, Phase.CONNECTING) and self._owner.process_is_gone()

    @property
    def _is_ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def deadline(self) -> Instant | None:
        if self._engine is None or self.phase is not Phase.RUNNING:
            return None
        deadlines = [at for at in (self._engine.deadline, self._watch.deadline) if at is not None]
        return min(deadlines, default=None)

    # --- joining

    def member_message(self, id: int) -> Member:
        """What the switch is told of this rank."""
        join, settings = self.join, self._settings
        return Member(
            id=id,
            job=join.job,
            rank=join.rank,
            size=join.size,
            key=join.key,
            pid=join.pid,
            host=settings.name,
            mtu=settings.mtu,
            window_messages=settings.window_messages,
            message_packets=settings.message_packets,
            out=self._link.out,
            into=self._link.into,
        )

    def connect(self, ring: Ring) -> None:
        """All ranks are there: connect the queue pairs, post receives, say so."""
        if self.phase is not Phase.JOINING:
            return
        join, settings = self.join, self._settings
        attributes = QpAttributes(
            mtu=settings.mtu, timeout=settings.transport_timeout, retry_count=settings.retry_count
        )
        self._ring = ring
        try:
            self._engine = self._make_engine(ring)
            if join.size > 1:
                self._link.connect(ring.successor, ring.predecessor, attributes)
        except LocalMisuse as error:
            self.lose(JoinRefused(f"{self}: the switch's ring cannot be used here: {error}"))
            return
        self.phase = Phase.CONNECTING
        self._watch.ended()
        self._tell(Ready(job=join.job, rank=join.rank))

    def _make_engine(self, ring: Ring) -> RingEngine:
        settings, join = self._settings, self.join
        return RingEngine(
            RingConfig(
                ring_id=RingId(ring.ring_id),
                epoch=Epoch(ring.epoch),
                key=ring.ring_key,
                rank=Rank(join.rank),
                ring_size=join.size,
                mtu=settings.mtu,
                message_packets=settings.message_packets,
                window_messages=settings.window_messages,
                stall_ns=settings.stall_ms * MS,
                operations_max=OPERATIONS_MAX,
                timeout_ns=settings.operation_timeout_ms * MS,
            )
        )

    def start(self) -> None:
        """All ranks are ready."""
        if self.phase is Phase.CONNECTING and self._ring is not None:
            self.phase = Phase.RUNNING
            self._watch.ended()
            self._owner.joined(self._ring.ring_id, OPERATIONS_MAX)

    # --- operations

    def submit(self, request: AllReduce) -> None:
        """Start an all-reduce, or queue it. Raises ``JobError`` for what no client library asks."""
        if self._engine is None or self.phase is not Phase.RUNNING:
            raise JobError(f"{self}: all_reduce {request.op_index} before the rank has joined")
        buffer = self.segments.get(request.segment)
        operation = check_request(request, buffer)
        view = self._engine.view()
        if request.op_index != view.operations_submitted:
            raise JobError(f"{self}: all_reduce {request.op_index} where {view.operations_submitted} is next")
        if view.operations_queued >= self._engine.config.operations_max:
            raise JobError(f"{self}: {view.operations_queued} all-reduces wait already; wait for one of them")
        if buffer is not None:
            self._pending[request.op_index] = _Pending(buffer, request.offset, self._clock())
        self._step(Submit(operation))

    def completed(self, completion: Completion) -> None:
        """A work request of one of the queue pairs has ended."""
        if self._engine is None or self.phase is Phase.ENDED:
            return
        if completion.status is not Status.SUCCESS:
            self.lose(FabricLost(self._transport_failure(completion)))
        elif completion.kind is CompletionKind.SEND:
            self._step(SendCompleted(completion.wr_id))
        else:
            header = self._link.result_header(completion.imm, completion.nbytes)
            self._step(ResultArrived(completion.imm, completion.nbytes, header))
            if not self._is_ended:
                self._guard(lambda: self._link.post_receive(completion.wr_id))

    def woke(self) -> None:
        """Look at the clock: the running operation may have stalled, or taken too long."""
        if self._engine is not None and self.phase is Phase.RUNNING:
            self._step(Woke())
            self._give_up_if_overdue()

    def status_of_job(self, status: JobStatus) -> None:
        """The switch says for whom this rank waits."""
        running = self._engine.view().running if self._engine is not None else None
        if self.phase is not Phase.RUNNING:
            self._watch.waiting_for = status.waiting_for
        elif running is not None and status.op_index in (None, running.index):  # else of another rank's
            if self._watch.heard(status):
                self._log(f"{self}: all-reduce without progress: {self._watch.stall}")
            self._give_up_if_overdue()

    def _give_up_if_overdue(self) -> None:
        why = self._watch.why_give_up(self._clock())
        if why:
            self.lose(OperationTimeout(f"{self}: {why}"))

    def _transport_failure(self, completion: Completion) -> str:
        at_out = completion.qpn == self._link.out.qpn
        peer = (self.join.rank + (1 if at_out else -1)) % self.join.size
        host = self._ring.peers[peer] if self._ring and peer < len(self._ring.peers) else "?"
        where = f"to rank {peer}" if at_out else f"from rank {peer}"
        return (
            f"rank {self.join.rank} of job {self.join.job!r}: the connection {where} on host {host} failed: "
            f"{completion.status.value}; look at that host and at the links between"
        )

    def _step(self, event: RingEvent) -> None:
        engine = self._engine
        if engine is not None:
            self._guard(lambda: self._perform(engine.step(event, self._clock())))

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (InvariantBroken, LocalMisuse) as fault:  # ours: this ring must not go on, others may
            self._log(f"{self}: {fault!r}\n{traceback.format_exc()}")
            self.lose(FabricLost(f"{self}: a fault in the host daemon ended it: {fault}; please report it"))

    def _perform(self, actions: list[RingAction]) -> None:
        for action in actions:
            match action:
                case PostMessage():
                    self._post(action)
                case TakeResult(slot, op_index, offset, nbytes):
                    pending = self._pending[op_index]
                    at = pending.offset + offset
                    pending.buffer.view[at : at + nbytes] = self._link.result(slot, nbytes)
                case OperationDone(op_index):
                    pending = self._pending.pop(op_index)
                    path = "local" if self.join.size == 1 else "switch"
                    self._watch.ended()
                    self._owner.operation_done(op_index, path, self._clock() - pending.since)
                case OperationFailed(op_index):  # the owner learns of it when the member fails
                    self._pending.pop(op_index, None)
                case Stalled(operation, for_ns, messages, results):
                    self._watch.stalled(results, messages, for_ns)
                    self._ask_for_whom(operation)
                case Overdue(operation):
                    if self._watch.overdue(action, self._clock()):
                        self._ask_for_whom(operation)
                case Blame():
                    self._log(f"{self}: {action}")
                case RingBroken(code, message):
                    self.lose(_job_error(code, message))
                case _:
                    assert_never(action)

    def _post(self, action: PostMessage) -> None:
        pending = self._pending[action.op_index]
        region = pending.buffer.region
        payload = Segment(region.key, region.va + pending.offset + action.offset, action.nbytes)
        self._link.post_message(action.msg_id, action.slot, action.header, payload)

    def _ask_for_whom(self, operation: Operation) -> None:
        self._tell(
            OpStarted(
                job=self.join.job,
                rank=self.join.rank,
                op_index=operation.index,
                signature=operation.signature,
                nbytes=operation.nbytes,
            )
        )

    # --- ends

    def leave(self) -> None:
        """The process has said that it is finished."""
        done = self._engine.view() if self._engine is not None else None
        if self.phase is not Phase.RUNNING or done is None:
            self.gone("it left before the job had started")
        elif done.operations_queued:
            self.gone(f"it left while its all-reduce {done.operations_done} was running")
        else:
            self.phase = Phase.LEFT
            self._tell(Left(job=self.join.job, rank=self.join.rank, operations=done.operations_done))

    def gone(self, reason: str) -> None:
        """The process is lost to the job: tell the switch, which tells the others."""
        if self.phase not in (Phase.LEFT, Phase.ENDED):
            self._tell_gone(reason)
            self.close()

    def lose(self, error: JobError) -> None:
        """This rank cannot go on, and found so itself."""
        if self.phase is not Phase.ENDED:
            self._tell_gone(str(error))
            self.fail(error)

    def _tell_gone(self, reason: str) -> None:
        self._tell(Gone(job=self.join.job, rank=self.join.rank, reason=reason[:REASON_CHARACTERS_MAX]))

    def fail(self, error: JobError) -> None:
        """The job has failed; the switch knows."""
        if self.phase is Phase.ENDED:
            return
        left = self.phase is Phase.LEFT
        if self._engine is not None:
            self._perform(self._engine.step(Fail(error.code, str(error)), self._clock()))
        self.close()
        if left:
            self._owner.member_closed()
        else:
            self._owner.member_failed(error)

    def closed(self) -> None:
        """All ranks have left: nobody needs this one's queue pairs any more."""
        if self.phase is Phase.LEFT:
            self.close()
            self._owner.member_closed()

    def lose_fabric(self, error: JobError) -> None:
        """The host has lost its switch. A rank that has not started yet may be announced to the next."""
        if self.phase in (Phase.JOINING, Phase.CONNECTING):
            self.close()
            self._owner.announce_again()
        else:
            self.fail(error)

    def close(self) -> None:
        """Give queue pairs and memory back."""
        if self.phase is Phase.ENDED:
            return
        self.phase = Phase.ENDED
        self._link.close()
        for buffer in self.segments.values():
            buffer.close()
        self.segments.clear()
        self._pending.clear()

    def status(self) -> dict[str, Any]:
        """For ``inaproto status``."""
        record: dict[str, Any] = {
            "job": self.join.job,
            "rank": self.join.rank,
            "size": self.join.size,
            "pid": self.join.pid,
            "phase": self.phase.value,
            "ring_id": self.ring_id,
            "peers": list(self._ring.peers) if self._ring else [],
            "waiting_for": list(self._watch.waiting_for),
            "stall": self._watch.stall,
            "segments": len(self.segments),
            "segment_bytes": sum(buffer.nbytes for buffer in self.segments.values()),
        }
        if self._engine is not None:
            view = self._engine.view()
            running = view.running
            record |= {
                "operations_done": view.operations_done,
                "operations_queued": view.operations_queued,
                "bytes_reduced": view.bytes_reduced,
                "messages_sent": view.messages_sent,
                "messages_received": view.messages_received,
                "unacknowledged": view.unacknowledged,
                "stalls": view.stalls,
                "operation": None
                if running is None
                else {
                    "op_index": running.index,
                    "nbytes": running.nbytes,
                    "messages": view.messages,
                    "results": view.results,
                    "idle_ms": (self._clock() - view.since) // MS,
                },
            }
        return record


def _job_error(code: str, message: str) -> JobError:
    return JOB_ERRORS.get(code, JobError)(message)
