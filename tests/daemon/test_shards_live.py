"""A switch with shards between machines: each ring in a process of its own, and what a death costs."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import inaproto
from inaproto.wire.udp import shard_port
from tests.clusters.machines import Bench, bench
from tests.daemon.test_allreduce_end_to_end import reduce_all
from tests.daemon.test_cli_daemons import DEADLINE_S
from tests.daemon.test_real_links import ping
from tests.daemon.test_real_links_rings import (
    PATIENT,
    inputs,
    keep_reducing,
    progress,
    start_hosts,
    until,
)
from tests.namespaces import require_namespaces

Comms = Sequence[inaproto.Communicator]


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


@asynccontextmanager
async def joined(found: Bench, job: str) -> AsyncIterator[list[inaproto.Communicator]]:
    """One rank of the job at each host."""
    comms: dict[int, inaproto.Communicator] = {}

    async def join_as(rank: int) -> None:
        comms[rank] = await inaproto.connect(
            job, rank, size=len(found.hosts), key="k", socket=found.directory / f"h{rank}.sock"
        )

    try:
        async with trio.open_nursery() as nursery:
            for rank in range(len(found.hosts)):
                nursery.start_soon(join_as, rank)
        yield [comms[rank] for rank in sorted(comms)]
    finally:
        with trio.move_on_after(DEADLINE_S, shield=True):
            async with trio.open_nursery() as nursery:
                for comm in comms.values():
                    nursery.start_soon(comm.aclose)


def all_there(status: dict[str, Any]) -> bool:
    """Whether every shard has a port on every interface."""
    return all(
        shard["is_up"] and shard["links"] and all(link["is_attached"] for link in shard["links"])
        for shard in status["shards"]
    )


def summed(status: dict[str, Any]) -> list[int]:
    """Packets that each shard has taken for its rings."""
    return [shard["accelerator"]["counters"]["aggregated_in"] for shard in status["shards"]]


def shard_of(status: dict[str, Any], name: str) -> int:
    """Index of the shard that has the ring of a job."""
    (ring,) = [str(job["ring_id"]) for job in status["jobs"] if job["name"] == name]
    (index,) = [i for i, shard in enumerate(status["shards"]) if ring in shard["accelerator"]["rings"]]
    return index


async def started(found: Bench) -> None:
    await trio.to_thread.run_sync(lambda: found.start_switch("--shards", "2", *PATIENT))
    assert all(shard["is_up"] for shard in found.status()["switch"]["shards"]), "before it is ready"
    await until(found, all_there, "two shards")
    await trio.to_thread.run_sync(lambda: start_hosts(found, *PATIENT))


@pytest.mark.parametrize("adapter", ["packet", "veth"])
async def test_each_job_is_summed_by_a_shard_that_sees_no_other(runtime_dir: Path, adapter: str) -> None:
    with bench(runtime_dir, adapter=adapter) as found, trio.fail_after(2 * DEADLINE_S):
        await started(found)
        async with joined(found, "one") as one, joined(found, "two") as two:
            before = await until(found, lambda at: len(at["accelerator"]["rings"]) == 2, "two rings")
            at_one, at_two = (shard_of(before, job) for job in ("one", "two"))
            assert {at_one, at_two} == {0, 1}
            assert [shard["udp_source_port"] for shard in before["shards"]] == [shard_port(1), shard_port(2)]
            for seed in range(3):
                await reduce_all(one, inputs(2, seed))
            alone = await until(found, lambda at: summed(at)[at_one] > 0, "the shard of job one has said so")
            assert summed(alone)[at_two] == 0
            for seed in range(3):
                await reduce_all(two, inputs(2, seed))
            both = await until(found, lambda at: summed(at)[at_two] > 0, "the shard of job two has said so")
            assert [len(shard["accelerator"]["rings"]) for shard in both["shards"]] == [1, 1]
            assert both["accelerator"]["counters"]["aggregated_in"] >= sum(summed(alone))
            paths = {record.path for comm in (*one, *two) for record in comm.statistics().recent}
            assert paths == {"switch"}
            ping(found)  # what is no ring's goes by the switch's own process


async def test_a_shard_that_is_killed_costs_its_job_a_recovery_and_the_other_one_nothing(
    runtime_dir: Path,
) -> None:
    with bench(runtime_dir, adapter="veth") as found, trio.fail_after(2 * DEADLINE_S):
        await started(found)
        async with joined(found, "one") as one, joined(found, "two") as two:
            before = await until(found, lambda at: len(at["accelerator"]["rings"]) == 2, "two rings")
            struck = shard_of(before, "one")
            stop = trio.Event()
            counts: list[int] = []

            async def work(comms: Comms) -> None:
                counts.append(await keep_reducing(comms, stop))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, one)
                nursery.start_soon(work, two)
                await progress(one, 2)
                await progress(two, 2)
                os.kill(before["shards"][struck]["pid"], signal.SIGKILL)
                await until(found, lambda at: at["shards"][struck]["starts"] == 2, "it is started again")
                await until(found, all_there, "two shards again")
                await progress(one, 2)
                await progress(two, 2)
                stop.set()
            assert min(counts) >= 4
            after = found.status()["switch"]
            recoveries = {job["name"]: job["recoveries"] for job in after["jobs"]}
            assert recoveries == {"one": 1, "two": 0}
            reason = next(job["last_recovery"] for job in after["jobs"] if job["name"] == "one")
            assert f"shard {struck + 1} of the switch is gone: killed by signal 9" in reason
        async with joined(found, "three") as three:
            await reduce_all(three, inputs(2, 9))
            assert three[0].statistics().recent[-1].path == "switch"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_shards_end_with_their_switch(runtime_dir: Path, number: signal.Signals) -> None:
    with bench(runtime_dir) as found, trio.fail_after(2 * DEADLINE_S):
        switch = await trio.to_thread.run_sync(lambda: found.start_switch("--shards", "2"))
        shards = [Path(f"/proc/{shard['pid']}") for shard in found.status()["switch"]["shards"]]
        assert all(shard.exists() for shard in shards)
        for shard in shards:  # what a terminal or a service sends to all is for the switch
            os.kill(int(shard.name), signal.SIGTERM)
        switch.process.send_signal(number)
        assert await trio.to_thread.run_sync(switch.process.wait) == (0 if number == signal.SIGTERM else -9)
        while any(shard.exists() for shard in shards):
            await trio.lowlevel.checkpoint()
