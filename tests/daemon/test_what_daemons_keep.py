"""Daemons run for months: what they hold of jobs that are over does not grow, but for bounded records."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import trio

from inaproto.errors import JobError
from tests.clusters.memory import MemoryCluster, run_world
from tests.daemon.test_memory_cluster import reduce_some

HOSTS = 2
MADE_HERE = ("inaproto.daemon.", "inaproto.core.", "inaproto_adapters.softnic.")
RECORDS = {
    "inaproto.core.grants.seats",
    "inaproto.daemon.host.job_totals",
    "inaproto.daemon.host.rank_processes",
    "inaproto.daemon.switch.job_ways",
}
"""What is remembered of jobs that are over, of some hundred at most."""


def held() -> Counter[type]:
    gc.collect()
    its = Counter(type(each) for each in gc.get_objects())
    return Counter(
        {
            kind: number
            for kind, number in its.items()
            if str(kind.__module__).startswith(MADE_HERE) and kind.__module__ not in RECORDS
        }
    )


async def ordinary(cluster: MemoryCluster, job: str) -> None:
    await reduce_some(cluster, job, HOSTS)


async def refused(cluster: MemoryCluster, job: str) -> None:
    """Of its ranks, one has another key, and the other one waits in vain."""
    ends: list[JobError] = []

    async def join(rank: int) -> None:
        try:
            await cluster.connect(job, rank, size=HOSTS, key=f"key {rank}", timeout=1)
        except JobError as error:
            ends.append(error)

    async with trio.open_nursery() as nursery:
        for rank in range(HOSTS):
            nursery.start_soon(join, rank)
    assert len(ends) == HOSTS


async def lost(cluster: MemoryCluster, job: str) -> None:
    """A rank leaves amid its job."""
    comms = await cluster.job(job, HOSTS)

    async def calls() -> None:
        with pytest.raises(JobError):
            await comms[1].all_reduce(np.ones(2000, np.float32))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(calls)
        await trio.sleep(0.1)
        await comms[0].aclose()
    await comms[1].aclose()


def test_the_memory_of_a_journal_goes_with_its_job() -> None:
    """A daemon's collector looks seldom; each journal has two descriptors and a mapping."""

    def journals() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:inaproto-journal")

    async def scenario(cluster: MemoryCluster) -> None:
        for number in range(4):
            await ordinary(cluster, f"job{number}")
            assert journals() - before <= HOSTS, "those of the last job may be there until something is asked"

    gc.collect()
    before = journals()
    gc.disable()
    try:
        run_world("journals", scenario, hosts=HOSTS)
    finally:
        gc.enable()


@pytest.mark.parametrize("life", [ordinary, refused, lost])
def test_jobs_that_are_over_leave_nothing_but_records(life) -> None:  # type: ignore[no-untyped-def]
    async def scenario(cluster: MemoryCluster) -> None:
        for number in range(3):
            await life(cluster, f"first{number}")
        await trio.sleep(60)
        before = held()
        for number in range(4):
            await life(cluster, f"then{number}")
        await trio.sleep(60)
        grown = {str(kind): more for kind, more in (held() - before).items()}
        assert grown == {}

    run_world("what daemons keep", scenario, hosts=HOSTS)
