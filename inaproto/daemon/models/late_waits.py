"""What a worker waits for, in words: asked of those who know, once it has waited for some time.

A node of a tree knows how far those below it are, and not whose updates its server lacks, nor why. So a host
whose worker waits asks the server how far everybody is, and then the hosts of those who are behind whether
they have a process at all. That goes beside the trees, on connections of its own, a few at each time and ever
more seldom: it explains, and decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import trio

from inaproto.daemon.models.links import Links
from inaproto.daemon.models.seat import ModelSeat, Waited
from inaproto.errors import JobError
from inaproto.wire.messages.clocks import FOREVER, WorkerId
from inaproto.wire.messages.model_connections import OverlayState

log = logging.getLogger("inaproto.overlay")

LATE_S: Final = 0.5
LOG_S: Final = 5.0
"""A wait of this length is worth a line in the log, and then one of twice that."""
ASK_LAST_S: Final = 30.0
SERVERS_MAX: Final = 3
"""Asked at a time."""
HOSTS_MAX: Final = 32
"""Asked at a time, side by side."""
WORKERS_MAX: Final = 3
"""Named, of each server."""


@dataclass(slots=True)
class _Wait:
    began: float
    ask_at: float
    log_at: float
    is_asking: bool = False


class LateWaits:
    """Reports waits of one host that last; :meth:`run` it."""

    def __init__(self, links: Links, seats: Mapping[str, ModelSeat]) -> None:
        self._links = links
        self._seats = seats
        self._waits: dict[str, _Wait] = {}

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(LATE_S)
                for name, seat in self._seats.items():
                    self._look(name, seat, nursery)

    def _look(self, name: str, seat: ModelSeat, nursery: trio.Nursery) -> None:
        began, now, wait = seat.waits_since, trio.current_time(), self._waits.get(name)
        if wait is not None and began != wait.began:
            if wait.log_at > wait.began + LOG_S:
                log.info("model %s: worker %d goes on", name, seat.worker)
            del self._waits[name]
            wait, seat.why_it_waits = None, ""
        if began is None or now < began + LATE_S:
            return
        if wait is None:
            wait = self._waits[name] = _Wait(began, now, began + LOG_S)
        if (now >= wait.ask_at or seat.is_asked_why) and not wait.is_asking:
            wait.is_asking, seat.is_asked_why = True, False
            nursery.start_soon(self._explain, name, seat, wait)

    async def _explain(self, name: str, seat: ModelSeat, wait: _Wait) -> None:
        reasons, asked_at = dict[object, str](), trio.current_time()
        for waited in seat.waited_for()[:SERVERS_MAX]:
            for of, reason in (await self._why(seat, waited)).items():
                reasons.setdefault(of, reason)
        wait.is_asking = False
        now = trio.current_time()
        lasted = now - wait.began
        wait.ask_at = now + min(max(lasted, LATE_S), ASK_LAST_S)
        if self._waits.get(name) is not wait or seat.waits_since != wait.began:
            return
        seat.why_at = asked_at
        seat.why_it_waits = f"it waits for {'; for '.join(reasons.values())}" if reasons else ""
        if now >= wait.log_at and reasons:
            wait.log_at = now + lasted
            told = seat.why_it_waits.removeprefix("it waits for ")
            log.warning("model %s: worker %d has waited %.0f s for %s", name, seat.worker, lasted, told)

    async def _why(self, seat: ModelSeat, waited: Waited) -> dict[object, str]:
        """By whom or what is waited for, so that what several servers lack is said once."""
        shard, server = waited.shard, waited.shard.server
        known = seat.view(shard).root
        try:
            state = await self._links.ask(shard, server)
        except (OSError, JobError) as error:
            return {server: f"server {server}, which does not answer: {_told(error)}"}
        if state.fault:
            return {server: f"server {server}, which cannot make anything durable: {state.fault}"}
        lost = [worker for worker, clock in known.items() if (state.clocks.get(worker) or 0) < clock]
        if lost:
            has, had = (of.get(lost[0]) or 0 for of in (state.clocks, known))
            text = f"it has update {has} of worker {lost[0]}, and had {_clock(had)}"
            return {
                server: f"server {server}, which has lost what it had said to be on its disk: {text}; "
                "give it its store, or start all hosts anew"
            }
        view = seat.view(shard)
        if not view.is_attached:
            above, links = shard.model.process_of(view.parent), self._links.status(shard)
            why = next((link["error"] for link in links if link["peer"] == above and link["error"]), "")
            text = f"a place in the tree of server {server}, below {above}"
            return {above: f"{text}{': ' if why else ''}{why}"}
        return await self._behind(seat, waited, state)

    async def _behind(self, seat: ModelSeat, waited: Waited, state: OverlayState) -> dict[object, str]:
        """Whose updates the server lacks: those that are not finished. At staleness 0 it lacks those of all
        until the last has come, so their hosts are asked."""
        shard, workers = waited.shard, waited.shard.model.workers
        absent = {pair[0]: pair[1] for pair in state.absent if len(pair) == 2}
        behind = sorted(
            (worker not in absent, clock, (worker - seat.worker) % len(workers), worker)
            for worker, clock in state.clocks.items()
            if clock < min(waited.clock, FOREVER) and worker != seat.worker
        )
        if not behind:
            own = state.clocks.get(WorkerId(seat.worker)) or 0
            text = (
                f"server {shard.server}, which has updates of this worker up to {own}, and lacks later ones"
            )
            return {shard.server: text}
        found: dict[object, str] = {}

        async def look(clock: int, worker: WorkerId) -> None:
            if worker in absent:
                why = f"the host has not been connected for {absent[worker] / 1000:.0f} s"
            else:
                try:
                    there = await self._links.ask(shard, workers[worker])
                except (OSError, JobError) as error:
                    why = f"the host does not answer: {_told(error)}"
                else:
                    clock = max(clock, there.clocks.get(worker) or 0)
                    if clock >= waited.clock:
                        return
                    process = "a" if there.has_process else "no"
                    why = f"it has had {process} process for {there.since_ms / 1000:.0f} s"
            found[worker] = f"worker {worker} of host {workers[worker]}, which is at clock {clock}: {why}"

        async with trio.open_nursery() as nursery:
            for _, clock, _, worker in behind[:HOSTS_MAX]:
                nursery.start_soon(look, clock, worker)
        named = [worker for *_, worker in behind if worker in found][:WORKERS_MAX]
        more = len(found) - len(named) + len(behind[HOSTS_MAX:])
        told: dict[object, str] = {worker: found[worker] for worker in named}
        if more:
            told["more"] = f"{more} more" if told else f"some of {more} workers"
        elif not told:
            told[shard.server] = f"server {shard.server}, which has yet to get what others have finished"
        return told


def _clock(clock: int) -> str:
    return str(clock) if clock < FOREVER else "its leave"


def _told(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
