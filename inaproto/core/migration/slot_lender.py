"""The slots of a switch and who renews them (MINA section IV-A): a ledger, and the rings that are installed.

A lease is a job's right to have its ring in this switch. It is renewed while a ring of its job is installed
here: a ring stands as long as its hosts' sessions do, so hosts renew through the control plane. What they no
more need comes back, though no controller ever asks. A daemon that was stopped for a while, or a machine that
was suspended, has missed renewals, and no ring has gone meanwhile: it makes up for them before it does
anything else.

Invariant: nothing here touches a ring; who takes one away is the control plane.
"""

from __future__ import annotations

from dataclasses import dataclass

from inaproto.core.migration.ledger import (
    LedgerAction,
    LedgerEvent,
    LedgerView,
    Renew,
    SlotLedger,
    SlotLedgerConfig,
)
from inaproto.units import Instant


@dataclass(frozen=True, slots=True)
class RingsAre:
    """Jobs whose rings are installed here."""

    jobs: frozenset[str]


LenderEvent = LedgerEvent | RingsAre


class SlotLender:
    """Pure core; see the module."""

    def __init__(self, config: SlotLedgerConfig, now: Instant) -> None:
        self.config = config
        self._ledger = SlotLedger(config)
        self._jobs: frozenset[str] = frozenset()
        self._renew_ns = config.lease_ns // 4
        self._renew_at = Instant(now + self._renew_ns)

    @property
    def deadline(self) -> Instant:
        deadline = self._ledger.deadline
        return self._renew_at if deadline is None else min(self._renew_at, deadline)

    def view(self) -> LedgerView:
        return self._ledger.view()

    def step(self, event: LenderEvent, now: Instant) -> list[LedgerAction]:
        if isinstance(event, RingsAre):
            self._jobs = event.jobs
            return []
        actions = self._renew(now) if now >= self._renew_at else []
        return [*actions, *self._ledger.step(event, now)]

    def _renew(self, now: Instant) -> list[LedgerAction]:
        """All renewals up to ``now`` that are due, one after the other."""
        actions: list[LedgerAction] = []
        standing = {lease: until for lease, until in self._ledger.view().held if lease.job in self._jobs}
        at = min(now, Instant(min(standing.values()) - 1)) if standing else now
        while True:
            for lease in standing:
                actions += self._ledger.step(Renew(self.config.switch, lease), at)
            if at == now:
                break
            at = min(now, Instant(at + self._renew_ns))
        self._renew_at = Instant(now + self._renew_ns)
        return actions
