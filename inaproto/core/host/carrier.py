"""Carries the all-reduces of a host's ranks out, on the engine of its present rings (NetReduce 3.1, 3.4).

The host takes part in an all-reduce when all its ranks have called it
(:mod:`inaproto.core.host.gathering`): it sends the sum of their parts, and copies results to all of them.
Where a job has no other host it adds and copies, and sends nothing. Engines come and go with rings; the
operations stay. Where all hosts have a collective library beside their rings it is asked first
(:mod:`inaproto.core.host.collective`): what comes to an engine then is what that leaves, and votes.

Invariants: what an all-reduce waits for is asked of the switch, and known to it: a host reports each of its
ranks that waits; one that is overdue is given up when the switch has said for whom it waits, or does not
answer (:mod:`inaproto.core.host.operation_watch`). Once there is a ``verdict`` nothing is started any more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inaproto.core.host import collective, events
from inaproto.core.host.config import HostConfig
from inaproto.core.host.engines.host_tree import Fold, PostDown
from inaproto.core.host.engines.hosts import Combine, PostSlot
from inaproto.core.host.engines.in_network import Result, RingEngine
from inaproto.core.host.engines.two_paths import Binding, OnPath, TwoPaths
from inaproto.core.host.engines.two_paths import Wait as BindingWait
from inaproto.core.host.gathering import Gathering
from inaproto.core.host.journal import Past
from inaproto.core.host.operation_queue import FROM_THE_START, OperationQueue
from inaproto.core.host.operation_watch import OperationWatch
from inaproto.core.host.operations import (
    BASE,
    INA,
    VOTE,
    BoundPath,
    Fail,
    Operation,
    OperationDone,
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
from inaproto.core.host.ranks import HostedRanks
from inaproto.core.host.recovery import Recovery
from inaproto.core.host.ring_words import explain_positions
from inaproto.core.host.rings import (
    Engine,
    EngineAction,
    accumulators_of,
    make_engine,
)
from inaproto.core.plan.accumulators import Accumulators
from inaproto.errors import JOB_ERRORS, FabricLost, JobError, LocalMisuse, OperationTimeout, TensorMismatch
from inaproto.units import MS, Instant, OpIndex
from inaproto.wire.control_messages import CALLS_MAX, Calls, JobStatus, OpStarted, Ring
from inaproto.wire.messages.client import DonePath

Actions = list[events.HostAction]


@dataclass(frozen=True, slots=True)
class Wait:
    """An all-reduce that has to make progress."""

    operation: Operation
    messages: int
    results: int
    since: Instant


@dataclass(frozen=True, slots=True)
class Unusable:
    """The present rings are, for ``reason``; the operations may go on by others, unless ranks have called
    different ones (``differs``)."""

    reason: str
    differs: bool = False


_ORDERS: Final = (PostMessage, TakeResult, PostSlot, Combine, Fold, PostDown)


class Carrier:
    """Carries out what ``ranks`` of one job on one host have called."""

    def __init__(self, config: HostConfig, ranks: HostedRanks) -> None:
        self.config = config
        """For the rings from now on; the job changes it."""
        self.engine: Engine | None = None
        self.accumulators: Accumulators | None = None
        """Those of the present ring, if its hosts sum along it."""
        self.resumes = False
        """The present ring is not the first, and has yet to run."""
        self.watch = OperationWatch()
        self.done_by: Counter[DonePath] = Counter()
        self.verdict: JobError | Unusable | None = None
        """What became of the operations in the last step, if they cannot go on as they are."""
        self.collective: collective.CollectiveCalls | None = None
        """The job's, for its life."""
        self._allowed = collective.Allowed(True)
        """Whether this host may be attached, which may be known before there is a collective."""
        self._ordered: deque[collective.Action] = deque()
        """What the collective's core orders, and is not done yet."""
        self._is_ordering = False
        self._has_started = False
        self._past: Past | None = None
        """Where the daemon before this one was, until there is an engine."""
        self._ranks = ranks
        self._ring: Ring | None = None
        self._gathering = Gathering((), stall_ns=0, timeout_ns=0)
        self._sums: deque[Operation] = deque()
        """Operations of a job that has no other host: under way, in order."""
        self._out: Actions = []
        self._now = Instant(0)

    @property
    def deadline(self) -> Instant | None:
        engine = None if self.engine is None else self.engine.deadline
        beside = None if self.collective is None else self.collective.deadline
        found = engine, beside, self._gathering.deadline, self.watch.deadline
        return min((at for at in found if at is not None), default=None)

    @property
    def progress(self) -> int:
        """Results that this host has taken, since the job began."""
        if self.engine is None:
            return 0 if self._past is None else self._past.progress
        return self.engine.progress

    @property
    def two_paths(self) -> TwoPaths | None:
        return self.engine if isinstance(self.engine, TwoPaths) else None

    @property
    def done_path(self) -> DonePath:
        """The path by which operations go, but for those of a ring that stands beside the present one."""
        if self._ranks.size == 1 or (self._ring is not None and len(self._ring.peers) == 1):
            return "local"
        if self._ring is None:
            return "switch"
        return "chain" if self._ring.path == "shared" else self._ring.path

    @property
    def is_busy(self) -> bool:
        """An all-reduce that all ranks have called has not ended."""
        if self._sums or (self.collective is not None and len(self.collective)):
            return True
        return self.engine is not None and self.engine.operations_queued > 0

    @property
    def waits_here(self) -> bool:
        """Some ranks have called an all-reduce that others here have not, and nothing else runs."""
        return bool(self._gathering.waiting) and self.engine is not None and not self.is_busy

    @property
    def wait(self) -> Wait | None:
        """The operation that has to make progress, if any."""
        view = None if self.engine is None else self.engine.view()
        if view is not None and view.running is not None:
            return Wait(self._asked_in(view.running), view.messages, view.results, view.since)
        since = self._gathering.since
        if since is None:
            return None
        return Wait(next(iter(self._gathering.waiting.values())), messages=1, results=0, since=since)

    # --- rings come and go

    def connect(self, ring: Ring) -> Actions:
        """The engine of the next ring. Raises ``LocalMisuse`` or ``ValueError`` for one that cannot be."""
        self._out = []
        self._ring = ring
        operations = None if self.engine is None else self.engine.halt()
        config = self.config.ring(ring)
        is_successor = self._past is not None
        if self._past is not None:
            operations = self._of_successor(config, self._past)
        self.resumes = operations is not None
        if operations is not None:
            self._note(operations, ring)
        recovery = FROM_THE_START if operations is None else Recovery(ring.progress, ring.donor)
        if operations is None:
            numbers = self._ranks.numbers
            self._gathering = Gathering(numbers, stall_ns=config.stall_ns, timeout_ns=config.timeout_ns)
        if not self._has_started:
            self._stand_beside(ring)
        self.accumulators = accumulators_of(ring)
        self.engine = make_engine(config, ring, self.accumulators, operations, recovery)
        self.watch.ring_ended()
        if is_successor:
            self.verdict = None
            self._hand_on()  # what was called while there was no engine
        return self._out

    def succeed(self, past: Past, now: Instant) -> None:
        """Go on where a daemon before this one was; what the ranks had called that lacks results they call
        again, before the next ring."""
        config, numbers, self._now = self.config, self._ranks.numbers, now
        self._past, self._has_started = past, True
        self._gathering = Gathering(
            numbers, stall_ns=config.stall_ns, timeout_ns=config.timeout_ns, first=past.next_index
        )

    def _of_successor(self, config: RingConfig, past: Past) -> OperationQueue:
        running = self._gathering.take() if past.results else None
        if past.results and (running is None or past.kept[-1][0].operation != running):
            raise LocalMisuse(f"all-reduce {past.next_index} is not the one that had begun")
        operations, kept = OperationQueue(config), [result for result, _ in past.kept]
        operations.take_over(
            kept,
            progress=past.progress,
            first=past.next_index,
            running=running,
            results=past.results,
            now=self._now,
        )
        self._past = None
        return operations

    def _note(self, operations: OperationQueue, ring: Ring) -> None:
        """What the end of a ring has left to do."""
        if operations.progress < ring.progress:
            self._out.append(events.Noted("a rank caught up with another"))
            if operations.lacks_several(ring.progress):
                self._out.append(events.Noted("a rank caught up with another by several all-reduces"))
        if operations.in_flight > 1:
            self._out.append(events.Noted("a ring ended with several all-reduces on their way"))

    def start(self, now: Instant) -> Actions:
        """All hosts are ready: operations of an earlier ring go on."""
        self._begin(now)
        self._has_started = True
        if self.watch.ring_ended():
            self._ask()
        if self.resumes and self.engine is not None:
            self.resumes = False
            self._out.append(events.Noted("a job went on in another ring"))
            self._apply(self.engine.resume(now))
        if self.collective is not None:
            self._of_collective(collective.Woke())
        return self._out

    def halt(self) -> OperationQueue:
        """The ring has ended: nothing of it is taken any more. Raises ``LocalMisuse`` if there was none."""
        if self.engine is None:
            raise LocalMisuse("a host is halted that has no ring")
        return self.engine.halt()

    def fail(self, error: JobError, now: Instant) -> Actions:
        """All operations end with that error."""
        self._begin(now)
        if self.engine is not None:
            self._step(Fail(error.code, str(error)))
        self._sums.clear()
        self.verdict = None
        return self._out

    def close(self) -> Actions:
        """The job is over here: the collective is given back."""
        self._begin(self._now)
        if self.collective is not None:
            self._of_collective(collective.Closing())
        return self._out

    def _begin(self, now: Instant) -> None:
        self._now, self._out, self.verdict = now, [], None

    # --- operations

    def call(self, number: int, operation: Operation, now: Instant) -> Actions:
        """A rank calls its next all-reduce. Raises ``LocalMisuse`` for another one, and for a tensor that is
        not there as a whole, of a rank that is not alone on its host."""
        several = len(self._ranks) > 1 or self._ranks.size == 1 or self.collective is not None
        if operation.filled is not None and several:
            raise LocalMisuse(f"rank {number} calls {operation}, whose tensor has to be there as a whole")
        self._begin(now)
        self._gathering.call(number, operation)
        self._ranks[number].called += 1
        self._hand_on()
        return self._out

    def summed(self, op_index: OpIndex, now: Instant) -> Actions:
        """All ranks here have a sum that was ordered of them."""
        self._begin(now)
        if self._sums and self._sums[0].index == op_index:
            self._step(Submit(self._sums.popleft()))
            self._hand_on()
        return self._out

    def step(self, event: RingEvent, now: Instant) -> Actions:
        self._begin(now)
        if self.engine is not None:
            self._apply(self.engine.step(event, now))
        return self._out

    def exchanged(
        self, path: BoundPath, edge: int, acknowledged: Sequence[int], results: Sequence[Result], now: Instant
    ) -> Actions:
        """Several messages of one connection are acknowledged, and several are here, each in their order."""
        self._begin(now)
        engine = self.engine
        if isinstance(engine, RingEngine):
            self._apply(engine.exchanged(acknowledged, results, now))
        elif engine is not None:
            for msg_id in acknowledged:
                self._apply(engine.step(SendCompleted(msg_id, path, edge), now))
            for imm, nbytes, header in results:
                self._apply(engine.step(ResultArrived(imm, nbytes, header, path, edge), now))
        return self._out

    def answered(self, op_index: OpIndex, binding: Binding | BindingWait, now: Instant) -> Actions:
        """The one of two rings by which an all-reduce goes."""
        self._begin(now)
        if self.two_paths is not None:
            self._apply(self.two_paths.answered(op_index, binding, now))
        return self._out

    def _hand_on(self) -> None:
        """Start what all ranks here have called by now; once that has ended, the others are waited for."""
        engine, gathering = self.engine, self._gathering
        while engine is not None and self.verdict is None:
            is_awaited = gathering.deadline is not None
            operation = gathering.take()
            if operation is None:
                break
            if is_awaited:
                self.watch.ended()
                self._out.append(events.Noted("a rank of a host came late"))
            if engine.config.ring_size == 1 and len(self._ranks) > 1:
                self._sums.append(operation)
                self._out.append(events.SumLocally(operation))
            elif self.collective is not None:
                self._of_collective(collective.Called(operation))
            else:
                self._step(Submit(operation))
        if engine is not None and self.verdict is None and not self.is_busy:
            gathering.begin(self._now)
            if gathering.differs:
                self._out.append(events.Noted("ranks of one host disagreed"))
                self._ask()

    def _step(self, event: RingEvent) -> None:
        if self.engine is not None:
            self._apply(self.engine.step(event, self._now))

    def _apply(self, actions: Sequence[EngineAction]) -> None:
        """Pass the orders of the engine on, and do what follows from what it tells."""
        path, out, has_done = BASE, self._out, False
        if not actions:
            return
        for action in actions:
            if isinstance(action, _ORDERS):  # what each message brings, and nothing follows from
                out.append(action)
                continue
            match action:
                case OperationDone(op_index) if op_index & VOTE:
                    out.append(events.CountVotes(OpIndex(op_index ^ VOTE)))
                    continue
                case OperationDone(op_index):
                    self._done(op_index, INA if path == INA else self.done_path)
                    has_done = True
                    continue
                case OnPath(path):
                    pass
                case Stalled(_, for_ns, messages, results):
                    self.watch.stalled(results, messages, for_ns)
                    self._ask()
                case Overdue():
                    if self.watch.overdue(action, self._now):
                        self._ask()
                case RingBroken(code, message):
                    self._ring_broken(code, message)
                case _:
                    pass
            out.append(action)
        if has_done and self._gathering.waiting and self.verdict is None:
            self._hand_on()

    def _done(self, op_index: OpIndex, path: DonePath) -> None:
        self.watch.ended()
        self.done_by[path] += 1
        for rank in self._ranks:
            rank.done += 1
        self._out.append(events.AllReduceDone(op_index, path))
        if self.collective is not None and path != "sharp":
            self._of_collective(collective.BaseEnded(op_index))

    # --- the collective beside the rings

    def _stand_beside(self, ring: Ring) -> None:
        """All hosts of the first ring that starts know alike whether the job has one."""
        config, self.collective = self.config, None
        if ring.collective and config.collective is not None and len(ring.peers) > 1:
            steady_ns = ring.position * MS
            self.collective = collective.CollectiveCalls(
                config.collective, try_ns=config.try_ns, steady_ns=steady_ns
            )
            self._of_collective(self._allowed)

    def collected(self, event: collective.FromShell, now: Instant) -> Actions:
        """Something has happened with the collective."""
        self._begin(now)
        if isinstance(event, collective.Allowed):
            self._allowed = event
        if self.collective is not None:
            self._of_collective(event)
            if not self.is_busy:
                self._hand_on()
        return self._out

    def _of_collective(self, event: collective.Event) -> None:
        """Step it, and do what it orders, in order: an order may lead to another step."""
        beside = self.collective
        if beside is None:
            return
        self._ordered += beside.step(event, self._now)
        if self._is_ordering:
            return
        self._is_ordering = True
        while self._ordered:
            self._order(self._ordered.popleft())
        self._is_ordering = False

    def _order(self, action: collective.Action) -> None:
        match action:
            case collective.ToBase(operation):
                self._step(Submit(operation))
            case collective.Vote(vote):
                self._out.append(action)  # before it is sent
                self._step(Submit(vote))
            case collective.TakeTried(operation):
                if self.engine is not None:
                    self.engine.operations.done_elsewhere(operation)
                self._out.append(action)
                self._done(operation.index, "sharp")
            case collective.FellBack(operation, code, reason):
                text = f"all-reduce {operation.index} is redone on all hosts by {self.done_path}, without"
                why = f"{code.name.lower()}, {reason}"
                self._out.append(events.Log(f"{self._them}: {text} the collective: {why}"))
                self._out.append(action)
            case _:
                self._out.append(action)

    def _asked_in(self, running: Operation) -> Operation:
        """The operation of the ranks to which that of the rings belongs."""
        head = None if self.collective is None else self.collective.head
        return head if running.is_vote and head is not None else running

    def _ring_broken(self, code: str, message: str) -> None:
        message += explain_positions(self._ring)
        differs = code == TensorMismatch.code
        if self.config.recover_ns and (differs or code == FabricLost.code):
            self.verdict = Unusable(message, differs=differs)
        else:
            self.verdict = JOB_ERRORS.get(code, JobError)(message)

    # --- waits

    def woke(self, now: Instant) -> Actions:
        """Look at the clock: the running operation may have stalled, or taken too long."""
        self._begin(now)
        self._step(Woke())
        if self.collective is not None:
            self._of_collective(collective.Woke())
        waits = self._gathering.woke(now)
        if waits:
            self._out.append(events.Noted("an all-reduce stalled for ranks of one host"))
            self._apply(waits)
        self._give_up_if_overdue()
        return self._out

    @property
    def _awaited(self) -> dict[int, Operation]:
        """The operation that has to make progress, by rank here that waits in it."""
        running = None if self.engine is None else self.engine.operations.running
        if running is not None:
            return dict.fromkeys(self._ranks.numbers, self._asked_in(running))
        return self._gathering.waiting if self._gathering.deadline is not None else {}

    def heard(self, status: JobStatus, now: Instant) -> Actions:
        """The switch says for whom ranks of the job wait."""
        self._begin(now)
        awaited = self._awaited
        if status.op_index is None:  # of a ring that is not there yet, not of an all-reduce
            if self.watch.gathers(status):
                self._out.append(events.Log(f"{self._them} waits for others: {status.refused}"))
                self._out.append(events.RanksWait(status.refused))
        elif awaited and status.op_index == next(iter(awaited.values())).index:  # else of others
            if self.watch.heard(status, without=awaited):
                text = f"{self._them}: all-reduce without progress: {self.watch.stall}"
                self._out.append(events.Log(text))
            self._give_up_if_overdue()
        return self._out

    def ask(self, now: Instant, *, unlike: str) -> Actions:
        """The running operation goes by another path at the host ``unlike``."""
        self._begin(now)
        self._ask(unlike=unlike)
        return self._out

    def tell_calls(self, now: Instant) -> Actions:
        """What each rank here has called that has not ended: ranks of the job have called different ones."""
        self._begin(now)
        unended = [] if self.engine is None else self.engine.operations.unended
        shared = [operation for operation in unended if not operation.is_vote]
        shared += [] if self.collective is None else self.collective.calls
        for rank in self._ranks:
            calls = [*shared, *self._gathering.called_by(rank.number)][:CALLS_MAX]
            first = calls[0].index if calls else 0
            words = tuple(operation.call for operation in calls)
            told = Calls(job=self.config.job, rank=rank.number, first=first, calls=words)
            self._out.append(events.Tell(told))
        return self._out

    @property
    def _them(self) -> str:
        return self._ranks.describe(self.config.job)

    def _give_up_if_overdue(self) -> None:
        why = self.watch.why_give_up(self._now)
        if why and self.verdict is None:
            self.verdict = OperationTimeout(f"{self._them}: {why}")

    def _ask(self, *, unlike: str | None = None) -> None:
        """Tell the switch which ranks wait here, and in what: it knows of the others."""
        engine = self.two_paths
        path = engine.carrier if engine is not None and engine.operations.running is not None else None
        for number, operation in self._awaited.items():
            asked = OpStarted(
                job=self.config.job,
                rank=number,
                op_index=operation.index,
                signature=operation.signature,
                nbytes=operation.nbytes,
                path=path,
                unlike=unlike,
                call=operation.call,
            )
            self._out.append(events.Tell(asked))
