"""The slots of a switch that are lent to jobs: the driver of the ledger behind its controller link.

:class:`inaproto.core.migration.slot_lender.SlotLender` has the rules. How many slots there are at once the
controller tells, for it reads the cluster file and the switch does not; it tells so with each welcome. A
lease that is gone while a ring of its job is installed is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, assert_never

from inaproto.core.migration.ledger import (
    CapacityTold,
    ControllerArrived,
    FromController,
    LedgerEvent,
    LedgerWoke,
    SlotFreed,
    SlotLedgerConfig,
    SlotTaken,
    ToController,
    ToHost,
)
from inaproto.core.migration.slot_lender import RingsAre, SlotLender
from inaproto.daemon.shell import Alarm
from inaproto.errors import Blame
from inaproto.units import Instant, S
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.controller import AgentWelcome
from inaproto.wire.messages.slots import SlotRequest

log = logging.getLogger("inaproto.switch")

LEASE_NS: Final = 30 * S
"""Longer than a ring takes to come back when its generation has ended (``recover_ms``, 10 s)."""


class LentSlots:
    """:class:`inaproto.daemon.net.controller_link.AgentSide`. ``rings``: jobs whose rings are installed
    here."""

    hears: Final = SlotRequest

    def __init__(
        self,
        switch: str,
        boot: str,
        *,
        rings: Callable[[], Collection[str]],
        clock: Callable[[], Instant],
        lease_ns: int = LEASE_NS,
    ) -> None:
        self._rings, self._clock = rings, clock
        self._core = SlotLender(SlotLedgerConfig(switch, boot, lease_ns=lease_ns), clock())
        self._send: Callable[[Message], None] | None = None
        self._alarm = Alarm(lambda: self._core.deadline, partial(self._step, LedgerWoke()), self._clock)
        self._counts = {"taken": 0, "freed": 0, "run_out": 0, "freed_under_ring": 0}

    # --- the controller

    def connected(self, welcome: AgentWelcome, send: Callable[[Message], None]) -> None:
        self._send = send
        self._step(CapacityTold(welcome.slots))
        if welcome.slots:  # one that lends none may not know of slots at all
            self._step(ControllerArrived())

    def disconnected(self) -> None:
        self._send = None

    def heard(self, message: SlotRequest) -> None:
        self._step(FromController(message))

    # --- life

    async def run(self) -> None:
        """Renew, and take back what has run out, until cancelled."""
        await self._alarm.run()

    def _step(self, event: LedgerEvent) -> None:
        now = self._clock()
        self._core.step(RingsAre(frozenset(self._rings())), now)
        for action in self._core.step(event, now):
            match action:
                case ToController(message):
                    if self._send is not None:
                        self._send(message)
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
        self._alarm.look()

    def _freed(self, job: str, *, has_run_out: bool) -> None:
        self._counts["freed"] += 1
        self._counts["run_out"] += has_run_out
        self._counts["freed_under_ring"] += job in self._rings()

    def status(self) -> dict[str, Any]:
        """For people and their programs; fields may be added."""
        view, now = self._core.view(), self._clock()
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
