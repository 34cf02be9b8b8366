"""Configuration, events, actions and view of :mod:`inaproto.core.migration.service`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from inaproto.core.migration.events import MigrationConfig, MigrationView, ToSwitch
from inaproto.core.migration.moves import Move, MovePhase
from inaproto.core.migration.numbers import StoredTrees
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import MS, S
from inaproto.wire.messages.slots import SlotAnswer, SlotsChanged
from inaproto.wire.messages.trees import FabricTree, TreeState, TreeWished

TERMS_MAX: Final = 1 << 32
"""No switch has heard of a term so far above ours: ours would begin after it, and run out of numbers."""
REVISIONS_MAX: Final = 1 << 32
"""No root has taken one so far above ours."""
REPORTED_MAX: Final = 1 << 14
"""Jobs of a report, but for its last page."""


class PlannedTree(NamedTuple):
    """A tree, as a planner gives it to a job."""

    tree: FabricTree
    switches: tuple[str, ...]
    """At which it needs a slot, ascending."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    term: int
    """Number of the leader, from 1."""
    migration: MigrationConfig | None
    """None: no switch lends slots, and no tree is ever moved."""
    root: str = ""
    """The switch whose word on trees counts; empty: the first one that says something."""
    begins_anew: bool = False
    """A job's rings begin a new generation for a tree that adds in another order."""
    look_ns: int = 500 * MS
    """Everything is looked at so often, if nothing happens."""
    resend_ns: int = 5 * S
    """After which wishes that the root has not taken are sent again."""
    bar_ns: int = 1 * S
    """For which a tree that was refused is left alone; doubles each time."""
    bar_max_ns: int = 120 * S
    absent_ns: int = 60 * S
    """A job that is not reported for so long is over, and where it was wanted is forgotten."""
    forget_ns: int = 5 * S
    """After which jobs that are over are looked for again."""

    def __post_init__(self) -> None:
        for name in ("look_ns", "resend_ns", "bar_ns", "absent_ns", "forget_ns"):
            if getattr(self, name) < 1:
                raise LocalMisuse(f"{name} must be at least 1, not {getattr(self, name)}")


# --- events


@dataclass(frozen=True, slots=True)
class SwitchSaid:
    agent: str
    """Agent whose session it is."""
    message: SlotAnswer | SlotsChanged


@dataclass(frozen=True, slots=True)
class AgentGone:
    """The session of a switch is over, of the root's as well."""

    agent: str


@dataclass(frozen=True, slots=True)
class Reported:
    """A page of where jobs are, as a root says; its last one makes it whole."""

    agent: str
    term: int
    """Term of the wishes that it has taken, with their revision."""
    revision: int
    states: tuple[TreeState, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class PlacesTold:
    """The operations at which jobs are, as their hosts have told; for those who measure moves."""

    places: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TreesPlanned:
    """Answers ``PlanTrees``, at once."""

    trees: Mapping[str, PlannedTree | None]
    unserved: tuple[str, ...] = ()
    """Jobs for which all switches are there, and none of them has a slot left."""


@dataclass(frozen=True, slots=True)
class RootWanted:
    """A person wants the job to be summed there; empty: wherever the plan has it."""

    job: str
    root: str


@dataclass(frozen=True, slots=True)
class Persisted:
    token: int


@dataclass(frozen=True, slots=True)
class RootsNotPersisted:
    """The store has failed under that ``PersistRoots``; whoever asked for it has been told."""

    token: int


@dataclass(frozen=True, slots=True)
class Woke:
    """The deadline has passed; also the first event."""


ServiceEvent = (
    SwitchSaid
    | AgentGone
    | Reported
    | PlacesTold
    | TreesPlanned
    | RootWanted
    | Persisted
    | RootsNotPersisted
    | Woke
)


# --- actions


@dataclass(frozen=True, slots=True)
class PersistTrees:
    stored: StoredTrees
    token: int


@dataclass(frozen=True, slots=True)
class PersistRoots:
    """Written in the order in which they come, whatever becomes of each."""

    roots: Mapping[str, str]
    token: int


@dataclass(frozen=True, slots=True)
class TellRoot:
    """All that is wished, in as many messages as it needs."""

    root: str
    term: int
    revision: int
    wishes: tuple[TreeWished, ...]


@dataclass(frozen=True, slots=True)
class HoldTurns:
    """These jobs are to have no turns from now on, all others may."""

    jobs: frozenset[str]


@dataclass(frozen=True, slots=True)
class PlanTrees:
    """Ask the planner which tree each job is to have; answered by ``TreesPlanned``."""

    states: Mapping[str, TreeState]
    had: Mapping[str, FabricTree]
    """The tree that each job has, or is getting."""
    held: frozenset[str]
    """Jobs that have the slots of that tree, by all that is known."""
    roots: Mapping[str, str]
    """Where the rings of jobs that have none stand."""
    wanted: Mapping[str, str]
    """Roots that people want."""
    away: frozenset[str]
    """Switches that cannot lend slots now."""
    barred: Mapping[str, frozenset[FabricTree]]
    """Trees that the fabric has refused to a job."""


@dataclass(frozen=True, slots=True)
class SlotsStand:
    """For the log: all switches of the job's tree lend it their slots."""

    job: str
    switches: tuple[str, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class BegunAnew:
    """For the log: switches have heard of a newer term of slots, and ours goes on after it."""

    newest_term: int


@dataclass(frozen=True, slots=True)
class Refused:
    """An agent has said what it cannot: its session ends, and it is told why."""

    agent: str
    why: str


ServiceAction = (
    PersistTrees
    | PersistRoots
    | ToSwitch
    | TellRoot
    | HoldTurns
    | PlanTrees
    | MovePhase
    | SlotsStand
    | BegunAnew
    | Refused
    | Blame
)


# --- view


@dataclass(frozen=True, slots=True)
class ServiceView:
    root: str
    """Root that has a session, and has reported."""
    revision: int
    """Revision of the newest wishes."""
    taken: tuple[int, int]
    """Term and revision of the wishes that the root took."""
    epoch: int
    """The last that is in the record."""
    states: Mapping[str, TreeState]
    """What the root has reported last, by job."""
    at: Mapping[str, str]
    """Roots where the rings of these jobs stand, or stood last."""
    wanted: Mapping[str, str]
    """Roots that people want."""
    wishes: tuple[TreeWished, ...]
    """Wishes by job."""
    migration: MigrationView | None
    under_way: tuple[Move, ...]
    done: tuple[Move, ...]
