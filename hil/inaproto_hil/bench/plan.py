"""``inaproto bench plan``: how long PARING's planners take, and how far from the best their trees are.

One request of the evaluation (PARING, section V), at k = 6: 20 workers, 8 programmable switches. Planned by
fast mode, and by the printed algorithm with its spiders found in three ways: by the star rule (ours), by
minimum-cost flows on the logical graph of 62 vertices, and by the flows that are printed. Algorithm 4 solves
its flows on what Algorithm 3 hands it, and that is the logical graph with a vertex on each of its 1,891
edges: line 2 puts them there, line 21 takes them off once the tree is whole. All three give the same tree. A
round plans once each way, one after the other; a row is the median over rounds.

Which of the ratios the goal is about is the first one, and each says of itself whether it comes to as much.

Each tree is executed, too: in the simulated world its links carry frames, which are counted; in a model of
its own its adders limit the rate, which is measured (``inaproto_controller.simulate.paring_execution``).

With ``--masks`` further requests, drawn from seeds, are planned by all modes: fast mode beside the proved
optimum.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from time import perf_counter, process_time
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from inaproto.errors import Infeasible, InvariantBroken
from inaproto.option_types import ReportFile, write_report
from inaproto_controller.planning.paring.comparison import Compared, comparisons
from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network
from inaproto_controller.planning.paring.model import PlacedTree, ProgrammableNetwork, Task, measure
from inaproto_controller.planning.paring.slots.fast import plan_fast
from inaproto_controller.planning.paring.spiders.flows import FlowSpiders
from inaproto_controller.planning.paring.spiders.printed import plan_printed
from inaproto_controller.simulate.paring_execution import Unfolded, carry, go
from inaproto_hil.rigs import environment

VERSION: Final = 1
GOAL: Final = 500
"""So many times as long as fast mode the printed algorithm takes, to the letter, at least. Of the other
ratios it is told, too, whether they come to it."""
EXIT_MISSED: Final = 1
FAST, STAR = "fast", "printed"
FLOW, FLOW_AS_PRINTED = "printed, with flows", "printed, to the letter"
RATIOS: Final = ((FLOW_AS_PRINTED, FAST), (FLOW, FAST), (FLOW_AS_PRINTED, STAR), (FLOW, STAR))
"""Whose time is told in times of whose; the first is that of the goal. The least that flows need is on the
logical graph, so it stands beside; against the star rule nothing but spiders differs."""
_REPEATS: Final = {FAST: 5, STAR: 5}
"""In a round: the quick ones, whose time is divided by it."""
_SWITCHES: Final = "e0.* e1.* a0.0 a1.0"

Planner = Callable[[], PlacedTree | Infeasible]


@dataclass(frozen=True, slots=True)
class Config:
    degree: int
    switches: str
    workers: int
    rate_cap: int
    rounds: int
    masks: int


REQUEST: Final = Config(degree=6, switches=_SWITCHES, workers=20, rate_cap=5, rounds=3, masks=0)


def planners(network: ProgrammableNetwork, task: Task) -> dict[str, Planner]:
    as_printed = partial(FlowSpiders, is_as_printed=True)
    return {
        FAST: lambda: plan_fast(network, task),
        STAR: lambda: plan_printed(network, task),
        FLOW: lambda: plan_printed(network, task, spiders=FlowSpiders),
        FLOW_AS_PRINTED: lambda: plan_printed(network, task, spiders=as_printed),
    }


def measured(config: Config, rounds: Iterator[int]) -> dict[str, Any]:
    """The whole measurement as the JSON document of the command, less the masks."""
    network = fat_tree_network(config.degree, config.switches, capacity=Fraction(10))
    task = Task(config.workers, 1, Fraction(config.rate_cap))
    ways = planners(network, task)
    ways[FAST]()  # compiles
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    trees: dict[str, PlacedTree] = {}
    for _ in rounds:
        for name, planner in ways.items():
            repeats = _REPEATS.get(name, 1)
            began, began_cpu = perf_counter(), process_time()
            found = planner()
            for _ in range(1, repeats):
                planner()
            cpu[name].append((process_time() - began_cpu) / repeats)
            seconds[name].append((perf_counter() - began) / repeats)
            if isinstance(found, Infeasible):
                raise InvariantBroken(f"a fat tree that holds all workers has a tree: {found}")
            trees[name] = found
    if not trees[STAR] == trees[FLOW] == trees[FLOW_AS_PRINTED]:
        raise InvariantBroken("the star rule and flows gave different trees")
    medians = {name: statistics.median(found) for name, found in cpu.items()}
    return {
        "version": VERSION,
        "benchmark": "plan",
        "config": asdict(config),
        "env": environment.describe(),
        "goal_ratio": GOAL,
        "ratios": [_ratio(medians, one, other) for one, other in RATIOS],
        "ratio": medians[FLOW_AS_PRINTED] / medians[FAST],
        "within_goal": medians[FLOW_AS_PRINTED] >= GOAL * medians[FAST],
        "rows": [
            {
                "row": name,
                "rate_gbit_s": str(measure(network, task, tree).rate),
                "hops": measure(network, task, tree).hops,
                "executed": executed(network, task, tree),
                "cpu_s": medians[name],
                "cpu_s_spread": [min(cpu[name]), max(cpu[name])],
                "wall_s": statistics.median(seconds[name]),
                "times_fast": medians[name] / medians[FAST],
                "samples_cpu_s": cpu[name],
            }
            for name, tree in trees.items()
        ],
    }


def _ratio(medians: Mapping[str, float], one: str, other: str) -> dict[str, Any]:
    return {
        "of": one,
        "to": other,
        "ratio": medians[one] / medians[other],
        "is_of_the_goal": (one, other) == RATIOS[0],
        "comes_to_goal": medians[one] >= GOAL * medians[other],
    }


def executed(network: ProgrammableNetwork, task: Task, tree: PlacedTree) -> dict[str, Any]:
    """What a tree came to in the simulated world, and whether that is what was planned."""
    carried, went = carry(Unfolded.of(network, tree)), go(network, task, tree)
    planned = measure(network, task, tree)
    return {
        "rate_gbit_s": str(went.rate),
        "hops": str(carried.hops),
        "link_bytes": sum(carried.link_bytes.values()),
        "is_as_planned": carried.hops == planned.hops and went.rate == planned.rate,
    }


def of_masks(found: list[Compared]) -> dict[str, Any]:
    """Figures of all masks together, and of each."""
    return {
        "proved": sum(one.is_proved for one in found),
        "fast_reaches_the_highest_rate": sum(one.fast_rate == one.rate for one in found),
        "fast_gap_mean": statistics.mean(one.fast_gap for one in found),
        "fast_gap_max": max(one.fast_gap for one in found),
        "fast_cpu_s_max": max(one.fast.cpu_seconds for one in found),
        "exact_cpu_s_max": max(one.exact.cpu_seconds for one in found),
        "printed_rate_share_mean": statistics.mean(one.printed_rate_share for one in found),
        "printed_gap_mean": statistics.mean(one.printed_gap for one in found),
        "rows": [
            {
                name: str(value) if isinstance(value, Fraction) else value
                for name, value in asdict(one).items()
            }
            for one in found
        ],
    }


@click.command("plan")
@click.option(
    "--rounds", default=3, show_default=True, type=click.IntRange(1, 100), help="Each plans once each way."
)
@click.option(
    "--masks",
    default=0,
    show_default=True,
    type=click.IntRange(0, 1000),
    help="Drawn requests that all modes plan, too.",
)
@click.option(
    "--json",
    "json_at",
    type=ReportFile(),
    metavar="FILE",
    help="Report file; - is stdout (the tables: stderr).",
)
def plan_bench(rounds: int, masks: int, json_at: str | None) -> None:
    """Time PARING's planners on one request: fast mode, and the printed algorithm.

    Examples: inaproto bench plan --json -; inaproto bench plan --rounds 1 --masks 40

    CPU time of one core, medians over interleaved rounds with their spread. The flows that are printed take
    some half a minute a round; a drawn request takes a few seconds, most of them for two proved optima.

    Exit status: 1 if the printed algorithm, to the letter, takes less than 500 times as long as fast mode, or
    a tree does not come to what was planned; else 0.
    """
    console = Console(stderr=json_at == "-")
    config = replace(REQUEST, rounds=rounds, masks=masks)
    report = measured(config, iter(track(range(rounds), "planning", console=console, transient=True)))
    console.print(times(report))
    if masks:
        drawn = track(comparisons(range(masks)), "masks", total=masks, console=console, transient=True)
        report["masks"] = of_masks(list(drawn))
        console.print(_gaps(report["masks"], masks))
    write_report(report, json_at)
    sys.exit(exit_status(report))


def exit_status(report: dict[str, Any]) -> int:
    return 0 if report["within_goal"] and _are_as_planned(report) else EXIT_MISSED


def _are_as_planned(report: dict[str, Any]) -> bool:
    return all(row["executed"]["is_as_planned"] for row in report["rows"])


def times(report: dict[str, Any]) -> Table:
    ratios = [_verdict(one) for one in report["ratios"]]
    table = Table(
        title="20 workers, 8 of 45 switches: CPU time of a plan",
        caption="\n".join(ratios) + "\nlinks in the simulated world, rates in that of adders:\n"
        f"{'all' if _are_as_planned(report) else 'NOT all'} as planned",
    )
    for column in ("planner", "Gbit/s", "links", "ms", "least, most", "times fast"):
        table.add_column(column, justify="left" if column == "planner" else "right", no_wrap=True)
    for row in report["rows"]:
        least, most = (_said(1e3 * value) for value in row["cpu_s_spread"])
        figures = [_said(1e3 * row["cpu_s"]), f"{least}, {most}"]
        rate = f"{float(Fraction(row['rate_gbit_s'])):.4g}"
        table.add_row(row["row"], rate, str(row["hops"]), *figures, _said(row["times_fast"]))
    return table


def _verdict(one: Mapping[str, Any]) -> str:
    told = f"{one['of']}: {_said(one['ratio'])} times as long as {one['to']}"
    if one["is_of_the_goal"]:
        return f"{told}; goal {GOAL}, {'met' if one['comes_to_goal'] else 'missed'}"
    return f"{told}; {'no less' if one['comes_to_goal'] else 'less'} than {GOAL}"


def _said(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _gaps(found: dict[str, Any], masks: int) -> Table:
    table = Table(title=f"{masks} drawn requests at k = 6")
    table.add_column("what")
    table.add_column("found", justify="right")
    for what, value in (
        ("optimum proved", f"{found['proved']} of {masks}"),
        ("  CPU seconds, most", f"{found['exact_cpu_s_max']:.2f}"),
        ("fast: highest rate reached", f"{found['fast_reaches_the_highest_rate']} of {masks}"),
        ("  links above the optimum, mean", f"{found['fast_gap_mean']:.1%}"),
        ("  links above the optimum, most", f"{found['fast_gap_max']:.1%}"),
        ("  CPU milliseconds, most", f"{1e3 * found['fast_cpu_s_max']:.1f}"),
        ("printed: share of the highest rate, mean", f"{found['printed_rate_share_mean']:.1%}"),
        ("  links above the optimum of its rate, mean", f"{found['printed_gap_mean']:.1%}"),
    ):
        table.add_row(what, value)
    return table
