"""What a host does in a ring of its job: it carries the operations of its ranks out (NetReduce 3.1, 3.4).

The host takes part in an all-reduce when all its ranks of the job have called it
(:mod:`inaproto.core.host.gathering`): it sends the sum of their parts, and copies results to all of them.
Where a job has no other host it adds and copies, and sends nothing. A job may have two rings at once
(:mod:`inaproto.core.host.engines.two_paths`), each with a link; the base ring's is *the* link.

It performs what its engine (:mod:`inaproto.core.host.engines.in_network`,
:mod:`inaproto.core.host.engines.chain`,
:mod:`inaproto.core.host.engines.ring`, :mod:`inaproto.core.host.engines.host_tree`) orders
(:mod:`inaproto.core.host.performer`) on its link (:mod:`inaproto.daemon.host.ring_link`), hands the engine
what the NIC has completed, and looks at the clock. How rings come and go is :mod:`inaproto.daemon.host.ring`.

Invariants: calls never block and never wait; what an all-reduce waits for is asked of the switch, and known
to it: a host reports each of its ranks that waits.
"""

from __future__ import annotations

import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import assert_never

from inaproto.core.host.engines.chain import ChainEngine
from inaproto.core.host.engines.host_tree import UP, Fold, OverlayAction, OverlayEngine, PostDown
from inaproto.core.host.engines.hosts import Combine, HostsAction, PostSlot
from inaproto.core.host.engines.in_network import RingAction, RingEngine
from inaproto.core.host.engines.ring import RingAllReduceEngine
from inaproto.core.host.engines.two_paths import (
    BASE,
    INA,
    Bound,
    BoundPath,
    Drained,
    OnPath,
    TwoPaths,
    TwoPathsAction,
)
from inaproto.core.host.gathering import Gathering
from inaproto.core.host.local_reduction import SlicedReduction
from inaproto.core.host.operation_queue import FROM_THE_START
from inaproto.core.host.operation_watch import OperationWatch
from inaproto.core.host.operations import (
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
from inaproto.core.host.performer import KeptResults, RingOrders
from inaproto.core.host.recovery import Recovery
from inaproto.core.host.ring_words import explain_positions, failure_at, name_ranks, transport_failure
from inaproto.core.host.tree_performer import OverlayOrders
from inaproto.core.plan.accumulators import Accumulators, RotatedAccumulators, accumulators_on
from inaproto.core.plan.host_tree import OverlayTree, overlay_on
from inaproto.daemon.host.local_rank import LocalRank
from inaproto.daemon.host.ring_link import RingLink, TreeLink
from inaproto.daemon.host.ring_orders import ClientTensors
from inaproto.daemon.host.totals import HostTotals
from inaproto.daemon.host.turns import NoTurns, Turns
from inaproto.daemon.settings.config import HostSettings
from inaproto.errors import (
    JOB_ERRORS,
    Blame,
    FabricError,
    FabricLost,
    InvariantBroken,
    JobError,
    LocalMisuse,
    OperationTimeout,
    SwitchUnreachable,
)
from inaproto.ports import (
    Completion,
    CompletionKind,
    Segment,
    Status,
)
from inaproto.units import MS, Epoch, Instant, OpIndex, Rank, RingId
from inaproto.wire.client_messages import AllReduce, DonePath
from inaproto.wire.control_messages import JobStatus, Message, OpStarted, Ring, RingPath

Engine = RingEngine | ChainEngine | RingAllReduceEngine | OverlayEngine | TwoPaths

OPERATIONS_MAX = 4096
"""All-reduces of a rank that have not ended."""


class Phase(Enum):
    JOINING = "joining"
    """Announced to the switch; other ranks are missing."""
    CONNECTING = "connecting"
    """Connected; other hosts are not, yet."""
    RUNNING = "running"
    LEFT = "left"
    """All its ranks have left in good order; those of other hosts have not, yet."""
    HALTED = "halted"
    """The ring has ended; the next is not there yet."""
    AWAY = "away"
    """The ring has ended, for the host has lost the switch."""
    ENDED = "ended"


IN_RING = (Phase.CONNECTING, Phase.RUNNING, Phase.LEFT)


class HostOperations:
    """Of the ranks of job ``job`` on this host; ``tell`` sends a message to the switch."""

    def __init__(
        self,
        job: str,
        *,
        settings: HostSettings,
        tell: Callable[[Message], None],
        clock: Callable[[], Instant],
        log: Callable[[str], None],
        totals: HostTotals | None = None,
    ) -> None:
        self.job = job
        self.phase = Phase.JOINING
        self.ranks: dict[int, LocalRank] = {}
        """By number, ascending."""
        self.recoveries = 0
        self._settings = settings
        self._tell = tell
        self._clock = clock
        self._log = log
        self._link: RingLink | TreeLink
        self._ina: RingLink | None = None
        """Of the ring through the switches that stands beside that of ``_link``, or is to."""
        self._turns: Turns = NoTurns()
        self._hurry: Callable[[], None] = lambda: None
        """What it waits for has a new, perhaps earlier, end."""
        self._done_by: Counter[DonePath] = Counter()
        self._totals = totals or HostTotals()
        self._ring: Ring | None = None
        self._engine: Engine | None = None
        self._accumulators: Accumulators | None = None
        """Of the present ring, if its hosts sum themselves."""
        self._gathering = Gathering((), stall_ns=0, timeout_ns=0)
        self._tensors = ClientTensors(())
        self._sums: deque[SlicedReduction] = deque()
        """Of a job that has no other host, in order."""
        self._kept = KeptResults()
        self._watch = OperationWatch()
        self._has_started = False
        self._is_broken = False
        """The present ring, as this host has told the switch."""
        self._began_at = 0
        """Progress when the last ring ended: only later results are in the slots of the present link."""
        self._resumes = False
        """The present ring is not the first, and has yet to run."""
        self._away_until: Instant | None = None
        self._came_back = False
        """Announced again, and not in a ring since."""
        self._halts: list[str] = []
        """Why the last rings ended."""

    def __str__(self) -> str:
        if len(self.ranks) == 1:
            (rank,) = self.ranks.values()
            return str(rank)
        pids = ", ".join(str(rank.join.pid) for rank in self.ranks.values())
        return f"{name_ranks(self.ranks)} of job {self.job!r} (pids {pids})"

    @property
    def _size(self) -> int:
        """Of the job: one that says otherwise is refused by the switch."""
        return next((rank.join.size for rank in self.ranks.values()), 0)

    @property
    def _is_ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def _lowest(self) -> int:
        """Speaks for all ranks of this host."""
        return next(iter(self.ranks))

    @property
    def _have_all_left(self) -> bool:
        return all(rank.has_left for rank in self.ranks.values())

    @property
    def deadline(self) -> Instant | None:
        if self._engine is None or not self._has_started or self.phase in (Phase.LEFT, Phase.ENDED):
            return None
        found = (
            self._engine.deadline,
            self._gathering.deadline,
            self._watch.deadline,
            self._away_until,
        )
        return min((at for at in found if at is not None), default=None)

    @property
    def _progress(self) -> int:
        """Results that this host has taken, since the job began."""
        return 0 if self._engine is None else self._engine.progress

    @property
    def binds_next(self) -> OpIndex | None:
        """The all-reduce that will be bound next to one of two rings; None where there is one."""
        return self._engine.binds_next if isinstance(self._engine, TwoPaths) else None

    @property
    def _ina_stands(self) -> bool:
        return isinstance(self._engine, TwoPaths) and self._engine.ina_config is not None

    def _ring_config(self, ring: Ring) -> RingConfig:
        settings = self._settings
        return RingConfig(
            ring_id=RingId(ring.ring_id),
            epoch=Epoch(ring.epoch),
            key=ring.ring_key,
            rank=Rank(ring.position),
            ring_size=len(ring.peers),
            mtu=settings.mtu,
            message_packets=settings.message_packets,
            window_messages=settings.window_messages,
            stall_ns=settings.stall_ms * MS,
            operations_max=OPERATIONS_MAX,
            timeout_ns=settings.operation_timeout_ms * MS,
            outlived=settings.recover_ms > 0,
        )

    def _make_engine(self, ring: Ring) -> Engine:
        config = self._ring_config(ring)
        operations = None if self._engine is None else self._engine.halt()
        self._resumes = operations is not None
        recovery = FROM_THE_START if operations is None else Recovery(ring.progress, ring.donor)
        if not self._resumes:
            self._gathering = Gathering(self.ranks, stall_ns=config.stall_ns, timeout_ns=config.timeout_ns)
            self._tensors = ClientTensors([rank.tensors for rank in self.ranks.values()])
        self._accumulators = None
        if ring.path == "switch":
            return RingEngine(config, operations, recovery)
        if ring.path == "overlay":
            return OverlayEngine(config, overlay_of(ring), operations, recovery)
        self._accumulators = accumulators = accumulators_on(ring.path, ring.plan, len(ring.peers))
        if ring.path == "shared":
            bind = self._turns.bind
            return TwoPaths(config, accumulators, bind, operations=operations, recovery=recovery)
        if isinstance(accumulators, RotatedAccumulators):
            return RingAllReduceEngine(config, accumulators, operations, recovery)
        return ChainEngine(config, accumulators, operations, recovery)

    # --- operations

    def submit(self, rank: LocalRank, request: AllReduce) -> None:
        """A rank calls an all-reduce. Raises ``JobError`` for what no client library asks."""
        if self._engine is None or not self._has_started or rank.has_left:
            raise JobError(f"{rank}: all_reduce {request.op_index} before the rank has joined")
        operation = rank.call(request, self._clock(), OPERATIONS_MAX)
        self._gathering.call(rank.number, operation)
        if rank.number == self._lowest:
            waited = request.wait_ns is not None and request.work_ns is not None
            times = (request.wait_ns or 0, request.work_ns or 0) if waited else None
            self._turns.called(operation.index, operation.nbytes, times)
        self._guard(self._hand_on)

    def _hand_on(self) -> None:
        """Start what all ranks here have called by now; once that has ended, the others are waited for."""
        engine, gathering = self._engine, self._gathering
        while engine is not None and not self._is_ended:
            is_awaited = gathering.deadline is not None
            operation = gathering.take()
            if operation is None:
                break
            if is_awaited:
                self._watch.ended()
            if engine.config.ring_size == 1 and len(self.ranks) > 1:
                self._sums.append(SlicedReduction(operation, len(self.ranks)))
            else:
                self._perform(engine.step(Submit(operation), self._clock()))
        if engine is not None and not self._is_ended and not engine.operations_queued and not self._sums:
            gathering.begin(self._clock())
            if gathering.differs:
                self._ask_for_whom()

    def add_slice(self) -> bool:
        """Do a part of what only ranks of this host are to add up; whether there is more of it."""
        engine = self._engine
        if self.phase is Phase.RUNNING and self._sums and engine is not None:
            total = self._sums[0]

            def work() -> None:
                if not total.is_done:
                    total.turn(self._tensors)
                if total.is_done:
                    self._sums.popleft()
                    self._perform(engine.step(Submit(total.operation), self._clock()))
                    self._hand_on()

            self._guard(work)
        return self.phase is Phase.RUNNING and bool(self._sums)

    def completed(self, completion: Completion) -> None:
        """A work request of one of the queue pairs has ended."""
        if self._engine is None or self._ring is None or self.phase not in IN_RING:
            return
        path, link = BASE, self._link
        if self._ina is not None and self._ina.has(completion.qpn):
            path, link = INA, self._ina
        elif not link.has(completion.qpn):
            return  # of a link that was given back
        if completion.status is not Status.SUCCESS:
            self._connection_failed(completion, link, self._ring)
        elif isinstance(link, TreeLink):
            self._completed_in_tree(completion, link)
        elif completion.kind is CompletionKind.SEND:
            self._step(SendCompleted(completion.wr_id), path)
        else:
            header = link.header(UP, completion.imm, completion.nbytes)
            self._step(ResultArrived(completion.imm, completion.nbytes, header), path)
            if not self._is_ended and not self._is_broken:
                self._guard(lambda: link.post_receive(completion.wr_id))

    def _connection_failed(self, completion: Completion, link: RingLink | TreeLink, ring: Ring) -> None:
        if isinstance(link, TreeLink):
            edge, tree = link.edge_of(completion.qpn), overlay_of(ring)
            parent, children = tree.parents[ring.position], tree.children(ring.position)
            peer = ring.position if parent is None else parent
            reason = failure_at(self.job, ring, completion, peer if edge == UP else children[edge], "to")
        else:
            at_out = completion.qpn == link.qpns[0]
            reason = transport_failure(self.job, ring, completion, at_out=at_out)
        if link.wait.is_under_way:  # who waits for that hears more of why
            link.early_failure = link.early_failure or reason
        else:
            self._transport_failed(reason)

    def _completed_in_tree(self, completion: Completion, link: TreeLink) -> None:
        edge = link.edge_of(completion.qpn)
        if completion.kind is CompletionKind.SEND:
            self._step(SendCompleted(completion.wr_id), edge=edge)
            return
        header = link.header(edge, completion.imm, completion.nbytes)
        self._step(ResultArrived(completion.imm, completion.nbytes, header), edge=edge)
        if not self._is_ended and not self._is_broken:
            self._guard(lambda: link.post_receive(completion.wr_id, edge))

    def woke(self) -> None:
        """Look at the clock: the running operation may have stalled, or taken too long."""
        if self._away_until is not None and self._clock() >= self._away_until:
            seconds = self._settings.recover_ms / 1000
            why = self._halts[-1] if self._halts else "unknown"
            text = f"{self}: its switch has not come back within {seconds:g} s; it was lost: {why}"
            self.fail(SwitchUnreachable(text))
        elif self._engine is not None and self._has_started and not self._is_ended:
            if self._have_all_left:
                return
            self._step(Woke())
            self._guard(lambda: self._perform(self._gathering.woke(self._clock())))
            self._give_up_if_overdue()

    @property
    def _awaited(self) -> dict[int, Operation]:
        """The operation that has to make progress, by rank here that waits in it."""
        running = self._engine.view().running if self._engine is not None else None
        if running is not None:
            return dict.fromkeys(self.ranks, running)
        return self._gathering.waiting if self._gathering.deadline is not None else {}

    def status_of_job(self, status: JobStatus) -> None:
        """The switch says for whom these ranks wait."""
        awaited = self._awaited
        if status.op_index is None:  # of a ring that is not there yet, not of an all-reduce
            self._watch.waiting_for = status.waiting_for
        elif awaited and status.op_index == next(iter(awaited.values())).index:  # else of others
            if self._watch.heard(status, without=awaited):
                self._log(f"{self}: all-reduce without progress: {self._watch.stall}")
            self._give_up_if_overdue()

    def _give_up_if_overdue(self) -> None:
        why = self._watch.why_give_up(self._clock())
        if why:
            self.lose(OperationTimeout(f"{self}: {why}"))

    def _step(self, event: RingEvent, path: BoundPath = BASE, edge: int = UP) -> None:
        """``edge``: in an overlay, the connection of a message."""
        engine = self._engine
        if isinstance(engine, TwoPaths):
            self._guard(lambda: self._perform(engine.step(event, self._clock(), path)))
        elif isinstance(engine, OverlayEngine):
            self._guard(lambda: self._perform(engine.step(event, self._clock(), edge)))
        elif engine is not None:
            self._guard(lambda: self._perform(engine.step(event, self._clock())))

    def binding_changed(self) -> None:
        """What was asked of its turns may have another answer now."""
        if self._engine is not None and self._has_started and not self._is_ended:
            self._step(Woke())

    def binding_differs(self, op_index: OpIndex, host: str) -> None:
        """The operation, which goes through the switches here, goes by the base ring at ``host``: all stalls.

        The switch ends the ring for all, without waiting for that to show.
        """
        engine = self._engine
        running = engine.operations.running if isinstance(engine, TwoPaths) else None
        if running is not None and running.index == op_index:
            self._ask_for_whom(unlike=host)

    def _transport_failed(self, reason: str) -> None:
        """The queue pairs of this ring are of no use any more."""
        if self._settings.recover_ms:
            self._break(reason)
        else:
            self.lose(FabricLost(reason))

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except FabricError as error:
            self._transport_failed(f"{self}: {error}")
        except (InvariantBroken, LocalMisuse) as fault:  # ours: this ring must not go on, others may
            self._log(f"{self}: {fault!r}\n{traceback.format_exc()}")
            self.lose(FabricLost(f"{self}: a fault in the host daemon ended it: {fault}; please report it"))

    def _perform(self, actions: Sequence[RingAction | HostsAction | TwoPathsAction | OverlayAction]) -> None:
        """All of them, though the NIC may refuse to send: results that the engine has taken must be taken."""
        path, orders = BASE, self._orders_on(BASE)
        has_done = False
        refused: FabricError | None = None
        for action in actions:
            match action:
                case PostMessage() | PostSlot() | PostDown():
                    try:
                        if refused is None:
                            _post(action, orders)
                    except FabricError as error:
                        refused = error
                case Fold():
                    if not (isinstance(orders, OverlayOrders) and isinstance(self._engine, OverlayEngine)):
                        raise InvariantBroken("a host that is in no tree has nothing to fold")
                    orders.fold(action, self._engine.tree, self._engine.config.rank)
                case Combine():
                    if self._accumulators is None or self._ring is None:
                        raise InvariantBroken("a host that does not sum has nothing to combine")
                    orders.combine(action, self._accumulators, self._ring.position)
                case TakeResult():
                    orders.take(action)
                case OnPath(named):
                    path, orders = named, self._orders_on(named)
                case Bound(op_index, bound_to):
                    self._turns.bound(op_index, bound_to)
                case Drained(op_index):
                    self._turns.drained(op_index)
                case OperationDone(op_index):
                    self._watch.ended()
                    has_done = True
                    done_by: DonePath = INA if path == INA else self.done_path
                    self._done_by[done_by] += 1
                    self._count(op_index, done_by)
                    self._turns.done(op_index)
                    for rank in self.ranks.values():
                        rank.done(op_index, done_by, self._clock())
                case OperationFailed():  # the owners learn of it when the ring fails
                    pass
                case Stalled(_, for_ns, messages, results):
                    self._watch.stalled(results, messages, for_ns)
                    self._ask_for_whom()
                case Overdue():
                    if self._watch.overdue(action, self._clock()):
                        self._ask_for_whom()
                case Blame():
                    self._log(f"{self}: {action}")
                case RingBroken(code, message):
                    self._ring_broken(code, message)
                case _:
                    assert_never(action)
        if refused is not None:
            self._transport_failed(f"{self}: {refused}")
        if isinstance(self._engine, TwoPaths) and self._engine.is_waiting:
            self._hurry()
        if has_done and self._gathering.waiting and not self._is_ended:
            self._hand_on()

    def _count(self, op_index: int, path: DonePath) -> None:
        tensors = [rank.tensors[op_index] for rank in self.ranks.values()]
        if tensors:
            since = min(tensor.since for tensor in tensors)
            self._totals.done(path, tensors[0].operation.nbytes, self._clock() - since)

    def _orders_on(self, path: BoundPath) -> RingOrders[Segment]:
        link = self._link if path == BASE else self._ina
        if link is None:
            raise InvariantBroken("an order for a ring through the switches, and there is none")
        if isinstance(link, TreeLink):
            return OverlayOrders(link, self._kept, self._tensors)
        return RingOrders(link, self._kept, self._tensors)

    @property
    def path(self) -> DonePath | RingPath:
        """How its operations are summed now."""
        return "shared" if self._ina_stands else self.done_path

    @property
    def done_path(self) -> DonePath:
        """By which its operations go, but for those of a ring that stands beside the present one."""
        if self._size == 1 or (self._ring is not None and len(self._ring.peers) == 1):
            return "local"
        if self._ring is None:
            return "switch"
        return "chain" if self._ring.path == "shared" else self._ring.path

    def _ring_broken(self, code: str, message: str) -> None:
        message += explain_positions(self._ring)
        if self._settings.recover_ms and code == FabricLost.code:
            self._break(message)
        else:
            self.lose(_job_error(code, message))

    def _ask_for_whom(self, *, unlike: str | None = None) -> None:
        """Tell the switch which ranks wait here, and in what: it knows of the others.

        ``unlike``: a host that has taken the other path.
        """
        engine, path = self._engine, None
        if isinstance(engine, TwoPaths) and engine.operations.running is not None:
            path = engine.carrier
        for number, operation in self._awaited.items():
            self._tell(
                OpStarted(
                    job=self.job,
                    rank=number,
                    op_index=operation.index,
                    signature=operation.signature,
                    nbytes=operation.nbytes,
                    path=path,
                    unlike=unlike,
                )
            )

    # --- what is for the ring's life to do

    def lose(self, error: JobError) -> None:
        """This host cannot go on, and found so itself."""
        raise NotImplementedError

    def fail(self, error: JobError) -> None:
        """The job has failed; the switch knows."""
        raise NotImplementedError

    def _break(self, reason: str) -> None:
        """The ring cannot go on here. The switch ends it for all."""
        raise NotImplementedError


def overlay_of(ring: Ring) -> OverlayTree:
    """Raises ``LocalMisuse`` for what is none."""
    return overlay_on(ring.plan, len(ring.peers), ring.in_degree)


def _post(action: PostMessage | PostSlot | PostDown, orders: RingOrders[Segment]) -> None:
    match action:
        case PostMessage():
            orders.post(action)
        case PostSlot():
            orders.post_slot(action)
        case PostDown():
            if not isinstance(orders, OverlayOrders):
                raise InvariantBroken("a host that is in no tree has nobody below it")
            orders.post_down(action)


def _job_error(code: str, message: str) -> JobError:
    return JOB_ERRORS.get(code, JobError)(message)
