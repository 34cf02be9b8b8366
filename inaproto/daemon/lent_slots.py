"""The slots of a switch that are lent to jobs (MINA section IV-A): the ledger behind its controller link.

A lease is a job's right to have its ring in this switch. How many there are at once the controller tells, for
it reads the cluster file and the switch does not; it tells so with each welcome. A lease is renewed while a
ring of its job is installed here: a ring stands as long as its hosts' sessions do, so hosts renew through the
control plane. What they no more need comes back, though no controller ever asks. A daemon that was stopped
for a while, or a machine that was suspended, has missed renewals, and no ring has gone meanwhile: it makes up
for them before it does anything else.

Invariant: nothing here touches a ring. A lease that is gone while a ring of its job is installed is counted;
who takes the ring away is the control plane.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, Final, assert_never

import trio

from inaproto.core.slot_ledger import (
    CapacityTold,
    ControllerArrived,
    LedgerEvent,
    LedgerWoke,
    Renew,
    SlotFreed,
    SlotLedger,
    SlotLedgerConfig,
    SlotTaken,
    ToController,
    ToHost,
)
from inaproto.daemon.slot_records import ledger_event, switch_message
from inaproto.errors import Blame
from inaproto.units import US, Instant, S
from inaproto.wire.control_messages import Message
from inaproto.wire.controller_messages import AgentWelcome
from inaproto.wire.slot_messages import SlotOrder

log = logging.getLogger("inaproto.switch")

LEASE_NS: Final = 30 * S
"""Longer than a ring takes to come back when its generation has ended (``recover_ms``, 10 s)."""


class LentSlots:
    """:class:`inaproto.daemon.controller_link.SwitchSide`. ``rings``: jobs whose rings are installed here."""

    hears: Final = SlotOrder

    def __init__(
        self,
        switch: str,
        boot: str,
        *,
        rings: Callable[[], Collection[str]],
        clock: Callable[[], Instant],
        lease_ns: int = LEASE_NS,
    ) -> None:
        self._switch, self._rings, self._clock = switch, rings, clock
        self._renew_ns = lease_ns // 4
        self._renew_at = Instant(clock() + self._renew_ns)
        self._ledger = SlotLedger(SlotLedgerConfig(switch, boot, lease_ns=lease_ns))
        self._send: Callable[[Message], None] | None = None
        self._changed = trio.Event()
        self._counts = {"taken": 0, "freed": 0, "run_out": 0, "freed_under_ring": 0}

    # --- the controller

    def connected(self, welcome: AgentWelcome, send: Callable[[Message], None]) -> None:
        self._send = send
        self._step(CapacityTold(welcome.slots))
        if welcome.slots:  # one that lends none may not know of slots at all
            self._step(ControllerArrived())

    def disconnected(self) -> None:
        self._send = None

    def heard(self, message: SlotOrder) -> None:
        self._step(ledger_event(message))

    # --- life

    async def run(self) -> None:
        """Renew, and take back what has run out, until cancelled."""
        while True:
            self._changed = trio.Event()
            deadline = self._ledger.deadline
            wake_at = self._renew_at if deadline is None else min(self._renew_at, deadline)
            with trio.move_on_at((wake_at + US) / S):
                await self._changed.wait()
            if self._clock() >= wake_at:
                self._step(LedgerWoke())

    def _renew(self, now: Instant) -> None:
        """All up to ``now`` that are due, one after the other."""
        jobs, at = self._rings(), now
        standing = {lease: until for lease, until in self._ledger.view().held if lease.job in jobs}
        if standing:
            at = min(now, Instant(min(standing.values()) - 1))
        while True:
            for lease in standing:
                self._step_at(Renew(self._switch, lease), at)
            if at == now:
                break
            at = min(now, Instant(at + self._renew_ns))
        self._renew_at = Instant(now + self._renew_ns)

    def _step(self, event: LedgerEvent) -> None:
        now = self._clock()
        if now >= self._renew_at:
            self._renew(now)
        self._step_at(event, now)

    def _step_at(self, event: LedgerEvent, now: Instant) -> None:
        for action in self._ledger.step(event, now):
            match action:
                case ToController(message):
                    if self._send is not None:
                        self._send(switch_message(message))
                case SlotTaken(lease):
                    self._counts["taken"] += 1
                    log.info("a slot is lent to %s", lease)
                case SlotFreed(lease, has_run_out):
                    self._freed(lease.job, has_run_out=has_run_out)
                    log.info("the slot of %s is back%s", lease, ": nobody renewed it" * has_run_out)
                case ToHost():
                    pass
                case Blame():
                    log.warning("%s", action)
                case _:
                    assert_never(action)
        self._changed.set()

    def _freed(self, job: str, *, has_run_out: bool) -> None:
        self._counts["freed"] += 1
        self._counts["run_out"] += has_run_out
        self._counts["freed_under_ring"] += job in self._rings()

    def status(self) -> dict[str, Any]:
        """For people and their programs; fields may be added."""
        view, now = self._ledger.view(), self._clock()
        return {
            "capacity": view.capacity,
            "term": view.term,
            "held": [
                {
                    "job": lease.job,
                    "tree": lease.tree,
                    "epoch": lease.epoch,
                    "left_s": round((until - now) / S, 3),
                }
                for lease, until in view.held
            ],
            "counters": dict(self._counts),
        }
