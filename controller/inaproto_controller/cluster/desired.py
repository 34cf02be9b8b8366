"""What the controller has promised: jobs, and what is granted to them. All of it is in the store.

A *grant* is a right that a job has at one agent, a host daemon or a switch: the seats of its ranks on that
host, or its tree's part in that switch; at UFM, a reservation of SHARP resources; at a host, a place in its
collective library. It takes *slots* there: a host has one, a switch or a port as many as the cluster file
says; places take none. A slot has one grant at most. Grants are never reused: their numbers grow.

A grant ends in two steps. It is *released*: its agent is not to hold it any more, but its slots stay taken.
It is *freed* when the agent has said that it has heard so and does not hold it. No clock is in this: an agent
that is cut off keeps what it has, and nobody else gets it, however long that is. A switch that sums by SHARP
has no agent of ours: what a job has there is freed when none of its hosts has a place any more.

``Desired`` is a value: :func:`applied` makes the next one. Every commit has a revision, one more than the one
before, for ever, whoever leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final, NamedTuple, assert_never

from inaproto.errors import InvariantBroken
from inaproto.wire.messages.trees import FabricTree
from inaproto_controller.cluster.number_groups import Groups


class JobState(StrEnum):
    SUBMITTED = "submitted"
    """Promised, and not yet looked at."""
    QUEUED = "queued"
    PLACED = "placed"
    """It has hosts; not all of them have all its ranks."""
    RUNNING = "running"
    """All its ranks have joined. Of an elastic one some may be lost by now."""
    ENDED = "ended"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_live(self) -> bool:
        return self not in _OVER


_OVER: Final = frozenset({JobState.ENDED, JobState.CANCELLED, JobState.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What is asked for."""

    name: str
    hosts: int
    ranks_per_host: int = 1
    model: str | None = None
    """Model, of the measured ones; None: nothing is known of its steps."""
    on: tuple[str, ...] = ()
    """Its hosts in the order of ranks, if another scheduler has chosen them; empty: the planner chooses."""
    elastic: bool = False
    """Its ranks go on without those that are lost (docs/protocol.md 13.7)."""


class TreeNames(NamedTuple):
    """An aggregation tree by names, which outlive a changed cluster file; sorted."""

    root: str
    switches: tuple[str, ...]
    links: tuple[str, ...]


class Route(NamedTuple):
    """The tree that was planned together with a job's hosts, or that its ring has been given since."""

    tree: FabricTree | None
    """None: there was none."""
    rate: Fraction = Fraction(0)
    """Gbit/s that each host sends, by the plan."""
    why: str = ""
    """Why there is none, or not one of the planner's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    number: int
    """Order of submission: unique, ascending."""
    spec: JobSpec
    token_hash: str = field(default="", repr=False)
    submission_hash: str = field(default="", repr=False)
    """Hash of what its submitter says when it submits again."""
    nonce: int = field(default=0, repr=False)
    expires_s: int = 0
    """What its token grants. UNIX time, seconds."""
    state: JobState = JobState.SUBMITTED
    begun: int = 0
    """Revision in which it was seen to run; 0: in none."""
    why: str = ""
    """Why it waits, or how it has ended."""
    hosts: tuple[str, ...] = ()
    """In the order of ranks; of a job that is over, those that it had."""
    tree: TreeNames | None = None
    group: int | None = None
    """Sharing group: jobs of one take turns. Of a job with a tree of its own its number; None without one."""
    route: Route | None = None
    """None: its hosts were chosen without a tree in mind."""
    root: str = ""
    """Root that a person wishes for its tree, in switches that sum by SHARP; empty: any."""
    submitted_at: float = 0.0
    """Seconds since 1970, for people."""
    revision: int = 0
    """Revision of its last change."""


class Slot(NamedTuple):
    """A slot of an agent."""

    agent: str
    port: str
    """The link that it is for, where those have slots of their own; empty: the agent itself."""
    number: int
    """From 0."""


class GrantKind(StrEnum):
    SEATS = "seats"
    TREE = "tree"
    RESERVATION = "reservation"
    """Of SHARP resources, held by UFM (:mod:`inaproto_controller.cluster.reserved`)."""
    PLACE = "place"
    """In the collective library of a host (docs/protocol.md 9.8), as long as the job has a tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    number: int
    job: int
    kind: GrantKind
    agent: str
    """Who holds it."""
    slots: tuple[Slot, ...]
    released: int | None = None
    """Revision from which on it is not to be held."""


class Promised:
    """Jobs by name, and grants by job, agent and kind: a commit that concerns one job of a thousand costs
    what that job has. Made once from all of it, and carried from one commit to the next."""

    def __init__(self, jobs: Iterable[Job] = (), grants: Iterable[Grant] = ()) -> None:
        self.live: dict[int, None] = {}
        """Numbers of jobs that are not over, ascending."""
        self.by_name = Groups[str]()
        self.of_job = Groups[int]()
        """Grants."""
        self.at: Groups[str] = Groups()
        """Grants by agent."""
        self.of_kind: Groups[GrantKind] = Groups()
        self.taken: dict[Slot, Grant] = {}
        self.released: dict[int, None] = {}
        """Grants that are to be freed."""
        for job in sorted(jobs, key=lambda one: one.number):
            self.set(None, job)
        for grant in grants:
            self.give(grant)
            if grant.released is not None:
                self.release(grant.number)

    def copy(self) -> Promised:
        new = Promised.__new__(Promised)
        new.live, new.taken, new.released = dict(self.live), dict(self.taken), dict(self.released)
        new.by_name, new.of_job = self.by_name.copy(), self.of_job.copy()
        new.at, new.of_kind = self.at.copy(), self.of_kind.copy()
        return new

    def set(self, before: Job | None, job: Job) -> None:
        if before is None:
            self.by_name.add(job.spec.name, job.number)
        if job.state.is_live:
            self.live[job.number] = None
        else:
            self.live.pop(job.number, None)

    def forget(self, job: Job) -> None:
        self.by_name.remove(job.spec.name, job.number)
        self.live.pop(job.number, None)

    def give(self, grant: Grant) -> None:
        self.of_job.add(grant.job, grant.number)
        self.at.add(grant.agent, grant.number)
        self.of_kind.add(grant.kind, grant.number)
        for slot in grant.slots:
            self.taken[slot] = grant

    def release(self, number: int) -> None:
        self.released[number] = None

    def free(self, grant: Grant) -> None:
        self.of_job.remove(grant.job, grant.number)
        self.at.remove(grant.agent, grant.number)
        self.of_kind.remove(grant.kind, grant.number)
        self.released.pop(grant.number, None)
        for slot in grant.slots:
            del self.taken[slot]


@dataclass(frozen=True, slots=True)
class Desired:
    """Numbers of jobs and grants to come are above all that ever were."""

    jobs: Mapping[int, Job] = field(default_factory=dict)
    grants: Mapping[int, Grant] = field(default_factory=dict)
    revision: int = 0
    next_job: int = 1
    next_grant: int = 1
    index: Promised = field(default_factory=Promised, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", Promised(self.jobs.values(), self.grants.values()))

    def live(self) -> list[Job]:
        """In order of submission."""
        return [self.jobs[number] for number in self.index.live]

    def taken(self) -> Mapping[Slot, Grant]:
        return self.index.taken

    def at(self, agent: str) -> list[Grant]:
        """Grants of an agent, also released ones."""
        return [self.grants[number] for number in self.index.at.of(agent)]

    def named(self, name: str) -> Job | None:
        """The live job of that name, else the last one that had it."""
        return max(self.all_named(name), key=lambda job: (job.state.is_live, job.number), default=None)

    def all_named(self, name: str) -> list[Job]:
        """Of those that have that name, or had it, all that are known."""
        return [self.jobs[number] for number in self.index.by_name.of(name)]


# --- changes, in the order in which they are made


@dataclass(frozen=True, slots=True)
class SetJob:
    """A new job, or a known one as it is from now on."""

    job: Job


@dataclass(frozen=True, slots=True)
class Give:
    grant: Grant


@dataclass(frozen=True, slots=True)
class Release:
    grant: int


@dataclass(frozen=True, slots=True)
class Free:
    """The grant is gone, and its slots are free."""

    grant: int


@dataclass(frozen=True, slots=True)
class Forget:
    """A job that is over, and has no grants."""

    job: int


Change = SetJob | Give | Release | Free | Forget


class Draft:
    """What ``desired`` becomes by one commit, change by change. Not to be used after an error.

    Raises ``InvariantBroken`` for what must never be promised.
    """

    def __init__(self, desired: Desired) -> None:
        self.jobs = dict(desired.jobs)
        self.grants = dict(desired.grants)
        self.index = desired.index.copy()
        self.revision: Final = desired.revision + 1
        self.next_job = desired.next_job
        self.next_grant = desired.next_grant
        self.changes: list[Change] = []

    def make(self, change: Change) -> None:
        self.changes.append(change)
        match change:
            case SetJob(job):
                self.index.set(self.jobs.get(job.number), job)
                self.jobs[job.number] = replace(job, revision=self.revision)
                self.next_job = max(self.next_job, job.number + 1)
            case Give(grant):
                self._give(grant)
            case Release(number):
                self.grants[number] = replace(self.grants[number], released=self.revision)
                self.index.release(number)
            case Free(number):
                self.index.free(self.grants.pop(number))
            case Forget(number):
                self.index.forget(self.jobs.pop(number))
            case _:
                assert_never(change)

    def _give(self, grant: Grant) -> None:
        if grant.number < self.next_grant:
            raise InvariantBroken(f"grant {grant.number} again; the next one is {self.next_grant}")
        for slot in grant.slots:
            if slot in self.taken:
                raise InvariantBroken(f"{slot} to {grant}, but it is of {self.taken[slot]}")
        if len(set(grant.slots)) < len(grant.slots):
            raise InvariantBroken(f"a slot twice to {grant}")
        self.index.give(grant)
        self.grants[grant.number], self.next_grant = grant, grant.number + 1

    @property
    def taken(self) -> Mapping[Slot, Grant]:
        return self.index.taken

    def of_job(self, job: int) -> list[Grant]:
        """Its grants, also released ones."""
        return [self.grants[number] for number in self.index.of_job.of(job)]

    def live(self) -> list[Job]:
        """In order of submission."""
        return [self.jobs[number] for number in self.index.live]

    def result(self) -> Desired:
        """The draft is not to be changed any more."""
        made = Desired.__new__(Desired)
        for name, value in (
            ("jobs", self.jobs),
            ("grants", self.grants),
            ("revision", self.revision),
            ("next_job", self.next_job),
            ("next_grant", self.next_grant),
            ("index", self.index),
        ):
            object.__setattr__(made, name, value)
        return made


def applied(desired: Desired, changes: Sequence[Change]) -> Desired:
    """After one commit of these. Raises ``InvariantBroken``."""
    draft = Draft(desired)
    for change in changes:
        draft.make(change)
    return draft.result()
