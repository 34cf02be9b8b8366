"""All-reduces of one rank on a tree of hosts, without an accelerator (docs/protocol.md 9.3).

MLNet's trees (section 3.2) as a path of all-reduces: each rank gathers what its children send, adds its own
part in the order of the plan (:mod:`inaproto.core.plan.host_tree`) and sends one payload up; the root has the
*result*, which each rank sends on to its children. A message passes as many hops as the tree has levels, up
and down; along a chain it passes all ranks twice. In return a rank sends results as often as it has children.

A rank starts message m, or adds to it, only when it has the result of m - N. So whoever has result m knows
that all have contributed to m, hence have result m - N, and have sent it on: N receive slots for the results,
and N for what comes of each child, are enough, and ranks are never more than N results apart, as on all
paths.

Slots: the numbers are those of :mod:`inaproto.core.host.engines.host_messages`, of each connection by itself;
a rank has two kinds, for results (``Place.RECEIVED``, odd numbers) and, of each child, for what it passes up
(even ones). What this rank passes up is put into staging slots. The root adds into the slot in which others
get the result.

A result is sent on from the receive slot into which it was written. The parent writes the next one there when
all children of this rank have this one, though an acknowledgement may still be on its way: a resend then has
other bytes, but the child's transport has the message and drops what comes again.

Departures from MLNet: nothing is cached or withheld, for an all-reduce is a push and a pull at staleness 0;
a rank that is lost ends the ring of connections, as on all paths, and the operations go on by the next.

Invariants: those of the operations (:mod:`inaproto.core.host.operation_queue`); nothing is added, taken or
sent on unless every field of its header is the expected one; a header slot, and a slot that this rank writes,
is used again only when the sends that used it are complete; after a failure, or once halted, nothing is sent,
added or taken any more.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, assert_never

from inaproto.core.host.engines.host_messages import HostMessages
from inaproto.core.host.engines.hosts import HostsAction, Place, PostSlot
from inaproto.core.host.engines.path import PathEngine
from inaproto.core.host.operation_queue import FROM_THE_START, OperationQueue, Part, RingView, Source
from inaproto.core.host.operations import (
    UP,
    Fail,
    Filled,
    Operation,
    ResultArrived,
    RingConfig,
    RingEvent,
    SendCompleted,
    Submit,
    Woke,
)
from inaproto.core.host.recovery import Recovery
from inaproto.core.plan.host_tree import OverlayTree
from inaproto.errors import Blame, FabricLost, LocalMisuse
from inaproto.units import Instant, MsgId
from inaproto.wire.host_header import Kind


class Came(NamedTuple):
    """``nbytes`` behind the header in receive slot ``slot`` of child number ``child``."""

    child: int
    slot: int
    nbytes: int


class Fold(NamedTuple):
    """``OverlayTree.fold``: what ``came`` of all children with this rank's own part.

    The outcome, ``goes`` bytes, goes into slot ``out`` of ``place``. The own part is ``nbytes`` from
    ``offset`` on of the operation's buffer, or what ``source`` says instead.
    """

    came: tuple[Came, ...]
    place: Place
    out: int
    goes: int
    operation: Operation
    source: Source
    offset: int
    nbytes: int


class PostDown(NamedTuple):
    """Write ``header`` into header slot ``slot`` of child number ``child``, then post it and ``nbytes`` of
    the result in receive slot ``at``."""

    child: int
    msg_id: MsgId
    slot: int
    header: bytes
    at: int
    nbytes: int


OverlayAction = HostsAction | Fold | PostDown
"""``PostMessage`` and ``PostSlot`` go up, to the parent."""


class _Below:
    """What goes between this rank and one of its children."""

    def __init__(self, messages: HostMessages, rank: int) -> None:
        self.messages = messages
        self.rank = rank
        self.arrived: deque[ResultArrived] = deque()
        """Results that this rank has not added to yet."""
        self.owed: deque[tuple[int, Part]] = deque()
        """Results to be sent on, by serial."""


class OverlayEngine(PathEngine):
    """One rank of one tree of connections; see the module for its invariants."""

    def __init__(
        self,
        config: RingConfig,
        tree: OverlayTree,
        operations: OperationQueue | None = None,
        recovery: Recovery = FROM_THE_START,
    ) -> None:
        rank = config.rank
        self._tree = tree
        parent = tree.parents[rank] if rank < tree.plan.size else None
        self._up = HostMessages(config, tree, sender=parent)
        self._below = [
            _Below(HostMessages(config, tree, sender=child), child) for child in tree.children(rank)
        ]
        super().__init__(config, operations, recovery)
        self._is_root = parent is None
        self._first = self._due = self._begun = max(0, recovery.progress - config.window_messages)
        """The first message of this ring; the next result to be taken; the next message to contribute to."""
        self._parts: deque[Part] = deque()
        """Contributed, their results not here."""

    @property
    def tree(self) -> OverlayTree:
        return self._tree

    def view(self) -> RingView:
        """``messages_sent`` and ``messages_received`` count contributions and results taken."""
        unacknowledged = self._up.unacknowledged
        unacknowledged += sum(below.messages.unacknowledged for below in self._below)
        return RingView.of(
            self._operations,
            sent=self._begun - self._first,
            received=self._due - self._first,
            unacknowledged=unacknowledged,
        )

    def step(self, event: RingEvent, now: Instant) -> list[OverlayAction]:
        """Apply ``event``; the actions are to be performed in their order. Raises ``LocalMisuse`` for a
        message of a connection that it does not have."""
        match event:
            case Submit(operation):
                return [*self._operations.submit(operation), *self._advance(now)]
            case ResultArrived(edge=edge):
                self._check_edge(edge)
                return [] if self._is_over else [*self._arrival(event, edge, now), *self._advance(now)]
            case SendCompleted(msg_id, edge=edge):
                self._check_edge(edge)
                return [] if self._is_over else [*self._send_completed(msg_id, edge), *self._advance(now)]
            case Filled():
                self._operations.filled(event)
                return self._advance(now)
            case Fail():
                return [*self._operations.fail(event)]
            case Woke():
                return [*self._operations.woke(now)]
            case _:
                assert_never(event)

    def _check_edge(self, edge: int) -> None:
        if not UP <= edge < len(self._below):
            raise LocalMisuse(f"rank {self._config.rank} has no connection {edge}")

    def resume(self, now: Instant) -> list[OverlayAction]:
        """All ranks have connected: let the operations go on where those of the halted ring were."""
        self._connected()
        return self._advance(now)

    # --- what this rank can do now

    def _advance(self, now: Instant) -> list[OverlayAction]:
        actions: list[OverlayAction] = []
        while self._runs and not self._is_over:
            actions += self._start_next(now)
            actions += self._send_on()
            if not self._may_contribute():
                break
            actions += self._contribute(now)
        return actions

    def _send_on(self) -> list[OverlayAction]:
        """Results that children lack, to each in order."""
        actions: list[OverlayAction] = []
        for child in self._tree.downwards(self._config.rank) if self._below else ():
            below = self._below[child]
            while below.owed and below.messages.may_send(Kind.RESULT, below.owed[0][0]):
                serial, part = below.owed.popleft()
                sent = below.messages.send(Kind.RESULT, serial, part, part.nbytes)
                actions.append(PostDown(child, *sent, sent.slot, part.nbytes))
        return actions

    def _may_contribute(self) -> bool:
        return (
            self._operations.unsent > 0
            and self._begun < self._due + self._config.window_messages
            and all(below.arrived for below in self._below)
            and self._has_slot(self._begun)
        )

    def _has_slot(self, serial: int) -> bool:
        """Whether the sends that used the slot into which this rank adds are complete."""
        if self._is_root:
            return all(below.messages.may_send(Kind.RESULT, serial) for below in self._below)
        return self._up.may_send(Kind.ACCUMULATOR, serial)

    def _contribute(self, now: Instant) -> list[OverlayAction]:
        part, serial, rank = self._operations.next_part(), self._begun, self._config.rank
        self._begun += 1
        self._parts.append(part)
        goes = self._up_bytes(rank, part)
        if not self._below:
            return [part.post(*self._up.send(Kind.ACCUMULATOR, serial, part, goes))]
        came: list[Came] = []
        for child, below in enumerate(self._below):
            nbytes = self._up_bytes(below.rank, part)
            arrived = below.arrived.popleft()
            wrong = below.messages.contradiction(arrived, Kind.ACCUMULATOR, serial, part, nbytes)
            if wrong is not None:
                return self._break(*wrong)
            came.append(Came(child, below.messages.slot(Kind.ACCUMULATOR, serial), nbytes))
        kind, place = (Kind.RESULT, Place.RECEIVED) if self._is_root else (Kind.ACCUMULATOR, Place.STAGED)
        out = self._up.slot(kind, serial)
        operation, offset, nbytes, _, source, _ = part
        fold = Fold(tuple(came), place, out, goes, operation, source, offset, nbytes)
        if self._is_root:
            return [fold, *self._take(serial, now)]
        sent = self._up.send(kind, serial, part, goes)
        return [fold, PostSlot(*sent, place, out, goes)]

    def _take(self, serial: int, now: Instant) -> list[OverlayAction]:
        """The result that is due is in its receive slot."""
        part = self._parts.popleft()
        self._due = serial + 1
        for below in self._below:
            below.owed.append((serial, part))
        if not part.is_new:
            return []
        slot = self._up.slot(Kind.RESULT, serial)
        actions: list[OverlayAction] = [self._operations.take(self._config.ring_id, slot, now)]
        if part.is_last:
            actions.append(self._operations.end(part.operation))
            actions += self._start_next(now)
        return actions

    # --- what comes in

    def _arrival(self, event: ResultArrived, edge: int, now: Instant) -> list[OverlayAction]:
        return self._result(event, now) if edge == UP else self._gathered(event, self._below[edge])

    def _gathered(self, event: ResultArrived, below: _Below) -> list[OverlayAction]:
        """A child has passed something up."""
        expected = below.messages.msg_id(Kind.ACCUMULATOR, self._begun + len(below.arrived))
        peer, evidence = f"rank {below.rank}", f"accumulator {event.imm} where {expected} is due"
        if event.imm != expected:
            return self._break(Blame(peer, "accumulator out of order", evidence))
        if len(below.arrived) == self._config.window_messages:
            return self._break(Blame(peer, "accumulator beyond the window", evidence))
        below.arrived.append(event)
        return []

    def _result(self, event: ResultArrived, now: Instant) -> list[OverlayAction]:
        expected = self._up.msg_id(Kind.RESULT, self._due)
        peer, evidence = (
            f"rank {self._tree.parents[self._config.rank]}",
            f"result {event.imm} where {expected} is due",
        )
        if self._is_root:
            return self._break(Blame("transport", "result at the root of the tree", evidence))
        if event.imm != expected:
            return self._break(Blame(peer, "result out of order", evidence))
        if not self._parts:
            return self._break(Blame(peer, "result of a message not sent", evidence))
        part = self._parts[0]
        wrong = self._up.contradiction(event, Kind.RESULT, self._due, part, part.nbytes)
        if wrong is not None:
            return self._break(*wrong)
        return self._take(self._due, now)

    def _send_completed(self, msg_id: int, edge: int) -> list[OverlayAction]:
        messages = self._up if edge == UP else self._below[edge].messages
        wrong = messages.send_completed(msg_id)
        return [] if wrong is None else self._break(wrong)

    def _up_bytes(self, rank: int, part: Part) -> int:
        return self._tree.up_bytes(rank, part.operation.dtype, part.operation.op, part.nbytes)

    def _break(self, blame: Blame, code: str = FabricLost.code) -> list[OverlayAction]:
        return [*self._break_ring(blame, code=code)]
