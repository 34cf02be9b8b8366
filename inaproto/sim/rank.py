"""One rank of a simulated job: what a host daemon does for it, and the training process behind it.

The protocol is the product's (:class:`~inaproto.core.ring_engine.RingEngine` over the host's NIC); this
shell performs what the engine orders, as ``inaproto.daemon.host_ring`` does on real hosts. One difference:
before a host daemon gives an overdue operation up, it asks the switch (``inaproto.daemon.operation_watch``).
The process joins, calls the job's all-reduces in order, some at once, leaves, and starts anew whenever its
job fails.
"""

from __future__ import annotations

import zlib
from enum import Enum
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, assert_never

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
from inaproto.errors import (
    Blame,
    FabricLost,
    JobError,
    OperationTimeout,
)
from inaproto.ports import Completion, CompletionKind, QpAddress, QpAttributes, Segment, Status
from inaproto.sim.checkers.checker import Violated
from inaproto.sim.streams import Draws
from inaproto.sim.swarm import JobConfig
from inaproto.units import MS, Epoch, OpIndex, Rank, RingId
from inaproto.wire.control_messages import (
    Closed,
    Error,
    Failed,
    Gone,
    IntoAddress,
    JobStatus,
    Left,
    Member,
    Message,
    OpStarted,
    OutAddress,
    Ready,
    Ring,
    Start,
)
from inaproto.wire.ina_header import INA_HEADER_BYTES

if TYPE_CHECKING:
    from inaproto.sim.host import SimHost

RECEIVES_SPARE: Final = 2
BACKOFF_NS: Final = 5 * MS


class Phase(Enum):
    IDLE = "idle"
    JOINING = "joining"
    CONNECTING = "connecting"
    RUNNING = "running"
    LEFT = "left"
    FINISHED = "finished"


_WITHOUT_RING: Final = (Phase.IDLE, Phase.FINISHED)
_SUCCESS: Final = Status.SUCCESS  # a member of an enumeration takes longer to look up than a constant
_SEND: Final = CompletionKind.SEND


class SimRank:
    """Rank ``index`` of ``job``; all times that it sees are its host's."""

    def __init__(self, host: SimHost, job: JobConfig, index: int) -> None:
        self.host = host
        self.job = job
        self.index = index
        self.phase = Phase.IDLE
        self.pid = 0
        self.ring_id = 0
        self.engine: RingEngine | None = None
        self._draws = Draws(host.world.config.seed, f"rank/{job.name}/{index}")
        self._slots = 2 * job.window_messages
        self._slot_bytes = job.message_packets * job.mtu
        self._offsets: list[int] = []
        self._tensors: list[memoryview] = []
        self._next_op = 0
        self._submit_planned = False
        self._wake_at: int | None = None
        self._open_qps = False

    def __str__(self) -> str:
        return f"rank {self.index} of {self.job.name} on {self.host.name}"

    # --- the process

    def start(self) -> None:
        """A new process (or one that starts anew) asks to join."""
        if self.phase is not Phase.IDLE or not self.host.is_up:
            return
        if self.host.world.is_closed(self.job):  # it had left, and so had all others, when its job failed
            self.finish()
            return
        if not self.host.is_welcome:  # the host daemon keeps the request until the switch knows it
            return
        self.pid = self.host.world.new_pid()
        self._open()
        self.phase = Phase.JOINING
        job = self.job
        self.host.tell(
            Member(
                id=self.pid,
                job=job.name,
                rank=self.index,
                size=len(job.hosts),
                key="simulated",
                pid=self.pid,
                host=self.host.name,
                mtu=job.mtu,
                window_messages=job.window_messages,
                message_packets=job.message_packets,
                out=self._out,
                into=self._into,
            )
        )

    def _again(self, _: Any = None) -> None:
        self.host.when_awake(self.start)

    def elements(self, op_index: int) -> int:
        """What this rank calls operation ``op_index`` with."""
        is_wrong = self.job.mismatch == (self.index, op_index) and self.host.world.is_first_ring(
            self.job, self.ring_id
        )
        return self.job.elements[op_index] + is_wrong

    def tensor(self, op_index: int) -> memoryview:
        """The tensor of an all-reduce: its input, and its result once it is done."""
        return self._tensors[op_index]

    def _plan_submit(self) -> None:
        """Call the next all-reduce after some thought, if there is one and few enough are running."""
        engine = self.engine
        if self._submit_planned or engine is None or self.phase is not Phase.RUNNING:
            return
        if self._next_op == len(self.job.elements):
            if engine.operations_queued == 0:
                self._leave()
            return
        if engine.operations_queued >= self.job.depth:
            return
        think = self._draws.below(self.job.think_ns + 1)
        if self.index == self.job.slow_rank:
            think += self._draws.below(self.job.slow_ns + 1)
        self._submit_planned = True
        self.host.world.agenda.after(think, self._submit_due, self.ring_id)

    def _submit_due(self, ring_id: int) -> None:
        if ring_id == self.ring_id and self.phase is Phase.RUNNING:
            self.host.when_awake(lambda: self._submit(ring_id))

    def _submit(self, ring_id: int) -> None:
        if ring_id != self.ring_id or self.phase is not Phase.RUNNING:
            return
        self._submit_planned = False
        world, job, op_index = self.host.world, self.job, self._next_op
        self._next_op += 1
        elements = self.elements(op_index)
        data = world.oracle(job).inputs(self.ring_id, self.index, op_index, elements)
        self.tensor(op_index)[:] = data.tobytes()
        signature = zlib.crc32(f"{job.dtype} {job.op} {elements}".encode()) & 0xFFFF
        operation = Operation(OpIndex(op_index), job.dtype, job.op, data.nbytes, signature)
        world.faults.called(job, op_index)
        for hook in world.hooks.submitted:
            hook(self, op_index)
        self._step(Submit(operation))
        self._plan_submit()

    # --- what the switch says

    def heard(self, message: Message) -> None:
        match message:
            case Ring() if self.phase is Phase.JOINING and message.id == self.pid:
                self._connect(message)
            case Start() if self.phase is Phase.CONNECTING and message.ring_id == self.ring_id:
                self.phase = Phase.RUNNING
                self._plan_submit()
            case Failed() if self.phase in (Phase.CONNECTING, Phase.RUNNING, Phase.LEFT):
                if message.ring_id in (0, self.ring_id):
                    self._fail(message.code, message.message)
            case Closed() if self.phase is Phase.LEFT and message.ring_id == self.ring_id:
                for hook in self.host.world.hooks.closed:
                    hook(self)
                self.finish()
            case Error() if self.phase is Phase.JOINING and message.of == self.pid:
                self.host.world.mark("a join was refused")
                self._close()
                self.phase = Phase.IDLE
                self.host.world.agenda.after(BACKOFF_NS, self._again)
            case JobStatus() if message.mismatch:
                self.host.world.mark("a mismatch was explained")
            case _:
                pass  # of an earlier ring, or for information

    def _open(self) -> None:
        """Queue pairs, slots and registered memory, as ``inaproto.daemon.ring_link`` has them."""
        nic = self._nic = self.host.nic
        self._results = memoryview(bytearray(self._slots * self._slot_bytes))
        self._headers = bytearray(self._slots * INA_HEADER_BYTES)
        self._results_region = nic.register_memory(self._results)
        self._headers_region = nic.register_memory(memoryview(self._headers).toreadonly())
        psn = self.host.world.first_psn
        out, into = nic.create_qp(psn=psn()), nic.create_qp(psn=psn())
        self.out_qpn, self.into_qpn = out.qpn, into.qpn
        self._out = OutAddress(mac=out.mac, ip=out.ip, qpn=out.qpn, psn=out.psn)
        self._into = IntoAddress(
            mac=into.mac,
            ip=into.ip,
            qpn=into.qpn,
            psn=into.psn,
            va=self._results_region.va,
            rkey=self._results_region.key,
            slots=self._slots,
            slot_bytes=self._slot_bytes,
        )
        self._open_qps = True
        self.host.serve(self.out_qpn, self)
        self.host.serve(self.into_qpn, self)

    def _connect(self, ring: Ring) -> None:
        job, nic = self.job, self._nic
        self.ring_id = ring.ring_id
        self.phase = Phase.CONNECTING
        self._successor = ring.successor
        self._next_op = 0
        self._submit_planned = False
        self.engine = RingEngine(
            RingConfig(
                ring_id=RingId(ring.ring_id),
                epoch=Epoch(ring.epoch),
                key=ring.ring_key,
                rank=Rank(self.index),
                ring_size=len(job.hosts),
                mtu=job.mtu,
                message_packets=job.message_packets,
                window_messages=job.window_messages,
                stall_ns=job.stall_ns,
                timeout_ns=job.timeout_ns,
            )
        )
        self.host.world.ring_connected(job, ring.ring_id)
        sizes = [self.elements(op_index) * job.dtype.itemsize for op_index in range(len(job.elements))]
        ends = list(accumulate(sizes))
        self._offsets = [end - size for end, size in zip(ends, sizes, strict=True)]
        memory = memoryview(bytearray(ends[-1]))
        self._tensors = [memory[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        self._tensor_region = nic.register_memory(memory)
        for receive in range(self._slots + RECEIVES_SPARE):
            nic.post_receive(self.into_qpn, receive)
        attributes = QpAttributes(mtu=job.mtu, timeout=job.transport_timeout, retry_count=job.retry_count)
        for qpn, peer in ((self.into_qpn, ring.predecessor), (self.out_qpn, ring.successor)):
            nic.connect_qp(qpn, QpAddress(peer.mac, peer.ip, peer.qpn, peer.psn), attributes)
        self.host.tell(Ready(job=job.name, rank=self.index))

    # --- the engine and the NIC

    def completed(self, completion: Completion) -> None:
        if self.engine is None or self.phase in _WITHOUT_RING:
            return
        _, kind, wr_id, status, imm, nbytes = completion
        if status is not _SUCCESS:
            self.lose(FabricLost(f"{self}: {status.value}"))
        elif kind is _SEND:
            self._step(SendCompleted(wr_id))
        else:
            begin = imm % self._slots * self._slot_bytes
            header = self._results[begin : begin + min(INA_HEADER_BYTES, nbytes)].tobytes()
            self._step(ResultArrived(imm, nbytes, header))
            if self._open_qps:
                self._nic.post_receive(self.into_qpn, wr_id)

    def _step(self, event: RingEvent) -> None:
        engine, world = self.engine, self.host.world
        if engine is None:
            return
        world.steps.ring_engine += 1
        if world.recorder is not None:
            world.recorder.rank_step(self, event)
        self._perform(engine.step(event, self.host.now))
        if self._wake_at is None:  # else it wakes in time: the deadline of an engine only moves away
            self._arm()

    def _perform(self, actions: list[RingAction]) -> None:
        world = self.host.world
        for action in actions:
            match action:
                case PostMessage():
                    self._post(action)
                case TakeResult():
                    slot, op_index, offset, nbytes = action  # sooner than the pattern would
                    begin = slot * self._slot_bytes + INA_HEADER_BYTES
                    self._tensors[op_index][offset : offset + nbytes] = self._results[begin : begin + nbytes]
                    for hook in world.hooks.taken:
                        hook(self, slot, op_index, offset, nbytes)
                case OperationDone(op_index):
                    world.note(self.host.number, "done", op_index)
                    for done in world.hooks.done:
                        done(self, op_index)
                    self._plan_submit()
                case OperationFailed(op_index, code, message):
                    world.note(self.host.number, "failed", op_index)
                    for failed in world.hooks.failed:
                        failed(self, op_index, code)
                case Stalled(operation):
                    world.mark("an all-reduce stalled")
                    self.host.tell(
                        OpStarted(
                            job=self.job.name,
                            rank=self.index,
                            op_index=operation.index,
                            signature=operation.signature,
                            nbytes=operation.nbytes,
                        )
                    )
                case Overdue(operation):
                    world.mark("an all-reduce was overdue")
                    self.lose(OperationTimeout(f"{self}: all-reduce {operation.index} is overdue"))
                case Blame():
                    raise Violated("nobody is to blame", f"{self} blames {action}")
                case RingBroken(code, message):
                    raise Violated("nobody is to blame", f"{self}: ring broken: {code}: {message}")
                case _:
                    assert_never(action)

    def _post(self, action: PostMessage) -> None:
        msg_id, slot, header, op_index, offset, nbytes = action
        host, at = self.host, slot * INA_HEADER_BYTES
        self._headers[at : at + INA_HEADER_BYTES] = header
        heads, tensors = self._headers_region, self._tensor_region
        head = Segment(heads.key, heads.va + at, INA_HEADER_BYTES)
        body = Segment(tensors.key, tensors.va + self._offsets[op_index] + offset, nbytes)
        for hook in host.world.hooks.posted:
            hook(self, msg_id)
        self._nic.post_write_imm(
            self.out_qpn,
            msg_id,
            (head, body),
            remote_va=self._successor.va + slot * self._slot_bytes,
            rkey=self._successor.rkey,
            imm=msg_id,
            now=host.now,
        )
        host.nic_touched()

    def _arm(self) -> None:
        deadline = self.engine.deadline if self.engine is not None else None
        if deadline is not None and (self._wake_at is None or deadline < self._wake_at):
            self._wake_at = deadline
            self.host.world.agenda.at(self.host.world_time(deadline), self._wake, self.ring_id)

    def _wake(self, ring_id: int) -> None:
        if ring_id == self.ring_id:
            self.host.when_awake(lambda: self.woke(ring_id))

    def woke(self, ring_id: int) -> None:
        """The engine's deadline may have passed."""
        if ring_id != self.ring_id or self.engine is None:
            return
        self._wake_at = None
        deadline = self.engine.deadline
        if deadline is not None and deadline <= self.host.now and self.phase is Phase.RUNNING:
            self._step(Woke())
        else:
            self._arm()

    # --- ends

    def _count_window_steps(self) -> None:
        """The engine goes: it told its window of every operation, result and completed send."""
        if self.engine is not None:
            view = self.engine.view()
            completed = view.messages_sent - view.unacknowledged
            started = view.operations_submitted - view.operations_queued + (view.running is not None)
            self.host.world.steps.message_window += started + view.messages_received + completed

    def finish(self) -> None:
        """All ranks of the job have left in good order."""
        if self.phase is Phase.JOINING:
            self.host.tell(Gone(job=self.job.name, rank=self.index, reason="its job has ended"))
        self._close()
        self._count_window_steps()
        self.engine = None
        self.phase = Phase.FINISHED
        self.host.world.rank_finished(self)

    def _leave(self) -> None:
        self.phase = Phase.LEFT
        for hook in self.host.world.hooks.left:
            hook(self, self._next_op)
        self.host.tell(Left(job=self.job.name, rank=self.index, operations=self._next_op))

    def lose(self, error: JobError) -> None:
        """This rank cannot go on, and found so itself."""
        if self.phase in (Phase.IDLE, Phase.FINISHED):
            return
        self.host.tell(Gone(job=self.job.name, rank=self.index, reason=str(error)[:1000]))
        self._fail(error.code, str(error))

    def die(self) -> None:
        """The host crashed: the process is gone, and so is all it had."""
        if self.phase is not Phase.FINISHED:
            for hook in self.host.world.hooks.died:
                hook(self)
            self._count_window_steps()
            self.engine = None
            self.ring_id = 0
            self._wake_at = None
            self._open_qps = False
            self.phase = Phase.IDLE

    def _fail(self, code: str, message: str) -> None:
        if self.engine is not None:
            self.host.world.mark(f"a rank was told: {code}")
            self._step(Fail(code, message))
        self._close()
        self._count_window_steps()
        self.engine = None
        self.ring_id = 0
        self._wake_at = None
        self.phase = Phase.IDLE
        self.host.world.agenda.after(BACKOFF_NS, self._again)

    def _close(self) -> None:
        if not self._open_qps:
            return
        self._open_qps = False
        nic = self._nic  # that of its opening: the host may have a new one
        for qpn in (self.out_qpn, self.into_qpn):
            nic.destroy_qp(qpn)
            self.host.forget(qpn)
        for region in (self._results_region, self._headers_region):
            nic.deregister_memory(region)
        if self.engine is not None:
            nic.deregister_memory(self._tensor_region)

    @property
    def out_psn(self) -> int:
        """With which its sending queue pair began."""
        return self._out.psn

    @property
    def holds_queue_pairs(self) -> bool:
        return self._open_qps
