"""The seats of a pool that its controller knows, found by host and by ring.

Part of :mod:`inaproto.core.sharing.group`.

A report of one host among a thousand costs what that host has, not what all have: nothing here looks at all
seats but where a ring comes to be whole, or is no longer.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from inaproto.units import JobId
from inaproto.wire.messages.sharing import Seat, SeatHold


class Ring(NamedTuple):
    """One standing of a ring: one that was given up for another tree comes back with the same id."""

    job: JobId
    ring_id: int
    stand: int


def ring_of(hold: SeatHold) -> Ring:
    return Ring(JobId(hold.job), hold.ring_id, hold.stand)


@dataclass(slots=True)
class _Members:
    """The seats of a ring when it was whole first, and how many of them are known."""

    seats: Mapping[Seat, None]
    known: int


class KnownSeats:
    """``unheard``: seats of turns that stood before a restart, not heard of since. ``seats_max``: most seats
    of the jobs that may have turns."""

    def __init__(self, unheard: Iterable[Seat], seats_max: int) -> None:
        self._seats_max = seats_max
        self._holds: dict[Seat, SeatHold | None] = {}
        """None: not heard of since a restart."""
        self._of_host: dict[str, dict[Seat, None]] = {}
        self._of_ring: dict[Ring, dict[Seat, None]] = {}
        self._members: dict[Ring, _Members] = {}
        """Seats of rings that have been whole, while one of these is known. Who says later to be of such a
        ring is not, for it has as many seats as it has hosts; nor when one of them is lost."""
        self._whole: dict[Ring, Mapping[Seat, None]] = {}
        """Rings all of whose seats are known, and these, in the order in which they came to be so."""
        self._over: dict[Ring, None] = {}
        """Rings of jobs that have ended at one host at least, and have seats yet."""
        self._unheard = 0
        self._of_job: dict[JobId, Ring] | None = None
        self._others: list[Ring] = []
        """Rings that are whole, and not chosen: of jobs that other hosts had first."""
        self._jobs: dict[JobId, tuple[Seat, ...]] | None = None
        """None, both: to be worked out."""
        for seat in unheard:
            self._put(seat, None)

    def __contains__(self, seat: object) -> bool:
        return seat in self._holds

    def __bool__(self) -> bool:
        return bool(self._holds)

    @property
    def are_heard(self) -> bool:
        """Nobody is to be heard of yet after a restart."""
        return not self._unheard

    def unheard(self) -> Iterator[Seat]:
        return (seat for seat, hold in self._holds.items() if hold is None)

    def of_host(self, host: str) -> tuple[Seat, ...]:
        return tuple(self._of_host.get(host, ()))

    def of_ring(self, ring: Ring) -> tuple[Seat, ...]:
        return tuple(self._of_ring.get(ring, ()))

    def ring(self, seat: Seat) -> Ring | None:
        """None: it is not heard of since a restart."""
        hold = self._holds[seat]
        return None if hold is None else ring_of(hold)

    def is_over(self, ring: Ring) -> bool:
        return ring in self._over

    def is_of(self, seat: Seat, ring: Ring) -> bool:
        """Whether it is one of the ring's, which may not be whole yet."""
        members = self._members.get(ring)
        return members is None or seat in members.seats

    def contradicts(self, seat: Seat) -> bool:
        """Whether others, who were there first, say something else."""
        ring = self.ring(seat)
        if ring is None:
            return False
        return not self.is_of(seat, ring) or (ring in self._whole and self._rivals(ring))

    def _rivals(self, ring: Ring) -> bool:
        """Whether it is whole beside an older one of the same job at other hosts."""
        chosen = self._chosen()[ring.job]
        return chosen != ring and not self._share_a_host(chosen, ring)

    def succeeded(self, here: Container[str]) -> list[Ring]:
        """Rings none of whose hosts is here, where others of their job are whole, whose hosts all are."""
        chosen = self._chosen()
        found: dict[Ring, None] = {}
        for ring in self._others:
            before = chosen[ring.job]
            if self._share_a_host(before, ring):
                continue
            if not any(seat.host in here for seat in self._whole[before]) and all(
                seat.host in here for seat in self._whole[ring]
            ):
                found[before] = None
        return list(found)

    # --- changes

    def put(self, seat: Seat, hold: SeatHold) -> None:
        """Its host says so."""
        if self._holds.get(seat) != hold:
            self.remove(seat)
            self._put(seat, hold)

    def _put(self, seat: Seat, hold: SeatHold | None) -> None:
        self._holds[seat] = hold
        self._of_host.setdefault(seat.host, {})[seat] = None
        if hold is None:
            self._unheard += 1
            return
        ring = ring_of(hold)
        self._of_ring.setdefault(ring, {})[seat] = None
        members = self._members.get(ring)
        if members is not None and seat in members.seats:
            members.known += 1
        self._count(ring)

    def remove(self, seat: Seat) -> None:
        """It is not known any more, if it was."""
        if seat not in self._holds:
            return
        hold = self._holds.pop(seat)
        its = self._of_host[seat.host]
        del its[seat]
        if not its:
            del self._of_host[seat.host]
        if hold is None:
            self._unheard -= 1
            return
        ring = ring_of(hold)
        its = self._of_ring[ring]
        del its[seat]
        if not its:
            del self._of_ring[ring]
            self._over.pop(ring, None)
        members = self._members.get(ring)
        if members is not None and seat in members.seats:
            members.known -= 1
            if not members.known:
                del self._members[ring]
        self._count(ring)

    def end(self, ring: Ring) -> None:
        """It has ended at one of its hosts."""
        if ring in self._of_ring:
            self._over[ring] = None
            self._count(ring)

    def _count(self, ring: Ring) -> None:
        """Whether it is whole now."""
        members, seats = self._members.get(ring), self._of_ring.get(ring)
        hold = None if not seats else self._holds[next(iter(seats))]
        if members is None and seats and hold is not None and len(seats) == hold.hosts:
            members = self._members[ring] = _Members(dict(seats), len(seats))
        is_whole = members is not None and members.known == len(members.seats) and ring not in self._over
        if is_whole == (ring in self._whole):
            return
        if members is not None and is_whole:
            self._whole[ring] = members.seats
        else:
            del self._whole[ring]
        self._jobs = self._of_job = None

    # --- jobs

    def jobs(self) -> Mapping[JobId, tuple[Seat, ...]]:
        """Those of which one ring's seats are all known, as many as a group takes; the same object until that
        changes."""
        if self._jobs is None:
            found: dict[JobId, tuple[Seat, ...]] = {}
            room = self._seats_max
            for job, ring in sorted(self._chosen().items()):
                seats = self._whole[ring]
                if len(seats) <= room:
                    found[job] = tuple(sorted(seats))
                    room -= len(seats)
            self._jobs = found
        return self._jobs

    def _chosen(self) -> dict[JobId, Ring]:
        """One ring of each job: the one that was whole first, and then each newer one that has a host of the
        one before. A job's own hosts say so when it begins anew; what others call the same is not it."""
        if self._of_job is None:
            found: dict[JobId, Ring] = {}
            for ring in self._whole:
                before = found.get(ring.job)
                if before is None or (ring > before and self._share_a_host(before, ring)):
                    found[ring.job] = ring
            self._of_job = found
            self._others = [ring for ring in self._whole if found[ring.job] != ring]
        return self._of_job

    def _share_a_host(self, one: Ring, other: Ring) -> bool:
        hosts = {seat.host for seat in self._whole[one]}
        return any(seat.host in hosts for seat in self._whole[other])
