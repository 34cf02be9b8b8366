"""``inaproto bench allreduce --fabric memory``: all-reduces in the deterministic world, without weather.

Hosts, NICs, links and switches are simulated in virtual time around the product's own cores, so a run
shows what a tree of switches carries, link by link, and that every element is right; it repeats exactly.
Its times are those of the links that are assumed: the cores take none.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from inaproto.errors import ConfigError, InaprotoError, LocalMisuse
from inaproto.sim.frames.checkers import Checker, all_checkers
from inaproto.sim.frames.checkers.one_result import OneResult
from inaproto.sim.frames.draw.swarm import JobConfig, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig, SwitchConfig, Topology, map_trunks, parse_topology
from inaproto.sim.frames.host.rank import SimRank
from inaproto.sim.frames.world import World
from inaproto.units import US, S
from inaproto.wire.ina_header import Dtype, Op
from inaproto_hil.bench import report
from inaproto_hil.bench.allreduce.link_traffic import LinkTraffic, Volume, arithmetic, compare
from inaproto_hil.bench.pattern import DTYPES
from inaproto_hil.rigs import environment

FABRICS: Final = ("daemons", "memory")
HOSTS_MAX: Final = 64
DTYPE_OF: Final = {
    "float32": Dtype.F32,
    "bfloat16": Dtype.BF16,
    "int32": Dtype.I32,
    "float16": Dtype.F16,
    "float64": Dtype.F64,
    "int64": Dtype.I64,
}
LINK: Final = LinkConfig(rate_bps=100 * 10**9, delay_ns=US, queue_frames_max=1 << 20)
"""Long queues: nothing is lost where many hosts send to one port."""


class WorldBroken(InaprotoError):
    """The world broke a rule, so its figures are worth nothing."""


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    hosts: int
    topology: str
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    op: str
    iterations: int
    warmup: int
    window_messages: int
    message_packets: int
    mtu: int
    seed: int

    @property
    def operations(self) -> int:
        return self.warmup + self.iterations

    def tree(self) -> Topology:
        """Raises ``ConfigError``."""
        if not self.topology:
            return Topology((SwitchConfig("switch"),), (0,) * self.hosts)
        return map_trunks(parse_topology(self.topology, self.hosts), lambda _: LINK)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "fabric": "memory",
            "rate_bps": LINK.rate_bps,
            "delay_ns": LINK.delay_ns,
            "weather": "",
        }


@dataclass(frozen=True, slots=True)
class MemoryRow:
    row: report.Row
    links: list[dict[str, Any]]
    traffic_ok: bool

    def as_dict(self) -> dict[str, Any]:
        return self.row.as_dict(LINK.rate_bps) | {"traffic_ok": self.traffic_ok, "links": self.links}


class _Watch(Checker):
    """Times each operation by the rank that takes longest, and counts wrong elements instead of stopping."""

    name = "bench"

    def __init__(self, operations: int, itemsize: int) -> None:
        self.longest_ns = [0] * operations
        self.wrong = 0
        self.wrong_example = ""
        self._itemsize = itemsize
        self._called: dict[tuple[int, int], int] = {}

    def begin(self, world: World) -> None:
        self._world = world

    def submitted(self, rank: SimRank, op_index: int) -> None:
        self._called[rank.index, op_index] = self._world.agenda.now

    def done(self, rank: SimRank, op_index: int) -> None:
        self._world.operations_done += 1
        took = self._world.agenda.now - self._called[rank.index, op_index]
        self.longest_ns[op_index] = max(self.longest_ns[op_index], took)
        exact = self._world.oracle(rank.job).result(rank.life, op_index, rank.job.elements[op_index])
        got = rank.tensor(op_index).tobytes()
        if got != exact:
            rows = [np.frombuffer(text, np.uint8).reshape(-1, self._itemsize) for text in (got, exact)]
            at = np.flatnonzero((rows[0] != rows[1]).any(axis=1))
            self.wrong += len(at)
            self.wrong_example = self.wrong_example or f"{rank}, operation {op_index}, element {at[0]}"


def measure_row(config: MemoryConfig, tree: Topology, dtype: str, size: int) -> MemoryRow:
    """One world for each row. Raises ``WorldBroken``."""
    count = size // DTYPES[dtype].itemsize
    hosts = tuple(range(config.hosts))
    job = JobConfig(
        name="bench",
        hosts=hosts,
        elements=(count,) * config.operations,
        dtype=DTYPE_OF[dtype],
        op=Op[config.op.upper()],
        mtu=config.mtu,
        window_messages=config.window_messages,
        message_packets=config.message_packets,
        transport_timeout=16,
        timeout_ns=60 * S,
    )
    world_config = WorldConfig(
        seed=f"bench/{config.seed}/{dtype}/{size}",
        jobs=(job,),
        links=(LINK,) * config.hosts,
        weather_until_ns=1,
        heal_ns=600 * S,
        events_max=1 << 40,
        topology=tree,
    )
    watch = _Watch(config.operations, DTYPES[dtype].itemsize)
    checkers = [watch, *(one for one in all_checkers() if not isinstance(one, OneResult))]
    world = World(world_config, checkers=checkers)
    traffic = LinkTraffic()
    for link in world.links:
        link.tap = traffic.see
    result = world.run()
    if result.violation is not None:
        raise WorldBroken(f"{dtype} {size} B: {result.violation.rule}: {result.violation.evidence}")
    volume = Volume.of(count * DTYPES[dtype].itemsize, mtu=config.mtu, message_packets=config.message_packets)
    links, traffic_ok = compare(traffic, arithmetic(tree, hosts, volume.times(config.operations)))
    row = report.Row(
        size_bytes=count * DTYPES[dtype].itemsize,
        count=count,
        dtype=dtype,
        op=config.op,
        ranks=config.hosts,
        samples_s=tuple(ns / S for ns in watch.longest_ns[config.warmup :]),
        wrong=watch.wrong,
        cpu_s=math.nan,
        wrong_example=watch.wrong_example,
    )
    return MemoryRow(row, links, traffic_ok)


def measure_memory(config: MemoryConfig, on_row: Callable[[MemoryRow], None]) -> list[MemoryRow]:
    """All rows. Raises ``ConfigError`` for a topology that cannot be, ``WorldBroken``."""
    tree = config.tree()
    rows = []
    for dtype in config.dtypes:
        for size in config.sizes:
            rows.append(measure_row(config, tree, dtype, size))
            on_row(rows[-1])
    return rows


def run_memory(config: MemoryConfig, json_path: str | None) -> int:
    """The command: prints the table, writes the report; returns the exit status."""
    env = environment.describe()
    table = sys.stderr if json_path == "-" else sys.stdout
    try:
        tree = config.tree()
        _print_heading(config, tree, table)
        rows = measure_memory(config, lambda done: print(report.table_line(done.row), file=table, flush=True))
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except (WorldBroken, LocalMisuse) as error:
        raise click.ClickException(str(error)) from None
    text = json.dumps(document(config, env, rows), indent=2)
    if json_path == "-":
        print(text)
    elif json_path is not None:
        Path(json_path).write_text(text + "\n")
    wrong = sum(done.row.wrong for done in rows)
    print(f"# wrong elements: {wrong} {'OK' if wrong == 0 else 'FAILED'}", file=table)
    for done in rows:
        if done.row.wrong:
            print(f"# {done.row.dtype} {done.row.size_bytes} B: {done.row.wrong_example}", file=table)
    traffic_ok = all(done.traffic_ok for done in rows)
    _print_links(rows[-1], table)
    says = (
        "is the tree's: one copy up and one down each link OK" if traffic_ok else "is not the tree's FAILED"
    )
    print(f"# traffic of every link and row {says}", file=table)
    return 0 if wrong == 0 and traffic_ok else 1


def _print_heading(config: MemoryConfig, tree: Topology, table: Any) -> None:
    standby = f", {tree.standby_switches} more on standby" if tree.standby_switches else ""
    print(
        f"# inaproto bench allreduce: {config.hosts} hosts, {config.topology or 'one switch'} "
        f"({len(tree.switches)} switches{standby}), window {config.window_messages} messages of "
        f"{config.message_packets} packets of {config.mtu} B, no weather\n"
        f"# simulated: times are virtual, links have {LINK.rate_bps / 1e9:g} Gb/s and {LINK.delay_ns} ns",
        file=table,
    )
    print(report.header(), file=table, flush=True)


def _print_links(done: MemoryRow, table: Any) -> None:
    """Print the links of one row; the others are in the report."""
    print(
        f"# frames on each link, {done.row.dtype} {done.row.size_bytes} B, all iterations (up down):\n"
        f"# {'link':<24}{'first copies':>18}{'of the tree':>16}{'again':>12}{'notes':>12}{'ACKs':>12}",
        file=table,
    )
    for link in done.links:
        up, down = link["up"], link["down"]
        cells = [
            f"{up['first']['frames']} {down['first']['frames']}",
            f"{up['expected']['frames']} {down['expected']['frames']}",
            f"{up['again']['frames']} {down['again']['frames']}",
            f"{up['notes']['frames']} {down['notes']['frames']}",
            f"{up['acks']} {down['acks']}",
        ]
        widths = (18, 16, 12, 12, 12)
        line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        print(f"# {link['link']:<24}{line}{'' if link['ok'] else '  DIFFERS'}", file=table)


def document(config: MemoryConfig, env: dict[str, Any], rows: Sequence[MemoryRow]) -> dict[str, Any]:
    """The whole report for ``json.dump``."""
    tree = config.tree()
    described = report.document(
        config=config.as_dict(), env=env, rows=[row.row for row in rows], line_rate_bps=LINK.rate_bps
    )
    return described | {
        "fabric": "memory",
        "time": "virtual",
        "topology": {
            "switches": [
                {
                    "name": switch.name,
                    "above": tree.switches[switch.above].name if switch.above >= 0 else None,
                }
                for switch in tree.switches
            ],
            "hosts": {f"host{host}": tree.switches[at].name for host, at in enumerate(tree.attached)},
            "standby_switches": tree.standby_switches,
            "standby_links": tree.standby_links,
        },
        "traffic_ok": all(row.traffic_ok for row in rows),
        "rows": [row.as_dict() for row in rows],
    }
