"""What a simulated rank does on its ring, as ``inaproto.daemon.host_ring`` does on real hosts.

It performs what the rank's engine orders on its link, hands the engine what the NIC has completed, and wakes
it in time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, assert_never

from inaproto.core.accumulators import Accumulators
from inaproto.core.chain_engine import ChainAction, ChainEngine, Combine, PostSlot
from inaproto.core.host_messages import TENSORS_DIFFER
from inaproto.core.operation_queue import FROM_THE_START
from inaproto.core.recovery import Recovery
from inaproto.core.reduction_plan import ReductionPlan
from inaproto.core.ring_engine import (
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
from inaproto.core.ring_orders import KeptResults, RingOrders
from inaproto.errors import (
    Blame,
    FabricLost,
    InvariantBroken,
    JobError,
    OperationTimeout,
    SwitchUnreachable,
    TensorMismatch,
)
from inaproto.ports import Completion, CompletionKind, Segment, Status
from inaproto.sim.checkers.checker import Violated
from inaproto.sim.process import SimProcess
from inaproto.sim.rank_link import RankLink, RankTensors
from inaproto.sim.swarm import JobConfig
from inaproto.units import Epoch, Instant, Rank, RingId
from inaproto.wire.control_messages import (
    OpStarted,
    Ring,
    RingPath,
)
from inaproto.wire.ina_header import INA_HEADER_BYTES

if TYPE_CHECKING:
    from inaproto.sim.host import SimHost


class Phase(Enum):
    IDLE = "idle"
    JOINING = "joining"
    CONNECTING = "connecting"
    RUNNING = "running"
    LEFT = "left"
    HALTED = "halted"
    """Its ring has ended; the next is not there yet."""
    AWAY = "away"
    """Its ring has ended, for its host has lost the switch."""
    FINISHED = "finished"


WITHOUT_RING: Final = (Phase.IDLE, Phase.FINISHED)
IN_RING: Final = (Phase.CONNECTING, Phase.RUNNING, Phase.LEFT)
_SUCCESS: Final = Status.SUCCESS  # a member of an enumeration takes longer to look up than a constant
_SEND: Final = CompletionKind.SEND


class RankRing:
    """Rank ``index`` of ``job``; all times that it sees are its host's."""

    def __init__(self, host: SimHost, job: JobConfig, index: int) -> None:
        self.host = host
        self.job = job
        self.index = index
        self.phase = Phase.IDLE
        self.pid = 0
        self.ring_id = 0
        self.life = 0
        """Its first ring; 0: it has none yet."""
        self.engine: RingEngine | ChainEngine | None = None
        self._slots = 2 * job.window_messages
        self._slot_bytes = job.message_packets * job.mtu
        self._recover_ns = host.world.config.recover_ns
        self._link: RankLink | None = None
        self._orders: RingOrders[Segment] | None = None
        self._tensors: RankTensors | None = None
        self._accumulators: Accumulators | None = None
        """Of the present ring, if it is a chain."""
        self._wake_at: int | None = None
        self.process = SimProcess(self)
        self._begin()

    def _begin(self) -> None:
        """What a new process has not done yet."""
        self.engine = None
        self.ring_id = self.life = 0
        self.process.begin()
        self._wake_at = None
        self._has_started = self._has_left = self._is_broken = False
        self._kept = KeptResults()
        self._began_at = 0
        """Progress when the last ring ended: only later results are in the slots of the present link."""
        self._resumes = self._came_back = False
        """The present ring is not the first, and has yet to run; and the host had lost the switch."""
        self._away_until: Instant | None = None
        self._boot_id = ""
        """Of the control plane that made the present ring."""
        self._boots = 0
        """Of the switches, when the present ring was made."""
        self._outliving = -1
        """The all-reduce that ran when a switch went down."""

    def __str__(self) -> str:
        return f"rank {self.index} of {self.job.name} on {self.host.name}"

    def tensor(self, op_index: int) -> memoryview:
        """The tensor of an all-reduce: its input, and its result once it is done."""
        assert self._tensors is not None
        return self._tensors.whole[op_index]

    @property
    def is_chain(self) -> bool:
        """Whether its present ring is summed by the hosts."""
        return isinstance(self.engine, ChainEngine)

    @property
    def takes_calls(self) -> bool:
        """The process calls all-reduces, whether it has a ring now or not."""
        return self._has_started and not self._has_left

    @property
    def _progress(self) -> int:
        return 0 if self.engine is None else self.engine.progress

    def submit(self, operation: Operation) -> None:
        """The process calls an all-reduce."""
        self._step(Submit(operation))

    @property
    def out_psn(self) -> int:
        """With which its sending queue pair began."""
        assert self._link is not None
        return self._link.out.psn

    @property
    def into_qpn(self) -> int:
        """Its receiving queue pair."""
        assert self._link is not None
        return self._link.qpns[1]

    @property
    def holds_queue_pairs(self) -> bool:
        return self._link is not None and self._link.is_open

    # --- the link and the engine

    def _open(self, path: RingPath, plan: str) -> RankLink:
        """Queue pairs and slots for the next ring."""
        host, slot_bytes = self.host, self._slot_bytes
        if path == "chain":
            slot_bytes = self._plan(plan).slot_bytes(slot_bytes - INA_HEADER_BYTES)
        link = self._link = RankLink(
            host.nic,
            slots=self._slots,
            slot_bytes=slot_bytes,
            stages=self._recover_ns > 0,
            first_psn=host.world.first_psn,
            clock=lambda: host.now,
        )
        for qpn in link.qpns:
            host.serve(qpn, self)
        return link

    def _plan(self, text: str) -> Accumulators:
        plan = ReductionPlan.from_lists(json.loads(text)) if text else None
        return Accumulators(plan or ReductionPlan.flat(len(self.job.hosts)))

    def _make_engine(self, ring: Ring) -> RingEngine | ChainEngine:
        job = self.job
        config = RingConfig(
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
            outlived=self._recover_ns > 0,
        )
        operations = None if self.engine is None else self.engine.halt()
        self._resumes = operations is not None
        recovery = FROM_THE_START if operations is None else Recovery(ring.progress, ring.donor)
        self._accumulators = None
        if ring.path == "switch":
            return RingEngine(config, operations, recovery)
        self._accumulators = self._plan(ring.plan)
        return ChainEngine(config, self._accumulators, operations, recovery)

    def _close(self) -> None:
        self._close_link()
        if self._tensors is not None and self.phase is not Phase.AWAY:
            self._tensors.deregister()
        self._tensors = self._orders = None

    def _close_link(self) -> None:
        link = self._link  # its NIC is that of its opening: the host may have a new one
        if link is not None and link.is_open:
            link.close()
            for qpn in link.qpns:
                self.host.forget(qpn)

    # --- what happens on the ring

    def completed(self, completion: Completion) -> None:
        link = self._link
        if self.engine is None or link is None or self.phase in WITHOUT_RING:
            return
        _, kind, wr_id, status, imm, nbytes = completion
        if status is not _SUCCESS:
            if self._recover_ns:
                self._break(f"{self}: {status.value}")
            else:
                self.lose(FabricLost(f"{self}: {status.value}"))
        elif kind is _SEND:
            self._step(SendCompleted(wr_id))
        else:
            for hook in self.host.world.hooks.received:
                hook(self, imm)
            self._step(ResultArrived(imm, nbytes, link.result_header(imm, nbytes)))
            if link.is_open:
                link.post_receive(wr_id)

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

    def _perform(self, actions: Sequence[RingAction | ChainAction]) -> None:
        world, orders = self.host.world, self._orders
        if orders is None:
            raise InvariantBroken(f"{self} has orders and no ring")
        for action in actions:
            match action:
                case PostMessage():
                    for hook in world.hooks.posted:
                        hook(self, action.msg_id)
                    orders.post(action)
                    self.host.nic_touched()
                case PostSlot():
                    for hook in world.hooks.posted:
                        hook(self, action.msg_id)
                    orders.post_slot(action)
                    self.host.nic_touched()
                case Combine():
                    assert self._accumulators is not None
                    orders.combine(action, self._accumulators, self.index)
                case TakeResult():
                    slot, op_index, offset, nbytes = action  # sooner than the pattern would
                    orders.take(action)
                    for taken in world.hooks.taken:
                        taken(self, slot, op_index, offset, nbytes)
                case OperationDone(op_index):
                    world.note(self.host.number, "done", op_index)
                    if op_index == self._outliving:
                        world.mark("an all-reduce outlived a reboot of a switch")
                    for done in world.hooks.done:
                        done(self, op_index)
                    if self._tensors is not None:
                        self._tensors.end(op_index)
                    self.process.go_on()
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
                    if not (action.rule == TENSORS_DIFFER and self.process.may_differ):
                        raise Violated("nobody is to blame", f"{self} blames {action}")
                case RingBroken(code, message):
                    if code != TensorMismatch.code:
                        raise Violated("nobody is to blame", f"{self}: ring broken: {code}: {message}")
                    world.mark("a chain found that ranks disagree")
                    self.lose(TensorMismatch(message))
                case _:
                    assert_never(action)

    # --- the clock

    @property
    def _deadline(self) -> Instant | None:
        found = (None if self.engine is None else self.engine.deadline), self._away_until
        return min((at for at in found if at is not None), default=None)

    def _arm(self) -> None:
        deadline = self._deadline
        if deadline is not None and (self._wake_at is None or deadline < self._wake_at):
            self._wake_at = deadline
            self.host.world.agenda.at(self.host.world_time(deadline), self._wake, self.life)

    def _wake(self, life: int) -> None:
        if life == self.life:
            self.host.when_awake(lambda: self.woke(life))

    def woke(self, life: int) -> None:
        """The engine's deadline may have passed, or the time to wait for a switch."""
        if life != self.life or self.engine is None:
            return
        self._wake_at = None
        deadline = self._deadline
        if (
            deadline is None
            or deadline > self.host.now
            or (not self.takes_calls and self._away_until is None)
        ):
            self._arm()
        elif self._away_until is not None and self._away_until <= self.host.now:
            error = SwitchUnreachable(f"{self}: its switch has not come back")
            self.host.world.mark("a rank gave its switch up")
            self._fail(error.code, str(error))
        else:
            self._step(Woke())

    # --- ends

    def leave(self) -> None:
        """The process has said that it is finished."""
        raise NotImplementedError

    def lose(self, error: JobError) -> None:
        """This rank cannot go on, and found so itself."""
        raise NotImplementedError

    def _break(self, reason: str) -> None:
        """The ring cannot go on here."""
        raise NotImplementedError

    def _fail(self, code: str, message: str) -> None:
        """The job has failed."""
        raise NotImplementedError
