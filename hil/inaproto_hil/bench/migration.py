"""``inaproto bench migration``: jobs move from tree to tree under all-reduces that never pause (MINA, IV-A).

Real daemons on this machine: two racks with two spines above them, four hosts, a controller. All jobs call
all-reduces without a pause, on the path ``shared``; the controller is told, move after move, to have each job
summed at the other spine, as ``inaproto job move`` does it. Every result is compared with numpy's, byte for
byte. What the controller tells of a move stands beside what the paper measured on its testbed (section V-D);
the downtime of INA is also measured where it is felt, at rank 0 of each job, from its last all-reduce in the
switches before a move to its first one after it.

What is undefined is ``null`` in the JSON and ``-`` in the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import trio
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

import inaproto
from inaproto.errors import InaprotoError
from inaproto.option_types import FolderToMake, ReportFile, write_report
from inaproto_controller.service.job_client import ControllerUnreachable
from inaproto_hil.rigs import environment
from inaproto_hil.rigs.cluster import ClusterError
from inaproto_hil.rigs.sharing_cluster import WAIT_S, SharingCluster

VERSION: Final = 1
INPUTS: Final = 8
"""Different all-reduces, over and over."""
LOOK_S: Final = 0.01
LEASE_MS: Final = 30_000
"""The controller's default."""
MOVE_WAIT_S: Final = 60.0
PAPER_MS: Final = {"release": 125.0, "acquire": 294.0, "total": 559.0}
PHASES: Final = ("drain", "release", "barrier", "acquire", "install")
PERCENTILES: Final = (50, 95, 99)
_NOTES: Final = (
    "release: from the wish until no switch lent a slot of the old tree, draining included",
    "acquire: from then, barrier excluded, until the fabric's root reported the ring as standing",
    "paper: MINA, section V-D, its own testbed and switches; daemons of one machine are no testbed",
)


@dataclass
class Traffic:
    """All-reduces of one job, on all hosts, until it is told to end."""

    cluster: SharingCluster
    name: str
    nbytes: int
    differs: int = 0
    done: list[int] = field(default_factory=list)
    """All-reduces that have ended, by rank."""
    log: list[tuple[float, bool]] = field(default_factory=list)
    """When each operation of rank 0 ended, and whether the switches summed it."""
    last: int | None = None

    def __post_init__(self) -> None:
        size = self.cluster.config.hosts
        self.done = [0] * size
        random = np.random.default_rng([1, *self.name.encode()])
        shape = (INPUTS, size, self.nbytes // 4)
        self.parts: NDArray[np.float32] = random.standard_normal(shape, dtype=np.float32)
        per_rack = self.cluster.config.hosts_per_rack
        self.expected = []
        for parts in self.parts:
            racks = [_in_order(parts[first : first + per_rack]) for first in range(0, size, per_rack)]
            self.expected.append(_in_order(racks).tobytes())

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for rank in range(self.cluster.config.hosts):
                nursery.start_soon(self._rank, rank)

    async def _rank(self, rank: int) -> None:
        size, socket = self.cluster.config.hosts, self.cluster.host_socket(rank)
        async with await inaproto.connect(self.name, rank, size=size, socket=socket, path="shared") as comm:
            index = 0
            while self.last is None or index < self.last:
                result = await comm.all_reduce(self.parts[index % INPUTS, rank])
                self.differs += result.tobytes() != self.expected[index % INPUTS]
                self.done[rank] = index = index + 1
                if rank == 0:
                    self.log.append((trio.current_time(), comm.statistics().recent[-1].path == "switch"))

    def finish(self) -> None:
        """Ask all hosts to stop at the same all-reduce, soon: they are one apart at most."""
        self.last = max(self.done) + 2

    def has_ina(self) -> bool:
        """The switches have summed for it."""
        return any(is_ina for _, is_ina in self.log)

    def felt(self, since: float) -> tuple[float, int] | None:
        """Seconds without INA around ``since``, and all-reduces by the hosts in them; None: not over yet."""
        before = [at for at, is_ina in self.log if is_ina and at <= since]
        rest = [(at, is_ina) for at, is_ina in self.log if not before or at > before[-1]]
        first = next((number for number, (_, is_ina) in enumerate(rest) if not is_ina), None)
        if first is None:
            return None
        again = next((at for at, is_ina in rest[first:] if is_ina), None)
        if again is None:
            return None
        gone = rest[first - 1][0] if first else (before[-1] if before else rest[0][0])
        return again - gone, sum(1 for at, is_ina in rest if gone < at < again and not is_ina)


def _in_order(parts: Sequence[NDArray[np.float32]] | NDArray[np.float32]) -> NDArray[np.float32]:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


async def _until(what: str, condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    with trio.move_on_after(wait_s) as scope:
        while not condition():  # noqa: ASYNC110  it happens in other processes
            await trio.sleep(LOOK_S)
    if scope.cancelled_caught:
        raise ClusterError(f"{what}: not within {wait_s:g} s")


async def _ask(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    return await trio.to_thread.run_sync(partial(call, *given, **named))


async def _move(traffic: Traffic, root: str, number: int) -> dict[str, Any]:
    client, since = traffic.cluster.client, trio.current_time()
    found = await _ask(client.move, traffic.name, root, wait_s=MOVE_WAIT_S)
    if not found["stands"] or found["move"] is None or found["move"]["new"] != root:
        raise ClusterError(
            f"move {number}: job {traffic.name} is not at {root} within {MOVE_WAIT_S:g} s: {found}"
        )
    await _until(f"move {number}: INA of job {traffic.name}", lambda: traffic.felt(since) is not None)
    felt = traffic.felt(since)
    assert felt is not None, "it was just there"
    move = found["move"]
    return {
        "move": number,
        "job": traffic.name,
        "from": move["old"],
        "to": root,
        **{f"{phase}_ms": move[f"{phase}_s"] * 1000 for phase in PHASES},
        "total_ms": move["total_s"] * 1000,
        "downtime_ms": move["downtime_s"] * 1000,
        "felt_downtime_ms": felt[0] * 1000,
        "fallback_operations": felt[1],
        "refusals": move["refusals"],
    }


async def _root_of(cluster: SharingCluster, job: str) -> str:
    """Where its ring stands; empty: nowhere now."""
    await trio.sleep(LOOK_S)
    try:
        its = (await _ask(cluster.client.trees))["jobs"].get(job, {})
    except ControllerUnreachable:  # it does not lead yet
        return ""
    return str(its.get("root", "")) if its.get("ring") == "standing" and its.get("epoch") else ""


async def measure(
    cluster: SharingCluster, moves: int, jobs: int, nbytes: int, progress: Callable[[int], None]
) -> dict[str, Any]:
    """The rows of the moves, and what became of all-reduces. ``progress`` hears how many moves are done."""
    traffics = [Traffic(cluster, f"job{number}", nbytes) for number in range(jobs)]
    rows: list[dict[str, Any]] = []
    rings = 0
    aborts: dict[str, int] = {}

    def generations() -> int:
        return int(cluster.switch_status()["rendezvous"]["rings_made"])

    async def direct() -> None:
        nonlocal rings
        with trio.fail_after(WAIT_S):
            roots = [""] * jobs
            while not all(roots):
                roots = [await _root_of(cluster, traffic.name) for traffic in traffics]
        for traffic in traffics:
            await _until(f"INA of job {traffic.name}", traffic.has_ina)
        rings = await _ask(generations)
        while len(rows) < moves:
            one, other = cluster.config.roots[:2]
            roots = [other if root == one else one for root in roots]
            results: dict[int, dict[str, Any]] = {}

            async def turn(number: int, root: str, results: dict[int, dict[str, Any]] = results) -> None:
                results[number] = await _move(traffics[number], root, len(rows) + number)

            async with trio.open_nursery() as moving:
                for number in range(min(jobs, moves - len(rows))):
                    moving.start_soon(turn, number, roots[number])
            rows.extend(results[number] for number in sorted(results))
            progress(len(rows))
        rings = await _ask(generations) - rings
        status = await _ask(cluster.client.ask, "GET", "/v1/status")
        aborts.update(status["history"]["aborts"])
        for traffic in traffics:
            traffic.finish()

    async with trio.open_nursery() as nursery:
        for traffic in traffics:
            nursery.start_soon(traffic.run)
        nursery.start_soon(direct)
    wanted = sum(cluster.config.hosts * (traffic.last or 0) for traffic in traffics)
    done = sum(sum(traffic.done) for traffic in traffics)
    ina = sum(is_ina for traffic in traffics for _, is_ina in traffic.log)
    total = sum(len(traffic.log) for traffic in traffics)
    return {
        "rows": rows,
        "totals": {
            "all_reduces": done,
            "lost": wanted - done,
            "identical": not any(traffic.differs for traffic in traffics),
            "generation_changes": rings,
            "ina_share": ina / total if total else None,
            "moves": len(rows),
            "rounds_aborted": sum(aborts.values()),
        },
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Percentiles in ms, by what; with the paper's where it has one."""
    columns = {
        "release": [row["drain_ms"] + row["release_ms"] for row in rows],
        "acquire": [row["acquire_ms"] + row["install_ms"] for row in rows],
        "total": [row["total_ms"] for row in rows],
        **{f"phase {phase}": [row[f"{phase}_ms"] for row in rows] for phase in PHASES},
        "downtime": [row["downtime_ms"] for row in rows],
        "felt downtime": [row["felt_downtime_ms"] for row in rows],
        "fallback operations": [row["fallback_operations"] for row in rows],
    }
    return {
        name: {f"p{one}": percentile(values, one) for one in PERCENTILES}
        | {"max": max(values, default=None), "paper": PAPER_MS.get(name)}
        for name, values in columns.items()
    }


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The least value that so many percent do not exceed; None of no values."""
    if not values:
        return None
    return float(sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)])


def is_good(report: dict[str, Any]) -> bool:
    totals = report["totals"]
    return bool(totals["identical"]) and totals["lost"] == 0 and totals["generation_changes"] == 0


def run(
    moves: int, jobs: int, nbytes: int, progress: Callable[[int], None], log_dir: Path | None
) -> dict[str, Any]:
    """The whole measurement as the JSON document of the command. Raises ``ClusterError``."""
    with SharingCluster(log_dir=log_dir, spines=2, lease_ms=LEASE_MS) as cluster:
        found = trio.run(measure, cluster, moves, jobs, nbytes, progress)
    return {
        "version": VERSION,
        "benchmark": "migration",
        "config": {"moves": moves, "jobs": jobs, "bytes": nbytes, "hosts": 4, "racks": 2, "spines": 2},
        "env": environment.describe(),
        "summary_ms": summary(found["rows"]),
        **found,
        "notes": list(_NOTES),
    }


@click.command("migration")
@click.option("--moves", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Moves in all.")
@click.option(
    "--jobs", type=click.IntRange(1, 2), default=1, show_default=True, help="Jobs that move, at once."
)
@click.option(
    "--bytes",
    "nbytes",
    type=click.IntRange(64, 1 << 24),
    default=16384,
    show_default=True,
    help="Of each all-reduce, float32.",
)
@click.option(
    "--json",
    "json_at",
    type=ReportFile(),
    metavar="FILE",
    help="Report file; - is stdout (the table: stderr).",
)
@click.option("--logs", type=FolderToMake(), help="Directory for the logs of the daemons.")
def migration_bench(moves: int, jobs: int, nbytes: int, json_at: str | None, logs: Path | None) -> None:
    """Move running jobs between two trees, and measure what that takes.

    Example: inaproto bench migration --moves 500 --json -

    Daemons of two racks with two spines run on this machine; each job is told to be summed at the other
    spine, again and again, under all-reduces that never pause. Exit status 1 if one of them was lost or had
    other bytes than numpy's sum, or if rings of a job had to be made anew.
    """
    console = Console(stderr=True, highlight=False)
    steps = iter(track(range(moves), "migration", console=console, disable=not console.is_terminal))
    shown = 0

    def progress(done: int) -> None:
        nonlocal shown
        while shown <= done and next(steps, None) is not None:
            shown += 1

    fault, report = "", dict[str, Any]()
    try:
        report = run(moves, jobs, nbytes, progress, logs)
    except* InaprotoError as errors:
        fault = str(_first(errors))
    if fault:
        raise click.ClickException(fault)
    _show(Console(stderr=json_at == "-", highlight=False), report)
    write_report(report, json_at)
    if not is_good(report):
        raise SystemExit(1)


def _first(errors: BaseExceptionGroup[InaprotoError]) -> BaseException:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _show(console: Console, report: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("ms", *(f"p{one}" for one in PERCENTILES), "max", "paper"):
        table.add_column(column, justify="left" if column == "ms" else "right")
    for name, row in report["summary_ms"].items():
        table.add_row(name, *("-" if value is None else f"{value:,.1f}" for value in row.values()))
    console.print(table)
    totals = report["totals"]
    share = "-" if totals["ina_share"] is None else f"{totals['ina_share']:.2f}"
    console.print(
        f"moves={totals['moves']} all_reduces={totals['all_reduces']} lost={totals['lost']} "
        f"identical={'yes' if totals['identical'] else 'no'} "
        f"generation_changes={totals['generation_changes']} rounds_aborted={totals['rounds_aborted']} "
        f"ina_share={share}"
    )
