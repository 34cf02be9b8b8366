"""Configuration, records, events, actions and views of :mod:`inaproto.core.migration.coordinator`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from inaproto.errors import Blame, LocalMisuse
from inaproto.units import MS, S
from inaproto.wire.messages.slots import Lease, SlotAnswer, SlotRequest, SlotsChanged


@dataclass(frozen=True, slots=True)
class Tree:
    """An aggregation tree, as far as slots go."""

    tree_id: int
    switches: tuple[str, ...]
    """Names of the switches at which it needs a slot, ascending: the order in which they are acquired."""

    def __post_init__(self) -> None:
        if not self.switches or list(self.switches) != sorted(set(self.switches)):
            raise LocalMisuse(f"tree {self.tree_id}: its switches must be ascending: {self.switches}")


_DOUBLINGS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class MigrationConfig:
    switches: tuple[str, ...]
    """All that have slots, by name."""
    slots: tuple[int, ...] = ()
    """Slots of each of them; empty: not known. A job waits for no other where one is free."""
    jobs_max: int = 1024
    """Jobs that have a tree or want one."""
    resend_ns: int = 200 * MS
    """After which a request that is not answered is sent again; doubles with each one, to 16 times as long.
    Who is slow to answer because all is overloaded gets little more to do by it."""
    tries_max: int = 5
    """Requests without an answer until a switch counts as lost."""
    audit_ns: int = 5 * S
    """After which a switch that is quiet is asked what it holds."""
    backoff_ns: int = 10 * MS
    """After a refusal; doubles with each one."""
    backoff_max_ns: int = 1 * S
    jitter_ns: tuple[int, ...] = (0,)
    """Added to one back-off after another, in turn. The shell draws them."""
    measures_max: int = 256
    """Migrations that are remembered for the view."""

    def __post_init__(self) -> None:
        if not self.switches or len(set(self.switches)) != len(self.switches):
            raise LocalMisuse(f"switches must be named, each once: {self.switches}")
        if self.slots and (len(self.slots) != len(self.switches) or min(self.slots) < 0):
            raise LocalMisuse(f"slots: of each of {len(self.switches)} switches, not {self.slots}")
        for name in ("jobs_max", "resend_ns", "tries_max", "audit_ns", "backoff_ns", "measures_max"):
            if getattr(self, name) < 1:
                raise LocalMisuse(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.backoff_max_ns < self.backoff_ns or not self.jitter_ns or min(self.jitter_ns) < 0:
            raise LocalMisuse("back-off: the longest must be no shorter than the first, jitter not negative")

    def patience_ns(self, tries: int) -> int:
        """How long the last of so many requests is given."""
        return self.resend_ns << min(tries - 1, _DOUBLINGS_MAX)


# --- records


@dataclass(frozen=True, slots=True)
class JobRecord:
    job: str
    tree: Tree | None
    """The last that it may have got slots for."""
    epoch: int
    """Epoch of ``tree``; 0: none."""
    target: Tree | None
    """What the newest plan gives it."""


@dataclass(frozen=True, slots=True)
class MigrationRecord:
    """All that has to outlive a coordinator; each replaces the one before."""

    term: int
    plan: int
    """Version of the newest plan; 0: none."""
    epoch: int
    """The last that was used, by any job."""
    jobs: tuple[JobRecord, ...] = ()


# --- events


@dataclass(frozen=True, slots=True)
class PlanWanted:
    """The planner's wish; the greatest version counts, repeated ones change nothing.

    Jobs that are not in ``targets`` keep what an earlier plan gave them. Where a job is now is for the
    coordinator to know, so a plan says only where it is to be: None gives its tree up.
    """

    version: int
    targets: tuple[tuple[str, Tree | None], ...]


@dataclass(frozen=True, slots=True)
class JobDrained:
    """No host of the job is in an INA operation of this epoch, and none will begin one."""

    job: str
    epoch: int


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over, failed, or cancelled because a host of it died: nobody uses its tree."""

    job: str


@dataclass(frozen=True, slots=True)
class FromSwitch:
    message: SlotAnswer | SlotsChanged


@dataclass(frozen=True, slots=True)
class SwitchLost:
    """The control session of a switch broke. What it holds is not known until it answers again."""

    switch: str


@dataclass(frozen=True, slots=True)
class Persisted:
    token: int


@dataclass(frozen=True, slots=True)
class Woke:
    """The deadline has passed; also the first event."""


MigrationEvent = PlanWanted | JobDrained | JobEnded | FromSwitch | SwitchLost | Persisted | Woke


# --- actions


@dataclass(frozen=True, slots=True)
class Persist:
    record: MigrationRecord
    token: int


@dataclass(frozen=True, slots=True)
class ToSwitch:
    switch: str
    request: SlotRequest


@dataclass(frozen=True, slots=True)
class DrainJob:
    """Let the job's operations take the fallback, from the next on; answered by ``JobDrained``."""

    job: str
    epoch: int


@dataclass(frozen=True, slots=True)
class TreeStands:
    """The job's tree has its slots: operations may use INA, under this epoch. May be said again."""

    job: str
    tree: Tree
    epoch: int


@dataclass(frozen=True, slots=True)
class PlanStands:
    """Every job has what the plan gives it."""

    version: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """A newer coordinator has spoken: this one does nothing any more."""

    newest_term: int


MigrationAction = Persist | ToSwitch | DrainJob | TreeStands | PlanStands | Deposed | Blame


# --- views


class Phase(Enum):
    ADOPTING = "adopting"
    """After a restart, until its switches have said what they hold."""
    STABLE = "stable"
    DRAINING = "draining"
    RELEASING = "releasing"
    RELEASED = "released"
    """It holds nothing, and waits for the other jobs to release."""
    ACQUIRING = "acquiring"
    GIVING_BACK = "giving back"
    BACKING_OFF = "backing off"


@dataclass(frozen=True, slots=True)
class Migration:
    """How long a job took to get a tree."""

    job: str
    tree: int
    epoch: int
    drain_ns: int
    """From the plan (or the loss of a slot) until no INA operation was under way."""
    release_ns: int
    """From then until no switch held the old tree."""
    barrier_ns: int
    """From then until all others had released."""
    acquire_ns: int
    """From then until all switches of the new tree had granted."""
    refusals: int

    @property
    def downtime_ns(self) -> int:
        """Without INA."""
        return self.release_ns + self.barrier_ns + self.acquire_ns

    @property
    def total_ns(self) -> int:
        return self.drain_ns + self.downtime_ns


@dataclass(frozen=True, slots=True)
class JobView:
    job: str
    phase: Phase
    lease: Lease | None
    target: Tree | None
    refusals: int

    @property
    def is_held(self) -> bool:
        """It has the slots of its target, by all that is known, and is not giving them up."""
        if self.lease is None or self.target is None or self.lease.tree != self.target.tree_id:
            return False
        return self.phase in (Phase.ADOPTING, Phase.STABLE)


@dataclass(frozen=True, slots=True)
class SwitchView:
    switch: str
    boot: str
    """Empty: it has not answered yet, or is lost."""
    held: tuple[Lease, ...]
    is_lost: bool


@dataclass(frozen=True, slots=True)
class MigrationView:
    term: int
    plan: int
    is_settled: bool
    """Every job has what the newest plan gives it."""
    jobs: tuple[JobView, ...]
    switches: tuple[SwitchView, ...]
    migrations: tuple[Migration, ...]
    """The last ones, oldest first."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Monotonic: ``refusals``, ``migrations``, ``trees_lost``, ``switches_lost``, ``strangers_freed``."""
