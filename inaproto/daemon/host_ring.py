"""One rank of a job on its host, from joining to leaving (NetReduce section 3.1).

Its ring may end and be followed by another (:mod:`inaproto.core.recovery`): the queue pairs failed, a switch
restarted, an accelerator refused. The rank is then halted, says how far it is, gets queue pairs for the next
ring, and its operations go on there, on the path that the switch names. A rank whose host has lost the
switch altogether waits for it, and is announced again with its progress.

It carries out what its engine (:mod:`inaproto.core.ring_engine`, :mod:`inaproto.core.chain_engine`) orders
(:mod:`inaproto.core.ring_orders`) on its link (:mod:`inaproto.daemon.ring_link`).

Invariants: calls never block and never wait; whatever ends a member ends it once, tells its owner
once, and gives its queue pairs and memory back. A rank that left keeps both until all have left
(``Closed``): its transport may still have to repeat what a neighbour lacks, or to acknowledge.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Literal, Protocol, assert_never

from inaproto.core.accumulators import Accumulators
from inaproto.core.chain_engine import ChainAction, ChainEngine, Combine, PostSlot
from inaproto.core.operation_queue import FROM_THE_START
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
from inaproto.core.reduction_plan import ReductionPlan
from inaproto.core.ring_engine import RingAction, RingEngine
from inaproto.core.ring_orders import KeptResults, RingOrders
from inaproto.daemon.config import HostSettings
from inaproto.daemon.operation_watch import OperationWatch
from inaproto.daemon.ring_link import RingLink
from inaproto.daemon.ring_orders import ClientTensors, Tensor
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
    SwitchUnreachable,
)
from inaproto.ports import (
    Completion,
    CompletionKind,
    Nic,
    QpAttributes,
    RandomBits,
    Status,
)
from inaproto.units import MS, Epoch, Instant, Rank, RingId
from inaproto.wire.control_messages import (
    AllReduce,
    Broken,
    Gone,
    Halt,
    Halted,
    JobStatus,
    Join,
    Left,
    Member,
    Message,
    OpStarted,
    Ready,
    Ring,
    RingPath,
)
from inaproto.wire.ina_header import INA_HEADER_BYTES

REASON_CHARACTERS_MAX = 1000
OPERATIONS_MAX = 4096
"""All-reduces of a rank that have not ended."""
HALTS_SHOWN = 5

DonePath = Literal["switch", "chain", "local"]


class Phase(Enum):
    JOINING = "joining"
    """Announced to the switch; other ranks are missing."""
    CONNECTING = "connecting"
    """Connected; other ranks are not, yet."""
    RUNNING = "running"
    LEFT = "left"
    """Left in good order; other ranks have not, yet."""
    HALTED = "halted"
    """Its ring has ended; the next is not there yet."""
    AWAY = "away"
    """Its ring has ended, for the host has lost the switch."""
    ENDED = "ended"


_IN_RING = (Phase.CONNECTING, Phase.RUNNING, Phase.LEFT)


class Owner(Protocol):
    """Whoever speaks to the training process."""

    def joined(self, ring_id: int, operations_max: int) -> None: ...
    def operation_done(self, op_index: int, path: DonePath, duration_ns: int) -> None: ...
    def member_failed(self, error: JobError) -> None:
        """And with it every operation that has not ended."""

    def member_closed(self) -> None: ...
    def announce_again(self) -> None: ...
    def process_is_gone(self) -> bool:
        """Whether the process has closed its connection, even if what it sent before is not read yet."""


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
        self._random_bits = random_bits
        self._engine: RingEngine | ChainEngine | None = None
        self._accumulators: Accumulators | None = None
        """Of the present ring, if it is a chain."""
        self._pending: dict[int, Tensor] = {}
        self._kept = KeptResults()
        self._ring: Ring | None = None
        self._has_started = False
        self._has_left = False
        self._is_broken = False
        """The present ring, as this rank has told the switch."""
        self._began_at = 0
        """Progress when the last ring ended: only later results are in the slots of the present link."""
        self._resumes = False
        """The present ring is not the first, and has yet to run."""
        self._away_until: Instant | None = None
        self._came_back = False
        """Announced again, and not in a ring since."""
        self._boot_id = ""
        """Of the switch of its last ring."""
        self.last_words = ""
        """Why it ended while its host had no switch, which is to be told."""
        self._halts: list[str] = []
        """Why the last rings ended."""
        self.recoveries = 0
        self._link = self._open_link(nic, "switch", "")

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

    def is_of(self, ring_id: int) -> bool:
        """Whether the end of that ring's job is the end of this rank.

        One that came back is of its job's present ring, though it may not have heard of that.
        """
        return self.ring_id == ring_id or self._came_back

    @property
    def has_come_back(self) -> bool:
        """Announced again after its host had lost the switch, and in no ring since."""
        return self._came_back

    @property
    def is_orphan(self) -> bool:
        """Its process gave up waiting for the others; nobody depends on it yet."""
        return self.phase in (Phase.JOINING, Phase.CONNECTING) and self._owner.process_is_gone()

    @property
    def is_away(self) -> bool:
        return self.phase is Phase.AWAY

    @property
    def _is_ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def deadline(self) -> Instant | None:
        if self._engine is None or not self._has_started or self.phase in (Phase.LEFT, Phase.ENDED):
            return None
        found = self._engine.deadline, self._watch.deadline, self._away_until
        return min((at for at in found if at is not None), default=None)

    def _open_link(self, nic: Nic, path: RingPath, plan: str) -> RingLink:
        """Queue pairs and slots for the next ring. Raises ``JoinRefused`` if there is no room for them."""
        settings = self._settings
        slot_bytes = settings.message_packets * settings.mtu
        if path == "chain":
            slot_bytes = self._plan(plan).slot_bytes(slot_bytes - INA_HEADER_BYTES)
        try:
            return RingLink(
                nic,
                slots=2 * settings.window_messages,
                slot_bytes=slot_bytes,
                random_bits=self._random_bits,
            )
        except (LocalMisuse, OSError) as error:
            raise JoinRefused(f"{self}: host {settings.name} has no room for it: {error}") from None

    def _plan(self, text: str) -> Accumulators:
        plan = ReductionPlan.from_lists(json.loads(text)) if text else ReductionPlan.flat(self.join.size)
        return Accumulators(plan)

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
            progress=self._progress if self._has_started else None,
            left_after=self._done if self._has_left else None,
            boot_id=self._boot_id,
        )

    @property
    def _progress(self) -> int:
        """Results that this rank has taken, since the job began."""
        return 0 if self._engine is None else self._engine.progress

    @property
    def _done(self) -> int:
        return 0 if self._engine is None else self._engine.view().operations_done

    def connect(self, ring: Ring, boot_id: str) -> None:
        """All ranks are there: connect the queue pairs, post receives, say so.

        ``boot_id`` is that of the switch.
        """
        if self.phase not in (Phase.JOINING, Phase.HALTED):
            return
        join, settings = self.join, self._settings
        attributes = QpAttributes(
            mtu=settings.mtu, timeout=settings.transport_timeout, retry_count=settings.retry_count
        )
        self._ring, self._boot_id = ring, boot_id
        self._is_broken = self._came_back = False
        try:
            self._engine = self._make_engine(ring)
            if join.size > 1:
                self._link.connect(ring.successor, ring.predecessor, attributes)
        except (LocalMisuse, ValueError) as error:
            self.lose(JoinRefused(f"{self}: the switch's ring cannot be used here: {error}"))
            return
        self.phase = Phase.CONNECTING
        self._watch.ended()
        self._tell(Ready(job=join.job, rank=join.rank))

    def _make_engine(self, ring: Ring) -> RingEngine | ChainEngine:
        settings, join = self._settings, self.join
        config = RingConfig(
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
            outlived=settings.recover_ms > 0,
        )
        operations = None if self._engine is None else self._engine.halt()
        self._resumes = operations is not None
        recovery = FROM_THE_START if operations is None else Recovery(ring.progress, ring.donor)
        self._accumulators = None
        if ring.path == "switch":
            return RingEngine(config, operations, recovery)
        self._accumulators = self._plan(ring.plan)
        return ChainEngine(config, self._accumulators, operations, recovery)

    def start(self) -> None:
        """All ranks are ready."""
        engine = self._engine
        if self.phase is not Phase.CONNECTING or self._ring is None or engine is None:
            return
        self.phase = Phase.LEFT if self._has_left else Phase.RUNNING
        self._watch.ended()
        if not self._has_started:
            self._has_started = True
            self._owner.joined(self._ring.ring_id, OPERATIONS_MAX)
        if self._resumes:
            self._resumes = False
            self._guard(lambda: self._perform(engine.resume(self._clock())))

    # --- rings that end while the job goes on

    def halt(self, message: Halt) -> None:
        """The ring has ended: say how far this rank is, with queue pairs for the next."""
        nic = self._link.nic
        if self.phase is Phase.JOINING:
            self._link.close()  # it came back while the next path was chosen: that may need larger slots
        elif message.ring_id == self.ring_id and self.phase in _IN_RING:
            self._stop_ring(message.reason)
        else:
            return
        try:
            self._link = self._open_link(nic, message.path, message.plan)
        except JoinRefused as error:
            self.lose(error)
            return
        self.phase = Phase.HALTED
        self._tell(
            Halted(
                job=self.join.job,
                rank=self.join.rank,
                ring_id=message.ring_id,
                progress=self._progress,
                out=self._link.out,
                into=self._link.into,
            )
        )

    def _stop_ring(self, reason: str) -> None:
        """Take nothing more of the ring, keep what others may lack, give the link back."""
        self.recoveries += 1
        self._halts = [*self._halts[1 - HALTS_SHOWN :], reason]
        if self._engine is not None and self._ring is not None:
            operations = self._engine.halt()
            self._kept.keep(operations.kept, self._link, self._began_at)
            self._began_at = operations.progress
        self._link.close()

    def _break(self, reason: str) -> None:
        """The ring cannot go on here. The switch ends it for all."""
        if self._is_broken or self._ring is None or self._engine is None:
            return
        self._is_broken = True
        self._engine.halt()
        self._log(f"{self}: its ring broke, the job goes on by another: {reason}")
        self._tell(
            Broken(
                job=self.join.job,
                rank=self.join.rank,
                ring_id=self._ring.ring_id,
                progress=self._progress,
                reason=reason[:REASON_CHARACTERS_MAX],
            )
        )

    def rejoin(self, nic: Nic, tell: Callable[[Message], None]) -> None:
        """The host has a switch again: be announced to it. Raises ``JoinRefused`` if there is no room."""
        self._tell = tell
        self._link = self._open_link(nic, "switch", "")
        try:
            for buffer in self.segments.values():
                buffer.register(nic)
        except LocalMisuse as error:
            self._link.close()
            raise JoinRefused(f"{self}: host {self._settings.name} has no room for it: {error}") from None
        self.phase = Phase.JOINING
        self._away_until = None
        self._came_back = True

    # --- operations

    def submit(self, request: AllReduce) -> None:
        """Start an all-reduce, or queue it. Raises ``JobError`` for what no client library asks."""
        if self._engine is None or not self._has_started or self._has_left:
            raise JobError(f"{self}: all_reduce {request.op_index} before the rank has joined")
        buffer = self.segments.get(request.segment)
        operation = check_request(request, buffer)
        view = self._engine.view()
        if request.op_index != view.operations_submitted:
            raise JobError(f"{self}: all_reduce {request.op_index} where {view.operations_submitted} is next")
        if view.operations_queued >= self._engine.config.operations_max:
            raise JobError(f"{self}: {view.operations_queued} all-reduces wait already; wait for one of them")
        if buffer is not None:
            self._pending[request.op_index] = Tensor(operation, buffer, request.offset, self._clock())
        self._step(Submit(operation))

    def completed(self, completion: Completion) -> None:
        """A work request of one of the queue pairs has ended."""
        if self._engine is None or self.phase not in (Phase.CONNECTING, Phase.RUNNING, Phase.LEFT):
            return
        if completion.status is not Status.SUCCESS:
            if self._settings.recover_ms:
                self._break(self._transport_failure(completion))
            else:
                self.lose(FabricLost(self._transport_failure(completion)))
        elif completion.kind is CompletionKind.SEND:
            self._step(SendCompleted(completion.wr_id))
        else:
            header = self._link.result_header(completion.imm, completion.nbytes)
            self._step(ResultArrived(completion.imm, completion.nbytes, header))
            if not self._is_ended and not self._is_broken:
                self._guard(lambda: self._link.post_receive(completion.wr_id))

    def woke(self) -> None:
        """Look at the clock: the running operation may have stalled, or taken too long."""
        if self._away_until is not None and self._clock() >= self._away_until:
            seconds = self._settings.recover_ms / 1000
            why = self._halts[-1] if self._halts else "unknown"
            text = f"{self}: its switch has not come back within {seconds:g} s; it was lost: {why}"
            self.fail(SwitchUnreachable(text))
        elif self._engine is not None and self._has_started and not self._has_left and not self._is_ended:
            self._step(Woke())
            self._give_up_if_overdue()

    def status_of_job(self, status: JobStatus) -> None:
        """The switch says for whom this rank waits."""
        running = self._engine.view().running if self._engine is not None else None
        if not self._has_started:
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

    def _perform(self, actions: Sequence[RingAction | ChainAction]) -> None:
        orders = RingOrders(self._link, self._kept, ClientTensors(self._pending))
        for action in actions:
            match action:
                case PostMessage():
                    orders.post(action)
                case PostSlot():
                    orders.post_slot(action)
                case Combine():
                    if self._accumulators is None:
                        raise InvariantBroken("a ring that is no chain has nothing to combine")
                    orders.combine(action, self._accumulators, self.join.rank)
                case TakeResult():
                    orders.take(action)
                case OperationDone(op_index):
                    pending = self._pending.pop(op_index)
                    self._watch.ended()
                    self._owner.operation_done(op_index, self.path, self._clock() - pending.since)
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
                    self._ring_broken(code, message)
                case _:
                    assert_never(action)

    @property
    def path(self) -> DonePath:
        """How its operations are summed now."""
        if self.join.size == 1:
            return "local"
        return self._ring.path if self._ring is not None else "switch"

    def _ring_broken(self, code: str, message: str) -> None:
        if self._settings.recover_ms and code == FabricLost.code:
            self._break(message)
        else:
            self.lose(_job_error(code, message))

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
        if not self._has_started or done is None or self._is_ended:
            self.gone("it left before the job had started")
        elif done.operations_queued:
            self.gone(f"it left while its all-reduce {done.operations_done} was running")
        else:
            self._has_left = True
            if self.phase is Phase.RUNNING:
                self.phase = Phase.LEFT
            self._tell(Left(job=self.join.job, rank=self.join.rank, operations=done.operations_done))

    def gone(self, reason: str) -> None:
        """The process is lost to the job: tell the switch, which tells the others."""
        if not self._has_left and not self._is_ended:
            if self.is_away:
                self.last_words = reason
            else:
                self._tell_gone(reason)
            self.close()

    def lose(self, error: JobError) -> None:
        """This rank cannot go on, and found so itself."""
        if self.phase is not Phase.ENDED:
            self._tell_gone(str(error))
            self.fail(error)

    def _tell_gone(self, reason: str) -> None:
        self._tell(self.gone_message(reason))

    def gone_message(self, reason: str) -> Gone:
        """That it is lost to its job."""
        return Gone(job=self.join.job, rank=self.join.rank, reason=reason[:REASON_CHARACTERS_MAX])

    def fail(self, error: JobError) -> None:
        """The job has failed; the switch knows."""
        if self.phase is Phase.ENDED:
            return
        left = self._has_left
        if self._engine is not None:
            self._perform(self._engine.step(Fail(error.code, str(error)), self._clock()))
        self.close()
        if left:
            self._owner.member_closed()
        else:
            self._owner.member_failed(error)

    def closed(self) -> None:
        """All ranks have left: nobody needs this one's queue pairs any more."""
        if self._has_left and not self._is_ended:
            self.close()
            self._owner.member_closed()

    def lose_fabric(self, error: JobError) -> None:
        """The host has lost its switch: wait for the next, if it comes in time.

        A rank that has not started yet is announced to it as if for the first time.
        """
        if self._is_ended or self.is_away:
            return
        if not self._has_started:
            self.close()
            self._owner.announce_again()
        elif self._settings.recover_ms:
            self._stop_ring(str(error))
            for buffer in self.segments.values():
                buffer.deregister()
            self._away_until = Instant(self._clock() + self._settings.recover_ms * MS)
            self.phase = Phase.AWAY
            self._tell = lambda message: None
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
            "path": self.path,
            "recoveries": self.recoveries,
            "halted_because": list(self._halts),
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
