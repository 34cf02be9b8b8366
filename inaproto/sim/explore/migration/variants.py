"""Coordinators and slots that can be explored by name: the product, and those that leave one rule out.

The product must hold in every scenario. Each of the others shows what its rule is for; most of them end in
the deadlock that MINA section IV-A warns of, or in slots that nobody has and nobody gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from inaproto.core.migration.coordinator import TreeMigration
from inaproto.core.migration.events import MigrationConfig, MigrationRecord, Phase
from inaproto.core.migration.jobs import TABLE, Fact, Handler, Job, JobMoves
from inaproto.core.migration.ledger import LedgerAction, SlotLedger
from inaproto.errors import ConfigError
from inaproto.sim.explore.migration.config import FAULTS, SCENARIOS, MigrationWorldConfig
from inaproto.sim.explore.migration.world import MigrationWorld, Remembers
from inaproto.units import Instant
from inaproto.wire.messages.slots import Lease

PRODUCT: Final = "product"


def _with(
    table: Mapping[Phase, Mapping[Fact, Handler]], moves: Mapping[tuple[Phase, Fact], Handler]
) -> Mapping[Phase, Mapping[Fact, Handler]]:
    """The table with other moves."""
    return {
        phase: {fact: moves.get((phase, fact), handler) for fact, handler in row.items()}
        for phase, row in table.items()
    }


class AcquireFirst(TreeMigration):
    """A job acquires its new tree, and gives the old one up when it has it."""

    def __init__(self, config: MigrationConfig, record: MigrationRecord | None = None) -> None:
        super().__init__(config, record)
        moves = {(Phase.STABLE, Fact.MOVED): JobMoves._acquire}
        self._table = _with(TABLE, moves)

    def _keeps(self, lease: Lease) -> bool:
        job = self._jobs.get(lease.job)
        is_between = job is not None and job.phase in (
            Phase.ACQUIRING,
            Phase.GIVING_BACK,
            Phase.BACKING_OFF,
        )
        is_old = job is not None and lease.epoch < job.epoch
        return (is_between and is_old) or super()._keeps(lease)

    def _is_clear(self, job: Job) -> bool:
        known = [switch for switch in self._switches.values() if not switch.is_lost]
        return not any(job.lease in switch.held or switch.asked for switch in known)


class KeepsPartial(TreeMigration):
    """A job that is refused keeps what it has got, and asks for the rest again."""

    def __init__(self, config: MigrationConfig, record: MigrationRecord | None = None) -> None:
        super().__init__(config, record)
        self._table = _with(TABLE, {(Phase.ACQUIRING, Fact.REFUSED): _wait})

    def _keeps(self, lease: Lease) -> bool:
        job = self._jobs.get(lease.job)
        return (job is not None and job.phase is Phase.BACKING_OFF and lease == job.lease) or super()._keeps(
            lease
        )


def _wait(core: JobMoves, job: Job, now: Instant) -> Job:
    return replace(job, phase=Phase.BACKING_OFF, is_refused=False, retry_at=Instant(now + 1))


class KeepsPartialAnyOrder(KeepsPartial):
    """Keeps partial trees too, and acquires every other tree in descending order."""

    def _order(self, job: Job) -> tuple[str, ...]:
        order = super()._order(job)
        return order if job.epoch % 2 else order[::-1]


class NoBarrier(TreeMigration):
    """A job acquires when it has released, whatever the others do."""

    def _is_open(self, job: Job) -> bool:
        return True


class NeverRunsOut(SlotLedger):
    """Slots are not lent, but given."""

    @property
    def deadline(self) -> Instant | None:
        return None

    def _run_out(self, now: Instant) -> list[LedgerAction]:
        return []


def _nothing(record: MigrationRecord | None) -> None:
    return None


def _its_term(record: MigrationRecord | None) -> MigrationRecord | None:
    return None if record is None else MigrationRecord(record.term, plan=0, epoch=record.epoch)


@dataclass(frozen=True, slots=True)
class MigrationVariant:
    name: str
    text: str
    shows: str
    """What the search finds with the defaults below, in a few words."""
    coordinator: type[TreeMigration] = TreeMigration
    ledger: type[SlotLedger] = SlotLedger
    remembers: Remembers = lambda record: record
    scenario: str = "swap"
    faults: int = 0
    kinds: tuple[str, ...] = ()
    """Kinds of faults that there may be one of; none: all but ``no_return``."""


VARIANTS: Final[Mapping[str, MigrationVariant]] = {
    variant.name: variant
    for variant in (
        MigrationVariant(PRODUCT, "the coordinator and the slots as they are", "holds", faults=1),
        MigrationVariant(
            "acquire-first",
            "a job gives its old tree up when it has the new one",
            "two jobs that swap trees wait for each other for ever",
            AcquireFirst,
        ),
        MigrationVariant(
            "keep-partial",
            "a job that is refused keeps what it has got, trees are acquired in any order",
            "two jobs that want two switches wait for each other for ever",
            KeepsPartialAnyOrder,
            scenario="contend",
        ),
        MigrationVariant(
            "keep-partial-ascending",
            "a job that is refused keeps what it has got, trees are acquired in ascending order",
            "holds: the order alone prevents this deadlock",
            KeepsPartial,
            scenario="contend",
        ),
        MigrationVariant(
            "no-barrier",
            "a job acquires when it has released, whatever the others do",
            "holds: releasing first is what prevents the deadlock",
            NoBarrier,
        ),
        MigrationVariant(
            "no-lease",
            "slots never run out",
            "slots of a dead job are lent for ever when its coordinator never returns",
            ledger=NeverRunsOut,
            faults=2,
            kinds=("crashes", "deaths", "no_return"),
        ),
        MigrationVariant(
            "forget",
            "a coordinator that restarts has forgotten everything",
            "its requests have the numbers of others",
            remembers=_nothing,
            faults=1,
            kinds=("crashes",),
        ),
        MigrationVariant(
            "forget-jobs",
            "a coordinator that restarts has forgotten everything but its term",
            "it releases slots that jobs use",
            remembers=_its_term,
            faults=1,
            kinds=("crashes",),
        ),
    )
}


def migration_config(
    variant: str = PRODUCT,
    *,
    scenario: str | None = None,
    capacity: int = 1,
    faults: int | None = None,
    reduced: bool = True,
    **kinds: int | None,
) -> MigrationWorldConfig:
    """A configuration in which what is None has the variant's value."""
    chosen = VARIANTS.get(variant)
    if chosen is None:
        raise ConfigError(f"variant {variant!r} does not exist; there are {', '.join(VARIANTS)}")
    name = chosen.scenario if scenario is None else scenario
    if name not in SCENARIOS:
        raise ConfigError(f"scenario {name!r} does not exist; there are {', '.join(SCENARIOS)}")
    counts = {kind: int(kind in chosen.kinds or not chosen.kinds) for kind in FAULTS}
    if not chosen.kinds:
        counts["no_return"] = 0
    counts |= {kind: count for kind, count in kinds.items() if count is not None}
    return MigrationWorldConfig(
        scenario=SCENARIOS[name],
        capacity=capacity,
        faults=chosen.faults if faults is None else faults,
        reduced=reduced,
        **counts,
    )


def migration_world(variant: str, config: MigrationWorldConfig) -> MigrationWorld:
    chosen = VARIANTS[variant]
    return MigrationWorld(config, chosen.coordinator, chosen.ledger, chosen.remembers)
