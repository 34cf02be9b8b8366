"""Jobs move between the trees of two spines while they train, by the daemons and a controller that may die.

MINA, section IV-A, live: switches lend slots, the root of the fabric parks rings and lays them anew, and
hosts sum meanwhile. Every test is one seeded run in virtual time; every result is compared with numpy's, by
equality.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
import trio

from inaproto_controller.cluster.graph_file import parse_json
from tests.daemon.fabrics import SEATS, two_spines
from tests.daemon.memory_cluster import DIRECTORY, MemoryCluster, run_world
from tests.daemon.sharing_cluster import AGENTS, Disk, LiveController, Training
from tests.daemon.test_further_roots import plane, switch, told

pytestmark = pytest.mark.timeout(600)
HOSTS: Final = 4
SWITCHES: Final = ("spine", "spine1", "leaf0", "leaf1")
CLUSTER: Final[dict[str, Any]] = {
    "hosts": [f"h{number}" for number in range(HOSTS)],
    "switches": [{"name": name, "jobs": 1} for name in SWITCHES],
    "links": [
        *({"between": [f"h{number}", leaf]} for number, leaf in enumerate(SEATS)),
        *({"between": [leaf, spine]} for leaf in SWITCHES[2:] for spine in SWITCHES[:2]),
    ],
}
TOPOLOGY: Final = parse_json(json.dumps(CLUSTER).encode())
OPTIONS: Final[dict[str, Any]] = {
    "fabric": two_spines(DIRECTORY),
    "seats": SEATS,
    "controller": [AGENTS],
    "switch": {"controller": [AGENTS]},
}


class RackTraining(Training):
    """Of hosts in two racks: each adds up its own first."""

    def expected(self, index: int) -> Any:
        parts = [self.part(index, rank) for rank in range(len(self.places))]
        return (parts[0] + parts[1]) + (parts[2] + parts[3])


def training(cluster: MemoryCluster, name: str, steps: int) -> RackTraining:
    return RackTraining(cluster, name, (0, 1, 2, 3), steps=steps)


def slow_training(cluster: MemoryCluster, name: str) -> RackTraining:
    """Of few all-reduces, in so many seconds that all that was lost comes back meanwhile."""
    return RackTraining(cluster, name, (0, 1, 2, 3), steps=60, sizes=(300,), think_s=0.2)


async def leading(cluster: MemoryCluster, nursery: trio.Nursery, disk: Disk) -> LiveController:
    controller = LiveController(cluster, disk, topology=TOPOLOGY)
    await nursery.start(controller.run)
    await controller.until_hosts(HOSTS)
    return controller


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  it happens in daemons, in virtual time
        await trio.sleep(0.005)


def ring(cluster: MemoryCluster, job: str) -> tuple[str, str]:
    """Phase and pool, at the root."""
    found = next((one for one in plane(cluster).tree_states() if one.job == job), None)
    return ("", "") if found is None else (found.phase, found.pool)


def lent(cluster: MemoryCluster, job: str) -> dict[str, int]:
    """Epoch of the job's lease, by switch."""
    return {
        name: lease["epoch"]
        for name in SWITCHES
        for lease in switch(cluster, name).slots.status()["held"]
        if lease["job"] == job
    }


def is_at(cluster: MemoryCluster, job: str, root: str) -> bool:
    pool = "shared" if root == "spine" else f"shared@{root}"
    return ring(cluster, job) == ("standing", pool) and set(lent(cluster, job)) == {"leaf0", "leaf1", root}


async def move(controller: LiveController, job: str, root: str, disk: Disk) -> None:
    assert controller.trees is not None
    await controller.trees.pin(job, root, disk.put)


def test_two_jobs_that_come_to_one_root_part_and_both_have_it_to_themselves() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        async with trio.open_nursery() as nursery:
            controller = await leading(cluster, nursery, Disk())
            jobs = [training(cluster, name, 24) for name in ("a", "b")]

            async def look() -> None:
                await until(lambda: all(ring(cluster, job)[0] for job in "ab"))
                rings = [told(cluster, job)["ring_id"] for job in "ab"]
                await until(lambda: {ring(cluster, job)[1] for job in "ab"} == {"shared", "shared@spine1"})
                await until(lambda: all(ring(cluster, job)[0] == "standing" for job in "ab"))
                for job in jobs:
                    await job.past(60)
                assert {is_at(cluster, "a", "spine"), is_at(cluster, "b", "spine")} == {True, False}
                assert [told(cluster, job)["ring_id"] for job in "ab"] == rings, "no generation has ended"

            async with trio.open_nursery() as running:
                for job in jobs:
                    running.start_soon(job.run)
                running.start_soon(look)
            assert all("switch" in job.paths for job in jobs)
            await controller.kill()
            nursery.cancel_scope.cancel()

    run_world("migration/part", scenario, hosts=HOSTS, **OPTIONS)


@pytest.mark.parametrize("weather", ["", "drop=0.01,duplicate=0.005,reorder=0.01"], ids=["clear", "weather"])
def test_a_job_is_moved_there_and_back_and_nothing_is_lost(weather: str) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        disk = Disk()
        async with trio.open_nursery() as nursery:
            controller = await leading(cluster, nursery, disk)
            job = training(cluster, "a", 24 if weather else 45)
            moves = 2 if weather else 6

            async def look() -> None:
                await until(lambda: is_at(cluster, "a", "spine"))
                first = told(cluster, "a")["ring_id"]
                for number in range(moves):
                    root = ("spine1", "spine")[number % 2]
                    await move(controller, "a", root, disk)
                    await until(lambda root=root: is_at(cluster, "a", root))  # type: ignore[misc]
                    done = min(job.done)
                    await job.past(done + 6)
                assert controller.trees is not None
                done_moves = controller.trees.status()["moves"]["done"]
                assert len(done_moves) == moves
                assert told(cluster, "a")["ring_id"] == first, "no generation has ended"
                assert all(one["drain_s"] >= 0 and one["total_s"] > 0 for one in done_moves)

            async with trio.open_nursery() as running:
                running.start_soon(job.run)
                running.start_soon(look)
            assert {"switch", "chain"} <= set(job.paths)
            await controller.kill()
            nursery.cancel_scope.cancel()

    run_world(f"migration/back/{weather}", scenario, hosts=HOSTS, weather=weather, **OPTIONS)


@pytest.mark.parametrize("after_ms", [0, 8, 25, 80])
def test_a_controller_killed_at_any_instant_of_a_move_is_followed_by_one_that_ends_it(after_ms: int) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        disk = Disk()
        async with trio.open_nursery() as nursery:
            controller = await leading(cluster, nursery, disk)
            job = training(cluster, "a", 40)

            async def look() -> None:
                await until(lambda: is_at(cluster, "a", "spine"))
                await move(controller, "a", "spine1", disk)
                await trio.sleep(after_ms / 1000)
                await controller.kill()
                done = min(job.done)
                await job.past(done + 6)
                again = await leading(cluster, nursery, disk)
                await until(lambda: is_at(cluster, "a", "spine1"))
                done = min(job.done)
                await job.past(done + 6)
                await again.kill()

            async with trio.open_nursery() as running:
                running.start_soon(job.run)
                running.start_soon(look)
            nursery.cancel_scope.cancel()

    run_world(f"migration/killed/{after_ms}", scenario, hosts=HOSTS, **OPTIONS)


@pytest.mark.parametrize("name", ["spine1", "leaf0", "spine"])
def test_a_switch_that_is_lost_and_comes_back_has_its_jobs_again(name: str) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        disk = Disk()
        async with trio.open_nursery() as nursery:
            controller = await leading(cluster, nursery, disk)
            job = slow_training(cluster, "a")

            async def look() -> None:
                await until(lambda: is_at(cluster, "a", "spine"))
                await move(controller, "a", "spine1", disk)
                await until(lambda: is_at(cluster, "a", "spine1"))
                await cluster.switches[name].crash()
                await trio.sleep(0.1)
                await cluster.start_switch(name)
                await until(lambda: is_at(cluster, "a", "spine1"))
                done = min(job.done)
                await job.past(done + 3)

            async with trio.open_nursery() as running:
                running.start_soon(job.run)
                running.start_soon(look)
            await controller.kill()
            nursery.cancel_scope.cancel()

    run_world(f"migration/lost/{name}", scenario, hosts=HOSTS, **OPTIONS)
