"""A ring of engines around an ideal aggregator: no packets, no loss, any order of events that RC allows.

Only the cores are real; the aggregator here sums whole messages in rank order, as the accelerator must.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inaproto.core.host.engines.in_network import (
    Operation,
    OperationDone,
    OperationFailed,
    PostMessage,
    ResultArrived,
    RingAction,
    RingConfig,
    RingEngine,
    SendCompleted,
    Submit,
    TakeResult,
)
from inaproto.units import Epoch, Instant, OpIndex, Rank, RingId
from inaproto.wire.ina_header import FLAG_RESULT, INA_HEADER_BYTES, Dtype, InaHeader, Op

Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class Message:
    msg_id: int
    header: bytes
    data: bytes


@dataclass(slots=True)
class Member:
    """One rank: its engine, its buffers by operation, its receive slots."""

    engine: RingEngine
    buffers: dict[int, Bytes] = field(default_factory=dict)
    slots: dict[int, bytes] = field(default_factory=dict)
    sent: deque[Message] = field(default_factory=deque)
    """Posted, not yet at the aggregator."""
    results: deque[Message] = field(default_factory=deque)
    """Summed, on their way from the predecessor's flow to this rank."""
    unacknowledged: deque[int] = field(default_factory=deque)
    """Taken by the successor; this rank's transport does not know it yet."""
    done: list[int] = field(default_factory=list)
    failed: list[OperationFailed] = field(default_factory=list)
    other: list[RingAction] = field(default_factory=list)


def ring_config(rank: int, size: int, **changes: int) -> RingConfig:
    values: dict[str, Any] = {"mtu": 256, "message_packets": 2, "window_messages": 2} | changes
    return RingConfig(
        ring_id=RingId(7), epoch=Epoch(3), key=0xC0FFEE, rank=Rank(rank), ring_size=size, **values
    )


def marked_as_result(header: bytes) -> bytes:
    """What the accelerator makes of the header of a message when its payload is a sum."""
    sent = InaHeader.decode(header)
    assert not sent.is_result, "a sender says that its payload is a result"
    return replace(sent, flags=sent.flags | FLAG_RESULT).encode()


class IdealRing:
    """``step(choose)`` makes one of the events that are possible now happen."""

    def __init__(self, size: int, **changes: int) -> None:
        self.members = [Member(RingEngine(ring_config(rank, size, **changes))) for rank in range(size)]
        self.now = Instant(0)

    def submit(self, rank: int, index: int, values: NDArray[np.int32], signature: int = 5) -> None:
        member = self.members[rank]
        member.buffers[index] = values.copy().view(np.uint8)
        operation = Operation(OpIndex(index), Dtype.I32, Op.SUM, values.nbytes, signature)
        self.perform(rank, member.engine.step(Submit(operation), self.now))

    def perform(self, rank: int, actions: list[RingAction]) -> None:
        member = self.members[rank]
        for action in actions:
            match action:
                case PostMessage(msg_id, _, header, op_index, offset, nbytes):
                    data = member.buffers[op_index][offset : offset + nbytes].tobytes()
                    member.sent.append(Message(msg_id, header, data))
                case TakeResult(slot, op_index, offset, nbytes):
                    data = member.slots.pop(slot)[INA_HEADER_BYTES:]
                    assert len(data) == nbytes
                    member.buffers[op_index][offset : offset + nbytes] = np.frombuffer(data, np.uint8)
                case OperationDone(op_index):
                    member.done.append(op_index)
                case OperationFailed():
                    member.failed.append(action)
                case _:
                    member.other.append(action)

    def events(self) -> list[Callable[[], None]]:
        """What can happen now."""
        possible: list[Callable[[], None]] = []
        if all(member.sent for member in self.members):
            possible.append(self._aggregate)
        for rank, member in enumerate(self.members):
            if member.results:
                possible.append(lambda rank=rank: self._arrive(rank))  # type: ignore[misc]
            if member.unacknowledged:
                possible.append(lambda rank=rank: self._acknowledge(rank))  # type: ignore[misc]
        return possible

    def _aggregate(self) -> None:
        messages = [member.sent.popleft() for member in self.members]
        assert len({message.msg_id for message in messages}) == 1
        total = sum(np.frombuffer(message.data, np.int32) for message in messages)
        data = np.asarray(total, np.int32).tobytes()
        for rank, message in enumerate(messages):
            successor = self.members[(rank + 1) % len(self.members)]
            successor.results.append(Message(message.msg_id, marked_as_result(message.header), data))

    def _arrive(self, rank: int) -> None:
        member = self.members[rank]
        message = member.results.popleft()
        slot = message.msg_id % member.engine.config.slots
        assert slot not in member.slots, "a receive slot was written while its result had not been taken"
        member.slots[slot] = message.header + message.data
        event = ResultArrived(message.msg_id, len(message.header) + len(message.data), message.header)
        predecessor = self.members[(rank - 1) % len(self.members)]
        predecessor.unacknowledged.append(message.msg_id)
        self.perform(rank, member.engine.step(event, self.now))

    def _acknowledge(self, rank: int) -> None:
        member = self.members[rank]
        event = SendCompleted(member.unacknowledged.popleft())
        self.perform(rank, member.engine.step(event, self.now))

    def run(self, choose: Callable[[int], int]) -> None:
        """Until nothing can happen any more; ``choose(n)`` picks one of n events."""
        while possible := self.events():
            possible[choose(len(possible))]()
