"""A cluster whose page is pictured: all that a page can show, at times that are always the same.

Two racks; four jobs, of which three run and one waits; turns of two of them at a pool, with rounds of which
some are aborted; a fallback with its reason; a migration that is over and one that is under way; a host and a
switch that do not report; a controller that was started in the middle.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from inaproto.core.migration.moves import STABLE
from inaproto.core.sharing.events import Mark, Noted, PoolFree, TurnStands
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.messages.sharing import Version
from inaproto_controller.service.live_history import LiveHistory
from tests.controller.live_controllers import LiveController, WallClock, live_controller

HOSTS: Final = 12
SUMMING: Final = ("leaf0", "leaf1", "spine0", "spine1")
SILENT: Final = ("h11", "spine1")
AGENTS: Final = HOSTS + len(SUMMING) - len(SILENT)
"""That report."""
CLUSTER: Final[dict[str, Any]] = {
    "hosts": [f"h{number}" for number in range(HOSTS)],
    "switches": [
        *({"name": name, "jobs": 2} for name in ("leaf0", "leaf1")),
        {"name": "spine0", "jobs": 1},
        {"name": "spine1", "jobs": 1},
        {"name": "spine2"},
    ],
    "links": [
        *({"between": [f"h{number}", f"leaf{number // 6}"]} for number in range(HOSTS)),
        *({"between": [f"leaf{rack}", f"spine{spine}"]} for rack in range(2) for spine in range(3)),
    ],
}
POOL: Final = "leaf0 slots"
BERT, VIT, OPT, LATE = "bert-base", "vit-large", "opt-125m", "resnet-50"


@asynccontextmanager
async def pictured(directory: Path) -> AsyncIterator[LiveController]:
    clock = WallClock()
    async with trio.open_nursery() as agents:
        async with live_controller(directory, CLUSTER, clock=clock, outer=agents) as live:
            await _start_agents(live)
            for name, hosts in ((BERT, 4), (VIT, 4), (OPT, 3)):
                await live.submit(name, hosts)
                await live.runs(name)
            await live.submit(LATE, 3)
            await live.until(LATE, lambda job: bool(job.why))
            _before(Past(live.history, clock, 1))
        clock.now += 3.0
        async with live_controller(directory, CLUSTER, clock=clock, outer=agents) as live:
            await live.agents_up(AGENTS)
            _after(Past(live.history, clock, 2))
            yield live
        agents.cancel_scope.cancel()


async def _start_agents(live: LiveController) -> None:
    for name in (*(f"h{number}" for number in range(HOSTS)), *SUMMING):
        if name not in SILENT:
            live.agent("switch" if name in SUMMING else "host", name)
    await live.agents_up(AGENTS)


class Past:
    """What the coordinator of one pool does, one term long."""

    def __init__(self, history: LiveHistory, clock: WallClock, term: int) -> None:
        self.history, self._clock, self._term = history, clock, term
        self._number = 0

    def round(self, outcome: Mark, seconds: float = 0.004) -> None:
        self._number += 1
        version = Version(self._term, self._number)
        self.history.acted(POOL, Noted(Mark.ROUND_BEGUN, version))
        self._clock.now += seconds
        self.history.acted(POOL, Noted(outcome, version))

    def turn(self, epoch: int, job: str, seconds: float, *, ends: bool = True) -> None:
        self.round(Mark.COMMITTED)
        first = OpIndex(100 * epoch)
        until = OpIndex(first + 40) if ends else None
        self.history.acted(POOL, TurnStands(JobId(job), Epoch(epoch), first, until))
        self._clock.now += seconds
        if ends:
            self.history.acted(POOL, PoolFree(Epoch(epoch)))

    def wait(self, seconds: float) -> None:
        self._clock.now += seconds

    def migrates(self, job: str, old: str, new: str, phases: Sequence[tuple[str, float]]) -> None:
        for phase, seconds in phases:
            self.history.migrates(job, old, new, phase)
            self.wait(seconds)


def _before(past: Past) -> None:
    past.wait(4.0)
    past.turn(1, BERT, 6.0)
    past.turn(2, VIT, 5.0)
    past.round(Mark.ABORTED_LATE, 0.05)
    past.wait(1.5)
    past.turn(3, BERT, 7.5)
    past.history.fell_back(VIT, "its tree is given up: switch spine1 is lost")
    past.wait(1.5)
    phases = (("draining", 0.9), ("released", 1.1), ("acquiring", 1.6), (STABLE, 0.5))
    past.migrates(VIT, "spine1", "spine0", phases)
    past.round(Mark.ABORTED_CHANGED)


def _after(past: Past) -> None:
    past.wait(2.5)
    past.turn(4, VIT, 6.5)
    past.turn(5, BERT, 4.0)
    past.migrates(OPT, "leaf1", "spine0", (("draining", 1.2), ("acquiring", 0.8)))
    past.turn(6, VIT, 3.0, ends=False)
