"""The jobs that share one pool, at their controller: who has a seat, and whose turn may be planned or ends.

Around the coordinator of their turns (:mod:`inaproto.core.sharing.coordinator`, MINA IV-B) are four rules
that the paper leaves to whoever runs it:

- **Who has a seat.** A job may have turns when all seats of its ring are known. A seat is known from when its
  host says so, until the host says otherwise; until another host of the same ring does, where its own is not
  connected (rings end at all hosts); or until nothing was heard of its host for the lease; or until none of
  its ring's hosts is connected and another ring of the job is whole, at hosts that all are (the job began
  anew elsewhere). To connect is not to be heard of: a host has to say what it has. In the last two cases it
  might still use the pool: then the next turn's epoch takes the slots from it
  (:mod:`inaproto.core.switch.slot_pools`), its packets are stale, and its job goes on by the ring of its
  hosts.
- **After a restart** nothing is decided before all seats of turns that stood have said that they are there,
  or are known to be gone.
- **Who stands still.** A seat that is heard of and does not go on keeps the pool for a while only: a turn
  whose seats all stand, or pause, ends where it is, if another job could have one. Who does not drain then is
  given up (:mod:`inaproto.core.sharing.patience`).
- **Whom to plan for.** Whose turn is next is for a planner to say, from what it knows of training steps. It
  is asked with ``Plan``, names one of these jobs with ``Wished``, and is asked again after each ``Look``. A
  wish that comes while a round is under way is dropped, since it would end the round.

Invariants: the coordinator is told of a seat only while its ring is complete, and of each that is gone;
``Plan`` names no job that is held, barred or out of reach; a turn is ended for standing still only by what
its seats were heard to say, and only where all that may still be in it are connected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, assert_never

from inaproto.core.sharing.coordinator import SharingCoordinator
from inaproto.core.sharing.events import (
    FromSeat,
    JobHeld,
    JobReleased,
    Noted,
    Persisted,
    PoolFree,
    RingRemoved,
    SeatGone,
    SeatsChanged,
    SharingAction,
    SharingConfig,
    SharingEvent,
    SharingRecord,
    SharingView,
    TurnRevoked,
    TurnStands,
    TurnView,
    TurnWanted,
    Woke,
)
from inaproto.core.sharing.known_seats import KnownSeats, Ring
from inaproto.errors import LocalMisuse
from inaproto.units import Epoch, Instant, JobId, S
from inaproto.wire.messages.sharing import AT_ONCE, Seat, SeatHold, Version

BEGINNING: Final = Instant(0)
CONTRADICT_MAX: Final = 64
"""Hosts that contradict others and are named; there may be more of them."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    sharing: SharingConfig
    lease_ns: int = 30 * S
    """For which nothing may be heard of a host that has seats."""
    pause_ns: int = 2 * S
    pause_steps: int = 2
    """A job that begins no all-reduce for so long, and for so many of its steps, pauses."""
    stall_ns: int = 5 * S
    stall_ratio: int = 8
    """An all-reduce that takes so long, and so many times as long as the greatest one of its step, stands: a
    process of its job was stopped, or a host."""


# --- events: those of the coordinator that its owner or a seat cause, and these


@dataclass(frozen=True, slots=True)
class HostArrived:
    """It is connected, and will say what it has."""

    host: str


@dataclass(frozen=True, slots=True)
class HostDeparted:
    """It is not connected any more."""

    host: str


@dataclass(frozen=True, slots=True)
class HostReported:
    """All seats that the host has in this pool."""

    host: str
    holds: tuple[SeatHold, ...]


@dataclass(frozen=True, slots=True)
class SeatMoved:
    """Where the seat is in its job."""

    seat: Seat
    operation: int
    is_running: bool
    since: Instant


@dataclass(frozen=True, slots=True)
class SeatMeasured:
    """What is known of the training step of its job; 0 for what is not."""

    seat: Seat
    step_ns: int
    longest_ns: int
    """The greatest all-reduce of the step, by the ring of the hosts."""


@dataclass(frozen=True, slots=True)
class JobsHeld:
    """These jobs shall have no turn, and all others may: one that stands is ended. May be said again."""

    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class MayPlan:
    """The planner has time. Answered: ``Plan``, if the seats of the group are known."""


@dataclass(frozen=True, slots=True)
class Wished:
    """The planner's answer; None: nothing is to change."""

    wanted: TurnWanted | None


GroupEvent = (
    HostArrived
    | HostDeparted
    | HostReported
    | SeatMoved
    | SeatMeasured
    | JobsHeld
    | MayPlan
    | Wished
    | FromSeat
    | RingRemoved
    | TurnRevoked
    | Persisted
    | Woke
)


# --- actions: all of the coordinator, and these


@dataclass(frozen=True, slots=True)
class Look:
    """What turns are planned from has changed: say ``MayPlan`` soon."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Say whose turn is to be next."""

    jobs: tuple[tuple[JobId, tuple[Seat, ...]], ...]
    """Those that may have turns, each with all its seats."""
    turns: tuple[TurnView, ...]


@dataclass(frozen=True, slots=True)
class SeatForgotten:
    """The seat is not known any more."""

    seat: Seat
    why: str
    is_lost: bool
    """It was not heard to be gone: it may still use the pool, in turns that its job had."""


@dataclass(frozen=True, slots=True)
class StoodStill:
    """The job does not go on, and its turn ends."""

    job: JobId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SeatsContradict:
    """What the host says of the job is not what those say who were there first, and counts for nothing; said
    once."""

    job: JobId
    host: str


GroupAction = SharingAction | Look | Plan | SeatForgotten | SeatsContradict | StoodStill


@dataclass(frozen=True, slots=True)
class GroupView:
    sharing: SharingView
    epoch: Epoch
    """Epoch of the newest turn."""
    jobs: Mapping[JobId, tuple[Seat, ...]]
    """Those whose seats are all known."""
    knows_seats: bool
    """All seats are known, or lost, that had turns when it began."""
    is_over: bool
    """There is no seat, no turn, and nothing under way."""


@dataclass(frozen=True, slots=True)
class _News:
    """What was heard of a seat last."""

    known: Instant
    """Since when."""
    operation: int | None = None
    is_running: bool = False
    since: Instant = BEGINNING
    """Since when it is at the operation, or in the pause after it."""
    step_ns: int = 0
    longest_ns: int = 0


class SharingGroup:
    """Pure core; see the module. ``step`` never raises for anything that a host or a seat can do."""

    def __init__(self, config: GroupConfig, record: SharingRecord | None = None) -> None:
        """``record``: the last one that was persisted for the group, if any."""
        self._config = config
        sharing = config.sharing
        self._coordinator = SharingCoordinator(sharing, record)
        self._has_begun = False
        self._connected: dict[str, None] = {}
        self._lost_at: dict[str, Instant] = {}
        """When the seats are lost of hosts that have not said what they have since they came or went."""
        self._seats = KnownSeats(() if record is None else _seats_of(record), sharing.seats_max)
        self._news: dict[Seat, _News] = {}
        self._contradict: dict[tuple[JobId, str], None] = {}
        """Jobs and hosts of which it was said."""
        self._told: Mapping[JobId, tuple[Seat, ...]] | None = None
        """Jobs whose seats the coordinator was told of."""
        self._held: tuple[JobId, ...] = ()
        self._wanted: TurnWanted | None = None
        self._stood = Epoch(0) if record is None else record.epoch
        self._stood_at: dict[Epoch, Instant] = {}
        """When the turns that stand were seen first."""
        self._past: dict[tuple[Epoch, Seat], Instant] = {}
        """Since when seats are past the end of their turn, and have not said that they have drained."""
        self._stops_at: Instant | None = None
        """When a turn ends for standing still, if nothing is heard until then."""
        self._looked: Version | None = None
        """Round in which it was looked who stands still: once is enough, who goes on only stops later."""

    @property
    def deadline(self) -> Instant | None:
        first_lost = next(iter(self._lost_at.values()), None)  # they stand in the order of their times
        deadlines = (self._coordinator.deadline, self._stops_at, first_lost)
        return min((one for one in deadlines if one is not None), default=None)

    @property
    def is_over(self) -> bool:
        """There is no seat, no turn, and nothing under way."""
        return not self._seats and self._coordinator.is_idle

    def view(self) -> GroupView:
        return GroupView(
            sharing=self._coordinator.view(),
            epoch=self._stood,
            jobs=self._seats.jobs(),
            knows_seats=self._told is not None and self._seats.are_heard,
            is_over=self.is_over,
        )

    def step(self, event: GroupEvent, now: Instant) -> list[GroupAction]:
        """Raises ``LocalMisuse``, unchanged, for a wish that is out of bounds."""
        match event:
            case FromSeat(seat):  # most are
                return self._tell(event, now) if seat in self._seats else []
            case HostArrived(host):
                self._connected[host] = None
                return []
            case HostDeparted(host):
                self._connected.pop(host, None)
                seats = self._seats.of_host(host)
                if seats:
                    self._lost_at.setdefault(host, Instant(now + self._config.lease_ns))
                actions = [*self._forget_over(seats, now), *self._forget_succeeded(now)]
                return [*actions, *self._settle(now), Look()]
            case HostReported(host, holds):
                return self._reported(host, holds, now)
            case SeatMoved(seat) | SeatMeasured(seat):
                return self._hears(event) if seat in self._news else []
            case JobsHeld(jobs):
                return self._hold(jobs, now)
            case MayPlan():
                return self._plan(now)
            case Wished(wanted):
                return self._wish(wanted, now)
            case RingRemoved() | TurnRevoked() | Persisted():
                return self._tell(event, now)
            case Woke():
                return self._woke(event, now)
            case _:
                assert_never(event)

    def _tell(self, event: SharingEvent, now: Instant) -> list[GroupAction]:
        """The coordinator; what changes by that may be planned for."""
        actions: list[GroupAction] = [*self._coordinator.step(event, now)]
        if not actions:
            return actions
        looks = is_over = False
        for action in actions:
            looks |= isinstance(action, TurnStands | PoolFree | Noted)
            if isinstance(action, TurnStands):
                self._stood = max(self._stood, action.epoch)
                wanted = self._wanted
                is_over |= wanted is not None and wanted.job == action.job and action.until is not None
        if is_over:  # such a wish was for one turn
            self._wanted = None
            actions += self._coordinator.step(TurnWanted(None), now)
        return [*actions, Look()] if looks else actions

    # --- seats

    def _reported(self, host: str, holds: tuple[SeatHold, ...], now: Instant) -> list[GroupAction]:
        self._lost_at.pop(host, None)
        seats = {Seat(JobId(hold.job), host, hold.life): hold for hold in holds}
        actions: list[GroupAction] = []
        over: list[Ring] = []
        for seat in self._seats.of_host(host):
            if seat not in seats:
                ring = self._seats.ring(seat)
                if ring is not None and not self._seats.is_over(ring) and self._seats.is_of(seat, ring):
                    self._seats.end(ring)
                    over.append(ring)
                actions += self._forget(seat, "its host has it no more", now, is_lost=False)
        for seat, hold in seats.items():
            self._seats.put(seat, hold)
            self._news.setdefault(seat, _News(now))
            if self._seats.contradicts(seat):
                actions += self._contradicts(seat)
        for ring in over:
            actions += self._forget_over(self._seats.of_ring(ring), now)
        return [*actions, *self._forget_succeeded(now), *self._settle(now)]

    def _contradicts(self, seat: Seat) -> list[GroupAction]:
        said = seat.job, seat.host
        if said in self._contradict or len(self._contradict) >= CONTRADICT_MAX:
            return []
        self._contradict[said] = None
        return [SeatsContradict(seat.job, seat.host)]

    def _forget_over(self, seats: Iterable[Seat], now: Instant) -> list[GroupAction]:
        """Forget those whose ring has ended at another host, where their own host is not connected."""
        actions: list[GroupAction] = []
        for seat in seats:
            ring = self._seats.ring(seat)
            if ring is not None and self._seats.is_over(ring) and seat.host not in self._connected:
                actions += self._forget(seat, "its ring has ended at another host", now)
        return actions

    def _forget_succeeded(self, now: Instant) -> list[GroupAction]:
        """Forget rings all of whose hosts are gone, and whose job other hosts have now."""
        actions: list[GroupAction] = []
        for ring in self._seats.succeeded(self._connected):
            for seat in self._seats.of_ring(ring):
                actions += self._forget(seat, "its job is at other hosts", now)
        return actions

    def _forget(self, seat: Seat, why: str, now: Instant, *, is_lost: bool = True) -> list[GroupAction]:
        self._seats.remove(seat)
        self._news.pop(seat, None)
        return [SeatForgotten(seat, why, is_lost), *self._tell(SeatGone(seat, why), now)]

    def _settle(self, now: Instant) -> list[GroupAction]:
        """Make the coordinator's seats those that may have turns."""
        jobs = self._seats.jobs()
        if not self._seats.are_heard or jobs is self._told:
            return []
        is_same, self._told = jobs == self._told, jobs
        if is_same:
            return []
        seats = tuple(seat for _, its in sorted(jobs.items()) for seat in its)
        return [*self._tell(SeatsChanged(seats), now), Look()]

    def _hears(self, event: SeatMoved | SeatMeasured) -> list[GroupAction]:
        known = self._news[event.seat]
        if isinstance(event, SeatMoved):
            operation, is_running, since = event.operation, event.is_running, event.since
            known = replace(known, operation=operation, is_running=is_running, since=since)
        else:
            known = replace(known, step_ns=event.step_ns, longest_ns=event.longest_ns)
        self._news[event.seat] = known
        return [Look()]

    def _hold(self, jobs: tuple[JobId, ...], now: Instant) -> list[GroupAction]:
        before, self._held, self._looked = self._held, jobs, None
        actions: list[GroupAction] = []
        for job in sorted({*jobs, *before}):
            if job not in before:
                actions += self._tell(JobHeld(job), now)
            elif job not in jobs:
                actions += self._tell(JobReleased(job), now)
        return [*actions, Look()] if jobs != before else []

    def _woke(self, event: Woke, now: Instant) -> list[GroupAction]:
        if not self._has_begun:
            self._has_begun = True
            for host in dict.fromkeys(seat.host for seat in self._seats.unheard()):
                self._lost_at.pop(host, None)
                self._lost_at[host] = Instant(now + self._config.lease_ns)
        actions: list[GroupAction] = []
        for host in [host for host, at in self._lost_at.items() if at <= now]:
            del self._lost_at[host]
            for seat in self._seats.of_host(host):
                actions += self._forget(seat, "its host is not heard of", now)
        if actions or self._told is None:
            actions += self._settle(now)
        if self._stops_at is not None and self._stops_at <= now:
            actions += [*self._revoke(self._may_have_turns(now), now), Look()]
        return [*actions, *self._tell(event, now)]

    # --- whose turn is next, and whose ends

    def _plan(self, now: Instant) -> list[GroupAction]:
        undecided = self._coordinator.undecided
        if self._told is None or (undecided is not None and undecided == self._looked):
            return []
        self._looked = undecided
        jobs, turns = self._may_have_turns(now), self._coordinator.turns()
        actions = self._revoke(jobs, now)
        # Of whose turn is next it is asked again when the round is decided.
        return actions if undecided is not None else [*actions, Plan(tuple(jobs.items()), turns)]

    def _may_have_turns(self, now: Instant) -> dict[JobId, tuple[Seat, ...]]:
        """Who cannot be asked gets no turn, so others need not wait for it; nor who would not use it."""
        standing, barred = self._coordinator.standing(), self._coordinator.barred
        return {
            job: seats
            for job, seats in self._seats.jobs().items()
            if job not in self._held
            and job not in barred
            and (job in standing or (self._are_connected(seats) and not self._stands_still(seats, now)))
        }

    def _wish(self, wanted: TurnWanted | None, now: Instant) -> list[GroupAction]:
        """Another wish would end a round that is under way; so it is asked for again when that is decided."""
        if wanted is None or wanted == self._wanted or self._coordinator.undecided is not None:
            return []
        before, self._wanted = self._wanted, wanted
        try:
            return self._tell(wanted, now)
        except LocalMisuse:
            self._wanted = before
            raise

    def _are_connected(self, seats: Iterable[Seat]) -> bool:
        return all(seat.host in self._connected for seat in seats)

    def _stands_still(self, seats: Iterable[Seat], now: Instant) -> bool:
        """In an all-reduce that comes to no end."""
        news = [self._news[seat] for seat in seats]
        return any(one.is_running for one in news) and all(self._ends_at(one, now) <= now for one in news)

    def _revoke(self, jobs: Mapping[JobId, object], now: Instant) -> list[GroupAction]:
        """End the turns of jobs that do not go on, where one of ``jobs`` could have one."""
        turns = self._coordinator.turns()
        epochs = [one.turn.epoch for one in turns]
        self._stood_at = {epoch: self._stood_at.get(epoch, now) for epoch in epochs}
        self._past = {key: at for key, at in self._past.items() if key[0] in epochs}
        self._stops_at = None
        standing = {one.turn.job for one in turns}
        is_full = len(standing) >= self._config.sharing.capacity
        is_wanted = is_full and any(job not in standing for job in jobs)
        actions: list[GroupAction] = []
        for one in turns:
            if one.turn.until == AT_ONCE or not (is_wanted or one.turn.job in self._held):
                continue
            ends = [self._stops(one, seat, now) for seat in one.undrained]
            at = None if None in ends else max((end for end in ends if end is not None), default=None)
            if at is not None and at > now:
                self._stops_at = at if self._stops_at is None else min(self._stops_at, at)
            elif at is not None and self._are_connected(one.undrained):
                actions.append(StoodStill(one.turn.job, one.turn.epoch))
                actions += self._tell(TurnRevoked(one.turn.epoch), now)
        return actions

    def _stops(self, one: TurnView, seat: Seat, now: Instant) -> Instant | None:
        """When it does not go on in its turn; None: it has not been heard of since a restart."""
        news, turn = self._news.get(seat), one.turn
        if news is None:
            return None
        if news.operation is not None and turn.until is not None and news.operation >= turn.until:
            past = self._past.setdefault((turn.epoch, seat), now)
            return Instant(past + self._config.pause_ns)
        return self._ends_at(news, self._stood_at[turn.epoch])

    def _ends_at(self, news: _News, stood: Instant) -> Instant:
        """When the seat does not go on, if nothing is heard of it; ``stood``: since when its turn stands."""
        config = self._config
        if news.operation is None:
            return Instant(max(news.known, stood) + config.stall_ns)
        if news.is_running:
            return Instant(news.since + max(config.stall_ns, config.stall_ratio * news.longest_ns))
        return Instant(news.since + max(config.pause_ns, config.pause_steps * news.step_ns))


def _seats_of(record: SharingRecord) -> dict[Seat, None]:
    seats = [seat for turn in record.turns for seat in turn.seats]
    return dict.fromkeys([*seats, *record.told])
