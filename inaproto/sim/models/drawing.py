"""Overlay worlds drawn from seeds: how many hosts, which trees, staleness and types, and what goes wrong.

Sizes are small and times short, so that windows, pulls, heartbeats and faults meet often. A good part of
the faults strike right after something has happened (a child was adopted, a record waits for the disk):
those at any other time find little.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from inaproto.core.models.events import Mark
from inaproto.core.models.tree.latency_trees import latency_tree
from inaproto.core.models.tree.trees import OverlayTree, direct_tree, heap_tree, planned_tree, rack_tree
from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.faults.streams import Draws, Seed
from inaproto.sim.kernel.config import CLEAR
from inaproto.sim.kernel.drawing import draw_delays, draw_weather
from inaproto.sim.models.config import (
    FIRST_SERVER,
    FaultKind,
    OverlayConfig,
    OverlayFault,
    Reshaping,
    ShardSetup,
    WorkerSetup,
)
from inaproto.units import MS, US
from inaproto.wire.messages.models import NodeId

_WRITING: Final = "a record waits for the disk"
MOMENTS: Final = (
    Mark.ATTACHED.value,
    Mark.ADOPTED.value,
    Mark.PARENT_DEAD.value,
    Mark.RESENT.value,
    Mark.RESET.value,
    Mark.RETURNED.value,
    Mark.FLUSHED.value,
    Mark.TORN_DOWN.value,
    Mark.BUILT_UP.value,
    _WRITING,
    "a server has started again",
    "a worker resumed at a later clock",
    "a worker was finished",
)
"""Marks after which faults may strike."""
_SHARES: Final = {"drop": 0.03, "reorder": 0.2}
_KINDS: Final = (
    *(FaultKind.HOST_CRASH,) * 4,
    *(FaultKind.INTERIOR_CRASH,) * 4,
    *(FaultKind.SERVER_CRASH,) * 3,
    *(FaultKind.PAIR_CRASH,) * 2,
    *(FaultKind.PAUSE,) * 2,
    FaultKind.SERVER_PAUSE,
    *(FaultKind.PARTITION,) * 2,
    *(FaultKind.EDGE_CUT,) * 2,
    *(FaultKind.RESET,) * 2,
    FaultKind.BURST,
)
_OF_WORKERS: Final = (
    "",
    Mark.HELD.value,
    Mark.FLUSHED.value,
    Mark.ADOPTED.value,
    "a worker pulled without waiting for it",
    "a push was withheld until a multiple",
)
"""After these a worker's process may go; or at any time."""


def draw_overlay(seed: Seed, *, has_processes: bool = True) -> OverlayConfig:
    """The overlay world of ``seed``. Without processes: workers do one thing at a time, and live as long as
    their hosts."""
    draws = Draws(seed, "swarm/overlay")
    hosts = tuple(range(draws.choice((1, 2, 3, 4, 5, 6, 7, 9))))
    workers = _draw_workers(draws, hosts)
    shards = tuple(
        _draw_shard(draws, hosts, shard, workers) for shard in range(draws.choice((1, 1, 1, 2, 3)))
    )
    until = draws.magnitude(30 * MS, 200 * MS)
    delay_min, delay_max = draw_delays(draws)
    heartbeat = draws.magnitude(MS, 8 * MS)
    faults = _draw_faults(draws, until) if draws.chance(5, 6) else ()
    has_removal = draws.chance(1, 5)
    shards, reshapings = _draw_reshapings(seed, hosts, shards, until)
    config = OverlayConfig(
        reshapings=reshapings,
        seed=str(seed),
        hosts=hosts,
        workers=workers,
        shards=shards,
        faults=faults,
        weather=draw_weather(draws, delay_max, **_SHARES) if draws.chance(1, 2) else CLEAR,
        heartbeat_ns=heartbeat,
        dead_ns=3 * heartbeat,
        return_ns=draws.choice((0, heartbeat, 3 * heartbeat)),
        start_ns=draws.choice((0, heartbeat, 3 * heartbeat, 100 * MS)),
        teardown_failures=draws.choice((1, 2, 2, 2, 3)),
        removal_ns=draws.magnitude(4 * heartbeat, 100 * MS) if has_removal else -1,
        delay_min_ns=delay_min,
        delay_max_ns=delay_max,
        redial_ns=draws.magnitude(200 * US, 4 * MS),
        silent_ns=draws.magnitude(4 * heartbeat, 80 * MS),
        fsync_max_ns=draws.magnitude(20 * US, 3 * MS),
        snapshot_every=draws.between(1, 8),
        weather_until_ns=until,
    )
    return config if not has_processes else _with_processes(Draws(seed, "swarm/overlay/processes"), config)


def _with_processes(draws: Draws, config: OverlayConfig) -> OverlayConfig:
    """What workers' processes do and what befalls them; and worlds without heartbeats."""
    side, spread = draws.choice((0, 0, 1, 3)), draws.choice((0, 0, 1, 2))
    leaves_open = draws.chance(1, 4)
    workers = tuple(
        replace(
            worker,
            side_pulls=side,
            staleness_spread=spread,
            leaves_open=leaves_open and draws.chance(2, 3),
        )
        for worker in config.workers
    )
    crashes = []
    for _ in range(draws.choice((0, 0, 1, 2, 4)) if config.faults else 0):
        moment = draws.choice(_OF_WORKERS)
        at = draws.below(2 * MS if moment else config.weather_until_ns)
        worker = draws.choice(config.workers)
        crashes.append(
            OverlayFault(
                at, FaultKind.WORKER_CRASH, config.hosts.index(worker.host),
                draws.magnitude(50 * US, 20 * MS),
                moment=moment, occurrence=draws.choice((1, 1, 2, 3)),
            )
        )  # fmt: skip
    heartbeat = -1 if draws.chance(1, 10) else config.heartbeat_ns
    return replace(config, workers=workers, faults=(*config.faults, *crashes), heartbeat_ns=heartbeat)


def _draw_reshapings(
    seed: Seed, hosts: tuple[int, ...], shards: tuple[ShardSetup, ...], until: int
) -> tuple[tuple[ShardSetup, ...], tuple[Reshaping, ...]]:
    """In some worlds, trees to choose from, and when. A stream of its own leaves the others as they were."""
    draws = Draws(seed, "swarm/overlay/reshapings")
    if not draws.chance(1, 4):
        return shards, ()
    found, reshapings = list[ShardSetup](), list[Reshaping]()
    for number, setup in enumerate(shards):
        root, nodes = NodeId(FIRST_SERVER + number), [NodeId(host) for host in hosts]
        trees = [_draw_tree(draws, root, nodes) for _ in range(draws.between(1, 3))]
        others = tuple(
            tuple((int(node), tuple(map(int, below))) for node, below in tree.below) for tree in trees
        )
        found.append(replace(setup, others=others))
        reshapings += [
            Reshaping(draws.below(until), number, draws.below(len(trees) + 1))
            for _ in range(draws.between(1, 8))
        ]
    return tuple(found), tuple(reshapings)


def _draw_workers(draws: Draws, hosts: tuple[int, ...]) -> tuple[WorkerSetup, ...]:
    seats = [host for host in hosts if draws.chance(7, 8)] or [hosts[0]]
    clocks, think = draws.between(2, 14), draws.magnitude(100 * US, 6 * MS)
    extra = draws.choice((0, 0, 0, 1, -1))
    even = draws.chance(2, 3)
    return tuple(
        WorkerSetup(
            host=host,
            clocks=clocks if even else draws.between(1, 14),
            think_ns=think if draws.chance(3, 4) else draws.magnitude(100 * US, 20 * MS),
            pushes=draws.choice((1, 1, 2, 3)),
            empty_every=draws.choice((0, 0, 0, 2, 3)),
            pull_every=draws.choice((1, 1, 1, 2, 4)),
            extra_staleness=extra,
        )
        for host in draws.shuffled(seats)
    )


def _draw_shard(
    draws: Draws, hosts: tuple[int, ...], shard: int, workers: tuple[WorkerSetup, ...]
) -> ShardSetup:
    staleness = draws.choice((0, 0, 0, 1, 2, 3))
    dtype = draws.choice(("int32", "int64", "float32", "float64", "fixed"))
    ahead = staleness + max(draws.choice((1, 2, 4, 8)), max(worker.extra_staleness for worker in workers) + 1)
    tree = _draw_tree(draws, NodeId(FIRST_SERVER + shard), [NodeId(host) for host in hosts])
    return ShardSetup(
        below=tuple((int(node), tuple(map(int, children))) for node, children in tree.below),
        dtype="int64" if dtype == "fixed" else dtype,
        staleness=staleness,
        fraction_bits=draws.between(0, 12) if dtype == "fixed" else -1,
        ahead_max=ahead,
        begins_trained=draws.chance(1, 4),
    )


def _draw_tree(draws: Draws, root: NodeId, hosts: list[NodeId]) -> OverlayTree:
    order = draws.shuffled(hosts)
    match draws.below(8):
        case 0:
            return direct_tree(root, order)
        case 1 | 2:
            return heap_tree(root, order)
        case 3:
            return heap_tree(root, order, in_degree=1)
        case 4:
            racks = [hosts[at : at + 3] for at in range(0, len(hosts), 3)]
            return rack_tree(root, racks, order)
        case 5:
            points = [(draws.below(50), draws.below(50)) for _ in range(len(hosts) + 1)]
            matrix = [[abs(a[0] - b[0]) + abs(a[1] - b[1]) for b in points] for a in points]
            found = latency_tree([root, *hosts], matrix, in_degree_max=draws.between(1, 3))
            assert isinstance(found, OverlayTree), "all distances are known"
            return found
        case _:
            return planned_tree(root, ReductionPlan(_draw_plan(draws, list(range(len(hosts))))), order)


def _draw_plan(draws: Draws, ranks: list[int]) -> PlanList:
    found: list[int | PlanList] = []
    while ranks:
        take = draws.between(1, len(ranks))
        part, ranks = ranks[:take], ranks[take:]
        whole = take == 1 or (not found and not ranks)
        found.extend(part if whole else [_draw_plan(draws, part)])
    return tuple(found)


def _draw_faults(draws: Draws, until: int) -> tuple[OverlayFault, ...]:
    found = []
    for _ in range(draws.choice((1, 1, 2, 3, 4, 6))):
        kind = FaultKind.HOST_LOST if draws.chance(1, 12) else draws.choice(_KINDS)
        moment = draws.choice(MOMENTS) if draws.chance(1, 2) else ""
        if kind is FaultKind.SERVER_CRASH and draws.chance(1, 2):
            moment = _WRITING
        at = draws.below(until)
        if moment:
            at = draws.below(300 * US if moment == _WRITING else 2 * MS)
        weather = draw_weather(draws, MS, **_SHARES) if kind is FaultKind.BURST else CLEAR
        duration = draws.magnitude(200 * US, 60 * MS)
        found.append(
            OverlayFault(at, kind, draws.below(64), duration, weather, moment, draws.choice((1, 1, 2, 3, 5)))
        )
    return tuple(found)
