"""The jobs that share one pool: who has seats, and the coordinator of their turns, which runs here.

A job may have turns when all seats of its ring are known. A seat is known from when its host says so, until
the host says otherwise; until another host of the same ring does, where its own is not connected (rings end
at all hosts); or until nothing was heard of its host for the lease. In the last case it might still use the
pool: then the next turn's epoch takes the slots from it (:mod:`inaproto.core.switch.slot_pools`), its packets
are stale, and its job goes on by the ring of its hosts.

After a restart nothing is decided before all seats of turns that stood have said that they are there, or are
known to be gone, for as long as the lease.

A seat that is heard of and does not answer, or does not go on, keeps the pool for a while only: a turn whose
job stands ends where it is, and who does not drain then is given up (:mod:`inaproto.core.sharing.patience`).
Its session goes on: other jobs have it, too, and a new one would not be of another seat.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple, assert_never

import trio

from inaproto.core.sharing.coordinator import SharingCoordinator
from inaproto.core.sharing.events import (
    FromSeat,
    JobBarred,
    JobDrained,
    JobHeld,
    JobReleased,
    Mark,
    Noted,
    Persist,
    Persisted,
    PoolFree,
    SeatGivenUp,
    SeatGone,
    SeatsChanged,
    SharingAction,
    SharingConfig,
    SharingEvent,
    SharingRecord,
    SharingView,
    Tell,
    TurnRevoked,
    TurnStands,
    TurnView,
    TurnWanted,
    Woke,
)
from inaproto.core.sharing.messages import AT_ONCE, Rule, Seat, SeatMessage
from inaproto.core.sharing.rounds import Phase
from inaproto.errors import Blame
from inaproto.units import Epoch, Instant, JobId, S
from inaproto.wire.sharing_messages import SEATS_MAX, SeatHold
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.service.core_runner import CoreRunner, PutRecord, ToPersist
from inaproto_controller.service.turns.planner import PAUSE_S, PlannerConfig, SeatNews, TurnPlanner
from inaproto_controller.service.turns.store import Floor, decode_record, encode_record

log = logging.getLogger("inaproto.controller")

OWNER: Final = "sharing/"
EQUAL_SEATS_MAX: Final = 128
"""By equal indices each seat of a group is told of all others, not only of those of its job: what there is to
say grows by the square, and more than ``SEATS_MAX`` no message names."""
RETRY_S: Final = 0.05
"""After which a coordinator that had too much to do is told again."""
ROUNDS: Final = frozenset({Phase.PREPARING.value, Phase.DECIDING.value})


class _Ring(NamedTuple):
    """One standing of it: a ring that was given up for another tree comes back with the same id."""

    job: JobId
    ring_id: int
    stand: int


def _ring(hold: SeatHold) -> _Ring:
    return _Ring(JobId(hold.job), hold.ring_id, hold.stand)


class SharingGroup:
    """``send`` takes what the coordinator says to a seat; ``look`` asks for :meth:`plan` soon."""

    def __init__(
        self,
        config: SharingConfig,
        planning: PlannerConfig,
        record: bytes | None,
        *,
        put_record: PutRecord,
        send: Callable[[Tell], None],
        look: Callable[[], None],
        is_connected: Callable[[str], bool],
        acted: Callable[[str, SharingAction], None],
        now: Callable[[], Instant],
    ) -> None:
        self.name = config.group
        is_told_all = config.rule is Rule.EQUAL_INDEX
        self._seats_max = min(config.seats_max, EQUAL_SEATS_MAX) if is_told_all else config.seats_max
        found = None if record is None else decode_record(record)
        self._core = SharingCoordinator(config, found)
        self._runner: CoreRunner[SharingEvent, SharingAction] = CoreRunner(
            OWNER + config.group,
            self._core,
            put_record=put_record,
            persistence=_persistence,
            persisted=Persisted,
            woke=Woke(),
            perform=self._perform,
            now=now,
        )
        self._send, self._look, self._now, self._is_connected = send, look, now, is_connected
        self._acted = acted
        self._planner = TurnPlanner(planning)
        self._capacity = config.capacity
        self._began = Instant(0)
        """The last round."""
        self._holds: dict[Seat, SeatHold | None] = {}
        """Seats that are known; None: of a turn that stood before a restart, not heard of since."""
        self.news: dict[Seat, SeatNews] = {}
        self._wanted: TurnWanted | None = None
        self._told: tuple[Seat, ...] | None = None
        self._granted: Counter[str] = Counter()
        """Turns, by job."""
        self._stood = Epoch(0 if found is None else found.epoch)
        """The newest turn."""
        self._past: dict[tuple[Epoch, Seat], float] = {}
        """Since when seats are past the end of their turn, and have not said that they have drained."""
        self._stood_at: dict[Epoch, float] = {}
        """Of turns that stand."""
        self._gone_untold: dict[Seat, str] = {}
        """Seats that are gone, and why: the coordinator has so much to do that it has not been told yet."""
        self._is_behind = False
        """What the coordinator has to know was not told it."""
        self._held: dict[str, None] = {}
        """Jobs that have no turns, as the coordinator was told."""
        self._over: dict[_Ring, None] = {}
        """Rings of jobs that have ended at one host at least, and have seats yet."""
        self._scope = trio.CancelScope()
        if found is not None:
            self._holds |= _seats_of(found)

    async def run(self) -> None:
        """Until cancelled, or ended."""
        with self._scope:
            await self._runner.run()

    def end(self) -> None:
        self._scope.cancel()

    @property
    def floor(self) -> Floor | None:
        """Below which one in its place must not begin, once nothing is left of it; None: something is."""
        view = self._core.view()
        is_over = view.phase == Phase.IDLE.value and not view.turns and self._runner.is_idle
        return Floor(view.term, self._stood) if is_over and not (self._holds or self._gone_untold) else None

    # --- seats

    @property
    def hosts(self) -> set[str]:
        """That have seats, or had when they were heard last."""
        return {seat.host for seat in self._holds}

    def has(self, seat: Seat) -> bool:
        return seat in self._holds

    def reported(self, host: str, seats: Mapping[Seat, SeatHold]) -> None:
        """All seats that ``host`` has."""
        for seat, hold in list(self._holds.items()):
            if seat.host == host and seat not in seats:
                if hold is not None:
                    self._over[_ring(hold)] = None
                self._gone(seat, "its host has it no more")
        for seat, hold in seats.items():
            self._holds[seat] = hold
            self.news.setdefault(seat, SeatNews(since=self._now() / S))
        self.settle()

    def lost(self, host: str) -> None:
        """Nothing was heard of it for the lease."""
        for seat in [seat for seat in self._holds if seat.host == host]:
            self._gone(seat, "its host is not heard of")
        self.settle()

    def settle(self) -> None:
        """Make the coordinator's seats those that may have turns."""
        self._is_behind = False
        for seat, hold in list(self._holds.items()):
            if hold is None or self._is_connected(seat.host):
                continue
            if _ring(hold) in self._over:
                self._gone(seat, "its ring has ended at another host")
        self._tell_of_gone()
        rings = {_ring(hold) for hold in self._holds.values() if hold is not None}
        self._over = {ring: None for ring in self._over if ring in rings}
        names = {seat.job for seat in self._holds}
        self._granted = Counter({job: turns for job, turns in self._granted.items() if job in names})
        if None in self._holds.values():
            return
        seats = tuple(sorted(seat for job in self._jobs().values() for seat in job))
        if seats != self._told:
            self._is_behind |= not self._tell(SeatsChanged(seats))
            self._told = self._told if self._is_behind else seats
        self._look()

    def _jobs(self) -> dict[JobId, tuple[Seat, ...]]:
        """Those of which one ring's seats are all known, as many as a group takes."""
        rings: dict[_Ring, list[Seat]] = {}
        for seat, hold in self._holds.items():
            if hold is not None:
                rings.setdefault(_ring(hold), []).append(seat)
        complete: dict[JobId, tuple[Seat, ...]] = {}
        for ring, seats in sorted(rings.items()):
            hold = self._holds[seats[0]]
            if hold is not None and len(seats) == hold.hosts and ring not in self._over:
                complete[ring.job] = tuple(seats)
        found: dict[JobId, tuple[Seat, ...]] = {}
        room = self._seats_max
        for job, its in complete.items():
            if len(its) <= min(room, SEATS_MAX):  # more than that could not be told of each other
                found[job] = its
                room -= len(its)
        return found

    def _gone(self, seat: Seat, reason: str) -> None:
        del self._holds[seat]
        self.news.pop(seat, None)
        log.debug("%s: %s", seat, reason)
        self._gone_untold[seat] = reason

    def _tell_of_gone(self) -> None:
        """Nobody says this again, and a seat that is waited for stops all turns: so it is kept until told."""
        for seat, reason in list(self._gone_untold.items()):
            if not self._tell(SeatGone(seat, reason)):
                self._is_behind = True
                return
            del self._gone_untold[seat]

    # --- the coordinator

    def said(self, seat: Seat, message: SeatMessage) -> None:
        self._tell(FromSeat(seat, message))

    def hold(self, jobs: frozenset[str]) -> None:
        """These shall have no turn, and no others: a turn that stands is ended. May be said again."""
        for job in sorted(jobs ^ self._held.keys()):
            if job in jobs and self._tell(JobHeld(JobId(job))):
                self._held[job] = None
            elif job not in jobs and self._tell(JobReleased(JobId(job))):
                del self._held[job]
            self._look()

    def operation(self, job: str) -> int | None:
        """The greatest that a seat of the job has told of."""
        places = [news.place.operation for seat, news in self.news.items() if seat.job == job and news.place]
        return max(places, default=None)

    def steps(self) -> Mapping[JobId, StepTimes]:
        """Steps of jobs whose training step is known."""
        return self._planner.steps()

    def _tell(self, event: SharingEvent) -> bool:
        try:
            self._runner.tell(event)
        except trio.WouldBlock:
            log.warning("sharing group %s: it has more to do than it can", self.name)
            return False
        return True

    def _perform(self, action: SharingAction) -> None:
        self._acted(self.name, action)
        match action:
            case Tell():
                self._send(action)
            case TurnStands(job, epoch, first, until):
                if epoch > self._stood:
                    self._granted[job] += 1
                    log.info("pool %s: turn %d of job %s, from all-reduce %d", self.name, epoch, job, first)
                self._stood = max(self._stood, epoch)
                self._planner.stands(job, epoch, self._now() / S)
                if self._wanted is not None and self._wanted.job == job and until is not None:
                    self._wanted = None
                    self._tell(TurnWanted(None))
                self._look()
            case PoolFree():
                self._look()
            case Noted(mark):
                if mark is Mark.ROUND_BEGUN:
                    self._began = self._now()
                elif mark is Mark.COMMITTED:
                    self._planner.took((self._now() - self._began) / S)
                log.debug("sharing group %s: %s", self.name, mark.value)
                self._look()
            case Blame():
                log.warning("sharing group %s: %s", self.name, action)
            case SeatGivenUp(seat):
                where = f"job {seat.job} on {seat.host}"
                log.warning("pool %s: %s owes an answer, and is not waited for", self.name, where)
            case JobBarred(job, bar):
                seconds = (bar - self._now()) / S
                log.warning("pool %s: job %s does not answer: no turn for %.0f s", self.name, job, seconds)
            case JobDrained() | Persist():
                pass
            case _:
                assert_never(action)

    def plan(self) -> float:
        """Wish for turns; when to do so again, seconds, if nothing happens."""
        if self._is_behind:
            self.settle()
        at_latest = self._now() / S + RETRY_S if self._is_behind else inf
        if self._told is None:
            return at_latest
        view = self._core.view()
        standing = {one.turn.job for one in view.turns}
        now = self._now() / S
        # Who cannot be asked gets no turn, and others need not wait for its votes; nor who would not use it.
        news = {
            job: [self.news[seat] for seat in seats]
            for job, seats in self._jobs().items()
            if job not in self._held
            and job not in view.barred
            and (job in standing or (self._are_connected(seats) and not self._stands_still(seats, now)))
        }
        wish = self._planner.wish(news, view.turns, now)
        at_latest = min(at_latest, self._revoke(news, view, now))
        # Another wish would end a round that is under way; so it waits until that is decided.
        is_new = wish.wanted is not None and wish.wanted != self._wanted
        if is_new and wish.wanted is not None and view.phase not in ROUNDS and self._tell(wish.wanted):
            self._wanted = wish.wanted
        return min(wish.again_at, at_latest)

    def _are_connected(self, seats: Iterable[Seat]) -> bool:
        return all(self._is_connected(seat.host) for seat in seats)

    def _stands_still(self, seats: Iterable[Seat], now: float) -> bool:
        """In an all-reduce that comes to no end."""
        news = [self.news[seat] for seat in seats]
        is_running = any(one.place is not None and one.place.is_running for one in news)
        return is_running and all(one.stops_at(now) <= now for one in news)

    def _revoke(self, news: Mapping[JobId, Sequence[SeatNews]], view: SharingView, now: float) -> float:
        """End the turns of jobs that do not go on, where others could have one; when to look again."""
        epochs = {one.turn.epoch for one in view.turns}
        self._stood_at = {epoch: self._stood_at.get(epoch, now) for epoch in sorted(epochs)}
        self._past = {key: at for key, at in self._past.items() if key[0] in epochs}
        standing = {one.turn.job for one in view.turns}
        is_wanted = len(standing) >= self._capacity and any(job not in standing for job in news)
        again_at = inf
        for one in view.turns:
            if one.turn.until == AT_ONCE or not (is_wanted or one.turn.job in self._held):
                continue
            stops_at = max((self._stops_at(one, seat, now) for seat in one.undrained), default=inf)
            if stops_at > now:
                again_at = min(again_at, stops_at)
            elif self._are_connected(one.undrained):
                job, epoch = one.turn.job, one.turn.epoch
                log.info("pool %s: job %s does not go on, and its turn %d ends", self.name, job, epoch)
                self._tell(TurnRevoked(epoch))
        return again_at

    def _stops_at(self, one: TurnView, seat: Seat, now: float) -> float:
        """When it does not go on in its turn; infinite for one that was not heard of since a restart."""
        news = self.news.get(seat)
        if news is None:
            return inf
        turn, place = one.turn, news.place
        if place is not None and turn.until is not None and place.operation >= turn.until:
            return self._past.setdefault((turn.epoch, seat), now) + PAUSE_S
        return news.stops_at(self._stood_at[turn.epoch])

    def status(self) -> dict[str, Any]:
        """For people and their programs; fields may be added."""
        view = self._core.view()
        return {
            "pool": self.name,
            "term": view.term,
            "phase": view.phase,
            "epoch": self._stood,
            "turns": [
                {
                    "job": one.turn.job,
                    "epoch": one.turn.epoch,
                    "first": one.turn.first,
                    "until": one.turn.until,
                    "undrained": [seat.host for seat in one.undrained],
                }
                for one in view.turns
            ],
            "wanted": view.wanted,
            "round_trip_s": self._planner.round_trip,
            "missing": [f"{seat.job}@{seat.host}" for seat in view.missing],
            "barred": list(view.barred),
            "jobs": {
                job: {
                    "hosts": [seat.host for seat in seats],
                    "turns": self._granted[job],
                    "step_operations": _operations(self.news[seats[0]]),
                }
                for job, seats in self._jobs().items()
            },
            "counters": {name: count for name, count in view.counters.items() if count},
        }


def _operations(news: SeatNews) -> int | None:
    return None if news.pattern is None else len(news.pattern.nbytes)


def _persistence(action: SharingAction) -> ToPersist | None:
    return ToPersist(encode_record(action.record), action.token) if isinstance(action, Persist) else None


def _seats_of(record: SharingRecord) -> dict[Seat, None]:
    seats = [seat for turn in record.turns for seat in turn.seats]
    return dict.fromkeys([*seats, *record.told])
