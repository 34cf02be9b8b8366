"""A controller that gives hosts of a simulated world the seats of elastic jobs, and ends those that are over.

It has a controller's memory alone: which revision it wishes, what each host reported last, and in which one
the job was first seen to run. Wishes and reports come late, and sessions are lost for a while, some
for longer than a lease. What a host counts, and what follows from all that is seen, is the product's own
(:mod:`inaproto.core.grants`). A job that is started anew is another job there, with a token of its own. All
here is drawn from streams of its own. Ranks are numbered host by host, as a controller numbers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from inaproto.core.grants.newest import NewestWishes
from inaproto.core.grants.seats import HostSeats
from inaproto.core.grants.verdict import (
    AsItWas,
    HostSeen,
    Over,
    PlacedAgain,
    Runs,
    SeatSeen,
    Verdict,
    seat_seen,
    verdict,
)
from inaproto.core.rendezvous.tokens import hash_of
from inaproto.faults.streams import Draws
from inaproto.units import MS, US
from inaproto.wire.messages.controller import GrantRecord, HoldRecord

if TYPE_CHECKING:
    from inaproto.sim.frames.host.elastic import ElasticJob
    from inaproto.sim.frames.host.elastic_process import ElasticProcess
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.world import World

TERM: Final = 1
LEASE_NS: Final = 30 * MS
_LATE_MAX_NS: Final = 4 * MS
_CUT_MAX_NS: Final = 3 * LEASE_NS
_AGAIN_NS: Final = 5 * MS
_ATTEMPTS_MAX: Final = 1000
"""More than a world has of any job."""


@dataclass
class HostAgent:
    """A host daemon's part of it, from its start to its end."""

    newest: NewestWishes = field(default_factory=NewestWishes)
    seats: HostSeats = field(default_factory=HostSeats)


@dataclass
class SeenHost:
    """What the controller sees of a host."""

    presence: Literal["up", "unknown", "gone"] = "unknown"
    applied: int = 0
    holds: dict[int, HoldRecord] = field(default_factory=dict)
    anew_until_ns: int = 0
    session: int = 0
    """Of the present one; what was said in another is not heard any more."""
    is_cut: bool = False
    hears_at_ns: int = 0
    """When the last report comes that has left the host: in a session none overtakes another."""


@dataclass
class SeatedJob:
    """One attempt of an elastic job, as the controller has it."""

    elastic: ElasticJob
    index: int
    attempt: int = 1
    begun: int = 0
    """Revision in which it was first seen to run."""
    over: Over | None = None

    @property
    def name(self) -> str:
        return self.elastic.root.name

    @property
    def token(self) -> str:
        return f"{self.name}/{self.attempt}"

    def number(self, host: int) -> int:
        """Of its grant there."""
        return (self.index * _ATTEMPTS_MAX + self.attempt) * _ATTEMPTS_MAX + host

    def numbered(self, place: tuple[str, int]) -> tuple[str, int]:
        """As a controller would have numbered its ranks; those of jobs that follow have their own numbers."""
        name, rank = place
        return (name, self._ranks.index(rank)) if name == self.name else place

    @property
    def _ranks(self) -> list[int]:
        root = self.elastic.root
        return [rank for host in root.positions for rank in root.ranks_on(host)]

    def seat(self, host: HostSeen, number: int, holds: Mapping[int, HoldRecord]) -> SeatSeen:
        grant = self.number(number)
        hold = holds.get(grant, HoldRecord(grant=grant, phase="held"))
        return seat_seen(host, hold.phase, hold.reason)

    def grant(self, host: int) -> GrantRecord:
        ranks = self.elastic.root.ranks_on(host)
        return GrantRecord(
            grant=self.number(host),
            job=self.attempt,
            name=self.name,
            kind="seats",
            slots=(),
            first_rank=self._ranks.index(ranks[0]),
            ranks=len(ranks),
            size=len(self.elastic.root.hosts),
            token_hash=hash_of(self.token),
            elastic=True,
        )


class SimSeats:
    """That of all jobs of ``world`` whose hosts have seats."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._draws = Draws(world.config.seed, "seats")
        self.jobs: dict[str, SeatedJob] = {}
        self.agents: dict[int, HostAgent] = {}
        self.seen: dict[int, SeenHost] = {}
        self._revision = 1
        self._places: dict[ElasticProcess, list[tuple[str, int]]] = {}
        """Of connections of processes by which they are in a job, or were until it failed."""

    def begin(self) -> None:
        world = self._world
        seated = [job for job in world.config.jobs if job.seated]
        self.jobs = {job.name: SeatedJob(world.elastic[job.name], index) for index, job in enumerate(seated)}
        for number in sorted({host for job in seated for host in job.hosts}):
            self.agents[number], self.seen[number] = HostAgent(), SeenHost()
            self._session_begins(world.hosts[number])

    # --- sessions of hosts with the controller

    def _session_begins(self, host: SimHost) -> None:
        """As soon as the host is up."""
        world, seen = self._world, self.seen[host.number]
        if not host.is_up:
            world.agenda.after(_AGAIN_NS, self._try_again, (host, seen.session))
            return
        seen.is_cut = False
        self._report(host)
        if not seen.is_cut:
            self._tell(host)

    def _try_again(self, whom: tuple[SimHost, int]) -> None:
        host, session = whom
        if self.seen[host.number].session == session:
            self._session_begins(host)

    def _session_ends(self, host: SimHost, for_ns: int) -> None:
        seen, world = self.seen[host.number], self._world
        seen.presence, seen.is_cut = "unknown", True
        seen.session += 1
        world.agenda.after(LEASE_NS, self._lease_ends, (host, seen.session))
        world.agenda.after(for_ns, self._try_again, (host, seen.session))

    def _lease_ends(self, whom: tuple[SimHost, int]) -> None:
        host, session = whom
        seen = self.seen[host.number]
        if seen.session == session and seen.presence == "unknown":
            seen.presence = "gone"
            self._look()

    def begins_anew(self, host: SimHost) -> None:
        """Its daemon has ended, and all that it had."""
        if host.number in self.agents:
            self.agents[host.number] = HostAgent()
            for begun in self._world.hooks.seats_forgotten:
                begun(host)
            self._session_ends(host, _AGAIN_NS)
            self.seen[host.number].anew_until_ns = -1

    # --- wishes and reports

    def _wishes(self, host: SimHost) -> list[GrantRecord]:
        return [
            job.grant(host.number)
            for job in self.jobs.values()
            if job.over is None and host.number in job.elastic.root.hosts
        ]

    def _tell(self, host: SimHost) -> None:
        wait_ns = self._draws.magnitude(US, _LATE_MAX_NS)
        about = self._revision, self._wishes(host), self.seen[host.number].session
        host.after(wait_ns, partial(self._told, host, *about))

    def _told(self, host: SimHost, revision: int, grants: list[GrantRecord], session: int) -> None:
        agent = self.agents[host.number]
        if self.seen[host.number].session != session or not agent.newest.take(TERM, revision):
            return
        for job, ranks, _ in agent.seats.want(grants):
            self._cut_off(host, job, ranks)
        self._report(host)

    def _cut_off(self, host: SimHost, job: str, ranks: range) -> None:
        """The processes end, as host daemons have it."""
        for process, places in list(self._places.items()):
            its = self.jobs[process.job.root.name]
            taken = [its.numbered(place) for place in places] if process.host is host else []
            if any(name == job and rank in ranks for name, rank in taken):
                self._world.mark("a controller ended ranks of an elastic job that it took for lost")
                process.dies(0)

    def _report(self, host: SimHost) -> None:
        """Say what the host holds; it may be late, and the session may be lost."""
        seen, agent = self.seen[host.number], self.agents[host.number]
        if seen.is_cut or not host.is_up:
            return
        wait_ns = self._draws.magnitude(US, _LATE_MAX_NS)
        is_well = self._world.agenda.now >= self._world.config.weather_until_ns
        if not is_well and self._draws.chance(1, 10):
            self._session_ends(host, self._draws.magnitude(MS, _CUT_MAX_NS))
            return
        host.after(wait_ns, partial(self._reports, host, agent, seen.session))

    def _reports(self, host: SimHost, agent: HostAgent, session: int) -> None:
        """It leaves the host, whatever it was to say when that was decided."""
        if self.agents[host.number] is not agent or self.seen[host.number].session != session:
            return
        holds = {hold.grant: hold for hold in agent.seats.holds()}
        for reports in self._world.hooks.seats_reported:
            reports(host, holds)
        seen, agenda = self.seen[host.number], self._world.agenda
        seen.hears_at_ns = max(seen.hears_at_ns, agenda.now + self._draws.magnitude(US, _LATE_MAX_NS))
        agenda.at(seen.hears_at_ns, self._heard, (host, agent.newest.revision, holds, session))

    def _heard(self, said: tuple[SimHost, int, dict[int, HoldRecord], int]) -> None:
        host, revision, holds, session = said
        seen, world = self.seen[host.number], self._world
        if seen.session != session:
            return
        if seen.presence == "gone" and any(hold.phase == "running" for hold in holds.values()):
            world.mark("a host that a controller took for lost came back with its ranks")
        if seen.anew_until_ns < 0:
            seen.anew_until_ns = world.agenda.now + LEASE_NS
            world.agenda.after(LEASE_NS, self._look)
        seen.presence, seen.applied, seen.holds = "up", revision, holds
        self._look()

    # --- what follows

    def _seats(self, job: SeatedJob) -> list[SeatSeen]:
        found = []
        for number in job.elastic.root.positions:
            seen = self.seen[number]
            host = HostSeen(
                self._world.hosts[number].name,
                seen.presence,
                is_anew=self._world.agenda.now < seen.anew_until_ns,
                has_heard=seen.applied >= job.begun,
            )
            found.append(job.seat(host, number, seen.holds))
        return found

    def as_if_heard(self, job: SeatedJob) -> Verdict:
        """What would follow if all that hosts hold now were known, and silent ones were for longer."""
        found = []
        for number in job.elastic.root.positions:
            host = self._world.hosts[number]
            holds = {hold.grant: hold for hold in self.agents[number].seats.holds()}
            seen = HostSeen(host.name, "up" if host.is_up else "gone")
            found.append(job.seat(seen, number, holds))
        return verdict(found, is_running=True, is_elastic=True)

    def _look(self, _: Any = None) -> None:
        for job in self.jobs.values():
            if job.over is None:
                self._judge(job)

    def _judge(self, job: SeatedJob) -> None:
        world = self._world
        match verdict(self._seats(job), is_running=job.begun > 0, is_elastic=True):
            case Runs(why):
                if why:
                    world.mark("an elastic job went on without a seat, or a rank of one")
                if not job.begun:
                    self._revision += 1
                    job.begun = self._revision
                    self._tell_all(job)
            case Over() as over:
                job.over = over
                if over.why:
                    how = "failed" if over.has_failed else "ended"
                    world.mark(f"an elastic job had {how} for its controller, and what it lost was named")
                for ended in world.hooks.job_over:
                    ended(job)
                self._revision += 1
                self._tell_all(job)
            case AsItWas() | PlacedAgain():  # its hosts stay those of the world
                pass

    def _tell_all(self, job: SeatedJob) -> None:
        for number in job.elastic.root.positions:
            if not self.seen[number].is_cut:
                self._tell(self._world.hosts[number])

    def start_anew(self, elastic: ElasticJob) -> None:
        """Nobody goes on, and whoever has submitted the job does so again."""
        job = self.jobs.get(elastic.root.name)
        if job is None:
            return
        for ended in self._world.hooks.nobody_goes_on:
            ended(job)
        self._revision += 1
        job.attempt, job.begun, job.over = job.attempt + 1, 0, None
        self._tell_all(job)

    # --- processes, as a session of the host daemon tells of them

    def joined(self, process: ElasticProcess, place: tuple[str, int]) -> None:
        """Its ring stands."""
        job = self.jobs.get(process.job.root.name)
        if job is not None:
            self._places.setdefault(process, []).append(place)
            self.agents[process.host.number].seats.joined(*job.numbered(place), job.token)
            self._report(process.host)

    def follows(self, process: ElasticProcess, place: tuple[str, int], following: tuple[str, int]) -> None:
        """It was told its place in the job that follows the one that it asked about."""
        job = self.jobs.get(process.job.root.name)
        if job is not None:
            if place not in self._places.setdefault(process, []):
                self._world.mark("a host heard of the loss of an elastic job and not of its beginning")
                self._places[process].append(place)
            its = self.agents[process.host.number].seats
            its.follows(*job.numbered(place), job.token, following)
            self._report(process.host)

    def closed(self, process: ElasticProcess, place: tuple[str, int], failure: str) -> None:
        """The connection by which it had that place is closed, if it had."""
        job, places = self.jobs.get(process.job.root.name), self._places.get(process, [])
        if job is not None and place in places:
            places.remove(place)
            self.agents[process.host.number].seats.left(*job.numbered(place), failure=failure)
            self._report(process.host)

    def ended(self, process: ElasticProcess, failure: str) -> None:
        """All its connections are closed. ``failure``: why, if not in order."""
        for place in tuple(self._places.get(process, ())):
            self.closed(process, place, failure)
