"""The demo: four workers train on handwritten digits through a switch that sums, over a bad wire.

    inaproto demo                                       (or: make demo)

Starts one switch daemon, a host daemon per worker, and the workers (``train.py``), all as separate
processes on this machine. The switch's ports drop, duplicate and reorder frames, from a seed. Every
step's gradients are summed by the switch; afterwards one process trains the same model alone, and the
weights must be the same bytes. Only processes started here are ended, by their process id.

Writes to ``--out`` (default ``demo-out/``): ``summary.json``, ``demo.png``, ``rank0.json`` ... with
every step, the weights, and ``logs/``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from examples.digits.display import Display
from examples.digits.runs import (
    TRAIN,
    Outcomes,
    Trained,
    on_stage,
    percentile,
    slowest_s,
    two_digits,
    weights_differ,
)
from examples.digits.watch import SwitchWatch
from inaproto_hil.rigs import environment
from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster

SUMMARY_VERSION = 1


@dataclass(frozen=True, slots=True)
class Config:
    seed: int
    ranks: int
    epochs: int
    batch: int
    weather: str
    timeout_s: float
    """For one all-reduce."""
    accelerator: str = "software"
    """Of the switch, as ``inaproto switch --accelerator`` takes it."""
    kill_switch_at: int | None = None
    """Step at which the switch is killed, and another started in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Trained):
    switch_kills: int = 0

    @property
    def wall_s(self) -> dict[str, float]:
        """How long the training took on all ranks, and in the process that trains alone."""
        return {
            "training": max(rank["wall_s"] for rank in self.ranks),
            "one_process": self.reference["wall_s"],
        }


def run(config: Config, out: Path, display: Display) -> Result:
    """Train through the switch, then alone; returns what both left. Raises ``ClusterError``."""
    outcomes = Outcomes.prepared(out, config.ranks)
    display.stage("starting the switch and the hosts")
    cluster_config = ClusterConfig(
        hosts=config.ranks,
        weather=config.weather,
        seed=config.seed,
        switch_options=("--accelerator", config.accelerator),
        host_options=_host_options(config),
    )
    with LocalCluster(cluster_config, log_dir=out / "logs") as cluster:
        watch = train_in(cluster, config, outcomes, display)
    return Result(**outcomes.read(), wire=watch.wire, switch_kills=watch.switch_kills)


def _host_options(config: Config) -> tuple[str, ...]:
    if config.accelerator == "software":
        # Frames take microseconds here, and a packet lost at the end of a message shows only when the
        # sender's timer expires: 17 ms of it instead of the usual 67.
        return "--transport-timeout", "12"
    return ()


def train_in(cluster: LocalCluster, config: Config, outcomes: Outcomes, display: Display) -> SwitchWatch:
    """All ranks through the switch, rank i at host i, then one process alone. Raises ``ClusterError``."""
    shared = [f"--{name}={value}" for name, value in _training_options(config).items()]
    train = [sys.executable, str(TRAIN), *shared]
    watch = SwitchWatch(
        cluster, display, idle_timeout_s=2 * config.timeout_s, kill_switch_at=config.kill_switch_at
    )
    display.stage("training")
    for rank, path in enumerate(outcomes.ranks):
        argv = [*train, f"--rank={rank}", f"--socket={cluster.host_socket(rank)}", f"--out={path}"]
        cluster.start_worker(f"rank{rank}", argv, sink=watch.line)
    watch.until_ended(cluster.workers)
    watch.look()
    display.stage("training the same in one process")
    alone = cluster.start_worker(
        "reference", [*train, "--one-process", f"--out={outcomes.reference}"], sink=watch.line
    )
    watch.until_ended([alone])
    return watch


def _training_options(config: Config) -> dict[str, Any]:
    return {
        "size": config.ranks,
        "seed": config.seed,
        "epochs": config.epochs,
        "batch": config.batch,
        "timeout": config.timeout_s,
    }


def summarise(config: Config, result: Result, env: dict[str, Any]) -> dict[str, Any]:
    """``summary.json``: measured values only."""
    first = result.ranks[0]
    slowest = slowest_s(result.ranks)
    return {
        "version": SUMMARY_VERSION,
        "config": asdict(config),
        "env": env,
        **result.summary(),
        "train_samples": first["train_samples"],
        "test_samples": first["test_samples"],
        "switch_kills": result.switch_kills,
        "latency_ms": {
            **{f"p{percent}": 1e3 * percentile(slowest, percent) for percent in (50, 90, 99)},
            "min": 1e3 * min(slowest),
            "max": 1e3 * max(slowest),
            "mean": 1e3 * sum(slowest) / len(slowest),
        },
        "wall_s": result.wall_s,
    }


def series(result: Result) -> dict[str, Any]:
    """The curves of ``demo.png``."""
    first = result.ranks[0]
    steps = first["steps"]
    each = len(steps) // len(first["accuracy"])
    by_epoch = [steps[at : at + each] for at in range(0, len(steps), each)]
    return {
        "step": [step["step"] for step in steps],
        "loss": [step["loss"] for step in steps],
        "steps_per_epoch": each,
        "accuracy": first["accuracy"],
        "reference_accuracy": result.reference["accuracy"],
        "train_accuracy": [sum(step["train_accuracy"] for step in epoch) / each for epoch in by_epoch],
        "slowest_s": slowest_s(result.ranks),
        "wire": [asdict(sample) for sample in result.wire],
    }


def verdict(summary: dict[str, Any]) -> list[str]:
    """What is wrong with a finished run; empty when all is well."""
    problems = weights_differ(summary)
    if summary["config"]["kill_switch_at"] is not None and not summary["switch_kills"]:
        problems.append("the switch was to be killed, and was not: the training has too few steps")
    if summary["config"]["weather"]:
        problems += [
            f"the weather is {summary['config']['weather']}, yet {name} is 0: the wire was another one"
            for name in ("frames_lost", "retransmits")
            if not summary[name]
        ]
    return problems


def last_line(summary: dict[str, Any]) -> str:
    return (
        f"demo: identical={'yes' if summary['identical'] else 'no'} "
        f"accuracy={two_digits(summary['accuracy'])} "
        f"allreduces={summary['allreduces']} frames_lost={summary['frames_lost']} "
        f"retransmits={summary['retransmits']}"
        + (f" switch_kills={summary['switch_kills']}" if summary["switch_kills"] else "")
    )


def main(config: Config, out: Path) -> int:
    """Play the act; returns the exit status. Its last line is of ``last_line``."""
    out.mkdir(parents=True, exist_ok=True)
    env = environment.describe()
    with on_stage("demo") as display:
        result = run(config, out, display)
    return conclude(config, result, env, out)


def conclude(config: Config, result: Result, env: dict[str, Any], out: Path) -> int:
    """Leave the summary and the picture in ``out``; returns the exit status."""
    summary = summarise(config, result, env)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    from examples.digits import plot

    plot.draw(summary, series(result), out / "demo.png")
    latency, wall_s = summary["latency_ms"], summary["wall_s"]
    print(
        f"all-reduce of {summary['allreduce_bytes'] / 1024:.0f} KiB: p50 {latency['p50']:.1f} ms, "
        f"p99 {latency['p99']:.1f} ms; training {wall_s['training']:.1f} s, one process alone "
        f"{wall_s['one_process']:.2f} s\n{out / 'summary.json'}  {out / 'demo.png'}"
    )
    problems = verdict(summary)
    for problem in problems:
        print(f"demo: {problem}", file=sys.stderr)
    sys.stderr.flush()
    print(last_line(summary))
    return 1 if problems else 0


if __name__ == "__main__":
    from inaproto_hil.demo.acts import demo

    demo()
