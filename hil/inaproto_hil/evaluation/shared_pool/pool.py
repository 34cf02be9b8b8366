"""The switch's side of a shared pool: who has its slots, by the core that knows it in the product."""

from __future__ import annotations

from typing import Final

from inaproto.core.switch.aggregator import AggregatorArray
from inaproto.core.switch.events import Counters, RingState
from inaproto.core.switch.ring_spec import SHARED_POOL, FlowSpec, RingSpec
from inaproto.core.switch.slot_pools import SlotPools
from inaproto.errors import InvariantBroken
from inaproto.wire.messages.switch import PoolSpec

_MTU: Final = 64


class SwitchPool:
    """Rings that all have the same need; an all-reduce is one message of its ring."""

    def __init__(self, capacity: int) -> None:
        self._spec = PoolSpec(SHARED_POOL, capacity)
        self._counters = Counters()
        self._pools = SlotPools(self._counters)
        self._rings: dict[int, RingState] = {}
        self._running: dict[int, int] = {}
        """Turn in which each ring's all-reduce began."""

    @property
    def takeovers(self) -> int:
        """Turns that have begun here."""
        return self._counters.pool_takeovers

    def join(self, ring_id: int) -> None:
        ends = [ring_id.to_bytes(4, "big") + bytes([rank]) for rank in range(2)]
        flows = tuple(FlowSpec(rank, end[1:], end[:4], 1) for rank, end in enumerate(ends))
        spec = RingSpec(ring_id, 0, 0, 1, 1, _MTU, flows, pool=self._spec)
        self._rings[ring_id] = RingState(spec, AggregatorArray(spec), [])
        self._pools.join(spec)

    def leave(self, ring_id: int) -> None:
        self._running.pop(ring_id, None)
        self._pools.leave(self._rings.pop(ring_id))

    def begin(self, ring_id: int, epoch: int) -> None:
        """An all-reduce of the ring comes with the number of that turn. Raises ``InvariantBroken`` if the
        pool does not serve it, or if another ring that has not ended its all-reduce loses its slots."""
        ring = self._rings[ring_id]
        if ring.epoch != epoch:
            refusal = self._pools.refusal(ring, epoch, ring.array.next_serial)
            if refusal is not None:
                raise InvariantBroken(f"pool: turn {epoch} of ring {ring_id} is refused: {refusal}")
            self._pools.take(ring, epoch)
        self._running[ring_id] = epoch
        for other, turn in self._running.items():
            if self._rings[other].epoch != turn:
                raise InvariantBroken(f"pool: turn {epoch} of ring {ring_id} breaks turn {turn} of {other}")

    def end(self, ring_id: int) -> None:
        self._running.pop(ring_id, None)
