"""What has happened, as people look at it: turns, rounds, migrations, fallbacks.

Bounded. The last of it is in the store as well, written behind (:meth:`LiveHistory.unsaved`), for nobody
decides anything by it: a controller that is killed forgets the last moment of it, and no promise. The counts
are of this process, for its metrics. Who shares a pool tells here what the coordinator of its group does
(:meth:`LiveHistory.acted`); what becomes of trees is read from commits (:meth:`LiveHistory.committed`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from inaproto.core.migration.moves import JOB_OVER, STABLE
from inaproto.core.sharing.events import Mark, Noted, PoolFree, SharingAction, TurnStands
from inaproto.wire.messages.sharing import Version
from inaproto_controller.cluster.desired import Desired, Job
from inaproto_controller.service.history_records import (
    COMMITTED,
    Event,
    Fallback,
    Led,
    RoundSeen,
    TreeMove,
    TurnSeen,
    decode_event,
    encode_event,
)

TURNS_MAX: Final = 4096
ROUNDS_MAX: Final = 1024
EVENTS_MAX: Final = 256
"""Fallbacks, migrations and leaders that are remembered each."""
TEXT_MAX: Final = 300
_ABORTS: Final = {
    Mark.ABORTED_UNEQUAL: "unequal",
    Mark.ABORTED_IN_INA: "in_ina",
    Mark.ABORTED_LATE: "late",
    Mark.ABORTED_REFUSED: "refused",
    Mark.ABORTED_CHANGED: "changed",
}
_SAID_TWICE: Final = "round aborted: "
"""Marks that begin so are of what has its place anyway."""
TREE_LOST: Final = "its tree is given up: a switch of it is lost, or is not in the cluster file any more"

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Unsaved:
    """Since it was asked last."""

    rows: Sequence[tuple[int, str]]
    """Rows by number, in the place of those before."""
    gone: Sequence[int]


class LiveHistory:
    """Not thread-safe: of one Trio program."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self.now = wall_clock
        self.since = wall_clock()
        self.rounds: dict[str, int] = dict.fromkeys(("begun", "committed"), 0)
        self.aborts: dict[str, int] = dict.fromkeys(_ABORTS.values(), 0)
        """Aborts by why."""
        self._counts = {"turns": 0, "fallbacks": 0, "migrations": 0}
        self._forget_all()

    def _forget_all(self) -> None:
        self._next = 1
        self._unsaved: dict[int, Event] = {}
        self._gone: dict[int, None] = {}
        self._turns: _Kept[TurnSeen] = _Kept(TURNS_MAX, self._note, lambda turn: turn.ended_at is not None)
        self._rounds: _Kept[RoundSeen] = _Kept(ROUNDS_MAX, self._note)
        self._fallbacks: _Kept[Fallback] = _Kept(EVENTS_MAX, self._note)
        self._moves: _Kept[TreeMove] = _Kept(EVENTS_MAX, self._note)
        self._led: _Kept[Led] = _Kept(EVENTS_MAX, self._note)
        self._deciding: dict[str, Version] = {}
        """Round of each pool that has just been committed."""
        self._moving: dict[str, int] = {}
        """Job: key of its migration that is under way."""
        self._roots: dict[int, str] = {}
        """Last root of live jobs, by number, though the tree was given up."""

    # -- kept beyond this process

    def led(self, term: int, rows: Iterable[tuple[int, str]], desired: Desired) -> None:
        """This controller leads; ``rows``: what leaders before it have left in the store."""
        self._forget_all()
        last = 0.0
        for number, body in rows:
            self._next = max(self._next, number + 1)
            event = decode_event(body)
            if event is None:
                self._gone[number] = None
                continue
            last = max(last, _last_time(event))
            self._restore(number, event)
        # A turn that stands is said again by the coordinator of its group.
        for key, turn in self._turns.items():
            if turn.ended_at is None:
                self._turns.put(key, replace(turn, ended_at=max(last, turn.began_at)))
        self._led.put(term, Led(term, self.now()))
        for job in desired.live():
            if job.tree is not None:
                self._roots[job.number] = job.tree.root

    def _restore(self, number: int, event: Event) -> None:
        match event:
            case TurnSeen():
                self._turns.restore(number, (event.pool, event.epoch), event)
            case RoundSeen():
                self._rounds.restore(number, (event.pool, event.term, event.number), event)
            case Fallback():
                self._fallbacks.restore(number, number, event)
            case TreeMove():
                self._moves.restore(number, number, event)
                if event.ended_at is None:
                    self._moving[event.job] = number
            case Led():
                self._led.restore(number, event.term, event)

    def _note(self, number: int | None, event: Event | None) -> int:
        """What is kept has changed; None: it is new, or it is gone. Returns its number."""
        if number is None:
            number, self._next = self._next, self._next + 1
        if event is None:
            self._unsaved.pop(number, None)
            self._gone[number] = None
        else:
            self._unsaved[number] = event
        return number

    def unsaved(self, most: int) -> Unsaved:
        """Next ``most`` rows of what has to be written so that the store has all of this. They are given
        once."""
        gone = list(islice(self._gone, most))
        numbers = list(islice(self._unsaved, most - len(gone)))
        for number in gone:
            del self._gone[number]
        return Unsaved([(number, encode_event(self._unsaved.pop(number))) for number in numbers], gone)

    # -- what happens

    def acted(self, pool: str, action: SharingAction) -> None:
        """The coordinator of the group that shares ``pool`` did this; what is of no interest here is passed
        over."""
        match action:
            case TurnStands():
                self._turn_stands(pool, action)
            case PoolFree(epoch):
                seen = self._turns.get((pool, epoch))
                if seen is not None and seen.ended_at is None:
                    self._turns.put((pool, epoch), replace(seen, ended_at=self.now()))
            case Noted(Mark.ROUND_BEGUN, version):
                self.rounds["begun"] += 1
                self._deciding.pop(pool, None)
                self._rounds.put(
                    (pool, version.term, version.number),
                    RoundSeen(pool, version.term, version.number, self.now()),
                )
            case Noted(Mark.COMMITTED, version):
                self.rounds["committed"] += 1
                self._round_ended(pool, version, COMMITTED)
                self._deciding[pool] = version
            case Noted(mark, version) if mark in _ABORTS:
                self.aborts[_ABORTS[mark]] += 1
                self._round_ended(pool, version, mark.value.removeprefix(_SAID_TWICE))
                self._deciding.pop(pool, None)
            case Noted():
                self._deciding.pop(pool, None)
            case _:
                pass

    def _turn_stands(self, pool: str, said: TurnStands) -> None:
        key = (pool, said.epoch)
        seen = self._turns.get(key)
        if seen is None:
            self._counts["turns"] += 1
            turn = TurnSeen(pool, said.job, said.epoch, said.first, said.until, self.now())
            self._turns.put(key, turn)
            self._decided(pool, f"turn {said.epoch} to {said.job}, from all-reduce {said.first} on")
        elif (seen.until, seen.ended_at) != (said.until, None):
            self._turns.put(key, replace(seen, until=said.until, ended_at=None))
            if seen.until != said.until:
                self._decided(pool, f"turn {said.epoch} of {said.job} ends before all-reduce {said.until}")

    def _round_ended(self, pool: str, version: Version, outcome: str) -> None:
        key = (pool, version.term, version.number)
        seen = self._rounds.get(key)
        if seen is not None:
            self._rounds.put(key, replace(seen, ended_at=self.now(), outcome=outcome))

    def _decided(self, pool: str, what: str) -> None:
        """Note turns, of which a coordinator speaks right after it has said that a round is committed."""
        version = self._deciding.get(pool)
        if version is None:
            return
        key = (pool, version.term, version.number)
        seen = self._rounds.get(key)
        if seen is not None and len(seen.what) < TEXT_MAX:
            self._rounds.put(key, replace(seen, what=f"{seen.what}; {what}" if seen.what else what))

    def fell_back(self, job: str, reason: str) -> None:
        """From now on hosts sum for ``job``."""
        self._counts["fallbacks"] += 1
        fallback = Fallback(job[:TEXT_MAX], reason[:TEXT_MAX], self.now())
        self._fallbacks.put(self._next, fallback)

    def migrates(self, job: str, old: str, new: str, phase: str) -> None:
        """A live job goes from the tree with the root ``old`` to another; ``phase`` begins now. The same job
        again, before it is stable: another phase, or another tree to go to."""
        now = self.now()
        key = self._moving.get(job)
        move = None if key is None else self._moves.get(key)
        if key is None or move is None:
            self._counts["migrations"] += 1
            key = self._moving[job] = self._next
            move = TreeMove(job, old, new, now)
        if not move.phases or move.phases[-1][0] != phase:
            move = replace(move, phases=(*move.phases, (phase, now))[-EVENTS_MAX:])
        if phase in (STABLE, JOB_OVER):
            self._moving.pop(job)
            move = replace(move, ended_at=now)
        self._moves.put(key, replace(move, new=new))

    def committed(self, before: Desired, after: Desired) -> None:
        """Trees that changed are noted."""
        for number, job in after.jobs.items():
            if job is not before.jobs.get(number):
                self._job_changed(before.jobs.get(number), job)
        for number in before.jobs.keys() - after.jobs.keys():
            self._roots.pop(number, None)

    def _job_changed(self, old: Job | None, job: Job) -> None:
        if not job.state.is_live:
            self._roots.pop(job.number, None)
            self._stop_moving(job.spec.name)
        elif job.tree is not None:
            root = self._roots.get(job.number, job.tree.root)
            changed = old is not None and old.tree not in (None, job.tree)
            if (changed or root != job.tree.root) and job.spec.name not in self._moving:
                self._counts["migrations"] += 1
                now = self.now()
                self._moves.put(self._next, TreeMove(job.spec.name, root, job.tree.root, now, (), now))
            self._roots[job.number] = job.tree.root
        elif old is not None and old.tree is not None and job.hosts and job.spec.name not in self._moving:
            self.fell_back(job.spec.name, TREE_LOST)

    def _stop_moving(self, job: str) -> None:
        """It is over before it had its new tree."""
        key = self._moving.pop(job, None)
        move = None if key is None else self._moves.get(key)
        if key is not None and move is not None:
            now = self.now()
            self._moves.put(key, replace(move, phases=(*move.phases, (JOB_OVER, now)), ended_at=now))

    # -- what is told

    def turns(self, since: float) -> list[TurnSeen]:
        """Those that had not ended then, in the order in which they began."""
        return [one for one in self._turns.values() if one.ended_at is None or one.ended_at > since]

    @property
    def last_rounds(self) -> list[RoundSeen]:
        """These and the following in the order in which they began."""
        return self._rounds.values()

    @property
    def fallbacks(self) -> list[Fallback]:
        return self._fallbacks.values()

    @property
    def moves(self) -> list[TreeMove]:
        return self._moves.values()

    @property
    def leaders(self) -> list[Led]:
        return self._led.values()

    def status(self) -> dict[str, Any]:
        standing = sum(one.ended_at is None for one in self._turns.values())
        return {
            "since": self.since,
            **self._counts,
            "turns_standing": standing,
            "rounds": dict(self.rounds),
            "aborts": dict(self.aborts),
        }


class _Kept(Generic[E]):
    """The last events of a kind, by a key of theirs. ``note`` hears of each change; ``may_go``: which go
    first when there are too many."""

    def __init__(
        self,
        limit: int,
        note: Callable[[int | None, Event | None], int],
        may_go: Callable[[E], bool] = lambda event: True,
    ) -> None:
        self._limit, self._note, self._may_go = limit, note, may_go
        self._events: dict[Hashable, tuple[int, E]] = {}

    def get(self, key: Hashable) -> E | None:
        found = self._events.get(key)
        return None if found is None else found[1]

    def put(self, key: Hashable, event: E) -> None:
        old = self._events.get(key)
        self._events[key] = (self._note(None if old is None else old[0], event), event)
        self._shrink()

    def restore(self, number: int, key: Hashable, event: E) -> None:
        self._events[key] = (number, event)
        self._shrink()

    def _shrink(self) -> None:
        if len(self._events) > self._limit:
            over = next((key for key, (_, one) in self._events.items() if self._may_go(one)), None)
            number, _ = self._events.pop(next(iter(self._events)) if over is None else over)
            self._note(number, None)

    def items(self) -> list[tuple[Hashable, E]]:
        return [(key, event) for key, (_, event) in self._events.items()]

    def values(self) -> list[E]:
        return [event for _, event in self._events.values()]


def _last_time(event: Event) -> float:
    match event:
        case TurnSeen() | RoundSeen():
            return event.began_at if event.ended_at is None else event.ended_at
        case TreeMove():
            return max(event.at, event.ended_at or 0.0, *(at for _, at in event.phases))
        case Fallback() | Led():
            return event.at
