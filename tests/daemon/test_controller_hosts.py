"""Host daemons with a controller: ranks make its jobs run, end and fail, and its jobs end their ranks."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.daemon.net.controller_link import ControllerLink
from inaproto.daemon.net.names import AGENTS_SOCKET
from inaproto.errors import JobError, JoinRefused, RankLost
from inaproto.wire.messages.controller import AgentWelcome, AgentWishes
from inaproto_controller.service import agents as service_agents
from inaproto_controller.service.agents import Agents
from tests.clusters.loopback import Cluster, open_cluster
from tests.daemon.test_controller_daemon import CLUSTER, SUBMISSION, Daemon, running


async def submitted(daemon: Daemon, cluster: Cluster) -> str:
    """Job "train" of two hosts, placed, and both have heard of it. Returns its token."""
    token: str = (await daemon.ask(daemon.client.submit, "train", 2, submission=SUBMISSION))["token"]
    await daemon.until("train", "placed")
    while not all(host.daemon.grants.seats.holds() for host in cluster.hosts):
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


async def test_a_job_says_which_rank_it_failed_by_not_who_ended_by_that(
    runtime_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the host of the lost rank another one is still there when all of the other host have ended."""
    caplog.set_level(logging.INFO, logger="inaproto.controller")
    async with (
        running(runtime_dir) as daemon,
        open_cluster(runtime_dir, 2, controller=agents(runtime_dir)) as cluster,
    ):
        submit = partial(daemon.client.submit, ranks_per_host=2, submission=SUBMISSION)
        token: str = (await daemon.ask(submit, "train", 2))["token"]
        await daemon.until("train", "placed")
        ranks: dict[int, inaproto.Communicator] = {}

        async def connect(rank: int) -> None:
            ranks[rank] = await cluster.connect("train", rank, size=4, host=rank // 2, key=token)

        async with trio.open_nursery() as nursery:
            for rank in range(4):
                nursery.start_soon(connect, rank)
        await daemon.until("train", "running")
        ranks[3].channel.close()
        for rank in (0, 1):
            with pytest.raises(RankLost):
                await ranks[rank].all_reduce(np.ones(4, np.float32))
            ranks[rank].channel.close()
        why = (await daemon.until("train", "failed"))["why"]
        assert why.startswith("host h0: rank 0: its job had failed: rank 3 (h1, pid "), why
        told = [one.getMessage() for one in caplog.records if "number 1" in one.getMessage()]
        assert told[-3:] == [
            "job train (number 1) is placed on h0, h1",
            "job train (number 1) is running on h0, h1",
            f"job train (number 1) is failed: {why}",
        ]


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
            with pytest.raises(
                JoinRefused, match="key: that which inaproto job submit printed belongs in INAPROTO_KEY"
            ):
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


@asynccontextmanager
async def two_of_three(directory: Path) -> AsyncIterator[tuple[Daemon, Cluster, str]]:
    """Job "train" is placed on h0 and h1; h2 is there, too, and knows the controller."""
    cluster_file = {
        **CLUSTER,
        "hosts": ["h0", "h1", "h2"],
        "links": [{"between": [f"h{host}", "leaf"]} for host in range(3)],
    }
    file = directory / "three.json"
    file.write_text(json.dumps(cluster_file))
    async with (
        running(directory, cluster=file) as daemon,
        open_cluster(directory, 2, controller=agents(directory)) as cluster,
    ):
        token: str = (await daemon.ask(daemon.client.submit, "train", 2, submission=SUBMISSION))["token"]
        await daemon.until("train", "placed")
        await cluster.start_host()
        while not all(not host.daemon.controller.problem for host in cluster.hosts):
            await trio.lowlevel.checkpoint()
        yield daemon, cluster, token


async def test_a_rank_at_the_wrong_host_is_told_where_it_belongs(runtime_dir: Path) -> None:
    """docs/protocol.md 17. At once, whatever key it shows; and who waits for it hears of it."""
    async with two_of_three(runtime_dir) as (daemon, cluster, token):
        async with trio.open_nursery() as nursery:
            ranks: list[inaproto.Communicator] = []

            async def waits() -> None:
                ranks.append(await cluster.connect("train", 0, size=2, host=0, key=token))

            nursery.start_soon(waits)
            ring: dict[str, Any] = {}
            while not ring.get("refused"):
                for key in (token, "wrong"):
                    with pytest.raises(JoinRefused, match="placed it on h1, one of h0, h1, not on h2; start"):
                        await cluster.connect("train", 1, size=2, host=2, key=key)
                ring = next(iter(cluster.hosts[0].daemon.status()["rings"]), {})
            assert "rank 1 (h2, pid" in ring["refused"]
            assert (
                "was refused: the controller has placed it on h1, one of h0, h1, not on h2" in ring["refused"]
            )
            with pytest.raises(JoinRefused, match="placed it on h0, one of h0, h1, not on h1"):
                await cluster.connect("train", 0, size=2, host=1, key=token)
            ranks.append(await cluster.connect("train", 1, size=2, host=1, key=token))
        assert len(ranks) == 2
        await daemon.until("train", "running")
        await cluster.connect("own", 0, size=1, host=2)  # no controller knows of it
        shown = (await daemon.command("show", "train")).output
        assert "hosts:  h0 (rank 0), h1 (rank 1)" in shown


async def test_a_controller_of_before_is_not_asked(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its welcome says nothing of it, and it would end the session: the rank joins, and waits, as it did."""

    def welcome_of_before(*, term: int, report_ms: int, slots: int = 0, trees: bool = False, **_: Any) -> Any:
        return AgentWelcome(term=term, report_ms=report_ms, slots=slots, trees=trees)

    asked: list[object] = []
    monkeypatch.setattr(service_agents, "AgentWelcome", welcome_of_before)
    monkeypatch.setattr(Agents, "_where", lambda self, session, job: asked.append(job))
    async with two_of_three(runtime_dir) as (_, cluster, token), trio.open_nursery() as nursery:
        nursery.start_soon(partial(cluster.connect, "train", 1, size=2, host=2, key=token))
        while not cluster.hosts[2].daemon.status()["rings"]:
            await trio.lowlevel.checkpoint()
        assert not cluster.hosts[2].daemon.controller.problem
        assert asked == []
        nursery.cancel_scope.cancel()


async def test_a_running_job_outlives_a_host_daemon_that_is_replaced(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next daemon's first report says that it has nothing, and it takes its wishes a moment later."""
    async with (
        running(runtime_dir) as daemon,
        open_cluster(runtime_dir, 2, controller=agents(runtime_dir)) as cluster,
    ):
        token = await submitted(daemon, cluster)
        ranks = await cluster.job("train", 2, key=token)
        await daemon.until("train", "running")
        take, late = ControllerLink._take, []

        def take_later(self: ControllerLink, wishes: AgentWishes) -> None:
            late.append((self, wishes))

        monkeypatch.setattr(ControllerLink, "_take", take_later)
        await cluster.hosts[1].stop()
        await cluster.restart_host(1)
        for _ in range(20):  # the controller looks at what it knows by now
            assert (await daemon.ask(daemon.client.job, "train"))["state"] == "running"
        monkeypatch.undo()
        for link, wishes in late:
            take(link, wishes)

        async def add(rank: int) -> None:
            assert (await ranks[rank].all_reduce(np.full(4, rank + 1, np.float32)) == 3).all()

        async with trio.open_nursery() as nursery:
            for rank in range(2):
                nursery.start_soon(add, rank)
        assert [comm.returns for comm in ranks] == [0, 1]
        assert (await daemon.ask(daemon.client.job, "train"))["state"] == "running"
        async with trio.open_nursery() as nursery:
            for comm in ranks:
                nursery.start_soon(comm.aclose)
        await daemon.until("train", "ended")
