"""The act ``racks``: two racks train while a link flaps and a leaf reboots, and the bytes stay the same.

    inaproto demo racks

Eight ranks, two on a host, two hosts at a leaf, a spine above the two leaves, each a process of its own.
Gradients are added on each host for its ranks, in the leaf for its hosts, in the spine for the leaves.
What happens to them (``scenario.py``): the link of one leaf flaps, and its frames are lost; the other leaf
reboots without memory for sums, so that the hosts sum themselves; it reboots again with its memory, and the
job returns to the switches. Afterwards one process trains the same model alone and adds in the same nested
order, and the weights must be the same bytes.

Writes to ``--out`` (default ``demo-out/racks/``): ``summary.json``, ``racks.png``, each rank's steps and
weights, and ``logs/``.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_right
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from examples.digits.display import Display
from examples.digits.racks_watch import HALTED, RETURNED, Event, PathSample, RacksWatch
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
from examples.digits.scenario import Job, Scenario, Timing
from examples.digits.train import Nested
from inaproto_hil.rigs import environment
from inaproto_hil.rigs.fabric_cluster import FabricCluster, FabricConfig

SUMMARY_VERSION = 1
RACKS, HOSTS_PER_RACK, RANKS_PER_HOST = 2, 2, 2
REBOOTED, FLAPPING = "leaf0", "leaf1"


@dataclass(frozen=True, slots=True)
class Config:
    seed: int
    weather: str
    epochs: int
    """At least; the training goes on until the scenario has ended."""
    batch: int
    flaps: int
    steps: int
    """Between one event and the next."""
    timeout_s: float
    """For one all-reduce."""
    racks: int = RACKS
    hosts_per_rack: int = HOSTS_PER_RACK
    ranks_per_host: int = RANKS_PER_HOST

    @property
    def ranks(self) -> int:
        return self.racks * self.hosts_per_rack * self.ranks_per_host

    @property
    def nested(self) -> Nested:
        """How the ranks are added: those of a host, then the hosts of a rack, then the racks."""
        hosts = [_part(rank, self.ranks_per_host) for rank in range(0, self.ranks, self.ranks_per_host)]
        racks = range(0, len(hosts), self.hosts_per_rack)
        return [hosts[first : first + self.hosts_per_rack] for first in racks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Trained):
    start_s: float
    """When the watch began, on the clock of the steps' ``ended_s``."""
    events: list[Event]
    paths: list[PathSample]
    sums: list[dict[str, int]]
    plan: str
    job: Job | None
    """When it was seen last."""
    rendezvous: dict[str, int]
    """Counters at the end."""
    cuts: int

    @property
    def summed_after_return(self) -> dict[str, int]:
        """Packets that each switch took into sums after the job's last return to the switches."""
        returned = [event.at_s for event in self.events if event.kind == RETURNED]
        if not returned:
            return {}
        samples = zip(self.wire, self.sums, strict=True)
        after = [sums for sample, sums in samples if sample.at_s >= returned[-1]]
        return {switch: after[-1][switch] - after[0][switch] for switch in after[0]}

    @property
    def returned(self) -> bool:
        """Whether the job's last operations were summed in the switches, all of them, after a fallback."""
        summed = self.summed_after_return
        if self.job is None or not summed:
            return False
        was_last = self.job.recoveries == self.rendezvous["recoveries"]
        return self.job.by_switches and was_last and all(summed.values())


def run(config: Config, out: Path, display: Display) -> Result:
    """Play the act, then train alone; returns what both left. Raises ``ClusterError``."""
    outcomes = Outcomes.prepared(out, config.ranks)
    options = {"size": config.ranks, "seed": config.seed, "batch": config.batch, "timeout": config.timeout_s}
    train = [sys.executable, str(TRAIN), *(f"--{name}={value}" for name, value in options.items())]
    display.stage("starting the switches and the hosts")
    fabric = FabricConfig(
        racks=config.racks,
        hosts_per_rack=config.hosts_per_rack,
        weather=config.weather,
        seed=config.seed,
        relayed=(FLAPPING,),
        host_options=("--transport-timeout", "12"),
    )
    with FabricCluster(fabric, log_dir=out / "logs") as cluster:
        watch = RacksWatch(
            cluster,
            display,
            Scenario(Timing(steps=config.steps, flaps=config.flaps)),
            link=FLAPPING,
            leaf=REBOOTED,
            epochs_min=config.epochs,
            idle_timeout_s=2 * config.timeout_s,
        )
        display.stage("training")
        for rank, path in enumerate(outcomes.ranks):
            socket = cluster.host_socket(rank // config.ranks_per_host)
            argv = [*train, f"--rank={rank}", f"--socket={socket}", f"--out={path}", "--told"]
            watch.workers.append(cluster.start_worker(f"rank{rank}", argv, sink=watch.line))
        watch.until_ended(watch.workers)
        watch.sample()
        display.stage("training the same in one process")
        argv = [*train, "--one-process", f"--nested={json.dumps(config.nested)}", f"--epochs={watch.epochs}"]
        argv.append(f"--out={outcomes.reference}")
        watch.until_ended([cluster.start_worker("reference", argv, sink=watch.line)])
        cuts = cluster.links[FLAPPING].cuts
    return Result(
        **outcomes.read(),
        start_s=watch.start_s,
        events=watch.events,
        paths=watch.paths,
        wire=watch.wire,
        sums=watch.sums,
        plan=watch.plan,
        job=watch.job,
        rendezvous=watch.rendezvous,
        cuts=cuts,
    )


def _part(first: int, ranks: int) -> int | list[int]:
    """What a host adds: nothing, if it has one rank."""
    return first if ranks == 1 else list(range(first, first + ranks))


def path_at(paths: list[PathSample], at_s: float) -> str:
    """How the job was summed then: ``switch``, ``chain``, or ``halted`` while it had no ring."""
    before = bisect_right(paths, at_s, key=lambda sample: sample.at_s)
    return paths[before - 1].now if before else HALTED


def steps_of(result: Result) -> list[dict[str, Any]]:
    """When each step ended, what the slowest rank waited for its sum, and how that was made."""
    first = result.ranks[0]
    steps = []
    for step, waited_s in zip(first["steps"], slowest_s(result.ranks), strict=True):
        at_s = step["ended_s"] - result.start_s
        steps.append(
            {"step": step["step"], "at_s": at_s, "sum_s": waited_s, "path": path_at(result.paths, at_s)}
        )
    return steps


def summarise(config: Config, result: Result, env: dict[str, Any]) -> dict[str, Any]:
    """``summary.json``: measured values only."""
    steps = steps_of(result)
    by_path = {
        path: [step["sum_s"] for step in steps if step["path"] == path] for path in ("switch", "chain")
    }
    return {
        "version": SUMMARY_VERSION,
        "config": asdict(config),
        "env": env,
        **result.summary(),
        "fallbacks": result.rendezvous["fallbacks"],
        "returns": result.rendezvous["returns"],
        "returned": result.returned,
        "recoveries": result.rendezvous["recoveries"],
        "link_cuts": result.cuts,
        "nested": config.nested,
        "plan": result.plan,
        "summed_after_return": result.summed_after_return,
        "steps_by_path": {path: len(waits) for path, waits in by_path.items()},
        "p50_ms_by_path": {path: 1e3 * percentile(waits, 50) for path, waits in by_path.items() if waits},
        "longest_ms": 1e3 * max(step["sum_s"] for step in steps),
        "events": [asdict(event) for event in result.events],
        "wall_s": max(rank["wall_s"] for rank in result.ranks),
    }


def series(result: Result) -> dict[str, Any]:
    """The curves of ``racks.png``."""
    steps = result.ranks[0]["steps"]
    return {
        "step": [step["step"] for step in steps],
        "loss": [step["loss"] for step in steps],
        "sums": steps_of(result),
        "paths": [{"at_s": sample.at_s, "path": sample.now} for sample in result.paths],
        "wire": [asdict(sample) for sample in result.wire],
    }


def verdict(summary: dict[str, Any]) -> list[str]:
    """What is wrong with a finished run; empty when all is well."""
    problems = weights_differ(summary)
    if summary["plan"] != str(summary["nested"]):
        problems.append(f"the switches added in the order {summary['plan']}, not {summary['nested']}")
    if not summary["fallbacks"]:
        problems.append("the hosts never summed themselves, though a leaf had no memory")
    if not summary["returned"]:
        problems.append(
            f"the job did not return to the switches: summed there {summary['summed_after_return']}"
        )
    if summary["link_cuts"] != summary["config"]["flaps"]:
        problems.append(
            f"of {summary['config']['flaps']} flaps of the link only {summary['link_cuts']} cut it"
        )
    return problems


def last_line(summary: dict[str, Any]) -> str:
    return (
        f"identical={'yes' if summary['identical'] else 'no'} fallbacks={summary['fallbacks']} "
        f"returned={'yes' if summary['returned'] else 'no'} "
        f"accuracy={two_digits(summary['accuracy'])} allreduces={summary['allreduces']} "
        f"recoveries={summary['recoveries']} frames_lost={summary['frames_lost']}"
    )


def main(config: Config, out: Path) -> int:
    """Play the act; returns the exit status. Its last line is of ``last_line``."""
    out.mkdir(parents=True, exist_ok=True)
    env = environment.describe()
    with on_stage("racks") as display:
        result = run(config, out, display)
    summary = summarise(config, result, env)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    from examples.digits import racks_plot

    racks_plot.draw(summary, series(result), out / "racks.png")
    p50 = ", ".join(f"{value:.1f} ms by the {path}" for path, value in summary["p50_ms_by_path"].items())
    print(
        f"added as {summary['plan']}; all-reduce of {summary['allreduce_bytes'] / 1024:.0f} KiB: p50 {p50}, "
        f"longest {summary['longest_ms'] / 1e3:.1f} s; training {summary['wall_s']:.1f} s\n"
        f"{out / 'summary.json'}  {out / 'racks.png'}"
    )
    problems = verdict(summary)
    for problem in problems:
        print(f"racks: {problem}", file=sys.stderr)
    sys.stderr.flush()
    print(last_line(summary))
    return 1 if problems else 0
