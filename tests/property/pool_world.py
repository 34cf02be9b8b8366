"""Rings that share a pool below a tree of real accelerators, from one seed.

Hosts, links and weather are those of :mod:`tests.property.hierarchy_world`; what each result must be is
computed from the ring's own tensors, so a packet of another ring, or of another turn, in a sum is found. A
*disciplined* world keeps the rule of turns: the next begins when every rank of the old ring has its results.
There every ring must finish, and nobody be stopped or blamed. Without discipline turns begin at any time,
stale holders go on, and ranks may hold a message for one of different turns. There a ring may come to
nothing, but whatever a rank gets must be right.

In a disciplined world that *moves* its rings, one that has drained leaves all its switches before its next
turn, now and then, and goes on there with its next message: as one whose tree went elsewhere and came back.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.accelerator import Action, InstallRing, RemoveRing, RingFault
from inaproto.core.switch.events import TURN_LOST
from inaproto.core.switch.ring_spec import NO_TURN, RingSpec
from inaproto.wire.messages.switch import PoolSpec
from inaproto.wire.roce import RocePacket
from tests.property.accelerator_rings import Flow, RingTraffic
from tests.property.hierarchy_world import NOW, HierarchyWorld

WILD_TURNS: Final = 2500
_EPOCH: Final = slice(12, 16)
"""Of an INA header."""


class PoolWorld(HierarchyWorld):
    def __init__(
        self, seed: int, *, disciplined: bool = True, weather: float | None = None, moves: float = 0.0
    ) -> None:
        """``moves``: how often a ring leaves its switches before a turn."""
        draw = Random(f"{seed}/pool")
        self.disciplined = disciplined
        self._moves, self._to_move = moves, Random(f"{seed}/moves")
        self.moved = 0
        self.rings_count = draw.choice([2, 2, 3])
        self.pool = PoolSpec("pool", draw.choice([1, 1, 1, 2]))
        self.is_plain = draw.random() < 0.4
        """One switch does all, and its rings have no role."""
        ranks = range(draw.randint(2, 5))
        tree = TreeSwitch("s0", tuple(ranks)) if self.is_plain else None
        self.are_alike = draw.random() < 0.5
        self._draw = draw
        self._epoch = draw.choice([0, 7, 0xFFFF_0000])
        self._until = [0] * self.rings_count
        """By ring: messages that have had their turn."""
        self._place_of: dict[int, int] = {}
        """By ring that has a turn."""
        self.results = 0
        self._epochs: dict[str, tuple[int, ...]] = {}
        """By switch: the highest turns that it has seen."""
        super().__init__(seed, tree=tree, weather=weather)

    # -- the beginning -------------------------------------------------------------------------

    def _draw_ring(self, rng: Random, ranks: int, number: int) -> RingTraffic:
        own = Random(f"{self.seed}/ring/{0 if self.are_alike else number}")
        return super()._draw_ring(own, ranks, number)

    def _fill(self, rng: Random, ring: RingTraffic) -> None:
        own = Random(f"{self.seed}/traffic/{ring.flows[0].ring}")
        ring.spec = replace(ring.spec, key=own.getrandbits(64), pool=self.pool)
        super()._fill(own, ring)

    def specs(self, number: int = 0) -> dict[str, RingSpec]:
        found = super().specs(number)
        if self.is_plain:
            return {name: replace(spec, role=None) for name, spec in found.items()}
        return found

    # -- turns ---------------------------------------------------------------------------------

    def turn(self) -> None:
        for number in list(self._place_of):
            if self._has_drained(number):
                del self._place_of[number]
        if len(self._place_of) < self.pool.capacity:
            self._grant(
                self._draw.choice([place for place in range(self.pool.capacity) if self._is_free(place)])
            )
        elif not self.disciplined and self._draw.random() < 0.02:
            place = self._draw.randrange(self.pool.capacity)
            self._place_of = {ring: held for ring, held in self._place_of.items() if held != place}
            self._grant(place)
        super().turn()

    def _is_free(self, place: int) -> bool:
        return place not in self._place_of.values()

    def _has_drained(self, number: int) -> bool:
        until = self._until[number]
        return all(flow.expected >= flow.ends[until - 1] for flow in self.rings[number].flows)

    def _grant(self, place: int) -> None:
        """A ring's next messages get a turn, if there is one that has any."""
        able = [
            number
            for number, ring in enumerate(self.rings)
            if number not in self._place_of and self._until[number] < len(ring.flows[0].ends)
        ]
        if not able:
            return
        number = self._draw.choice(able)
        if self._to_move.random() < self._moves:
            self._move(number)
        self._epoch += 1
        while self._epoch % self.pool.capacity != place:
            self._epoch += 1
        first = self._until[number]
        until = min(first + self._draw.randint(1, 4), len(self.rings[number].flows[0].ends))
        for flow in self.rings[number].flows:
            for serial in range(first, until):
                epoch = self._epoch
                if not self.disciplined and self._draw.random() < 0.01:
                    epoch += self._draw.choice([-2, -1, 1, 2])
                self._stamp(flow, serial, max(epoch, 0))
        self._until[number] = until
        self._place_of[number] = place

    def _move(self, number: int) -> None:
        """Out of its switches, and back; what it sent before may still be on its way."""
        specs = self.specs(number)
        for name, spec in specs.items():
            assert self.switches[name].step(RemoveRing(spec.ring_id), NOW) == []
            if name in self._epochs and self.pool.name not in self.switches[name].view().pools:
                del self._epochs[name]
        for name, spec in specs.items():
            again = replace(spec, first_message=self._until[number])
            assert self.switches[name].step(InstallRing(again), NOW) == []
        self.moved += self._until[number] > 0

    @staticmethod
    def _stamp(flow: Flow, serial: int, epoch: int) -> None:
        """The sender's header of a message says this turn."""
        packet = flow.packets[flow.ends[serial - 1] if serial else 0]
        payload = bytearray(packet.template.payload)
        payload[_EPOCH] = epoch.to_bytes(4, "big")
        packet.template = replace(packet.template, payload=bytes(payload))

    def may_send(self, flow: Flow) -> bool:
        return flow.packets[flow.next].serial < self._until[flow.ring] and super().may_send(flow)

    # -- the loop ------------------------------------------------------------------------------

    def run_wild(self) -> None:
        """Turns as they come; whoever loses one is removed, and perhaps comes again."""
        assert not self.disciplined
        for number in range(WILD_TURNS):
            self.turn()
            if number % 40 == 0:
                self.expire()
        while self._anything_under_way():
            self._deliver()
        self.check_ledger()
        assert {fault.rule for _, fault in self.faults} <= {TURN_LOST}

    def arrive(self, name: str, port: int, frames: list[bytes]) -> list[Action]:
        actions = super().arrive(name, port, frames)
        self._check_pool(name)
        if self._draw.random() < 0.5:
            return actions
        for action in actions:
            if isinstance(action, RingFault):
                number = [ring.spec.ring_id for ring in self.rings].index(action.ring_id)
                for switch in self.specs(number):
                    self.switches[switch].step(RemoveRing(action.ring_id), NOW)
        return actions

    def _check_pool(self, name: str) -> None:
        """No turn is older than the one before it, and there are slots for so many rings and no more."""
        accelerator = self.switches[name]
        pool = accelerator.view().pools.get(self.pool.name)
        before = self._epochs.get(name, ())
        if pool is None:  # all its rings are gone
            self._epochs.pop(name, None)
            return
        assert all(now >= then for now, then in zip(pool.epochs, before, strict=False)), f"seed {self.seed}"
        self._epochs[name] = pool.epochs
        holders = [ring for ring in accelerator.rings.values() if ring.epoch != NO_TURN]
        assert sorted(ring.spec.ring_id for ring in holders) == sorted(
            holder for holder in pool.holders if holder is not None
        )
        assert all(ring.epoch in pool.epochs for ring in holders)

    def _check(self, flow: Flow, index: int, got: RocePacket) -> None:
        super()._check(flow, index, got)
        self.results += 1
