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
WORKERS_MAX: Final = 3
"""Asked at a time."""


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
        reasons, asked_at = dict[str, None](), trio.current_time()
        for waited in seat.waited_for()[:SERVERS_MAX]:
            for reason in await self._why(seat, waited):
                reasons[reason] = None
        wait.is_asking = False
        now = trio.current_time()
        lasted = now - wait.began
        wait.ask_at = now + min(max(lasted, LATE_S), ASK_LAST_S)
        if self._waits.get(name) is not wait or seat.waits_since != wait.began:
            return
        seat.why_at = asked_at
        seat.why_it_waits = f"it waits for {'; for '.join(reasons)}" if reasons else ""
        if now >= wait.log_at and reasons:
            wait.log_at = now + lasted
            told = seat.why_it_waits.removeprefix("it waits for ")
            log.warning("model %s: worker %d has waited %.0f s for %s", name, seat.worker, lasted, told)

    async def _why(self, seat: ModelSeat, waited: Waited) -> list[str]:
        shard, model = waited.shard, seat.model
        try:
            state = await self._links.ask(shard, shard.server)
        except (OSError, JobError) as error:
            return [f"server {shard.server}, which does not answer: {_told(error)}"]
        if state.fault:
            return [f"server {shard.server}, which cannot make anything durable: {state.fault}"]
        clocks, absent = state.clocks, {pair[0]: pair[1] for pair in state.absent if len(pair) == 2}
        behind = sorted(
            (clock, worker)
            for worker, clock in clocks.items()
            if clock < min(waited.clock, FOREVER) and worker != seat.worker
        )
        if not behind:
            own = clocks.get(WorkerId(seat.worker)) or 0
            return [
                f"server {shard.server}, which has updates of this worker up to {own}, and lacks later ones"
            ]
        found = []
        for clock, worker in behind[:WORKERS_MAX]:
            host = model.workers[worker]
            who = f"worker {worker} of host {host}, which is at clock {clock}"
            if worker in absent:
                found.append(f"{who}: the host has not been connected for {absent[worker] / 1000:.0f} s")
                continue
            try:
                there = await self._links.ask(shard, host)
            except (OSError, JobError) as error:
                found.append(f"{who}: the host does not answer: {_told(error)}")
            else:
                found.append(f"{who}{_process(there)}")
        if len(behind) > WORKERS_MAX:
            found.append(f"{len(behind) - WORKERS_MAX} more")
        return found


def _process(there: OverlayState) -> str:
    lasts = f"for {there.since_ms / 1000:.0f} s"
    return f": it has had {'a' if there.has_process else 'no'} process {lasts}"


def _told(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
