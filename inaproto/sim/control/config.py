"""What a control world is and what befalls it: everything that a run depends on, but for recorded fates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, Literal

from inaproto.errors import ConfigError
from inaproto.sim.kernel.config import TimedFault, WordsConfig
from inaproto.sim.kernel.machine import MILLION
from inaproto.units import MS, S

NO_TREE: Final = -1
DRIFT_MAX_PPM: Final = 1000
"""Clocks of machines drift by some hundred millionths; these are as far off as any that works."""
Rule = Literal["equal-index", "by-index"]
RULES: Final[tuple[Rule, ...]] = ("equal-index", "by-index")


class FaultKind(StrEnum):
    CONTROLLER_CRASH = "controller crash"
    """It loses all but what its store has on disk, and starts again ``duration_ns`` later."""
    HOST_CRASH = "host crash"
    """Host ``target`` loses its seats and starts again ``duration_ns`` later."""
    SWITCH_RESTART = "switch restart"
    """Switch ``target`` loses its slots and pools and is back ``duration_ns`` later."""
    PARTITION = "partition"
    """Nothing passes between the controller and ``target`` (hosts first, then switches), either way."""
    ONE_WAY_PARTITION = "one-way partition"
    """What ``target`` says does not reach the controller."""
    PEER_PARTITION = "peer partition"
    """Host ``target`` and the hosts and switches cannot reach each other; the controller can."""
    BURST = "burst"
    """All messages have the weather ``weather``."""
    CLOCK_JUMP = "clock jump"
    """The controller's clock is ``duration_ns`` ahead from then on."""
    MUTE_SEATS = "mute seats"
    """What the seats of host ``target`` say to the controller does not get there; all else does."""
    DEAF_SEATS = "deaf seats"
    """Seats do not hear what they are told, as if their program could not read it."""
    PROCESS_STOPS = "process stops"
    """The processes of jobs on host ``target`` begin no operation."""
    FLAPPING_LINK = "flapping link"
    """The link of host ``target`` goes down and comes back, again and again, each for ``amount`` ns or so."""
    SLOW_HOST = "slow host"
    """All that host ``target`` does for its jobs takes ``amount`` times as long (NetReduce's straggler)."""
    HALF_OPEN_LINK = "half-open link"
    """One direction of the link of host ``target`` is dead in the fabric: out if ``amount`` is 0, or in."""
    HALF_OPEN_SESSION = "half-open session"
    """The same of its session with the controller; a session that is made anew is whole."""
    RACK_POWER = "rack without power"
    """All hosts of rack ``target`` crash, and start again ``duration_ns`` later; its switch stays."""
    CLOCK_DRIFT = "clock drift"
    """The clock of node ``target`` (controller, hosts, switches) runs ``amount`` millionths fast, or slow."""


@dataclass(frozen=True, slots=True)
class ControlFault(TimedFault):
    kind: FaultKind
    amount: int = 0
    """How much of it; what that means is said at its kind."""


@dataclass(frozen=True, slots=True)
class ControlJob:
    """A job: a seat on each of its hosts, all with the same all-reduces in the same order."""

    name: str
    hosts: tuple[int, ...]
    tree: int
    """Number of its first tree; ``NO_TREE``: its operations all go by the chain."""
    arrives_ns: int
    operations: int
    ina_ns: int
    """How long an all-reduce takes by the switches, from when the last seat has begun it."""
    chain_ns: int
    think_ns: int
    """Between two all-reduces of a seat, at most; each seat draws its own."""
    drain_ns: int
    """From when a seat has a result until its sends are acknowledged, at most."""
    stall_ns: int
    """How long a seat waits for a result of the switches before it takes the chain for this operation."""
    burst_operations: int = 1
    """Operations of a training step: called at once, then ``pause_ns`` until the next step."""
    pause_ns: int = 0
    cancelled_ns: int = -1
    """When a person cancels it; -1: nobody does."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """At ``at_ns`` the planner wants these trees, one for each job, ``NO_TREE`` for none."""

    at_ns: int
    trees: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig(WordsConfig):
    called: ClassVar[str] = "control world"

    rule: Rule
    hosts: int
    switches: tuple[int, ...]
    """Slots of each switch."""
    trees: tuple[tuple[int, ...], ...]
    """The switches of each tree, ascending. Jobs that have a tree share its pool."""
    pools: tuple[int, ...]
    """How many jobs at once may use the pool of each tree."""
    jobs: tuple[ControlJob, ...]
    plan: tuple[PlanStep, ...] = ()
    faults: tuple[ControlFault, ...] = ()
    margin: int = 0
    end_margin: int = 2
    turn_operations: int = 4
    """Operations that the planner gives a job in a turn; 0: the turn is open, and is revoked after
    ``slice_ns``."""
    ahead: int = -1
    """How many operations after the next one a turn begins at the earliest, for the planner; -1: it says
    nothing of that, nor where it ends, as one does that does not know where jobs are."""
    revoked_ns: int = -1
    """Every third turn is revoked so long after it was decided upon, as if its job paused; -1: none is."""
    slice_ns: int = 5 * MS
    lease_ns: int = 20 * MS
    retry_ns: int = 2 * MS
    resend_ns: int = 0
    """Time between two sendings of what was not answered, at least."""
    objections_max: int | None = 3
    """See :class:`~inaproto.core.sharing.events.SharingConfig`."""
    slot_lease_ns: int = 200 * MS
    heartbeat_ns: int = 10 * MS
    silent_ns: int = 150 * MS
    """Without a word for so long, a host is taken for dead."""
    host_lease_ns: int = 75 * MS
    """How long nothing may be heard of a host before its seats are given up in their sharing groups."""
    mute_ns: int = -1
    """For which a seat may owe an answer, see :class:`~inaproto.core.sharing.events.PatienceConfig`; -1: for
    ever."""
    failed_max: int = 8
    stuck_ns: int = -1
    """A turn in which nothing goes on for so long is ended where it is, if others wait; -1: it is not."""
    rack_hosts: int = 0
    """Hosts of a rack, which stand in their order; 0: each host is a rack of its own."""
    keepalive_ns: int = -1
    """A host that has heard for so long of no heartbeat of its that came makes its session with the
    controller anew; -1: it never does."""
    again_ns: int = -1
    """A job that failed is submitted again so long after it, for what is left of it, under another name; -1:
    it is not."""
    chain_by_links: bool = False
    """The chain of a job's hosts needs their links; else nothing befalls it."""
    tells_changes: bool = False
    """The controller tells its groups of a host only what has changed; else all, again and again."""
    stop_ns: int = -1
    """A job may stop for so long without a fault that explains it; -1: for as long as it takes."""
    parks_first: bool = False
    """Hosts hear that a job is to leave its tree before its turn has ended."""
    heal_ns: int = 30 * S
    events_max: int = 400_000

    def __post_init__(self) -> None:
        WordsConfig.__post_init__(self)
        if self.rule not in RULES:
            raise ConfigError(f"control world: no rule {self.rule!r}; there are {', '.join(RULES)}")
        if len(self.pools) != len(self.trees) or any(capacity < 1 for capacity in self.pools):
            raise ConfigError("control world: each tree has a pool, for one job or more")
        for tree in self.trees:
            if (
                not tree
                or list(tree) != sorted(set(tree))
                or not 0 <= tree[0] <= tree[-1] < len(self.switches)
            ):
                raise ConfigError(
                    f"control world: tree {tree}: its switches, ascending, of {len(self.switches)}"
                )
        for job in self.jobs:
            if len(job.hosts) < 2 or any(not 0 <= host < self.hosts for host in job.hosts):
                raise ConfigError(f"control world: job {job.name}: two hosts or more, of {self.hosts}")
            if not NO_TREE <= job.tree < len(self.trees):
                raise ConfigError(f"control world: job {job.name}: there is no tree {job.tree}")
        for step in self.plan:
            if len(step.trees) != len(self.jobs) or any(
                not NO_TREE <= tree < len(self.trees) for tree in step.trees
            ):
                raise ConfigError(f"control world: {step}: one tree for each job, or {NO_TREE}")

        drifts = [fault.amount for fault in self.faults if fault.kind is FaultKind.CLOCK_DRIFT]
        if any(abs(drift) > DRIFT_MAX_PPM for drift in drifts):
            raise ConfigError(f"control world: clocks drift by {DRIFT_MAX_PPM} millionths at most")

    def by_slowest(self, time_ns: int) -> int:
        """How long a time takes at most in the world, by the slowest clock that a drift makes."""
        drifts = (fault.amount for fault in self.faults if fault.kind is FaultKind.CLOCK_DRIFT)
        slowest = min(0, min(drifts, default=0))
        return -(-time_ns * MILLION // (MILLION + slowest))

    def rack_of(self, host: int) -> int:
        return host // self.rack_hosts if self.rack_hosts else host

    @property
    def stands_still_ns(self) -> int:
        """How long the controller hears of no progress, before it ends a turn for which others wait."""
        return self.stuck_ns + 2 * self.heartbeat_ns if self.stuck_ns >= 0 else 1_000_000 * S


@dataclass(frozen=True, slots=True, kw_only=True)
class WeatherConfig(ControlConfig):
    """A control world that is a day of a cluster; what is drawn of it is in ``day.py``."""

    called: ClassVar[str] = "weather world"
