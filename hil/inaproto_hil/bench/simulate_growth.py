"""``inaproto bench simulate-growth``: how time and memory of a simulated cluster grow with hosts and jobs.

A scenario is simulated in other sizes. Its fat tree has fewer or more of what stands below the top, its
stream fewer or more jobs, and jobs arrive in proportion to the hosts, so that a large cluster is as full as a
small one. One of the two grows while the other stays.

Each run is in a process of its own: CPU seconds are those of drawing the jobs and simulating them, memory is
the most that the process had beyond what it had before, with compiled code loaded. Through the logarithms of
a line of runs goes a straight line, whose slope is the exponent: 1 is a cost that grows as the hosts do. Its
interval is the 95 % confidence interval of a least-squares slope, by Student's t.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from inaproto.errors import ConfigError
from inaproto.option_types import FiniteRange, ReportFile, write_report
from inaproto.task_engines import Local
from inaproto_controller.cluster.compiled import IS_COMPILED
from inaproto_controller.simulate.confidence import student_t
from inaproto_controller.simulate.scenario.runs import Task, run_one
from inaproto_controller.simulate.scenario.scenario import Scenario, load_scenario
from inaproto_hil.rigs import environment
from inaproto_hil.rigs.cluster import signals_as_interrupt

MEASURES: Final = ("cpu_s", "memory_bytes")
AXES: Final = ("hosts", "jobs")
_FEW: Final = 20
"""Jobs of the first run, which loads compiled code."""


@dataclass(frozen=True, slots=True)
class Point:
    axis: str
    """What grows: hosts or jobs."""
    hosts: int
    jobs: int
    seed: int


@dataclass(frozen=True, slots=True)
class Work:
    scenario: Scenario
    small: Scenario
    variant: int
    seed: int


def sized(scenario: Scenario, hosts: int, jobs: int) -> Scenario:
    """The same cluster with so many hosts, as full as before. Raises ``ConfigError``."""
    file = scenario.file
    if file.stream is None or file.jobs or file.cluster.graph is not None:
        raise ConfigError(f"scenario {scenario.path}: its jobs are to be a [stream], its cluster a fat tree")
    if file.failures is not None and file.failures.file is not None:
        raise ConfigError(f"scenario {scenario.path}: its failures are to be drawn; leave failures.file out")
    tree = file.cluster.tree()
    below = tree.pod_hosts(tree.layers - 1)
    if hosts % below:
        raise ConfigError(f"{hosts} hosts: of this cluster there are multiples of {below}")
    cluster = file.cluster.model_copy(
        update={
            "degree": None,
            "oversubscription": None,
            "down": (*tree.down[:-1], hosts // below),
            "up": tree.up,
        }
    )
    rate = file.arrivals.rate
    arrivals = file.arrivals.model_copy(update={"rate": None if rate is None else rate * hosts / tree.hosts})
    stream = file.stream.model_copy(update={"count": jobs})
    grown = file.model_copy(update={"cluster": cluster, "stream": stream, "arrivals": arrivals})
    return replace(scenario, file=grown, cluster=cluster.tree())


def measured(work: Work) -> dict[str, Any]:
    """In a fresh process."""
    run_one(Task(work.small, work.variant, work.seed, with_jobs=False))
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
    begin = time.process_time()
    run = run_one(Task(work.scenario, work.variant, work.seed, with_jobs=False))
    seconds = time.process_time() - begin
    return {
        "cpu_s": seconds,
        "memory_bytes": _memory("VmHWM") - before,
        "process_bytes": _memory("VmHWM"),
        "events": run.measures["events"],
        "tree_builds": run.measures["tree_builds"],
        "restarts": run.measures["restarts"],
    }


def _memory(field: str) -> int:
    """Bytes, as the kernel counts them for this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, words = line.partition(":")
        if name == field:
            return int(words.split()[0]) * 1024
    raise AssertionError(f"/proc/self/status without {field}")


@dataclass(frozen=True, slots=True)
class Exponent:
    value: float
    low: float | None
    """None where two points have no interval."""
    high: float | None

    def verdict(self, most: float) -> str:
        if self.low is not None and self.low > most:
            return "more"
        return "not sure" if self.value > most or (self.high or self.value) > most else "holds"


def exponent(points: Iterable[tuple[float, float]]) -> Exponent | None:
    """Slope in logarithms; None for fewer than two sizes, or where a cost is none."""
    known = list(points)
    if len({size for size, _ in known}) < 2 or min(min(point) for point in known) <= 0:
        return None
    sizes, costs = [math.log(size) for size, _ in known], [math.log(cost) for _, cost in known]
    slope, offset = statistics.linear_regression(sizes, costs)
    if len(known) == 2:
        return Exponent(slope, None, None)
    mean, free = statistics.fmean(sizes), len(known) - 2
    left = math.fsum((cost - offset - slope * size) ** 2 for size, cost in zip(sizes, costs, strict=True))
    spread = math.fsum((size - mean) ** 2 for size in sizes)
    half = student_t(free) * math.sqrt(left / free / spread)
    return Exponent(slope, slope - half, slope + half)


def measure(
    scenario: Scenario,
    *,
    hosts: Sequence[int],
    jobs: Sequence[int],
    base_hosts: int,
    base_jobs: int,
    seeds: int,
    variant: int,
    most: float,
    progress: Callable[[Sequence[Point]], Iterable[Point]] = iter,
) -> dict[str, Any]:
    """The document of the command. Raises ``ConfigError``."""
    points = [Point("hosts", size, base_jobs, seed) for seed in range(seeds) for size in hosts]
    points += [Point("jobs", base_hosts, size, seed) for seed in range(seeds) for size in jobs]
    works = {
        point: Work(
            sized(scenario, point.hosts, point.jobs), sized(scenario, hosts[0], _FEW), variant, point.seed
        )
        for point in points
    }
    rows: list[dict[str, Any]] = []
    with suppress(KeyboardInterrupt), signals_as_interrupt():
        for point in progress(points):
            with closing(Local(1).outcomes(measured, [works[point]])) as outcomes:
                rows.append({**asdict(point), **next(outcomes)})
    return {
        "version": 1,
        "benchmark": "simulate-growth",
        "config": {
            "scenario": scenario.path.name,
            "variant": scenario.variants[variant].label,
            "seeds": seeds,
            "exponent_max": most,
            "compiled": IS_COMPILED,
        },
        "env": environment.describe(),
        "interrupted": len(rows) < len(points),
        "rows": rows,
        "exponents": [_fitted(rows, axis, name, most) for axis in AXES for name in MEASURES],
    }


def _fitted(rows: Sequence[dict[str, Any]], axis: str, name: str, most: float) -> dict[str, Any]:
    found = exponent((row[axis], row[name]) for row in rows if row["axis"] == axis)
    return {
        "axis": axis,
        "measure": name,
        "exponent": None if found is None else found.value,
        "interval": None if found is None or found.low is None else [found.low, found.high],
        "verdict": None if found is None else found.verdict(most),
    }


def _sizes(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        found = tuple(dict.fromkeys(int(word) for word in value.split(",") if word))
    except ValueError:
        raise click.BadParameter(f"{value!r}: numbers, such as 4096,8192,16384") from None
    if not found or any(size < 1 for size in found):
        raise click.BadParameter("at least one number, each at least 1")
    return found


@click.command("simulate-growth")
@click.argument("scenario", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--hosts", default="2048,4096,8192,16384", show_default=True, callback=_sizes, help="Sizes.")
@click.option("--jobs", default="1000,2000,4000,8000", show_default=True, callback=_sizes, help="Sizes.")
@click.option(
    "--base-hosts", type=click.IntRange(1), default=4096, show_default=True, help="Hosts while jobs grow."
)
@click.option(
    "--base-jobs", type=click.IntRange(1), default=4000, show_default=True, help="Jobs while hosts grow."
)
@click.option(
    "--seeds", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs of each size."
)
@click.option(
    "--variant", type=click.IntRange(0), default=0, show_default=True, help="Which of [[compare]], from 0."
)
@click.option(
    "--exponent-max", "most", type=FiniteRange(0), default=1.1, show_default=True, help="What may be."
)
@click.option("--json", "json_at", type=ReportFile(), metavar="FILE", help="Report file; - is stdout.")
@click.option("--plot", type=ReportFile(), metavar="FILE", help="Picture (SVG) of all runs.")
def simulate_growth(
    scenario: Path,
    hosts: tuple[int, ...],
    jobs: tuple[int, ...],
    base_hosts: int,
    base_jobs: int,
    seeds: int,
    variant: int,
    most: float,
    json_at: str | None,
    plot: str | None,
) -> None:
    """Measure how CPU time and memory of a SCENARIO grow with its hosts, and with its jobs.

    Example: inaproto bench simulate-growth examples/internet.toml --json growth.json --plot growth.svg

    Runs are one after the other, each in a process of its own. Exponents stand with their 95 % confidence
    intervals, and whether they are at most --exponent-max: it holds for the whole interval, for a part of it
    (not sure), or for none (more). Exit status 1 for more. Who interrupts it gets what was measured until
    then, and exit status 130.
    """
    console = Console(stderr=True, highlight=False)
    try:
        loaded = load_scenario(scenario)
        if variant >= len(loaded.variants):
            raise ConfigError(f"--variant {variant}: the scenario has {len(loaded.variants)}, from 0")
        report = measure(
            loaded,
            hosts=hosts,
            jobs=jobs,
            base_hosts=base_hosts,
            base_jobs=base_jobs,
            seeds=seeds,
            variant=variant,
            most=most,
            progress=lambda points: track(
                points, "simulate", console=console, disable=not console.is_terminal
            ),
        )
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    _show(Console(stderr=json_at == "-", highlight=False), report)
    write_report(report, json_at)
    if plot is not None and report["rows"]:
        from inaproto_hil.bench.priorities import write_text
        from inaproto_hil.bench.simulate_growth_plot import drawing

        write_text(drawing(report), plot)
    if report["interrupted"]:
        click.echo(f"interrupted after {len(report['rows'])} runs", err=True)
        raise SystemExit(130)
    if any(row["verdict"] == "more" for row in report["exponents"]):
        raise SystemExit(1)


def _show(console: Console, report: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("grows")
    for name in ("hosts", "jobs", "seed", "CPU s", "memory MiB", "of process", "events", "restarts"):
        table.add_column(name, justify="right")
    for row in report["rows"]:
        table.add_row(
            row["axis"],
            f"{row['hosts']:,}",
            f"{row['jobs']:,}",
            str(row["seed"]),
            f"{row['cpu_s']:.2f}",
            f"{row['memory_bytes'] / (1 << 20):.0f}",
            f"{row['process_bytes'] / (1 << 20):.0f}",
            f"{row['events']:,}",
            str(row["restarts"]),
        )
    console.print(table)
    slopes = Table(box=None, pad_edge=False)
    for name in ("over", "of", "exponent", "95 % interval", f"at most {report['config']['exponent_max']:g}"):
        slopes.add_column(name)
    for row in report["exponents"]:
        slopes.add_row(row["axis"], row["measure"], *_words(row))
    console.print(slopes)


def _words(row: dict[str, Any]) -> tuple[str, str, str]:
    if row["exponent"] is None:
        return "-", "-", "not known"
    interval = row["interval"]
    between = "-" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
    return f"{row['exponent']:.2f}", between, row["verdict"]
