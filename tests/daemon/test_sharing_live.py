"""Jobs that share one pool of switch memory by turns, through real daemons and a controller that may die.

Every test is one seeded run in virtual time. Results are compared, by equality, with numpy.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import trio

from inaproto.core.sharing.events import Mark
from inaproto.daemon.net.control_stream import ControlStream
from inaproto.errors import JobError, JoinRefused
from inaproto.units import Epoch, JobId
from inaproto.wire.control_messages import Error
from inaproto.wire.messages.controller import AgentHello, AgentWelcome
from inaproto.wire.messages.sharing import AskPeer, Drained, Seat, Version
from inaproto_controller.cluster.desired import Desired, Job, JobSpec, JobState
from tests.clusters.memory import MemoryCluster, in_memory, run_world
from tests.clusters.sharing import AGENTS, Disk, LiveController, Training, pool_of, seats_of
from tests.seeds import seeds

OPTIONS: dict[str, Any] = {"controller": [AGENTS]}
LOSSY = "drop=0.01,duplicate=0.005,reorder=0.01"


async def leading(
    cluster: MemoryCluster, nursery: trio.Nursery, disk: Disk, **options: Any
) -> LiveController:
    """A controller that all hosts have found."""
    controller = LiveController(cluster, disk, **options)
    await nursery.start(controller.run)
    await controller.until_hosts(len(cluster.hosts))
    return controller


def assert_both_paths(*jobs: Training) -> None:
    for job in jobs:
        assert set(job.paths) == {"switch", "chain"}, (job.name, Counter(job.paths))


@pytest.mark.parametrize("weather", ["", LOSSY])
@pytest.mark.parametrize("seed", seeds(2))
def test_two_jobs_use_the_pool_by_turns(seed: int, weather: str) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        async with trio.open_nursery() as nursery:
            controller = await leading(cluster, nursery, Disk())
            jobs = [Training(cluster, name, (0, 1), steps=25) for name in ("a", "b")]

            async def look() -> None:
                for job in jobs:
                    await job.past(60)
                pool = await pool_of(cluster)
                assert pool["takeovers"] >= 4
                assert pool["conflicts"] == 0
                assert all(its["step_operations"] == 3 for its in controller.group["jobs"].values())

            async with trio.open_nursery() as running:
                running.start_soon(jobs[0].run)
                running.start_soon(jobs[1].run)
                running.start_soon(look)
            assert_both_paths(*jobs)
            await controller.kill()
            nursery.cancel_scope.cancel()

    run_world(f"sharing/{seed}", scenario, hosts=2, weather=weather, **OPTIONS)


@pytest.mark.parametrize("after", [20, 37])
@in_memory("sharing/killed/{after}", hosts=2, **OPTIONS)
async def test_jobs_go_on_without_the_controller_and_take_turns_again_with_the_next(
    cluster: MemoryCluster, after: int
) -> None:
    disk = Disk()
    async with trio.open_nursery() as nursery:
        controller = await leading(cluster, nursery, disk)
        jobs = [Training(cluster, name, (0, 1), steps=56) for name in ("a", "b")]
        turns: list[int] = []

        async def strike() -> None:
            await jobs[0].past(after)
            await controller.kill()
            before = max((await pool_of(cluster))["epochs"])
            done = [min(job.done) for job in jobs]
            for job, count in zip(jobs, done, strict=True):
                await job.past(count + 40)
            assert max((await pool_of(cluster))["epochs"]) <= before + 1  # decided before it died
            again = await leading(cluster, nursery, disk)
            for job in jobs:
                await job.past(150)
            pool = await pool_of(cluster)
            assert max(pool["epochs"]) > before + 1
            assert pool["conflicts"] == 0
            assert again.group["term"] == 2
            turns.extend(its["turns"] for its in again.group["jobs"].values())
            await again.kill()

        async with trio.open_nursery() as running:
            running.start_soon(jobs[0].run)
            running.start_soon(jobs[1].run)
            running.start_soon(strike)
        assert_both_paths(*jobs)
        assert min(turns) >= 1
        nursery.cancel_scope.cancel()


@in_memory("sharing/host dies", hosts=4, **OPTIONS)
async def test_a_job_whose_host_dies_leaves_the_pool_to_the_other(cluster: MemoryCluster) -> None:
    async with trio.open_nursery() as nursery:
        controller = await leading(cluster, nursery, Disk())
        lost = Training(cluster, "lost", (0, 1), steps=100)
        other = Training(cluster, "other", (2, 3), steps=60)

        async def fails() -> None:
            with pytest.raises(BaseExceptionGroup) as caught:
                await lost.run()
            assert caught.group_contains(JobError)

        async def strike() -> None:
            await lost.past(40)
            await other.past(40)
            await cluster.hosts[0].crash()
            before = controller.group["jobs"]["other"]["turns"]
            await other.past(120)
            group = controller.group
            assert list(group["jobs"]) == ["other"]
            assert group["jobs"]["other"]["turns"] > before
            assert (await pool_of(cluster))["conflicts"] == 0
            [turn] = group["turns"]
            assert (turn["job"], turn["until"]) == ("other", None)  # it is alone

        async with trio.open_nursery() as running:
            running.start_soon(fails)
            running.start_soon(other.run)
            running.start_soon(strike)
        assert_both_paths(other)
        await controller.kill()
        nursery.cancel_scope.cancel()


@in_memory("sharing/switch", hosts=2, **OPTIONS)
async def test_a_job_that_loses_the_switch_has_new_seats_and_turns_again(cluster: MemoryCluster) -> None:
    async with trio.open_nursery() as nursery:
        controller = await leading(cluster, nursery, Disk())
        jobs = [Training(cluster, name, (0, 1), steps=50) for name in ("a", "b")]

        async def strike() -> None:
            await jobs[0].past(50)
            before = [seat["life"] for seat in seats_of(cluster.hosts[0].daemon)]
            assert cluster.switch is not None
            await cluster.switch.crash()
            await cluster.start_switch()
            for job in jobs:
                await job.past(120)
            seats = seats_of(cluster.hosts[0].daemon)
            assert not set(before) & {seat["life"] for seat in seats}
            assert (await pool_of(cluster))["takeovers"] >= 2

        async with trio.open_nursery() as running:
            running.start_soon(jobs[0].run)
            running.start_soon(jobs[1].run)
            running.start_soon(strike)
        assert_both_paths(*jobs)
        await controller.kill()
        nursery.cancel_scope.cancel()


@in_memory("sharing/two places", hosts=2, switch={"pool_rings": 2}, **OPTIONS)
async def test_a_pool_of_two_places_serves_two_of_three_jobs_at_once(cluster: MemoryCluster) -> None:
    async with trio.open_nursery() as nursery:
        controller = await leading(cluster, nursery, Disk(), capacity=2)
        jobs = [Training(cluster, name, (0, 1), steps=30) for name in ("a", "b", "c")]
        most = 0

        async def look() -> None:
            nonlocal most
            await jobs[0].past(1)
            while min(jobs[0].done) < 75:
                most = max(most, len(controller.group["turns"]))
                await trio.sleep(0.001)
            pool = await pool_of(cluster)
            assert pool["capacity"] == 2
            assert pool["takeovers"] >= 4
            assert pool["conflicts"] == 0

        async with trio.open_nursery() as running:
            for job in jobs:
                running.start_soon(job.run)
            running.start_soon(look)
        assert most == 2
        assert_both_paths(*jobs)
        await controller.kill()
        nursery.cancel_scope.cancel()


@in_memory("sharing/stranger", hosts=1, **OPTIONS)
async def test_a_host_that_speaks_for_a_seat_of_another_is_cut_off(cluster: MemoryCluster) -> None:
    async with trio.open_nursery() as nursery:
        controller = await leading(cluster, nursery, Disk())
        stream = ControlStream(cluster.network.node("stranger").dial(AGENTS))
        await stream.send(AgentHello(role="host", agent="h1", boot_id="1"))
        assert isinstance(await stream.receive(), AgentWelcome)
        seat = Seat(JobId("train"), "h0", 1)
        await stream.send(Drained(seat=seat, epoch=Epoch(1)))
        answer = await stream.receive()
        assert isinstance(answer, Error)
        assert answer.code == "bad_message"
        assert "host 'h1' speaks for 'h0'" in answer.message
        stream.close()
        await controller.kill()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", seeds(2))
def test_a_rank_at_the_wrong_host_is_told_where_it_belongs(seed: int) -> None:
    """docs/protocol.md 17, over lossy links: neither who comes first nor what is lost changes it."""
    train = Job(number=1, spec=JobSpec(name="train", hosts=2), state=JobState.PLACED, hosts=("h2", "h1"))

    async def scenario(cluster: MemoryCluster) -> None:
        async with trio.open_nursery() as nursery:
            controller = await leading(cluster, nursery, Disk(), desired=Desired({1: train}, next_job=2))
            for rank, host, right in ((0, 0, "h2"), (1, 0, "h1"), (0, 1, "h2"), (1, 2, "h1")):
                with pytest.raises(JoinRefused, match=f"placed it on {right}, one of h2, h1, not on h{host}"):
                    await cluster.connect("train", rank, size=2, host=host)
            own = await cluster.job("own", (0, 1))
            ranks = await cluster.job("train", (2, 1))
            results: list[float] = []

            async def add(one: Any) -> None:
                results.append(float((await one.all_reduce(np.ones(9, np.float32))).sum()))

            async with trio.open_nursery() as adding:
                for one in (*own, *ranks):
                    adding.start_soon(add, one)
            assert results == [18.0] * 4
            await controller.kill()
            nursery.cancel_scope.cancel()

    run_world(f"sharing/places/{seed}", scenario, hosts=3, weather=LOSSY, **OPTIONS)


@in_memory("sharing/peers", hosts=3, **OPTIONS)
async def test_a_question_to_a_peer_goes_through_the_control_plane_of_the_switches(
    cluster: MemoryCluster,
) -> None:
    """No controller is needed for it, and nobody asks in another's name."""
    async with trio.open_nursery() as nursery:
        controller = await leading(cluster, nursery, Disk())
        job = Training(cluster, "train", (0, 1), steps=30)

        async def ask() -> None:
            await job.past(9)
            await controller.kill()
            daemons = [cluster.hosts[host].daemon for host in range(3)]
            lives = [seats_of(one)[0]["life"] for one in daemons[:2]]
            seats = [Seat(JobId("train"), f"h{host}", lives[host]) for host in range(2)]
            version = Version(term=1, number=1000)
            assert daemons[0] is not None
            fabric = daemons[0].fabric
            assert fabric is not None
            fabric.tell_peer(AskPeer(seat=seats[1], sender=seats[1], version=version))
            fabric.tell_peer(AskPeer(seat=seats[1], sender=seats[0], version=version))
            promised, stale = Mark.PROMISED.value, Mark.STALE.value
            stranger = daemons[2]
            assert stranger is not None
            assert stranger.fabric is not None
            forged = Seat(JobId("train"), "h2", 1)
            later = Version(term=9, number=1)
            stranger.fabric.tell_peer(AskPeer(seat=seats[1], sender=forged, version=later))
            await job.past(18)
            assert seats_of(daemons[1])[0]["counters"][promised] == 1
            assert stale in seats_of(daemons[0])[0]["counters"]  # the answer to what it was not in doubt of

        async with trio.open_nursery() as running:
            running.start_soon(job.run)
            running.start_soon(ask)
        nursery.cancel_scope.cancel()
