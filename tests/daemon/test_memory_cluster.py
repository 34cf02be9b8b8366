"""Real daemons in virtual time and bad weather: wiring, cancellation, crash, restart, shutdown, and repeats.

Every test is one seeded run (:mod:`tests.clusters.memory`); times are virtual, so bounds are exact
and cost no waiting. That nothing is left open is demanded at the end of every run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import trio

from inaproto.errors import (
    DaemonUnreachable,
    JobError,
    OperationTimeout,
    RankLost,
    SwitchUnreachable,
)
from tests.clusters.memory import MemoryCluster, WorldResult, in_memory, run_world
from tests.daemon.test_allreduce_end_to_end import draw, reduce_all, reference

WEATHER = "drop=0.01,duplicate=0.005,reorder=0.01,corrupt=0.002,truncate=0.001"
SOON_S = 0.1
"""Bound on what needs no timer but a few messages of at most 2 ms each."""
AGAIN_S = 2.0
"""Bound on joining again: a host's retry of the switch takes up to 1 s."""
SWITCH_BACK_S = 8.0 + SOON_S
"""Bound on what waits for a switch, or for a host daemon's successor, that may come (host: recover_ms)."""
REPOSITORY = Path(__file__).parents[2]


async def reduce_some(cluster: MemoryCluster, job: str, size: int, operations: int = 3) -> None:
    """A whole life of a job: join, exact results, leave."""
    comms = await cluster.job(job, size)
    for index in range(operations):
        arrays = [
            draw(np.dtype(np.float32), (2000,), (cluster.seed, job, index, rank)) for rank in range(size)
        ]
        await reduce_all(comms, arrays)
    async with trio.open_nursery() as nursery:
        for comm in comms:
            nursery.start_soon(comm.aclose)


# --- faults in the middle of an operation


class Training:
    """Ranks of one job that reduce until something ends them, and what that was."""

    def __init__(self, cluster: MemoryCluster, size: int = 3) -> None:
        self.cluster = cluster
        self.size = size
        self.scopes = [trio.CancelScope() for _ in range(size)]
        self.ends: dict[int, tuple[float, JobError | None]] = {}
        """By rank: when it ended, and by what; None if it was cancelled."""

    async def _rank(self, rank: int) -> None:
        error: JobError | None = None
        try:
            with self.scopes[rank]:
                async with await self.cluster.connect("train", rank, size=self.size) as comm:
                    while True:
                        result = await comm.all_reduce(np.full(1000, rank + 1, np.int32))
                        assert (result == self.size * (self.size + 1) // 2).all()
        except JobError as ended:
            error = ended
        self.ends[rank] = trio.current_time(), error

    async def suffer(self, fault: Callable[[], Awaitable[None]], *, within_s: float = SOON_S) -> None:
        """Train, let ``fault`` happen, and demand that all ranks end within ``within_s`` of it."""
        async with trio.open_nursery() as nursery:
            for rank in range(self.size):
                nursery.start_soon(self._rank, rank)
            await trio.sleep(0.1)
            assert not self.ends
            began = trio.current_time()
            await fault()
        took = {rank: at - began for rank, (at, _) in self.ends.items()}
        assert max(took.values()) <= within_s, took

    def error(self, rank: int) -> JobError:
        error = self.ends[rank][1]
        assert error is not None, f"rank {rank} was cancelled"
        return error


@in_memory("cancel a rank", hosts=3, weather=WEATHER)
async def test_cancelling_a_rank_ends_its_job_by_name(cluster: MemoryCluster) -> None:
    training = Training(cluster)

    async def cancel() -> None:
        training.scopes[1].cancel()

    await training.suffer(cancel)
    for rank in (0, 2):
        assert isinstance(training.error(rank), RankLost)
        assert "rank 1 (h1, " in str(training.error(rank))
    await reduce_some(cluster, "train", 3)


@in_memory("cancel a wait", hosts=2, weather=WEATHER)
async def test_cancelling_a_wait_leaves_the_operation_running(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", 2)
    arrays = [draw(np.dtype(np.float32), (3000,), ("wait", rank)) for rank in range(2)]
    work = comms[0].all_reduce(arrays[0])
    with trio.move_on_after(0.01) as scope:
        await work
    assert scope.cancelled_caught
    other = await comms[1].all_reduce(arrays[1])
    expected = reference(arrays, "sum")
    assert (await work).tobytes() == other.tobytes() == expected.tobytes()


@pytest.mark.parametrize("how", ["stop", "crash"])
@in_memory("host {how}", hosts=3, weather=WEATHER)
async def test_a_host_daemon_that_ends_is_named_and_may_come_back(cluster: MemoryCluster, how: str) -> None:
    training = Training(cluster)
    host = cluster.hosts[1]
    await training.suffer(host.stop if how == "stop" else host.crash, within_s=SWITCH_BACK_S)
    assert isinstance(training.error(1), DaemonUnreachable)
    assert training.ends[1][0] > max(training.ends[rank][0] for rank in (0, 2))  # it waits for a successor
    for rank in (0, 2):
        assert isinstance(training.error(rank), RankLost)
        assert "rank 1 (h1, " in str(training.error(rank))
    await cluster.start_host(1)
    with trio.fail_after(AGAIN_S):
        await reduce_some(cluster, "train", 3)


@pytest.mark.parametrize("stall_ms", [10, 1_000_000], ids=["the switch has said it", "the switch is asked"])
def test_an_operation_that_takes_too_long_fails_the_job(stall_ms: int) -> None:
    """Named: the operation, and the ranks that it waited for; all ranks are told."""

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("j", 3)
        ones = np.ones(9, np.float32)
        await reduce_all(comms, [ones] * 3)
        slow, queued = [comms[0].all_reduce(ones) for _ in range(2)]
        for work in (slow, queued):
            with pytest.raises(OperationTimeout) as info:
                await work
            for part in ("rank 0 of job 'j'", "all-reduce 1 did not end", "0 of 1", "waits for ranks 1, 2"):
                assert part in str(info.value)
        for comm in comms[1:]:
            with pytest.raises(RankLost, match=r"rank 0 \(h0.*all-reduce 1 did not end.*ranks 1, 2"):
                await comm.all_reduce(ones)
        await reduce_some(cluster, "j", 3)

    run_world(f"overdue/{stall_ms}", scenario, hosts=3, stall_ms=stall_ms, operation_timeout_ms=150)


@in_memory("host comes late", hosts=2, weather=WEATHER)
async def test_ranks_wait_for_a_host_daemon_that_is_restarted(cluster: MemoryCluster) -> None:
    await cluster.hosts[0].crash()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reduce_some, cluster, "train", 2)
        await trio.sleep(3)
        await cluster.start_host(0)


@in_memory("switch stop", hosts=3, weather=WEATHER)
async def test_a_switch_that_stops_says_so(cluster: MemoryCluster) -> None:
    training = Training(cluster)
    assert cluster.switch is not None
    await training.suffer(cluster.switch.stop, within_s=SWITCH_BACK_S)
    for rank in range(3):
        assert isinstance(training.error(rank), SwitchUnreachable), training.error(rank)
        assert "told to stop" in str(training.error(rank))
    await cluster.start_switch()
    with trio.fail_after(AGAIN_S):
        await reduce_some(cluster, "train", 3)


@pytest.mark.parametrize("how", ["crash", "cancel"])
@in_memory("switch {how}", hosts=3, weather=WEATHER)
async def test_a_switch_that_is_gone_is_missed_by_name(cluster: MemoryCluster, how: str) -> None:
    training = Training(cluster)
    assert cluster.switch is not None
    fault = cluster.switch.crash if how == "crash" else cluster.switch.cancel
    await training.suffer(fault, within_s=SWITCH_BACK_S + 0.5)
    for rank in range(3):
        assert f"rank {rank} of job 'train'" in str(training.error(rank))
        assert "its switch has not come back within 8 s" in str(training.error(rank))
        assert f"host h{rank} has lost its switch" in str(training.error(rank))
    await cluster.start_switch()
    with trio.fail_after(AGAIN_S):
        await reduce_some(cluster, "train", 3)


@in_memory("short partition", hosts=3, weather=WEATHER)
async def test_a_short_partition_delays_and_changes_nothing(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", 3)
    arrays = [draw(np.dtype(np.float16), (3000,), ("partition", rank)) for rank in range(3)]
    cluster.network.partition("h1", "switch")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reduce_all, comms, arrays)
        await trio.sleep(4)
        cluster.network.partition("h1", "switch", is_cut=False)


@in_memory("long partition", hosts=3, weather=WEATHER)
async def test_a_long_partition_is_found_from_both_ends(cluster: MemoryCluster) -> None:
    training = Training(cluster)

    async def cut() -> None:
        cluster.network.partition("h1", "switch")

    await training.suffer(cut, within_s=12 + SWITCH_BACK_S)  # DEAD_S, and a heartbeat's period
    assert "host h1 has lost its switch" in str(training.error(1))
    for rank in (0, 2):
        assert "rank 1 (h1, " in str(training.error(rank))
    cluster.network.partition("h1", "switch", is_cut=False)
    with trio.fail_after(AGAIN_S):
        await reduce_some(cluster, "train", 3)


# --- what is left


def open_things() -> tuple[int, int]:
    """Descriptors, and mappings of shared memory, of this process."""
    maps = Path("/proc/self/maps").read_text(encoding="ascii").splitlines()
    return len(os.listdir("/proc/self/fd")), sum("memfd:inaproto" in line for line in maps)


@pytest.mark.parametrize("how", ["leave", "host crash", "switch crash"])
def test_nothing_is_left_of_a_run(how: str) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        if how == "leave":
            await reduce_some(cluster, "train", 2)
        else:
            assert cluster.switch is not None
            await Training(cluster, 2).suffer(
                cluster.hosts[0].crash if how == "host crash" else cluster.switch.crash,
                within_s=SWITCH_BACK_S + 0.5,
            )

    run_world("warm up", scenario, hosts=2, weather=WEATHER)
    before = open_things()
    run_world(f"left of {how}", scenario, hosts=2, weather=WEATHER)
    assert open_things() == before


# --- one seed, one run


def repeatable_run(seed: int) -> WorldResult:
    async def scenario(cluster: MemoryCluster) -> None:
        training = Training(cluster)
        await training.suffer(cluster.hosts[2].crash, within_s=SWITCH_BACK_S)
        await cluster.start_host(2)
        await reduce_some(cluster, "train", 3)

    return run_world(seed, scenario, hosts=3, weather=WEATHER)


@pytest.fixture(scope="module")
def run_of_seed_1() -> WorldResult:
    return repeatable_run(1)


def test_one_seed_gives_one_digest_in_one_process(run_of_seed_1: WorldResult) -> None:
    assert repeatable_run(1) == run_of_seed_1


def test_another_seed_gives_another_digest(run_of_seed_1: WorldResult) -> None:
    assert repeatable_run(2).digest != run_of_seed_1.digest


def test_one_seed_gives_one_digest_in_processes_that_hash_differently(run_of_seed_1: WorldResult) -> None:
    program = f"import {__name__} as it; print(it.repeatable_run(1))"
    for hash_seed in ("1", "2"):
        child = subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert child.stdout.strip() == str(run_of_seed_1), f"PYTHONHASHSEED={hash_seed}"
