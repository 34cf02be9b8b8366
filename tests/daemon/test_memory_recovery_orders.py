"""Rings that end at awkward moments: while ranks join, leave, are away or have gone; and chaos of all kinds.

Every test is one seeded run in virtual time. At the end nothing may be left: no rank, queue pair or memory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.core.host.events import NicRefused
from inaproto.daemon.host.ring import HostRing
from inaproto.errors import JobError
from inaproto.ports import CompletionKind
from inaproto.wire.control_messages import Closed, Halt, Message, Ring, Start
from tests.clusters.jobs import (
    FAULTS,
    PAIRS,
    TRIPLE,
    WEATHER,
    Job,
    as_new,
    close_all,
    daemon,
    fabric_of,
    lose_a_fabric,
    lose_fabric_at,
    nothing_left,
    reduce_once,
)
from tests.clusters.memory import MemoryCluster, in_memory, run_world
from tests.seeds import seeds

# --- joining


@pytest.mark.parametrize(("path", "kib"), [("auto", 0), ("auto", 1 << 20), ("ring", 1 << 20)])
@pytest.mark.parametrize("kind", [Halt, Ring, Start])
def test_a_connection_lost_before_the_first_ring_runs(
    kind: type[Message], path: str, kib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = lose_fabric_at(monkeypatch, "h1", kind)

    async def scenario(cluster: MemoryCluster) -> None:
        arm()
        comms = await cluster.job("train", TRIPLE, path=path)
        await reduce_once(comms)
        assert path in ("auto", comms[0].statistics().recent[0].path)
        await close_all(comms)
        await trio.sleep(0.1)
        as_new(cluster)

    run_world(f"first {kind.__name__}/{path}/{kib}", scenario, hosts=3, switch={"memory_kib": kib})


@in_memory("missed start", hosts=3, switch={"memory_kib": 0})
async def test_a_chain_whose_rank_misses_the_start(cluster: MemoryCluster) -> None:
    async def strike() -> None:
        while [ring["path"] for ring in daemon(cluster, 1).status()["rings"]] != ["chain"]:
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.0005)
        fabric_of(cluster, 1)._lose("the control connection broke")

    await Job(cluster, 3, 6, "missed start").run(strike)


@in_memory("never heard", hosts=3)
async def test_a_job_that_failed_is_over_for_one_that_never_heard_of_its_last_ring(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = lose_fabric_at(monkeypatch, "h1", Ring)

    comms = await cluster.job("train", 3)
    await reduce_once(comms)
    arm()
    for ring in fabric_of(cluster, 0).rings():
        ring.feed(NicRefused("the queue pair failed"))
    await trio.sleep(0.02)
    await cluster.hosts[2].crash()
    with trio.fail_after(20), pytest.raises(JobError, match=r"rank 2 \(h2, "):
        await comms[1].all_reduce(np.ones(10, np.float32))


# --- leaving


@pytest.mark.parametrize("seed", seeds(6))
@in_memory("leave/{seed}", hosts=2)
async def test_leaving_around_a_restart_of_the_switch(cluster: MemoryCluster, seed: int) -> None:
    draws = random.Random(f"leave/{seed}")

    comms = await cluster.job("train", 2)
    await reduce_once(comms)

    async def leave(comm: inaproto.Communicator, after_s: float) -> None:
        await trio.sleep(after_s)
        await comm.aclose()

    async with trio.open_nursery() as nursery:
        for comm in comms:
            nursery.start_soon(leave, comm, draws.choice((0.0, 0.01, 0.05, draws.uniform(0, 0.5))))
        await trio.sleep(draws.uniform(0, 0.004))
        assert cluster.switch is not None
        await cluster.switch.crash()
        await trio.sleep(draws.choice((0.0, 0.02, 0.2)))
        await cluster.start_switch()
    await trio.sleep(30)
    nothing_left(cluster)


@in_memory("donor has left", hosts=3)
async def test_a_donor_whose_process_has_left_and_ended(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has all results, and its neighbour lacks the last: its host comes back for it."""
    completed = HostRing.completed
    deaf = [False]

    def hear(self: HostRing, completion: Any) -> None:
        if not (deaf[0] and 1 in self.ranks and completion.kind is not CompletionKind.SEND):
            completed(self, completion)

    monkeypatch.setattr(HostRing, "completed", hear)

    comms = await cluster.job("train", 3)
    await reduce_once(comms)
    deaf[0] = True
    works = [comm.all_reduce(np.ones(10, np.float32)) for comm in comms]
    await works[0]
    await works[2]
    await comms[0].aclose()
    deaf[0] = False
    assert cluster.switch is not None
    await cluster.switch.crash()
    await cluster.start_switch()
    with trio.fail_after(10):
        assert (await works[1] == 3).all()
    await close_all(comms[1:])
    await trio.sleep(5)
    nothing_left(cluster)


@in_memory("closed not heard", hosts=2)
async def test_a_name_is_free_again_though_one_host_did_not_hear_that_the_job_was_over(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = lose_fabric_at(monkeypatch, "h1", Closed)

    comms = await cluster.job("train", 2)
    await reduce_once(comms)
    arm()
    await close_all(comms)
    await trio.sleep(0.3)
    nothing_left(cluster)
    again = await cluster.job("train", 2)
    await reduce_once(again)
    await close_all(again)


# --- away


@in_memory("called while away", hosts=2)
async def test_an_operation_that_was_called_while_away_has_a_clock(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", 2)
    await reduce_once(comms)
    fabric_of(cluster, 0)._lose("the control connection broke")
    await trio.lowlevel.checkpoint()
    work = comms[0].all_reduce(np.ones(10, np.float32))
    await trio.sleep(5)
    await comms[1].aclose()
    with trio.fail_after(20), pytest.raises(JobError, match="rank 1 "):
        await work


@pytest.mark.parametrize("places", [(0, 1, 2), PAIRS])
@pytest.mark.parametrize("what", ["connection", "switch"])
@in_memory("ends while away/{what}/{places}", hosts=3)
async def test_a_process_that_ends_while_its_host_is_away_is_named_at_once(
    cluster: MemoryCluster, what: str, places: Sequence[int]
) -> None:
    comms = await cluster.job("train", places)
    await reduce_once(comms)
    dying = places.index(1)
    assert cluster.switch is not None
    if what == "switch":
        await cluster.switch.crash()
        await trio.sleep(0.02)
    else:
        fabric_of(cluster, 1)._lose("the control connection broke")
        await trio.lowlevel.checkpoint()
    comms[dying].channel.close()
    await trio.sleep(0.02)
    if what == "switch":
        await cluster.start_switch()
    began = trio.current_time()
    for comm in comms[:dying] + comms[dying + 1 :]:
        with trio.fail_after(60), pytest.raises(JobError, match=rf"rank {dying} .*ended without leaving"):
            await comm.all_reduce(np.ones(10, np.float32))
    assert trio.current_time() - began < 1.5
    await trio.sleep(20)
    nothing_left(cluster)


@in_memory("does not live on", hosts=2)
async def test_a_job_that_failed_while_a_host_was_away_does_not_live_on(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", 2)
    await reduce_once(comms)
    fabric_of(cluster, 1)._lose("the control connection broke")
    await trio.sleep(0.003)
    comms[0].channel.close()
    await trio.sleep(0.3)  # host 1 is back by then
    with pytest.raises(JobError, match=r"rank 0 .*ended without leaving"):
        await comms[1].all_reduce(np.ones(10, np.float32))
    again = await cluster.job("train", 2)
    await reduce_once(again)
    await close_all(again)
    nothing_left(cluster)


# --- chaos


@pytest.mark.parametrize("seed", seeds(12))
def test_chaos(seed: int) -> None:
    """Rings end three to ten times, some with nothing in between; afterwards the NICs are as new."""
    draws = random.Random(f"chaos/{seed}")
    hosts, kib = draws.choice((1, 2, 3, 4)), draws.choice((0, 40, 1 << 20))
    beside = draws.choice((0, 0, 1, 2, 4))
    places = [*range(hosts), *(draws.randrange(hosts) for _ in range(beside))]
    faults = (*FAULTS.values(), lose_a_fabric)

    async def scenario(cluster: MemoryCluster) -> None:
        job = Job(cluster, places, 14, ("chaos", seed))
        job.called = [
            (dtype, draws.choice(("sum", "max", "min")), draws.choice((0, 1, 182, 364, length)))
            for dtype, _, length in job.called
        ]

        async def strike() -> None:
            await trio.sleep(0.05)
            for _ in range(draws.randint(3, 10)):
                await trio.sleep(draws.choice((0.0, 0.0005, draws.uniform(0, 0.005), draws.uniform(0, 0.08))))
                await draws.choice(faults)(cluster, draws)

        await job.run(strike)
        await trio.sleep(10)
        as_new(cluster)

    run_world(
        f"chaos/{seed}",
        scenario,
        hosts=hosts,
        weather=draws.choice(("", WEATHER)),
        switch={"memory_kib": kib},
        window_messages=draws.choice((1, 2, 4)),
    )
