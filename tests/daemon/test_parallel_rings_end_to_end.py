"""Parallel rings through daemon processes: two machines with two NICs and three ranks each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count as counting
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.errors import DaemonUnreachable, JobError, RankLost
from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster
from tests.clusters.loopback import DEADLINE_S, together
from tests.clusters.parallel import MACHINES, host_of
from tests.daemon.test_allreduce_end_to_end import draw, nested_reference, numpy_dtype

PATIENT = ("--recover-ms", "3600000")
"""Who waits for a host that is gone waits longer than the test may take: all hear of it without that."""
SUCCESSOR = ("--recover-ms", "3000")
"""A rank waits so long for another daemon in the place of its own."""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    small = ("--mtu", "256", "--message-packets", "6")
    config = ClusterConfig(
        hosts=4,
        weather="drop=0.01,reorder=0.01",
        switch_options=PATIENT,
        host_options=(*small, *SUCCESSOR),
    )
    with LocalCluster(config) as running:
        yield running


def sockets_of(cluster: LocalCluster, rank: int) -> list[Path]:
    return [cluster.host_socket(host_of(MACHINES[rank], ring, 2)) for ring in range(2)]


def test_scripts_get_the_same_sums_by_two_rings(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocking client, in a thread for each rank; the first machine by the environment."""
    calls = [(dtype, count) for dtype in ("float32", "bfloat16", "float16", "int64") for count in (5, 9000)]
    first = os.pathsep.join(map(str, sockets_of(cluster, 0)))
    monkeypatch.setenv("INAPROTO_HOST_SOCKET", first)

    def script(rank: int) -> list[bytes]:
        socket = None if MACHINES[rank] == 0 else sockets_of(cluster, rank)
        with inaproto.connect_blocking("j", rank, size=6, socket=socket) as comm:
            buffer = comm.buffer((9000,), np.int64)
            found = []
            for dtype, count in calls:
                array = draw(numpy_dtype(dtype), (count,), (dtype, count, rank))
                if dtype == "int64":
                    buffer[:count] = array
                    array = buffer[:count]
                work = comm.all_reduce(array, in_place=dtype == "int64")
                found.append(work.wait(DEADLINE_S).tobytes())
            return found

    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(script, range(6)))
    for index, (dtype, count) in enumerate(calls):
        inputs = [draw(numpy_dtype(dtype), (count,), (dtype, count, rank)) for rank in range(6)]
        expected = nested_reference(inputs, MACHINES, "sum").tobytes()
        assert [result[index] for result in results] == [expected] * 6
    for host in range(4):
        assert cluster.host_status(host)["nic"]["bytes_sent"] > 0


@pytest.mark.parametrize("ring", [0, 1])
def test_a_killed_daemon_is_named_to_every_rank(cluster: LocalCluster, ring: int) -> None:
    killed = host_of(1, ring, 2)
    errors: dict[int, JobError] = {}
    striking = trio.Event()

    async def one(rank: int) -> None:
        comm = await inaproto.connect("j", rank, size=6, socket=sockets_of(cluster, rank))
        try:
            for step in counting():
                assert (await comm.all_reduce(np.ones(3000, np.float32)) == 6).all()
                if step == 3:
                    striking.set()
        except JobError as error:
            errors[rank] = error

    async def kill() -> None:
        await striking.wait()
        cluster.hosts[killed].process.kill()

    async def main() -> None:
        with trio.fail_after(DEADLINE_S):
            calls: list[Callable[[], Any]] = [lambda rank=rank: one(rank) for rank in range(6)]  # type: ignore[misc]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(together, calls)
                await kill()

    trio.run(main)
    assert sorted(errors) == list(range(6))
    for rank, error in errors.items():
        assert isinstance(error, DaemonUnreachable | RankLost)  # or of a rank that was told so first
        where = f"ring {ring} of 2 (host daemon at {cluster.host_socket(killed)})"
        assert where in str(error), (rank, error)
        assert "the host daemon is gone" in str(error)
    assert len({error.operations_done for error in errors.values()}) <= 2
