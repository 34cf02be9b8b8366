"""What a world notes of what happens to a host in a job, and of what it orders: marks, and whom it blames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from inaproto.core.host import events
from inaproto.core.host.collective import FellBack, Stands
from inaproto.core.host.engines.host_messages import TENSORS_DIFFER
from inaproto.core.host.engines.host_tree import Fold, PostDown
from inaproto.core.host.engines.hosts import Combine, PostSlot
from inaproto.core.host.engines.two_paths import Bound, Drained, OnPath, TwoPaths
from inaproto.core.host.holdings import Holdings, MemoryOrder
from inaproto.core.host.job import HostJob
from inaproto.core.host.journal import Journal, Past
from inaproto.core.host.local_reduction import Slice
from inaproto.core.host.operation_queue import Source
from inaproto.core.host.operations import (
    BASE,
    INA,
    VOTE,
    Operation,
    Overdue,
    PostKept,
    PostMessage,
    PostNeutral,
    RingBroken,
    Stalled,
    TakeResult,
)
from inaproto.core.rdma.verbs import Completion, QpAttributes
from inaproto.errors import Blame, TensorMismatch
from inaproto.sim.frames.host.tensors import HostTensors, allocate
from inaproto.sim.kernel.violated import Violated
from inaproto.wire.control_messages import JobStatus, Ring, Start
from inaproto.wire.messages.ina import InaStands

if TYPE_CHECKING:
    from inaproto.sim.frames.host.ring import HostRing


_OF_NO_RANK: Final = (PostKept, PostNeutral)
OF_LINKS: Final = (events.Answered, events.LinkUnusable, events.LinksRefused)
OF_THE_NEXT_LIFE: Final = (events.LinksOpened, events.RankJoined)
WITHDRAWING: Final = (events.JoinDenied, events.JoiningFailed)
SOONER: Final = (events.BindingSaid, events.OfCollective)
"""Events that may bring a deadline nearer."""
NOTED: Final = (events.Answered, events.Said, events.JoinDenied)
"""Events that ``note_event`` is to be told of."""


class WatchedHoldings(Holdings):
    """Holdings of ``ring``: whoever watches the world is told what is sent, taken and added."""

    tensors: HostTensors | None

    def __init__(self, ring: HostRing, core: HostJob, slice_bytes: int, journal: Journal | None) -> None:
        world, job = ring.host.world, ring.job
        super().__init__(
            core,
            allocate=allocate,
            first_psn=world.first_psn,
            attributes=QpAttributes(
                mtu=job.mtu,
                timeout=job.transport_timeout,
                retry_count=job.retry_count,
                spread_timers=world.config.topology is not None,  # one switch: no queue has two senders
            ),
            slice_bytes=slice_bytes,
            journal=journal,
        )
        self._ring = ring

    def event_of(self, completion: Completion) -> events.CompletionEvent | None:
        event = super().event_of(completion)
        if isinstance(event, events.MessageArrived):
            self._ring.acting = event.path
            for hook in self._ring.host.world.hooks.received:
                hook(self._ring, event.imm)
        return event

    def events_of(self, completions: Iterable[Completion]) -> list[events.CompletionEvents]:
        found = super().events_of(completions)
        for event in found:
            if isinstance(event, events.Exchanged):
                self._ring.acting = event.path
                for imm, _, _ in event.results:
                    for hook in self._ring.host.world.hooks.received:
                        hook(self._ring, imm)
        return found

    def begin(self) -> None:
        super().begin()
        self._ring.acting = BASE

    def restore(self, past: Past) -> None:
        super().restore(past)
        if past.torn is not None:
            self._ring.host.world.mark("a result was copied again that a daemon had died over")

    def tear(self, order: TakeResult) -> None:
        """The daemon dies while it copies that result, which its successor has to finish."""
        tensors, journal = self.tensors, self.journal
        path = self._ring.acting
        link = self.links[path]
        if tensors is None or journal is None or order.op_index >= VOTE:
            return
        by = INA if path == INA else self._ring.core.done_path
        operation, at = tensors.operation(order.op_index), link.result_at(order.slot)
        journal.taking(operation, order.offset, order.nbytes, at, by)
        for view in tensors.views(order.op_index, order.offset, order.nbytes):
            half = len(view) // 2
            view[:half] = link.result(order.slot, order.nbytes)[:half]
            view[half : half + 1] = bytes([view[half] ^ 0x5A]) if len(view) else b""
        self.taken(order.slot, order.op_index, order.offset, order.nbytes)  # in this ring, by its order

    def perform(self, order: MemoryOrder) -> None:
        ring = self._ring
        if isinstance(order, OnPath):
            ring.acting = order.path
        match order:
            case PostMessage():
                self._check_post(order)
                super().perform(order)
                if len(ring.ranks) > 1 and not isinstance(order, _OF_NO_RANK):
                    ring.host.world.mark("a host posted the sum of several ranks")
                ring.host.nic_touched()
            case TakeResult(slot, op_index, offset, nbytes):
                if not self.links:
                    raise Violated("a result is taken from its slot", f"{ring}: all-reduce {op_index}")
                super().perform(order)
                if op_index < VOTE:
                    self.taken(slot, op_index, offset, nbytes)
            case Combine() | Fold():
                super().perform(order)
                note_sum(ring, order)
            case PostSlot():
                self._check_post(order)
                super().perform(order)
                ring.host.nic_touched()
            case PostDown():
                super().perform(order)
                ring.host.nic_touched()
            case _:
                super().perform(order)

    def _check_post(self, order: PostMessage | PostSlot) -> None:
        ring, world = self._ring, self._ring.host.world
        if isinstance(order, PostMessage) and ring.acting == INA and world.mover.is_parked(ring.job.name):
            raise Violated("a parked ring sends nothing", f"{ring} sends message {order.msg_id}")
        for hook in world.hooks.posted:
            hook(ring, order.msg_id)

    def taken(self, slot: int, op_index: int, offset: int, nbytes: int) -> None:
        """The tensors of all ranks have that part of a result; ``slot``: -1 if it came from none."""
        for hook in self._ring.host.world.hooks.taken:
            for rank in self._ring.ranks:
                hook(rank, slot, op_index, offset, nbytes)

    def added(self, part: Slice) -> None:
        super().added(part)
        self.taken(-1, part.of.operation.index, part.offset, part.nbytes)

    def take_sum(self) -> Operation | None:
        operation = super().take_sum()
        if operation is not None:
            self._ring.host.world.mark("an all-reduce on one host")
        return operation


def check_ring(ring: HostRing, told: Ring) -> None:
    """The switch tells of a ring: notes what the one before was. Raises ``Violated`` if it is not of all
    ranks here."""
    ring.was_among_hosts = ring.sums_itself
    here = told.ranks[told.position]
    if here != tuple(rank.index for rank in ring.ranks) or told.position != ring.position:
        raise Violated("a ring is of all ranks", f"{ring}: its ring is of {told.ranks}")


def note_event(ring: HostRing, event: events.HostEvent) -> None:
    """It has happened, and the host has looked at it."""
    world = ring.host.world
    match event:
        case events.Answered() if ring.was_among_hosts and not ring.sums_itself:
            world.mark("a job returned to the switch")
        case events.Said(Start() | InaStands()):
            world.mover.look()
        case events.Said(JobStatus(mismatch=mismatch)) if mismatch:
            world.mark("a mismatch was explained")
        case events.JoinDenied():
            world.mark("a join was refused")
        case _:
            pass


def note_action(ring: HostRing, action: events.HostAction) -> None:
    """It was ordered, or said. Raises ``Violated`` if it blames somebody who is well."""
    world = ring.host.world
    match action:
        case events.Noted(mark):
            world.mark(mark)
            if mark == "a rank came back from away" and len(ring.ranks) > 1:
                world.mark("a host came back with several ranks")
        case Bound(_, path):
            world.mark(
                f"an all-reduce was bound to the {'ring in the switches' if path == INA else 'base ring'}"
            )
        case FellBack(operation, code, reason):
            if not reason:
                raise Violated(
                    "a fallback has a reason", f"{ring}: all-reduce {operation.index}: {code.name}"
                )
            world.mark(f"an all-reduce was redone without a collective library: {code.name.lower()}")
        case Stands(op_index):
            world.mark("a collective library stood" + " again" * (op_index > 0))
        case Drained():
            world.mark("an all-reduce of the ring in the switches was drained")
        case Stalled():
            world.mark("an all-reduce stalled")
        case Overdue():
            world.mark("an all-reduce was overdue")
        case Blame():
            if not (action.rule == TENSORS_DIFFER and ring.ranks[0].process.may_differ):
                raise Violated("nobody is to blame", f"{ring} blames {action}")
        case RingBroken(code, message):
            if code != TensorMismatch.code:
                raise Violated("nobody is to blame", f"{ring}: ring broken: {code}: {message}")
            world.mark("a chain found that ranks disagree")
        case _:
            pass  # the rank hears of operations that fail in the end; ranks ask when the host is welcome


def note_sum(ring: HostRing, action: Combine | Fold) -> None:
    """A host has added what ranks gave."""
    world, is_sum = ring.host.world, len(ring.ranks) > 1 and action.source is Source.OWN
    if isinstance(action, Fold):
        if len(action.came) > 1:
            world.mark("a host of an overlay gathered from several")
        if is_sum:
            world.mark("an overlay was given the sum of several ranks")
    elif is_sum:
        how = "ring of hosts" if ring.is_rotated else "chain"
        world.mark(f"a {how} was given the sum of several ranks")


def note_halt(ring: HostRing, order: events.KeepResults) -> None:
    """Its ring has ended."""
    world, engine = ring.host.world, ring.engine
    world.mark("a rank was halted")
    if any(kept.ring_id == order.ina_ring_id and kept.serial >= order.since for kept in order.results):
        world.mark("a halted rank kept results of the ring in the switches")
    if isinstance(engine, TwoPaths) and engine.carrier == INA and engine.operations.running:
        world.mark("a rank was halted in an all-reduce on the ring in the switches")
