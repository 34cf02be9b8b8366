"""``inaproto bench simulate``: what a simulated cluster costs, in CPU seconds of one core.

What is timed: ``simulate`` from the first request to the last job's end, its setting made before. Compiled
code is made, or loaded from its cache, in a first small run, whose time is told apart from that of importing.
Rows are medians of some runs in one process. Cost over events is the exponent of a straight line through
rows of growing numbers of requests in logarithms: 1 is a cost that grows as the events do. It is told twice:
over all events, and over those that a run has more than the shortest one. All runs have the same requests in
the same order, so the latter are events of a full cluster; in an empty one, which weighs more in a short run,
an event costs less.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from inaproto.option_types import ReportFile, write_report
from inaproto_controller.cluster.compiled import IS_COMPILED
from inaproto_controller.cluster.requests import HISTOGRAMS, draw_requests
from inaproto_controller.cluster.topology import FatTree
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.group_order import GroupOrder
from inaproto_controller.simulate.presets import make_setting
from inaproto_controller.simulate.setting import FREE, Migration
from inaproto_hil.rigs import environment

PAPER: Final = FatTree.of_degree(16)
LARGE: Final = FatTree((16, 16, 32), (1, 16, 16))
"""8192 hosts."""
SCALES: Final = (1000, 2000, 4000, 8000)
_IMPORT: Final = (
    "import time; begin = time.process_time(); import inaproto_controller.simulate.presets; "
    "print(time.process_time() - begin)"
)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    tree: FatTree
    requests: int
    placement: str
    trees: str
    policy: Policy
    is_ours: bool = False
    """Exchanged trees are charged for, turns are taken by pairs, and only who gains by INA asks for it."""
    trace: int = 1

    @property
    def migration(self) -> Migration:
        return Migration() if self.is_ours else FREE

    def config(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "tree": {"down": self.tree.down, "up": self.tree.up, "hosts": self.tree.hosts},
            "policy": self.policy.value,
            "migration": asdict(self.migration),
            "quota": "link",
            "speeds": "cluster",
            "order": GroupOrder.HASH.value,
        }


def cases() -> list[Case]:
    return [
        Case("baseline", PAPER, 2000, "first", "first", Policy.GREEDY),
        Case("MINA", PAPER, 2000, "least-fragments", "rebuild-all", Policy.SCORE),
        Case("ours", PAPER, 2000, "least-fragments", "sticky", Policy.SCORE, is_ours=True),
        Case("MINA, 8192 hosts", LARGE, 10_000, "least-fragments", "rebuild-all", Policy.SCORE),
        Case("ours, 8192 hosts", LARGE, 10_000, "least-fragments", "sticky", Policy.SCORE, is_ours=True),
    ]


def scaling(sizes: Sequence[int]) -> list[Case]:
    return [
        Case(f"MINA, {size}", PAPER, size, "least-fragments", "rebuild-all", Policy.SCORE) for size in sizes
    ]


def timed(case: Case, seed: int) -> tuple[float, int, float | None]:
    """CPU seconds, events, score."""
    setting = make_setting(
        case.tree,
        placement=case.placement,
        trees=case.trees,
        policy=case.policy,
        order=GroupOrder.HASH,
        migration=case.migration,
        is_pairwise=case.is_ours,
        suffix_only=case.is_ours,
        seed=seed,
    )
    requests = draw_requests(HISTOGRAMS[case.trace], case.requests)
    begin = time.process_time()
    result = simulate(setting, requests)
    return time.process_time() - begin, result.events, result.score


def exponent(points: Iterable[tuple[float, float]]) -> float | None:
    """Exponent of the power law through (events, seconds); None for fewer than two, or if seconds are
    none."""
    known = list(points)
    if len(known) < 2 or min(min(point) for point in known) <= 0:
        return None
    logs = [(math.log(events), math.log(seconds)) for events, seconds in known]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope


def beyond_first(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Events and seconds of each point, in ascending order, that the first one has not."""
    return [(events - points[0][0], seconds - points[0][1]) for events, seconds in points[1:]]


def measure(
    found: Sequence[Case],
    sizes: Sequence[int],
    rounds: int,
    seed: int,
    progress: Callable[[Sequence[tuple[Case, int]]], Iterable[tuple[Case, int]]] = iter,
) -> dict[str, Any]:
    """The whole measurement as the JSON document of the command; rounds are interleaved. What is large runs
    once."""
    by_size = scaling(sizes)
    every = list(dict.fromkeys([*found, *by_size]))
    imports = float(subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, check=True).stdout)
    begin = time.process_time()
    for case in {one.trees: one for one in every}.values():
        timed(replace(case, tree=PAPER, requests=3), seed)
    warm_up = time.process_time() - begin
    samples: dict[Case, list[float]] = {case: [] for case in every}
    told: dict[Case, tuple[int, float | None]] = {}
    turns = [(case, turn) for turn in range(rounds) for case in every if turn == 0 or case.tree is not LARGE]
    for case, _ in progress(turns):
        seconds, events, score = timed(case, seed)
        samples[case].append(seconds)
        told[case] = events, score
    rows = [_row(case, samples[case], *told[case]) for case in every]
    points = sorted((told[case][0], statistics.median(samples[case])) for case in by_size)
    return {
        "version": 1,
        "benchmark": "simulate",
        "config": {"rounds": rounds, "seed": seed, "compiled": IS_COMPILED, "sizes": list(sizes)},
        "env": environment.describe(),
        "import_cpu_s": imports,
        "compile_or_load_cpu_s": warm_up,
        "rows": rows,
        "exponent_over_events": exponent(points),
        "exponent_over_events_of_full_cluster": exponent(beyond_first(points)),
    }


def _row(case: Case, seconds: Sequence[float], events: int, score: float | None) -> dict[str, Any]:
    middle = statistics.median(seconds)
    return {
        "case": case.config(),
        "cpu_s": middle,
        "cpu_s_spread": [min(seconds), max(seconds)],
        "samples_s": list(seconds),
        "events": events,
        "events_per_s": events / middle,
        "score": score,
    }


def _sizes(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in value.split(",") if word)
    except ValueError:
        raise click.BadParameter(f"{value!r}: numbers of requests, such as 500,1000,2000") from None
    if any(size < 1 for size in found):
        raise click.BadParameter("each size is at least 1")
    return found


@click.command("simulate")
@click.option(
    "--rounds", default=5, show_default=True, type=click.IntRange(1, 1000), help="Runs of each row."
)
@click.option("--requests", type=click.IntRange(1), help="Of the rows on 1024 hosts.  [default: 2000]")
@click.option(
    "--large/--no-large",
    default=True,
    show_default=True,
    help="10,000 requests on 8192 hosts, too: once, minutes.",
)
@click.option(
    "--sizes",
    default=",".join(map(str, SCALES)),
    show_default=True,
    callback=_sizes,
    help="Requests, for the cost over events.",
)
@click.option("--seed", default=0, show_default=True, help="Of the builders' draws.")
@click.option(
    "--json",
    "json_at",
    type=ReportFile(),
    metavar="FILE",
    help="Report file; - is stdout (the table: stderr).",
)
def simulate_bench(
    rounds: int, requests: int | None, large: bool, sizes: tuple[int, ...], seed: int, json_at: str | None
) -> None:
    """CPU seconds of simulated clusters, on one core.

    Example: inaproto bench simulate --no-large --json -

    Medians of --rounds runs with their spread, compiling and importing told apart. MINA is the paper's
    evaluation, ours charges for every exchanged tree. The exponent says how the cost grows with events: over
    all, and over those beyond the smallest of --sizes, when the cluster is full.
    """
    console = Console(stderr=True, highlight=False)
    found = [one for one in cases() if large or one.tree is PAPER]
    if requests is not None:
        found = [replace(one, requests=requests) if one.tree is PAPER else one for one in found]
    report = measure(
        found,
        sizes,
        rounds,
        seed,
        lambda turns: track(turns, "simulate", console=console, disable=not console.is_terminal),
    )
    _show(Console(stderr=json_at == "-", highlight=False), report)
    write_report(report, json_at)


def _show(console: Console, report: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("hosts", "requests", "CPU s", "spread", "events", "events/s"):
        table.add_column(name, justify="right")
    for row in report["rows"]:
        low, high = row["cpu_s_spread"]
        case = row["case"]
        table.add_row(
            case["name"],
            str(case["tree"]["hosts"]),
            str(case["requests"]),
            f"{row['cpu_s']:.2f}",
            f"{low:.2f}-{high:.2f}",
            f"{row['events']:,}",
            f"{row['events_per_s']:,.0f}",
        )
    console.print(table)
    every, full = (
        "-" if (slope := report[name]) is None else f"{slope:.2f}"
        for name in ("exponent_over_events", "exponent_over_events_of_full_cluster")
    )
    console.print(f"cost over events: exponent {every}; once the cluster is full {full}")
    how = "compiled code" if report["config"]["compiled"] else "interpreted: Numba is not installed"
    console.print(
        f"importing {report['import_cpu_s']:.2f} s, first runs {report['compile_or_load_cpu_s']:.2f} s, {how}"
    )
