"""The live part of ``inaproto bench sharing``: jobs that share by turns, on daemons, by index as these do.

Every daemon is a process of its own: a controller, three switches and four hosts, started anew for each run.
Three jobs with the steps of measured models call all-reduces from all hosts; their switches take one job at a
time. A run ends when each job has done its steps. What is counted is what the daemons say of themselves while
all jobs are still there; results are compared, byte for byte, with numpy's.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from inaproto.core.sharing.events import Mark
from inaproto.units import MS
from inaproto_hil.demo.sharing import LOOK_S, MODELS, Config, Job, Tally, controllers_word
from inaproto_hil.rigs.sharing_cluster import WAIT_S, SharingCluster

JOBS: Final = MODELS[:3]
HOSTS: Final = 4
"""Each stalls by itself; all-reduces are counted once."""


class Paced(Protocol):
    """A job that does one step after the other."""

    steps_done: list[int]
    """Steps done by rank."""

    async def past(self, steps: int) -> None:
        """Until all its ranks have done so many."""


@dataclass(slots=True)
class Run:
    """What one run has counted, over all its jobs and hosts."""

    rounds: Counter[str] = field(default_factory=Counter)
    """Rounds by mark of the coordinator."""
    turns: int = 0
    waits: int = 0
    waited_ns: int = 0
    waited_max_ns: int = 0
    doubts: int = 0
    disagreements: int = 0
    """All-reduces that hosts had bound to different rings."""
    differs: int = 0
    paths: Counter[str] = field(default_factory=Counter)
    step_ms: list[float] = field(default_factory=list)
    """Mean of each job."""


def run_live(steps: int, slower: float) -> Run:
    """One run. Raises ``ClusterError`` where daemons fail, or nothing goes on."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-sharing-") as logs,
        SharingCluster(log_dir=Path(logs)) as cluster,
    ):
        return trio.run(_play, cluster, Config(steps=steps, slower=slower))


async def _play(cluster: SharingCluster, config: Config) -> Run:
    tally, run = Tally(), Run()
    jobs = [Job(cluster, model, config, tally) for model in JOBS]

    async def pace(job: Job) -> None:
        run.step_ms.append(await step_ms(job, config.steps))

    async def judge() -> None:
        async with trio.open_nursery() as paced:
            for job in jobs:
                paced.start_soon(pace, job)
        await _count(cluster, run)
        for job in jobs:
            job.finish()

    with trio.fail_after(WAIT_S):
        await _hosts_known(cluster)
    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(job.run)
        nursery.start_soon(judge)
    run.differs, run.paths = tally.differs, tally.paths
    return run


async def step_ms(job: Paced, steps: int) -> float:
    """Mean of those that it does until it has done ``steps``, from when one is seen to end: not the first."""
    await job.past(max(1, min(job.steps_done) + 1))
    began, first = trio.current_time(), min(job.steps_done)
    await job.past(max(steps, first + 1))
    return 1e3 * (trio.current_time() - began) / (min(job.steps_done) - first)


async def _hosts_known(cluster: SharingCluster) -> None:
    """Hosts known to the controller."""
    names = [f"h{host}" for host in range(cluster.config.hosts)]
    while True:
        agents = (await controllers_word(cluster))["agents"]
        if all(agents.get(name, {}).get("presence") == "up" for name in names):
            return
        await trio.sleep(LOOK_S)


async def _count(cluster: SharingCluster, run: Run) -> None:
    for group in (await controllers_word(cluster))["sharing"]:
        run.rounds.update(group["counters"])
        run.turns += sum(job["turns"] for job in group["jobs"].values())
    for host in range(cluster.config.hosts):
        status = await trio.to_thread.run_sync(partial(cluster.host_status, host))
        for seat in status["controller"]["turns"]:
            waits = seat["waits"]
            run.waits += waits["count"]
            run.waited_ns += waits["total_ns"]
            run.waited_max_ns = max(run.waited_max_ns, waits["max_ns"])
            run.doubts += seat.get("counters", {}).get(Mark.IN_DOUBT.value, 0)
    spine = await trio.to_thread.run_sync(cluster.switch_status)
    run.disagreements += spine["rendezvous"]["disagreements"]


def measure_live(
    rounds: int,
    steps: int,
    slower: float,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> dict[str, Any]:
    """A row as :func:`inaproto_hil.bench.sharing.measure` has them."""
    return _row([run_live(steps, slower) for _ in progress(range(rounds))])


def _row(runs: Sequence[Run]) -> dict[str, Any]:
    rounds: Counter[str] = sum((run.rounds for run in runs), Counter())
    paths: Counter[str] = sum((run.paths for run in runs), Counter())
    begun, operations = rounds[Mark.ROUND_BEGUN.value], sum(paths.values())
    aborted = sum(count for name, count in rounds.items() if name.startswith("round aborted"))
    turns, waits = sum(run.turns for run in runs), sum(run.waits for run in runs)
    waited_ns = sum(run.waited_ns for run in runs)
    steps = sorted(ms for run in runs for ms in run.step_ms)
    return {
        "weather": "live",
        "rule": "by-index",
        "worlds": len(runs),
        "operations": operations,
        "rounds": begun,
        "committed": rounds[Mark.COMMITTED.value],
        "aborted": aborted,
        "aborted_by": {name: count for name, count in sorted(rounds.items()) if name.startswith("round ab")},
        "abort_rate": aborted / begun if begun else None,
        "turns": turns,
        "rounds_per_turn": begun / turns if turns else None,
        "doubts": sum(run.doubts for run in runs),
        "lock_stalls": waits,
        "lock_stalled_ms": waited_ns / MS,
        "lock_stall_mean_us": waited_ns / 1000 / waits if waits else None,
        "lock_stall_max_ms": max((run.waited_max_ns for run in runs), default=0) / MS,
        "lock_stall_us_per_operation": waited_ns / 1000 / operations / HOSTS if operations else None,
        "ina_share": paths["switch"] / operations if operations else None,
        "rescued": sum(run.disagreements for run in runs),
        "wrong": sum(run.differs for run in runs),
        "jobs": len(JOBS),
        "step_median_ms": statistics.median(steps) if steps else None,
        "step_ms": steps,
        "job_median_ms": None,
        "job_mean_ms": None,
    }
