"""How long jobs stopped, and what befell them meanwhile.

A job goes on when all its seats have the sum of one more operation. From then until the next one it pauses,
as its training has it, and the rest is a stop. A job that failed and was submitted again stops from the last
operation that all its seats had. The cause of a stop is what a fault did that hit the job's own machines, or
the controller: of several, that which lasted longest within it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from inaproto.sim.control.config import NO_TREE, ControlFault, FaultKind
from inaproto.sim.frames.recorder import say_time

if TYPE_CHECKING:
    from inaproto.sim.control.seat import SimJob
    from inaproto.sim.control.world import ControlWorld

NO_CAUSE: Final = "nothing that befell it"
_OF_ALL: Final = (FaultKind.CONTROLLER_CRASH, FaultKind.BURST, FaultKind.CLOCK_JUMP)
_OF_OTHERS: Final = (FaultKind.PARTITION, FaultKind.ONE_WAY_PARTITION, FaultKind.PEER_PARTITION)


@dataclass(frozen=True, slots=True)
class Stop:
    """Of one job, from ``from_ns`` to ``until_ns``."""

    job: str
    stopped_ns: int
    """Without what its training pauses for."""
    from_ns: int
    until_ns: int
    kind: str
    """Kind of the fault that is its cause."""
    cause: str
    """The same, with what it hit and when."""

    def __str__(self) -> str:
        when = f"{say_hours(self.from_ns)} to {say_hours(self.until_ns)}"
        return f"{self.job} for {say_time(self.stopped_ns)}, {when}: {self.cause}"


@dataclass(frozen=True, slots=True)
class _Episode:
    """What befell some machines, and for how long."""

    fault: ControlFault
    from_ns: int
    until_ns: int
    machines: frozenset[str]
    """Names; empty: all."""
    said: str


@dataclass(slots=True)
class _Line:
    """A job of the configuration, under whatever name."""

    went_on_ns: int
    longest: Stop | None = None


class Stops:
    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self._episodes: list[_Episode] = []
        self._lines = [_Line(job.arrives_ns) for job in world.config.jobs]

    def longest(self) -> tuple[Stop, ...]:
        """Of each job that ever went on, the longest first."""
        found = [line.longest for line in self._lines if line.longest is not None]
        return tuple(sorted(found, key=lambda stop: (-stop.stopped_ns, stop.job)))

    def befell(self, fault: ControlFault, duration: int) -> None:
        """It has struck, and lasts so long."""
        now = self._world.agenda.now
        machines, said = self._hit_by(fault)
        self._episodes.append(_Episode(fault, now, now + duration, machines, said))

    def session_is_whole(self, host: str) -> None:
        """Of a session that was half open and has been made anew, sooner than it would have ended."""
        now = self._world.agenda.now
        for number, one in enumerate(self._episodes):
            if one.fault.kind is FaultKind.HALF_OPEN_SESSION and host in one.machines and one.until_ns > now:
                self._episodes[number] = replace(one, until_ns=now)

    def _hit_by(self, fault: ControlFault) -> tuple[frozenset[str], str]:
        world, config = self._world, self._world.config
        if fault.kind in _OF_ALL:
            return frozenset(), str(fault.kind)
        host = world.hosts[fault.target % len(world.hosts)]
        nodes = [host.name]
        said = f"{fault.kind} ({host.name})"
        if fault.kind is FaultKind.RACK_POWER:
            rack = config.rack_of(host.index)
            nodes = [one.name for one in world.hosts if config.rack_of(one.index) == rack]
            said = f"{fault.kind} (rack{rack})"
        elif fault.kind is FaultKind.SWITCH_RESTART:
            nodes = [world.switches[fault.target % len(world.switches)].name]
            said = f"{fault.kind} ({nodes[0]})"
        elif fault.kind in _OF_OTHERS:
            others = [*world.hosts, *world.switches]
            nodes = [others[fault.target % len(others)].name]
            said = f"{fault.kind} ({nodes[0]})"
        elif fault.kind is FaultKind.SLOW_HOST:
            said = f"{fault.kind} ({host.name}, {fault.amount} times)"
        return frozenset(nodes), said

    def has_gone_on(self, job: SimJob) -> None:
        """All seats of the job have the sum of one more operation."""
        now, line, config = self._world.agenda.now, self._lines[job.line], job.config
        pauses = config.pause_ns if (job.done - 1) % config.burst_operations == 0 else 0
        stopped = now - line.went_on_ns - pauses - config.think_ns - config.chain_ns
        if stopped > (0 if line.longest is None else line.longest.stopped_ns):
            kind, cause = self._cause(job, line.went_on_ns, now)
            name = self._world.config.jobs[job.line].name
            line.longest = Stop(name, stopped, line.went_on_ns, now, kind, cause)
        line.went_on_ns = now

    def _cause(self, job: SimJob, since: int, now: int) -> tuple[str, str]:
        """What a fault did may show only when the host that it hit has been silent for long enough."""
        world, config = self._world, self._world.config
        trees = {config.jobs[job.line].tree, *(step.trees[job.line] for step in config.plan)} - {NO_TREE}
        mine = {world.hosts[host].name for host in job.config.hosts}
        mine |= {world.switches[index].name for tree in trees for index in config.trees[tree]}
        shows_ns = config.silent_ns + 2 * config.heartbeat_ns
        best: tuple[int, int] | None = None
        kind = cause = NO_CAUSE
        for number, one in enumerate(self._episodes):
            lasts = min(now, one.until_ns + shows_ns) - max(since, one.from_ns)
            if one.fault.kind is FaultKind.CLOCK_DRIFT or lasts <= 0:
                continue
            if one.machines and not one.machines & mine:
                continue
            if best is None or (lasts, -number) > best:
                best, kind = (lasts, -number), str(one.fault.kind)
                cause = f"{one.said}, from {say_hours(one.from_ns)}"
        return kind, cause


def say_hours(at_ns: int) -> str:
    """A time of the day, or of what is shorter than an hour."""
    seconds = at_ns // 1_000_000_000
    if seconds < 60:
        return say_time(at_ns)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
