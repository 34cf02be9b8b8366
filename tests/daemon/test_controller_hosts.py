"""Host daemons with a controller: ranks make its jobs run, end and fail, and its jobs end their ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio

from inaproto.daemon.net.names import AGENTS_SOCKET
from inaproto.errors import JobError, JoinRefused
from tests.clusters.loopback import Cluster, open_cluster
from tests.daemon.test_controller_daemon import SUBMISSION, Daemon, running


async def submitted(daemon: Daemon, cluster: Cluster) -> str:
    """Job "train" of two hosts, placed, and both have heard of it. Returns its token."""
    token: str = (await daemon.ask(daemon.client.submit, "train", 2, submission=SUBMISSION))["token"]
    await daemon.until("train", "placed")
    while not all(host.daemon.seats.holds() for host in cluster.hosts):
        await trio.lowlevel.checkpoint()
    return token


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
        token = await submitted(daemon, cluster)
        ranks = await cluster.job("train", 2, key=token)
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
        token = await submitted(daemon, cluster)
        await cluster.job("train", 2, key=token)
        await daemon.until("train", "running")
        cluster.kill_communicators()
        assert "ended without leaving" in (await daemon.until("train", "failed"))["why"]


async def test_a_cancelled_job_is_ended_and_its_hosts_are_free(runtime_dir: Path) -> None:
    async with (
        running(runtime_dir) as daemon,
        open_cluster(runtime_dir, 2, controller=agents(runtime_dir)) as cluster,
    ):
        token = await submitted(daemon, cluster)
        first, _ = await cluster.job("train", 2, key=token)
        await daemon.until("train", "running")
        await daemon.ask(daemon.client.submit, "next", 2, submission=SUBMISSION)
        await daemon.ask(daemon.client.cancel, "train")
        await daemon.until("next", "placed")
        with pytest.raises(JobError):
            await first.all_reduce(np.ones(4, np.float32))


async def test_a_running_job_does_not_need_its_controller(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, controller=agents(runtime_dir)) as cluster:
        async with running(runtime_dir) as daemon:
            token = await submitted(daemon, cluster)
            ranks = await cluster.job("train", 2, key=token)
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


def secret_file(directory: Path) -> Path:
    file = directory / "job.secret"
    file.write_bytes(bytes(range(32)))
    file.chmod(0o600)
    return file


async def test_a_process_without_the_job_s_token_takes_no_seat_of_it(runtime_dir: Path) -> None:
    """The hosts have been told the token's hash; the controller is not asked, and need not be there."""
    async with open_cluster(runtime_dir, 2, controller=agents(runtime_dir)) as cluster:
        async with running(runtime_dir) as daemon:
            token = await submitted(daemon, cluster)
        for key in ("", SUBMISSION, token + "A"):
            with pytest.raises(JoinRefused, match="not what it shows as its key"):
                await cluster.connect("train", 0, size=2, key=key)
        for rank, host in ((1, 0), (0, 1)):
            with pytest.raises(JoinRefused, match="has given this host ranks"):
                await cluster.connect("train", rank, size=2, host=host, key=token)
        await cluster.job("train", 2, key=token)
        await cluster.job("other", 2)


async def test_the_token_of_the_controller_is_good_at_the_root(runtime_dir: Path) -> None:
    """By the deployment's secret; whoever invents a job, or shows another's token, joins nothing."""
    secret = secret_file(runtime_dir)
    async with open_cluster(runtime_dir, 0, switch=False, controller=agents(runtime_dir)) as cluster:
        await cluster.start_switch(job_secret=secret)
        for _ in range(2):
            await cluster.start_host()
        async with running(runtime_dir, job_secret=secret) as daemon:
            token = await submitted(daemon, cluster)
            await cluster.job("train", 2, key=token)
            await daemon.until("train", "running")
        for key, words in (("", "wants a job's token"), (token, "for another job")):
            with pytest.raises(JoinRefused, match=words):
                await cluster.connect("other", 0, size=2, key=key)
