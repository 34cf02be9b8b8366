"""Host daemons with a controller: ranks make its jobs run, end and fail, and its jobs end their ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio

from inaproto.daemon.names import AGENTS_SOCKET
from inaproto.errors import JobError
from tests.daemon.in_process_cluster import Cluster, open_cluster
from tests.daemon.test_controller_daemon import TOKEN, Daemon, running


async def submitted(daemon: Daemon, cluster: Cluster) -> None:
    """Job "train" of two hosts, placed, and both have heard of it."""
    await daemon.ask(daemon.client.submit, "train", 2, token=TOKEN)
    await daemon.until("train", "placed")
    while not all(host.daemon.seats.holds() for host in cluster.hosts):
        await trio.lowlevel.checkpoint()


def agents(directory: Path) -> tuple[Path, ...]:
    return (directory / "run" / AGENTS_SOCKET,)


async def test_a_job_runs_with_its_ranks_and_ends_with_them(runtime_dir: Path) -> None:
    async with (
        running(runtime_dir) as daemon,
        open_cluster(runtime_dir, 0, switch=False, controller=agents(runtime_dir)) as cluster,
    ):
        await cluster.start_switch(name="leaf", controller=agents(runtime_dir))
        for _ in range(2):
            await cluster.start_host()
        await submitted(daemon, cluster)
        ranks = await cluster.job("train", 2)
        running_job = await daemon.until("train", "running")
        while running_job["tree"] is None:
            running_job = await daemon.ask(daemon.client.job, "train")
        assert running_job["tree"]["root"] == "leaf"
        assert cluster.hosts[0].daemon.status()["controller"]["grants"] == 1
        async with trio.open_nursery() as nursery:
            for rank in ranks:
                nursery.start_soon(rank.aclose)
        await daemon.until("train", "ended")


async def test_a_job_fails_when_its_processes_die(runtime_dir: Path) -> None:
    async with (
        running(runtime_dir) as daemon,
        open_cluster(runtime_dir, 2, controller=agents(runtime_dir)) as cluster,
    ):
        await submitted(daemon, cluster)
        await cluster.job("train", 2)
        await daemon.until("train", "running")
        cluster.kill_communicators()
        assert "ended without leaving" in (await daemon.until("train", "failed"))["why"]


async def test_a_cancelled_job_is_ended_and_its_hosts_are_free(runtime_dir: Path) -> None:
    async with (
        running(runtime_dir) as daemon,
        open_cluster(runtime_dir, 2, controller=agents(runtime_dir)) as cluster,
    ):
        await submitted(daemon, cluster)
        first, _ = await cluster.job("train", 2)
        await daemon.until("train", "running")
        await daemon.ask(daemon.client.submit, "next", 2, token=TOKEN)
        await daemon.ask(daemon.client.cancel, "train")
        await daemon.until("next", "placed")
        with pytest.raises(JobError):
            await first.all_reduce(np.ones(4, np.float32))


async def test_a_running_job_does_not_need_its_controller(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, controller=agents(runtime_dir)) as cluster:
        async with running(runtime_dir) as daemon:
            await submitted(daemon, cluster)
            ranks = await cluster.job("train", 2)
            await daemon.until("train", "running")
        sums: list[float] = []

        async def add(rank: int) -> None:
            total = await ranks[rank].all_reduce(np.full(4, rank + 1, np.float32))
            sums.append(float(total[0]))

        async with trio.open_nursery() as nursery:
            for rank in range(2):
                nursery.start_soon(add, rank)
        assert sums == [3.0, 3.0]
        async with running(runtime_dir) as daemon:
            await daemon.until("train", "running")
            while cluster.hosts[0].daemon.controller.problem:
                await trio.lowlevel.checkpoint()
            assert (await daemon.ask(daemon.client.job, "train"))["state"] == "running"
