"""The cores of tree migration as finite machines, for the exhaustive search.

Every step of the real coordinator and the real slot ledgers is computed once, on a copy, and then remembered:
``(local state, event) -> (local state, actions)``. What has no influence on later steps is overwritten in the
state from which the next step starts, so merging states is exact for the machine that is explored:

- times. The clock stands still; a timer is an event of its own, and each timer may be the next to expire;
- counters, measures, the number of refusals (it stretches the back-off) and tokens of records (one is under
  way at a time).

Numbers of requests are only compared: ``renumbered`` closes their gaps, or no retry would ever come back to
a state that was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

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
from inaproto.units import Instant

NOW: Final = Instant(1)
NEVER: Final = Instant(1 << 60)
"""When timers are, unless it is their turn."""

Local = int
"""Number of a local state of a core."""
Timer = str
"""Name of the switch, or of the job, whose timer expires."""
Numbers = Mapping[int, int]
"""Old to new."""

MakeCoordinator = Callable[[MigrationConfig, MigrationRecord | None], TreeMigration]

_LEFT_OUT: Final = frozenset({"config", "_table", "_counters", "_measured", "_backoffs", "_slots", "_free"})


class Coordinators:
    """All local states of the coordinator, whichever life of it."""

    def __init__(
        self,
        config: MigrationConfig,
        make: Callable[[MigrationConfig, MigrationRecord | None], TreeMigration],
    ) -> None:
        self._config = config
        self._make = make
        self.live: list[TreeMigration] = []
        self._number: dict[tuple[Any, ...], Local] = {}
        self._steps: dict[tuple[Local, object], tuple[Local, tuple[MigrationAction, ...]]] = {}

    def born(self, record: MigrationRecord | None) -> tuple[Local, tuple[MigrationAction, ...]]:
        core = self._make(self._config, record)
        actions = tuple(core.step(Woke(), NOW))
        return self._enter(core), actions

    def step(self, local: Local, event: MigrationEvent) -> tuple[Local, tuple[MigrationAction, ...]]:
        return self._known(local, event, lambda core: core.step(event, NOW))

    def expire(self, local: Local, timer: Timer) -> tuple[Local, tuple[MigrationAction, ...]]:
        def due(core: TreeMigration) -> list[MigrationAction]:
            if timer in core._switches:
                core._switches[timer] = replace(core._switches[timer], at=Instant(0))
            else:
                core._jobs[timer] = replace(core._jobs[timer], retry_at=Instant(0))
            return core.step(Woke(), NOW)

        return self._known(local, ("expire", timer), due)

    def renumbered(self, local: Local, switch: str, numbers: Numbers) -> Local:
        def change(core: TreeMigration) -> list[MigrationAction]:
            its = core._switches[switch]
            asked = its.asked
            if asked is not None:
                asked = replace(asked, number=numbers[asked.number])
            core._switches[switch] = replace(its, number=numbers[its.number], asked=asked)
            return []

        return self._known(local, (switch, tuple(numbers.items())), change)[0]

    def _known(
        self, local: Local, key: object, act: Callable[[TreeMigration], list[MigrationAction]]
    ) -> tuple[Local, tuple[MigrationAction, ...]]:
        known = self._steps.get((local, key))
        if known is None:
            core = _fork(self.live[local])
            actions = tuple(act(core))
            known = self._steps[local, key] = self._enter(core), actions
        return known

    def _enter(self, core: TreeMigration) -> Local:
        core._jobs = {name: _timeless(job) for name, job in core._jobs.items()}
        core._switches = {name: _quiet(switch) for name, switch in core._switches.items()}
        core._backoffs = 0
        core._token, core._durable = (2, 1) if core._is_writing else (1, 1)
        core._measured.clear()
        values = tuple(_frozen(value) for name, value in vars(core).items() if name not in _LEFT_OUT)
        number = self._number.get(values)
        if number is None:
            number = self._number[values] = len(self.live)
            self.live.append(core)
        return number


class Ledgers:
    """All local states of the slots of one switch, in all its lives."""

    def __init__(
        self, switch: str, capacity: int, make: Callable[[SlotLedgerConfig], SlotLedger] = SlotLedger
    ) -> None:
        self._switch = switch
        self._capacity = capacity
        self._make = make
        self.live: list[SlotLedger] = []
        self._number: dict[tuple[Any, ...], Local] = {}
        self._steps: dict[tuple[Local, object], tuple[Local, tuple[LedgerAction, ...]]] = {}
        self._enter(self._fresh(1))

    def restarted(self, local: Local) -> Local:
        return self._enter(self._fresh(int(self.live[local].config.boot) + 1))

    def step(self, local: Local, event: LedgerEvent) -> tuple[Local, tuple[LedgerAction, ...]]:
        return self._known(local, event, lambda core: core.step(event, NOW))

    def run_out(self, local: Local, lease: object) -> tuple[Local, tuple[LedgerAction, ...]]:
        def due(core: SlotLedger) -> list[LedgerAction]:
            core._held = {its: Instant(0) if its == lease else at for its, at in core._held.items()}
            return core.step(LedgerWoke(), NOW)

        return self._known(local, ("run out", lease), due)

    def renumbered(self, local: Local, numbers: Numbers) -> Local:
        def change(core: SlotLedger) -> list[LedgerAction]:
            assert core._last is not None, "a ledger that has heard nothing has no number"
            core._last = replace(core._last, number=numbers[core._last.number])
            return []

        return self._known(local, tuple(numbers.items()), change)[0]

    def _fresh(self, boot: int) -> SlotLedger:
        return self._make(SlotLedgerConfig(self._switch, str(boot), self._capacity))

    def _known(
        self, local: Local, key: object, act: Callable[[SlotLedger], list[LedgerAction]]
    ) -> tuple[Local, tuple[LedgerAction, ...]]:
        known = self._steps.get((local, key))
        if known is None:
            core = _fork(self.live[local])
            actions = tuple(act(core))
            known = self._steps[local, key] = self._enter(core), actions
        return known

    def _enter(self, core: SlotLedger) -> Local:
        core._held = dict.fromkeys(core._held, NEVER)
        values = (core.config.boot, tuple(core._held), core._last, core._outcome)
        number = self._number.get(values)
        if number is None:
            number = self._number[values] = len(self.live)
            self.live.append(core)
        return number


def _timeless(job: Job) -> Job:
    zero = Instant(0)
    retry_at = NEVER if job.phase is Phase.BACKING_OFF else zero
    return replace(
        job, refusals=0, retry_at=retry_at, began=zero, drained=zero, released=zero, acquiring=zero
    )


def _quiet(switch: Switch) -> Switch:
    return switch if switch.at is None else replace(switch, at=NEVER)


def _fork(core: Any) -> Any:
    """A copy that can step without touching the original: tables are copied, all else is immutable."""
    twin = object.__new__(type(core))
    for name, value in vars(core).items():
        is_copied = isinstance(value, dict) or name == "_measured"
        object.__setattr__(twin, name, value.copy() if is_copied else value)
    return twin


def _frozen(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, dict) else value
