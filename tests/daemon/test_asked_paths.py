"""Jobs that ask for a path by their hosts, through real daemons: bytes, recovery, words.

The ring is compared, by equality, with a numpy reference of its rotated order: message m of a job begins at
the host of position ``m mod P``. Every test is one seeded run in virtual time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.core.host.events import NicRefused
from inaproto.daemon.observe.status_tables import costs_note, fallback_note
from inaproto.errors import JobError, JoinRefused, RankLost
from inaproto.wire.control_messages import Halt, Message, Ring, Start
from tests.clusters.fabrics import spine_and_leaves
from tests.clusters.memory import DIRECTORY, MemoryCluster, in_memory, run_world
from tests.daemon import test_memory_recovery as recovery
from tests.daemon.test_allreduce_end_to_end import draw, nested_reference, numpy_dtype, reference
from tests.daemon.test_memory_recovery import FAULTS, WEATHER, Fault, daemon
from tests.daemon.test_memory_recovery_orders import close_all, fabric_of, lose_fabric_at, reduce_once
from tests.daemon.test_ranks_per_host import ALONE, PAIRS, PLACES, as_new
from tests.seeds import seeds

MESSAGE_BYTES = 728
TRIPLE = (0, 1, 2, 0, 1, 2)


def messages_of(array: Any) -> int:
    return max(1, -(-int(array.nbytes) // MESSAGE_BYTES))


def rotated_reference(arrays: Sequence[Any], places: Sequence[int], op: str, serial: int) -> Any:
    """Of an operation whose first message is the job's ``serial``th."""
    hosts = list(dict.fromkeys(places))
    parts = [
        reference([array for array, place in zip(arrays, places, strict=True) if place == host], op)
        for host in hosts
    ]
    result = np.empty_like(parts[0])
    elements = MESSAGE_BYTES // result.itemsize
    for number in range(messages_of(result)):
        start = (serial + number) % len(hosts)
        here = slice(number * elements, (number + 1) * elements)
        result[here] = reference([part[here] for part in parts[start:] + parts[:start]], op)
    return result


class Job(recovery.Job):
    """On a path that it asks for."""

    def __init__(
        self, cluster: MemoryCluster, path: str, operations: int, seed: object, places: Sequence[int]
    ) -> None:
        super().__init__(cluster, len(places), operations, seed, places)
        self.wishes = {"path": path}
        self.path = path

    def expected(self, index: int) -> Any:
        if self.path != "ring":
            return super().expected(index)
        serial = sum(messages_of(self.inputs(before)[0]) for before in range(index))
        return rotated_reference(self.inputs(index), self.places, self.called[index][1], serial)


async def connect_all(
    cluster: MemoryCluster, places: Sequence[int], **wishes: Any
) -> list[inaproto.Communicator]:
    found: dict[int, inaproto.Communicator] = {}

    async def one(rank: int) -> None:
        found[rank] = await cluster.connect("train", rank, size=len(places), host=places[rank], **wishes)

    async with trio.open_nursery() as nursery:
        for rank in range(len(places)):
            nursery.start_soon(one, rank)
    return [found[rank] for rank in range(len(places))]


# --- results


@pytest.mark.parametrize("path", ["chain", "overlay", "ring"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "float64", "int64"])
@pytest.mark.parametrize("placing", PLACES)
def test_results_have_the_bytes_of_the_path(placing: str, dtype: str, path: str) -> None:
    places = PLACES[placing]

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await connect_all(cluster, places, path=path)
        serial = 0
        for op, length in (("sum", 3000), ("max", 700), ("sum", 1), ("sum", 0), ("min", 365)):
            arrays = [
                draw(numpy_dtype(dtype), (length,), (dtype, length, rank)) for rank in range(len(places))
            ]
            if path == "ring":
                expected = rotated_reference(arrays, places, op, serial)
            else:
                expected = nested_reference(arrays, places, op)
            for work in [comm.all_reduce(array, op) for comm, array in zip(comms, arrays, strict=True)]:
                assert (await work).tobytes() == expected.tobytes()
            serial += messages_of(arrays[0])
        done = {record.path for comm in comms for record in comm.statistics().recent}
        assert done == {"local" if places == ALONE else path}
        await close_all(comms)
        await trio.sleep(0.1)
        as_new(cluster)

    hosts = len(set(places))
    run_world(f"asked/{placing}/{dtype}/{path}", scenario, hosts=hosts, weather=WEATHER)


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
        comms = await connect_all(cluster, TRIPLE, path=path)
        await reduce_once(comms)
        [ring] = daemon(cluster, 0).status()["rings"]
        assert (ring["path"], ring["recoveries"], ring["halted_because"]) == (path, 0, [])
        await close_all(comms)

    run_world(f"status/{path}/{recover_ms}", scenario, hosts=3, recover_ms=recover_ms)


# --- recovery


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize(("path", "places"), [("ring", (0, 1, 2)), ("ring", TRIPLE), ("overlay", TRIPLE)])
@pytest.mark.parametrize("name", FAULTS)
def test_a_ring_of_hosts_goes_on_whatever_ends_it(
    name: str, path: str, places: Sequence[int], seed: int
) -> None:
    draws = random.Random(f"{name}/{places}/{seed}")

    async def scenario(cluster: MemoryCluster) -> None:
        job = Job(cluster, path, 8, (name, seed), places)

        async def strike() -> None:
            for _ in range(1 if name == "queue pair" else draws.randint(1, 3)):  # a second break may end it
                await trio.sleep(draws.uniform(0.005, 0.05))
                await FAULTS[name](cluster, draws)

        await job.run(strike)
        assert job.paths == {path}

    weather = draws.choice(("", WEATHER))
    run_world(f"{path} goes on/{name}/{places}/{seed}", scenario, hosts=3, weather=weather)


@pytest.mark.parametrize("path", ["chain", "overlay", "ring"])
@in_memory("all faults/{path}", hosts=4, weather=WEATHER)
async def test_every_fault_at_once(cluster: MemoryCluster, path: str) -> None:
    draws = random.Random(f"all on {path}")

    job = Job(cluster, path, 10, "all", (0, 1, 2, 3))

    def strike(fault: Fault) -> Callable[[], Any]:
        async def struck() -> None:
            for _ in range(2):
                await trio.sleep(draws.uniform(0.0, 0.3))
                await fault(cluster, draws)

        return struck

    await job.run(*(strike(FAULTS[name]) for name in ("switch crash", "fabric", "queue pair")))
    assert job.paths == {path}


@pytest.mark.parametrize("kind", [Halt, Ring, Start])
@in_memory("asked, first {kind.__name__}", hosts=3)
async def test_a_connection_lost_before_the_first_ring_runs(
    cluster: MemoryCluster, kind: type[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = lose_fabric_at(monkeypatch, "h1", kind)

    arm()
    comms = await connect_all(cluster, TRIPLE, path="ring")
    await reduce_once(comms)
    assert comms[0].statistics().recent[0].path == "ring"
    await close_all(comms)
    await trio.sleep(0.1)
    as_new(cluster)


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
        await recovery.restart_switch(cluster, random.Random(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(strike)
        comms = await connect_all(cluster, (0, 1, 2), path="ring")
        await reduce_once(comms)
    await close_all(comms)


@pytest.mark.parametrize("after_ms", [1, 2, 3, 4, 5, 6, 8, 10, 12])
@in_memory("asked, dies/{after_ms}", hosts=2)
async def test_a_process_that_dies_at_any_moment_of_the_beginning_is_named_or_replaced(
    cluster: MemoryCluster, after_ms: int
) -> None:
    async def dies() -> None:
        with trio.move_on_after(after_ms / 1000):
            comm = await cluster.connect("train", 1, size=4, host=0, path="ring")
            comm.channel.close()
        await stubborn(1)

    async def stubborn(rank: int) -> None:
        while True:
            try:
                async with await cluster.connect(
                    "train", rank, size=4, host=PAIRS[rank], timeout=20, path="ring"
                ) as comm:
                    assert (await comm.all_reduce(np.ones(1000, np.float32)) == 4).all()
                    return
            except JobError:
                await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dies)
        for rank in (0, 2, 3):
            nursery.start_soon(stubborn, rank)
    await trio.sleep(1)
    as_new(cluster)


@in_memory("asked, broke twice", hosts=3)
async def test_a_path_asked_for_that_breaks_twice_in_one_place_fails_in_words(cluster: MemoryCluster) -> None:
    comms = await connect_all(cluster, (0, 1, 2), path="ring")
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


@in_memory("lost on the ring", hosts=3)
async def test_a_rank_that_is_lost_on_the_ring_is_named(cluster: MemoryCluster) -> None:
    comms = await connect_all(cluster, TRIPLE, path="ring")
    await reduce_once(comms)
    works = [comm.all_reduce(np.ones(9000, np.float32)) for comm in comms[:5]]
    comms[5].channel.close()
    for work in works:
        with pytest.raises(RankLost, match=r"rank 5 \(h2, pid \d+\) of job 'train' is lost"):
            await work
    await trio.sleep(0.5)
    as_new(cluster)
