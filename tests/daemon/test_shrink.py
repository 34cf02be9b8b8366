"""Elastic jobs go on without ranks that are lost: real daemons in virtual time."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.client.channel import Channel
from inaproto.errors import JobError, JoinRefused, LocalMisuse, OperationTimeout, RankLost
from tests.clusters.jobs import PAIRS, as_new
from tests.clusters.memory import MemoryCluster, in_memory, run_world

RECOVER_S = 5.0
"""Of the switch, by default."""


async def all_of(work: Mapping[int, Callable[[], Awaitable[Any]]]) -> dict[int, Any]:
    """Results by rank, or the job's error."""
    found: dict[int, Any] = {}

    async def one(rank: int) -> None:
        try:
            found[rank] = await work[rank]()
        except JobError as error:
            found[rank] = error

    async with trio.open_nursery() as nursery:
        for rank in work:
            nursery.start_soon(one, rank)
    return dict(sorted(found.items()))


async def connect_all(
    cluster: MemoryCluster, places: Sequence[int], job: str = "train", **options: Any
) -> dict[int, inaproto.Communicator]:
    ask = {"size": len(places), "elastic": True} | options
    found = await all_of(
        {rank: partial(cluster.connect, job, rank, host=host, **ask) for rank, host in enumerate(places)}
    )
    assert all(isinstance(comm, inaproto.Communicator) for comm in found.values()), found
    return found


async def reduce(comms: Mapping[int, inaproto.Communicator], length: int = 1000) -> dict[int, Any]:
    """Each rank gives its rank plus 1."""
    work = {rank: comm.all_reduce(np.full(length, comm.rank + 1, np.int64)) for rank, comm in comms.items()}
    return await all_of({rank: one.wait for rank, one in work.items()})


async def reduce_exactly(comms: Mapping[int, inaproto.Communicator]) -> None:
    expected = sum(range(1, len(comms) + 1))
    for rank, result in (await reduce(comms)).items():
        assert isinstance(result, np.ndarray), (rank, result)
        assert (result == expected).all()


def kill(comms: dict[int, inaproto.Communicator], *ranks: int) -> None:
    """As SIGKILL does: the connection closes without a word."""
    for rank in ranks:
        comms.pop(rank).channel.close()


async def lose(comms: dict[int, inaproto.Communicator], *ranks: int) -> dict[int, Any]:
    """Kill these ranks while the others wait for them in an all-reduce; what those are told."""
    waiting = {rank: comm for rank, comm in comms.items() if rank not in ranks}
    work = {rank: comm.all_reduce(np.ones(1000, np.int64)) for rank, comm in waiting.items()}
    await trio.sleep(0.1)
    kill(comms, *ranks)
    return await all_of({rank: work[rank].wait for rank in comms})


async def shrink(comms: Mapping[int, inaproto.Communicator], **options: Any) -> dict[int, Any]:
    return await all_of({rank: partial(comm.shrink, **options) for rank, comm in comms.items()})


async def close(comms: Mapping[int, inaproto.Communicator]) -> None:
    await all_of({rank: comm.aclose for rank, comm in comms.items()})


def the_channel(comm: inaproto.Communicator) -> Channel:
    assert isinstance(comm.channel, Channel)
    return comm.channel


def ask_to_regroup(comm: inaproto.Communicator) -> None:
    """As shrink does, without waiting for the answer."""
    channel = the_channel(comm)
    channel.send(channel.protocol.regroup(job="train", rank=2))


def run(name: str, scenario: Callable[[MemoryCluster], Awaitable[None]], **options: Any) -> None:
    run_world(f"shrink/{name}", scenario, **({"hosts": 2} | options))


@pytest.mark.parametrize(
    ("places", "dead"),
    [
        (PAIRS, (1,)),
        (PAIRS, (0,)),
        (PAIRS, (0, 3)),
        (PAIRS, (2, 3)),
        ((0, 1), (1,)),
        ((0, 0, 0), (1,)),
        ((0, 1, 0, 1, 0, 1), (0, 1, 2)),
    ],
    ids=str,
)
@in_memory("shrink/{places}/{dead}", hosts=2)
async def test_the_others_are_told_who_is_lost_and_go_on_with_exact_sums(
    cluster: MemoryCluster, places: tuple[int, ...], dead: tuple[int, ...]
) -> None:
    comms = await connect_all(cluster, places)
    for _ in range(3):
        await reduce_exactly(comms)
    began = trio.current_time()
    errors = await lose(comms, *dead)
    for error in errors.values():
        assert isinstance(error, RankLost), error
        assert any(f"rank {rank} (h" in str(error) for rank in dead)
        assert error.operations_done == 3
    left = await shrink(comms)
    assert trio.current_time() - began < 1, "nobody had to be waited for"
    survivors = tuple(rank for rank in range(len(places)) if rank not in dead)
    assert tuple(left) == survivors
    for rank, (old, comm) in enumerate(left.items()):
        assert (comm.rank, comm.size, comm.former_ranks) == (rank, len(survivors), survivors)
        assert (comm.job, comm.agreed_operations, comm.former_ranks[rank]) == ("train~1", 3, old)
    for _ in range(3):
        await reduce_exactly(left)
    await close(left)
    await trio.sleep(0.1)
    as_new(cluster)


@pytest.mark.parametrize("dead", [0, 1, 3])
@in_memory("shrink/overlay/{dead}", hosts=4)
async def test_an_overlay_goes_on_as_a_smaller_one(cluster: MemoryCluster, dead: int) -> None:
    """The root, which is rank 0, a rank below it, and one of two on a host."""
    comms = await connect_all(cluster, (0, 1, 2, 3, 3), path="overlay")
    for _ in range(3):
        await reduce_exactly(comms)
    for error in (await lose(comms, dead)).values():
        assert isinstance(error, RankLost), error
    left = await shrink(comms)
    for _ in range(3):
        await reduce_exactly(left)
    assert {one.path for comm in left.values() for one in comm.statistics().recent} == {"overlay"}
    await close(left)
    await trio.sleep(0.1)
    as_new(cluster)


@in_memory("shrink/silent", hosts=2)
async def test_a_rank_that_does_not_say_that_it_goes_on_counts_as_lost_in_the_end(
    cluster: MemoryCluster,
) -> None:
    comms = await connect_all(cluster, PAIRS)
    await lose(comms, 0)
    late = comms.pop(3)
    began = trio.current_time()
    left = await shrink(comms)
    assert RECOVER_S <= trio.current_time() - began < RECOVER_S + 1
    assert left[1].former_ranks == (1, 2)
    await reduce_exactly(left)
    with pytest.raises(JoinRefused, match=r"rank 3 of job 'train' cannot .* did not say within 5 s"):
        await late.shrink()
    await close(left)


@in_memory("shrink/idle", hosts=2)
async def test_a_survivor_that_never_joins_is_named(cluster: MemoryCluster) -> None:
    comms = await connect_all(cluster, PAIRS)
    await lose(comms, 0)
    idle = comms.pop(2)
    ask_to_regroup(idle)
    for error in (await shrink(comms, timeout=3)).values():
        assert isinstance(error, OperationTimeout)
        assert "of job 'train~1': joined on" in str(error)
        assert "rank 1 of 3 did not" in str(error)


@pytest.mark.parametrize("after_ms", range(24))
@in_memory("shrink/whenever {after_ms}", hosts=2)
async def test_whenever_another_dies_the_rest_go_on(cluster: MemoryCluster, after_ms: int) -> None:
    """While the survivors ask, are answered, join, connect, start or sum."""
    comms = await connect_all(cluster, PAIRS)
    await reduce_exactly(comms)
    await lose(comms, 0)
    began = trio.current_time()
    dying = comms.pop(2)
    found: dict[int, inaproto.Communicator] = {}

    async def die() -> None:
        held = dying
        with trio.move_on_after(after_ms / 1000):
            held = await dying.shrink()
            await keep_summing(held)
        held.channel.close()

    async def go_on(rank: int) -> None:
        comm = comms[rank]
        while comm.size > 2:
            comm = await comm.shrink()
            await keep_summing(comm)
        found[rank] = comm

    async with trio.open_nursery() as nursery:
        nursery.start_soon(die)
        for rank in comms:
            nursery.start_soon(go_on, rank)
    assert trio.current_time() - began < 1
    assert [found[rank].rank for rank in (1, 3)] == [0, 1]
    await reduce_exactly(found)
    await close(found)
    await trio.sleep(0.1)
    as_new(cluster)


async def keep_summing(comm: inaproto.Communicator) -> None:
    """Until a rank of three is lost."""
    with contextlib.suppress(RankLost):
        while comm.size > 2:
            assert (await comm.all_reduce(np.full(1000, comm.rank + 1)) == 6).all()


@in_memory("shrink/stranger", hosts=2)
async def test_no_stranger_gets_into_the_next_generation(cluster: MemoryCluster) -> None:
    with pytest.raises(JoinRefused, match="names with '~' are those of jobs that went on"):
        await cluster.connect("train~1", 0, size=1)
    comms = await connect_all(cluster, (0, 1))
    await lose(comms, 0)
    left = await shrink(comms)
    with pytest.raises(JoinRefused, match="wrong key"):
        await cluster.connect("train~1", 0, size=1, elastic=True, key="guessed")
    await reduce_exactly(left)
    await close(left)


@in_memory("shrink/not elastic", hosts=2)
async def test_a_job_that_is_not_elastic_fails_for_all_and_cannot_shrink(cluster: MemoryCluster) -> None:
    comms = await connect_all(cluster, PAIRS, elastic=False)
    await reduce_exactly(comms)
    for error in (await lose(comms, 0)).values():
        assert isinstance(error, RankLost), error
    with pytest.raises(LocalMisuse, match="was joined without elastic=True"):
        await comms[1].shrink()


@in_memory("shrink/well", hosts=2)
async def test_only_a_job_that_has_lost_a_rank_can_shrink(cluster: MemoryCluster) -> None:
    comms = await connect_all(cluster, (0, 1))
    with pytest.raises(LocalMisuse, match="has not failed; only a job that has lost a rank can shrink"):
        await comms[0].shrink()
    await reduce_exactly(comms)
    await close(comms)
