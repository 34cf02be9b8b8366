"""Elastic jobs by a controller: real daemons, ranks that are lost, and others that go on without them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.daemon.net.names import AGENTS_SOCKET
from inaproto.errors import JobError, RankLost
from tests.clusters.loopback import Cluster, open_cluster
from tests.daemon.test_controller_daemon import SUBMISSION, Daemon, running

RECOVER_MS = LEASE_MS = 600_000
"""A survivor that a busy machine keeps from asking, or a host from reporting, for so long counts as lost."""
ENDED = "ended without leaving"


class Elastic:
    """Job "train" of two hosts with two ranks each; ``ranks`` by the numbers that they had first."""

    def __init__(self, daemon: Daemon, cluster: Cluster) -> None:
        self.daemon, self.cluster = daemon, cluster
        self.ranks: dict[int, inaproto.Communicator] = {}

    async def begin(self, token: str) -> None:
        async def connect(rank: int) -> None:
            self.ranks[rank] = await self.cluster.connect(
                "train", rank, size=4, host=rank // 2, key=token, elastic=True
            )

        async with trio.open_nursery() as nursery:
            for rank in range(4):
                nursery.start_soon(connect, rank)
        await self.daemon.until("train", "running")

    def kill(self, *ranks: int) -> None:
        """As processes that die."""
        for rank in ranks:
            self.ranks.pop(rank).channel.close()

    async def go_on(self) -> None:
        """Those that are left hear of a loss, find each other, and sum."""
        sums: list[int] = []

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            while True:
                try:
                    total = await comm.all_reduce(np.full(8, comm.rank + 1, np.int64))
                except RankLost:
                    comm = self.ranks[rank] = await comm.shrink()
                else:
                    sums.append(int(total[0]))
                    return

        async with trio.open_nursery() as nursery:
            for rank, comm in dict(self.ranks).items():
                nursery.start_soon(one, rank, comm)
        assert sums == [sum(range(1, len(self.ranks) + 1))] * len(self.ranks)

    async def seen(self, why: str) -> Mapping[str, Any]:
        """The job, once the controller says that of it while it runs."""
        job = await self.daemon.ask(self.daemon.client.job, "train")
        while why not in job["why"]:
            assert job["state"] == "running", job
            job = await self.daemon.ask(self.daemon.client.job, "train", after=job["revision"], wait_s=20)
        assert job["state"] == "running", job
        return job  # type: ignore[no-any-return]

    async def close(self) -> None:
        async with trio.open_nursery() as nursery:
            for comm in self.ranks.values():
                nursery.start_soon(comm.aclose)

    @classmethod
    async def submitted(cls, daemon: Daemon, cluster: Cluster) -> Elastic:
        """With its ranks."""
        found = await daemon.ask(
            daemon.client.submit, "train", 2, ranks_per_host=2, elastic=True, submission=SUBMISSION
        )
        await daemon.until("train", "placed")
        while not all(host.daemon.grants.seats.holds() for host in cluster.hosts):
            await trio.lowlevel.checkpoint()
        job = cls(daemon, cluster)
        await job.begin(found["token"])
        return job


@asynccontextmanager
async def two_hosts(directory: Path) -> AsyncIterator[Cluster]:
    agents = (directory / "run" / AGENTS_SOCKET,)
    async with open_cluster(directory, 0, switch=False, controller=agents) as cluster:
        await cluster.start_switch(name="leaf", controller=agents, recover_ms=RECOVER_MS)
        for _ in range(2):
            await cluster.start_host()
        yield cluster


@asynccontextmanager
async def elastic(directory: Path) -> AsyncIterator[Elastic]:
    async with running(directory, lease_ms=LEASE_MS) as daemon, two_hosts(directory) as cluster:
        yield await Elastic.submitted(daemon, cluster)


async def test_the_others_go_on_when_a_seat_has_failed_and_their_end_is_the_job_s(runtime_dir: Path) -> None:
    async with elastic(runtime_dir) as job:
        job.kill(2)
        await job.go_on()
        await job.seen("host h1: rank 2: ")
        job.kill(3)
        await job.go_on()
        host_0, host_1 = (host.daemon.grants.seats for host in job.cluster.hosts)
        assert [hold.phase for hold in host_0.holds()] == ["running"]
        while [hold.phase for hold in host_1.holds()] != ["failed"]:
            await trio.lowlevel.checkpoint()
        said = await job.seen("the others go on")
        assert said["hosts"] == ["h0", "h1"], "what it lost is its own until its end"
        assert [comm.job for comm in job.ranks.values()] == ["train~2"] * 2
        await job.close()
        over = await job.daemon.until("train", "ended")
        assert ENDED in over["why"]
        assert over["why"].endswith("the others went on to the end")


async def test_it_has_failed_when_nobody_came_to_its_end(runtime_dir: Path) -> None:
    async with elastic(runtime_dir) as job:
        job.kill(0, 1)
        await job.go_on()
        job.kill(2, 3)
        over = await job.daemon.until("train", "failed")
        assert over["why"].startswith("host h0: rank ")


async def test_all_of_it_ends_when_it_is_cancelled_and_its_hosts_are_free(runtime_dir: Path) -> None:
    async with elastic(runtime_dir) as job:
        job.kill(1)
        await job.go_on()
        daemon = job.daemon
        await daemon.ask(daemon.client.submit, "next", 2, submission=SUBMISSION)
        await daemon.ask(daemon.client.cancel, "train")
        await daemon.until("next", "placed")
        for comm in job.ranks.values():
            with pytest.raises(JobError):
                await comm.all_reduce(np.ones(8, np.int64))


async def test_a_controller_that_is_started_anew_hears_of_who_goes_on(runtime_dir: Path) -> None:
    async with two_hosts(runtime_dir) as cluster:
        async with running(runtime_dir, lease_ms=LEASE_MS) as daemon:
            job = await Elastic.submitted(daemon, cluster)
        job.kill(2, 3)
        await job.go_on()
        async with running(runtime_dir, lease_ms=LEASE_MS) as job.daemon:
            await job.seen("the others go on")
            await job.close()
            await job.daemon.until("train", "ended")
