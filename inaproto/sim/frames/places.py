"""A controller that gives hosts of a simulated world places in their collective library, and takes them back.

It wishes all of it again and again, in revisions. Each host hears each of them at a time of its own: late,
twice, after a later one, and now and then from a controller whose term is over. What a host does with that is
the product's own (:mod:`inaproto.core.grants`). Everything here is drawn from streams of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from inaproto.core.grants.newest import NewestWishes
from inaproto.core.grants.places import Attaching, Places
from inaproto.core.grants.seats import HostSeats
from inaproto.faults.streams import Draws
from inaproto.units import MS, US
from inaproto.wire.messages.controller import GrantRecord

if TYPE_CHECKING:
    from inaproto.sim.frames.draw.swarm import JobConfig
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.host.ring import HostRing
    from inaproto.sim.frames.world import World

TERM: Final = 2
_AT_MAX_NS: Final = 60 * MS
_LATE_MAX_NS: Final = 4 * MS
_AGAIN_NS: Final = 5 * MS
"""After a host has begun again it is told what is wished now."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """All that a controller wishes of one host."""

    term: int
    revision: int
    grants: tuple[GrantRecord, ...]


class HostPlaces:
    """A host daemon's part of it, from its start to its end."""

    def __init__(self) -> None:
        self.newest = NewestWishes()
        self.seats = HostSeats()
        self.places = Places(self.seats.has_job)

    def hear(self, wishes: Wishes) -> bool:
        """Whether they are taken."""
        if not self.newest.take(wishes.term, wishes.revision):
            return False
        self.places.connected(are_given=True)
        self.seats.want([grant for grant in wishes.grants if grant.kind == "seats"])
        self.places.wish([grant for grant in wishes.grants if grant.kind == "place"])
        return True


class SimPlaces:
    """That of all jobs of ``world`` that have places."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._jobs = [job for job in world.config.jobs if job.place_moves >= 0]
        self._draws = Draws(world.config.seed, "places")
        self._revision = 0
        self._grants: dict[str, int] = {}
        """Numbers of the places that are wished now, by job."""
        self._numbers = 0
        self.hosts: dict[int, HostPlaces] = {}

    def begin(self) -> None:
        if not self._jobs:
            return
        for host in self._world.hosts:
            self.hosts[host.number] = HostPlaces()
        moves = [(0, job) for job in self._jobs]
        moves += [
            (self._draws.magnitude(100 * US, _AT_MAX_NS), job)
            for job in self._jobs
            for _ in range(job.place_moves)
        ]
        for at_ns, job in moves:
            self._world.agenda.at(at_ns, self._changes_its_mind, job)

    def _changes_its_mind(self, job: JobConfig) -> None:
        """A job has places from now on, or has none; now and then others at once, for its switches move."""
        had = self._grants.pop(job.name, 0)
        if not had or self._draws.chance(1, 3):
            self._numbers += 1
            self._grants[job.name] = self._numbers
        self._revision += 1
        for host in self._world.hosts:
            now = self._wishes(host)
            self._tell(host, now)
            if self._draws.chance(1, 4):
                self._tell(host, now)
            if self._draws.chance(1, 6):  # its term is over, and it has not heard of that
                self._tell(host, Wishes(TERM - 1, self._revision + 1000, self._others(now)))

    def _wishes(self, host: SimHost) -> Wishes:
        here = [(number, job) for number, job in enumerate(self._jobs) if host.number in job.hosts]
        seats = [_grant(1000 + number, job, "seats") for number, job in here]
        places = [_grant(self._grants[job.name], job, "place") for _, job in here if job.name in self._grants]
        return Wishes(TERM, self._revision, (*seats, *places))

    def _others(self, wishes: Wishes) -> tuple[GrantRecord, ...]:
        """The contrary of what is wished."""
        seats = tuple(grant for grant in wishes.grants if grant.kind == "seats")
        if len(seats) < len(wishes.grants):
            return seats
        jobs = [job for job in self._jobs if any(grant.name == job.name for grant in seats)]
        return (*seats, *(_grant(2000 + number, job, "place") for number, job in enumerate(jobs)))

    def _tell(self, host: SimHost, wishes: Wishes) -> None:
        wait_ns = self._draws.magnitude(US, _LATE_MAX_NS)
        host.after(wait_ns, partial(self._told, host, self.hosts[host.number], wishes))

    def _told(self, host: SimHost, told: HostPlaces, wishes: Wishes) -> None:
        its = self.hosts[host.number]
        if its is not told or host.is_without_daemon:
            return  # said to the one before
        world = self._world
        is_taken = its.hear(wishes)
        wished_now = {grant.grant for grant in wishes.grants}
        world.note(host.number, "wishes", wishes.revision)
        for wished in world.hooks.wished:
            wished(host, wishes)
        if not is_taken:
            world.mark(
                "wishes for places were of a term that is over"
                if wishes.term < TERM
                else "wishes for places came after later ones"
            )
            return
        if any(hold.phase == "running" and hold.grant not in wished_now for hold in its.places.holds()):
            world.mark("a place was taken back from a host that was attached")
        for ring in list(host.rings):
            self.look(ring)

    def look(self, ring: HostRing) -> None:
        """Whether its ranks may be attached may have changed."""
        its = self.hosts.get(ring.host.number)
        if its is not None and ring.job.collective is not None and not ring.is_idle:
            ring.place_is(its.places.may_attach(ring.job.name))

    def begins_anew(self, host: SimHost) -> None:
        """Its daemon has ended, and all attachments with it."""
        if host.number in self.hosts:
            self.hosts[host.number] = HostPlaces()
            for begun in self._world.hooks.places_forgotten:
                begun(host)
            self._world.agenda.after(_AGAIN_NS, self._tell_again, (host, self.hosts[host.number]))

    def _tell_again(self, whom: tuple[SimHost, HostPlaces]) -> None:
        host, its = whom
        if self.hosts[host.number] is not its:
            return
        if host.is_up:
            self._tell(host, self._wishes(host))
        else:
            self._world.agenda.after(_AGAIN_NS, self._tell_again, whom)

    # --- attachments

    def begins(self, ring: HostRing) -> Attaching:
        """A host asks for an attachment."""
        its = self.hosts.get(ring.host.number)
        if its is None:
            return Attaching(ring.job.name)
        attaching = its.places.begins(ring.job.name)
        for attaches in self._world.hooks.attaches:
            attaches(ring, attaching)
        return attaching

    def attached(self, ring: HostRing, attaching: Attaching) -> None:
        its = self.hosts.get(ring.host.number)
        if its is not None:
            its.places.attached(attaching)

    def ends(self, ring: HostRing, attaching: Attaching) -> None:
        """May be said twice, and after the daemon is another."""
        its = self.hosts.get(ring.host.number)
        if its is not None and its.places.ends(attaching):
            if attaching.is_attached and not its.places.may_attach(attaching.job):
                self._world.mark("a host left a collective library, for it had no place any more")
            for detached in self._world.hooks.detached:
                detached(ring, attaching)


def _grant(number: int, job: JobConfig, kind: Literal["seats", "place"]) -> GrantRecord:
    ranks, size = (1, len(job.hosts)) if kind == "seats" else (0, 0)
    return GrantRecord(grant=number, job=1, name=job.name, kind=kind, slots=(), ranks=ranks, size=size)
