"""The rings that a switch's control plane has on an accelerator in hardware, and what is said of them.

Rings come and go by :class:`~inaproto_adapters.fpga.device.FpgaDevice`; what is kept here is what the
software core keeps as well (:mod:`inaproto.core.switch.accelerator`): packets of a ring that was removed are
dropped for a while, so that none is taken for a result, and a ring is said to have failed once.

Invariant: a removed ring keeps its place for ``retired_ns``, unless another one needs it or its connections.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from inaproto.core.switch.events import AcceleratorView, Counters, PoolView, RingFault, RingRefused
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import Blame
from inaproto.units import Instant
from inaproto_adapters.fpga.device import FpgaDevice, RingView

EVIDENCE: Final = "as the accelerator says"
_COUNTERS: Final = frozenset(field.name for field in fields(Counters)) - {"dropped"}
_NOT_DROPS: Final = frozenset({"rx", "tx", "egress_stalls", "first_packets"})


class FpgaRings:
    """``retired_ns``: how long packets of a removed ring are dropped, if its place is not needed.

    The calls raise ``FabricError`` where the accelerator does not do as it should.
    """

    def __init__(self, device: FpgaDevice, *, retired_ns: int) -> None:
        self.device = device
        self._retired_ns = retired_ns
        self._live: dict[int, RingSpec] = {}
        self._faulted: set[int] = set()
        self._found: dict[int, RingFault] = {}
        """Faults that nobody has been told of yet."""
        self._leaving: dict[int, Instant] = {}
        self._faults = 0
        self._looks = 0

    async def install(self, spec: RingSpec, now: Instant) -> RingRefused | None:
        """Sum for a ring from now on."""
        await self.expire(now)
        wanted = {flow.connection for flow in spec.flows}
        for ring_id in list(self._leaving):
            again = any(flow.connection in wanted for flow in self.device.spec_of(ring_id).flows)
            if again or ring_id == spec.ring_id:
                await self._forget(ring_id)
        answer = await self.device.install(spec)
        while isinstance(answer, RingRefused) and answer.until_room and self._leaving:
            await self._forget(min(self._leaving, key=self._leaving.__getitem__))
            answer = await self.device.install(spec)
        if isinstance(answer, RingRefused):
            return answer
        self._live[spec.ring_id] = spec
        self._faulted.discard(spec.ring_id)
        return None

    async def remove(self, ring_id: int, now: Instant) -> None:
        """Sum for a ring no more; nothing happens if it is not there."""
        self._found.pop(ring_id, None)
        if self._live.pop(ring_id, None) is not None:
            await self.device.stop(ring_id)
            self._leaving[ring_id] = Instant(now + self._retired_ns)

    async def expire(self, now: Instant) -> None:
        """Packets of rings that were removed long enough ago pass from now on."""
        for ring_id in [ring_id for ring_id, until in self._leaving.items() if until <= now]:
            await self._forget(ring_id)

    async def _forget(self, ring_id: int) -> None:
        await self.device.remove(ring_id)
        del self._leaving[ring_id]

    async def faults(self) -> list[RingFault | Blame]:
        """Rings that have failed since the last look; the last packet to blame if there was none.

        The count of faults comes round: what is missed for that, :meth:`view` finds.
        """
        last = await self.device.last_fault()
        news = last if last is not None and last.count != self._faults else None
        if news is not None:
            self._faults = news.count
            for ring_id in sorted(self._live.keys() - self._faulted):
                self._look_at(ring_id, await self.device.state(ring_id))
        found: list[RingFault | Blame] = [self._found.pop(ring_id) for ring_id in sorted(self._found)]
        if news is not None and not found:
            ring = "no ring" if news.ring_id is None else f"ring {news.ring_id}, rank {news.rank}"
            found.append(Blame(ring, news.rule, EVIDENCE))
        return found

    def _look_at(self, ring_id: int, state: RingView) -> None:
        if state.fault is not None and ring_id not in self._faulted:
            rule, rank = state.fault
            self._faulted.add(ring_id)
            self._found[ring_id] = RingFault(ring_id, rank, rule, EVIDENCE)

    async def has_kept(self) -> bool:
        """Whether the accelerator has the rings that were put in: False where somebody else drives it.

        Each time two rows are looked at: the first one, where whoever it is begins, and another in turn.
        """
        taken = sorted({placement.ring for placement in self.device.rings.values()} - {0})
        self._looks += 1
        rows = [0, *taken[self._looks % len(taken) :][:1]] if taken else [0]
        kept = [await self.device.has_kept(row) for row in rows]
        return all(kept)

    async def view(self) -> AcceleratorView:
        """Counters and rings, read from the registers. Faults that it finds, :meth:`faults` says."""
        named = await self.device.counters()
        dropped = {
            name: count
            for name, count in named.items()
            if count and name not in _COUNTERS and name not in _NOT_DROPS
        }
        counters = Counters(dropped=dropped)
        for name in _COUNTERS & named.keys():
            setattr(counters, name, named[name])
        rings: dict[int, dict[str, int | bool]] = {}
        for ring_id, spec in self._live.items():
            state = await self.device.state(ring_id)
            self._look_at(ring_id, state)
            rings[ring_id] = {
                "ranks": spec.size,
                "next_message": state.next_serial,
                "next_packet": state.next_offset,
                "failed": state.fault is not None,
            }
            if spec.role is not None:
                rings[ring_id] |= {"inputs": len(spec.role.inputs), "root": spec.role.parent is None}
        connections = sum(spec.size for spec in self._live.values())
        return AcceleratorView(rings, counters, 0, connections, await self._pools(counters))

    async def _pools(self, counters: Counters) -> dict[str, PoolView]:
        """Turns and conflicts are those of all pools: they are not counted for each."""
        found = {}
        for name in sorted({spec.pool.name for spec in self._live.values() if spec.pool is not None}):
            places = await self.device.pool(name)
            members = [
                ring_id
                for ring_id, spec in self._live.items()
                if spec.pool is not None and spec.pool.name == name
            ]
            found[name] = PoolView(
                rings=tuple(members),
                capacity=len(places),
                memory_bytes=0,
                holders=tuple(place.holder for place in places),
                epochs=tuple(place.epoch for place in places),
                takeovers=counters.pool_takeovers,
                conflicts=counters.pool_conflicts,
                stale=counters.stale_turns,
            )
        return found
