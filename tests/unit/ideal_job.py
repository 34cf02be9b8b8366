"""A job of real engines on ideal paths: rings that end at any moment, and others on which it goes on.

No packets and no loss; but all that RC allows in order and time. Payloads are read from the sender's memory
when they arrive, not when they are posted, so a slot that is used again too soon shows. When a ring ends,
what is on its way has written any part of the slot it goes to. What a rank keeps is copied out of its slots
when it is halted, as a host must that gives its memory up.

The accelerator of the path ``switch`` reduces whole messages by the plan; ``chain`` and ``ring`` move
accumulators, and ``ring`` adds to each message in another order of the ranks; ``overlay`` has a connection
for each edge of a tree, in both directions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.core.host.engines.chain import ChainEngine
from inaproto.core.host.engines.host_tree import Fold, OverlayAction, OverlayEngine, PostDown
from inaproto.core.host.engines.hosts import Combine, HostsAction, Place, PostSlot
from inaproto.core.host.engines.in_network import RingAction, RingEngine
from inaproto.core.host.engines.ring import RingAllReduceEngine
from inaproto.core.host.operation_queue import OperationQueue, Source
from inaproto.core.host.operations import (
    UP,
    Operation,
    OperationDone,
    PostKept,
    PostMessage,
    PostNeutral,
    ResultArrived,
    RingConfig,
    SendCompleted,
    Submit,
    TakeResult,
)
from inaproto.core.host.recovery import Recovery, decide
from inaproto.core.plan.accumulators import Accumulators, RotatedAccumulators
from inaproto.core.plan.host_tree import OverlayTree
from inaproto.core.plan.neutral import neutral_bytes
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.units import Epoch, Instant, OpIndex, Rank, RingId
from inaproto.wire.ina_header import FLAG_RESULT, INA_HEADER_BYTES, Dtype, InaHeader, Op

Bytes = NDArray[np.uint8]
Choose = Callable[[int], int]
"""One of so many possibilities, from 0."""
NOW = Instant(0)
Engine = RingEngine | ChainEngine | RingAllReduceEngine | OverlayEngine
HOST_PATHS = ("chain", "ring")


class Held(NamedTuple):
    """Payload in a slot of its sender."""

    place: Place
    at: int
    nbytes: int


class Message(NamedTuple):
    msg_id: int
    header: bytes
    payload: PostMessage | Held | bytes
    """Where it lies with the sender, or itself."""
    edge: int = UP
    """On the path ``overlay``: over which connection of the sender."""


@dataclass(slots=True)
class Member:
    """One rank: its engine and all its memory."""

    engine: Engine
    tensors: dict[int, Bytes] = field(default_factory=dict)
    kept: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """Results of ended rings, by operation and offset."""
    slots: dict[Place, list[bytearray]] = field(default_factory=dict)
    came: list[list[bytearray]] = field(default_factory=list)
    """On the path ``overlay``, by child: slots for what it passes up."""
    sent: deque[Message] = field(default_factory=deque)
    """Posted, not yet at the next hop."""
    inbox: deque[Message] = field(default_factory=deque)
    """Reduced by the accelerator, on their way to this rank."""
    unacknowledged: deque[tuple[Message, bytes]] = field(default_factory=deque)
    """At the next hop, with the payload as it was; this rank's transport may still resend them."""
    payload_bytes: int = 0
    """Sent, headers not counted."""
    done: list[int] = field(default_factory=list)
    faults: list[object] = field(default_factory=list)
    progress: int | None = None
    """What it said when it was halted."""
    waits: bool = False
    """Has a ring that it has not been told to go on with."""


class IdealJob:
    """``events()`` are what can happen now. ``halt`` ends the ring, rank by rank, in events of their own."""

    def __init__(
        self,
        plan: ReductionPlan,
        paths: list[str],
        *,
        window: int = 2,
        mtu: int = 256,
        packets: int = 1,
        in_degree: int = 2,
    ) -> None:
        self.plan, self.tree = plan, OverlayTree(plan, in_degree)
        self.size = plan.size
        self.rotated = RotatedAccumulators(ReductionPlan.flat(self.size))
        self.paths = paths
        """Of the present ring, and of those after it; the last of them again and again."""
        self.paths_used = [paths[0]]
        """Of all rings so far."""
        self.ring_id = 1
        self.recoveries: list[Recovery] = []
        self.progress: list[list[int]] = []
        """Of all ranks, whenever a ring ended."""
        self.is_ending = False
        self._sizes = {"window_messages": window, "mtu": mtu, "message_packets": packets}
        self.members = [Member(self._engine(rank, None, None)) for rank in range(self.size)]
        for member in self.members:
            self._new_memory(member)

    @cached_property
    def accumulators(self) -> Accumulators:
        return Accumulators(self.plan)

    @property
    def path(self) -> str:
        return self.paths[0]

    def config(self, rank: int) -> RingConfig:
        return RingConfig(
            ring_id=RingId(self.ring_id),
            epoch=Epoch(1),
            key=0xC0FFEE + self.ring_id,
            rank=Rank(rank),
            ring_size=self.size,
            outlived=True,
            **self._sizes,
        )

    def _engine(self, rank: int, operations: OperationQueue | None, recovery: Recovery | None) -> Engine:
        config, resumed = self.config(rank), () if recovery is None else (operations, recovery)
        if self.path == "switch":
            return RingEngine(config, *resumed)
        if self.path == "ring":
            return RingAllReduceEngine(config, self.rotated, *resumed)
        if self.path == "overlay":
            return OverlayEngine(config, self.tree, *resumed)
        return ChainEngine(config, self.accumulators, *resumed)

    def _new_memory(self, member: Member) -> None:
        config = member.engine.config
        sums = [self.accumulators if self.path == "chain" else self.tree, self.rotated]
        size = max(one.slot_bytes(config.tensor_bytes) for one in sums)
        member.slots = {place: [bytearray(size) for _ in range(config.slots)] for place in Place}
        member.came = []
        if self.path == "overlay":
            children = self.tree.children(config.rank)
            member.came = [[bytearray(size) for _ in range(config.slots)] for _ in children]

    def submit(self, rank: int, index: int, tensor: Bytes, dtype: Dtype, op: Op) -> None:
        member = self.members[rank]
        member.tensors[index] = tensor.copy()
        operation = Operation(OpIndex(index), dtype, op, tensor.size, 5)
        self.perform(rank, member.engine.step(Submit(operation), NOW))

    # --- what the shell does

    def perform(self, rank: int, actions: list[RingAction] | list[HostsAction] | list[OverlayAction]) -> None:
        member = self.members[rank]
        for action in actions:
            match action:
                case PostMessage() | PostSlot():
                    payload = self._held(member, action)
                    member.sent.append(Message(action.msg_id, action.header, payload))
                    member.payload_bytes += action.nbytes
                case PostDown(child, msg_id, _, header, at, nbytes):
                    payload = Held(Place.RECEIVED, at, nbytes)
                    member.sent.append(Message(msg_id, header, payload, child))
                    member.payload_bytes += nbytes
                case Combine():
                    self._combine(rank, action)
                case Fold():
                    self._fold(rank, action)
                case TakeResult(slot, op_index, offset, nbytes):
                    taken = _slot_bytes(member, Place.RECEIVED, slot, nbytes)
                    member.tensors[op_index][offset : offset + nbytes] = np.frombuffer(taken, np.uint8)
                case OperationDone(op_index):
                    member.done.append(op_index)
                case _:
                    member.faults.append(action)

    def _held(self, member: Member, action: PostMessage | PostSlot) -> PostMessage | Held:
        """Where the payload lies; what is no tensor and in no slot gets the staging slot of its header."""
        match action:
            case PostSlot(_, _, _, place, at, nbytes):
                return Held(place, at, nbytes)
            case PostKept(_, slot, _, op_index, offset, nbytes):
                content = member.kept[op_index, offset]
            case PostNeutral(_, slot, header, _, _, nbytes):  # dtype and op: bytes 5 and 6 of both headers
                content = neutral_bytes(Dtype(header[5]), Op(header[6]), nbytes)
            case _:
                return action
        _write(member, Place.STAGED, slot, content)
        return Held(Place.STAGED, slot, nbytes)

    def _fold(self, rank: int, action: Fold) -> None:
        member, operation = self.members[rank], action.operation
        came = [
            np.frombuffer(bytes(_behind(member.came[child][slot], nbytes)), np.uint8)
            for child, slot, nbytes in action.came
        ]
        own = np.frombuffer(_own(member, action), np.uint8)
        out = np.zeros(action.goes, np.uint8)
        self.tree.fold(rank, operation.dtype, operation.op, came, own, out)
        _write(member, action.place, action.out, out.tobytes())

    def _combine(self, rank: int, action: Combine) -> None:
        member, operation = self.members[rank], action.operation
        came = _slot_bytes(member, Place.RECEIVED, action.slot, action.came)
        own = _own(member, action)
        out = np.zeros(action.goes, np.uint8)
        stack, part = (np.frombuffer(data, np.uint8) for data in (came, own))
        accumulators = self.rotated if self.path == "ring" else self.accumulators
        accumulators.combine(rank, operation.dtype, operation.op, stack, part, out)
        _write(member, action.place, action.out, out.tobytes())

    # --- what can happen

    def events(self) -> list[Callable[[], None]]:
        possible: list[Callable[[], None]] = []
        if self.path == "switch" and all(member.sent for member in self.members):
            possible.append(self._aggregate)
        for rank, member in enumerate(self.members):
            source = self.members[rank - 1].sent if self.path in HOST_PATHS else member.inbox
            if self.path == "overlay":
                possible += [partial(self._arrive_from, rank, edge) for edge in _edges(member.sent)]
                acknowledged = _edges(message for message, _ in member.unacknowledged)
                possible += [partial(self._acknowledge_on, rank, edge) for edge in acknowledged]
            elif source and self.size > 1:
                possible.append(partial(self._arrive, rank, source))
            if member.unacknowledged and self.path != "overlay":
                possible.append(lambda rank=rank: self._acknowledge(rank))  # type: ignore[misc]
            if self.is_ending and member.progress is None:
                possible.append(lambda rank=rank: self._halt(rank))  # type: ignore[misc]
            if member.waits:
                possible.append(lambda rank=rank: self._resume(rank))  # type: ignore[misc]
        return possible

    def _aggregate(self) -> None:
        messages = [member.sent.popleft() for member in self.members]
        headers = [InaHeader.decode(message.header) for message in messages]
        assert len({replace(header, rank=0) for header in headers}) == 1, "the ranks send different messages"
        payloads = [_payload(member, one) for member, one in zip(self.members, messages, strict=True)]
        inputs = [np.frombuffer(payload, np.uint8) for payload in payloads]
        result = self.plan.reduce(inputs, headers[0].dtype, headers[0].op).tobytes()
        for rank, header in enumerate(headers):
            marked = replace(header, flags=header.flags | FLAG_RESULT).encode()
            successor = self.members[(rank + 1) % self.size]
            successor.inbox.append(Message(header.msg_id, marked, result))

    def _arrive(self, rank: int, source: deque[Message]) -> None:
        member = self.members[rank]
        message = source.popleft()
        payload = _payload(self.members[rank - 1], message)
        content = message.header + payload
        slot = member.slots[Place.RECEIVED][message.msg_id % member.engine.config.slots]
        slot[: len(content)] = content
        self.members[rank - 1].unacknowledged.append((message, payload))
        event = ResultArrived(message.msg_id, len(content), message.header)
        self.perform(rank, member.engine.step(event, NOW))

    def _acknowledge(self, rank: int) -> None:
        member = self.members[rank]
        message, payload = member.unacknowledged.popleft()
        if isinstance(message.payload, Held) and (
            message.payload.place is Place.STAGED or (self.path == "chain" and rank == self.size - 1)
        ):
            assert _payload(member, message) == payload, "a slot was written that is still being sent"
        self.perform(rank, member.engine.step(SendCompleted(message.msg_id), NOW))

    # --- the connections of a tree

    def _peer(self, rank: int, edge: int) -> tuple[int, int]:
        """Who is at the other end, and the number of the connection there."""
        if edge != UP:
            return self.tree.children(rank)[edge], UP
        parent = self.tree.parents[rank]
        assert parent is not None, "the root sends nothing up"
        return parent, self.tree.children(parent).index(rank)

    def _slot_at(self, rank: int, edge: int, msg_id: int) -> bytearray:
        """Where a message that comes to ``rank`` over ``edge`` is written."""
        member = self.members[rank]
        slots = member.slots[Place.RECEIVED] if edge == UP else member.came[edge]
        return slots[msg_id % member.engine.config.slots]

    def _arrive_from(self, sender: int, edge: int) -> None:
        source = self.members[sender]
        message = next(message for message in source.sent if message.edge == edge)
        source.sent.remove(message)
        rank, into = self._peer(sender, edge)
        payload = _payload(source, message)
        content = message.header + payload
        self._slot_at(rank, into, message.msg_id)[: len(content)] = content
        source.unacknowledged.append((message, payload))
        event = ResultArrived(message.msg_id, len(content), message.header)
        engine = self.members[rank].engine
        assert isinstance(engine, OverlayEngine)
        self.perform(rank, engine.step(event._replace(edge=into), NOW))

    def _acknowledge_on(self, rank: int, edge: int) -> None:
        member = self.members[rank]
        message, payload = next(sent for sent in member.unacknowledged if sent[0].edge == edge)
        member.unacknowledged.remove((message, payload))
        if isinstance(message.payload, Held) and (edge == UP or rank == self.tree.root):
            assert _payload(member, message) == payload, "a slot was written that is still being sent"
        assert isinstance(member.engine, OverlayEngine)
        self.perform(rank, member.engine.step(SendCompleted(message.msg_id, edge=edge), NOW))

    # --- a ring ends, another one begins

    def end_ring(self) -> None:
        """From now on ranks are halted; when all are, the next ring is there."""
        self.is_ending = True

    def _halt(self, rank: int) -> None:
        member = self.members[rank]
        member.progress, member.waits = member.engine.halt().progress, False
        if all(member.progress is not None for member in self.members):
            self._next_ring()

    def _next_ring(self) -> None:
        for rank in range(self.size):
            self._tear(rank)
        for member in self.members:
            self._keep(member)
        progress = {rank: member.progress or 0 for rank, member in enumerate(self.members)}
        self.progress.append(list(progress.values()))
        decided = decide(progress, self._sizes["window_messages"])
        assert isinstance(decided, Recovery), decided
        self.recoveries.append(decided)
        self.ring_id += 1
        self.paths = self.paths[1:] or self.paths
        self.paths_used.append(self.path)
        self.is_ending = False
        for rank, member in enumerate(self.members):
            member.engine = self._engine(rank, member.engine.halt(), decided)
            member.progress, member.waits = None, True
            self._new_memory(member)
            for queue in (member.sent, member.inbox, member.unacknowledged):
                queue.clear()

    def _tear(self, rank: int) -> None:
        """Whatever is on its way to this rank has destroyed the slot it goes to; in a tree, what it sent."""
        member = self.members[rank]
        if self.path == "overlay":
            for message in member.sent:
                at, into = self._peer(rank, message.edge)
                slot = self._slot_at(at, into, message.msg_id)
                slot[:] = b"\xdb" * len(slot)
            return
        coming = self.members[rank - 1].sent if self.path in HOST_PATHS and self.size > 1 else member.inbox
        for message in coming:
            slot = member.slots[Place.RECEIVED][message.msg_id % member.engine.config.slots]
            slot[:] = b"\xdb" * len(slot)

    def _keep(self, member: Member) -> None:
        kept: dict[tuple[int, int], bytes] = {}
        for result in member.engine.halt().kept:
            key = (result.operation.index, result.offset)
            if result.ring_id == self.ring_id:
                kept[key] = _slot_bytes(member, Place.RECEIVED, result.slot, result.nbytes)
            else:
                kept[key] = member.kept[key]
        member.kept = kept

    def _resume(self, rank: int) -> None:
        member = self.members[rank]
        member.waits = False
        self.perform(rank, member.engine.resume(NOW))

    def run(self, choose: Choose) -> None:
        """Until nothing can happen any more."""
        while possible := self.events():
            possible[choose(len(possible))]()


def _edges(messages: Iterable[Message]) -> list[int]:
    """The connections that these messages are on."""
    return list(dict.fromkeys(message.edge for message in messages))


def _own(member: Member, action: Combine | Fold) -> bytes:
    """What a rank contributes."""
    operation = action.operation
    if action.source is Source.KEPT:
        return member.kept[operation.index, action.offset]
    if action.source is Source.NEUTRAL:
        return neutral_bytes(operation.dtype, operation.op, action.nbytes)
    return bytes(member.tensors[operation.index][action.offset : action.offset + action.nbytes])


def _behind(slot: bytearray, nbytes: int) -> bytearray:
    """Of a slot, behind the header."""
    return slot[INA_HEADER_BYTES : INA_HEADER_BYTES + nbytes]


def _write(member: Member, place: Place, slot: int, content: bytes) -> None:
    """A rank writes one of its slots."""
    sends = [*member.sent, *(message for message, _ in member.unacknowledged)]
    for held in (message.payload for message in sends if isinstance(message.payload, Held)):
        assert (held.place, held.at) != (place, slot), "a slot is written that is still being sent"
    member.slots[place][slot][INA_HEADER_BYTES : INA_HEADER_BYTES + len(content)] = content


def _slot_bytes(member: Member, place: Place, slot: int, nbytes: int) -> bytes:
    return bytes(member.slots[place][slot][INA_HEADER_BYTES : INA_HEADER_BYTES + nbytes])


def _payload(member: Member, message: Message) -> bytes:
    match message.payload:
        case bytes():
            return message.payload
        case Held(place, at, nbytes):
            return _slot_bytes(member, place, at, nbytes)
        case PostMessage(_, _, _, op_index, offset, nbytes):
            return bytes(member.tensors[op_index][offset : offset + nbytes])
