"""Several ranks of a job on one host, through real daemons, sockets and shared memory (NetReduce 3.4)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.errors import RankLost
from tests.clusters.loopback import Cluster, open_cluster, together
from tests.daemon.test_allreduce_end_to_end import (
    BAD_WIRE,
    SMALL,
    draw,
    nested_reference,
    numpy_dtype,
)

PLACES = {"pairs": (0, 0, 1, 1), "in turns": (0, 1, 0, 1, 0, 1), "one host": (0, 0, 0)}


async def connect_all(cluster: Cluster, places: Sequence[int]) -> list[inaproto.Communicator]:
    found: dict[int, inaproto.Communicator] = {}

    async def one(rank: int) -> None:
        found[rank] = await cluster.connect("j", rank, size=len(places), host=places[rank])

    await together([lambda rank=rank: one(rank) for rank in range(len(places))])  # type: ignore[misc]
    return [found[rank] for rank in range(len(places))]


async def reduce_nested(
    comms: Sequence[inaproto.Communicator], arrays: Sequence[Any], places: Sequence[int], op: str
) -> None:
    expected = nested_reference(arrays, places, op).tobytes()
    for work in [comm.all_reduce(array, op) for comm, array in zip(comms, arrays, strict=True)]:
        assert (await work).tobytes() == expected


@pytest.mark.parametrize("placing", PLACES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32"])
async def test_every_dtype_and_op_over_a_bad_wire(runtime_dir: Path, dtype: str, placing: str) -> None:
    places = PLACES[placing]
    async with open_cluster(runtime_dir, len(set(places)), weather=BAD_WIRE, **SMALL) as cluster:
        comms = await connect_all(cluster, places)
        for op in ("sum", "max", "min"):
            for count in (0, 1, 7, 1000):
                arrays = [
                    draw(numpy_dtype(dtype), (count,), (dtype, op, count, rank))
                    for rank in range(len(places))
                ]
                await reduce_nested(comms, arrays, places, op)
        await together([comm.aclose for comm in comms])


async def test_hosts_sum_themselves_without_an_accelerator(runtime_dir: Path) -> None:
    places = PLACES["pairs"]
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await cluster.start_switch(memory_kib=0)
        for _ in range(2):
            await cluster.start_host()
        comms = await connect_all(cluster, places)
        arrays = [draw(np.dtype(np.float32), (5000,), rank) for rank in range(4)]
        await reduce_nested(comms, arrays, places, "sum")
        assert comms[3].statistics().recent[-1].path == "chain"


async def test_registered_buffers_take_results_in_place(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, weather=BAD_WIRE, **SMALL) as cluster:
        comms = await connect_all(cluster, PLACES["pairs"])
        buffers = [comm.buffer((2500,), np.int64) for comm in comms]
        for rank, buffer in enumerate(buffers):
            buffer[:] = np.arange(2500) * (rank + 1)
        expected = np.arange(2500) * 10
        for _ in range(5):
            for work in [comm.all_reduce(buffer) for comm, buffer in zip(comms, buffers, strict=True)]:
                await work
            for buffer in buffers:
                assert (buffer == expected).all()
            expected = 4 * expected


async def test_a_killed_process_is_named_to_ranks_beside_it_and_elsewhere(runtime_dir: Path) -> None:
    """A real process with the blocking client, and a real SIGKILL."""
    script = """
        import os, sys, numpy, inaproto
        comm = inaproto.connect_blocking("j", 1, size=4, socket=sys.argv[1])
        comm.all_reduce(numpy.ones(5000, numpy.float32)).wait()
        os.kill(os.getpid(), 9)
    """
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        command = [sys.executable, "-c", textwrap.dedent(script), str(cluster.hosts[0].socket)]
        process = await trio.to_thread.run_sync(subprocess.Popen, command)
        comms: dict[int, inaproto.Communicator] = {}

        async def one(rank: int) -> None:
            comms[rank] = await cluster.connect("j", rank, size=4, host=PLACES["pairs"][rank])

        await together([lambda rank=rank: one(rank) for rank in (0, 2, 3)])  # type: ignore[misc]
        for work in [comm.all_reduce(np.ones(5000, np.float32)) for comm in comms.values()]:
            assert (await work == 4).all()
        for comm in comms.values():
            with pytest.raises(RankLost, match=rf"rank 1 \(h0, pid {process.pid}\).*ended without leaving"):
                await comm.all_reduce(np.ones(5000, np.float32))
        assert await trio.to_thread.run_sync(process.wait) == -9
        while any(host.daemon.status()["rings"] for host in cluster.hosts):
            await trio.lowlevel.checkpoint()
