"""``inaproto bench priorities``: models of different priority on links too slow for all of them (MLNet, 3.3).

Real daemons: a parameter server and hosts, each in a network namespace with an access link of its own, shaped
to one rate at both ends (:mod:`inaproto_hil.rigs.shaped_cluster`). On every host each model has a worker,
which computes (it waits), pushes, and pulls at staleness 0. In a repetition, one after the other: the highest
model alone; two models; all of them; and as many of one priority, which share the links as TCP does. These
have the highest priority, too: such channels are never held short, so nothing of the rules touches them.

Told are the ends of the models, the highest one's against its own alone of the same repetition, and how much
of the server's link the others had until it ended. All weights are compared with their sums, byte for byte.
What is undefined is ``null`` in the JSON and ``-`` in the table.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import trio
from rich.console import Console
from rich.table import Table

import inaproto
from inaproto.errors import InaprotoError
from inaproto.option_types import FiniteRange, FolderToMake, ReportFile, write_report
from inaproto_hil.rigs import environment
from inaproto_hil.rigs.cluster import ClusterError, signals_as_interrupt
from inaproto_hil.rigs.shaped_cluster import Link, ShapedModelsCluster, shaped_cluster

VERSION: Final = 1
SLOWER_MAX: Final = 1.05
"""Than alone: the highest model."""
SHARE_MIN: Final = 0.01
"""Share of the server's link for those below it together, what came in and went out of what it can one way.
In a round arrays go one way after the other."""
HIGHEST: Final = 200
SERVER: Final = "ps0"
ALONE, RANKED, PLAIN = "alone", "priorities", "no priorities"


@dataclass(frozen=True, slots=True)
class Config:
    hosts: int = 2
    models: int = 3
    elements: int = 1_000_000
    """Elements of each model, int32."""
    rounds: int = 2
    compute_s: float = 0.3
    repetitions: int = 5
    link: Link = field(default_factory=lambda: Link(mbit=20))

    @property
    def ranked(self) -> list[str]:
        """From the highest priority down."""
        return [f"rank{number}" for number in range(self.models)]

    @property
    def plain(self) -> list[str]:
        return [f"plain{number}" for number in range(self.models)]

    def models_text(self) -> str:
        priorities = {name: HIGHEST - 10 * nth for nth, name in enumerate(self.ranked)}
        priorities |= dict.fromkeys(self.plain, HIGHEST)
        fields = f'dtype = "int32"\nelements = {self.elements}\n'
        return "".join(
            f'[[models]]\nname = "{name}"\npriority = {priority}\n{fields}'
            for name, priority in priorities.items()
        )

    def runs(self) -> list[tuple[str, list[str]]]:
        """Runs of a repetition."""
        counts = sorted({2, self.models})
        runs = [(RANKED, self.ranked[:count]) for count in counts]
        return [(ALONE, self.ranked[:1]), *runs, *((PLAIN, self.plain[:count]) for count in counts)]

    @property
    def wait_s(self) -> float:
        """For one call: all models' arrays may be before it, and machines are busy."""
        return 120 + 50 * self.models * self.hosts * self.elements * 4 / (self.link.mbit * 125_000)


Bytes = dict[str, tuple[int, int]]
"""What came in at the server and what went out, by model."""


def _server_bytes(cluster: ShapedModelsCluster) -> Bytes:
    return {
        shard["model"]: (
            sum(link["bytes_in"] for link in shard["links"]),
            sum(link["bytes_out"] for link in shard["links"]),
        )
        for shard in cluster.status(SERVER)["shards"]
    }


class Run:
    """Some models at once."""

    def __init__(self, cluster: ShapedModelsCluster, config: Config, names: Sequence[str]) -> None:
        self._cluster, self._config, self._names = cluster, config, names
        self.ends: dict[str, float] = {}
        self.inexact = 0
        self.at_first_end: Bytes = {}

    async def play(self) -> None:
        """All begin when all workers are connected."""
        async with trio.open_nursery() as nursery:
            ready = [await nursery.start(self._model, name) for name in self._names]
            self._began = trio.current_time()
            for go in ready:
                go.set()

    async def _model(self, name: str, task_status: trio.TaskStatus[trio.Event]) -> None:
        go = trio.Event()
        async with trio.open_nursery() as nursery:
            for host in range(self._config.hosts):
                await nursery.start(self._worker, name, host, go)
            task_status.started(go)
        self.ends[name] = trio.current_time() - self._began
        if name == self._names[0]:
            self.at_first_end = await trio.to_thread.run_sync(_server_bytes, self._cluster)

    async def _worker(self, name: str, host: int, go: trio.Event, task_status: trio.TaskStatus[None]) -> None:
        config, wait_s = self._config, self._config.wait_s
        socket = self._cluster.host_socket(host)
        async with await inaproto.connect_model(name, socket=socket, timeout=wait_s) as model:
            task_status.started()
            await go.wait()
            for _ in range(config.rounds):
                await trio.sleep(config.compute_s)
                model.push(np.full(config.elements, host + 1, np.int32))
                await model.finish(wait_s)
                weights = await model.pull(0, wait_s)
                expected = model.clock * config.hosts * (config.hosts + 1) // 2
                self.inexact += not bool((weights == expected).all())


async def _measure(
    cluster: ShapedModelsCluster, config: Config, kind: str, names: Sequence[str]
) -> dict[str, Any]:
    before = await trio.to_thread.run_sync(_server_bytes, cluster)
    cpu = sum(child.cpu_s() for child in cluster.daemons)
    run = Run(cluster, config, names)
    await run.play()
    capacity = config.link.mbit * 125_000 * run.ends[names[0]]
    moved = {
        name: [late - early for late, early in zip(run.at_first_end[name], before[name], strict=True)]
        for name in names
    }
    below = [sum(moved[name][way] for name in names[1:]) / capacity for way in range(2)]
    return {
        "run": kind,
        "models": len(names),
        "ends_s": [round(run.ends[name], 4) for name in names],
        "bytes_until_the_first_ended": [moved[name] for name in names],
        "share_of_others_in": round(below[0], 4) if names[1:] else None,
        "share_of_others_out": round(below[1], 4) if names[1:] else None,
        "inexact_pulls": run.inexact,
        "cpu_s": round(sum(child.cpu_s() for child in cluster.daemons) - cpu, 3),
    }


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over repetitions by number of models, with the least and the most."""
    alone = {row["repetition"]: row["ends_s"][0] for row in rows if row["run"] == ALONE}
    found = []
    for count in sorted({row["models"] for row in rows if row["run"] == RANKED}):
        ranked = [row for row in rows if row["run"] == RANKED and row["models"] == count]
        plain = [row for row in rows if row["run"] == PLAIN and row["models"] == count]
        shares = [row["share_of_others_in"] + row["share_of_others_out"] for row in ranked]
        found.append(
            {
                "models": count,
                "slower_than_alone": _spread([row["ends_s"][0] / alone[row["repetition"]] for row in ranked]),
                "median_end_s": _spread([statistics.median(row["ends_s"]) for row in ranked]),
                "median_end_without_s": _spread([statistics.median(row["ends_s"]) for row in plain]),
                "last_end_s": _spread([max(row["ends_s"]) for row in ranked]),
                "last_end_without_s": _spread([max(row["ends_s"]) for row in plain]),
                "share_of_others": _spread(shares),
            }
        )
    return found


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "least": None, "most": None}
    return {
        "median": round(statistics.median(values), 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
    }


def missed(report: dict[str, Any]) -> list[str]:
    """What of the promise does not hold, of medians over repetitions."""
    found = []
    if any(row["inexact_pulls"] for row in report["rows"]):
        found.append("weights are not the sums")
    for row in report["summary"]:
        models = f"of {row['models']} models"
        if row["slower_than_alone"]["median"] > SLOWER_MAX:
            found.append(f"{models} the highest ends later than {SLOWER_MAX} times its time alone")
        if row["median_end_s"]["median"] >= row["median_end_without_s"]["median"]:
            found.append(f"{models} the median end is no better than without priorities")
        if row["share_of_others"]["least"] < SHARE_MIN:
            found.append(f"{models} those below the highest had less than {SHARE_MIN:.0%} of the link")
    return found


def run(config: Config, say: Callable[[str], None], log_dir: Path | None) -> dict[str, Any]:
    """The whole measurement as the JSON document of the command. Raises ``ClusterError``, ``Unsupported``."""
    rows = []
    with shaped_cluster(config.hosts, 1, config.models_text(), link=config.link, log_dir=log_dir) as cluster:
        for repetition in range(config.repetitions):
            for kind, names in config.runs():
                row = {"repetition": repetition, **trio.run(_measure, cluster, config, kind, names)}
                rows.append(row)
                say(f"{repetition}: {kind}, {len(names)}: ends at {row['ends_s']} s")
    report = {
        "version": VERSION,
        "benchmark": "priorities",
        "config": asdict(config),
        "env": environment.describe(),
        "summary": summary(rows),
        "rows": rows,
    }
    return {**report, "missed": missed(report)}


@click.command("priorities")
@click.option("--hosts", type=click.IntRange(1, 16), default=2, show_default=True)
@click.option("--models", type=click.IntRange(2, 8), default=3, show_default=True, help="At once, at most.")
@click.option("--elements", type=click.IntRange(1, 1 << 28), default=1_000_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 10_000), default=2, show_default=True)
@click.option("--compute", type=FiniteRange(0, 3600), default=0.3, show_default=True, help="Seconds a round.")
@click.option("--repetitions", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option("--mbit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Of each link.")
@click.option("--json", "json_at", type=ReportFile(), metavar="FILE", help="Report file; - is stdout.")
@click.option("--plot", type=ReportFile(), metavar="FILE", help="Picture (SVG) of the ends.")
@click.option("--logs", type=FolderToMake(), help="Directory for the logs of the daemons.")
def priorities_bench(
    hosts: int,
    models: int,
    elements: int,
    rounds: int,
    compute: float,
    repetitions: int,
    mbit: int,
    json_at: str | None,
    plot: str | None,
    logs: Path | None,
) -> None:
    """Train models of different priority over links that are too slow for all.

    Example: sudo inaproto bench priorities --json -

    A parameter server and hosts run in network namespaces, which takes root; no interface of the machine is
    touched. Exit status 1 if the highest model ends later than 1.05 times its time alone, if the median end
    of the models is no better than without priorities, if the others have less than a hundredth of the link
    meanwhile, or if any weights are not the sums.
    """
    link = Link(mbit=mbit)
    config = Config(hosts, models, elements, rounds, compute, repetitions, link)
    console = Console(stderr=True, highlight=False)
    logging.getLogger("inaproto.client").setLevel(logging.ERROR)  # that pulls wait long is what is measured
    try:
        with signals_as_interrupt():
            report = run(config, partial(console.print, markup=False), logs)
    except (InaprotoError, ClusterError) as error:
        raise click.ClickException(str(error)) from None
    _show(Console(stderr=json_at == "-", highlight=False), report)
    write_report(report, json_at)
    if plot is not None:
        from inaproto_hil.bench.priorities_plot import drawing

        write_text(drawing(report), plot)
    if report["missed"]:
        raise SystemExit(1)


def write_text(text: str, at: str) -> None:
    if at == "-":
        click.echo(text)
    else:
        Path(at).write_text(text, encoding="utf-8")


def _show(console: Console, report: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    columns = [f"{row['models']} models" for row in report["summary"]]
    for column in ("median (least to most)", *columns):
        table.add_column(column, justify="left" if column not in columns else "right")
    names = [name for name in report["summary"][0] if name != "models"]
    for name in names:
        cells = [row[name] for row in report["summary"]]
        table.add_row(name.replace("_", " "), *map(_cell, cells))
    console.print(table)
    console.print(f"missed: {'; '.join(report['missed']) or 'nothing'}")


def _cell(spread: dict[str, float | None]) -> str:
    if spread["median"] is None:
        return "-"
    return f"{spread['median']:.3f} ({spread['least']:.3f} to {spread['most']:.3f})"
