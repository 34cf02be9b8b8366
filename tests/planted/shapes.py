"""Worlds made for a fault: what it needs to show happens in them, the rest stays as it was drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inaproto.faults.collective import NO_FAULTS
from inaproto.faults.streams import Draws
from inaproto.faults.weather import Weather
from inaproto.sim.frames.draw.machines import with_machines
from inaproto.sim.frames.draw.racks import draw_racks
from inaproto.sim.frames.draw.recovering import recovering
from inaproto.sim.frames.draw.successors import draw_successors
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig, map_trunks
from inaproto.units import MS, US, S
from inaproto.wire.ina_header import Dtype, Op


def busy(config: WorldConfig) -> WorldConfig:
    """Four all-reduces are submitted at once."""
    return replace(config, jobs=tuple(replace(job, depth=4) for job in config.jobs))


def one_message_window(config: WorldConfig) -> WorldConfig:
    """Short messages, one in flight, and no waiting between them."""
    jobs = tuple(
        replace(job, window_messages=1, message_packets=2, think_ns=0, slow_rank=-1, depth=4)
        for job in config.jobs
    )
    return replace(config, jobs=jobs)


def two_message_window(config: WorldConfig) -> WorldConfig:
    jobs = tuple(
        replace(job, window_messages=max(2, job.window_messages), message_packets=max(3, job.message_packets))
        for job in config.jobs
    )
    return replace(config, jobs=jobs)


def sums_of(dtype: Dtype) -> Callable[[WorldConfig], WorldConfig]:
    def shaped(config: WorldConfig) -> WorldConfig:
        return replace(config, jobs=tuple(replace(job, dtype=dtype, op=Op.SUM) for job in config.jobs))

    return shaped


def with_mismatch(config: WorldConfig) -> WorldConfig:
    """In every job's first ring rank 0 calls one all-reduce with one element more."""
    jobs = tuple(replace(job, mismatch=(0, len(job.elements) // 2)) for job in config.jobs)
    return replace(config, jobs=jobs)


def together(config: WorldConfig) -> WorldConfig:
    """Frames arrive in bursts that are handed over together."""
    return slowly_told(replace(config, coalesce_ns=20 * US))


def slowly_told(config: WorldConfig) -> WorldConfig:
    """Long messages, slow links, and news that take their time: ranks send on to a ring that is gone."""
    jobs = tuple(
        replace(job, message_packets=16, window_messages=4, elements=(4000,) * 6) for job in config.jobs
    )
    links = tuple(replace(link, rate_bps=10**8, delay_ns=10 * US) for link in config.links)
    return replace(config, jobs=jobs, links=links, control_delay_ns=5 * MS)


def late_copies(config: WorldConfig) -> WorldConfig:
    """Messages of one packet follow one another quickly; copies of them arrive when the ring has gone on."""
    weather = Weather(drop=0.03, duplicate=0.5, reorder=0.2, delay_min_ns=50 * US, delay_max_ns=MS)
    links = tuple(replace(link, rate_bps=10**10, delay_ns=US, weather=weather) for link in config.links)
    config = one_message_window(replace(config, links=links, faults=(), weather_until_ns=200 * MS))
    jobs = tuple(replace(job, message_packets=1, elements=(20,) * 100) for job in config.jobs)
    return replace(config, jobs=jobs)


def stalling(config: WorldConfig) -> WorldConfig:
    """One rank keeps the others waiting for longer than they do without a report."""
    jobs = tuple(replace(job, slow_rank=0, slow_ns=50 * MS, stall_ns=MS) for job in config.jobs)
    return replace(config, jobs=jobs)


def calm(config: WorldConfig) -> WorldConfig:
    """Weather, but no faults, and room for all: every job ends in its first ring."""
    jobs = tuple(replace(job, mismatch=None) for job in config.jobs)
    return replace(config, jobs=jobs, faults=(), tight_switch=False)


def crowded(config: WorldConfig) -> WorldConfig:
    """Hosts have several ranks of a job; weather, but no faults, and sums of float32."""
    return with_machines(calm(sums_of(Dtype.F32)(config)), Draws(config.seed, "swarm/machines"))


def crowded_chain(config: WorldConfig) -> WorldConfig:
    """The same, and the switch refuses all rings."""
    return replace(crowded(config), recover_ns=S, refusing=0)


def crowded_bfloat16(config: WorldConfig) -> WorldConfig:
    """The same, of a type in which rounding twice shows."""
    return sums_of(Dtype.BF16)(crowded(config))


def elastic(config: WorldConfig) -> WorldConfig:
    """Hosts have several ranks, and of each job two die, soon after one another, while an all-reduce runs."""
    config = replace(crowded(config), recover_ns=S, weather_until_ns=2 * S)
    jobs = tuple(
        replace(job, elastic=True, path="auto", elements=(400,) * 6, depth=4, stall_ns=100 * MS)
        for job in config.jobs
    )
    draws = Draws(config.seed, "planted/elastic")
    faults = []
    for index, job in enumerate(jobs):
        at, operation = draws.between(1, 2 * MS), draws.below(6)
        for _ in range(2):
            target, process = draws.choice(job.hosts), draws.below(16)
            death = Fault(at, FaultKind.PROCESS_DEATH, target, MS, job=index, operation=operation)
            faults.append(replace(death, process=process))
            at += draws.between(1, 8 * config.control_delay_ns + 4 * MS)
    return replace(config, jobs=jobs, faults=tuple(faults))


def seated(config: WorldConfig) -> WorldConfig:
    """The same, where a controller has given the hosts seats; some die at once when their job has begun."""
    config = elastic(config)
    early = tuple(replace(fault, operation=0) if fault.target % 2 else fault for fault in config.faults)
    jobs = tuple(replace(job, seated=True) for job in config.jobs)
    return replace(config, jobs=jobs, faults=early)


def damaged_addresses(config: WorldConfig) -> WorldConfig:
    """Several switches, no faults; where there is weather, one frame of five damaged, mostly in addresses."""
    racks = draw_racks(config.seed)
    assert racks.topology is not None

    def damaged(link: LinkConfig) -> LinkConfig:
        if link.weather.clear:
            return link
        return replace(link, weather=replace(link.weather, corrupt=0.2, addresses=0.95))

    return replace(
        racks,
        links=tuple(map(damaged, racks.links)),
        topology=map_trunks(racks.topology, damaged),
        faults=(),
    )


def damaged_addresses_of_hosts_that_wait(config: WorldConfig) -> WorldConfig:
    """Several switches, which refuse all rings: a host has sent what it has, and waits for the one before it.

    On all links, for a second, two frames of five are damaged, mostly in addresses.
    """
    racks = draw_racks(config.seed)
    assert racks.topology is not None

    def damaged(link: LinkConfig) -> LinkConfig:
        return replace(link, weather=Weather(corrupt=0.4, addresses=0.95))

    return replace(
        racks,
        links=tuple(map(damaged, racks.links)),
        topology=map_trunks(racks.topology, damaged),
        faults=(),
        weather_until_ns=S,
        recover_ns=S,
        refusing=0,
    )


def alone(config: WorldConfig) -> WorldConfig:
    """Every job has all its ranks on one host."""
    config = calm(config)
    return replace(config, jobs=tuple(replace(job, hosts=job.hosts[:1] * 3) for job in config.jobs))


def going_on(config: WorldConfig) -> WorldConfig:
    """Rings end often, jobs do not."""
    return recovering(config, Draws(config.seed, "swarm/recovery"))


def restarting(config: WorldConfig) -> WorldConfig:
    """Messages are many and short; while they flow, the switch restarts again and again."""
    jobs = tuple(
        replace(job, elements=(200,) * 30, message_packets=1, window_messages=4, depth=4, mismatch=None)
        for job in config.jobs
    )
    faults = tuple(
        Fault(at * MS, FaultKind.SWITCH_REBOOT, 0, MS, job=0, operation=operation)
        for operation in range(2, 30, 5)
        for at in (1, 6)
    )
    return replace(config, jobs=jobs, faults=faults, weather_until_ns=2 * S, recover_ns=4 * S)


def two_rings(config: WorldConfig) -> WorldConfig:
    """As ``restarting``, and every other all-reduce goes by the ring in the switches."""
    config = restarting(config)
    jobs = tuple(replace(job, path="shared", ina=tuple(range(1, 30, 2))) for job in config.jobs)
    return replace(config, jobs=jobs)


def one_host_disagrees(config: WorldConfig) -> WorldConfig:
    """On the ring of one all-reduce; nothing else befalls them."""
    config = two_rings(config)
    jobs = tuple(replace(job, strays=((job.hosts[0], 4),), stall_ns=20 * MS) for job in config.jobs)
    return replace(config, jobs=jobs, faults=())


def half_sums_of_hosts(config: WorldConfig) -> WorldConfig:
    """The switch refuses all rings; five hosts sum half types."""
    [first, *_] = config.jobs
    job = replace(first, hosts=tuple(range(5)), dtype=Dtype.BF16, op=Op.SUM, mismatch=None)
    links = tuple(config.links[0] for _ in job.hosts)
    return replace(config, jobs=(job,), links=links, faults=(), recover_ns=S, refusing=0)


def half_sums_of_racks(config: WorldConfig) -> WorldConfig:
    """Several switches, one of which refuses all rings; ranks are numbered rack by rack."""
    racks = draw_racks(config.seed)
    assert racks.topology is not None
    attached = racks.topology.attached
    jobs = tuple(
        replace(
            job,
            hosts=tuple(sorted(range(len(attached)), key=lambda host: attached[host])),
            dtype=Dtype.BF16,
            op=Op.SUM,
            mismatch=None,
        )
        for job in racks.jobs[:1]
    )
    return replace(racks, jobs=jobs, faults=(), recover_ns=S, refusing=0)


def with_shards(config: WorldConfig) -> WorldConfig:
    """The switch has two shards. Both die in the middle of long messages on slow links, and are soon back."""
    config = slowly_told(config)
    jobs = tuple(replace(job, think_ns=0, slow_rank=-1, depth=4, mismatch=None) for job in config.jobs)
    links = tuple(replace(link, weather=Weather()) for link in config.links)
    deaths = tuple(
        Fault(at, FaultKind.SHARD_DEATH, shard, 100 * US, job=0, operation=operation)
        for operation, (at, shard) in enumerate(((300 * US, 0), (500 * US, 1), (700 * US, 0)))
    )
    return replace(config, jobs=jobs, links=links, faults=deaths, recover_ns=S, shards=2)


def across_racks(config: WorldConfig) -> WorldConfig:
    """Several switches, jobs across them, and all that befalls them."""
    return draw_racks(config.seed)


def replaced_daemons(config: WorldConfig) -> WorldConfig:
    """Host daemons die under their processes, and all that befalls them."""
    return draw_successors(config.seed)


def places_moved(config: WorldConfig) -> WorldConfig:
    """Jobs have a library beside their rings, and a controller that changes its mind about places in it."""
    jobs = tuple(
        replace(
            job,
            elements=(job.elements * 12)[:24],
            mismatch=None,
            path="auto",
            exact_plan=False,
            collective=NO_FAULTS,
            place_moves=8,
        )
        for job in config.jobs
    )
    return replace(config, jobs=jobs)
