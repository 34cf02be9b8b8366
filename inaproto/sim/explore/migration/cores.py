"""The cores of tree migration as finite machines, for the exhaustive search.

What has no influence on later steps is overwritten or left out (see :mod:`inaproto.sim.explore.machine`):

- times. The clock stands still; a timer is an event of its own, and each timer may be the next to expire;
- counters, measures, the number of refusals (it stretches the back-off) and tokens of records (one is under
  way at a time).

Numbers of requests are only compared: ``renumbered`` closes their gaps, or no retry would ever come back to
a state that was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from inaproto.core.migration.coordinator import TreeMigration
from inaproto.core.migration.events import (
    MigrationAction,
    MigrationConfig,
    MigrationEvent,
    MigrationRecord,
    Phase,
    Woke,
)
from inaproto.core.migration.jobs import Job, Switch
from inaproto.core.migration.ledger import LedgerAction, LedgerEvent, LedgerWoke, SlotLedger, SlotLedgerConfig
from inaproto.sim.explore.machine import Local, Machine
from inaproto.units import Instant

NOW: Final = Instant(1)
NEVER: Final = Instant(1 << 60)
"""When timers are, unless it is their turn."""

Timer = str
"""Name of the switch, or of the job, whose timer expires."""
Numbers = Mapping[int, int]
"""Old to new."""

Moved = tuple[Local, tuple[MigrationAction, ...]]
Served = tuple[Local, tuple[LedgerAction, ...]]

_LEFT_OUT: Final = frozenset(
    {"config", "_config", "_table", "_counters", "_measured", "_backoffs", "_slots", "_free"}
)


class Coordinators(Machine[TreeMigration]):
    """All local states of the coordinator, whichever life of it."""

    def __init__(
        self,
        config: MigrationConfig,
        make: Callable[[MigrationConfig, MigrationRecord | None], TreeMigration],
    ) -> None:
        super().__init__(_LEFT_OUT, _tidy_coordinator)
        self._config = config
        self._make = make

    def born(self, record: MigrationRecord | None) -> Moved:
        core = self._make(self._config, record)
        actions = tuple(core.step(Woke(), NOW))
        return self.enter(core), actions

    def step(self, local: Local, event: MigrationEvent) -> Moved:
        return self.known(local, event, lambda core: tuple(core.step(event, NOW)))

    def expire(self, local: Local, timer: Timer) -> Moved:
        def due(core: TreeMigration) -> tuple[MigrationAction, ...]:
            if timer in core._switches:
                core._switches[timer] = replace(core._switches[timer], at=Instant(0))
            else:
                core._jobs[timer] = replace(core._jobs[timer], retry_at=Instant(0))
            return tuple(core.step(Woke(), NOW))

        return self.known(local, ("expire", timer), due)

    def renumbered(self, local: Local, switch: str, numbers: Numbers) -> Local:
        def change(core: TreeMigration) -> None:
            its = core._switches[switch]
            asked = its.asked
            if asked is not None:
                asked = replace(asked, number=numbers[asked.number])
            core._switches[switch] = replace(its, number=numbers[its.number], asked=asked)

        return self.known(local, (switch, tuple(numbers.items())), change)[0]


class Ledgers(Machine[SlotLedger]):
    """All local states of the slots of one switch, in all its lives."""

    def __init__(
        self, switch: str, capacity: int, make: Callable[[SlotLedgerConfig], SlotLedger] = SlotLedger
    ) -> None:
        super().__init__(frozenset({"_counters", "counters"}), _tidy_ledger)
        self._fresh: Callable[[int], SlotLedger] = lambda boot: make(
            SlotLedgerConfig(switch, str(boot), capacity)
        )
        self.enter(self._fresh(1))

    def restarted(self, local: Local) -> Local:
        return self.enter(self._fresh(int(self.cores[local].config.boot) + 1))

    def step(self, local: Local, event: LedgerEvent) -> Served:
        return self.known(local, event, lambda core: tuple(core.step(event, NOW)))

    def run_out(self, local: Local, lease: object) -> Served:
        def due(core: SlotLedger) -> tuple[LedgerAction, ...]:
            core._held = {its: Instant(0) if its == lease else at for its, at in core._held.items()}
            return tuple(core.step(LedgerWoke(), NOW))

        return self.known(local, ("run out", lease), due)

    def renumbered(self, local: Local, numbers: Numbers) -> Local:
        def change(core: SlotLedger) -> None:
            assert core._last is not None, "a ledger that has heard nothing has no number"
            core._last = replace(core._last, number=numbers[core._last.number])

        return self.known(local, tuple(numbers.items()), change)[0]


def _tidy_coordinator(core: TreeMigration) -> None:
    core._jobs = {name: _timeless(job) for name, job in core._jobs.items()}
    core._switches = {name: _quiet(switch) for name, switch in core._switches.items()}
    core._backoffs = 0
    core._token, core._durable = (2, 1) if core._is_writing else (1, 1)


def _tidy_ledger(core: SlotLedger) -> None:
    core._held = dict.fromkeys(core._held, NEVER)


def _timeless(job: Job) -> Job:
    zero = Instant(0)
    retry_at = NEVER if job.phase is Phase.BACKING_OFF else zero
    return replace(
        job, refusals=0, retry_at=retry_at, began=zero, drained=zero, released=zero, acquiring=zero
    )


def _quiet(switch: Switch) -> Switch:
    return switch if switch.at is None else replace(switch, at=NEVER)
