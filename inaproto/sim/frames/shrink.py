"""Smaller worlds to try, each one step from a given one, the boldest first.

Every step takes something away or replaces a value by a plainer one, so a chain of them ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from inaproto.errors import ConfigError
from inaproto.faults.weather import Weather
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, JobConfig, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig, Topology, map_trunks, node_names
from inaproto.sim.kernel.fates import Fate
from inaproto.sim.kernel.world import RunResult
from inaproto.units import US
from inaproto.wire.ina_header import Dtype, Op

T = TypeVar("T")
Fates = tuple[tuple[str, int, Fate], ...]
"""(link direction, frame number, fate), in that order."""
_CLEAR: Final = Weather()
_PLAIN_LINK: Final = LinkConfig()
_PLAIN_FATE: Final = Fate()
_PROBABILITIES: Final = ("drop", "duplicate", "reorder", "corrupt", "truncate", "addresses")


@dataclass(frozen=True, slots=True)
class Candidate:
    config: WorldConfig
    fates: Fates | None
    """None: drawn from the configuration's weather."""


def fates_of(result: RunResult[Any]) -> Fates:
    return tuple(
        (link, number, fate)
        for link, fates in sorted(result.fates.items())
        for number, fate in sorted(fates.items())
    )


def structural(candidate: Candidate) -> Iterator[Candidate]:
    """Worlds with one thing fewer or smaller; those that make no sense are left out."""
    config, fates = candidate.config, candidate.fates
    for make in _makers(config):
        try:
            smaller = make()
        except ConfigError:
            continue
        if smaller != config:
            yield Candidate(smaller, fates)
    yield from _fewer_hosts(candidate)


def _makers(config: WorldConfig) -> Iterator[Callable[[], WorldConfig]]:
    """One by one, so that a bold step that works spares making the rest."""
    for faults in fewer(config.faults):
        yield partial(replace, config, faults=faults)
    if len(config.jobs) > 1:
        for jobs in fewer(config.jobs):
            if jobs:
                yield partial(replace, config, jobs=jobs)
    for index, job in enumerate(config.jobs):
        for smaller in _smaller_jobs(job):
            jobs = (*config.jobs[:index], smaller, *config.jobs[index + 1 :])
            yield partial(replace, config, jobs=jobs)
    for moves in fewer(config.moves):
        yield partial(replace, config, moves=moves)
    for name in _PROBABILITIES:
        yield partial(_without_weather, config, name)
    for kind in FaultKind:
        yield partial(_shorter_faults, config, kind)
    yield lambda: replace(config, routers=())
    yield lambda: replace(config, routers=tuple(range(len(config.routers))))
    yield lambda: replace(config, coalesce_ns=0)
    yield lambda: replace(config, tight_switch=False)
    yield lambda: replace(config, recover_ns=0, refusing=-1)
    yield lambda: replace(config, refusing=-1)
    yield lambda: replace(config, control_delay_ns=min(config.control_delay_ns, 100 * US))
    yield lambda: replace(
        config, links=tuple(replace(_PLAIN_LINK, weather=link.weather) for link in config.links)
    )
    if config.topology is not None:
        yield from _simpler_trees(config, config.topology)


def fewer(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """None, halves, quarters, ..., all but one."""
    items = tuple(items)
    if not items:
        return
    yield ()
    size = len(items) // 2
    while size:
        for start in range(0, len(items), size):
            yield items[:start] + items[start + size :]
        size //= 2


def _smaller_jobs(job: JobConfig) -> Iterator[JobConfig]:
    size = len(job.hosts)
    for ranks in sorted({2, size // 2, size - 1}):
        if 2 <= ranks < size:
            yield _with_hosts(job, job.hosts[:ranks])
            yield _with_hosts(job, job.hosts[-ranks:])
    for elements in fewer(job.elements):
        if elements:
            mismatch = job.mismatch if job.mismatch and job.mismatch[1] < len(elements) else None
            yield replace(job, elements=elements, mismatch=mismatch)
    for divisor in (1 << 30, 16, 4, 2):
        yield replace(job, elements=tuple(min(count, max(1, count // divisor)) for count in job.elements))
    for index, count in enumerate(job.elements):
        if count > 1:
            yield replace(job, elements=(*job.elements[:index], -(-count // 2), *job.elements[index + 1 :]))
    yield replace(job, mismatch=None)
    yield replace(job, elastic=False, seated=False)
    yield replace(job, seated=False)
    yield replace(job, think_ns=0, slow_rank=-1, slow_ns=0)
    yield replace(job, think_ns=0)
    yield replace(job, slow_rank=-1, slow_ns=0)
    for name in ("depth", "message_packets", "window_messages"):
        for value in _toward_one(getattr(job, name)):
            yield _with(job, name, value)
    yield replace(job, mtu=256)
    yield replace(job, dtype=Dtype.I32)
    yield replace(job, op=Op.SUM)
    plain = JobConfig(job.name, job.hosts, job.elements)
    for name in ("transport_timeout", "stall_ns", "timeout_ns"):
        yield _with(job, name, getattr(plain, name))


def _with(job: JobConfig, name: str, value: int) -> JobConfig:
    changes: dict[str, Any] = {name: value}
    return replace(job, **changes)


def _toward_one(value: int) -> list[int]:
    return sorted({1, value // 2} - {0, value}) if value > 1 else []


def _with_hosts(job: JobConfig, hosts: tuple[int, ...]) -> JobConfig:
    ranks = len(hosts)
    return replace(
        job,
        hosts=hosts,
        slow_rank=job.slow_rank if job.slow_rank < ranks else -1,
        mismatch=job.mismatch if job.mismatch and job.mismatch[0] < ranks else None,
    )


def _without_weather(config: WorldConfig, name: str) -> WorldConfig:
    never: dict[str, Any] = {name: 0.0}

    def without(link: LinkConfig) -> LinkConfig:
        return replace(link, weather=replace(link.weather, **never))

    topology = None if config.topology is None else map_trunks(config.topology, without)
    return replace(config, links=tuple(map(without, config.links)), topology=topology)


def _shorter_faults(config: WorldConfig, kind: FaultKind) -> WorldConfig:
    """Half as long; not below a microsecond, where there is nothing left to see."""
    faults = tuple(
        replace(fault, duration_ns=max(US, fault.duration_ns // 2))
        if fault.kind is kind and fault.duration_ns > US
        else fault
        for fault in config.faults
    )
    return replace(config, faults=faults)


def _fewer_hosts(candidate: Candidate) -> Iterator[Candidate]:
    """Without the hosts on which no rank runs; those behind them move up."""
    config = candidate.config
    used = sorted({host for job in config.jobs for host in job.hosts})
    if len(used) == len(config.links):
        return
    number = {host: index for index, host in enumerate(used)}
    fates = candidate.fates
    if fates is not None:
        fates = tuple(
            (_renamed(link, number), frame, fate)
            for link, frame, fate in fates
            if (host := _host_of(link)) is None or host in number
        )
    yield Candidate(
        replace(
            config,
            jobs=tuple(replace(job, hosts=tuple(number[host] for host in job.hosts)) for job in config.jobs),
            links=tuple(config.links[host] for host in used),
            routers=tuple(config.routers[host] for host in used) if config.routers else (),
            topology=_with_attached(config.topology, used),
            faults=tuple(
                _moved(fault, number, len(config.links), is_of_fabric=_is_of_fabric(fault, config))
                for fault in config.faults
                if _is_of_fabric(fault, config) or fault.target % len(config.links) in number
            ),
        ),
        fates,
    )


def _is_of_fabric(fault: Fault, config: WorldConfig) -> bool:
    """It strikes no host: a trunk, a shard, or a switch, of which a world of several counts its own."""
    if fault.kind is FaultKind.SHARD_DEATH:
        return True
    return fault.trunk >= 0 or (config.topology is not None and fault.kind is FaultKind.SWITCH_REBOOT)


def _moved(fault: Fault, number: dict[int, int], hosts: int, *, is_of_fabric: bool) -> Fault:
    return fault if is_of_fabric else replace(fault, target=number[fault.target % hosts])


def _with_attached(topology: Topology | None, hosts: list[int]) -> Topology | None:
    if topology is None:
        return None
    return replace(topology, attached=tuple(topology.attached[host] for host in hosts))


def _simpler_trees(config: WorldConfig, topology: Topology) -> Iterator[Callable[[], WorldConfig]]:
    """Without a switch at which and below which nothing is; with plain trunks; with memory everywhere."""
    if topology.further_roots:
        yield lambda: replace(
            config,
            along=-1,
            topology=replace(topology, further_roots=()),
            faults=_of_own_tree(config, topology),
        )
    for gone in range(len(topology.switches) - 1, 0, -1):
        if gone not in topology.attached and all(switch.above != gone for switch in topology.switches):
            yield partial(_without_switch, config, topology, gone)
    yield lambda: replace(
        config,
        topology=map_trunks(topology, lambda trunk: replace(_PLAIN_LINK, weather=trunk.weather)),
    )
    for number, switch in enumerate(topology.switches):
        if not switch.aggregates:
            switches = list(topology.switches)
            switches[number] = replace(switch, aggregates=True)
            yield partial(replace, config, topology=replace(topology, switches=tuple(switches)))


def _of_own_tree(config: WorldConfig, topology: Topology) -> tuple[Fault, ...]:
    """Less those that strike a further root."""
    last, count = len(topology.switches), len(node_names(topology))
    return tuple(
        fault
        for fault in config.faults
        if fault.kind is not FaultKind.SWITCH_REBOOT or fault.trunk >= 0 or fault.target % count < last
    )


def _without_switch(config: WorldConfig, topology: Topology, gone: int) -> WorldConfig:
    """Those behind it move up. Its links' fates stay: they hit nothing any more."""

    def moved(number: int) -> int:
        return number - (number > gone)

    kept = [switch for number, switch in enumerate(topology.switches) if number != gone]
    faults = []
    for fault in config.faults:
        target = fault.target % len(node_names(topology))
        if fault.trunk >= 0 and fault.trunk != gone:
            faults.append(replace(fault, trunk=moved(fault.trunk)))
        elif fault.kind is FaultKind.SWITCH_REBOOT and fault.trunk < 0 and target != gone:
            faults.append(replace(fault, target=moved(target)))
        elif fault.kind is not FaultKind.SWITCH_REBOOT and fault.trunk < 0:
            faults.append(fault)
    return replace(
        config,
        faults=tuple(faults),
        topology=replace(
            topology,
            switches=tuple(replace(switch, above=moved(switch.above)) for switch in kept),
            attached=tuple(map(moved, topology.attached)),
            further_roots=tuple(
                replace(root, below=tuple(moved(number) for number in root.below if number != gone))
                for root in topology.further_roots
            ),
        ),
    )


def _host_of(link: str) -> int | None:
    """None: it is one between switches."""
    ends = [end for end in link.split(">") if re.fullmatch(r"host\d+", end)]
    return int(ends[0].removeprefix("host")) if ends else None


def _renamed(link: str, number: dict[int, int]) -> str:
    host = _host_of(link)
    return link if host is None else link.replace(f"host{host}", f"host{number[host]}")


def simpler_fates(fate: Fate) -> Iterator[Fate]:
    """The fate with one of its harms taken away, then with halved delays."""
    harms = [name for name in Fate._fields if getattr(fate, name) != getattr(_PLAIN_FATE, name)]
    if len(harms) > 1:
        for name in harms:
            yield fate._replace(**{name: getattr(_PLAIN_FATE, name)})
    if fate.copy_delay_ns > 0:
        yield fate._replace(copy_delay_ns=0)
