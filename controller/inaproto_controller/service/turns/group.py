"""Where the core of a sharing group runs at the controller: its store, its clock, its planner, its log.

Whose seats are known, and whose turn is next or ends, is decided by :mod:`inaproto.core.sharing.group`; which
job is to be next, by :mod:`inaproto_controller.service.turns.planner`. What the core has to find again is
written, in order, before it hears so (durable before visible); all else is performed at once.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any, Final, assert_never

import trio

from inaproto.core.sharing.events import (
    JobBarred,
    JobDrained,
    Mark,
    Noted,
    Persist,
    Persisted,
    PoolFree,
    SeatGivenUp,
    SharingAction,
    Tell,
    TurnStands,
    Woke,
)
from inaproto.core.sharing.group import (
    GroupAction,
    GroupConfig,
    GroupEvent,
    HostArrived,
    HostReported,
    Look,
    MayPlan,
    Plan,
    SeatForgotten,
    SeatMeasured,
    SeatMoved,
    SeatsContradict,
    SharingGroup,
    StoodStill,
    Wished,
)
from inaproto.core.steps import Steps
from inaproto.daemon.shell import Alarm
from inaproto.errors import Blame
from inaproto.units import Instant, JobId, S
from inaproto.wire.messages.sharing import Seat, SeatHold
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.service.store.records import PutRecord
from inaproto_controller.service.turns.planner import Place, PlannerConfig, SeatNews, TurnPlanner
from inaproto_controller.service.turns.store import Floor, decode_record, encode_record

log = logging.getLogger("inaproto.controller")

OWNER: Final = "sharing/"
TOLD_AT_ONCE: Final = 64


class GroupRunner:
    """``send`` takes what the coordinator says to a seat, and whether that is among the first
    :data:`TOLD_AT_ONCE` of a step: the rest may be told a little later, in order; ``look`` asks for
    :meth:`plan` soon; ``acted`` hears what else the coordinator does."""

    def __init__(
        self,
        config: GroupConfig,
        planning: PlannerConfig,
        record: bytes | None,
        *,
        put_record: PutRecord,
        send: Callable[[Tell, bool], None],
        look: Callable[[], None],
        connected: Iterable[str],
        acted: Callable[[str, SharingAction], None],
        now: Callable[[], Instant],
    ) -> None:
        self.name = config.sharing.group
        self._core = SharingGroup(config, None if record is None else decode_record(record))
        self._put_record, self._send, self._look, self._now = put_record, send, look, now
        self._acted = acted
        self._planner = TurnPlanner(planning)
        self._plan_again_at = inf
        self._began = Instant(0)
        """The last round."""
        self._news: dict[JobId, dict[Seat, SeatNews]] = {}
        """News of the seats that are known, by job."""
        self._granted: Counter[str] = Counter()
        """Turns, by job."""
        self._epoch = self._core.view().epoch
        self._steps: Steps[GroupEvent] = Steps(self._step)
        self._to_write: deque[Persist] = deque()
        self._changed = trio.Event()
        self._alarm = Alarm(self._deadline, lambda: self.tell(Woke()), now)
        self._scope = trio.CancelScope()
        for host in connected:
            self.tell(HostArrived(host))

    # --- life

    async def run(self) -> None:
        """Until cancelled, or ended. Errors of the store go on to the caller, which leads no more."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._alarm.run)
                while True:
                    self._changed = trio.Event()
                    while self._to_write:
                        persist = self._to_write[0]
                        await self._put_record(OWNER + self.name, encode_record(persist.record))
                        self._to_write.popleft()
                        self.tell(Persisted(persist.token))
                    await self._changed.wait()

    def _deadline(self) -> Instant | None:
        """What is still to be written goes first: until the core has heard of it, it is not late."""
        return None if self._to_write else self._core.deadline

    def end(self) -> None:
        self._scope.cancel()

    @property
    def floor(self) -> Floor | None:
        """Below which one in its place must not begin, once nothing is left of it; None: something is."""
        if self._to_write or not self._core.is_over:
            return None
        view = self._core.view()
        return Floor(view.sharing.term, view.epoch)

    # --- what hosts say

    def reported(self, host: str, holds: Mapping[Seat, SeatHold]) -> None:
        """All seats that ``host`` has."""
        for seat in holds:
            self._news.setdefault(seat.job, {}).setdefault(seat, SeatNews())
        self.tell(HostReported(host, tuple(holds.values())))

    def measured(self, seat: Seat, news: SeatNews) -> None:
        """What is known of the step of the seat's job; ``news`` has no place."""
        its = self._news.get(seat.job, {})
        if (known := its.get(seat)) is not None:
            its[seat] = replace(news, place=known.place)
            self.tell(SeatMeasured(seat, news.step_ns, news.longest_ns))

    def moved(self, seat: Seat, place: Place) -> None:
        its = self._news.get(seat.job, {})
        if (known := its.get(seat)) is not None:
            its[seat] = replace(known, place=place)
            self.tell(SeatMoved(seat, place.operation, place.is_running, Instant(round(place.at * S))))

    def operation(self, job: str) -> int | None:
        """The greatest that a seat of the job has told of."""
        its = self._news.get(JobId(job), {})
        places = [news.place.operation for news in its.values() if news.place]
        return max(places, default=None)

    def steps(self) -> Mapping[JobId, StepTimes]:
        """Steps of jobs whose training step is known."""
        return self._planner.steps()

    # --- the core

    def tell(self, event: GroupEvent) -> None:
        self._steps.post(event)
        self._alarm.look_if_sooner()

    def _step(self, event: GroupEvent) -> None:
        told = 0
        for action in self._core.step(event, self._now()):
            if isinstance(action, Tell):  # of which there may be thousands
                told += 1
                self._send(action, told <= TOLD_AT_ONCE)
            else:
                self._perform(action)

    def plan(self) -> float:
        """Wish for a turn; when to do so again, seconds, if nothing happens."""
        self._plan_again_at = inf
        self.tell(MayPlan())
        return self._plan_again_at

    def _perform(self, action: GroupAction) -> None:
        name, now = self.name, self._now()
        match action:
            case Look():
                self._look()
                return
            case Plan(jobs, turns):
                news = {job: [self._news[job][seat] for seat in seats] for job, seats in jobs}
                wish = self._planner.wish(news, turns, now / S)
                self._plan_again_at = wish.again_at
                self._steps.post(Wished(wish.wanted))
                return
            case SeatForgotten(seat, why, _):
                log.debug("%s: %s", seat, why)
                its = self._news.get(seat.job, {})
                its.pop(seat, None)
                if not its:
                    self._news.pop(seat.job, None)
                    self._granted.pop(seat.job, None)
                return
            case SeatsContradict(job, host):
                log.warning(
                    "pool %s: host %s says of job %s what contradicts the hosts that were there first, and "
                    "has no turns of it",
                    name,
                    host,
                    job,
                )
                return
            case StoodStill(job, epoch):
                log.info("pool %s: job %s does not go on, and its turn %d ends", name, job, epoch)
                return
            case Persist():
                self._to_write.append(action)
                self._changed.set()
            case Tell():
                raise AssertionError("it was sent")
            case TurnStands(job, epoch, first, _):
                if epoch > self._epoch:
                    self._epoch = epoch
                    self._granted[job] += 1
                    log.info("pool %s: turn %d of job %s, from all-reduce %d", name, epoch, job, first)
                self._planner.stands(job, epoch, now / S)
            case Noted(mark):
                if mark is Mark.ROUND_BEGUN:
                    self._began = now
                elif mark is Mark.COMMITTED:
                    self._planner.took((now - self._began) / S)
                log.debug("sharing group %s: %s", name, mark.value)
            case Blame():
                log.warning("sharing group %s: %s", name, action)
            case SeatGivenUp(seat):
                where = f"job {seat.job} on {seat.host}"
                log.warning("pool %s: %s owes an answer, and is not waited for", name, where)
            case JobBarred(job, bar):
                seconds = (bar - now) / S
                log.warning("pool %s: job %s does not answer: no turn for %.0f s", name, job, seconds)
            case JobDrained() | PoolFree():
                pass
            case _:
                assert_never(action)
        self._acted(name, action)

    def status(self) -> dict[str, Any]:
        """For people and their programs; fields may be added."""
        group = self._core.view()
        view = group.sharing
        return {
            "pool": self.name,
            "term": view.term,
            "phase": view.phase,
            "epoch": group.epoch,
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
                    "step_operations": _operations(self._news[job][seats[0]]),
                }
                for job, seats in group.jobs.items()
            },
            "counters": {name: count for name, count in view.counters.items() if count},
        }


def _operations(news: SeatNews) -> int | None:
    return None if news.pattern is None else len(news.pattern.nbytes)
