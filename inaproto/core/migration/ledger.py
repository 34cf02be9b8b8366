"""The INA slots of one switch (or port) as leases: who has them, and until when (MINA section IV-A).

MINA's switches take a few INA jobs at once; an aggregation tree needs a slot at each of its switches. The
paper does not say what becomes of the slots of a job or a controller that dies. Ours: a slot is lent, to one
``Lease(job, tree, epoch)``, and comes back by ``RELEASE``, or when no host of the job has renewed it for
``lease_ns``. Any host of the job may renew: hosts stop when their job has ended. A switch that restarts is
empty, and says so by a new ``boot``.

Requests of the coordinator may be lost, repeated or reordered. They carry its ``term`` and, per switch, a
``number``; it has one request at a time under way to a switch. So the pair of the last request is all that
there is to remember: a greater pair is obeyed, the same is answered again and not obeyed twice, a smaller
number is late and ignored, a smaller term is told so. A request that names another ``boot`` was meant for
what this switch had before it restarted: it is not obeyed. Every answer carries all that is held, so the
coordinator never concludes from what it did, only from what is.

How many slots there are may be said anew: leases beyond that stay until they come back, and none is given.

Invariants: no lease is made beyond ``capacity``; at most one for each job; nothing but ``ACQUIRE`` makes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant, S
from inaproto.wire.messages.slots import (
    Lease,
    Order,
    Outcome,
    SlotAnswer,
    SlotRequest,
    SlotsChanged,
)

# --- configuration, events, actions


@dataclass(frozen=True, slots=True)
class SlotLedgerConfig:
    switch: str
    boot: str
    """Never the same in two lives of a switch."""
    capacity: int = 1
    """INA jobs at once."""
    lease_ns: int = 10 * S

    def __post_init__(self) -> None:
        if not self.switch or not self.boot:
            raise LocalMisuse("a slot ledger has a switch and a boot id")
        if self.capacity < 1 or self.lease_ns < 1:
            raise LocalMisuse(
                f"capacity and lease_ns must be at least 1, not {self.capacity}, {self.lease_ns}"
            )


@dataclass(frozen=True, slots=True)
class FromController:
    request: SlotRequest


@dataclass(frozen=True, slots=True)
class ControllerArrived:
    """A coordinator has a control session (again)."""


@dataclass(frozen=True, slots=True)
class Renew:
    """A host uses a tree. Never makes a lease."""

    host: str
    lease: Lease


@dataclass(frozen=True, slots=True)
class CapacityTold:
    """So many leases may be given at once, from now on; 0: none."""

    capacity: int


@dataclass(frozen=True, slots=True)
class LedgerWoke:
    """The deadline has passed."""


LedgerEvent = FromController | ControllerArrived | Renew | CapacityTold | LedgerWoke


@dataclass(frozen=True, slots=True)
class ToController:
    message: SlotAnswer | SlotsChanged


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease is renewed for ``lease_ns``."""

    lease: Lease
    lease_ns: int


@dataclass(frozen=True, slots=True)
class NotHeld:
    """The lease that a host would renew is not here (any more)."""

    lease: Lease
    boot: str


@dataclass(frozen=True, slots=True)
class ToHost:
    host: str
    message: Renewed | NotHeld


@dataclass(frozen=True, slots=True)
class SlotTaken:
    """The accelerator may get a ring of this lease."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class SlotFreed:
    """The accelerator must not have a ring of this lease, before this switch says or does anything else."""

    lease: Lease
    has_run_out: bool


LedgerAction = ToController | ToHost | SlotTaken | SlotFreed | Blame


@dataclass(frozen=True, slots=True)
class LedgerView:
    switch: str
    boot: str
    capacity: int
    held: tuple[tuple[Lease, Instant], ...]
    """Leases, with when each runs out."""
    term: int
    number: int
    """Number of the last request that was obeyed."""


class SlotLedger:
    """Pure core; see the module. Empty when constructed."""

    def __init__(self, config: SlotLedgerConfig) -> None:
        self.config = config
        self._capacity = config.capacity
        self._held: dict[Lease, Instant] = {}
        """Until when, in the order of their grants."""
        self._last: SlotRequest | None = None
        self._outcome = Outcome.TOLD
        """Outcome of the last request."""

    @property
    def deadline(self) -> Instant | None:
        return min(self._held.values(), default=None)

    def view(self) -> LedgerView:
        term, number = self._newest
        held = tuple(self._held.items())
        return LedgerView(self.config.switch, self.config.boot, self._capacity, held, term, number)

    def step(self, event: LedgerEvent, now: Instant) -> list[LedgerAction]:
        """What ran out until ``now`` is free before the event is looked at."""
        actions = self._run_out(now)
        match event:
            case FromController(request):
                actions += self._requested(request, now)
            case ControllerArrived():
                if not actions:  # else it is said already
                    actions.append(self._hint())
            case Renew(host, lease):
                actions.append(self._renewed(host, lease, now))
            case CapacityTold(capacity):
                self._capacity = capacity
            case LedgerWoke():
                pass
            case _:
                assert_never(event)
        return actions

    @property
    def _newest(self) -> tuple[int, int]:
        return (0, 0) if self._last is None else (self._last.term, self._last.number)

    def _hint(self) -> ToController:
        return ToController(SlotsChanged(self.config.switch, self.config.boot))

    def _run_out(self, now: Instant) -> list[LedgerAction]:
        gone = [lease for lease, until in self._held.items() if until <= now]
        for lease in gone:
            del self._held[lease]
        freed: list[LedgerAction] = [SlotFreed(lease, has_run_out=True) for lease in gone]
        return [*freed, self._hint()] if freed else []

    def _renewed(self, host: str, lease: Lease, now: Instant) -> ToHost:
        if lease not in self._held:
            return ToHost(host, NotHeld(lease, self.config.boot))
        self._held[lease] = Instant(now + self.config.lease_ns)
        return ToHost(host, Renewed(lease, self.config.lease_ns))

    def _requested(self, request: SlotRequest, now: Instant) -> list[LedgerAction]:
        fault = fault_of(request)
        if fault:
            return [Blame("coordinator", "bad slot request", f"{fault}: {request}")]
        newest_term, newest_number = self._newest
        if request.term < newest_term:
            return [self._answer(request, Outcome.OLD_TERM)]
        if request.term == newest_term and request.number < newest_number:
            return []
        if (request.term, request.number) == self._newest:
            if request != self._last:
                evidence = f"{request} has the number of {self._last}"
                return [Blame("coordinator", "slot request number used twice", evidence)]
            return [self._answer(request, self._outcome)]
        actions, self._outcome = self._obey(request, now)
        self._last = request
        return [*actions, self._answer(request, self._outcome)]

    def _obey(self, request: SlotRequest, now: Instant) -> tuple[list[LedgerAction], Outcome]:
        lease = request.lease
        if request.order is Order.ASK or lease is None:
            return [], Outcome.TOLD
        if request.boot != self.config.boot:
            return [], Outcome.OLD_BOOT
        if request.order is Order.RELEASE:
            if lease not in self._held:
                return [], Outcome.RELEASED
            del self._held[lease]
            return [SlotFreed(lease, has_run_out=False)], Outcome.RELEASED
        if lease in self._held:
            return [], Outcome.GRANTED
        if len(self._held) >= self._capacity or any(held.job == lease.job for held in self._held):
            return [], Outcome.REFUSED
        self._held[lease] = Instant(now + self.config.lease_ns)
        return [SlotTaken(lease)], Outcome.GRANTED

    def _answer(self, request: SlotRequest, outcome: Outcome) -> ToController:
        return ToController(
            SlotAnswer(
                switch=self.config.switch,
                boot=self.config.boot,
                term=request.term,
                number=request.number,
                outcome=outcome,
                held=tuple(sorted(self._held)),
                newest_term=max(request.term, self._newest[0]),
            )
        )


def fault_of(request: SlotRequest) -> str:
    """What no coordinator may ask; empty: nothing."""
    if request.term < 1 or request.number < 1:
        return "terms and numbers begin at 1"
    if (request.lease is None) != (request.order is Order.ASK):
        return "a lease is for ACQUIRE and RELEASE, and for them alone"
    return ""
