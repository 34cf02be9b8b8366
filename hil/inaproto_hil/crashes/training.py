"""The demo's jobs, trained on and on while controllers are killed; the last of them comes and goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Final

import trio

from inaproto import Communicator
from inaproto.errors import InaprotoError
from inaproto_hil.crashes.cluster import CrashCluster
from inaproto_hil.crashes.stops import Operations
from inaproto_hil.demo.sharing import MODELS, Config, Job, Tally

VISITOR: Final = MODELS[3]
VISIT_STEPS: Final = (4, 12)
AWAY_S: Final = 2.0


class Training:
    def __init__(self, cluster: CrashCluster, config: Config) -> None:
        self.cluster, self.config = cluster, config
        self.tally = Tally()
        self.paths: Counter[str] = Counter()
        """All-reduces, by path."""
        self.faults: list[str] = []
        self.operations: dict[str, Operations] = {}
        """Operations of each job that was begun."""
        self._running: list[Job] = []
        self.stop = False

    async def run(self) -> None:
        """Until all jobs have finished."""
        async with trio.open_nursery() as nursery:
            for model in MODELS:
                nursery.start_soon(self._again_and_again, model)

    def finish(self) -> None:
        """Ask all jobs to stop after their current step; returns at once."""
        self.stop = True
        for job in self._running:
            job.finish()

    async def _again_and_again(self, model: str) -> None:
        random = Random(f"{self.config.seed}/{model}")
        life = 0
        while not self.stop:
            life += 1
            steps = random.randint(*VISIT_STEPS) if model == VISITOR else None
            job = WatchedJob(self, f"{model}.{life}", model, steps)
            self.operations[job.name] = job.operations
            self._running.append(job)
            try:
                await job.run()
            except* InaprotoError as group:
                self.faults.append(f"job {job.name} failed: {group.exceptions}")
            self._running.remove(job)
            if model == VISITOR and not self.stop:
                await trio.sleep(random.random() * AWAY_S)

    def steps(self) -> int:
        """Done by the jobs that run now, each by its slowest rank."""
        return sum(min(job.steps_done) for job in self._running)


class WatchedJob(Job):
    """Notes when its all-reduces were called and ended. ``steps``: None, as many as until it is finished."""

    def __init__(self, training: Training, name: str, model: str, steps: int | None) -> None:
        super().__init__(training.cluster, model, replace(training.config, steps=0), training.tally)
        self.name = name
        self._last = steps
        self._paths = training.paths
        self.operations = Operations(training.cluster.config.hosts)
        self._noted = [0] * training.cluster.config.hosts

    def finish(self) -> None:
        if self._last is None:
            super().finish()

    def stepped(self, rank: int, comm: Communicator) -> None:
        for record in comm.statistics().recent:
            if record.op_index >= self._noted[rank]:
                self._noted[rank] = record.op_index + 1
                ended = record.submitted_ns + record.daemon_ns
                self.operations.note(record.op_index, record.submitted_ns / 1e9, ended / 1e9)
                if rank == 0:
                    self._paths[record.path] += 1
