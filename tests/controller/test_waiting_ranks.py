"""Ranks that wait for the others of their job when it is over: nobody comes any more."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import inaproto
from inaproto.errors import JobError
from tests.controller.test_elastic_jobs import LEASE_MS, two_hosts
from tests.daemon.test_controller_daemon import SUBMISSION, running


async def test_a_rank_that_waits_to_begin_hears_that_its_job_was_cancelled(runtime_dir: Path) -> None:
    async with running(runtime_dir, lease_ms=LEASE_MS) as daemon, two_hosts(runtime_dir) as cluster:
        submitted = await daemon.ask(daemon.client.submit, "train", 2, submission=SUBMISSION)
        await daemon.until("train", "placed")
        host = cluster.hosts[0].daemon
        while not host.grants.seats.holds():
            await trio.lowlevel.checkpoint()
        told: list[str] = []

        async def wait() -> None:
            with pytest.raises(JobError) as caught:
                await cluster.connect("train", 0, size=2, host=0, key=submitted["token"])
            told.append(str(caught.value))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            while not host.status()["rings"]:
                await trio.lowlevel.checkpoint()
            await daemon.ask(daemon.client.cancel, "train")
        assert "its job was ended by the controller" in told[0]
        # The same name again is another job, whose ranks wait.
        again = await daemon.ask(daemon.client.submit, "train", 2, submission="u" * 40)
        await daemon.until("train", "placed")
        comms: list[inaproto.Communicator] = []

        async def join(rank: int) -> None:
            comms.append(await cluster.connect("train", rank, size=2, host=rank, key=again["token"]))

        async with trio.open_nursery() as nursery:
            for rank in range(2):
                nursery.start_soon(join, rank)
        await daemon.until("train", "running")
        async with trio.open_nursery() as nursery:
            for comm in comms:
                nursery.start_soon(comm.aclose)
