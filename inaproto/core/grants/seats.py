"""Seats on a host that a controller has given to jobs, and what has become of the ranks that take them.

A seat runs once all its ranks have joined. It is over when none of them is left: ended if all have left in
order, else failed, though that was before it was heard of: its controller may have been killed meanwhile.
One that is to be given up while ranks are in it has their processes cut off, and is held until they are gone;
wished again before that, it is a seat like any other, whose ranks fail.
Jobs that no controller knows of are none of its business; of a job that has a seat here, a process that does
not show its token is kept off, whether the controller is there now or not.

Of an **elastic** job the seat is also that of jobs which go on from it without a lost rank, ``train~1`` after
``train`` (docs/protocol.md 13.7), whatever numbers their ranks have. A process keeps its old place until it
has the next one (:meth:`HostSeats.follows` says which that is), so in between it is not gone, and giving the
old one up is no failure. A seat whose last rank is gone has ended if any of its ranks left in order, as
``inaproto run --elastic`` has it; the first that did not is named either way. Of another job, who follows has
no seat.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from inaproto.core.host.ranks import REASON_CHARACTERS_MAX
from inaproto.core.rendezvous.rules import job_name, split_generation
from inaproto.core.rendezvous.tokens import hash_of
from inaproto.wire.messages.controller import GrantRecord, HoldPhase, HoldRecord

GIVEN_UP: Final = "its job was ended by the controller"
"""Why processes of a seat that is given up are cut off, and those that wait for it hear that."""
ENDED_MAX: Final = 256
"""Jobs of which ranks are remembered that have ended before their seat was heard of."""


class Place(NamedTuple):
    """What a process has in a job. Parallel rings of one are one place; a job that follows has others."""

    job: str
    rank: int


class CutOff(NamedTuple):
    """End the processes that have these places here; of each :meth:`HostSeats.left` is told then."""

    job: str
    """As :func:`seated_as` has it."""
    ranks: range
    why: str


class _Gone(NamedTuple):
    """A rank that was gone before its seat was heard of."""

    key: str
    failure: str
    """Why, if not in order."""
    went_on: bool
    """It had its place in the next job by then."""


@dataclass(slots=True)
class _Seat:
    grant: GrantRecord
    present: set[Place] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)
    """Ranks that have been here; some may have left before others are told of, by a daemon that came anew."""
    failure: str = ""
    has_followed: bool = False
    """Some have been here who follow: so all ranks had been, though not all come to a daemon that is new."""
    has_ended: bool = False
    """A rank of an elastic job has left in order."""
    is_wanted: bool = True

    @property
    def ranks(self) -> range:
        return range(self.grant.first_rank, self.grant.first_rank + self.grant.ranks)

    @property
    def has_run(self) -> bool:
        return self.has_followed or len(self.taken) == len(self.ranks)

    def has_place_for(self, place: Place) -> bool:
        if place.job == self.grant.name:
            return place.rank in self.ranks
        return self.grant.elastic and job_name(place.job) == (self.grant.name, True)

    def is_of(self, grant: GrantRecord) -> bool:
        """A controller that begins anew gives the same numbers to other jobs."""
        return (self.grant.name, self.grant.token_hash) == (grant.name, grant.token_hash)

    def is_token(self, key: str) -> bool:
        """A controller of before has told none."""
        expected = self.grant.token_hash
        return not expected or hmac.compare_digest(expected, hash_of(key))

    def is_for(self, place: Place, key: str) -> bool:
        return self.has_place_for(place) and self.is_token(key)

    def was_taken(self, place: Place) -> None:
        if place.job == self.grant.name:
            self.taken.add(place.rank)
        else:
            self.has_followed = True

    def lost(self, place: Place, failure: str) -> None:
        self.failure = self.failure or _reason(self.grant.name, place, failure)

    def phase(self) -> HoldPhase:
        if self.present:
            return "running" if self.has_run else "held"
        if self.failure and not self.has_ended:
            return "failed"
        return "ended" if self.has_run else "held"

    def cut_off(self, why: str) -> list[CutOff]:
        """Who is here; none: nobody."""
        found = [CutOff(self.grant.name, self.ranks, why)] if self.present else []
        following = sorted(place for place in self.present if place.job != self.grant.name)
        return found + [CutOff(job, range(rank, rank + 1), why) for job, rank in following]


class HostSeats:
    """Grants of kind ``seats``. After ``want``, ``joined`` and ``left`` there may be news in ``holds``."""

    def __init__(self) -> None:
        self._seats: dict[int, _Seat] = {}
        self._present: dict[str, dict[Place, dict[str, str]]] = {}
        """Keys by job, place and ring, of all jobs here: some come before their seat is heard of."""
        self._ended: dict[str, dict[Place, _Gone]] = {}
        """Ranks that were gone again before that, by job; the newest jobs last."""
        self._failed: set[Place] = set()
        """Places here of which one ring has failed and others are there: to leave those is not in order."""
        self._given_up: list[_Seat] = []
        """Seats that the last ``want`` does not have any more."""
        self._before: dict[Place, Place] = {}
        """The place that a process had before, by the one that it was given in the job that follows."""

    def want(self, grants: Sequence[GrantRecord]) -> list[CutOff]:
        """These seats are given, and no others. Returns whose processes are to end."""
        wanted = {grant.grant: grant for grant in grants}
        cut_off = []
        self._given_up.clear()
        for number, seat in list(self._seats.items()):
            if number not in wanted:
                seat.is_wanted = False
                self._given_up.append(seat)
                cut_off += seat.cut_off(GIVEN_UP)
                if not seat.present:
                    del self._seats[number]
        for number, grant in wanted.items():
            known = self._seats.get(number)
            if known is not None and known.is_wanted:
                known.grant = grant
                continue
            seat = known if known is not None and known.is_of(grant) else _Seat(grant)
            # One that is known has its ranks cut off: a controller whose store was put back wishes it again.
            seat.grant, seat.is_wanted = grant, True
            self._seats[number] = seat
            for place, keys in sorted(self._present.get(grant.name, {}).items()):
                for key in keys.values():
                    self._sit(seat, place, key)
            self._sat(seat)
        return cut_off

    def _sat(self, seat: _Seat) -> None:
        """Ranks that have ended before it was heard of; who showed no token may have been of another job."""
        ended = self._ended.get(seat.grant.name, {})
        its = {
            place: gone
            for place, gone in sorted(ended.items())
            if seat.grant.token_hash and seat.is_for(place, gone.key)
        }
        ranks = seat.taken | {place.rank for place in its if place.job == seat.grant.name}
        has_followed = seat.has_followed or any(place.job != seat.grant.name for place in its)
        if its and (has_followed or len(ranks) == len(seat.ranks)):
            del self._ended[seat.grant.name]
            for place, gone in its.items():
                seat.was_taken(place)
                if seat.grant.elastic and gone.went_on:
                    continue
                if gone.failure:
                    seat.lost(place, gone.failure)
                elif seat.grant.elastic:
                    seat.has_ended = True

    def holds(self) -> list[HoldRecord]:
        return [
            HoldRecord(grant=number, phase=seat.phase(), reason=seat.failure)
            for number, seat in self._seats.items()
        ]

    # -- ranks

    def refusal_of(self, job: str, rank: int, key: str) -> str:
        """Why a process that shows ``key`` may not be that rank here; empty: no seat says that."""
        name = job_name(job)
        for seat in self._seats.values():
            if seat.grant.name != name.job or not seat.is_wanted:
                continue
            if not seat.is_token(key):
                shown = "is not what it shows as its key" if key else "it does not show as its key"
                return (
                    f"the controller has given the job a token, which {shown}: "
                    "that which inaproto job submit printed belongs in INAPROTO_KEY"
                )
            if not name.is_shrunk and rank not in seat.ranks:
                return f"the controller has given this host ranks {seat.ranks[0]} to {seat.ranks[-1]} of it"
        return ""

    def has_seat(self, job: str, rank: int) -> bool:
        """Whether a seat here is that rank's."""
        name = job_name(job)
        return any(
            seat.grant.name == name.job and seat.is_wanted and rank in seat.ranks
            for seat in self._seats.values()
        )

    def has_given_up(self, job: str, rank: int, key: str) -> bool:
        """Whether the seat of a process that shows ``key`` and waits to begin was given up by the last
        ``want``, and no other one is its."""
        place = Place(seated_as(job), rank)
        is_given = any(seat.is_wanted and seat.is_for(place, key) for seat in self._seats.values())
        return not is_given and any(seat.is_for(place, key) for seat in self._given_up)

    def has_job(self, name: str) -> bool:
        """Whether a controller has placed the job of that name here."""
        return any(seat.grant.name == name for seat in self._seats.values())

    def joined(self, job: str, rank: int, key: str = "") -> None:
        """Its ring stands; said again for each ring."""
        name, place = job_name(job).job, Place(seated_as(job), rank)
        self._present.setdefault(name, {}).setdefault(place, {})[job] = key
        self._ended.get(name, {}).pop(place, None)
        for seat in self._seats.values():
            if seat.grant.name == name and seat.is_wanted:
                self._sit(seat, place, key)
                self._sat(seat)

    def _sit(self, seat: _Seat, place: Place, key: str) -> None:
        if seat.is_for(place, key):
            seat.present.add(place)
            seat.was_taken(place)

    def follows(self, job: str, rank: int, key: str, next_place: tuple[str, int]) -> None:
        """The process of that rank, which shows ``key``, is told its place in the job that goes on without a
        lost rank. It may be told another one before it has that.

        The job that is lost may have begun for others, while this host had not heard so. Its process gives up
        the place that it had before, so this one counts from now on.
        """
        name, place, following = job_name(job).job, Place(seated_as(job), rank), Place(*next_place)
        self.joined(job, rank, key)
        is_later = split_generation(following.job) > split_generation(place.job)
        if is_later and job_name(following.job) == (name, True):
            self._before[following] = place

    def _first(self, place: Place) -> Place:
        """Where its process was first."""
        while place in self._before:
            place = self._before[place]
        return place

    def left(self, job: str, rank: int, *, failure: str) -> None:
        """``failure``: why it is gone, if it did not leave in order."""
        name, place = job_name(job).job, Place(seated_as(job), rank)
        here = self._present.get(name, {})
        rings = here.get(place, {})
        key = rings.pop(job, None)
        if not rings:
            here.pop(place, None)
        first = self._first(place)
        goes_on = any(self._first(other) == first for other in here if other != place)
        is_over = bool(failure) or not rings  # in order by one ring, it is there by the others
        if (
            key is not None
            and is_over
            and not any(seat.grant.name == name and place in seat.present for seat in self._seats.values())
        ):
            self._remember(name, place, _Gone(key, failure, goes_on))
        if not here:
            self._present.pop(name, None)
        if failure and rings:
            self._failed.add(place)
        if not rings and not goes_on:
            self._before = {one: old for one, old in self._before.items() if self._first(one) != first}
        for number, seat in list(self._seats.items()):
            if seat.grant.name == name and place in seat.present:
                self._left(number, seat, place, failure, is_there=bool(rings), goes_on=goes_on)
        if not rings:
            self._failed.discard(place)

    def _left(
        self, number: int, seat: _Seat, place: Place, failure: str, *, is_there: bool, goes_on: bool
    ) -> None:
        """``is_there``: by another ring; ``goes_on``: in another job."""
        if not (seat.grant.elastic and goes_on):
            if failure:
                seat.lost(place, failure)
            elif seat.grant.elastic and not is_there and place not in self._failed:
                seat.has_ended = True
        if is_there:
            return
        seat.present.discard(place)
        if not seat.present and not seat.is_wanted:
            del self._seats[number]

    def _remember(self, name: str, place: Place, gone: _Gone) -> None:
        ranks = self._ended.pop(name, {})
        before = ranks.get(place)
        ranks[place] = gone if before is None or not before.failure else gone._replace(failure=before.failure)
        self._ended[name] = ranks
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]


def _reason(name: str, place: Place, failure: str) -> str:
    """Perhaps in the process's own words."""
    of = "" if place.job == name else f" of {place.job}"
    return f"rank {place.rank}{of}: {failure}"[:REASON_CHARACTERS_MAX]


def seated_as(job: str) -> str:
    """The job of a parallel ring. What goes on without a lost rank has numbers of its own."""
    name = job_name(job)
    return job if name.is_shrunk else name.job
