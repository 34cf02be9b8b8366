"""Rings along trees of two spines over the same leaves, through real daemons in virtual time.

Every result is compared, by equality, with numpy's of the nested plan, which is the same on both trees.
"""

from __future__ import annotations

from typing import Any

import pytest

from inaproto.core.rendezvous_types import TreeState, TreeWished
from inaproto.daemon.control_plane import ControlPlane
from inaproto.daemon.switch import Switch
from tests.daemon.fabrics import SEATS, tree_of_root, two_spines
from tests.daemon.memory_cluster import DIRECTORY, MemoryCluster, run_world
from tests.daemon.test_memory_recovery import WEATHER
from tests.daemon.test_two_paths import Given, RackJob, alternate, past

FABRIC = two_spines(DIRECTORY)


def switch(cluster: MemoryCluster, name: str) -> Switch:
    found = cluster.switches[name].daemon
    assert found is not None
    return found


def plane(cluster: MemoryCluster) -> ControlPlane:
    found = switch(cluster, "spine").plane
    assert found is not None
    return found


def wish(cluster: MemoryCluster, **roots: str) -> None:
    """The tree of each job's root."""
    wishes = (TreeWished(job, 1, tree_of_root(root)) for job, root in roots.items())
    plane(cluster).wish_trees(tuple(wishes))


def state(cluster: MemoryCluster, job: str) -> TreeState:
    (found,) = [one for one in plane(cluster).tree_states() if one.job == job]
    return found


def summed(cluster: MemoryCluster, name: str) -> int:
    """Packets that a switch has added up."""
    return switch(cluster, name).status()["accelerator"]["counters"]["aggregated_in"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("weather", ["", WEATHER], ids=["clear", "weather"])
def test_a_job_is_summed_along_the_tree_of_a_further_root(weather: str) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        wish(cluster, train="spine1")
        job = RackJob(cluster, 4, 8, "further")

        async def look() -> None:
            await past(job, 7)
            assert state(cluster, "train").phase == "standing"
            assert state(cluster, "train").pool == "shared@spine1"
            assert summed(cluster, "spine1") > 0
            assert summed(cluster, "spine") == 0

        await job.run(look)
        assert job.paths == {"switch", "chain"}

    options: dict[str, Any] = {"fabric": FABRIC, "seats": SEATS, "turns": Given(alternate)}
    run_world(f"roots/{weather}", scenario, hosts=4, weather=weather, **options)
