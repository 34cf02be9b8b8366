"""Several ranks of a job on one host: added there first, one copy in the ring, results to all of them.

Every test is one seeded run of real daemons in virtual time (:mod:`tests.clusters.memory`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import trio

import inaproto
from inaproto.errors import JobError, JoinRefused, OperationTimeout, RankLost, TensorMismatch
from tests.clusters.jobs import (
    ALONE,
    PAIRS,
    PLACES,
    TRIPLE,
    TURNS,
    WEATHER,
    as_new,
    close_all,
    daemon,
    fabric_of,
    messages_of,
    reduce_nested,
    reduce_once,
    reduce_to,
    rotated_reference,
)
from tests.clusters.memory import MemoryCluster, in_memory, run_world
from tests.daemon.test_allreduce_end_to_end import draw, numpy_dtype
from tests.daemon.test_memory_cluster import open_things
from tests.seeds import seeds

# --- results


@pytest.mark.parametrize("path", ["switch", "no room", "chain", "overlay", "ring"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64"])
@pytest.mark.parametrize("placing", PLACES)
def test_results_have_the_bytes_of_the_path(placing: str, dtype: str, path: str) -> None:
    places = PLACES[placing]
    is_asked = path not in ("switch", "no room")

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", places, path=path if is_asked else "auto")
        serial = 0
        for op, length in (("sum", 3000), ("max", 700), ("sum", 1), ("sum", 0), ("min", 365)):
            arrays = [
                draw(numpy_dtype(dtype), (length,), (dtype, length, rank)) for rank in range(len(places))
            ]
            if path == "ring":
                await reduce_to(rotated_reference(arrays, places, op, serial), comms, arrays, op)
            else:
                await reduce_nested(comms, arrays, places, op)
            serial += messages_of(arrays[0])
        if is_asked:
            done = {record.path for comm in comms for record in comm.statistics().recent}
            assert done == {"local" if places == ALONE else path}
        await close_all(comms)
        await trio.sleep(0.1)
        as_new(cluster)

    run_world(
        f"bytes/{placing}/{dtype}/{path}",
        scenario,
        hosts=len(set(places)),
        weather=WEATHER,
        switch={"memory_kib": 0 if path == "no room" else 1 << 20},
    )


@in_memory("one copy", hosts=2)
async def test_one_copy_leaves_a_host_whatever_the_number_of_its_ranks(cluster: MemoryCluster) -> None:
    sent: list[int] = []
    for places in ((0, 1), PAIRS, (0, 0, 0, 0, 1, 1, 1, 1)):
        comms = await cluster.job("train", places)
        before = fabric_of(cluster, 0).nic.statistics()["packets_sent"]
        await reduce_nested(comms, [np.full(5000, rank, np.int32) for rank in range(len(places))], places)
        await close_all(comms)
        await trio.sleep(0.1)
        sent.append(fabric_of(cluster, 0).nic.statistics()["packets_sent"] - before)
    assert sent[0] == sent[1] == sent[2] > 0


@in_memory("status", hosts=2)
async def test_status_shows_one_ring_with_its_ranks(cluster: MemoryCluster) -> None:
    await cluster.job("train", TURNS)
    for host, ranks in ((0, [0, 2, 4]), (1, [1, 3, 5])):
        (ring,) = daemon(cluster, host).status()["rings"]
        assert [rank["rank"] for rank in ring["ranks"]] == ranks
        assert (ring["size"], ring["position"], ring["path"]) == (6, host, "switch")
        assert ring["peers"] == ["h0", "h1"]


@in_memory("local", hosts=1, switch={"memory_kib": 0})
async def test_a_job_on_one_host_needs_no_accelerator_and_its_path_is_local(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", ALONE)
    arrays = [draw(np.dtype(np.float32), (3_000_000,), rank) for rank in range(3)]  # many turns
    await reduce_nested(comms, arrays, ALONE)
    (ring,) = daemon(cluster, 0).status()["rings"]
    assert (ring["path"], ring["messages_sent"], ring["operations_done"]) == ("local", 0, 1)
    assert comms[0].statistics().recent[0].path == "local"


@in_memory("in flight", hosts=2, weather=WEATHER)
async def test_many_operations_in_flight_on_ranks_that_call_at_different_times(
    cluster: MemoryCluster,
) -> None:
    for places in (PAIRS, ALONE):
        comms = await cluster.job(f"j{len(places)}", places)

        async def rank(comm: inaproto.Communicator, size: int) -> None:
            draws = random.Random(comm.rank)
            works = []
            for number in range(20):
                await trio.sleep(draws.choice((0, 0, 0.001, 0.01)))
                works.append(comm.all_reduce(np.full(300, number, np.int32)))
            for number, work in enumerate(works):
                assert (await work == size * number).all()

        async with trio.open_nursery() as nursery:
            for comm in comms:
                nursery.start_soon(rank, comm, len(places))
        await close_all(comms)


# --- who is missing


@in_memory("straggler", hosts=2)
async def test_a_straggler_is_named_to_ranks_of_its_own_host_and_of_others(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", PAIRS)
    works = [comm.all_reduce(np.ones(2000, np.float32)) for comm in comms[:3]]
    await trio.sleep(2.5)
    for host in (0, 1):
        (ring,) = daemon(cluster, host).status()["rings"]
        assert ring["waiting_for"] == [3]
        assert "waits for rank 3" in ring["stall"]
    for rank, work in enumerate(works):
        with pytest.raises(OperationTimeout, match=rf"all-reduce 0 of rank {rank} .*waits for rank 3"):
            await work.wait(timeout=0)
    works.append(comms[3].all_reduce(np.ones(2000, np.float32)))  # late is not lost
    for work in works:
        assert (await work == 4).all()


@pytest.mark.parametrize("places", [PAIRS, ALONE])
@in_memory("limit/{places}", hosts=2, operation_timeout_ms=5000)
async def test_an_operation_that_waits_for_a_rank_beside_it_has_a_limit(
    cluster: MemoryCluster, places: Sequence[int]
) -> None:
    comms = await cluster.job("train", places)
    began = trio.current_time()
    works = [comm.all_reduce(np.ones(2000, np.float32)) for comm in comms[:-1]]
    for work in works:
        with pytest.raises(JobError, match=f"waits for rank {len(places) - 1}") as caught:
            await work
        assert isinstance(caught.value, OperationTimeout | RankLost)
    assert trio.current_time() - began <= 5.1


@pytest.mark.parametrize("places", [PAIRS, ALONE])
@in_memory("left/{places}", hosts=2)
async def test_a_rank_that_left_is_not_waited_for(cluster: MemoryCluster, places: Sequence[int]) -> None:
    comms = await cluster.job("train", places)
    await reduce_nested(comms, [np.ones(10, np.float32)] * len(places), places)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(comms[1].aclose)
        with pytest.raises(RankLost, match=r"rank 1 .*left job 'train' after 1 all-reduces.*all-reduce 1"):
            await comms[0].all_reduce(np.ones(9, np.float32))
    await trio.sleep(0.5)
    as_new(cluster)


@in_memory("one by one", hosts=2)
async def test_ranks_of_a_host_leave_one_by_one(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", PAIRS)
    await reduce_nested(comms, [np.ones(10, np.float32)] * 4, PAIRS)
    await comms[0].aclose()
    await trio.sleep(3)
    (ring,) = daemon(cluster, 0).status()["rings"]
    assert (ring["phase"], [rank["left"] for rank in ring["ranks"]]) == ("running", [True, False])
    await comms[1].aclose()
    await trio.sleep(3)
    assert daemon(cluster, 0).status()["rings"][0]["phase"] == "left"
    await close_all(comms[2:])
    await trio.sleep(0.1)
    as_new(cluster)


# --- who disagrees


@pytest.mark.parametrize("places", [PAIRS, ALONE])
@pytest.mark.parametrize("what", ["shape", "op", "dtype"])
@in_memory("disagree/{what}/{places}", hosts=2)
async def test_ranks_of_one_host_that_disagree_are_named(
    cluster: MemoryCluster, what: str, places: Sequence[int]
) -> None:
    comms = await cluster.job("train", places)
    await reduce_nested(comms, [np.ones(10, np.float32)] * len(places), places)
    mine = np.ones(300, np.float32)
    theirs = {"shape": np.ones((30, 10), np.float32), "dtype": np.ones(300, np.int32)}.get(what, mine)
    works = [comm.all_reduce(mine) for comm in comms[:1] + comms[2:]]
    works.append(comms[1].all_reduce(theirs, "max" if what == "op" else "sum"))
    for work in works:
        with pytest.raises(TensorMismatch, match=r"all-reduce 1 of job 'train' differs.*rank 1 \(h0"):
            await work
    await trio.sleep(0.5)
    as_new(cluster)


@in_memory("before", hosts=2)
async def test_what_was_called_before_a_disagreement_is_still_summed(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", PAIRS)
    good = [comm.all_reduce(np.ones(20_000, np.float32)) for comm in comms]
    bad = [comm.all_reduce(np.ones(10 + comm.rank % 2, np.float32)) for comm in comms]
    for work in good:
        assert (await work == 4).all()
    for work in bad:
        with pytest.raises(TensorMismatch):
            await work


# --- who dies


@in_memory("dies before", hosts=2)
async def test_a_process_that_dies_before_the_ring_leaves_the_others_waiting(cluster: MemoryCluster) -> None:
    found: dict[int, inaproto.Communicator] = {}

    async def one(rank: int) -> None:
        found[rank] = await cluster.connect("train", rank, size=4, host=PAIRS[rank])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, 0)
        with trio.move_on_after(1):
            await cluster.connect("train", 1, size=4, host=0)
        await trio.sleep(0.5)
        (ring,) = daemon(cluster, 0).status()["rings"]
        assert ([rank["rank"] for rank in ring["ranks"]], ring["waiting_for"]) == ([0], [1, 2, 3])
        for rank in (1, 2, 3):
            nursery.start_soon(one, rank)
    await reduce_nested([found[rank] for rank in range(4)], [np.ones(10, np.float32)] * 4, PAIRS)


@pytest.mark.parametrize("seed", seeds(12))
@pytest.mark.parametrize("path", ["auto", "ring"])
@in_memory("while made/{path}/{seed}", hosts=2)
async def test_a_process_that_dies_while_the_ring_is_made_is_replaced(
    cluster: MemoryCluster, path: str, seed: int
) -> None:
    """Its successor is told apart from it, whatever of both the switch has heard when it makes the ring."""
    draws = random.Random(f"while made/{seed}")

    async def stubborn(rank: int) -> None:
        while True:
            try:
                async with await cluster.connect(
                    "train", rank, size=4, host=PAIRS[rank], timeout=20, path=path
                ) as comm:
                    assert (await comm.all_reduce(np.ones(1000, np.float32)) == 4).all()
                    return
            except JobError:
                await trio.sleep(0.001)

    async def dies() -> None:
        with trio.move_on_after(draws.uniform(0, 0.012)):
            comm = await cluster.connect("train", 1, size=4, host=0, path=path)
            comm.channel.close()
        await stubborn(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dies)
        for rank in (0, 2, 3):
            nursery.start_soon(stubborn, rank)
    await trio.sleep(1)
    as_new(cluster)


@pytest.mark.parametrize(("path", "places"), [("auto", PAIRS), ("auto", ALONE), ("ring", TRIPLE)])
@in_memory("dies/{path}/{places}", hosts=3)
async def test_a_process_that_dies_later_is_named_to_all_and_leaves_nothing(
    cluster: MemoryCluster, path: str, places: Sequence[int]
) -> None:
    comms = await cluster.job("train", places, path=path)
    await reduce_once(comms, 10)
    others = comms[:1] + comms[2:]
    works = [comm.all_reduce(np.ones(9000, np.float32)) for comm in others]
    comms[1].channel.close()
    for work in works:
        lost = rf"rank 1 \(h{places[1]}, pid \d+\) of job 'train'.*ended without leaving"
        with pytest.raises(RankLost, match=lost):
            await work
    await trio.sleep(0.5)
    as_new(cluster)
    again = await cluster.job("train", places, path=path)
    await reduce_once(again, 10)
    await close_all(again)


def test_no_descriptor_and_no_shared_memory_is_left_of_a_job_that_a_death_has_ended() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        for places in (PAIRS, ALONE):
            comms = await cluster.job("train", places)
            await reduce_nested(comms, [np.ones(10, np.float32)] * len(places), places)
            for comm in comms[1:]:
                comm.all_reduce(np.ones(9000, np.float32))
            comms[0].channel.close()
            await trio.sleep(0.1)

    run_world("warm up", scenario, hosts=2)
    before = open_things()
    run_world("left of a death", scenario, hosts=2)
    assert open_things() == before


@in_memory("refused", hosts=1)
async def test_a_rank_that_is_refused_does_not_disturb_those_beside_it(cluster: MemoryCluster) -> None:
    async with trio.open_nursery() as nursery:
        found: dict[int, inaproto.Communicator] = {}

        async def one(rank: int, key: str = "right") -> None:
            found[rank] = await cluster.connect("train", rank, size=3, host=0, key=key)

        nursery.start_soon(one, 0)
        await trio.sleep(0.1)
        with pytest.raises(JoinRefused, match=r"rank 1 .*wrong key"):
            await one(1, "wrong")
        nursery.start_soon(one, 1)
        nursery.start_soon(one, 2)
    with pytest.raises(JoinRefused, match=r"rank 1 .*is held by process"):
        await one(1)
    arrays = [np.full(10, rank, np.float32) for rank in range(3)]
    await reduce_nested([found[rank] for rank in range(3)], arrays, ALONE)
