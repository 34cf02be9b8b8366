"""Host daemons that are replaced under the ranks of a job: the job does not notice but by the clock.

Every test is one seeded run of real daemons in virtual time (:mod:`tests.clusters.memory`). A daemon is
killed between any two orders, in the middle of copying a result too, or stopped in good order.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import inaproto
from inaproto.errors import DaemonUnreachable, JobError, RankLost
from tests.clusters.jobs import PAIRS, TRIPLE, TURNS, WEATHER, Job, as_new, nothing_left, reduce_once
from tests.clusters.memory import MemoryCluster, in_memory, run_world
from tests.clusters.successors import DEATHS, kill, kill_in_the_middle, rings_of
from tests.daemon.test_two_paths import Given, alternate
from tests.seeds import seeds

HOST_BACK_S = 5.1
"""Bound on what waits for a host that may come back (switch: recover_ms)."""
SUCCESSOR_S = 8.1
"""Bound on what waits for a successor, or for ranks of the same host there (host: recover_ms)."""
AGAIN_S = 2.0
ENDLESS_S = 30.0


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("auto", (0, 1, 2)),
        ("auto", PAIRS),
        ("auto", TURNS),
        ("auto", (0, 1, 1, 2)),
        ("chain", PAIRS),
        ("ring", TRIPLE),
        ("overlay", TRIPLE),
        ("shared", (0, 1, 1, 2)),
    ],
)
@pytest.mark.parametrize("name", DEATHS)
def test_a_job_goes_on_whenever_a_host_daemon_is_replaced(
    name: str, path: str, places: Sequence[int], seed: int
) -> None:
    draws = random.Random(f"{name}/{path}/{places}/{seed}")

    async def scenario(cluster: MemoryCluster) -> None:
        job = Job(cluster, places, 8, (name, seed), path)

        async def strike() -> None:
            for _ in range(draws.randint(1, 3)):
                await trio.sleep(draws.uniform(0.005, 0.05))
                await DEATHS[name](cluster, draws)

        await job.run(strike)

    run_world(
        f"successors/{name}/{path}/{places}/{seed}",
        scenario,
        hosts=len(set(places)),
        weather=draws.choice(("", WEATHER)),
        switch={"memory_kib": 1 << 20 if path != "auto" else draws.choice((0, 1 << 20, 1 << 20))},
        turns=Given(alternate),
    )


# --- what ranks have called


async def all_equal(works: Sequence[inaproto.Work], value: float) -> None:
    """All of them have such a result; each rank waits for its own."""

    async def one(work: inaproto.Work) -> None:
        assert (await work == value).all()

    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(one, work)


async def together(*calls: Callable[[], Awaitable[object]]) -> None:
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(call)


class Training:
    """Ranks of ``places`` that call all-reduces of many sizes until they are told to stop, and check each."""

    def __init__(self, cluster: MemoryCluster, places: Sequence[int], **options: Any) -> None:
        self.cluster, self.places, self.options = cluster, places, options
        self.done = [0] * len(places)
        self.ends: dict[int, tuple[float, JobError | None]] = {}
        self.stops_after = 1 << 30
        self.scopes = [trio.CancelScope() for _ in places]

    async def rank(self, rank: int, depth: int = 3) -> None:
        error: JobError | None = None
        options = self.options | {"size": len(self.places), "host": self.places[rank]}
        try:
            with self.scopes[rank]:
                async with await self.cluster.connect("train", rank, **options) as comm:
                    await self._reduce(comm, rank, depth)
        except JobError as ended:
            error = ended
        self.ends[rank] = trio.current_time(), error

    async def _reduce(self, comm: inaproto.Communicator, rank: int, depth: int) -> None:
        index = 0
        while index < self.stops_after and trio.current_time() < ENDLESS_S:
            await trio.sleep(0.005)
            works = [comm.all_reduce(self.input(rank, index + n)) for n in range(depth)]
            for work in works:
                assert (await work).tobytes() == self.expected(index).tobytes(), (rank, index)
                index += 1
                self.done[rank] += 1

    def dies(self, rank: int) -> None:
        """Its process."""
        self.cluster.network.node(f"train.{rank}").crash()
        self.scopes[rank].cancel()

    def input(self, rank: int, index: int) -> NDArray[np.int32]:
        return np.arange((index * 977) % 1100, dtype=np.int32) * (rank + index + 1)

    def expected(self, index: int) -> NDArray[np.int32]:
        parts = [self.input(rank, index) for rank in range(len(self.places))]
        return np.asarray(np.sum(parts, axis=0, dtype=np.int32), np.int32)

    async def run(self, fault: Callable[[], Awaitable[None]], depths: Sequence[int] = ()) -> None:
        async with trio.open_nursery() as nursery:
            for rank in range(len(self.places)):
                nursery.start_soon(self.rank, rank, depths[rank] if depths else 3)
            await trio.sleep(0.1)
            assert not self.ends
            await fault()

    def error(self, rank: int) -> JobError:
        error = self.ends[rank][1]
        assert error is not None, f"rank {rank} ended well"
        return error

    async def more(self, operations: int = 6) -> None:
        """All ranks get results after this, and then stop."""
        until = max(self.done) + operations
        with trio.fail_after(AGAIN_S):
            while min(self.done) < until:  # noqa: ASYNC110
                await trio.sleep(0.001)
        self.stops_after = max(self.done) + 3

    def all_well(self) -> None:
        assert [error for _, error in self.ends.values() if error is not None] == []
        assert len(set(self.done)) == 1


@pytest.mark.parametrize("how", ["killed", "in the middle", "stopped"])
@in_memory("several under way/{how}", hosts=2, weather=WEATHER)
async def test_many_operations_are_under_way_and_some_that_only_one_rank_has_called(
    cluster: MemoryCluster, how: str
) -> None:
    training = Training(cluster, PAIRS)

    async def replace() -> None:
        for number in (0, 1, 0):
            life = cluster.hosts[number]
            if how == "in the middle":
                await kill_in_the_middle(life, 7)
            else:
                await (kill(life) if how == "killed" else life.stop())
            await cluster.start_host(number)
            await trio.sleep(0.05)
        await training.more()

    await training.run(replace, depths=(1, 12, 4, 7))
    nothing_left(cluster)


@in_memory("not called yet", hosts=2)
async def test_a_rank_may_have_called_what_another_of_its_host_has_not(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", PAIRS)
    ones = np.ones(2000, np.float32)
    ahead = [comms[0].all_reduce(ones) for _ in range(5)]
    await trio.sleep(0.01)
    await kill(cluster.hosts[0])
    await cluster.start_host(0)
    work = [comm.all_reduce(ones) for comm in comms[1:] for _ in range(5)]
    await all_equal([*ahead, *work], 4)


@in_memory("called meanwhile", hosts=2)
async def test_what_is_called_while_the_daemon_is_away_is_done_by_the_next(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", PAIRS)
    await reduce_once(comms)
    await kill(cluster.hosts[1])
    works = [comm.all_reduce(np.full(3000, 2, np.int64)) for comm in comms for _ in range(3)]
    await trio.sleep(0.3)
    await cluster.start_host(1)
    await all_equal(works, 8)


@in_memory("idle", hosts=2)
async def test_a_job_that_waits_for_nothing_goes_on_too(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", 2)
    for _ in range(3):
        await kill(cluster.hosts[0])
        await cluster.start_host(0)
        await trio.sleep(0.2)
    await reduce_once(comms)


# --- who has left


@pytest.mark.parametrize("process", ["gone", "there"])
@in_memory("left/{process}", hosts=2)
async def test_a_rank_that_has_left_needs_not_come_back(cluster: MemoryCluster, process: str) -> None:
    comms = await cluster.job("train", PAIRS)
    await reduce_once(comms)
    async with trio.open_nursery() as nursery:
        leaving = trio.CancelScope()

        async def leave() -> None:
            with leaving:
                await comms[0].aclose()

        nursery.start_soon(leave)
        await trio.sleep(0.05)
        if process == "gone":
            cluster.network.node("train.0").crash()
            leaving.cancel()
        await kill(cluster.hosts[0])
        await trio.sleep(0.01)
        await cluster.start_host(0)
        await together(*[comm.aclose for comm in comms[1:]])
    with trio.fail_after(AGAIN_S):
        await reduce_once(await cluster.job("train", PAIRS))


@pytest.mark.parametrize("after_ms", [0, 1, 3, 30])
@in_memory("leave meanwhile/{after_ms}", hosts=2)
async def test_a_rank_leaves_while_others_of_its_host_are_not_back(
    cluster: MemoryCluster, after_ms: int
) -> None:
    """Its process says so to the successor, and ends without waiting for the answer."""
    comms = await cluster.job("train", PAIRS)
    await reduce_once(comms)
    await kill(cluster.hosts[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(comms[0].aclose)
        await trio.sleep(1.0)
        await cluster.start_host(0)
        await trio.sleep(after_ms / 1000)
        nursery.cancel_scope.cancel()
    cluster.network.node("train.0").crash()
    with trio.fail_after(AGAIN_S if after_ms > 10 else SUCCESSOR_S + AGAIN_S):
        await together(*[comm.aclose for comm in comms[1:]])
    with trio.fail_after(SUCCESSOR_S + AGAIN_S):
        await reduce_once(await cluster.job("again", PAIRS))


@in_memory("all left", hosts=3)
async def test_all_ranks_of_a_host_have_left_and_its_daemon_is_replaced(cluster: MemoryCluster) -> None:
    """Who has all results is not lost by that; whether or not its processes are there to say so."""
    comms = await cluster.job("train", 3)
    await reduce_once(comms)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(comms[0].aclose)
        await trio.sleep(0.05)
        await kill(cluster.hosts[0])
        await cluster.start_host(0)
        await trio.sleep(0.2)
        await together(*[comm.aclose for comm in comms[1:]])
    with trio.fail_after(AGAIN_S):
        await reduce_once(await cluster.job("train", 3))


# --- who does not come back


@pytest.mark.parametrize("when", ["while it is away", "when it is back"])
@in_memory("process dies/{when}", hosts=2, weather=WEATHER)
async def test_a_rank_whose_process_dies_meanwhile_is_named(cluster: MemoryCluster, when: str) -> None:
    training = Training(cluster, PAIRS)
    began = 0.0

    async def dies() -> None:
        nonlocal began
        await kill(cluster.hosts[0])
        if when == "while it is away":
            training.dies(1)
        await trio.sleep(0.2)
        began = trio.current_time()
        await cluster.start_host(0)
        if when == "when it is back":
            await trio.sleep(0.0015)
            training.dies(1)

    await training.run(dies)
    for rank in (0, 2, 3):
        at, _ = training.ends[rank]
        assert at - began <= SUCCESSOR_S
        assert isinstance(training.error(rank), RankLost), training.error(rank)
        assert "rank 1" in str(training.error(rank)) or "ranks 0, 1" in str(training.error(rank))
    await reduce_once(await cluster.job("again", PAIRS))


@in_memory("no successor", hosts=3)
async def test_a_host_without_successor_is_named_and_its_ranks_say_so(cluster: MemoryCluster) -> None:
    training = Training(cluster, (0, 1, 1, 2))
    began = 0.0

    async def dies() -> None:
        nonlocal began
        began = trio.current_time()
        await kill(cluster.hosts[1])

    await training.run(dies)
    for rank in (0, 3):
        assert isinstance(training.error(rank), RankLost)
        assert "h1" in str(training.error(rank))
        assert training.ends[rank][0] - began <= HOST_BACK_S
    for rank in (1, 2):
        assert isinstance(training.error(rank), DaemonUnreachable)
        assert "no successor" in str(training.error(rank))
        assert training.ends[rank][0] - began <= SUCCESSOR_S + 0.1


@in_memory("late successor", hosts=2)
async def test_a_successor_that_comes_too_late_says_that_the_job_is_over(cluster: MemoryCluster) -> None:
    training = Training(cluster, PAIRS)

    async def comes_late() -> None:
        await kill(cluster.hosts[0])
        await trio.sleep(6)
        await cluster.start_host(0)

    await training.run(comes_late)
    for rank in (2, 3):
        assert isinstance(training.error(rank), RankLost)
    for rank in (0, 1):
        assert "it has ended meanwhile" in str(training.error(rank))
    with trio.fail_after(AGAIN_S):
        await reduce_once(await cluster.job("train", PAIRS))


# --- jobs of other kinds


@in_memory("elastic", hosts=2, weather=WEATHER)
async def test_an_elastic_job_goes_on_whole(cluster: MemoryCluster) -> None:
    training = Training(cluster, PAIRS, elastic=True)

    async def replace() -> None:
        for number in (0, 1):
            await kill(cluster.hosts[number])
            await cluster.start_host(number)
            await trio.sleep(0.1)
        await training.more()

    await training.run(replace)
    training.all_well()


@in_memory("one host", hosts=1)
async def test_ranks_that_are_all_on_one_host_hear_that_their_daemon_is_gone(cluster: MemoryCluster) -> None:
    training = Training(cluster, (0, 0))
    began = 0.0

    async def dies() -> None:
        nonlocal began
        began = trio.current_time()
        await kill(cluster.hosts[0])
        await cluster.start_host(0)

    await training.run(dies)
    for rank in (0, 1):
        assert isinstance(training.error(rank), DaemonUnreachable)
        assert training.ends[rank][0] - began <= 0.5
    await reduce_once(await cluster.job("train", (0, 0)))


@in_memory("joining", hosts=2)
async def test_ranks_that_still_join_ask_the_successor(cluster: MemoryCluster) -> None:
    comms: list[inaproto.Communicator] = []

    async def join(rank: int) -> None:
        comms.append(await cluster.connect("train", rank, size=4, host=PAIRS[rank]))

    async with trio.open_nursery() as nursery:
        for rank in (0, 1, 2):
            nursery.start_soon(join, rank)
        await trio.sleep(0.1)
        await kill(cluster.hosts[0])
        await cluster.start_host(0)
        await trio.sleep(0.1)
        nursery.start_soon(join, 3)
    await reduce_once(comms)


@in_memory("nothing is left", hosts=3)
async def test_nothing_is_left_of_many_replacements(cluster: MemoryCluster) -> None:
    training = Training(cluster, (0, 1, 1, 2))

    async def replace() -> None:
        for number in (0, 1, 2, 1, 1):
            await kill_in_the_middle(cluster.hosts[number], 9)
            await cluster.start_host(number)
            await trio.sleep(0.1)
        await training.more()
        for life in cluster.hosts.values():
            assert len(rings_of(life)) == 1

    await training.run(replace)
    training.all_well()
    await trio.sleep(0.1)
    as_new(cluster)
