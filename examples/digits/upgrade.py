"""The act ``upgrade``: every daemon is replaced by one of the other release while four hosts train.

    inaproto demo upgrade

Two racks with two hosts each, a spine and a controller. They begin in the release before this one, built from
its commit. Then the controller, the spine, the leaves and the hosts are replaced, one after the other, by
daemons of this release, as systemd would: stopped and started. After that host daemons are killed by SIGKILL.
The training processes are never restarted. Afterwards one process trains the same model alone, and the
weights must be the same bytes.

Writes to ``--out`` (default ``demo-out/upgrade/``): ``summary.json``, ``upgrade.png``, each rank's steps and
weights, and ``logs/``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from examples.digits.display import Display
from examples.digits.runs import TRAIN, Outcomes, Trained, on_stage, percentile, slowest_s, weights_differ
from examples.digits.watch import Watch, WireSample
from inaproto_hil.rigs import environment
from inaproto_hil.rigs.cluster import Child, ClusterError
from inaproto_hil.rigs.release import Release, release_before
from inaproto_hil.rigs.sharing_cluster import CONTROLLER
from inaproto_hil.rigs.upgrade_cluster import UpgradeCluster

SUMMARY_VERSION = 1
LOOK_INTERVAL_S = 0.1
EPOCHS_AHEAD = 2
NESTED = [[0, 1], [2, 3]]


@dataclass(frozen=True, slots=True)
class Config:
    seed: int
    batch: int
    steps: int
    """Of training between one event and the next."""
    kills: int
    back: bool
    """From this release to the one before."""
    timeout_s: float
    """For one all-reduce."""
    ranks: int = 4


@dataclass(frozen=True, slots=True)
class Event:
    """A daemon was ``replaced`` or ``killed``."""

    at_s: float
    kind: str
    daemon: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Trained):
    start_s: float
    events: list[Event]
    restarts_of_ranks: int
    releases: tuple[str, str]


class UpgradeWatch(Watch):
    """``workers`` are told their epochs; set it when all are started."""

    def __init__(self, cluster: UpgradeCluster, display: Display, config: Config) -> None:
        super().__init__(cluster, display, idle_timeout_s=2 * config.timeout_s, interval_s=LOOK_INTERVAL_S)
        self.workers: list[Child] = []
        self.events: list[Event] = []
        self.epochs = 0
        self._cluster = cluster
        self._config = config
        self._plan = self._events()
        self._last: str = ""
        """The daemon that is to be ready before the next event."""
        self._next_step = config.steps
        self._step = self._epoch = 0
        self._may_end = self._said_end = False

    def _events(self) -> Iterator[tuple[str, str]]:
        """What is done to whom, in order."""
        hosts = [f"h{host}" for host in range(self._cluster.config.hosts)]
        for name in (CONTROLLER, *self._cluster.config.switches, *hosts):
            yield "replaced", name
        for kill in range(self._config.kills):
            yield "killed", hosts[kill % len(hosts)]

    def look(self) -> None:
        if not self._may_end and self._step >= self._next_step and self._is_back:
            event = next(self._plan, None)
            if event is None:
                self._may_end = True
            else:
                self._strike(*event)
        self._tell()

    @property
    def _is_back(self) -> bool:
        daemons = {child.name: child for child in self._cluster.daemons}
        return not self._last or self._cluster.is_ready(daemons[self._last])

    def _strike(self, kind: str, name: str) -> None:
        if kind == "killed":
            self._cluster.kill(name)
            self.display.note(f"{name} is killed (SIGKILL) and started again")
        else:
            self._cluster.replace(name)
            version = self._cluster.other.version if name in self._cluster.others else "this release"
            self.display.note(f"{name} is replaced by one of {version}")
        self.events.append(Event(self.at_s, kind, name))
        self._last, self._next_step = name, self._step + self._config.steps

    def stepped(self, step: dict[str, Any]) -> None:
        self._step, self._epoch = step["step"], step["epoch"]
        self.show(step, None)
        self._tell()

    def _tell(self) -> None:
        """All workers are told the same, so that all train equally long."""
        while not self._said_end and self.epochs < self._epoch + EPOCHS_AHEAD:
            self._said_end = self._may_end
            self.epochs += not self._said_end
            for worker in self.workers:
                try:
                    worker.send_line("end" if self._said_end else "epoch")
                except ClusterError as error:
                    self._cluster.check()
                    raise self._cluster.failure(str(error)) from None


def run(config: Config, other: Release, out: Path, display: Display) -> Result:
    """Play the act, then train alone; returns what both left. Raises ``ClusterError``."""
    outcomes = Outcomes.prepared(out, config.ranks)
    options = {"size": config.ranks, "seed": config.seed, "batch": config.batch, "timeout": config.timeout_s}
    train = [sys.executable, str(TRAIN), *(f"--{name}={value}" for name, value in options.items())]
    begins = f"this release, to go to {other.version}" if config.back else f"release {other.version}"
    display.stage(f"starting controller, switches and hosts of {begins}")
    with UpgradeCluster(other, begins=not config.back, log_dir=out / "logs") as cluster:
        watch = UpgradeWatch(cluster, display, config)
        display.stage("training")
        for rank, path in enumerate(outcomes.ranks):
            argv = [
                *train,
                f"--rank={rank}",
                f"--socket={cluster.host_socket(rank)}",
                f"--out={path}",
                "--told",
            ]
            watch.workers.append(cluster.start_worker(f"rank{rank}", argv, sink=watch.line))
        watch.until_ended(watch.workers)
        display.stage("training the same in one process")
        argv = [*train, "--one-process", f"--nested={json.dumps(NESTED)}", f"--epochs={watch.epochs}"]
        argv.append(f"--out={outcomes.reference}")
        watch.until_ended([cluster.start_worker("reference", argv, sink=watch.line)])
        started = sum(child.name.startswith("rank") for child in cluster.workers)
    return Result(
        **outcomes.read(),
        start_s=watch.start_s,
        events=watch.events,
        wire=[_NO_WIRE],
        restarts_of_ranks=started - config.ranks,
        releases=(other.version, other.commit),
    )


_NO_WIRE = WireSample(at_s=0.0, frames=0, frames_lost=0, duplicated=0, reordered=0, retransmits=0)
"""Counters of daemons that end with them say nothing here."""


def summarise(config: Config, result: Result, env: dict[str, Any]) -> dict[str, Any]:
    """``summary.json``: measured values only."""
    waits = slowest_s(result.ranks)
    steps = result.ranks[0]["steps"]
    ended = [step["ended_s"] - result.start_s for step in steps]
    stops = []
    for event in result.events:  # the step that it hit is one of those that ended soon after
        after = [wait for wait, at in zip(waits, ended, strict=True) if event.at_s <= at][:3]
        stops.append({**asdict(event), "stop_s": max(after, default=0.0)})
    kinds = [event.kind for event in result.events]
    return {
        "version": SUMMARY_VERSION,
        "config": asdict(config),
        "env": env,
        "other_release": {"version": result.releases[0], "commit": result.releases[1]},
        **{name: value for name, value in result.summary().items() if name not in asdict(_NO_WIRE)},
        "replaced": kinds.count("replaced"),
        "kills": kinds.count("killed"),
        "restarts_of_ranks": result.restarts_of_ranks,
        "longest_stop_s": max(waits),
        "p50_ms": 1e3 * percentile(waits, 50),
        "events": stops,
        "wall_s": max(rank["wall_s"] for rank in result.ranks),
    }


def verdict(summary: dict[str, Any]) -> list[str]:
    """What is wrong with a finished run; empty when all is well."""
    problems = weights_differ(summary)
    if summary["kills"] != summary["config"]["kills"]:
        problems.append(f"{summary['kills']} host daemons were killed, not {summary['config']['kills']}")
    if summary["restarts_of_ranks"]:
        problems.append(f"{summary['restarts_of_ranks']} training processes were restarted")
    return problems


def last_line(summary: dict[str, Any]) -> str:
    return (
        f"identical={'yes' if summary['identical'] else 'no'} replaced={summary['replaced']} "
        f"kills={summary['kills']} restarts_of_ranks={summary['restarts_of_ranks']} "
        f"longest_stop_s={summary['longest_stop_s']:.2f}"
    )


def draw(summary: dict[str, Any], result: Result, path: Path) -> None:
    """How long each step waited for its sum, and what was done to daemons meanwhile."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    ended = [step["ended_s"] - result.start_s for step in result.ranks[0]["steps"]]
    figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    axes.plot(ended, [1e3 * wait for wait in slowest_s(result.ranks)], ".", markersize=3, color="tab:blue")
    colours = {"replaced": "tab:green", "killed": "tab:red"}
    for kind, colour in colours.items():
        for number, event in enumerate(each for each in summary["events"] if each["kind"] == kind):
            axes.axvline(event["at_s"], color=colour, linewidth=0.8, label=None if number else kind)
    for event in summary["events"]:
        axes.annotate(
            event["daemon"], (event["at_s"], 1), xycoords=("data", "axes fraction"), rotation=90, fontsize=7,
            ha="right", va="top",
        )  # fmt: skip
    axes.set(yscale="log", xlabel="s", ylabel="slowest rank waits for its sum, ms", title=last_line(summary))
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(config: Config, out: Path) -> int:
    """Play the act; returns the exit status. Its last line is of ``last_line``. Raises ``Unsupported``."""
    out.mkdir(parents=True, exist_ok=True)
    other, env = release_before(), environment.describe()
    with on_stage("upgrade") as display:
        result = run(config, other, out, display)
    summary = summarise(config, result, env)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    draw(summary, result, out / "upgrade.png")
    print(
        f"release {other.version} (commit {other.commit[:12]}); all-reduce of "
        f"{summary['allreduce_bytes'] / 1024:.0f} KiB: p50 {summary['p50_ms']:.1f} ms; training "
        f"{summary['wall_s']:.1f} s\n{out / 'summary.json'}  {out / 'upgrade.png'}"
    )
    problems = verdict(summary)
    for problem in problems:
        print(f"upgrade: {problem}", file=sys.stderr)
    sys.stderr.flush()
    print(last_line(summary))
    return 1 if problems else 0
