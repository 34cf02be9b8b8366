"""The campaign: the demo's jobs train, clients come and go, and controllers are killed again and again.

First some of the kills hit a controller that nobody is connected to: what training stands still for then is
the machine's. At the end all jobs end, the controllers are killed once more, and whoever leads next has to
find nothing that is anybody's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from inaproto_controller.service.job_client import ControllerRefused, ControllerUnreachable, JobClient
from inaproto_hil.crashes import leftovers
from inaproto_hil.crashes.clients import Clients
from inaproto_hil.crashes.cluster import CrashCluster
from inaproto_hil.crashes.crowd import Crowd
from inaproto_hil.crashes.leases import Leases
from inaproto_hil.crashes.moments import draw
from inaproto_hil.crashes.promises import Promises
from inaproto_hil.crashes.strikes import Strikes
from inaproto_hil.crashes.training import Training
from inaproto_hil.crashes.witness import Witness
from inaproto_hil.demo.sharing import Config, until
from inaproto_hil.rigs.cluster import ClusterError

STORMS: Final = 2
TENANTS: Final = 1
CROWD: Final = 4
"""Clients whose jobs are on agents, if there are some."""
END_S: Final = 600.0
LOOK_S: Final = 0.1
WARM_STEPS: Final = 4
"""Steps of all jobs together before the first kill."""


@dataclass(frozen=True, slots=True)
class Plan:
    first: int = 0
    """Number of the first kill."""
    stop: int = 200
    decoys: int = 50
    """Kills of nobody's controller, before these."""
    seed: int = 1
    slower: float = 4.0
    """Steps of the jobs, than they were measured."""
    lease_ms: int = 3000
    database: str = ""
    agents: int = 0
    """Hosts beside those of the demo, of which each has an agent and no daemon."""
    timeout_s: float = 60.0
    """Limit of an all-reduce."""


@dataclass(slots=True)
class Violation:
    kill: int
    """The last one before it was found."""
    text: str


@dataclass(slots=True)
class Phase:
    name: str
    began: float
    ended: float = 0.0
    kills: int = 0
    recoveries: int = 0
    """Rings that ended in the middle of their jobs, on all hosts together."""
    paths: dict[str, int] = field(default_factory=dict)
    """All-reduces, by path."""


@dataclass(slots=True)
class Findings:
    plan: Plan
    wall_s: float = 0.0
    start_s: float = 0.0
    """Time that a controller took to start."""
    phases: list[Phase] = field(default_factory=list)
    stops: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Stops by job: when each began, and how long it was."""
    gaps: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=dict)
    """Kills by what they were aimed at, and whether that was seen."""
    kill_times: list[tuple[int, float]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    """On the ways between controllers and agents, and by clients."""
    paths: dict[str, int] = field(default_factory=dict)
    leases: Leases = field(default_factory=Leases)
    """Leases of seats."""


class Campaign:
    """``say`` hears of every kill: the phase, how many there were in it, and how many violations in all."""

    def __init__(self, cluster: CrashCluster, plan: Plan, say: Callable[[str, int, int], None]) -> None:
        self._cluster, self._plan, self._say = cluster, plan, say
        self._witness = Witness(lease_s=plan.lease_ms / 1000)
        self._promises = Promises()
        config = Config(seed=plan.seed, slower=plan.slower, timeout_s=plan.timeout_s)
        self._training = Training(cluster, config)
        self.findings = Findings(plan)
        self._number = plan.first
        self._told: dict[int, int] = {}
        """How many of each list of faults have become violations."""

    async def run(self) -> Findings:
        began = time.monotonic()
        plan, training = self._plan, self._training
        self._strikes = Strikes(self._cluster, self._witness)
        self._clients = Clients(
            self._cluster, self._promises, f"{plan.seed}/{plan.first}", self._strikes.answered
        )
        async with trio.open_nursery() as nursery:
            for relay in self._strikes.relays:
                await nursery.start(relay.run)
            crowd = Crowd(self._cluster, self._clients, self._promises, f"{plan.seed}/{plan.first}")
            nursery.start_soon(crowd.run)
            async with trio.open_nursery() as running:
                running.start_soon(training.run)
                for number in range(STORMS):
                    running.start_soon(self._clients.storm, number)
                for number in range(TENANTS):
                    running.start_soon(self._clients.tenant, number)
                for number in range(CROWD if plan.agents else 0):
                    running.start_soon(crowd.client, number)
                running.start_soon(self._clients.keep_auditing)
                await until("the jobs are at work", lambda: training.steps() >= WARM_STEPS)
                await until("a job has a turn", lambda: self._witness.counts["turns"] > 0)
                await until("its all-reduces use it", lambda: training.paths["switch"] > 0)
                await self._kill_all()
                training.finish()
                self._clients.stop = True
                running.cancel_scope.deadline = trio.current_time() + END_S
            if running.cancel_scope.cancelled_caught:
                waiting = ", ".join(self._clients.waiting) or "none"
                text = f"jobs were not over in {END_S:g} s; of clients' own, these were waited for: {waiting}"
                self.findings.violations.append(Violation(self._number, text))
            await self._end()
            nursery.cancel_scope.cancel()
        self._collect()
        self.findings.wall_s = time.monotonic() - began
        return self.findings

    # --- kills

    async def _kill_all(self) -> None:
        plan = self._plan
        for decoy, numbers in (
            (True, range(plan.first, plan.first + plan.decoys)),
            (False, range(plan.first, plan.stop)),
        ):
            if not numbers:
                continue
            phase = Phase("decoy" if decoy else "kills", trio.current_time())
            recoveries, paths = await self._recoveries(), Counter(self._training.paths)
            self.findings.phases.append(phase)
            for number in numbers:
                self._number = number
                await self._kill(number, decoy=decoy)
                phase.kills += 1
                self._say(phase.name, phase.kills, len(self.findings.violations))
            await self._settled()
            phase.ended = trio.current_time()
            phase.recoveries = await self._recoveries() - recoveries
            phase.paths = dict(Counter(self._training.paths) - paths)

    async def _recoveries(self) -> int:
        hosts = range(self._cluster.config.hosts)
        statuses = [await trio.to_thread.run_sync(self._cluster.host_status, host) for host in hosts]
        return sum(status["totals"]["recoveries"] for status in statuses)

    async def _kill(self, number: int, *, decoy: bool) -> None:
        moment = draw(self._plan.seed, number, file=not self._plan.database)
        with trio.fail_after(END_S):
            name = await self._strikes.kill(moment, decoy=decoy)
        if not decoy:
            self.findings.kill_times.append((number, trio.current_time()))
        self._cluster.start_again(name)
        self._cluster.check()
        self._look_at_faults()

    async def _settled(self) -> None:
        """A controller leads again, and jobs have gone on with it."""
        await self._strikes.until_led()
        steps = self._training.steps()
        with trio.move_on_after(10):  # the visitor's count begins anew, now and then
            while self._training.steps() < steps + WARM_STEPS:  # noqa: ASYNC110
                await trio.sleep(LOOK_S)

    def _look_at_faults(self) -> None:
        for faults in (self._witness.faults, self._promises.faults, self._training.faults):
            before = self._told.get(id(faults), 0)
            self._told[id(faults)] = len(faults)
            self.findings.violations += [Violation(self._number, text) for text in faults[before:]]

    # --- the end

    async def _end(self) -> None:
        """What is left when a controller that was started anew has seen everybody."""
        for name in self._cluster.controllers:
            self._cluster.kill(name, self._cluster.life(name))
            self._cluster.start_again(name)
        left: list[str] = ["nobody has answered"]
        with trio.move_on_after(END_S):
            while left:
                await trio.sleep(LOOK_S)
                left = await self._left()
        await self._audit()
        self._look_at_faults()
        self.findings.violations += [Violation(self._number, f"is left at the end: {text}") for text in left]
        if self._training.tally.differs:
            text = f"{self._training.tally.differs} results are not numpy's"
            self.findings.violations.append(Violation(self._number, text))

    async def _audit(self) -> None:
        with trio.move_on_after(END_S):
            while True:
                try:
                    await self._clients.audit()
                    return
                except ControllerUnreachable:
                    await trio.sleep(LOOK_S)
        self.findings.violations.append(Violation(self._number, "no controller answers at the end"))

    async def _left(self) -> list[str]:
        statuses = [await self._controllers_word(name) for name in self._cluster.controllers]
        leading = [status for status in statuses if status is not None and status["leads"]]
        if len(leading) != 1:
            return [f"{len(leading)} controllers lead"]
        found = [f"controller: {text}" for text in leftovers.of_controller(leading[0])]
        store = await trio.to_thread.run_sync(self._store)
        found += [f"store: {text}" for text in leftovers.of_store(store)]
        found += [f"said to agents: {text}" for text in self._witness.left()]
        for host in range(self._cluster.config.hosts):
            status = await trio.to_thread.run_sync(self._cluster.host_status, host)
            found += [f"h{host}: {text}" for text in leftovers.of_host(status)]
        for switch in self._cluster.config.switches:
            status = await trio.to_thread.run_sync(self._cluster.switch_status, switch)
            found += [f"{switch}: {text}" for text in leftovers.of_switch(status)]
        return found

    def _store(self) -> dict[str, list[tuple[Any, ...]]]:
        if self._plan.database:
            return leftovers.read_postgresql(self._plan.database)
        return leftovers.read_sqlite(self._cluster.store_path(self._cluster.controllers[0]))

    async def _controllers_word(self, name: str) -> dict[str, Any] | None:
        ask = partial(JobClient([str(self._cluster.jobs_path(name))]).ask, "GET", "/v1/status")
        try:
            return await trio.to_thread.run_sync(ask)
        except (ControllerUnreachable, ControllerRefused):
            return None

    def _collect(self) -> None:
        found, cluster = self.findings, self._cluster
        for name, operations in self._training.operations.items():
            found.stops[name], found.gaps[name] = operations.stops(), operations.gaps()
        found.kills = dict(sorted(self._strikes.counts.items()))
        found.seen = {**self._witness.counts, **self._promises.counts}
        found.paths = dict(self._training.paths)
        found.start_s = self._cluster.start_s
        found.leases = self._witness.leases
        conflicts = sum(
            cluster.switch_status(name)["accelerator"]["counters"]["pool_conflicts"]
            for name in cluster.config.switches
        )
        if conflicts:
            text = f"the switches saw {conflicts} turns that were taken half way"
            found.violations.append(Violation(self._number, text))


def run_campaign(plan: Plan, log_dir: Path | None, say: Callable[[str, int, int], None]) -> Findings:
    """Raises ``ClusterError`` when a daemon ends that was not killed."""
    with CrashCluster(
        log_dir=log_dir,
        database=plan.database,
        lease_ms=plan.lease_ms,
        decoy=plan.decoys > 0,
        crowd=plan.agents,
    ) as cluster:
        try:
            return trio.run(Campaign(cluster, plan, say).run)
        except BaseExceptionGroup as group:
            for kind in (KeyboardInterrupt, ClusterError):
                found = group.subgroup(kind)
                if found is not None:
                    raise _first(found) from None
            if group.subgroup(trio.TooSlowError) is not None:
                raise cluster.failure(f"a kill did not come to pass within {END_S:g} s") from group
            raise


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


__all__ = ["Campaign", "ClusterError", "Findings", "Phase", "Plan", "Violation", "run_campaign"]
