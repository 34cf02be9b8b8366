"""A collective library in a simulated world: hosts that attach, operations that it sums, and seeded faults.

It sums the hosts of a job from the last to the first. What goes wrong with attempts and operations is drawn
(:mod:`inaproto.faults.collective`); an attempt that is refused at one host has come about at the others, who
are not told. Hosts hear after ``control_delay_ns`` that another has begun a later attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from inaproto.core.grants.places import Attaching
from inaproto.core.host import collective as core
from inaproto.core.host.collective_terms import CollectiveTerms, digest_of
from inaproto.core.host.events import OfCollective
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.faults.collective import CollectiveFates, Outcome
from inaproto.units import MS, US
from inaproto.wire.ina_header import Dtype, Op

if TYPE_CHECKING:
    from inaproto.sim.frames.host.ring import HostRing
    from inaproto.sim.frames.world import World

TERMS: Final = CollectiveTerms("simulated", frozenset(Dtype), frozenset(Op), 64, 1 << 30)
TRY_NS: Final = 100 * MS
_ATTACH_NS: Final = MS
_ATTACH_MAX_NS: Final = 200 * MS
_SUM_NS: Final = 50 * US
_LOST_NS: Final = 400 * US
"""After an operation: about when the next is tried, or voted on."""


def _said(event: core.FromShell) -> core.FromShell:
    return event


@dataclass(eq=False, slots=True)
class _Call:
    ring: HostRing
    order: core.Try
    source: memoryview
    into: memoryview


@dataclass(eq=False, slots=True)
class _Attempt:
    rings: dict[int, HostRing] = field(default_factory=dict)
    calls: dict[int, _Call] = field(default_factory=dict)
    in_place: dict[int, Attaching] = field(default_factory=dict)
    operations: int = 0
    is_whole: bool = False


class SimLibrary:
    """That of all jobs of ``world`` which have one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._attempts: dict[tuple[str, int, int], _Attempt] = {}
        self.taken: set[tuple[str, int, int]] = set()
        """All-reduces whose results are its sums, by job, life and index."""

    def _fates(self, ring: HostRing) -> CollectiveFates:
        job = ring.job
        assert job.collective is not None
        return CollectiveFates(self._world.config.seed, f"{job.name}/{ring.life}", job.collective)

    def _tell(self, ring: HostRing, after_ns: int, event: Callable[[], core.FromShell | None]) -> None:
        """If that life of the job is there by then."""
        ring.host.after(after_ns, partial(self._told, ring, ring.core, event))

    def _told(self, ring: HostRing, of: object, event: Callable[[], core.FromShell | None]) -> None:
        if ring.core is of and ring.host.is_up:
            said = event()
            if said is not None:
                ring.feed(OfCollective(said))

    # --- attachments

    def _answer(
        self, ring: HostRing, after_ns: int, attempt: _Attempt, event: Callable[[], core.FromShell | None]
    ) -> None:
        """What becomes of an attachment. The host's places hear of it first, whatever its job does."""
        ring.host.after(after_ns, partial(self._answered, ring, ring.core, attempt, event))

    def _answered(
        self, ring: HostRing, of: object, attempt: _Attempt, event: Callable[[], core.FromShell | None]
    ) -> None:
        said, places = event(), self._world.places
        if isinstance(said, core.Attached):
            places.attached(ring, attempt.in_place[ring.position])
        elif said is not None:
            places.ends(ring, attempt.in_place[ring.position])
        if said is not None and ring.core is of:
            ring.feed(OfCollective(said))

    def attach(self, ring: HostRing, number: int) -> None:
        """A host begins an attempt."""
        key = ring.job.name, ring.life, number
        attempt = self._attempts.setdefault(key, _Attempt())
        attempt.rings[ring.position] = ring
        attempt.in_place[ring.position] = self._world.places.begins(ring)
        for host in self._world.hosts:
            for other in host.rings:
                if other is not ring and (other.job, other.life) == (ring.job, ring.life):
                    self._tell(other, self._world.config.control_delay_ns, partial(core.Superseded, number))
        self._give_up_before(ring, number)
        if len(attempt.rings) == len(ring.job.positions):
            attempt.is_whole = True
            outcomes = self._fates(ring).attach(number, len(attempt.rings))
            for position, each in attempt.rings.items():
                ok = outcomes[position] is Outcome.DONE
                event = core.Attached(number) if ok else core.AttachFailed(number, "no resources")
                self._answer(each, _ATTACH_NS, attempt, partial(_said, event))
        else:
            self._answer(ring, _ATTACH_MAX_NS, attempt, partial(self._late, attempt, number))

    def _late(self, attempt: _Attempt, number: int) -> core.FromShell | None:
        return None if attempt.is_whole else core.AttachFailed(number, "not all hosts came in time")

    def _give_up_before(self, ring: HostRing, number: int) -> None:
        for (job, life, earlier), attempt in self._attempts.items():
            if (job, life) == (ring.job.name, ring.life) and earlier < number and not attempt.is_whole:
                attempt.is_whole = True  # nobody else comes
                why = f"another host has begun attempt {number}"
                for each in attempt.rings.values():
                    failed = core.AttachFailed(earlier, why)
                    delay_ns = self._world.config.control_delay_ns
                    self._answer(each, delay_ns, attempt, partial(_said, failed))

    def release(self, ring: HostRing, number: int) -> None:
        """Its call is forgotten; those of other hosts never end."""
        attempt = self._attempts.get((ring.job.name, ring.life, number))
        if attempt is not None:
            attempt.calls.pop(ring.position, None)
            self._answer(ring, _ATTACH_NS, attempt, partial(core.Released, number))

    # --- operations

    def call(self, ring: HostRing, order: core.Try, source: memoryview, into: memoryview) -> None:
        """It is done when all hosts have called it."""
        attempt = self._attempts[ring.job.name, ring.life, order.attempt]
        attempt.calls[ring.position] = _Call(ring, order, source, into)
        if len(attempt.calls) < len(ring.job.positions):
            return
        calls = [attempt.calls[position] for position in range(len(attempt.calls))]
        attempt.calls = {}
        number, attempt.operations = attempt.operations, attempt.operations + 1
        if len({call.order.operation for call in calls}) > 1:
            return  # hosts differ: it never ends
        outcomes = self._fates(ring).operation(order.attempt, number, len(calls))
        plan = ReductionPlan(tuple(reversed(range(len(calls)))))
        parts = [np.frombuffer(call.source, np.uint8) for call in calls]
        operation = order.operation
        total = plan.reduce(parts, operation.dtype, operation.op).tobytes()
        for call, outcome in zip(calls, outcomes, strict=True):
            if outcome is not Outcome.NEVER:
                wait_ns = _SUM_NS * (1 + call.ring.position)
                self._tell(call.ring, wait_ns, partial(self._ended, call, outcome, total))
        lost = core.Lost(order.attempt, "a port went down")
        for position in self._fates(ring).lost_after(order.attempt, number, len(calls)):
            self._tell(calls[position].ring, _LOST_NS, partial(_said, lost))

    def _ended(self, call: _Call, outcome: Outcome, total: bytes) -> core.FromShell:
        index, attempt = call.order.operation.index, call.order.attempt
        if outcome in (Outcome.FAILED, Outcome.LOST):
            return core.TryFailed(index, attempt, outcome.value, outcome is Outcome.LOST)
        call.into[:] = total
        if outcome is Outcome.WRONG:
            call.into[0] ^= 1
        return core.Tried(index, attempt, digest_of(call.into))
