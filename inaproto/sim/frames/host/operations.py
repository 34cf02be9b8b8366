"""What a simulated host does on the ring of a job, as ``inaproto.daemon.host.operations`` does on real hosts.

It hands the engine what all ranks of the host have called and what the NIC has completed, performs what the
engine orders on its link, and wakes it in time. Ranks that are alone in their job on one host are summed
there, slice by slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, assert_never

from inaproto.core.host.engines.host_messages import TENSORS_DIFFER
from inaproto.core.host.engines.host_tree import UP, Fold, OverlayAction, OverlayEngine, PostDown
from inaproto.core.host.engines.hosts import Combine, HostsAction, PostSlot
from inaproto.core.host.engines.in_network import (
    Operation,
    OperationDone,
    OperationFailed,
    Overdue,
    PostMessage,
    ResultArrived,
    RingAction,
    RingBroken,
    RingEvent,
    SendCompleted,
    Stalled,
    Submit,
    TakeResult,
    Woke,
)
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
from inaproto.core.host.link import RingLink, TreeLink
from inaproto.core.host.local_reduction import SlicedReduction
from inaproto.core.host.operation_queue import Source
from inaproto.core.host.operations import PostKept, PostNeutral
from inaproto.core.host.performer import KeptResults, RingOrders
from inaproto.core.host.tree_performer import OverlayOrders
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
from inaproto.sim.frames.host.rank import SimRank
from inaproto.sim.frames.host.ring_link import HostTensors
from inaproto.sim.frames.host.state import WITHOUT_RING, Phase, RingState
from inaproto.sim.kernel.violated import Violated
from inaproto.units import US
from inaproto.wire.control_messages import (
    OpStarted,
)

if TYPE_CHECKING:
    pass


_SUCCESS: Final = Status.SUCCESS  # a member of an enumeration takes longer to look up than a constant
_SEND: Final = CompletionKind.SEND
TURN_BYTES: Final = 2048
"""Of the tensors of all ranks that one turn reads where a host adds alone: so few that sums take turns."""
TURN_NS: Final = 20 * US


def orders_on(link: RingLink | TreeLink, kept: KeptResults, tensors: HostTensors) -> RingOrders[Segment]:
    if isinstance(link, TreeLink):
        return OverlayOrders(link, kept, tensors)
    return RingOrders(link, kept, tensors)


class RingOperations(RingState):
    """Of the ranks of ``job`` on ``host``; all times that they see are its host's."""

    @property
    def owner(self) -> RingOperations:
        return self

    def submit(self, rank: SimRank, operation: Operation) -> None:
        """A process calls an all-reduce."""
        self._gathering.call(rank.index, operation)
        self._hand_on()

    def _hand_on(self) -> None:
        """Start what all ranks here have called by now; once that has ended, the others are waited for."""
        gathering, world = self._gathering, self.host.world
        while self.engine is not None:
            was_awaited = gathering.deadline is not None
            operation = gathering.take()
            if operation is None:
                break
            if was_awaited:
                world.mark("a rank of a host came late")
            if len(self.job.positions) == 1:
                self._sums.append(SlicedReduction(operation, len(self.ranks), turn_bytes=TURN_BYTES))
                self._add_soon()
            else:
                self._submit(operation)
        if self.waits_here:
            gathering.begin(self.host.now)
            self._arm()
            if gathering.differs:
                world.mark("ranks of one host disagreed")
                self._ask_for_whom()

    def _submit(self, operation: Operation) -> None:
        self._handed_on += 1
        self._step(Submit(operation))

    def _add_soon(self) -> None:
        if not self._is_adding and self._sums and self.phase is Phase.RUNNING:
            self._is_adding = True
            self.host.world.agenda.after(TURN_NS, self._add_due, self.life)

    def _add_due(self, life: int) -> None:
        if life == self.life:
            self.host.when_awake(lambda: self._add_slice(life))

    def _add_slice(self, life: int) -> None:
        """Do a part of what only ranks of this host are to add up."""
        if life != self.life:
            return
        self._is_adding = False
        if self.phase is not Phase.RUNNING or not self._sums:
            return
        total, tensors = self._sums[0], self._tensors
        assert tensors is not None
        if not total.is_done:
            begin = total.offset
            total.turn(tensors)
            for taken in self.host.world.hooks.taken:
                for rank in self.ranks:
                    taken(rank, -1, total.operation.index, begin, total.offset - begin)
        if total.is_done:
            self._sums.popleft()
            self.host.world.mark("an all-reduce on one host")
            self._submit(total.operation)
            self._hand_on()
        self._add_soon()

    # --- what happens on the ring

    def completed(self, completion: Completion) -> None:
        link, path = self._link, BASE
        if self.engine is None or link is None or self.phase in WITHOUT_RING:
            return
        if self._ina is not None and completion.qpn in self._ina.qpns:
            link, path = self._ina, INA
        status = completion.status
        if status is not _SUCCESS:
            if self._recover_ns:
                self._break(f"{self}: {status.value}")
            else:
                self.lose(FabricLost(f"{self}: {status.value}"))
        elif isinstance(link, TreeLink):
            self._completed_in_tree(link, completion)
        elif completion.kind is _SEND:
            self._step(SendCompleted(completion.wr_id), path)
        else:
            imm, nbytes = completion.imm, completion.nbytes
            self.acting = path
            for hook in self.host.world.hooks.received:
                hook(self, imm)
            self._step(ResultArrived(imm, nbytes, link.header(UP, imm, nbytes)), path)
            if link.is_open:
                link.post_receive(completion.wr_id)

    def _completed_in_tree(self, link: TreeLink, completion: Completion) -> None:
        edge = link.edge_of(completion.qpn)
        if completion.kind is _SEND:
            self._step(SendCompleted(completion.wr_id), edge=edge)
            return
        imm, nbytes = completion.imm, completion.nbytes
        for hook in self.host.world.hooks.received:
            hook(self, imm)
        self._step(ResultArrived(imm, nbytes, link.header(edge, imm, nbytes)), edge=edge)
        if link.is_open:
            link.post_receive(completion.wr_id, edge)

    def _step(self, event: RingEvent, path: BoundPath = BASE, edge: int = UP) -> None:
        engine, world = self.engine, self.host.world
        if engine is None:
            return
        world.steps.ring_engine += 1
        if world.recorder is not None:
            world.recorder.ring_step(self, event)
        if isinstance(engine, TwoPaths):
            self._perform(engine.step(event, self.host.now, path))
            if engine.is_waiting:
                self._arm()
        elif isinstance(engine, OverlayEngine):
            self._perform(engine.step(event, self.host.now, edge))
        else:
            self._perform(engine.step(event, self.host.now))
        if self._wake_at is None:  # else it wakes in time: the deadline of an engine only moves away
            self._arm()

    def _perform(self, actions: Sequence[RingAction | HostsAction | TwoPathsAction | OverlayAction]) -> None:
        world, orders = self.host.world, self._orders_on(BASE)
        has_done = False
        for action in actions:
            match action:
                case PostMessage():
                    if self.acting == INA and world.mover.is_parked(self.job.name):
                        raise Violated("a parked ring sends nothing", f"{self} sends message {action.msg_id}")
                    for hook in world.hooks.posted:
                        hook(self, action.msg_id)
                    orders.post(action)
                    if len(self.ranks) > 1 and not isinstance(action, PostKept | PostNeutral):
                        world.mark("a host posted the sum of several ranks")
                    self.host.nic_touched()
                case PostSlot():
                    for hook in world.hooks.posted:
                        hook(self, action.msg_id)
                    orders.post_slot(action)
                    self.host.nic_touched()
                case Combine():
                    assert self._accumulators is not None
                    orders.combine(action, self._accumulators, self.position)
                    if len(self.ranks) > 1 and action.source is Source.OWN:
                        how = "ring of hosts" if self.is_rotated else "chain"
                        world.mark(f"a {how} was given the sum of several ranks")
                case Fold() | PostDown():
                    self._perform_in_tree(action, orders)
                case TakeResult():
                    orders.take(action)
                    for taken in world.hooks.taken:
                        for rank in self.ranks:
                            taken(rank, action.slot, action.op_index, action.offset, action.nbytes)
                case OnPath(path):
                    orders = self._orders_on(path)
                case Bound(_, path):
                    how = "ring in the switches" if path == INA else "base ring"
                    world.mark(f"an all-reduce was bound to the {how}")
                case Drained():
                    world.mark("an all-reduce of the ring in the switches was drained")
                case OperationDone(op_index):
                    self._done(op_index)
                    has_done = True
                case OperationFailed(op_index, code, message):
                    for rank in self.ranks:
                        self._operation_failed(rank, op_index, code)
                case Stalled(operation):
                    world.mark("an all-reduce stalled")
                    self._ask_for_whom()
                case Overdue(operation):
                    world.mark("an all-reduce was overdue")
                    self.lose(OperationTimeout(f"{self}: all-reduce {operation.index} is overdue"))
                case Blame():
                    if not (action.rule == TENSORS_DIFFER and self.ranks[0].process.may_differ):
                        raise Violated("nobody is to blame", f"{self} blames {action}")
                case RingBroken(code, message):
                    if code != TensorMismatch.code:
                        raise Violated("nobody is to blame", f"{self}: ring broken: {code}: {message}")
                    world.mark("a chain found that ranks disagree")
                    self.lose(TensorMismatch(message))
                case _:
                    assert_never(action)
        if has_done and self._gathering.waiting:
            self._hand_on()
        if self._to_park is not None:
            self.park_if_idle()

    def _perform_in_tree(self, action: Fold | PostDown, orders: RingOrders[Segment]) -> None:
        world = self.host.world
        if not (isinstance(orders, OverlayOrders) and isinstance(self.engine, OverlayEngine)):
            raise InvariantBroken(f"{self} has orders of a tree, and is in none")
        if isinstance(action, PostDown):
            orders.post_down(action)
            self.host.nic_touched()
            return
        orders.fold(action, self.engine.tree, self.position)
        if len(action.came) > 1:
            world.mark("a host of an overlay gathered from several")
        if len(self.ranks) > 1 and action.source is Source.OWN:
            world.mark("an overlay was given the sum of several ranks")

    def park_if_idle(self) -> None:
        """Say so when the ring through the switches may leave them, if it is to."""
        raise NotImplementedError

    def _orders_on(self, path: BoundPath) -> RingOrders[Segment]:
        self.acting = path
        orders = self._orders if path == BASE else self._ina_orders
        if orders is None:
            raise InvariantBroken(f"{self} has orders and no ring")
        return orders

    def _done(self, op_index: int) -> None:
        """All its ranks have the result."""
        world = self.host.world
        if op_index == self._outliving:
            world.mark("an all-reduce outlived a reboot of a switch")
        for rank in self.ranks:
            world.note(self.host.number, "done", op_index)
            for done in world.hooks.done:
                done(rank, op_index)
            del rank.running[op_index]
            rank.operations_done += 1
        if self._tensors is not None:
            self._tensors.end(op_index)
        for rank in self.ranks:
            rank.process.go_on()

    def _operation_failed(self, rank: SimRank, op_index: int, code: str) -> None:
        if rank.running.pop(op_index, None) is not None:
            self.host.world.note(self.host.number, "failed", op_index)
            for failed in self.host.world.hooks.failed:
                failed(rank, op_index, code)

    def _ask_for_whom(self) -> None:
        """Tell the switch which ranks wait here, and in what: it knows of the others."""
        path = None
        if isinstance(self.engine, TwoPaths) and self.engine.operations.running is not None:
            path = self.engine.carrier
        for index, operation in self._awaited.items():
            self.host.tell(
                OpStarted(
                    job=self.job.name,
                    rank=index,
                    op_index=operation.index,
                    signature=operation.signature,
                    nbytes=operation.nbytes,
                    path=path,
                )
            )

    @property
    def _awaited(self) -> dict[int, Operation]:
        """The operation that has to make progress, by rank here that waits in it."""
        running = None if self.engine is None else self.engine.view().running
        if running is not None:
            return {rank.index: running for rank in self.ranks}
        return self._gathering.waiting if self._gathering.deadline is not None else {}

    # --- the clock

    def _arm(self) -> None:
        deadline = self.deadline
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
        deadline = self.deadline
        if (
            deadline is None
            or deadline > self.host.now
            or (not self._takes_calls and self._away_until is None)
        ):
            self._arm()
        elif self._away_until is not None and self._away_until <= self.host.now:
            error = SwitchUnreachable(f"{self}: its switch has not come back")
            self.host.world.mark("a rank gave its switch up")
            self._fail(error.code, str(error))
        else:
            self._step(Woke())
            waits = self._gathering.woke(self.host.now)
            if waits:
                self.host.world.mark("an all-reduce stalled for ranks of one host")
                self._perform(waits)
                self._arm()

    # --- what is for the ring's life to do

    def lose(self, error: JobError) -> None:
        """This host cannot go on, and found so itself."""
        raise NotImplementedError

    def _break(self, reason: str) -> None:
        """The ring cannot go on here."""
        raise NotImplementedError

    def _fail(self, code: str, message: str) -> None:
        """The job has failed."""
        raise NotImplementedError
