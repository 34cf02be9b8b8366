"""Seats on a host that a controller has given to jobs, and what has become of the ranks that take them.

A seat runs once all its ranks have joined. It is over when none of them is left: ended if all have left in
order, else failed, though that was before it was heard of: its controller may have been killed meanwhile.
One that is to be given up while ranks are in it has their processes cut off, and is held until they are gone;
wished again before that, it is a seat like any other, whose ranks fail.
Jobs that no controller knows of are none of its business; of a job that has a seat here, a process that does
not show its token is kept off, whether the controller is there now or not.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from inaproto.core.host.ranks import REASON_CHARACTERS_MAX
from inaproto.core.rendezvous.rules import job_name
from inaproto.core.rendezvous.tokens import hash_of
from inaproto.wire.messages.controller import GrantRecord, HoldPhase, HoldRecord

ENDED_MAX: Final = 256
"""Jobs of which ranks are remembered that have ended before their seat was heard of."""


class CutOff(NamedTuple):
    """End the processes that are these ranks here; of each :meth:`HostSeats.left` is told then."""

    job: str
    ranks: range
    why: str


@dataclass(slots=True)
class _Seat:
    grant: GrantRecord
    present: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)
    """Ranks that have been here; some may have left before others are told of, by a daemon that came anew."""
    failure: str = ""
    is_wanted: bool = True

    @property
    def ranks(self) -> range:
        return range(self.grant.first_rank, self.grant.first_rank + self.grant.ranks)

    @property
    def has_run(self) -> bool:
        return len(self.taken) == len(self.ranks)

    def is_of(self, grant: GrantRecord) -> bool:
        """A controller that begins anew gives the same numbers to other jobs."""
        return (self.grant.name, self.grant.token_hash) == (grant.name, grant.token_hash)

    def is_token(self, key: str) -> bool:
        """A controller of before has told none."""
        expected = self.grant.token_hash
        return not expected or hmac.compare_digest(expected, hash_of(key))

    def phase(self) -> HoldPhase:
        if self.present:
            return "running" if self.has_run else "held"
        if self.failure:
            return "failed"
        return "ended" if self.has_run else "held"


class HostSeats:
    """Grants of kind ``seats``. After ``want``, ``joined`` and ``left`` there may be news in ``holds``."""

    def __init__(self) -> None:
        self._seats: dict[int, _Seat] = {}
        self._present: dict[str, dict[int, dict[str, str]]] = {}
        """Keys by parallel ring, rank and job, of all jobs here: some come before their seat is heard of."""
        self._ended: dict[str, dict[int, tuple[str, str]]] = {}
        """Ranks that were gone again before that: key, and why if not in order; the newest jobs last."""

    def want(self, grants: Sequence[GrantRecord]) -> list[CutOff]:
        """These seats are given, and no others. Returns whose processes are to end."""
        wanted = {grant.grant: grant for grant in grants}
        cut_off = []
        for number, seat in list(self._seats.items()):
            if number not in wanted:
                seat.is_wanted = False
                if seat.present:
                    why = "its job was ended by the controller"
                    cut_off.append(CutOff(seat.grant.name, seat.ranks, why))
                else:
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
            for rank, keys in sorted(self._present.get(grant.name, {}).items()):
                for key in keys.values():
                    self._sit(seat, rank, key)
            self._sat(seat)
        return cut_off

    def _sat(self, seat: _Seat) -> None:
        """Ranks that have ended before it was heard of; who showed no token may have been of another job."""
        ended = self._ended.get(seat.grant.name, {})
        its = {
            rank: failure
            for rank, (key, failure) in ended.items()
            if rank in seat.ranks and seat.grant.token_hash and seat.is_token(key)
        }
        if its and len(seat.taken | its.keys()) == len(seat.ranks):
            del self._ended[seat.grant.name]
            seat.taken |= its.keys()
            failures = (_reason(rank, why) for rank, why in sorted(its.items()) if why)
            seat.failure = seat.failure or next(failures, "")

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
                return "the controller has given the job a token, which is not what it shows as its key"
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

    def has_job(self, name: str) -> bool:
        """Whether a controller has placed the job of that name here."""
        return any(seat.grant.name == name for seat in self._seats.values())

    def joined(self, job: str, rank: int, key: str = "") -> None:
        """Its ring stands; said again for each ring."""
        name = _seated_as(job)
        self._present.setdefault(name, {}).setdefault(rank, {})[job] = key
        self._ended.get(name, {}).pop(rank, None)
        for seat in self._seats.values():
            if seat.grant.name == name and seat.is_wanted:
                self._sit(seat, rank, key)
                self._sat(seat)

    def _sit(self, seat: _Seat, rank: int, key: str) -> None:
        if rank in seat.ranks and seat.is_token(key):
            seat.present.add(rank)
            seat.taken.add(rank)

    def left(self, job: str, rank: int, *, failure: str) -> None:
        """``failure``: why it is gone, if it did not leave in order."""
        name = _seated_as(job)
        here = self._present.get(name, {})
        rings = here.get(rank, {})
        key = rings.pop(job, None)
        if key is not None and not any(
            seat.grant.name == name and rank in seat.present for seat in self._seats.values()
        ):
            self._remember(name, rank, key, failure)
        if not rings:
            here.pop(rank, None)
        if not here:
            self._present.pop(name, None)
        for number, seat in list(self._seats.items()):
            if seat.grant.name == name and rank in seat.present:
                seat.failure = seat.failure or (failure and _reason(rank, failure))
                if rings:
                    continue
                seat.present.discard(rank)
                if not seat.present and not seat.is_wanted:
                    del self._seats[number]

    def _remember(self, name: str, rank: int, key: str, failure: str) -> None:
        ranks = self._ended.pop(name, {})
        _, before = ranks.get(rank, ("", ""))
        ranks[rank] = key, before or failure
        self._ended[name] = ranks
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]


def _reason(rank: int, failure: str) -> str:
    """Perhaps in the process's own words."""
    return f"rank {rank}: {failure}"[:REASON_CHARACTERS_MAX]


def _seated_as(job: str) -> str:
    """The job of a parallel ring. What goes on without a lost rank has numbers of its own, and no seat."""
    name = job_name(job)
    return job if name.is_shrunk else name.job
