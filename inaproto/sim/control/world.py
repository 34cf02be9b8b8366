"""The deterministic control world: a controller, hosts and switches in virtual time, from one agenda.

A world has two phases. Until ``weather_until_ns`` faults and weather befall it and it must be *safe*: no
checker may object. Then everything heals, and it must be *live*: every job is over within ``heal_ns``, and
then all slots are free and no turn stands. Everything depends on the configuration alone, so two runs give
one digest: a hash over every ``(time, node, event)`` in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from inaproto.core.sharing.events import Mark
from inaproto.sim.control.checkers.checker import ControlChecker
from inaproto.sim.control.checkers.checkers import all_checkers
from inaproto.sim.control.config import ControlConfig, ControlJob
from inaproto.sim.control.controller import SimController
from inaproto.sim.control.faults import ControlFaults
from inaproto.sim.control.group import ABORTS
from inaproto.sim.control.host import ControlHost
from inaproto.sim.control.network import Network
from inaproto.sim.control.node import Node
from inaproto.sim.control.seat import SimJob
from inaproto.sim.control.stops import Stop, Stops
from inaproto.sim.control.switch import ControlSwitch
from inaproto.sim.control.trunk import Trunk
from inaproto.sim.kernel.fates import LinkFates
from inaproto.sim.kernel.store import Store
from inaproto.sim.kernel.words import WorldOfWords
from inaproto.sim.kernel.world import RunResult, StepCounts
from inaproto.units import MS

_ASK_AGAIN_NS: Final = 3 * MS


@dataclass(slots=True)
class ControlSteps(StepCounts):
    """Events handed to each kind of core."""

    coordinator: int = 0
    participant: int = 0
    migration: int = 0
    slot_ledger: int = 0


@dataclass(slots=True)
class Measures:
    """What was measured of all seats together, where it is not said otherwise."""

    ina_operations: int = 0
    chain_operations: int = 0
    rescued: int = 0
    stalls: int = 0
    """Operations that waited for a lock."""
    stalled_ns: int = 0
    stalled_max_ns: int = 0
    """The longest of them."""
    rounds: int = 0
    committed: int = 0
    aborted: int = 0
    doubts: int = 0
    turns: int = 0
    durations_ns: dict[str, int] = field(default_factory=dict)
    """Durations of jobs that ended, from when they were submitted."""


@dataclass(frozen=True, slots=True)
class ControlResult(RunResult[ControlConfig]):
    """What a run of a control world came to."""

    measures: Measures
    stops: tuple[Stop, ...] = ()
    """The longest stop of each job of the configuration, the longest first."""


class ControlWorld(WorldOfWords[ControlConfig, ControlChecker, Network]):
    """One run."""

    steps: ControlSteps

    checker_kind = ControlChecker
    all_checkers = staticmethod(all_checkers)

    def _make(self, fates: LinkFates | None) -> None:
        config = self.config
        self.steps = ControlSteps()
        self.measures = Measures()
        self.network = Network(self, fates)
        self.store = Store(self)
        self.stops = Stops(self)
        self.trunk = Trunk(self)
        self.faults = ControlFaults(self)
        self.controller = SimController(self, 0)
        self.hosts = [ControlHost(self, 1 + index, index) for index in range(config.hosts)]
        self.switches = [
            ControlSwitch(self, 1 + config.hosts + index, index) for index in range(len(config.switches))
        ]
        self._named: dict[str, Node] = {node.name: node for node in (*self.hosts, *self.switches)}
        self.jobs = {job.name: SimJob(job, line=line) for line, job in enumerate(config.jobs)}

    # --- running

    def run(self) -> ControlResult:
        """Runs to the end, or to the first violation. Never raises for a fault of the parts."""
        return ControlResult(**self._ran(), measures=self.measures, stops=self.stops.longest())

    @property
    def machines(self) -> Sequence[Node]:
        return (self.controller, *self.switches, *self.hosts)

    def _begin(self) -> None:
        for job in self.config.jobs:
            self.agenda.at(job.arrives_ns, self._submit, job)
            if job.cancelled_ns >= 0:
                self.agenda.at(max(job.cancelled_ns, job.arrives_ns + 1), self._cancel, job)
        for number, step in enumerate(self.config.plan):
            self.agenda.at(step.at_ns, self._plan, number)

    @property
    def _are_over(self) -> bool:
        return all(job.is_over for job in self.jobs.values())

    @property
    def is_settled(self) -> bool:
        """All jobs are over, durably, and nothing is held by anybody."""
        return (
            self.agenda.now >= self.config.weather_until_ns
            and self._are_over
            and not any(job.seats for job in self.jobs.values())
            and not any(switch.rings for switch in self.switches)
            and self.controller.is_idle
        )

    def _overdue_rule(self) -> str:
        return "every slot comes back" if self._are_over else "every job ends"

    def waiting(self) -> str:
        """For people: what is not as it should be at the end."""
        said = [f"{job.name} is not over" for job in self.jobs.values() if not job.is_over]
        for job in self.jobs.values():
            for seat in job.seats.values():
                of = f"{seat.operation} of {job.config.operations}"
                said.append(f"{seat} is {seat.phase.value} at operation {of}, {seat.path}")
                said.append(f"it is {seat.core.view()}")
        said += [f"{switch.name} lends {list(switch.rings)}" for switch in self.switches if switch.rings]
        return "; ".join([*said, self.controller.waiting()])

    # --- what people ask for, until it has been heard

    def _submit(self, job: ControlJob) -> None:
        if not self.controller.submit(job):
            self.agenda.after(_ASK_AGAIN_NS, self._submit, job)

    def _submit_again(self, failed: SimJob) -> None:
        """What is left of it, from the last operation of which all seats had the sum."""
        config = failed.config
        again = replace(
            config,
            name=f"{config.name.partition('.')[0]}.{len(self.jobs)}",
            arrives_ns=self.agenda.now + self.config.again_ns,
            operations=max(1, config.operations - failed.done),
        )
        self.mark("a job was submitted again")
        self.jobs[again.name] = SimJob(again, line=failed.line)
        self.agenda.at(again.arrives_ns, self._submit, again)

    def is_dark(self, name: str) -> bool:
        """Whether a whole rack of a job's is down that has more than one host."""
        racks = {self.config.rack_of(host) for host in self.jobs[name].config.hosts}
        down = [host for host in self.hosts if self.config.rack_of(host.index) in racks and not host.is_up]
        dark = [rack for rack in racks if self._down_in(rack, down) >= max(2, self.config.rack_hosts)]
        return bool(dark)

    def _down_in(self, rack: int, down: Sequence[ControlHost]) -> int:
        return sum(self.config.rack_of(host.index) == rack for host in down)

    def _cancel(self, job: ControlJob) -> None:
        if not self.jobs[job.name].is_over and not self.controller.cancel(job.name):
            self.agenda.after(_ASK_AGAIN_NS, self._cancel, job)

    def _plan(self, number: int) -> None:
        if not self.controller.plan(number):
            self.agenda.after(_ASK_AGAIN_NS, self._plan, number)

    # --- what the parts ask and tell

    def host_named(self, name: str) -> ControlHost:
        node = self._named[name]
        assert isinstance(node, ControlHost)
        return node

    def switch_named(self, name: str) -> ControlSwitch:
        node = self._named[name]
        assert isinstance(node, ControlSwitch)
        return node

    def job_over(self, name: str, why: str) -> None:
        """It is on disk, whether or not anybody was told."""
        if self.jobs[name].is_over:
            return
        self.jobs[name].is_over = True
        if why == "ended":
            self.measures.durations_ns[name] = self.agenda.now - self.jobs[name].config.arrives_ns
        elif why != "cancelled" and self.config.again_ns >= 0:
            self._submit_again(self.jobs[name])
        self.mark(
            f"a job {'ended' if why == 'ended' else 'was cancelled' if why == 'cancelled' else 'failed'}"
        )

    # --- trace

    def noted(self, mark: Mark) -> None:
        """A sharing core has noted something."""
        self.mark(f"sharing: {mark.value}")
        measures = self.measures
        if mark is Mark.ROUND_BEGUN:
            measures.rounds += 1
            self.mark("a round began")
        elif mark is Mark.COMMITTED:
            measures.committed += 1
        elif mark is Mark.IN_DOUBT:
            measures.doubts += 1
        elif mark in ABORTS:
            measures.aborted += 1
