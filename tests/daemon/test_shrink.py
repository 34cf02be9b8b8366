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
from tests.clusters.memory import MemoryCluster, in_memory, run_world
from tests.daemon.test_memory_recovery import daemon
from tests.daemon.test_ranks_per_host import PAIRS, as_new

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


async def told_lost(work: Mapping[int, inaproto.Work], who: str) -> None:
    for error in (await all_of({rank: one.wait for rank, one in work.items()})).values():
        assert isinstance(error, RankLost), error
        assert who in str(error)


async def go_on(comms: Mapping[int, inaproto.Communicator]) -> None:
    """All that are left shrink, have an exact sum, and leave."""
    left = await shrink(comms)
    assert {rank: comm.former_ranks for rank, comm in left.items()} == dict.fromkeys(comms, tuple(comms))
    await reduce_exactly(left)
    await close(left)


def unplug(cluster: MemoryCluster, host: int) -> None:
    fabric = daemon(cluster, host).fabric
    assert fabric is not None
    fabric._lose("its cable was pulled")


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


@in_memory("shrink/again", hosts=2)
async def test_a_job_may_shrink_again_and_again(cluster: MemoryCluster) -> None:
    comms = await connect_all(cluster, PAIRS)
    for generation, dead in enumerate((0, 1, 0), 1):
        await reduce_exactly(comms)
        await lose(comms, dead)
        comms = {comm.rank: comm for comm in (await shrink(comms)).values()}
        assert {comm.job for comm in comms.values()} == {f"train~{generation}"}
    assert comms[0].size == 1
    await reduce_exactly(comms)
    await close(comms)


@in_memory("shrink/agreed", hosts=2)
async def test_it_is_agreed_how_many_operations_all_survivors_have(cluster: MemoryCluster) -> None:
    """An operation may have its result on some ranks and be lost for others: the least is agreed."""
    comms = await connect_all(cluster, PAIRS)
    for _ in range(2):
        await reduce_exactly(comms)
    the_channel(comms[3]).protocol.operations_done = 1  # as if the last one had not been told to it
    await lose(comms, 0)
    left = await shrink(comms)
    assert {comm.agreed_operations for comm in left.values()} == {1}
    await close(left)


@in_memory("shrink/while regrouping", hosts=2)
async def test_a_rank_that_dies_while_the_others_regroup_is_not_waited_for(cluster: MemoryCluster) -> None:
    comms = await connect_all(cluster, PAIRS)
    await reduce_exactly(comms)
    await lose(comms, 0)
    began = trio.current_time()
    dying = comms.pop(2)
    found: dict[int, Any] = {}

    async def others() -> None:
        found.update(await shrink(comms))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await trio.sleep(1)
        assert not found
        dying.channel.close()
    assert trio.current_time() - began < 2
    assert found[3].former_ranks == (1, 3)
    await reduce_exactly(found)
    await close(found)


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


@in_memory("shrink/between", hosts=2)
async def test_a_rank_that_dies_between_the_answer_and_its_join_is_left_out_as_well(
    cluster: MemoryCluster,
) -> None:
    comms = await connect_all(cluster, PAIRS)
    await reduce_exactly(comms)
    await lose(comms, 0)
    began = trio.current_time()
    dying = comms.pop(2)
    found: dict[int, Any] = {}

    async def others() -> None:
        found.update(await shrink(comms))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        ask_to_regroup(dying)
        await trio.sleep(1)
        dying.channel.close()
    assert trio.current_time() - began < 2
    for comm in found.values():
        assert (comm.job, comm.former_ranks, comm.agreed_operations) == ("train~2", (1, 3), 1)
    await reduce_exactly(found)
    await close(found)


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


@in_memory("shrink/name", hosts=2)
async def test_the_name_of_the_old_job_is_free_meanwhile(cluster: MemoryCluster) -> None:
    comms = await connect_all(cluster, PAIRS)
    await lose(comms, 0)
    second = await connect_all(cluster, PAIRS)
    await lose(second, 3)
    left = await shrink(comms)
    others = await shrink(second)
    assert left[1].job == "train~1"
    assert others[1].job == "train~2"
    await reduce_exactly(left)
    await reduce_exactly(others)
    await close(left)
    await close(others)


@in_memory("shrink/switch", hosts=2)
async def test_a_switch_that_restarts_meanwhile_knows_of_nothing(cluster: MemoryCluster) -> None:
    comms = await connect_all(cluster, PAIRS)
    await lose(comms, 0)
    assert cluster.switch is not None
    await cluster.switch.crash()
    await cluster.start_switch()
    found = await shrink(comms)
    for error in found.values():
        assert isinstance(error, JoinRefused)
        assert "the switch was restarted" in str(error)


@in_memory("shrink/connection", hosts=2)
async def test_survivors_on_a_host_that_loses_its_connection_ask_again(cluster: MemoryCluster) -> None:
    comms = await connect_all(cluster, PAIRS)
    await lose(comms, 0)
    late = comms.pop(1)
    found: dict[int, Any] = {}

    async def others() -> None:
        found.update(await shrink(comms))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await trio.sleep(0.5)
        unplug(cluster, 1)
        await trio.sleep(0.01)
        found[1] = await late.shrink()
    assert found[1].former_ranks == (1, 2, 3)
    await reduce_exactly(found)
    await close(found)


@in_memory("shrink/no switch", hosts=2)
async def test_a_rank_that_dies_while_its_host_has_no_switch(cluster: MemoryCluster) -> None:
    comms = await connect_all(cluster, PAIRS)
    await reduce_exactly(comms)
    work = {rank: comm.all_reduce(np.ones(50_000, np.int64)) for rank, comm in comms.items()}
    unplug(cluster, 0)
    await trio.lowlevel.checkpoint()
    kill(comms, 0)
    await told_lost({rank: work[rank] for rank in comms}, "rank 0 (h0")
    await go_on(comms)


@in_memory("shrink/away", hosts=2)
async def test_a_rank_that_dies_elsewhere_while_a_host_is_away(cluster: MemoryCluster) -> None:
    """The host comes back to a job that has failed, and its ranks may still go on with the others."""
    comms = await connect_all(cluster, PAIRS)
    await reduce_exactly(comms)
    work = {rank: comm.all_reduce(np.ones(50_000, np.int64)) for rank, comm in comms.items()}
    kill(comms, 3)
    unplug(cluster, 0)
    await told_lost({rank: work[rank] for rank in comms}, "rank 3 (h1")
    await go_on(comms)


@in_memory("shrink/host", hosts=2)
async def test_a_host_daemon_that_is_killed_takes_its_ranks_with_it(cluster: MemoryCluster) -> None:
    comms = await connect_all(cluster, PAIRS)
    await reduce_exactly(comms)
    work = {rank: comm.all_reduce(np.ones(50_000, np.int64)) for rank, comm in comms.items()}
    await cluster.hosts[1].crash()
    await told_lost({rank: work[rank] for rank in (0, 1)}, "host h1 (ranks 2, 3)")
    await go_on({rank: comms[rank] for rank in (0, 1)})


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


@in_memory("shrink/differ", hosts=2)
async def test_all_ranks_must_say_the_same(cluster: MemoryCluster) -> None:
    found = await all_of(
        {
            rank: partial(cluster.connect, "train", rank, size=2, elastic=not rank, timeout=2)
            for rank in range(2)
        }
    )
    [refused] = [error for error in found.values() if isinstance(error, JoinRefused)]
    assert "elastic=" in str(refused)
    assert "all must say the same" in str(refused)


@in_memory("shrink/no recovery", hosts=2, switch={"recover_ms": 0})
async def test_a_switch_that_does_not_recover_takes_no_elastic_jobs(cluster: MemoryCluster) -> None:
    with pytest.raises(JoinRefused, match="this switch keeps no job that lost something"):
        await cluster.connect("train", 0, size=1, elastic=True)
