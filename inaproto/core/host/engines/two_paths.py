"""All-reduces of one rank that has two rings at once, each operation bound to one of them when it starts.

MINA lets jobs share the memory of the switches by turns (section IV-C): what a job does in its turn is summed
in the network (INA), what it does outside by an exact fallback. Rings that came and went with the turns would
cost a round of all hosts each; so here both stand: the *base* ring, along the chain of the hosts
(:mod:`inaproto.core.host.engines.chain`), for as long as the generation of the job's rings lasts, and an
*INA* ring (:mod:`inaproto.core.host.engines.in_network`), with queue pairs and an id of its own, while the
job has a tree. Which of them carries operation k is asked when k could start here (``AskBinding``), and is
answered (``answered``) by whoever knows what the ranks have agreed on before.

Both paths cut operations into the same messages and give the same bytes, and one queue of operations
(:mod:`inaproto.core.host.operation_queue`) is behind them: serials of messages and kept results count over
both. Each path numbers the messages that it carries by itself, so its slots and windows need to know nothing
of the other: whoever has result m of a path knows that all ranks have its result m - N, and every result
before the operation of m.

A generation begins where the last one ended (:mod:`inaproto.core.host.recovery`), on the base ring: it
repeats what a rank may lack, and carries the operation that has message ``recovery.progress``, whatever that
one was bound to before; the first of a job, too. All ranks know that message, so they agree on this without a
word.

Where ranks have bound an operation to different paths, neither can end it, for both need all ranks: no rank
gets any of its results, and it goes on, by the base ring, when another generation follows. Somebody has to
notice (:mod:`inaproto.core.rendezvous.life`, of ranks that stall).

Invariants: one path carries an operation, from its first message of a generation to its last; an operation is
bound after the one before it has ended, and its tensor is there; nothing waits for its binding longer than
until the instant that was named; the INA ring goes, or is parked, only when all that was sent on it is
acknowledged.

Departure from the paper: there each host evaluates a job's mode with its own clock; here the answers of all
ranks are to be alike.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, assert_never

from inaproto.core.host.engines.chain import ChainEngine
from inaproto.core.host.engines.hosts import HostsAction
from inaproto.core.host.engines.in_network import RingAction, RingEngine
from inaproto.core.host.operation_queue import FROM_THE_START, OperationQueue, RingView
from inaproto.core.host.operations import (
    BASE,
    INA,
    BoundPath,
    Fail,
    Filled,
    OperationDone,
    PostMessage,
    ResultArrived,
    RingBroken,
    RingConfig,
    RingEvent,
    SendCompleted,
    Submit,
    Woke,
)
from inaproto.core.host.recovery import Recovery
from inaproto.core.plan.accumulators import Accumulators, RotatedAccumulators
from inaproto.errors import LocalMisuse
from inaproto.units import Epoch, Instant, OpIndex


class Binding(NamedTuple):
    path: BoundPath
    epoch: Epoch | None = None
    """Epoch of an INA operation's headers; None: that of the ring."""


class Wait(NamedTuple):
    """Ask again, at the latest at ``until``; the base ring takes the operation if that has passed."""

    until: Instant


class AskBinding(NamedTuple):
    """Say by which path that operation is to go: it could start. Every rank is to be answered alike."""

    op_index: OpIndex


class OnPath(NamedTuple):
    """The actions that follow are of this path, up to the next of these; the first of a step, of the base."""

    path: BoundPath


class Bound(NamedTuple):
    """An operation has been started, by this path. ``epoch`` is 0 on the base ring."""

    op_index: OpIndex
    path: BoundPath
    epoch: Epoch


class Drained(NamedTuple):
    """An INA operation is over here: all its results are taken, and all that was sent is acknowledged."""

    op_index: OpIndex


TwoPathsAction = RingAction | HostsAction | OnPath | AskBinding | Bound | Drained


class TwoPaths:
    """One rank of one generation; see the module for its invariants.

    ``config`` is of the base ring, ``ina`` of the other, if it stands from the beginning. ``operations`` and
    ``recovery`` as in :class:`~inaproto.core.host.engines.path.PathEngine`. Raises ``LocalMisuse`` for rings
    that cannot be, and for a rank that is alone.
    """

    def __init__(
        self,
        config: RingConfig,
        accumulators: Accumulators,
        *,
        ina: RingConfig | None = None,
        operations: OperationQueue | None = None,
        recovery: Recovery = FROM_THE_START,
    ) -> None:
        if config.ring_size == 1 or isinstance(accumulators, RotatedAccumulators):
            raise LocalMisuse(f"ring {config.ring_id}: a rank that is alone, or no chain, has no two paths")
        self._base = ChainEngine(config, accumulators, operations, recovery)
        self._base.starts = False
        self._operations = self._base.operations
        self._runs = operations is None
        self._is_halted = False
        self._base_until = recovery.progress
        """Operations that begin at this message or before it are the base ring's."""
        self._carrier: BoundPath = BASE
        """Path of the running operation, or of the last one."""
        self._asked: OpIndex | None = None
        """The operation whose binding was asked for, and has not been answered."""
        self._wait_until: Instant | None = None
        self._ina: RingEngine | None = None
        self._ina_sent = self._ina_acknowledged = 0
        self._is_parked = False
        self._undrained: deque[tuple[OpIndex, int]] = deque()
        """INA operations that have ended, with how many messages had been sent by then."""
        self._started: Counter[BoundPath] = Counter()
        if ina is not None:
            self.attach(ina)

    @property
    def config(self) -> RingConfig:
        """Configuration of the base ring."""
        return self._base.config

    @property
    def ina_config(self) -> RingConfig | None:
        return None if self._ina is None else self._ina.config

    @property
    def operations(self) -> OperationQueue:
        return self._operations

    @property
    def deadline(self) -> Instant | None:
        """As other engines have it, or when an operation will have waited long enough for its binding."""
        found = self._operations.deadline, self._wait_until
        return min((at for at in found if at is not None), default=None)

    @property
    def operations_queued(self) -> int:
        return len(self._operations)

    @property
    def progress(self) -> int:
        return self._operations.progress

    @property
    def carrier(self) -> BoundPath:
        """The path of the running operation, or of the last one."""
        return self._carrier

    @property
    def binds_next(self) -> OpIndex:
        """The operation that is bound next: whoever agrees on turns may still decide of it."""
        return OpIndex(self._operations.started)

    @property
    def is_ina_idle(self) -> bool:
        """Nothing runs on the INA ring, and nothing that was sent there is on its way."""
        return not (self._is_on_ina or self._ina_sent > self._ina_acknowledged)

    @property
    def is_parked(self) -> bool:
        """The INA ring has left its switches, and all goes by the base ring."""
        return self._is_parked

    @property
    def ina_messages(self) -> int:
        """Messages that this rank has sent on the INA ring since it was attached."""
        return self._ina_sent

    @property
    def _is_on_ina(self) -> bool:
        return self._carrier == INA and self._operations.running is not None

    @property
    def started(self) -> dict[BoundPath, int]:
        """Operations that were started in this generation, by path; what it repeats is not counted."""
        return {path: self._started[path] for path in (INA, BASE)}

    def view(self) -> RingView:
        """A picture with the messages of both rings."""
        view = self._base.view()
        if self._ina is None:
            return view
        other = self._ina.view()
        return replace(
            view,
            messages_sent=view.messages_sent + other.messages_sent,
            messages_received=view.messages_received + other.messages_received,
            unacknowledged=view.unacknowledged + other.unacknowledged,
        )

    # --- rings that come and go

    def attach(self, config: RingConfig) -> None:
        """The INA ring of this ``config`` stands, at all ranks: operations may be bound to it.

        Raises ``LocalMisuse`` if another one does, if the generation has ended, or if it is no ring for these
        operations.
        """
        if self._ina is not None or self._is_halted:
            raise LocalMisuse(f"ring {config.ring_id} is attached beside another, or after the end")
        if config.ring_id == self.config.ring_id or config.rank != self.config.rank:
            raise LocalMisuse(f"ring {config.ring_id} is the base ring, or has another order of ranks")
        self._ina, self._is_parked = RingEngine(config, self._operations, None), False
        self._ina_sent = self._ina_acknowledged = 0

    def park(self) -> None:
        """The INA ring leaves its switches, and will come back with its next message: until ``stand`` all is
        bound to the base ring, and nobody is asked.

        Raises ``LocalMisuse`` if there is none, or while it is not idle.
        """
        if self._ina is None or not self.is_ina_idle:
            raise LocalMisuse("there is no INA ring to park, or an operation or a message is on it")
        self._is_parked = True

    def stand(self) -> None:
        """The switches have the INA ring (again)."""
        self._is_parked = False

    def halt(self) -> OperationQueue:
        """This generation has ended: take and send nothing more, on both rings."""
        self._is_halted = True
        self._asked = self._wait_until = None
        if self._ina is not None:
            self._ina.halt()
        return self._base.halt()

    def resume(self, now: Instant) -> list[TwoPathsAction]:
        """All ranks have connected: let the operations go on where those of the last generation were."""
        self._runs = True
        return [*self._base.resume(now), *self._go_on(now)]

    # --- what happens

    def step(self, event: RingEvent, now: Instant) -> list[TwoPathsAction]:
        """Apply ``event``; the actions are to be performed in order."""
        actions: list[TwoPathsAction]
        match event:
            case ResultArrived() | SendCompleted():
                actions = self._on_base(event, now) if event.path == BASE else self._on_ina(event, now)
            case Submit(operation):
                actions = [*self._operations.submit(operation)]
            case Filled() if self._operations.running is None:
                self._operations.filled(event)
                actions = []
            case Filled():  # it may be the running one, that of a ring by the hosts alone before this one
                actions = self._on_base(event, now)
            case Fail():
                actions = [*self._base.step(event, now)]
                if self._ina is not None:
                    actions += self._ina.step(event, now)
                self._asked = self._wait_until = None
            case Woke():
                actions = [*self._operations.woke(now)]
            case _:
                assert_never(event)
        return [*actions, *self._go_on(now)]

    def _on_base(self, event: ResultArrived | SendCompleted | Filled, now: Instant) -> list[TwoPathsAction]:
        actions = self._base.step(event, now)
        self._look_for_end(actions)
        return [*actions]

    def _on_ina(self, event: ResultArrived | SendCompleted, now: Instant) -> list[TwoPathsAction]:
        if self._ina is None or self._is_halted:
            return []  # of a ring that has gone
        if isinstance(event, SendCompleted):
            self._ina_acknowledged += 1
        return self._of_ina(self._ina.step(event, now))

    def _of_ina(self, actions: list[RingAction]) -> list[TwoPathsAction]:
        """What the INA ring orders, and which of its operations are drained by now."""
        self._look_for_end(actions)
        self._ina_sent += sum(isinstance(action, PostMessage) for action in actions)
        self._undrained += [
            (action.op_index, self._ina_sent) for action in actions if isinstance(action, OperationDone)
        ]
        drained: list[TwoPathsAction] = []
        while self._undrained and self._undrained[0][1] <= self._ina_acknowledged:
            drained.append(Drained(self._undrained.popleft()[0]))
        return [OnPath(INA), *actions, OnPath(BASE), *drained] if actions else drained

    def _look_for_end(self, actions: Sequence[RingAction | HostsAction]) -> None:
        """One ring that is unusable ends both: what ranks have of one operation lies on both."""
        if any(isinstance(action, RingBroken) for action in actions) and self.config.outlived:
            self.halt()

    def _go_on(self, now: Instant) -> list[TwoPathsAction]:
        """Start what is the base ring's, until one runs that has to wait for a message; or ask."""
        actions: list[TwoPathsAction] = []
        operations = self._operations
        while self._runs and not self._is_halted and operations.running is None:
            op_index = operations.next_index
            if op_index is None or operations.is_filling(op_index):
                break
            if self._may_choose():
                if self._asked is None:
                    self._asked, self._wait_until = op_index, None
                    actions.append(AskBinding(op_index))
                break
            actions += self._start(op_index, Binding(BASE), now)
        return actions

    def _may_choose(self) -> bool:
        """The next operation may go by either ring."""
        return not (self._ina is None or self._is_parked or self._operations.progress <= self._base_until)

    def answered(self, op_index: OpIndex, binding: Binding | Wait, now: Instant) -> list[TwoPathsAction]:
        """The path by which an operation goes, or until when that cannot be said; it is asked again by then.

        What was answered to nobody, or to a generation that has ended, is nothing.
        """
        if self._asked != op_index:
            return []
        self._asked = None
        if isinstance(binding, Wait) and now < binding.until:
            self._wait_until = binding.until
            return []
        goes = binding if isinstance(binding, Binding) and self._may_choose() else Binding(BASE)
        return [*self._start(op_index, goes, now), *self._go_on(now)]

    def _start(self, op_index: OpIndex, binding: Binding, now: Instant) -> list[TwoPathsAction]:
        self._operations.start_next(now)
        self._asked = self._wait_until = None
        self._carrier = binding.path
        self._started[binding.path] += 1
        if binding.path == INA and self._ina is not None:
            self._base.has_turn = False
            epoch = self._ina.config.epoch if binding.epoch is None else binding.epoch
            return [Bound(op_index, INA, epoch), *self._of_ina(self._ina.begin(epoch, now))]
        begun = self._base.begin(now)
        self._look_for_end(begun)
        return [Bound(op_index, BASE, Epoch(0)), *begun]
