"""Nothing waits for ever when a ring ends at an awkward moment: clocks go on, old words strike no new ring.

Every test is one seeded run of real daemons in virtual time (:mod:`tests.clusters.memory`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import trio

from inaproto.daemon.host import daemon as host
from inaproto.daemon.host.attachment import Fabric
from inaproto.daemon.host.opening import NoFabric, open_fabric
from inaproto.daemon.net.control_address import UnixDoor
from inaproto.errors import JobError, OperationTimeout, RankLost
from inaproto.ports import Nic
from inaproto.wire.control_messages import Start
from tests.clusters.jobs import (
    ALONE,
    PAIRS,
    as_new,
    close_all,
    daemon,
    fabric_of,
    lose_fabric_at,
    reduce_nested,
)
from tests.clusters.memory import MemoryCluster, in_memory, run_world
from tests.seeds import seeds


def away_from_until(monkeypatch: pytest.MonkeyPatch, since_s: float, until_s: float) -> None:
    """Hosts find no switch in that time."""

    async def late(*args: Any, **options: Any) -> Fabric:
        if trio.current_time() >= since_s:
            await trio.sleep_until(max(trio.current_time(), until_s))
        return await open_fabric(*args, **options)

    monkeypatch.setattr(host, "open_fabric", late)


@in_memory("stuck", hosts=1)
async def test_a_nic_that_does_not_open_is_tried_again(cluster: MemoryCluster) -> None:
    """Else the host would never look for its switch again, which forgets it meanwhile."""
    await cluster.job("warm-up", 1)
    settings = fabric_of(cluster, 0).settings.model_copy(update={"name": "h9", "ip": "10.0.0.9"})

    async def stuck(port_path: str) -> Nic:
        await trio.sleep_forever()
        raise AssertionError

    door = UnixDoor(settings.control_path, cluster.network.node("h9"))
    with trio.fail_after(60), pytest.raises(NoFabric, match=r"cannot attach to .*: no NIC within 5 s"):
        await open_fabric(settings, stuck, door=door, random_bits=lambda bits: 1)


@in_memory("after a sum", hosts=1, operation_timeout_ms=5000)
async def test_a_wait_that_begins_when_a_sum_on_the_host_ends_has_a_clock(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum takes several turns, and nothing else has a deadline meanwhile."""
    away_from_until(monkeypatch, 3, 4.5)

    comms = await cluster.job("train", ALONE)
    await trio.sleep_until(3)
    fabric_of(cluster, 0)._lose("the control connection broke")
    await trio.sleep(0.1)
    works = [comm.all_reduce(np.ones(3_000_000, np.float32)) for comm in comms]
    alone = comms[0].all_reduce(np.ones(10, np.float32))
    for work in works:
        await work
    began = trio.current_time()
    with trio.fail_after(60), pytest.raises(JobError, match="waits for ranks 1, 2"):
        await alone
    assert trio.current_time() - began <= 5.1


@pytest.mark.parametrize("places", [PAIRS, (0, 1)])
@in_memory("overdue/{places}", hosts=2, operation_timeout_ms=500)
async def test_an_operation_that_was_overdue_when_its_ring_ended_is_given_up(
    cluster: MemoryCluster, places: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch was asked for whom it waits, and had no ring then."""
    away_from_until(monkeypatch, 1, 2.7)

    comms = await cluster.job("train", places)
    await trio.sleep_until(2)
    works = [comm.all_reduce(np.ones(2000, np.float32)) for comm in comms[:-1]]
    await trio.sleep_until(2.4)
    fabric_of(cluster, 1)._lose("the control connection broke")
    for work in works:
        with (
            trio.fail_after(60),
            pytest.raises(JobError, match=r"did not end .*waits for rank") as caught,
        ):
            await work
        assert isinstance(caught.value, OperationTimeout | RankLost)
    assert trio.current_time() < 4


@pytest.mark.parametrize("kib", [0, 1 << 20], ids=["chain", "switch"])
def test_ranks_that_missed_the_start_hear_that_their_job_has_failed(
    kib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They came back to a ring of which this connection never told them."""
    arm = lose_fabric_at(monkeypatch, "h1", Start)
    places = (0, 1, 1, 2)

    async def scenario(cluster: MemoryCluster) -> None:
        failed: list[int] = []

        async def reduce(rank: int) -> None:
            comm = await cluster.connect("train", rank, size=4, host=places[rank], timeout=500)
            await comm.all_reduce(np.ones(10, np.float32))

        async def one(rank: int) -> None:
            with pytest.raises(JobError, match=r"rank 3 .*is lost|host daemon is gone"):
                await reduce(rank)
            failed.append(rank)

        arm()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for rank in range(4):
                    nursery.start_soon(one, rank)
                while any(
                    [ring["phase"] for ring in daemon(cluster, host).status()["rings"]] != ["running"]
                    for host in (0, 2)  # a rank that has not heard of its start would join anew
                ):
                    await trio.lowlevel.checkpoint()
                    await trio.sleep(0.0001)
                await cluster.hosts[2].crash()
        assert sorted(failed) == [0, 1, 2, 3]
        del cluster.hosts[2]
        as_new(cluster)

    run_world(f"missed the start/{kib}", scenario, hosts=3, switch={"memory_kib": kib})


@pytest.mark.parametrize("seed", seeds(12))
@in_memory("old words/{seed}", hosts=2)
async def test_words_of_an_old_ring_strike_none_that_gathers(cluster: MemoryCluster, seed: int) -> None:
    """A process dies while the ring is halted, and another takes its rank before its host hears of that."""
    draws = random.Random(f"old words/{seed}")

    comms = await cluster.job("train", PAIRS)
    await reduce_nested(comms, [np.ones(10, np.float32)] * 4, PAIRS)
    refusals: list[str] = []

    async def again(rank: int) -> None:
        while True:
            try:
                comm = await cluster.connect("train", rank, size=4, host=PAIRS[rank], timeout=20)
                assert (await comm.all_reduce(np.ones(1000, np.float32)) == 4).all()
                await close_all([comm])
                return
            except JobError as error:
                if "is held by process" not in str(error):
                    refusals.append(f"rank {rank}: {error}")
                await trio.sleep(0.001)

    async def survives(rank: int) -> None:
        with pytest.raises(JobError):
            await comms[rank].all_reduce(np.ones(10, np.float32))
        comms[rank].channel.close()
        await again(rank)

    with trio.fail_after(40):
        async with trio.open_nursery() as nursery:
            fabric_of(cluster, 1)._lose("the control connection broke")
            await trio.sleep(draws.uniform(0, 0.002))
            comms[0].channel.close()
            for rank in (1, 2, 3):
                nursery.start_soon(survives, rank)
            nursery.start_soon(again, 0)
    assert not refusals
    await trio.sleep(10)
    as_new(cluster)
