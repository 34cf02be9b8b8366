"""How long a sharing group waits for a seat that says nothing: nobody may keep a pool from all others.

Part of :mod:`inaproto.core.sharing.coordinator`; the rules are in docs/protocol.md 15.7. The
paper is silent on seats that are connected and do not answer. A seat that is not heard of is lost in the end
(its owner says so); but one may be heard of all the time, and never say what it owes: its program stands, or
is of another version and cannot read what it is told, or connects again and again. Two things are counted:

- since when it owes what it can say at once: that it has done what was decided, or has drained from a turn
  that has ended where it is. After ``mute_ns`` it is *given up*: no longer waited for, as if it were gone.
  What it still sends into the pool is stale, by the epoch of the next turn.
- how many rounds in a row did not come about because seats of a job voted late, or refused; or, by equal
  indices, were at different operations, and at the same ones each time: one of its processes stands. As the
  paper has it, no other job would get a turn until it goes on.

In both cases its job is *barred*: for the group it has no seats, so it has no turn, and others have; for
longer each time, until it has done well for a while. A seat of it that votes afterwards gives up all older
turns, as always. One that was in doubt may have been told that a round was aborted which was committed before
it was given up: then it goes on without the turn that was granted, or in the one that was ended, alone.

A seat that was given up is told that its turn is over, again when its job is taken in: one that hears
that late has run operations by INA which its peers ran by the fallback, and each of these had to be rescued.

Reconnecting resets nothing here, for nothing here is of a connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from inaproto.core.sharing.events import PatienceConfig
from inaproto.units import Epoch, Instant, JobId, OpIndex
from inaproto.wire.messages.sharing import Drained, Seat, SeatMessage, Version, Vote

_REMEMBERED: Final = 4
"""Times the length of its last bar after which a job begins with the shortest one again."""

Owed = Version | Epoch
"""What seats are to be done with, or drained from: all that owe it have owed it since the same instant."""


@dataclass(frozen=True, slots=True)
class Bar:
    until: Instant
    doublings: int
    has_ended: bool = False


@dataclass(slots=True)
class Patience:
    """Without a configuration there is no end to it."""

    config: PatienceConfig | None
    _owed: dict[Owed, Instant] = field(default_factory=dict)
    _failed: dict[JobId, int] = field(default_factory=dict)
    """Rounds in a row."""
    _places: dict[JobId, dict[Seat, OpIndex]] = field(default_factory=dict)
    """Where its seats were when a round failed because they were apart."""
    _bars: dict[JobId, Bar] = field(default_factory=dict)
    given_up: dict[Seat, Epoch] = field(default_factory=dict)
    """Seats that may use the pool yet in the turn of that epoch, or an older one."""

    @property
    def deadline(self) -> Instant | None:
        config = self.config
        if config is None or not (self._owed or self._bars):
            return None
        mute = [Instant(since + config.mute_ns) for since in self._owed.values()]
        bars = [bar.until for bar in self._bars.values() if not bar.has_ended]
        return min([*mute, *bars], default=None)

    @property
    def barred(self) -> tuple[JobId, ...]:
        return tuple(job for job, bar in self._bars.items() if not bar.has_ended)

    def until(self, job: JobId) -> Instant:
        """When the bar of a job ends."""
        return self._bars[job].until

    def owes(self, owed: Iterable[Owed], now: Instant) -> None:
        """Remembers since when each of these is owed; this is all that is owed now."""
        if self.config is not None:
            self._owed = {one: self._owed.get(one, now) for one in owed}

    def mute(self, now: Instant) -> list[Owed]:
        """What has been owed for too long, by whoever owes it yet."""
        config = self.config
        if config is None:
            return []
        return [one for one, since in self._owed.items() if now - since >= config.mute_ns]

    def voted(self, jobs: Iterable[JobId]) -> None:
        """All seats of these jobs that were asked have voted."""
        for job in jobs:
            self._failed.pop(job, None)
            self._places.pop(job, None)

    def heard(self, message: SeatMessage) -> None:
        """A seat that votes has given up all older turns; or it says that it has drained."""
        epoch = self.given_up.get(message.seat)
        if epoch is None:
            return
        if isinstance(message, Vote) or (isinstance(message, Drained) and message.epoch >= epoch):
            del self.given_up[message.seat]

    def failed(self, jobs: Iterable[JobId], now: Instant) -> list[JobId]:
        """A round has failed because of these jobs; which of them are barred by that."""
        config, barred = self.config, []
        if config is None:
            return []
        for job in jobs:
            self._failed[job] = self._failed.get(job, 0) + 1
            if self._failed[job] >= config.failed_max:
                self._failed[job] = config.failed_max - 1  # the first round afterwards is a trial
                self.bar(job, now)
                barred.append(job)
        return barred

    def apart(self, job: JobId, places: Mapping[Seat, OpIndex], now: Instant) -> list[JobId]:
        """A round has failed because this job's seats, of which these were heard, are at different
        operations; who is barred by that."""
        if self.config is None:
            return []
        before = self._places.setdefault(job, {})
        if any(before.get(seat, place) != place for seat, place in places.items()):
            before.clear()
            self._failed.pop(job, None)
        before.update(places)
        return self.failed([job], now)

    def bar(self, job: JobId, now: Instant) -> None:
        """Bars the job, or bars it for longer."""
        config, before = self.config, self._bars.get(job)
        if config is None:
            return
        doublings = 0
        if before is not None:
            is_forgotten = now - before.until >= _REMEMBERED * (config.bar_ns << before.doublings)
            doublings = 0 if is_forgotten else min(before.doublings + 1, config.bar_doublings_max)
        self._bars[job] = Bar(Instant(now + (config.bar_ns << doublings)), doublings)

    def lift(self, now: Instant) -> list[JobId]:
        """Ends the bars that are over; which jobs they were of."""
        over = [job for job, bar in self._bars.items() if not bar.has_ended and bar.until <= now]
        for job in over:
            bar = self._bars[job]
            self._bars[job] = Bar(bar.until, bar.doublings, has_ended=True)
        return over

    def keep(self, jobs: Iterable[JobId], now: Instant) -> None:
        """Forgets other jobs, which have no seats in the group, once they are not barred."""
        if self.config is None:
            return
        here = frozenset(jobs)  # looked up, never iterated
        self._failed = {job: count for job, count in self._failed.items() if job in here}
        self._places = {job: places for job, places in self._places.items() if job in here}
        self.given_up = {seat: epoch for seat, epoch in self.given_up.items() if seat.job in here}
        self._bars = {job: bar for job, bar in self._bars.items() if job in here or not bar.has_ended}
