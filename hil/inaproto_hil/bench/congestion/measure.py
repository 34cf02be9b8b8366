"""Runs a world of ``inaproto bench congestion`` and counts what passes its bottlenecks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from inaproto.sim.frames.checkers.all_left import AllLeft
from inaproto.sim.frames.checkers.blameless import NicsBlameNobody
from inaproto.sim.frames.checkers.exactly_once import ExactlyOnce
from inaproto.sim.frames.checkers.one_result import OneResult
from inaproto.sim.frames.link import SimLink
from inaproto.sim.frames.world import World
from inaproto.units import MS, Frames
from inaproto_hil.bench.congestion.scenarios import (
    Kind,
    Scenario,
    Setup,
    bottlenecks_of,
    ring_of,
    world_of,
)

BIN_NS: Final = MS // 4
"""Curves are drawn of means over as long."""
_HEADERS_BYTES: Final = 58
_WRITES: Final = range(0x06, 0x0C)


@dataclass(slots=True)
class Watched:
    """What is delivered by one link, and how long its queue was when frames came to it."""

    host: int
    begin_ns: int
    end_ns: int
    payload: Counter[int] = field(default_factory=Counter)
    """Bytes by sending host, while it is measured."""
    bins: list[Counter[int]] = field(default_factory=list)
    """The same all the time, by time."""
    queue: list[int] = field(default_factory=list)
    """Bytes, one for each frame that was sent while it is measured."""
    queue_bins: list[int] = field(default_factory=list)
    """The longest of each bin."""


class Watch:
    """Told of frames by the links to some hosts."""

    def __init__(self, world: World, setup: Setup, hosts: Sequence[int]) -> None:
        self._world = world
        self._by_ip = {host.ip: host.number for host in world.hosts}
        self.of = [Watched(host, setup.begin_ns, setup.end_ns) for host in hosts]
        for watched in self.of:
            link = world.downlinks[watched.host]
            link.tap = self._queued(watched, link)
            link.put_before_delivery(self._delivered(watched))

    def _queued(self, watched: Watched, link: SimLink) -> Callable[[str, Frames], None]:
        agenda = self._world.agenda

        def tap(_: str, frame: Frames) -> None:
            now, queue = agenda.now, link.queue_bytes
            at = now // BIN_NS
            while len(watched.queue_bins) <= at:
                watched.queue_bins.append(0)
            watched.queue_bins[at] = max(watched.queue_bins[at], queue)
            if watched.begin_ns <= now < watched.end_ns:
                watched.queue.append(queue)

        return tap

    def _delivered(
        self, watched: Watched
    ) -> Callable[[Callable[[list[Frames]], None]], Callable[[list[Frames]], None]]:
        agenda, by_ip = self._world.agenda, self._by_ip

        def wrap(deliver: Callable[[list[Frames]], None]) -> Callable[[list[Frames]], None]:
            def delivered(blocks: list[Frames]) -> None:
                for block in blocks:
                    if block.shape[1] > _HEADERS_BYTES and block[0, 42] in _WRITES:
                        sender = by_ip[block[0, 26:30].tobytes()]
                        payload = block.size - len(block) * _HEADERS_BYTES
                        at = agenda.now // BIN_NS
                        while len(watched.bins) <= at:
                            watched.bins.append(Counter())
                        watched.bins[at][sender] += payload
                        if watched.begin_ns <= agenda.now < watched.end_ns:
                            watched.payload[sender] += payload
                deliver(blocks)

            return delivered

        return wrap


def jain(rates: Sequence[float]) -> float | None:
    """Jain's fairness index: 1 where all rates are equal, 1/n where one flow has everything."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else None


def run(scenario: Scenario, setup: Setup) -> dict[str, Any]:
    """One row of the report. Raises ``AssertionError`` where a rule of the world was broken."""
    setup = setup.of(scenario.kind)
    config = world_of(scenario, setup)
    world = World(config, checkers=[OneResult(), ExactlyOnce(), AllLeft(), NicsBlameNobody()])
    watch = Watch(world, setup, bottlenecks_of(scenario, setup))
    result = world.run()
    if result.violation is not None:
        raise AssertionError(f"{scenario.name}: {result.violation}")
    seconds = setup.duration_ns / 1e9
    ring = ring_of(scenario, setup)
    before = {host: ring[number - 1] for number, host in enumerate(ring)}
    shares, totals, jains, queues, compared = [], [], [], [], []
    for watched in watch.of:
        senders = sorted({flow.sender for flow in config.flows if flow.receiver == watched.host})
        if config.jobs:
            senders.append(before[watched.host])
        rates = {sender: watched.payload[sender] * 8 / seconds / 1e9 for sender in senders}
        totals.append(sum(rates.values()))
        jains.append(jain(list(rates.values())))
        queues += watched.queue
        if scenario.kind in (Kind.PLAIN, Kind.SHARED):
            compared.append(rates[before[watched.host]])
            shares.append(compared[-1] / (totals[-1] / len(rates)) if totals[-1] else None)
    marks = result.marks
    links = [link for link in world.links if link.marked or link.dropped]
    queues.sort()
    return {
        "scenario": scenario.name,
        **{key: value for key, value in asdict(scenario).items() if key != "kind"},
        "kind": str(scenario.kind),
        "goodput_gbit_s": _mean(totals),
        "share_of_link": _mean(totals) / (setup.rate_bps / 1e9),
        "jain": _mean([value for value in jains if value is not None]),
        "compared_gbit_s": _mean(compared) if compared else None,
        "of_fair_share": _mean([value for value in shares if value is not None]) if shares else None,
        "queue_bytes_mean": round(sum(queues) / len(queues)) if queues else 0,
        "queue_bytes_99": queues[len(queues) * 99 // 100] if queues else 0,
        "queue_bytes_max": max(link.queue_bytes_max for link in world.links),
        "marked": sum(link.marked for link in links),
        "cnps": marks.get("nic: cnps_received", 0),
        "lost": sum(sum(link.dropped.values()) for link in links),
        "retransmits": marks.get("nic: retransmits", 0),
        "all_reduces": len(config.jobs[0].elements) if config.jobs else 0,
        "frames": result.frames,
        "digest": result.digest,
        "curve": _curve(watch.of[0], before[watch.of[0].host] if compared else None, setup),
    }


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0


def _curve(watched: Watched, compared: int | None, setup: Setup) -> dict[str, list[float]]:
    """Of the first bottleneck: rates of all flows and of the one that is compared, and its queue."""
    to_gbit = 8 / BIN_NS
    bins = watched.bins[: setup.end_ns // BIN_NS]
    return {
        "ms": [number * BIN_NS / MS for number in range(len(bins))],
        "all_gbit_s": [round(sum(each.values()) * to_gbit, 3) for each in bins],
        "compared_gbit_s": [
            round(each[compared] * to_gbit, 3) if compared is not None else 0 for each in bins
        ],
        "queue_bytes": [float(each) for each in watched.queue_bins[: len(bins)]],
    }
