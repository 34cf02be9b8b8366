"""``inaproto demo sharing``: jobs share the switches of racks, move, and their controller is killed.

Every daemon is a process of its own. The jobs have the training steps of measured models, slower and with
smaller tensors; their ranks are tasks here, each at its host's daemon. Above the racks are two spines, and
jobs of one spine share its slots by turns. Three jobs begin, a fourth comes later; which spine each has is
for the planner to say, and who has another one than before moves there as it runs. In the middle the
controller is ended by SIGKILL and started again. Every result is compared, byte for byte, with the sum by
numpy in the order of the racks.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import trio
from numpy.typing import NDArray

import inaproto
from inaproto.core.host.operations import BASE, INA
from inaproto.units import S
from inaproto_controller.cluster.model import measured
from inaproto_controller.service.turns.planner import ROUND_TRIP_S, PlannerConfig
from inaproto_hil.evaluation.shared_pool.prediction import Seen, plain_seconds, predicted_ina_share
from inaproto_hil.rigs.cluster import ClusterError
from inaproto_hil.rigs.fabric_cluster import FabricCluster
from inaproto_hil.rigs.sharing_cluster import WAIT_S, SharingCluster

MODELS: Final = ("vit-base-4", "bert-base-4", "opt-125m-4", "vit-base-16")
ORDER: Final = (3, 0, 2, 1)
"""In which they begin."""
THREE_RACKS: Final = 3
FIRST_HOSTS: Final = (0, 1, 2, 3)
LAST_HOSTS: Final = (2, 3, 4, 5)
"""Hosts of the fourth job. Its second rack is linked to the first spine only, which has slots for two jobs
that take turns: if it has two, one of them moves to the other spine."""
BYTES_DIVISOR: Final = 2000
"""Divisor of the tensors of a model."""
TURNS_AGAIN: Final = 3
"""Turns that the controller gives after it was killed, before the jobs end."""
LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Config:
    seed: int = 1
    steps: int = 20
    """Steps of each job, at least."""
    slower: float = 4.0
    """Than measured."""
    timeout_s: float = 120.0


@dataclass
class Tally:
    """Counts of all jobs."""

    differs: int = 0
    """Results that are not numpy's."""
    paths: Counter[str] = field(default_factory=Counter)
    """All-reduces of rank 0, by path."""
    seen: dict[str, list[Seen]] = field(default_factory=dict)
    """The same, by job."""


class Job:
    def __init__(
        self,
        cluster: FabricCluster,
        model: str,
        config: Config,
        tally: Tally,
        hosts: Sequence[int] | None = None,
    ) -> None:
        """``hosts``: of its ranks, two of each rack; by default all."""
        self.name = model
        self._cluster, self._config, self._tally = cluster, config, tally
        self._trace = measured(model)
        slower = config.slower
        self.trace = replace(
            self._trace,
            duration=self._trace.duration * slower,
            ready=tuple(ready * slower for ready in self._trace.ready),
            nbytes=tuple(self._part(number, 0).nbytes for number in range(len(self._trace.nbytes))),
        )
        """Trace of a step as it is here."""
        self._hosts = range(cluster.config.hosts) if hosts is None else hosts
        self.steps_done = [0] * len(self._hosts)
        self._last: int | None = None
        """So many steps in all; None: not said yet."""

    def _part(self, index: int, rank: int) -> NDArray[np.float32]:
        nbytes = self._trace.nbytes[index % len(self._trace.nbytes)]
        seed = [self._config.seed, index, rank, *self.name.encode()]
        return np.random.default_rng(seed).standard_normal(
            max(16, nbytes // BYTES_DIVISOR // 4), dtype=np.float32
        )

    def _expected(self, index: int) -> bytes:
        parts = [self._part(index, rank) for rank in range(len(self._hosts))]
        racks = [parts[first] + parts[first + 1] for first in range(0, len(parts), 2)]
        return (racks[0] + racks[1]).tobytes()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for rank in range(len(self._hosts)):
                nursery.start_soon(self._rank, rank)

    async def _rank(self, rank: int) -> None:
        trace, slower = self._trace, self._config.slower
        count = len(trace.nbytes)
        async with await inaproto.connect(
            self.name,
            rank,
            size=len(self._hosts),
            socket=self._cluster.host_socket(self._hosts[rank]),
            path="shared",
        ) as comm:
            step = 0
            while self._last is None or step < self._last:
                began, works = trio.current_time(), []
                for number, ready in enumerate(trace.ready):
                    await trio.sleep_until(began + ready * slower)
                    index = step * count + number
                    works.append((index, comm.all_reduce(self._part(index, rank))))
                await trio.sleep_until(began + trace.duration * slower)
                for index, work in works:
                    result = await work.wait(self._config.timeout_s)
                    self._tally.differs += result.tobytes() != self._expected(index)
                self.steps_done[rank] = step = step + 1
                self.stepped(rank, comm)
            if rank == 0:
                recent = comm.statistics().recent
                self._tally.paths.update(record.path for record in recent)
                self._tally.seen[self.name] = [
                    Seen(one.nbytes, one.path, one.submitted_ns / S, (one.submitted_ns + one.daemon_ns) / S)
                    for one in recent
                ]

    def stepped(self, rank: int, comm: inaproto.Communicator) -> None:
        """A rank has all results of a step; for who wants to know."""

    def finish(self) -> None:
        """Ask all ranks to stop soon. They are a step apart at most, so none is past the end."""
        self._last = max(self._config.steps, max(self.steps_done) + 2)

    async def past(self, steps: int) -> None:
        await until(f"job {self.name} at step {steps}", lambda: min(self.steps_done) >= steps)


async def until(what: str, condition: Callable[[], bool]) -> None:
    """Polled, for it happens in other processes. Raises ``ClusterError``."""
    with trio.move_on_after(WAIT_S) as scope:
        while not condition():  # noqa: ASYNC110
            await trio.sleep(LOOK_S)
    if scope.cancelled_caught:
        raise ClusterError(f"{what}: not within {WAIT_S:g} s")


async def controllers_word(cluster: SharingCluster) -> dict[str, Any]:
    """Its status."""
    return await trio.to_thread.run_sync(partial(cluster.client.ask, "GET", "/v1/status"))


def rounds(status: dict[str, Any]) -> Counter[str]:
    """Rounds of one life of a controller."""
    found: Counter[str] = Counter(migrations=len(status["trees"]["moves"]["done"]))
    for group in status["sharing"]:
        for name, count in group["counters"].items():
            found["aborts"] += count if name.startswith("round aborted") else 0
    return found


def prediction(
    jobs: Sequence[Job], tally: Tally, status: dict[str, Any], roots: Mapping[str, str]
) -> dict[str, Any]:
    """What the simulator makes of the jobs' steps and of how long their all-reduces took, beside what was.

    ``roots``: of each job when all were there; those of one root take turns.
    """
    taken = {job.name: (job.trace, plain_seconds(tally.seen.get(job.name, ()), BASE)) for job in jobs}
    round_trip = max((group["round_trip_s"] for group in status["sharing"]), default=ROUND_TRIP_S)
    total = sum(tally.paths.values())
    predicted: list[tuple[float, int]] = []
    for root in sorted({roots.get(name, "") for name in taken}):
        group = {name: one for name, one in taken.items() if roots.get(name, "") == root}
        found = predicted_ina_share(group, ina_ratio=PlannerConfig().ina_ratio, round_trip=round_trip)
        if found is not None:
            predicted.append((found, sum(len(tally.seen.get(name, ())) for name in group)))
    count = sum(operations for _, operations in predicted)
    return {
        "ina_share": tally.paths[INA] / total if total else None,
        "predicted_ina_share": sum(one * of for one, of in predicted) / count if count else None,
        "roots": dict(roots),
        "round_trip_s": round_trip,
        "jobs": {
            name: {
                "ina_share": fmean(one.path == INA for one in seen) if seen else None,
                "plain_s": fmean(plain.values()) if plain else None,
                "ina_s": fmean(plain_seconds(seen, INA).values()) if plain_seconds(seen, INA) else None,
            }
            for name, (_, plain) in taken.items()
            for seen in [tally.seen.get(name, [])]
        },
    }


async def newest_turn(cluster: SharingCluster) -> int:
    return newest_turn_of(await controllers_word(cluster))


def newest_turn_of(status: dict[str, Any]) -> int:
    return max((group["epoch"] for group in status["sharing"]), default=0)


async def play(
    cluster: SharingCluster, config: Config, out: Path, say: Callable[[str], None], tally: Tally | None = None
) -> bool:
    """``tally``: filled, for who wants to look at it afterwards."""
    tally = Tally() if tally is None else tally
    models = [MODELS[number] for number in ORDER]
    jobs = [Job(cluster, model, config, tally, FIRST_HOSTS) for model in models[:3]]
    jobs.append(Job(cluster, models[3], config, tally, LAST_HOSTS))
    seen: Counter[str] = Counter()
    restarts, epochs = 0, [0]
    roots: dict[str, str] = {}
    status: dict[str, Any] = {}
    """Status of the controller that was started again, before the jobs end."""

    async def all_hosts_here() -> None:
        while True:
            agents = (await controllers_word(cluster))["agents"]
            if all(agents[f"h{host}"]["presence"] == "up" for host in range(cluster.config.hosts)):
                return
            await trio.sleep(LOOK_S)

    async def direct() -> None:
        nonlocal restarts
        await jobs[0].past(config.steps // 4)
        say(f"{jobs[3].name} arrives")
        nursery.start_soon(jobs[3].run)
        await jobs[0].past(config.steps // 2)
        before = await controllers_word(cluster)
        seen.update(rounds(before))
        epochs.append(newest_turn_of(before))
        cluster.kill_controller()  # in this thread: one of Trio's ends when it was idle for ten seconds
        await trio.to_thread.run_sync(cluster.wait_controller)
        restarts += 1
        say(f"the controller was killed after turn {epochs[-1]}, and started again")
        with trio.fail_after(WAIT_S):
            while await newest_turn(cluster) < epochs[-1] + TURNS_AGAIN:  # noqa: ASYNC110
                await trio.sleep(LOOK_S)
        # Asked while all jobs are there: a group that all have left for a lease is forgotten with its turns.
        status.update(await controllers_word(cluster))
        epochs.append(newest_turn_of(status))
        trees = status["trees"]["jobs"]
        roots.update((name, one["root"]) for name, one in trees.items())
        for job in jobs:
            job.finish()

    with trio.fail_after(WAIT_S):
        await all_hosts_here()
    say("all hosts have found the controller")
    async with trio.open_nursery() as nursery:
        for job in jobs[:3]:
            nursery.start_soon(job.run)
        nursery.start_soon(direct)
    seen.update(rounds(status))
    kept = out / "status.json"
    kept.write_text(json.dumps(cluster.whole_status(), indent=1) + "\n")
    conflicts = sum(
        cluster.switch_status(name)["accelerator"]["counters"]["pool_conflicts"]
        for name in cluster.config.switches
    )
    went_back = int(epochs != sorted(epochs))
    say(f"turns: {epochs[1]} before, {epochs[2]} with those of the next; by path: {dict(tally.paths)}")
    found = prediction(jobs, tally, status, roots)
    (out / "sharing.json").write_text(json.dumps(found, indent=1) + "\n")
    share = math.nan if found["ina_share"] is None else found["ina_share"]
    predicted = found["predicted_ina_share"]
    say(f"by INA: predicted {'-' if predicted is None else format(predicted, '.2f')}, was {share:.2f}")
    violations = conflicts + went_back
    say(f"what was summed where: inaproto report {jobs[0].name} --from {kept}")
    say(
        f"identical={'no' if tally.differs else 'yes'} jobs={len(jobs)} ina_share={share:.2f} "
        f"migrations={seen['migrations']} aborts={seen['aborts']} controller_restarts={restarts} "
        f"violations={violations}"
    )
    return not tally.differs and not violations and share > 0 and epochs[2] > epochs[1]


def main(config: Config, out: Path, say: Callable[[str], None] = print) -> int:
    """Returns the exit status."""
    apart = [("leaf2", "spine1")]
    with SharingCluster(log_dir=out, spines=2, racks=THREE_RACKS, apart=apart, share_max=2) as cluster:
        return 0 if trio.run(play, cluster, config, out, say) else 1
