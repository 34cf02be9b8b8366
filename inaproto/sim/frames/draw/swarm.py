"""Swarm configuration: what a simulated cluster is and what befalls it, all drawn from one seed.

A :class:`WorldConfig` is everything a run depends on, so a file that holds one replays the run, and a
shrinker can take pieces out of it. Sizes are small on purpose: short messages, few of them and small
windows meet every boundary often, and a world of a few thousand steps leaves time for many worlds.

Most faults strike when a job has come to a certain all-reduce, the others at some time: one that hits a
cluster on which nothing runs finds little. Not drawn: clocks that jump backward (that of the daemons cannot),
ranks of one job with different settings (refused when they join), strangers (tests/unit and tests/fuzz).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from inaproto.core.rdma.dcqcn import DcqcnConfig
from inaproto.errors import ConfigError
from inaproto.faults.collective import CollectiveFaults
from inaproto.faults.streams import Draws, Seed
from inaproto.faults.weather import Weather
from inaproto.sim.frames.draw.topology import LinkConfig, Topology, map_trunks
from inaproto.sim.kernel.config import Recorded
from inaproto.units import MS, US, S
from inaproto.wire.control_messages import PathAsked
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.udp import SHARDS_MAX

RANKS_MAX: Final = 16
_CLEAR: Final = Weather()
_HEAL_NS: Final = 90 * S
"""Retransmission timers double up to a second, overdue operations give up after some: well above both."""


class FaultKind(StrEnum):
    BURST = "burst"
    """The link of host ``target`` has the weather ``weather`` for a while."""
    PARTITION = "partition"
    """Nothing passes on the link of host ``target``, in either direction."""
    ONE_WAY_PARTITION = "one-way partition"
    """Nothing passes from host ``target`` to the switch."""
    SESSION_LOSS = "session loss"
    """The control connection of host ``target`` breaks, and with it its use of the switch."""
    NIC_RESET = "nic reset"
    """Host ``target`` loses its NIC, with all queue pairs, and gets a new one."""
    HOST_CRASH = "host crash"
    SWITCH_REBOOT = "switch reboot"
    """Switch ``target`` reboots; switches count as hosts do: from 0, modulo their number."""
    PAUSE = "pause"
    """Host ``target`` runs nothing; what arrives waits as long as its receive ring has room."""
    CLOCK_JUMP = "clock jump"
    """The clock of host ``target`` is ``duration_ns`` ahead from then on."""
    SHARD_DEATH = "shard death"
    """Shard ``target`` of the switch, modulo their number, dies, and is started again after that time."""
    DAEMON_CRASH = "daemon crash"
    """The host daemon of host ``target`` dies after ``process`` more of its orders, its processes do not;
    another one begins ``duration_ns`` later."""
    PROCESS_DEATH = "process death"
    """A training process of host ``target`` dies, and is started again ``duration_ns`` later."""
    LINK_PAUSE = "link pause"
    """Host ``target`` is asked to send nothing for a while, or the switch is to it; of what says ``process``
    (:mod:`inaproto.sim.frames.link_pauses`)."""
    ROUTER_LINK = "router link down"
    """Link ``process``, modulo their number, of the router of host ``target`` fails; if ``duration_ns`` is 0,
    for good, unless it is the last one (:mod:`inaproto.sim.frames.routers`)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to one part of the world and ends ``duration_ns`` later."""

    at_ns: int
    kind: FaultKind
    target: int = 0
    duration_ns: int = 0
    weather: Weather = _CLEAR
    job: int = -1
    """At least 0: ``at_ns`` counts from when a rank of that job first calls all-reduce ``operation``; a fault
    that would then outlast the weather is cut short."""
    operation: int = 0
    trunk: int = -1
    """At least 0, for bursts, partitions and link pauses: the link of that switch to the one above, not that
    of a host."""
    is_downward: bool = False
    """A one-way partition or a link pause stops what comes from the switch, or from the switch above."""
    process: int = 0
    """Which process of the host dies, modulo their number; or after how many orders its daemon does; or what
    kind of link pause it is; or which link of a router fails."""


@dataclass(frozen=True, slots=True)
class JobConfig:
    """A job; its rank ``r`` runs on host ``hosts[r]``. A host may have several of its ranks."""

    name: str
    hosts: tuple[int, ...]
    elements: tuple[int, ...]
    """Elements of each all-reduce, in order."""
    dtype: Dtype = Dtype.F32
    op: Op = Op.SUM
    mtu: int = 256
    window_messages: int = 2
    message_packets: int = 4
    depth: int = 1
    """All-reduces submitted at once."""
    think_ns: int = 0
    """Between two submissions, at most; every rank draws its own."""
    fill_ns: int = 0
    """A rank that is alone on its host calls an all-reduce before its tensor is there; each further part is
    there so much later, at most. Not drawn."""
    slow_rank: int = -1
    """It thinks ``slow_ns`` longer."""
    slow_ns: int = 0
    transport_timeout: int = 12
    retry_count: int = 7
    """7: the transport never gives up."""
    stall_ns: int = 100 * MS
    timeout_ns: int = 5 * S
    mismatch: tuple[int, int] | None = None
    """(rank, operation): in the job's first ring, this rank calls it with one element more."""
    path: PathAsked = "auto"
    """The path by which its ranks want to be summed."""
    exact_plan: bool = True
    """Whether it takes only results that follow the reduction plan, where the path is ``auto``."""
    elastic: bool = False
    """Whether its ranks go on without one that is lost."""
    seated: bool = False
    """Whether a controller gives its hosts seats, and ends it (:mod:`inaproto.sim.frames.seats`); if it is
    elastic."""
    ina: tuple[int, ...] = ()
    """On the path ``shared``: all-reduces that are bound to the ring through the switches."""
    strays: tuple[tuple[int, int], ...] = ()
    """(host, operation): this host binds it to the other ring than all others."""
    collective: CollectiveFaults | None = None
    """Its hosts have a collective library, with these faults; without ``exact_plan`` alone. Not drawn."""
    place_moves: int = -1
    """How often a controller changes its mind about the places of its hosts in the library
    (:mod:`inaproto.sim.frames.places`); -1: none gives any. Not drawn."""
    binding_ns: int = 0
    """So long a host does not know by which ring every third of its all-reduces goes."""

    @property
    def positions(self) -> tuple[int, ...]:
        """The hosts in the order of the ring: by their lowest ranks."""
        return tuple(dict.fromkeys(self.hosts))

    @property
    def may_rotate(self) -> bool:
        """Messages may begin at any host: results do not follow the plan."""
        return self.path == "ring" or not self.exact_plan

    def ranks_on(self, host: int) -> tuple[int, ...]:
        return tuple(rank for rank, number in enumerate(self.hosts) if number == host)


@dataclass(frozen=True, slots=True)
class TreeMove:
    """The ring through the switches of a job is wished elsewhere (:mod:`inaproto.sim.frames.tree_moves`)."""

    at_ns: int
    job: int
    """Index of one on the path ``shared``."""
    root: int = -1
    """The further root of the topology; -1: the fabric's own."""
    at_once: bool = False
    """It is not wished to be parked first."""


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """One host writes to another, message after message, and no switch sums anything of it. Not drawn."""

    sender: int
    receiver: int
    begin_ns: int = 0
    until_ns: int = 10 * MS
    """From then on no message is begun."""
    message_bytes: int = 64 << 10
    window_messages: int = 2
    mtu: int = 1024


@dataclass(frozen=True, slots=True)
class WorldConfig(Recorded):
    seed: str
    jobs: tuple[JobConfig, ...]
    links: tuple[LinkConfig, ...]
    """One for each host."""
    faults: tuple[Fault, ...] = ()
    weather_until_ns: int = 2 * S
    """From then on no link has weather; every fault must have ended by then."""
    heal_ns: int = _HEAL_NS
    """All jobs must be finished that long after the weather."""
    control_delay_ns: int = 100 * US
    coalesce_ns: int = 0
    """Frames that arrive at a port within this time are handed over together; 0: one by one."""
    tight_switch: bool = False
    """The switch has memory for the largest ring alone: jobs wait for one another."""
    first_psns: int = 0
    """Distance of first PSNs from the wrap, at most; 0: anywhere."""
    events_max: int = 3_000_000
    topology: Topology | None = None
    """None: one switch, and every host at it."""
    along: int = -1
    """At least 0: all rings go along the tree of that further root of the topology."""
    to_root: bool = False
    """All rings go up to the root of the own tree, where a lower switch would do, too."""
    moves: tuple[TreeMove, ...] = ()
    recover_ns: int = 0
    """How long a job whose ring has ended waits for its ranks to go on; 0: it starts anew."""
    refusing: int = -1
    """At least 0: the accelerator of that switch has no memory for any ring."""
    shards: int = 0
    """Accelerators in processes of their own, of a world of one switch; each has as much memory."""
    unsteered: tuple[int, ...] = ()
    """Hosts whose NICs send from whichever UDP port they like."""
    flows: tuple[FlowConfig, ...] = ()
    congestion: DcqcnConfig | None = None
    """Of all NICs. Not drawn."""
    routers: tuple[int, ...] = ()
    """The number of each host's router, in a world of one switch; empty: there are none. A router has the
    links of all its hosts; of a job, no two are at one."""

    def __post_init__(self) -> None:
        self._check_topology()
        if not 0 <= self.shards <= SHARDS_MAX or (self.shards and self.topology is not None):
            raise ConfigError(f"world: {self.shards} shards; there are up to {SHARDS_MAX}, at one switch")
        if self.recover_ns < 0 or (self.refusing >= 0 and not self.recover_ns):
            raise ConfigError("world: recover_ns is below 0, or 0 where a switch refuses all rings")
        if self.routers and (len(self.routers) != len(self.links) or self.topology is not None):
            raise ConfigError("world: routers are at all hosts of one switch, or at none")
        for flow in self.flows:
            if self.faults or not 0 <= flow.begin_ns <= flow.until_ns or flow.sender == flow.receiver:
                raise ConfigError(f"world: {flow}: a world with it has no faults, and it is of two hosts")
            if not all(0 <= host < len(self.links) for host in (flow.sender, flow.receiver)):
                raise ConfigError(f"world: {flow}: hosts are 0 to {len(self.links) - 1}")
        for job in self.jobs:
            if len(job.hosts) < 2:
                raise ConfigError(f"world: job {job.name}: it has two ranks or more")
            if job.elastic and not self.recover_ns:
                raise ConfigError(f"world: job {job.name}: it is elastic, and recover_ns is 0")
            if job.seated and not job.elastic:
                raise ConfigError(f"world: job {job.name}: its hosts have seats, and it is not elastic")
            if any(not 0 <= host < len(self.links) for host in job.hosts):
                raise ConfigError(f"world: job {job.name}: hosts are 0 to {len(self.links) - 1}")
            if self.routers and len({self.routers[host] for host in job.positions}) < len(job.positions):
                raise ConfigError(f"world: job {job.name}: two of its hosts are at one router")
        for fault in self.faults:
            if not (fault.at_ns >= 0 <= fault.duration_ns and fault.job < len(self.jobs)):
                raise ConfigError(f"world: {fault}: a time below 0, or no job of that number")
            ends = fault.at_ns + fault.duration_ns
            if fault.job < 0 and fault.kind is not FaultKind.CLOCK_JUMP and ends > self.weather_until_ns:
                raise ConfigError(f"world: {fault} ends after the weather")

    def _check_topology(self) -> None:
        if self.topology is not None and len(self.topology.attached) != len(self.links):
            raise ConfigError(f"world: {len(self.links)} hosts, {len(self.topology.attached)} are attached")
        roots = 0 if self.topology is None else len(self.topology.further_roots)
        for move in self.moves:
            if not 0 <= move.job < len(self.jobs) or self.jobs[move.job].path != "shared":
                raise ConfigError(f"world: a ring of job {move.job} is to move; it is not on the path shared")
            if self.topology is not None and not -1 <= move.root < roots:
                raise ConfigError(f"world: a ring is to move to root {move.root} of {roots} further ones")
        if self.to_root and (self.topology is None or self.along >= 0):
            raise ConfigError("world: rings to the root of the own tree: there is none, or they go elsewhere")
        if not -1 <= self.along < roots:
            raise ConfigError(f"world: along is {self.along}; it has {roots} further roots")
        trunks = 0 if self.topology is None else len(self.topology.switches) - 1
        cuts = (FaultKind.PARTITION, FaultKind.ONE_WAY_PARTITION)
        of_trunks = (FaultKind.BURST, *cuts, FaultKind.LINK_PAUSE)
        for fault in self.faults:
            if fault.trunk >= 0 and (fault.kind not in of_trunks or not 0 < fault.trunk <= trunks):
                raise ConfigError(f"world: {fault}: no such trunk, or none of its faults")


@dataclass(frozen=True, slots=True)
class Swarm:
    """Bounds of what is drawn."""

    ranks_max: int = RANKS_MAX
    jobs_max: int = 3
    packets_max: int = 1200
    """Packets of all jobs together, counting each rank's once: what a world costs."""
    faults_max: int = 6
    kinds: tuple[FaultKind, ...] = tuple(
        kind
        for kind in FaultKind
        if kind
        not in (
            *(FaultKind.DAEMON_CRASH, FaultKind.PROCESS_DEATH, FaultKind.SHARD_DEATH),
            *(FaultKind.LINK_PAUSE, FaultKind.ROUTER_LINK),
        )
    )
    """Host daemons die in worlds of their own (:mod:`inaproto.sim.frames.draw.successors`), processes alone
    where hosts have several (:mod:`inaproto.sim.frames.draw.machines`), shards where a switch has any
    (:mod:`inaproto.sim.frames.draw.shards`); some of all worlds get pauses of links later
    (:mod:`inaproto.sim.frames.draw.pauses`), and routers (:mod:`inaproto.sim.frames.draw.routers`)."""


def draw_world(seed: Seed, swarm: Swarm | None = None) -> WorldConfig:
    """The world of ``seed``."""
    swarm = swarm or Swarm()
    draws = Draws(seed, "swarm")
    job_count = draws.choice((1, 1, 1, 2, 2, 3)[: max(1, 2 * swarm.jobs_max)])
    packets = draws.magnitude(swarm.packets_max // 8, swarm.packets_max)
    sizes = [_draw_size(draws, swarm.ranks_max) for _ in range(job_count)]
    host_count = max(sizes) if draws.chance(2, 3) else min(swarm.ranks_max, sum(sizes))
    jobs = tuple(
        draw_job(draws, f"job{index}", size, host_count, packets // job_count)
        for index, size in enumerate(sizes)
    )
    harsh = draw_weather(draws)
    links = tuple(draw_link(draws, harsh) for _ in range(host_count))
    is_long = draws.chance(1, 8)
    until = draws.between(7 * S, 14 * S) if is_long else draws.magnitude(20 * MS, 2 * S)
    faults = draw_faults(draws, swarm, jobs, host_count, until)
    if is_long and FaultKind.PARTITION in swarm.kinds:
        faults = (_draw_long_partition(draws, jobs, until), *faults)
    return WorldConfig(
        seed=str(seed),
        jobs=jobs,
        links=links,
        faults=faults,
        weather_until_ns=until,
        control_delay_ns=draws.magnitude(10 * US, 2 * MS),
        coalesce_ns=draws.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, 2 * US, 20 * US, 200 * US)),
        tight_switch=draws.chance(1, 4),
        first_psns=draws.choice((0, 16, 16, 256)),
    )


def _draw_size(draws: Draws, ranks_max: int) -> int:
    anything = draws.between(2, RANKS_MAX)
    return min(ranks_max, draws.choice((2, 2, 3, 3, 4, 5, 6, 8, anything, anything)))


def draw_job(draws: Draws, name: str, size: int, host_count: int, packets: int) -> JobConfig:
    hosts = tuple(draws.shuffled(range(host_count))[:size])
    dtype = draws.choice(tuple(Dtype))
    mtu = draws.choice((256,) * 12 + (512, 512, 1024, 1024, 2048, 4096))
    message_packets = draws.choice((1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 8, 16, draws.choice((5, 31, 64, 170))))
    elements: list[int] = []
    left = max(4, packets // size)
    while left > 0 and len(elements) < 200:
        share = min(left, draws.magnitude(1, max(1, left // 2)))
        nbytes = max(0, draws.between((share - 1) * mtu, share * mtu) - 40)
        elements.append(0 if draws.chance(1, 40) else max(1, nbytes // dtype.itemsize))
        left -= share
    transport_timeout = draws.between(8, 14)
    mismatch = None
    if draws.chance(1, 25):
        mismatch = (draws.below(size), draws.below(len(elements)))
    return JobConfig(
        name=name,
        hosts=hosts,
        elements=tuple(elements),
        dtype=dtype,
        op=draws.choice((Op.SUM, Op.SUM, Op.SUM, Op.MAX, Op.MIN)),
        mtu=mtu,
        window_messages=draws.choice((1, 1, 2, 2, 4, 8)),
        message_packets=message_packets,
        depth=draws.choice((1, 1, 2, 4)),
        think_ns=draws.choice((0, 0, 10 * US, MS)),
        slow_rank=draws.below(size) if draws.chance(1, 3) else -1,
        slow_ns=draws.magnitude(10 * US, 30 * MS),
        transport_timeout=transport_timeout,
        # Few retries and a short timer would give up on ranks that are merely late.
        retry_count=6 if transport_timeout >= 12 and draws.chance(1, 3) else 7,
        stall_ns=draws.magnitude(20 * MS, 400 * MS),
        timeout_ns=draws.between(6 * S, 9 * S),
        mismatch=mismatch,
    )


def draw_weather(draws: Draws) -> Weather:
    """The fault mix: which kinds are on at all, then how much of each, in parts per million."""

    def share(most: int) -> float:
        return draws.magnitude(500, most) / 1_000_000 if draws.chance(1, 2) else 0.0

    if draws.chance(1, 10):
        return Weather()
    shortest = draws.magnitude(US, MS)
    return Weather(
        drop=share(60_000),
        duplicate=share(40_000),
        reorder=share(60_000),
        corrupt=share(20_000),
        truncate=share(10_000),
        delay_min_ns=shortest,
        delay_max_ns=draws.magnitude(shortest, 20 * MS),
    )


def draw_link(draws: Draws, harsh: Weather) -> LinkConfig:
    weather = harsh if draws.chance(3, 4) else replace(_CLEAR, drop=0.001)
    return LinkConfig(
        rate_bps=draws.magnitude(10**8, 10**11),
        delay_ns=draws.magnitude(500, 200 * US),
        queue_frames_max=draws.choice((32, 128, 512, 512)),
        weather=weather,
    )


def with_addresses(config: WorldConfig) -> WorldConfig:
    """``config``; in one world of five, most damage hits what no ICRC covers, as addresses are.

    In half of these there is much of it wherever there is weather, and mostly no fault, which would end
    rings: a ring hardly suffers from one damaged address, but from the second in the same place. From a
    stream of its own, so that everything else that is drawn stays as it is.
    """
    draws = Draws(config.seed, "swarm/addresses")
    if not draws.chance(1, 5):
        return config
    share = draws.choice((0.5, 0.95))
    least = 0.0
    if draws.chance(1, 2):
        share, least = 0.95, draws.choice((0.05, 0.2, 0.2))
        config = config if draws.chance(1, 4) else replace(config, faults=())

    def hit(weather: Weather) -> Weather:
        corrupt = weather.corrupt if weather.clear else max(weather.corrupt, least)
        return replace(weather, corrupt=corrupt, addresses=share) if corrupt else weather

    def on(link: LinkConfig) -> LinkConfig:
        return replace(link, weather=hit(link.weather))

    return replace(
        config,
        links=tuple(map(on, config.links)),
        faults=tuple(replace(fault, weather=hit(fault.weather)) for fault in config.faults),
        topology=None if config.topology is None else map_trunks(config.topology, on),
    )


def draw_burst(draws: Draws) -> Weather:
    return Weather(drop=draws.choice((0.3, 0.7, 1.0)), corrupt=draws.choice((0.0, 0.3)), duplicate=0.1)


def draw_faults(
    draws: Draws, swarm: Swarm, jobs: tuple[JobConfig, ...], hosts: int, until_ns: int
) -> tuple[Fault, ...]:
    count = draws.choice((0, 0, 1, 1, 2, 3, draws.below(swarm.faults_max + 1)))
    faults = []
    for _ in range(count):
        kind = draws.choice(swarm.kinds)
        weather = _CLEAR
        if kind is FaultKind.BURST:
            weather = draw_burst(draws)
        if draws.chance(3, 4):
            job = draws.below(len(jobs))
            at, operation = draws.magnitude(1, 2 * MS), draws.below(len(jobs[job].elements))
            target = draws.choice(jobs[job].hosts) if draws.chance(3, 4) else draws.below(hosts)
            duration = draws.magnitude(10 * US, until_ns)
        else:
            job, operation = -1, 0
            at, target = draws.magnitude(1, until_ns - 1), draws.below(hosts)
            duration = min(draws.magnitude(10 * US, until_ns), until_ns - at)
        if kind is FaultKind.CLOCK_JUMP:
            duration = draws.magnitude(MS, 10 * S)
        faults.append(Fault(at, kind, target, duration, weather, job, operation))
    return tuple(sorted(faults, key=lambda fault: (fault.at_ns, fault.kind, fault.target)))


def _draw_long_partition(draws: Draws, jobs: tuple[JobConfig, ...], until_ns: int) -> Fault:
    """Longer than an all-reduce may take, while one runs."""
    job = draws.below(len(jobs))
    operation = draws.below(len(jobs[job].elements))
    target = draws.choice(jobs[job].hosts)
    kind = draws.choice((FaultKind.PARTITION, FaultKind.ONE_WAY_PARTITION))
    return Fault(draws.magnitude(1, MS), kind, target, until_ns, job=job, operation=operation)


def summary(config: WorldConfig) -> dict[str, Any]:
    """A few words on a world, for reports."""
    return {
        "hosts": len(config.links),
        "switches": 1 if config.topology is None else len(config.topology.switches),
        "steering": 0 if config.topology is None else sum(not s.aggregates for s in config.topology.switches),
        "jobs": [
            {"ranks": len(job.hosts), "operations": len(job.elements), "window": job.window_messages}
            for job in config.jobs
        ],
        "faults": [asdict(fault)["kind"] for fault in config.faults],
    }
