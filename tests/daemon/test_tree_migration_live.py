"""A job moves between the trees of two spines while it trains, by the daemons and a controller that dies.

MINA, section IV-A, live: switches lend slots, the root of the fabric parks rings and lays them anew, and
hosts sum meanwhile. One seeded run in virtual time; every result is compared with numpy's, by equality.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
import trio

from inaproto_controller.cluster.graph_file import parse_json
from tests.clusters.fabrics import SEATS, two_spines
from tests.clusters.memory import DIRECTORY, MemoryCluster, in_memory
from tests.clusters.sharing import AGENTS, Disk, LiveController, Training
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


@in_memory("migration/back", hosts=HOSTS, **OPTIONS)
async def test_a_job_moves_there_and_back_and_a_dead_controller_is_followed_by_one_that_ends_the_move(
    cluster: MemoryCluster,
) -> None:
    """Who dies when, and who loses what, is drawn in worlds of trees (``inaproto soak --world trees``)."""
    disk = Disk()
    async with trio.open_nursery() as nursery:
        controller = await leading(cluster, nursery, disk)
        job = training(cluster, "a", 44)

        async def look() -> None:
            await until(lambda: is_at(cluster, "a", "spine"))
            first = told(cluster, "a")["ring_id"]
            await move(controller, "a", "spine1", disk)
            await until(lambda: is_at(cluster, "a", "spine1"))
            await job.past(min(job.done) + 6)
            assert controller.trees is not None
            [done] = controller.trees.status()["moves"]["done"]
            assert done["drain_s"] >= 0
            assert done["total_s"] > 0
            await move(controller, "a", "spine", disk)
            await trio.sleep(0.025)
            await controller.kill()
            await job.past(min(job.done) + 6)
            again = await leading(cluster, nursery, disk)
            await until(lambda: is_at(cluster, "a", "spine"))
            await job.past(min(job.done) + 6)
            assert told(cluster, "a")["ring_id"] == first, "no generation has ended"
            await again.kill()

        async with trio.open_nursery() as running:
            running.start_soon(job.run)
            running.start_soon(look)
        assert {"switch", "chain"} <= set(job.paths)
        nursery.cancel_scope.cancel()
