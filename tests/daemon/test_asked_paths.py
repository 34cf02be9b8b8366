"""Jobs that ask for a path by their hosts, through real daemons: bytes, recovery, words.

The ring is compared, by equality, with a numpy reference of its rotated order: message m of a job begins at
the host of position ``m mod P``. Every test is one seeded run in virtual time.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import trio

import inaproto
from inaproto.core.host.events import NicRefused
from inaproto.daemon.observe.status_tables import costs_note, fallback_note
from inaproto.errors import JobError, JoinRefused
from inaproto.wire.control_messages import Halt
from tests.clusters.fabrics import spine_and_leaves
from tests.clusters.jobs import (
    TRIPLE,
    WEATHER,
    close_all,
    daemon,
    fabric_of,
    lose_fabric_at,
    reduce_once,
    restart_switch,
    rotated_reference,
)
from tests.clusters.memory import DIRECTORY, MemoryCluster, in_memory, run_world
from tests.daemon.test_allreduce_end_to_end import draw, nested_reference, numpy_dtype, reference

# --- results


def test_the_reference_rotates_and_is_another_than_the_plan() -> None:
    arrays = [draw(np.dtype(np.float32), (600,), rank) for rank in range(3)]
    ring = rotated_reference(arrays, (0, 1, 2), "sum", 0)
    plan = nested_reference(arrays, (0, 1, 2), "sum")
    assert ring[:182].tobytes() == plan[:182].tobytes()
    assert ring[182:].tobytes() != plan[182:].tobytes()
    assert np.allclose(ring, plan)


@pytest.mark.parametrize("path", ["chain", "overlay", "ring"])
@pytest.mark.parametrize("recover_ms", [0, 8000])
def test_status_names_the_path_and_that_it_was_asked_for(path: str, recover_ms: int) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", TRIPLE, path=path)
        await reduce_once(comms)
        [ring] = daemon(cluster, 0).status()["rings"]
        assert (ring["path"], ring["recoveries"], ring["halted_because"]) == (path, 0, [])
        await close_all(comms)

    run_world(f"status/{path}/{recover_ms}", scenario, hosts=3, recover_ms=recover_ms)


# --- recovery


@in_memory("asked, switch lost", hosts=3)
async def test_a_switch_lost_before_the_first_ring_runs(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = lose_fabric_at(monkeypatch, "h1", Halt)

    arm()

    async def strike() -> None:
        while not daemon(cluster, 0).status()["rings"]:
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.001)
        await restart_switch(cluster, random.Random(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(strike)
        comms = await cluster.job("train", (0, 1, 2), path="ring")
        await reduce_once(comms)
    await close_all(comms)


@in_memory("asked, broke twice", hosts=3)
async def test_a_path_asked_for_that_breaks_twice_in_one_place_fails_in_words(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", (0, 1, 2), path="ring")
    works = [comm.all_reduce(np.ones(10, np.float32)) for comm in comms[:2]]
    for _ in range(2):
        await trio.sleep(0.05)
        [ring] = fabric_of(cluster, 1).rings()
        ring.feed(NicRefused("the queue pair failed"))
    for work in works:
        with pytest.raises(JobError, match="it asked for the path ring alone: connect with path='auto'"):
            await work


# --- auto, where no chain can follow the plan


CROSSED = ("leaf0", "leaf1", "leaf0", "leaf1")


@pytest.mark.parametrize("dtype", ["int64", "bfloat16", "float32"])
@pytest.mark.parametrize(("kib", "exact_plan"), [(0, True), (24, True), (0, False)])
def test_hosts_in_crossed_racks_sum_up_a_tree_and_return_with_the_bytes_of_the_plan(
    dtype: str, kib: int, exact_plan: bool
) -> None:
    """The switches have no room (at all; while another job has it), and add ranks 0 and 2 first."""

    async def scenario(cluster: MemoryCluster) -> None:
        hog = await cluster.job("hog", 4) if kib else []
        comms = await cluster.job("train", 4, exact_plan=exact_plan)
        for index in range(12):
            arrays = [draw(numpy_dtype(dtype), (700,), (index, rank)) for rank in range(4)]
            works = [comm.all_reduce(array) for comm, array in zip(comms, arrays, strict=True)]
            if index == 3 and hog:
                await close_all(hog)
            racks = [reference(arrays[rack::2], "sum") for rack in range(2)]
            assert {(await work).tobytes() for work in works} == {reference(racks, "sum").tobytes()}
        paths = {record.path for record in comms[0].statistics().recent}
        assert paths == ({"overlay", "switch"} if kib else {"overlay"})
        await close_all(comms)

    fabric = spine_and_leaves(DIRECTORY)
    run_world(
        f"crossed/{dtype}/{kib}/{exact_plan}",
        scenario,
        hosts=4,
        weather=WEATHER,
        fabric=fabric,
        seats=CROSSED,
        switch={"memory_kib": kib},
    )


def test_where_link_figures_are_known_the_hosts_take_the_path_that_is_predicted_to_be_fastest() -> None:
    """No room in the switch, and links on which hops count: a tree."""

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", 5)
        await reduce_once(comms)
        switch = cluster.switches[""].daemon
        assert switch is not None
        assert switch.plane is not None
        [job] = switch.plane.status()["jobs"]
        assert job["path"] == comms[0].statistics().recent[0].path == "overlay"
        assert job["costs"] == "overlay: 1 level, predicted 3.01 ms against switch 3 ms, chain 12 ms"
        assert "is not summed in the switch" in fallback_note(job)
        assert costs_note(job) == f"train by {job['costs']}; links configured: 1000 us a hop, 10000 Mbit/s"
        await close_all(comms)

    figures = {"memory_kib": 0, "link_mbps": 10_000, "link_latency_us": 1000, "tensor_kib": 1}
    run_world("costs", scenario, hosts=5, switch=figures)


# --- who disagrees


@in_memory("disagree on the path", hosts=2)
async def test_ranks_that_ask_for_different_paths_are_told_so(cluster: MemoryCluster) -> None:
    async with trio.open_nursery() as nursery:
        found: dict[int, inaproto.Communicator] = {}

        async def one(rank: int) -> None:
            found[rank] = await cluster.connect("train", rank, size=2, path="ring")

        nursery.start_soon(one, 0)
        await trio.sleep(0.1)
        with pytest.raises(JoinRefused, match=r"its path is 'auto', rank 0 .* said 'ring'; connect with"):
            await cluster.connect("train", 1, size=2)
        nursery.start_soon(one, 1)
    await reduce_once([found[0], found[1]])
    await close_all([found[0], found[1]])
