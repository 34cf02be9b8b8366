"""Asynchronous training of a sparse logistic regression on real data, with parameter servers (MLNet).

    python -m examples.sparse_regression                (from the source tree, in its .venv)
    python -m examples.sparse_regression --staleness 0,2,8 --workers 4 --servers 2

Trains once for each staleness, with a parameter server killed half-way (SIGKILL) and started again from its
disk. Data: the handwritten digits that the other example ships (``examples/digits/DATA-SOURCE.md``).

Writes ``summary.json`` and ``loss.png`` to ``--out``. The last line says whether s = 0 came to the very
bytes of synchronous training in one process.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TaskID

from examples.digits.train import ONE_THREAD
from examples.sparse_regression.model import accuracy, loss
from examples.sparse_regression.train import Config, Task, Training, alone, train
from inaproto_hil.rigs import environment
from inaproto_hil.rigs.cluster import ClusterError

DEFAULT = Config()
DRAWN_MAX = 120
"""Points of a curve."""


class Stalenesses(click.ParamType[list[int]]):
    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            asked = [int(one) for one in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r}: numbers of clocks such as 0,2,8", param, ctx)
        if not all(one >= 0 for one in asked):
            self.fail(f"{value!r}: a staleness is a number of clocks, 0 or more", param, ctx)
        return asked


def curve(task: Task, training: Training) -> dict[str, Any]:
    """When worker 0 pulled, and how good the weights were."""
    pulled = training.pulled
    every = max(1, len(pulled) // DRAWN_MAX)
    chosen = [*pulled[:-1:every], pulled[-1]]
    weights = [task.averaging.weights(summed) for _, _, summed in chosen]
    return {
        "staleness": training.staleness,
        "wall_s": round(training.seconds, 3),
        "killed_s": training.killed_s,
        "waited_s": round(training.waited_s / task.config.workers, 3),
        "behind_max": max(training.behind),
        "behind_mean": round(mean(training.behind), 3),
        "updates": int(training.last[-1]),
        "loss": loss(weights[-1], task.train),
        "test_accuracy": accuracy(weights[-1], task.test),
        "zero_share": float((weights[-1] == 0).mean()),
        "seconds": [round(when, 4) for when, _, _ in chosen],
        "clocks": [clock for _, clock, _ in chosen],
        "losses": [loss(one, task.train) for one in weights],
        "zero_shares": [float((one == 0).mean()) for one in weights],
    }


def _show(bar: Progress, doing: TaskID, done: int) -> None:
    bar.update(doing, completed=done)


def run(config: Config, stalenesses: list[int], console: Console) -> dict[str, Any]:
    """All trainings, one after the other."""
    task, runs, identical = Task(config), list[dict[str, Any]](), None
    with Progress(console=console, transient=True) as bar:
        for staleness in stalenesses:
            doing = bar.add_task(f"s = {staleness}", total=config.workers * config.clocks)
            training, placed = train(task, staleness, partial(_show, bar, doing))
            told = curve(task, training)
            if staleness == 0:
                identical = training.last.tobytes() == alone(task, placed).tobytes()
            runs.append(told)
            bar.console.print(
                f"s = {staleness}: {told['wall_s']:.1f} s, {told['waited_s']:.1f} s of it in pulls; loss "
                f"{told['loss']:.4f}, test accuracy {told['test_accuracy']:.3f}, "
                f"{100 * told['zero_share']:.1f} % of the weights are 0; "
                f"updates at most {told['behind_max']} clocks behind"
            )
    return {
        "version": 1,
        "config": asdict(config),
        "env": environment.describe(),
        "identical": identical,
        "runs": runs,
    }


def verdict(config: Config, summary: dict[str, Any]) -> list[str]:
    """What is wrong; empty when all is well."""
    pushed = config.workers * config.clocks
    wrong = [
        f"s = {told['staleness']}: {told['updates']} updates count, {pushed} were pushed"
        for told in summary["runs"]
        if told["updates"] != pushed
    ]
    wrong += [
        f"s = {told['staleness']}: a pull was {told['behind_max']} clocks behind"
        for told in summary["runs"]
        if told["behind_max"] > told["staleness"]
    ]
    if summary["identical"] is False:
        wrong.append("s = 0 did not come to the bytes of synchronous training in one process")
    return wrong


@click.command(help=__doc__)
@click.option("--staleness", "stalenesses", type=Stalenesses(), default="0,2,8", show_default=True)
@click.option("--workers", type=click.IntRange(1, 16), default=DEFAULT.workers, show_default=True)
@click.option("--servers", type=click.IntRange(1, 8), default=DEFAULT.servers, show_default=True)
@click.option("--clocks", type=click.IntRange(10, 10_000), default=DEFAULT.clocks, show_default=True)
@click.option("--seed", type=int, default=DEFAULT.seed, show_default=True)
@click.option("--kill/--no-kill", default=True, show_default=True, help="A parameter server, half-way.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("sparse-out"), show_default=True
)
def main(
    stalenesses: list[int], workers: int, servers: int, clocks: int, seed: int, kill: bool, out: Path
) -> None:
    config = Config(seed=seed, workers=workers, servers=servers, clocks=clocks, kill=kill)
    out.mkdir(parents=True, exist_ok=True)
    try:
        summary = run(config, stalenesses, Console(stderr=True))
    except ClusterError as error:
        raise click.ClickException(str(error)) from error
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    from examples.sparse_regression import plot

    plot.draw(summary, out / "loss.png")
    click.echo(f"{out / 'summary.json'}  {out / 'loss.png'}")
    wrong = verdict(config, summary)
    for problem in wrong:
        click.echo(problem, err=True)
    identical = {None: "not asked", True: "yes", False: "no"}[summary["identical"]]
    updates = sum(told["updates"] for told in summary["runs"])
    click.echo(f"sparse: identical={identical} updates={updates} problems={len(wrong)}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    import os

    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # BLAS reads them when it is loaded; sums of several threads differ from run to run.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "examples.sparse_regression", *sys.argv[1:]],
            {**os.environ, **ONE_THREAD},
        )
    main()
