"""Rings that come and go amid the frames of a campaign, as a control plane has it, and ports that go down.

A ring that goes leaves hosts behind that have not heard of it and go on sending. A new ring takes its place
in the tables and its slots, which still hold what was in them (NetReduce sections 3.1, 4); or it is the same
ring anew, on the same connections.

Invariant: a ring that comes has room, by the rule by which the driver of an accelerator places rings.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from inaproto.core.switch.ring_spec import RingSpec
from inaproto_hil.rtl.equivalence.rings import Ring
from inaproto_hil.rtl.equivalence.steps import Forget, Install, Order, Ports, Remove
from inaproto_hil.rtl.parameters import Parameters

DrawRing = Callable[[int, int, Ring | None], Ring]
"""From its number, the slots that it may have, and the ring whose connections it takes over."""
SOON = 40
"""Steps for which there is no ring, or a port is down, at most."""


class Changes:
    """``next`` is asked as soon as a step is ``due``."""

    def __init__(self, seed: int, limits: Parameters, frames: int, rings: list[Ring], draw: DrawRing) -> None:
        self._rng = rng = Random(f"changes/{seed}")
        self._limits, self._draw = limits, draw
        self._live, self._gone = list(rings), list[Ring]()
        self._number = len(rings)
        self._places: dict[int, tuple[int, int]] = {}
        """First slot and slots of each ring, by its number."""
        for ring in rings:
            self._place(ring)
        amid = range(frames // 10, frames)
        self._steps = rng.sample(amid, min(rng.choice([0, 2, 5, 12]), len(amid)))
        self._all = frozenset(range(limits.ports))
        self.up = self._all

    def due(self, step: int) -> bool:
        return any(step >= other for other in self._steps)

    def next(self, step: int) -> tuple[Order, Ring | None]:
        """What happens, and the ring that comes by it."""
        self._steps.remove(min(self._steps))
        if self.up != self._all:
            self.up = self._all
            return Ports(self.up), None
        ways: list[tuple[int, Callable[[], tuple[Order, Ring | None]]]] = [(2, self._unplug)]
        if self._live:
            ways.append((3, self._remove))
        if self._gone:
            ways += [(2, self._again), (1, self._forget)]
        if len(self._places) < self._limits.rings and max(self._gaps())[0] >= 2:
            ways.append((4, self._add))
        [(_, way)] = self._rng.choices(ways, [weight for weight, _ in ways])
        made = way()
        if not self._live or self.up != self._all:
            self._steps.append(step + self._rng.randint(1, SOON))
        return made

    def _unplug(self) -> tuple[Order, Ring | None]:
        self.up = self._all - {self._rng.randrange(self._limits.ports)}
        return Ports(self.up), None

    def _remove(self) -> tuple[Order, Ring | None]:
        ring = self._rng.choice(self._live)
        self._live.remove(ring)
        self._gone.append(ring)
        ring.is_gone = True
        return Remove(ring.spec.ring_id), None

    def _forget(self) -> tuple[Order, Ring | None]:
        for ring in self._gone:
            del self._places[ring.number]
        self._gone.clear()
        return Forget(), None

    def _again(self) -> tuple[Order, Ring | None]:
        before = self._rng.choice(self._gone)
        self._gone.remove(before)
        del self._places[before.number]
        return self._come(before.number, before)

    def _add(self) -> tuple[Order, Ring | None]:
        self._number += 1
        return self._come(self._number, None)

    def _come(self, number: int, before: Ring | None) -> tuple[Order, Ring | None]:
        ring = self._draw(number, max(self._gaps())[0], before)
        self._live.append(ring)
        self._place(ring)
        return Install(ring.spec), ring

    # -- places

    def _gaps(self) -> list[tuple[int, int]]:
        """Slots in a row that are nobody's, and the first of them; the last gap may be empty."""
        found, base = [], 0
        for begin, slots in sorted(self._places.values()):
            found.append((begin - base, base))
            base = begin + slots
        return [*found, (self._limits.slots - base, base)]

    def _place(self, ring: Ring) -> None:
        need = slots_of(ring.spec)
        base = next(base for slots, base in self._gaps() if slots >= need)
        self._places[ring.number] = base, need


def slots_of(spec: RingSpec) -> int:
    return spec.regions * spec.message_packets
