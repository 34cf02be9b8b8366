"""A job of ranks with two rings each, on ideal paths, as :mod:`tests.unit.ideal_job` has those of one.

Payloads are read from the sender's memory when they arrive, and what is on its way when rings end has torn
the slot that it goes to. The INA ring comes and goes while the base ring stands; ranks may disagree on the
path of an operation, and then nothing happens until the generation ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from inaproto.core.host.engines.hosts import Combine, Place, PostSlot
from inaproto.core.host.engines.two_paths import (
    AskBinding,
    Binding,
    Bound,
    Drained,
    OnPath,
    TwoPaths,
    TwoPathsAction,
    Wait,
)
from inaproto.core.host.operation_queue import FROM_THE_START, OperationQueue, Source
from inaproto.core.host.operations import (
    BASE,
    INA,
    BoundPath,
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
    Woke,
)
from inaproto.core.host.recovery import Recovery, decide
from inaproto.core.plan.accumulators import Accumulators
from inaproto.core.plan.neutral import neutral_bytes
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.units import Epoch, Instant, OpIndex, Rank, RingId
from inaproto.wire.ina_header import FLAG_RESULT, INA_HEADER_BYTES, Dtype, InaHeader, Op
from tests.unit.ideal_job import Held, Message

Bytes = NDArray[np.uint8]
Choice = Callable[[int, int], Binding | Wait]
"""Of a rank, for an operation."""
PATHS: tuple[BoundPath, ...] = (BASE, INA)


Binder = Callable[[OpIndex, Instant], Binding | Wait]
"""Says by which path an operation is to go, or that it cannot be said yet."""


def always(path: BoundPath) -> Binder:
    """A binder that has nothing to choose."""
    return lambda op_index, now: Binding(path)


class AnsweredPaths(TwoPaths):
    """Two paths whose ``binder`` answers at once."""

    def __init__(
        self,
        config: RingConfig,
        accumulators: Accumulators,
        binder: Binder,
        *,
        ina: RingConfig | None = None,
        operations: OperationQueue | None = None,
        recovery: Recovery = FROM_THE_START,
    ) -> None:
        self._binder = binder
        super().__init__(config, accumulators, ina=ina, operations=operations, recovery=recovery)

    def _go_on(self, now: Instant) -> list[TwoPathsAction]:
        actions = super()._go_on(now)
        match actions:
            case [*before, AskBinding(op_index)]:
                return [*before, *self.answered(op_index, self._binder(op_index, now), now)]
            case _:
                return actions


@dataclass(slots=True)
class Lane:
    """What a rank has of one ring."""

    slots: dict[Place, list[bytearray]]
    sent: deque[Message] = field(default_factory=deque)
    inbox: deque[Message] = field(default_factory=deque)
    unacknowledged: deque[tuple[Message, bytes]] = field(default_factory=deque)

    def write(self, place: Place, slot: int, content: bytes) -> None:
        """The rank writes one of its slots."""
        for message in [*self.sent, *(message for message, _ in self.unacknowledged)]:
            held = message.payload
            if isinstance(held, Held):
                assert (held.place, held.at) != (place, slot), "a slot is written that is still being sent"
        self.slots[place][slot][INA_HEADER_BYTES : INA_HEADER_BYTES + len(content)] = content

    def read(self, place: Place, slot: int, nbytes: int) -> bytes:
        return bytes(self.slots[place][slot][INA_HEADER_BYTES : INA_HEADER_BYTES + nbytes])


@dataclass(slots=True)
class Member:
    engine: TwoPaths
    lanes: dict[BoundPath, Lane]
    tensors: dict[int, Bytes] = field(default_factory=dict)
    kept: dict[tuple[int, int], bytes] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)
    bound: dict[int, BoundPath] = field(default_factory=dict)
    """The path by which each operation was started last."""
    drained: list[int] = field(default_factory=list)
    faults: list[object] = field(default_factory=list)
    progress: int | None = None
    waits: bool = False


class TwoPathsJob:
    """``choice`` is every rank's binder; ``has_tree`` says whether the INA ring stands."""

    def __init__(
        self, plan: ReductionPlan, choice: Choice, *, window: int = 2, has_tree: bool = True
    ) -> None:
        self.plan, self.accumulators, self.choice = plan, Accumulators(plan), choice
        self.window, self.size, self.has_tree = window, plan.size, has_tree
        self.generation = 1
        self.now = Instant(0)
        self.progress: list[list[int]] = []
        """Of all ranks, whenever a generation ended."""
        self.is_ending = False
        self.members = [self._member(rank) for rank in range(self.size)]

    def config(self, rank: int, ring_id: int) -> RingConfig:
        return RingConfig(
            ring_id=RingId(ring_id),
            epoch=Epoch(1),
            key=0xC0FFEE + ring_id,
            rank=Rank(rank),
            ring_size=self.size,
            window_messages=self.window,
            mtu=256,
            message_packets=1,
            outlived=True,
        )

    @property
    def ina_id(self) -> int:
        return 1000 * self.generation

    def _member(self, rank: int) -> Member:
        return Member(self._engine(rank, None, FROM_THE_START), {path: self._lane(path) for path in PATHS})

    def _engine(self, rank: int, operations: OperationQueue | None, recovery: Recovery) -> TwoPaths:
        def bind(op_index: OpIndex, now: Instant) -> Binding | Wait:
            return self.choice(rank, op_index)

        return AnsweredPaths(
            self.config(rank, self.generation),
            self.accumulators,
            bind,
            ina=self.config(rank, self.ina_id) if self.has_tree else None,
            operations=operations,
            recovery=recovery,
        )

    def _lane(self, path: BoundPath) -> Lane:
        config = self.config(0, self.generation)
        size = config.message_bytes if path == INA else self.accumulators.slot_bytes(config.tensor_bytes)
        return Lane({place: [bytearray(size) for _ in range(config.slots)] for place in Place})

    def submit(self, rank: int, index: int, tensor: Bytes, dtype: Dtype, op: Op) -> None:
        member = self.members[rank]
        member.tensors[index] = tensor.copy()
        operation = Operation(OpIndex(index), dtype, op, tensor.size, 5)
        self.perform(rank, member.engine.step(Submit(operation), self.now))

    def wake(self, rank: int) -> None:
        """Who waits for its binder asks again."""
        self.perform(rank, self.members[rank].engine.step(Woke(), self.now))

    # --- what the shell does

    def perform(self, rank: int, actions: list[TwoPathsAction]) -> None:
        member, path = self.members[rank], BASE
        for action in actions:
            lane = member.lanes[path]
            match action:
                case OnPath(named):
                    path = named
                case PostMessage() | PostSlot():
                    lane.sent.append(Message(action.msg_id, action.header, _held(member, lane, action)))
                case Combine():
                    assert path == BASE
                    self._combine(rank, action)
                case TakeResult(slot, op_index, offset, nbytes):
                    taken = np.frombuffer(lane.read(Place.RECEIVED, slot, nbytes), np.uint8)
                    member.tensors[op_index][offset : offset + nbytes] = taken
                case OperationDone(op_index):
                    assert path == member.bound[op_index]
                    member.done.append(op_index)
                case Bound(op_index, carrier):
                    member.bound[op_index] = carrier
                case Drained(op_index):
                    assert op_index in member.done
                    ina = member.lanes[INA]
                    held = [*ina.sent, *(message for message, _ in ina.unacknowledged)]
                    assert op_index not in [InaHeader.decode(message.header).op_index for message in held]
                    member.drained.append(op_index)
                case _:
                    member.faults.append(action)

    def _combine(self, rank: int, action: Combine) -> None:
        member, operation = self.members[rank], action.operation
        lane = member.lanes[BASE]
        if action.source is Source.KEPT:
            own = member.kept[operation.index, action.offset]
        elif action.source is Source.NEUTRAL:
            own = neutral_bytes(operation.dtype, operation.op, action.nbytes)
        else:
            own = bytes(member.tensors[operation.index][action.offset : action.offset + action.nbytes])
        out = np.zeros(action.goes, np.uint8)
        stack = np.frombuffer(lane.read(Place.RECEIVED, action.slot, action.came), np.uint8)
        part = np.frombuffer(own, np.uint8)
        self.accumulators.combine(rank, operation.dtype, operation.op, stack, part, out)
        lane.write(action.place, action.out, out.tobytes())

    # --- what can happen

    def events(self) -> list[Callable[[], None]]:
        possible: list[Callable[[], None]] = []
        if all(member.lanes[INA].sent for member in self.members):
            possible.append(self._aggregate)
        for rank, member in enumerate(self.members):
            for path in PATHS:
                source = self.members[rank - 1].lanes[BASE].sent if path == BASE else member.lanes[INA].inbox
                if source:
                    possible.append(partial(self._arrive, rank, path, source))
                if member.lanes[path].unacknowledged:
                    possible.append(partial(self._acknowledge, rank, path))
            if self.is_ending and member.progress is None:
                possible.append(partial(self._halt, rank))
            if member.waits:
                possible.append(partial(self._resume, rank))
        return possible

    def _aggregate(self) -> None:
        messages = [member.lanes[INA].sent.popleft() for member in self.members]
        headers = [InaHeader.decode(message.header) for message in messages]
        assert len({replace(header, rank=0) for header in headers}) == 1, "the ranks send different messages"
        payloads = [
            _payload(member, member.lanes[INA], one)
            for member, one in zip(self.members, messages, strict=True)
        ]
        inputs = [np.frombuffer(payload, np.uint8) for payload in payloads]
        result = self.plan.reduce(inputs, headers[0].dtype, headers[0].op).tobytes()
        for rank, header in enumerate(headers):
            marked = replace(header, flags=header.flags | FLAG_RESULT).encode()
            successor = self.members[(rank + 1) % self.size].lanes[INA]
            successor.inbox.append(Message(header.msg_id, marked, result))

    def _arrive(self, rank: int, path: BoundPath, source: deque[Message]) -> None:
        member, before = self.members[rank], self.members[rank - 1]
        message = source.popleft()
        payload = _payload(before, before.lanes[path], message)
        content = message.header + payload
        slots = member.lanes[path].slots[Place.RECEIVED]
        slots[message.msg_id % len(slots)][: len(content)] = content
        before.lanes[path].unacknowledged.append((message, payload))
        event = ResultArrived(message.msg_id, len(content), message.header)
        self.perform(rank, member.engine.step(event._replace(path=path), self.now))

    def _acknowledge(self, rank: int, path: BoundPath) -> None:
        member = self.members[rank]
        message, payload = member.lanes[path].unacknowledged.popleft()
        if isinstance(message.payload, Held) and (
            message.payload.place is Place.STAGED or (path == BASE and rank == self.size - 1)
        ):
            assert _payload(member, member.lanes[path], message) == payload, "a slot was written too soon"
        self.perform(rank, member.engine.step(SendCompleted(message.msg_id, path=path), self.now))

    # --- rings come and go

    @property
    def may_migrate(self) -> bool:
        return all(member.engine.is_ina_idle for member in self.members) and not self.is_resuming

    @property
    def is_resuming(self) -> bool:
        return self.is_ending or any(member.waits for member in self.members)

    def lose_tree(self) -> None:
        """All ranks are idle on the INA ring: it leaves its switches."""
        for member in self.members:
            member.engine.park()
        self.has_tree = False

    def gain_tree(self) -> None:
        """The INA ring stands again, or for the first time in this generation."""
        self.has_tree = True
        for rank, member in enumerate(self.members):
            if member.engine.ina_config is None:
                member.engine.attach(self.config(rank, self.ina_id))
                member.lanes[INA] = self._lane(INA)
            else:
                member.engine.stand()

    def end_generation(self) -> None:
        """From now on ranks are halted; when all are, the next generation is there."""
        self.is_ending = True

    def _halt(self, rank: int) -> None:
        member = self.members[rank]
        member.progress, member.waits = member.engine.halt().progress, False
        if all(member.progress is not None for member in self.members):
            self._next_generation()

    def _next_generation(self) -> None:
        for rank, member in enumerate(self.members):
            self._tear(rank)
            self._keep(member)
        progress = {rank: member.progress or 0 for rank, member in enumerate(self.members)}
        self.progress.append(list(progress.values()))
        decided = decide(progress, self.window)
        assert isinstance(decided, Recovery), decided
        self.generation, self.is_ending = self.generation + 1, False
        for rank, member in enumerate(self.members):
            member.engine = self._engine(rank, member.engine.halt(), decided)
            running = member.engine.operations.running
            if running is not None:
                member.bound[running.index] = BASE
            member.progress, member.waits = None, True
            member.lanes = {path: self._lane(path) for path in PATHS}

    def _tear(self, rank: int) -> None:
        member = self.members[rank]
        for path in PATHS:
            slots = member.lanes[path].slots[Place.RECEIVED]
            coming = self.members[rank - 1].lanes[BASE].sent if path == BASE else member.lanes[INA].inbox
            for message in coming:
                slot = slots[message.msg_id % len(slots)]
                slot[:] = b"\xdb" * len(slot)

    def _keep(self, member: Member) -> None:
        kept: dict[tuple[int, int], bytes] = {}
        ina = member.engine.ina_config
        for result in member.engine.halt().kept:
            key = (result.operation.index, result.offset)
            if result.ring_id == self.generation:
                kept[key] = member.lanes[BASE].read(Place.RECEIVED, result.slot, result.nbytes)
            elif ina is not None and result.ring_id == ina.ring_id:
                kept[key] = member.lanes[INA].read(Place.RECEIVED, result.slot, result.nbytes)
            else:
                kept[key] = member.kept[key]
        member.kept = kept

    def _resume(self, rank: int) -> None:
        member = self.members[rank]
        member.waits = False
        self.perform(rank, member.engine.resume(self.now))


def _held(member: Member, lane: Lane, action: PostMessage | PostSlot) -> PostMessage | Held:
    """Where the payload lies; what is no tensor and in no slot gets the staging slot of its header."""
    match action:
        case PostSlot(_, _, _, place, at, nbytes):
            return Held(place, at, nbytes)
        case PostKept(_, slot, _, op_index, offset, nbytes):
            content = member.kept[op_index, offset]
        case PostNeutral(_, slot, header, _, _, nbytes):
            content = neutral_bytes(Dtype(header[5]), Op(header[6]), nbytes)
        case _:
            return action
    lane.write(Place.STAGED, slot, content)
    return Held(Place.STAGED, slot, nbytes)


def _payload(member: Member, lane: Lane, message: Message) -> bytes:
    match message.payload:
        case bytes():
            return message.payload
        case Held(place, at, nbytes):
            return lane.read(place, at, nbytes)
        case PostMessage(_, _, _, op_index, offset, nbytes):
            return bytes(member.tensors[op_index][offset : offset + nbytes])
