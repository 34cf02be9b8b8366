"""Where rules are tried: it sends what a rule says, and holds what leaves against what has to.

Invariant: what left because of a rule's packets was compared before the next rule begins, frames too many
included.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from inaproto.core.switch.ring_spec import RingSpec
from inaproto.wire.ethernet import BROADCAST
from inaproto_hil.conformance.ring import Ring, mac
from inaproto_hil.conformance.target import InProcess, Left, Target
from inaproto_hil.rtl.equivalence.compare import Difference, Report, output_difference
from inaproto_hil.rtl.equivalence.traffic import Campaign
from inaproto_hil.rtl.parameters import Parameters

RANKS_MAX: Final = 4
"""Of a bench ring: more show nothing else, but for the rule of the largest one."""
HISTORY: Final = 40
"""Frames before the wrong one that a report has."""


@dataclass
class Broken(Exception):
    """A rule that does not hold."""

    report: Report
    """What came in, what should have left, and what did."""


class Bench:
    """For one target, rule after rule. ``golden`` gets all that the target gets, for random traffic."""

    def __init__(self, target: Target, golden: InProcess) -> None:
        self.target = target
        self._golden = golden
        self._rings = 0
        self._in: list[tuple[int, bytes]] = []
        """Of this rule."""
        self._out: list[Left] = []
        """What had to leave because of each of these."""
        self._installed: dict[int, RingSpec] = {}
        self._due: Left = []
        """What has to leave, and was not compared yet."""

    @property
    def limits(self) -> Parameters:
        return self.target.limits

    @property
    def frames_in(self) -> int:
        """Of this rule, so far."""
        return len(self._in)

    @property
    def ranks(self) -> int:
        """Of a ring of which no more is said."""
        return min(self.limits.children, self.limits.ports, RANKS_MAX)

    # -- for rules

    async def ring(self, **sizes: Any) -> Ring:
        """A new ring, installed: of as many ranks as there are ports, small otherwise."""
        self._rings += 1
        ring = Ring(self._rings, **({"ranks": self.ranks, "window": min(2, self.limits.window)} | sizes))
        await self._install(ring.spec)
        return ring

    async def _install(self, spec: RingSpec) -> None:
        await self._golden.install(spec)
        reason = await self.target.install(spec)
        if reason:
            self._fail("install", f"a ring of {spec.size} ranks is refused: {reason}")
        self._installed[spec.ring_id] = spec

    async def remove(self, ring: Ring) -> None:
        await self._settle()
        await self._remove(ring.spec.ring_id)

    async def _remove(self, ring_id: int) -> None:
        await self._golden.remove(ring_id)
        await self.target.remove(ring_id)
        del self._installed[ring_id]

    async def frame(self, port: int, frame: bytes, leaves: Iterable[tuple[int, bytes]] | None = ()) -> Left:
        """It comes in there; ``leaves`` is all that leaves because of it; None: as of the golden one."""
        await self._golden.send(port, frame)
        golden = await self._golden.take(0)
        due = golden if leaves is None else list(leaves)
        self._in.append((port, frame))
        self._out.append(due)
        self._due += due
        await self.target.send(port, frame)
        if due:
            self._compare(await self.target.take(len(self._due)))
        return due

    async def send(
        self,
        ring: Ring,
        rank: int,
        serial: int,
        offset: int,
        leaves: Iterable[tuple[int, bytes]] = (),
        **changes: Any,
    ) -> None:
        """A packet of a ring, at the port of its rank."""
        await self.frame(rank, ring.packet(rank, serial, offset, **changes), leaves)

    async def message(
        self, ring: Ring, serial: int, ranks: Sequence[int] | None = None, **changes: Any
    ) -> None:
        """All packets of a message, of all ranks one after the other: the last rank's are answered to all."""
        order = range(ring.ranks) if ranks is None else ranks
        packets = changes.get("packets") or ring.packets
        for rank in order:
            for offset in range(packets):
                completes = rank == order[-1]
                leaves = ring.results(serial, offset, **changes) if completes else ()
                await self.send(ring, rank, serial, offset, leaves, **changes)

    async def random(self, seed: int, frames: int) -> None:
        """Random traffic under faults: whatever the golden accelerator does has to be done."""
        campaign = Campaign(seed, self.limits, frames, changes=False)
        await self._golden.faults()
        for spec in campaign.specs:
            await self._install(spec)
        for port, frame in campaign.arrivals():
            if len(frame) < self.target.frame_bytes_min:
                campaign.heard([])
            else:
                campaign.heard(await self.frame(port, frame, None))
        await self._settle()
        right, said = sorted(await self._golden.faults()), sorted(await self.target.faults())
        if right != said:
            self._fail("faults", f"rings that stopped are {said}, not {right}")

    async def nothing_leaves(self) -> None:
        """Wait until it is certain."""
        await self._settle()

    async def fails(self, ring: Ring, rule: str, ranks: Iterable[int]) -> None:
        """The ring has stopped because of one of ``ranks``, by that rule."""
        await self._settle()
        said = await self.target.faults()
        wanted = {(ring.spec.ring_id, rank, rule) for rank in ranks}
        if not (len(said) == 1 and said[0] in wanted):
            self._fail("faults", f"rings that stopped are {said}; one of {sorted(wanted)} has to")

    # -- for the suite

    async def begin(self) -> None:
        """All hosts say where they are."""
        for port in range(self.limits.ports):
            frame = BROADCAST + mac(port) + b"\x88\xb5" + bytes(46)
            await self.frame(
                port, frame, [(other, frame) for other in range(self.limits.ports) if other != port]
            )
        await self._settle()

    async def run(self, rule: Callable[[Bench], Awaitable[None]]) -> None:
        """Raises ``Broken``."""
        self._in, self._out, self._due = [], [], []
        try:
            await rule(self)
            await self._settle()
            said = await self.target.faults()
            if said:
                self._fail("faults", f"rings stopped that must not: {said}")
        finally:
            await self.target.rest()
            await self.target.faults()
            for ring_id in list(self._installed):
                await self._remove(ring_id)

    async def _settle(self) -> None:
        self._compare(await self.target.rest())

    def _compare(self, left: Left) -> None:
        due, self._due = self._due, []
        difference = output_difference(len(self._in) - 1, due, left)
        if difference is not None:
            raise Broken(self._report(difference, left))

    def _fail(self, kind: str, says: str) -> None:
        raise Broken(self._report(Difference(kind, len(self._in) - 1, says), []))

    def _report(self, difference: Difference, left: Left) -> Report:
        first = max(0, len(self._in) - HISTORY)
        moved = replace(difference, step=difference.step - first)
        return Report(
            tuple(self._installed.values()),
            tuple(self._in[first:]),
            moved,
            golden_out=tuple(self._out[first:]),
            other_out=left,
        )
