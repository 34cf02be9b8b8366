"""What a sharing group should agree on next: from its seats, the planner's wish, and which jobs are held.

Part of :mod:`inaproto.core.sharing.coordinator`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from inaproto.core.sharing.events import JobDrained, SharingConfig, TurnWanted
from inaproto.core.sharing.round import Change
from inaproto.core.sharing.standing_turns import Standing, StandingTurns
from inaproto.errors import LocalMisuse
from inaproto.units import JobId
from inaproto.wire.messages.sharing import AT_ONCE, Rule, Seat


@dataclass(slots=True)
class Wishes:
    said: tuple[Seat, ...] | None = None
    """All seats of the group; None: nobody has said."""
    barred: tuple[JobId, ...] = ()
    """Jobs whose seats do not count now."""
    wish: TurnWanted | None = None
    held: dict[JobId, bool] = field(default_factory=dict)
    """Whether it was said that they have drained."""
    _of_job: dict[JobId, tuple[Seat, ...]] = field(default_factory=dict)
    """The seats that were said; each tuple is the same one until they change."""

    @property
    def jobs(self) -> Iterable[JobId]:
        """Those that have seats, barred or not."""
        return self._of_job.keys()

    def seats_of(self, job: JobId) -> tuple[Seat, ...]:
        """Those of it that may be asked."""
        return () if job in self.barred else self._of_job.get(job, ())

    def _all_seats(self) -> tuple[Seat, ...]:
        """Those that may be asked."""
        assert self.said is not None, "they were said"
        return tuple(seat for seat in self.said if seat.job not in self.barred) if self.barred else self.said

    def want(self, wish: TurnWanted) -> None:
        """Raises ``LocalMisuse``, unchanged, for a turn that cannot be."""
        is_none = wish.until is not None and wish.until <= (wish.first or 0)
        if is_none or (wish.operations is not None and wish.operations < 1) or (wish.first or 0) < 0:
            until = "" if wish.until is None else f" until {wish.until}"
            raise LocalMisuse(f"a turn of {wish.operations} operations from {wish.first}{until}")
        self.wish = wish

    def stands(self, job: JobId) -> None:
        """A turn of the job was decided upon: a wish for operations up to a certain one was for that turn."""
        if self.wish is not None and self.wish.until is not None and self.wish.job == job:
            self.wish = None

    def change_seats(self, seats: tuple[Seat, ...], seats_max: int) -> None:
        """Raises ``LocalMisuse``, unchanged, for seats that are too many, or twice there."""
        if len(seats) > seats_max or len(dict.fromkeys(seats)) < len(seats):
            raise LocalMisuse(f"{len(seats)} seats are too many, or one is there twice")
        self._say(seats)

    def _say(self, seats: tuple[Seat, ...]) -> None:
        self.said = seats
        before, of_job = self._of_job, dict[JobId, list[Seat]]()
        for seat in seats:
            of_job.setdefault(seat.job, []).append(seat)
        self._of_job = {job: tuple(its) for job, its in of_job.items()}
        for job, its in self._of_job.items():
            if before.get(job) == its:
                self._of_job[job] = before[job]

    def seat_gone(self, seat: Seat) -> None:
        if self.said is not None and seat in self._of_job.get(seat.job, ()):
            self._say(tuple(one for one in self.said if one != seat))

    def change(self, turns: StandingTurns, config: SharingConfig) -> Change | None:
        """None: all is as it should be, or can be now."""
        wish = self.wish
        if self.said is None:
            return None
        job = None if wish is None else wish.job
        if job is not None and (job in self.held or not self.seats_of(job)):
            job = None
        if job is not None and turns.of_job(job) is not None:
            job = None
        ended = self._turn_to_end(job, turns, config)
        has_room = turns.occupied < config.capacity
        at_once = config.rule is Rule.EQUAL_INDEX and ended is not None
        granted = job if has_room or at_once else None
        if config.rule is Rule.BY_INDEX and granted is not None:
            ended = None
        if granted is None and ended is None:
            return None
        if config.rule is Rule.BY_INDEX:
            whose = granted if ended is None else ended.turn.job
            assert whose is not None, "one of them is"
            seats = self.seats_of(whose)
        else:
            seats = self._all_seats()
        epoch = None if ended is None else ended.turn.epoch
        if granted is None or wish is None:
            return Change(None, None, epoch, seats)
        return Change(granted, wish.operations, epoch, seats, wish.first or AT_ONCE, wish.until)

    def _turn_to_end(
        self, wanted: JobId | None, turns: StandingTurns, config: SharingConfig
    ) -> Standing | None:
        """``wanted``: the job that shall have a turn, and has none."""
        is_open = [one for one in turns if one.is_open]
        for one in is_open:
            if one.turn.job in self.held:
                return one
        if self.wish is None or not is_open:
            return None
        if self.wish.job is None:
            return is_open[0]
        is_full = turns.occupied >= config.capacity
        is_ending = len(is_open) < turns.occupied
        return is_open[0] if wanted is not None and is_full and not is_ending else None

    def drained(self, turns: StandingTurns, granted: JobId | None) -> list[JobDrained]:
        """Jobs that are held, have no turn, and are not being given one; each is said once."""
        drained = [
            job
            for job, is_said in self.held.items()
            if not is_said and job != granted and turns.of_job(job) is None
        ]
        self.held |= dict.fromkeys(drained, True)
        return [JobDrained(job) for job in drained]
