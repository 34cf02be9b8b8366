"""Parallel rings when something fails: whatever ring it is, all ranks get an error that names it, in time.

Every test is one seeded run of real daemons in virtual time (:mod:`tests.clusters.memory`). What rings
do when nothing fails: ``tests/paper/test_netreduce_3_4_rings_of_nics.py``.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import trio

import inaproto
from inaproto.errors import (
    DaemonUnreachable,
    JobError,
    JoinRefused,
    OperationTimeout,
    RankLost,
    TensorMismatch,
)
from tests.clusters.jobs import FAULTS, WEATHER, as_new, close_all, daemon, reduce_once
from tests.clusters.memory import DIRECTORY, MemoryCluster, in_memory, run_world
from tests.clusters.parallel import MACHINES, connect_at, connect_machines, connect_rank, host_of
from tests.daemon.test_allreduce_end_to_end import draw, nested_reference
from tests.daemon.test_memory_cluster import open_things
from tests.seeds import seeds

TOLD_S = 2.0
"""In virtual time, from a failure to the error of the last rank: no deadline of a daemon is met."""


async def reduce_often(comm: inaproto.Communicator) -> None:
    for _ in range(100):
        await comm.all_reduce(np.ones(20_000, np.float32))


async def errors_of(
    comms: list[inaproto.Communicator],
    fault: Callable[[], Awaitable[None]],
    *,
    calling: set[int],
    within_s: float = TOLD_S,
) -> dict[int, JobError]:
    """What the ranks ``calling`` get from an all-reduce that ``fault`` strikes, each in time."""
    found: dict[int, JobError] = {}

    async def one(rank: int) -> None:
        with pytest.raises(JobError) as info:
            await reduce_often(comms[rank])
        found[rank] = info.value

    with trio.fail_after(within_s):
        async with trio.open_nursery() as nursery:
            for rank in calling:
                nursery.start_soon(one, rank)
            await trio.sleep(0.02)
            await fault()
    return found


@pytest.mark.parametrize("ring", [0, 1])
@in_memory("killed/{ring}", hosts=4, recover_ms=1000)
async def test_a_daemon_that_is_killed_is_named_to_every_rank_in_time(
    cluster: MemoryCluster, ring: int
) -> None:
    comms = await connect_machines(cluster, MACHINES, 2)
    killed = host_of(1, ring, 2)
    found = await errors_of(comms, cluster.hosts[killed].crash, calling=set(range(6)))
    for rank, error in found.items():
        assert f"ring {ring} of 2 (host daemon at /memory/h{killed}.sock)" in str(error), rank
        assert "the host daemon is gone" in str(error)
        # Of the ranks beside it one says so; another may hear that by its other ring, before it looks.
        assert isinstance(error, (DaemonUnreachable, RankLost) if rank > 2 else RankLost)
        assert error.operations_done == comms[rank].operations_done
    assert any(isinstance(found[rank], DaemonUnreachable) for rank in (3, 4, 5))
    for comm in comms:  # and stays so
        with pytest.raises(JobError, match=f"ring {ring} of 2"):
            comm.all_reduce(np.ones(9, np.float32))
    await trio.sleep(20)
    as_new_but(cluster, killed)


def as_new_but(cluster: MemoryCluster, killed: int) -> None:
    life = cluster.hosts.pop(killed)
    as_new(cluster)
    cluster.hosts[killed] = life


@pytest.mark.parametrize("place", [0, 4])
@in_memory("dies/{place}", hosts=4)
async def test_a_process_that_dies_is_named_to_all(cluster: MemoryCluster, place: int) -> None:
    comms = await connect_machines(cluster, MACHINES, 2)

    async def dies() -> None:
        comms[place].channel.close()

    found = await errors_of(comms, dies, calling=set(range(6)) - {place})
    for error in found.values():
        assert isinstance(error, RankLost)
        assert re.search(
            rf"rank {place} \(h\d, pid \d+\) of job 'train#[01]/2' is lost: process \d+ ended", str(error)
        )
    await trio.sleep(1)
    as_new(cluster)
    again = await connect_machines(cluster, MACHINES, 2)
    await reduce_once(again)
    await close_all(again)


@in_memory("idle", hosts=4)
async def test_ranks_that_have_called_nothing_hear_of_it_when_they_call(cluster: MemoryCluster) -> None:
    comms = await connect_machines(cluster, MACHINES, 2)
    await cluster.hosts[3].crash()
    with pytest.raises(DaemonUnreachable, match=r"ring 1 of 2 .*h3\.sock.*is gone"):
        await comms[3].all_reduce(np.ones(5000, np.float32))
    await trio.sleep(0.1)
    for rank in (0, 4):
        with pytest.raises(JobError, match=r"ring 1 of 2 .*h3\.sock.*is gone"):
            await comms[rank].all_reduce(np.ones(5000, np.float32))


@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.parametrize("what", ["kill", "stop", "rank"])
@in_memory("whenever/{what}/{seed}", hosts=4, weather=WEATHER)
async def test_whenever_a_daemon_or_rank_ends_nobody_waits_and_no_two_results_differ(
    cluster: MemoryCluster, what: str, seed: int
) -> None:
    draws = random.Random(f"{what}/{seed}")
    timeout_s = 3.0

    results: dict[int, set[bytes]] = {}
    ended: list[int] = []
    dying = draws.randrange(6)
    is_dead = trio.Event()

    async def one(rank: int) -> None:
        with contextlib.suppress(JobError):
            comm = await connect_rank(cluster, rank, MACHINES, 2, timeout=timeout_s)
            if rank == dying and what == "rank":
                with trio.CancelScope() as scope:
                    stop.append(scope)
                    await call_all(comm)
                comm.channel.close()
            else:
                await call_all(comm)
        ended.append(rank)

    async def call_all(comm: inaproto.Communicator) -> None:
        for index in range(30):
            array = draw(np.dtype(np.float32), (900,), (seed, index, comm.rank))
            result = await comm.all_reduce(array)
            results.setdefault(index, set()).add(result.tobytes())
        await is_dead.wait()

    stop: list[trio.CancelScope] = []
    host = cluster.hosts[draws.randrange(4)]
    with trio.fail_after(timeout_s * 2 + 4):
        async with trio.open_nursery() as nursery:
            for rank in range(6):
                nursery.start_soon(one, rank)
            await trio.sleep(draws.uniform(0, 0.05))
            if what == "kill":
                await host.crash()
            elif what == "stop":
                await host.stop()
            else:
                for scope in stop:
                    scope.cancel()
            is_dead.set()
    assert sorted(ended) == list(range(6))
    assert all(len(each) == 1 for each in results.values())


# --- joining


@in_memory("fewer", hosts=4)
async def test_a_rank_that_gives_fewer_sockets_is_named_on_its_host_and_all_ranks_get_an_error(
    cluster: MemoryCluster,
) -> None:
    found: dict[int, JobError] = {}

    async def one(rank: int, rings: int) -> None:
        sockets = [DIRECTORY / f"h{host_of(rank // 2, ring, 2)}.sock" for ring in range(rings)]
        with pytest.raises(OperationTimeout) as info:
            await connect_at(cluster, rank, 4, sockets, timeout=2.0)
        found[rank] = info.value

    with trio.fail_after(6):
        async with trio.open_nursery() as nursery:
            for rank, rings in enumerate((2, 1, 2, 2)):
                nursery.start_soon(one, rank, rings)
    assert "Rank 1 of this host has another number of sockets (1, here 2)" in str(found[0])
    assert "Rank 0 of this host has another number of sockets (2, here 1)" in str(found[1])
    for rank in (2, 3):
        assert re.search(
            r"ring 0 of 2 .*rank 1 of 4 did not within 2 s.* another number of sockets than 2 join other",
            str(found[rank]),
        )
    await trio.sleep(1)
    as_new(cluster)


@pytest.mark.parametrize("orders", [((0, 1), (1, 0)), ((0, 1), (0, 2)), ((0, 1), (2, 1))])
@in_memory("order/{orders}", hosts=6)
async def test_processes_that_list_sockets_in_another_order_are_refused(
    cluster: MemoryCluster, orders: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    """Their slices would be added up in another order than a whole tensor."""

    async def one(rank: int, order: tuple[int, int]) -> None:
        sockets = [DIRECTORY / f"h{host_of(rank // 2, ring, 3)}.sock" for ring in order]
        with pytest.raises(JobError, match=r"all processes of a host must list the same sockets in the same"):
            await connect_and_call(rank, sockets)

    async def connect_and_call(rank: int, sockets: list[Path]) -> None:
        comm = await connect_at(cluster, rank, 4, sockets)
        # Who asks later may find the rings of the first gone: it is told, as the other host is, later.
        assert rank > 0
        await comm.all_reduce(np.ones(5000, np.float32))

    with trio.fail_after(6):
        async with trio.open_nursery() as nursery:
            for rank, order in enumerate((*orders, (0, 1), (0, 1))):
                nursery.start_soon(one, rank, order)


@in_memory("not there", hosts=2)
async def test_a_daemon_that_is_not_there_is_named_within_the_timeout(cluster: MemoryCluster) -> None:
    await cluster.hosts[1].stop()
    with trio.fail_after(3.0), pytest.raises(DaemonUnreachable, match=r"h1\.sock: .*waited 2 s"):
        await connect_rank(cluster, 0, (0, 0), 2, timeout=2.0)
    await trio.sleep(0.1)
    await cluster.start_host(1)
    await close_all(await connect_machines(cluster, (0, 0), 2))
    as_new(cluster)


@in_memory("key", hosts=4)
async def test_a_key_that_one_ring_refuses_ends_the_join_in_all(cluster: MemoryCluster) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connect_rank, cluster, 0, (0, 1), 2)
        await trio.sleep(0.1)
        with pytest.raises(JoinRefused, match=r"ring [01] of 2 .*key"):
            await connect_at(cluster, 1, 2, [DIRECTORY / f"h{host}.sock" for host in (2, 3)], key="wrong")
        await connect_rank(cluster, 1, (0, 1), 2)


# --- calls that differ


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        ((6, 64), (64, 6)),
        ((128,), (112,)),  # the first slices are equal, in bytes
        ((16,), (32,)),
        ((1,), (17,)),
    ],
)
@in_memory("differ/{mine}/{other}", hosts=4)
async def test_calls_that_differ_are_told_with_the_shape_of_the_whole(
    cluster: MemoryCluster, mine: tuple[int, ...], other: tuple[int, ...]
) -> None:
    comms = await connect_machines(cluster, (0, 1), 2)
    works = [
        comm.all_reduce(np.ones(shape, np.float32)) for comm, shape in zip(comms, (mine, other), strict=True)
    ]
    for work in works:
        with pytest.raises(TensorMismatch) as info:
            await work
        for rank, shape in enumerate((mine, other)):
            assert re.search(
                rf"rank {rank} \(h\d, pid \d+\): sum of float32 {re.escape(str(shape))};", str(info.value)
            )


@in_memory("in vain", hosts=4)
async def test_a_wait_in_vain_says_in_which_ring_for_whom(cluster: MemoryCluster) -> None:
    comms = await connect_machines(cluster, (0, 1), 2)
    work = comms[0].all_reduce(np.ones(5000, np.float32))
    with pytest.raises(OperationTimeout, match=r"ring 0 of 2 .*h0\.sock.*all-reduce 0 .*waits for rank 1"):
        await work.wait(timeout=2.0)
    assert not work.done
    late = comms[1].all_reduce(np.ones(5000, np.float32))
    for waited in (work, late):
        assert (await waited == 2).all()
    assert [comm.operations_done for comm in comms] == [1, 1]


# --- one ring recovers, the other goes on


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("name", FAULTS)
@in_memory("goes on/{name}/{seed}", hosts=4, weather=WEATHER)
async def test_a_job_goes_on_whatever_ends_one_of_its_rings(
    cluster: MemoryCluster, name: str, seed: int
) -> None:
    draws = random.Random(f"{name}/{seed}")

    comms = await connect_machines(cluster, MACHINES, 2)

    async def one(comm: inaproto.Communicator) -> None:
        for index in range(12):
            inputs = [draw(np.dtype(np.float16), (2000 + index,), (index, rank)) for rank in range(6)]
            result = await comm.all_reduce(inputs[comm.rank])
            assert result.tobytes() == nested_reference(inputs, MACHINES, "sum").tobytes()

    async with trio.open_nursery() as nursery:
        for comm in comms:
            nursery.start_soon(one, comm)
        for _ in range(2):
            await trio.sleep(draws.uniform(0, 0.03))
            await FAULTS[name](cluster, draws)
    await close_all(comms)


# --- memory


@in_memory("buffers", hosts=4)
async def test_registered_buffers_are_read_and_written_in_place_by_all_daemons(
    cluster: MemoryCluster,
) -> None:
    comms = await connect_machines(cluster, MACHINES, 2)
    buffers = [comm.buffer((40, 50), np.int32) for comm in comms]
    for turn in range(3):
        for rank, buffer in enumerate(buffers):
            buffer[:] = np.arange(2000).reshape(40, 50) * (rank + turn)
        for work, buffer in zip(
            [comm.all_reduce(b, in_place=True) for comm, b in zip(comms, buffers, strict=True)],
            buffers,
            strict=True,
        ):
            assert await work is buffer
            assert (buffer == np.arange(2000).reshape(40, 50) * (15 + 6 * turn)).all()
    for host in range(4):
        (ring,) = daemon(cluster, host).status()["rings"]
        assert [rank["segments"] for rank in ring["ranks"]] == [1, 1, 1]
        assert ring["bytes_reduced"] == 3 * (63, 62)[host % 2] * 64  # cache lines
    assert comms[0].statistics().shared_bytes == 1 << 20
    await close_all(comms)


def test_nothing_is_left_of_a_job_whose_daemon_was_killed() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await connect_machines(cluster, MACHINES, 2)
        await errors_of(comms, cluster.hosts[2].crash, calling={0, 1, 2, 5}, within_s=10.0)

    run_world("warm up", scenario, hosts=4)
    before = open_things()
    run_world("left", scenario, hosts=4)
    assert open_things() == before


@in_memory("status", hosts=4)
async def test_status_says_which_ring_a_daemon_carries(cluster: MemoryCluster) -> None:
    await connect_machines(cluster, MACHINES, 2)
    for machine, ring in ((0, 0), (0, 1), (1, 0), (1, 1)):
        (status,) = daemon(cluster, host_of(machine, ring, 2)).status()["rings"]
        assert status["job"] == f"train#{ring}/2"
        assert [rank["rank"] for rank in status["ranks"]] == [
            3 * machine,
            3 * machine + 1,
            3 * machine + 2,
        ]
        assert status["peers"] == [f"h{ring}", f"h{2 + ring}"]
