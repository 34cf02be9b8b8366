"""A collective library beside the rings of real host daemons: one result on all ranks, whatever it does.

The library is the one in memory, which adds hosts from the last to the first: its sums are other bytes than
those of the plan, so each result shows who has summed. Every test is one seeded run in virtual time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.errors import ConfigError, JobError, Unsupported
from inaproto.faults.collective import NO_FAULTS, CollectiveFaults
from inaproto.ports import Attachment, OutOfBand
from inaproto.wire.messages.controller import AgentWelcome, GrantRecord
from inaproto_adapters.memory import MemoryTree, tree_named
from tests.clusters.jobs import WEATHER, Comms, close_all, daemon, fabric_of, restart_switch
from tests.clusters.memory import MemoryCluster, in_memory, run_world
from tests.daemon.test_allreduce_end_to_end import draw, nested_reference, reference
from tests.seeds import seeds

THREE = (0, 1, 2)
PAIRS = (0, 1, 0, 1)


def beside(name: str, **options: Any) -> dict[str, Any]:
    """Options of a cluster whose hosts have the library ``name``."""
    given = {"collective": f"memory-collective:{name}", "collective_kib_min": 0}
    return given | {"collective_timeout_ms": 2000} | options


def by_library(arrays: Sequence[Any], places: Sequence[int]) -> bytes:
    hosts = list(dict.fromkeys(places))
    parts = [[array for array, place in zip(arrays, places, strict=True) if place == host] for host in hosts]
    return bytes(reference([reference(part, "sum") for part in reversed(parts)], "sum").tobytes())


async def reduce(comms: Comms, index: int, places: Sequence[int] = THREE, elements: int = 700) -> str:
    """One all-reduce, which all ranks have alike; the path that it went by, as its bytes say too."""
    arrays = [draw(np.dtype(np.float32), (elements,), (index, rank)) for rank in range(len(places))]
    works = [comm.all_reduce(array) for comm, array in zip(comms, arrays, strict=True)]
    results = {bytes((await work).tobytes()) for work in works}
    assert len(results) == 1, "one result"
    paths = {comm.statistics().recent[-1].path for comm in comms}
    assert len(paths) == 1, "by one path"
    path = str(paths.pop())
    expected = nested_reference(arrays, places, "sum").tobytes()
    assert results == {by_library(arrays, places) if path == "sharp" else expected}
    return path


async def until_it_stands(comms: Comms, first: int = 0, places: Sequence[int] = THREE) -> int:
    """The index of the next all-reduce."""
    for index in range(first, first + 200):
        if await reduce(comms, index, places) == "sharp":
            return index + 1
        await trio.sleep(0.02)
    raise AssertionError("the collective does not stand")


def ring_of(cluster: MemoryCluster, host: int = 0) -> dict[str, Any]:
    [ring] = daemon(cluster, host).status()["rings"]
    assert isinstance(ring, dict)
    return ring


@in_memory("collective/sums", hosts=3, **beside("sums"))
async def test_all_ranks_have_its_sums_and_status_says_so(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", THREE, exact_plan=False)
    index = await until_it_stands(comms)
    for later in range(index, index + 20):
        assert await reduce(comms, later) == "sharp"
    for host in THREE:
        ring = ring_of(cluster, host)
        assert (ring["path"], ring["exact_plan"]) == ("sharp", False)
        assert (ring["collective"]["stands"], ring["collective"]["session"]) == (True, "attached")
        assert (ring["collective"]["taken"], ring["collective"]["redone_by_code"]) == (21, {})
    await close_all(comms)


@in_memory("collective/exact", hosts=3, **beside("exact"))
async def test_a_job_with_an_exact_plan_has_none(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", THREE)
    for index in range(5):
        assert await reduce(comms, index) == "switch"
    assert (ring_of(cluster)["collective"], ring_of(cluster)["exact_plan"]) == (None, True)
    await close_all(comms)


@in_memory("collective/asked", hosts=3, **beside("asked"))
async def test_a_job_that_asked_for_a_path_has_that_alone(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", THREE, exact_plan=False, path="chain")
    assert await reduce(comms, 0) == "chain"
    assert ring_of(cluster)["collective"] is None
    await close_all(comms)


@in_memory("collective/several", hosts=2, **beside("several"))
async def test_ranks_of_a_host_are_added_before_it(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", PAIRS, exact_plan=False)
    index = await until_it_stands(comms, 0, PAIRS)
    assert await reduce(comms, index, PAIRS) == "sharp"
    await close_all(comms)


@in_memory("collective/small", hosts=3, **beside("small", collective_kib_min=2))
async def test_what_is_small_goes_without_it(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", THREE, exact_plan=False)
    index = await until_it_stands(comms)
    assert await reduce(comms, index, elements=511) == "switch"
    assert await reduce(comms, index + 1, elements=512) == "sharp"
    await close_all(comms)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("failed", "failed"),
        ("failed_at_some", "failed"),
        ("never", "timed_out"),
        ("lost", "lost"),
        ("wrong", "differs"),
    ],
)
def test_an_operation_that_fails_is_redone_on_all_ranks_and_it_returns(fault: str, code: str) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        tree = tree_named(fault)
        tree.faults = NO_FAULTS
        comms = await cluster.job("train", THREE, exact_plan=False)
        index = await until_it_stands(comms)
        tree.faults = CollectiveFaults(**{fault: 1000})
        assert await reduce(comms, index) == "switch"
        tree.faults = NO_FAULTS
        found = Counter[str]()
        for host in THREE:
            found.update(ring_of(cluster, host)["collective"]["redone_by_code"])
            assert ring_of(cluster, host)["collective"]["reason"]
            assert daemon(cluster, host).status()["totals"]["redone_by_code"]
        assert found[code] >= 1
        await until_it_stands(comms, index + 1)
        assert ring_of(cluster)["exact_plan"] is False
        await close_all(comms)

    run_world(f"collective/{fault}", scenario, hosts=3, **beside(fault))


@in_memory("collective/lost", hosts=3, **beside("tree lost"))
async def test_a_tree_that_is_lost_is_fallen_back_from_visibly_and_returned_to(
    cluster: MemoryCluster,
) -> None:
    tree = tree_named("tree lost")
    comms = await cluster.job("train", THREE, exact_plan=False)
    index = await until_it_stands(comms)
    tree.is_busy = True
    tree.lose()
    for later in range(index, index + 6):
        assert await reduce(comms, later) == "switch"
        await trio.sleep(0.2)
    ring = ring_of(cluster)
    assert (ring["path"], ring["exact_plan"], ring["collective"]["stands"]) == ("switch", False, False)
    assert ring["collective"]["redone_by_code"] == {"lost": 1}
    assert "no resources" in ring["collective"]["reason"]
    tree.is_busy = False
    await until_it_stands(comms, index + 6)
    assert ring_of(cluster)["path"] == "sharp"
    await close_all(comms)


@in_memory("collective/lacks", hosts=3, **beside("lacks"))
async def test_a_library_that_lacks_what_it_is_asked_for_is_fallen_back_from(cluster: MemoryCluster) -> None:
    tree = tree_named("lacks")
    tree.lacks = "no function to attach with"
    comms = await cluster.job("train", THREE, exact_plan=False)
    for index in range(6):
        assert await reduce(comms, index) == "switch"
        await trio.sleep(0.2)
    assert "no function to attach with" in ring_of(cluster)["collective"]["reason"]
    tree.lacks = ""
    index = await until_it_stands(comms, 6)
    tree.lacks = "no function to add with"
    assert await reduce(comms, index) == "switch"
    assert ring_of(cluster)["collective"]["redone_by_code"] == {"lost": 1}
    tree.lacks = ""
    await until_it_stands(comms, index + 1)
    await close_all(comms)


@in_memory("collective/ring lost", hosts=3, **beside("ring lost"))
async def test_a_ring_that_ends_in_the_middle_of_votes(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", THREE, exact_plan=False)
    index = await until_it_stands(comms)
    draws = random.Random(4)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(restart_switch, cluster, draws)
            for _ in range(12):
                await reduce(comms, index)
                index += 1
                await trio.sleep(0.01)
    await close_all(comms)


@in_memory("collective/late", hosts=3, **beside("late"))
async def test_a_rank_that_is_later_than_the_library_waits(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", THREE, exact_plan=False)
    await until_it_stands(comms)
    arrays = [draw(np.dtype(np.float32), (700,), (99, rank)) for rank in THREE]
    works = [comm.all_reduce(array) for comm, array in zip(comms[:2], arrays[:2], strict=True)]
    await trio.sleep(5)
    works.append(comms[2].all_reduce(arrays[2]))
    assert {(await work).tobytes() for work in works} == {nested_reference(arrays, THREE, "sum").tobytes()}
    assert ring_of(cluster)["collective"]["redone_by_code"] == {"timed_out": 1}
    await close_all(comms)


@in_memory("collective/differ", hosts=3, **beside("differ"))
async def test_ranks_that_call_different_all_reduces_are_told(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", THREE, exact_plan=False)
    await until_it_stands(comms)
    works = [comm.all_reduce(np.ones(700 + (rank == 1), np.float32)) for rank, comm in enumerate(comms)]
    for work in works:
        with pytest.raises(inaproto.TensorMismatch, match="differs between ranks"):
            await work
    await close_all(comms)


@in_memory("collective/gone", hosts=3, **beside("gone"))
async def test_a_rank_that_is_lost_ends_the_job_and_the_attachment(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", THREE, exact_plan=False)
    await until_it_stands(comms)
    works = [comm.all_reduce(np.ones(700, np.float32)) for comm in comms[:2]]
    await comms[2].aclose()
    for work in works:
        with pytest.raises(JobError, match="rank 2"):
            await work
    again = await cluster.job("train", THREE, exact_plan=False)
    await until_it_stands(again)
    await close_all(again)


@in_memory("collective/one host", hosts=3)
async def test_hosts_that_have_not_all_the_same_have_none(cluster: MemoryCluster) -> None:
    await cluster.hosts[1].stop()
    cluster._options |= beside("one host")
    await cluster.start_host(1)
    comms = await cluster.job("train", THREE, exact_plan=False)
    assert await reduce(comms, 0) == "switch"
    assert [ring_of(cluster, host)["collective"] for host in THREE] == [None] * 3
    await close_all(comms)


@pytest.mark.parametrize("seed", seeds(8))
def test_whatever_the_library_does_there_is_one_result(seed: int) -> None:
    name = f"weather {seed}"
    faults = CollectiveFaults(
        refused=150, refused_at_one=150, failed=60, failed_at_some=60, never=30, lost=60, wrong=40
    )
    places = (THREE, (0, 1, 2, 1))[seed % 2]

    async def scenario(cluster: MemoryCluster) -> None:
        tree: MemoryTree = tree_named(name)
        tree.seed, tree.faults = seed, faults
        comms = await cluster.job("train", places, exact_plan=False)
        paths = Counter[str]()
        for index in range(40):
            paths[await reduce(comms, index, places)] += 1
            await trio.sleep(0.05 * (index % 3))
            if index == 20 and seed % 3 == 0:
                fabric_of(cluster, 1)._lose("the link was cut")
        assert set(paths) >= {"sharp"}, paths
        await close_all(comms)

    run_world(f"collective/{seed}", scenario, hosts=3, weather=WEATHER, **beside(name))


def test_a_library_that_is_none() -> None:
    from inaproto.daemon.settings.config import HostSettings
    from inaproto.parts import collective_of

    settings = HostSettings(name="h0", ip="10.0.0.1")
    assert collective_of(settings) is None
    for wrong in ("softnic", "nothing"):
        with pytest.raises((Unsupported, ConfigError), match=wrong):
            collective_of(settings.model_copy(update={"collective": wrong}))


# --- places that a controller gives and takes back (MINA, section IV-A)


def granted(cluster: MemoryCluster, *, place: bool, hosts: Sequence[int] = THREE) -> None:
    """A controller that gives places has placed the job at these hosts, and tells them so."""
    for host in hosts:
        seat = GrantRecord(
            grant=1, job=1, name="train", kind="seats", slots=(), first_rank=host, ranks=1, size=3
        )
        own = (GrantRecord(grant=2, job=1, name="train", kind="place", slots=()),)
        grants = daemon(cluster, host).grants
        grants.connected(AgentWelcome(term=1, report_ms=1000, gives_places=True), lambda message: None)
        grants.want((seat, *(own if place else ())))


def places_of(cluster: MemoryCluster, host: int) -> list[str]:
    """The phases of the places that a host holds."""
    return [hold.phase for hold in daemon(cluster, host).grants.holds() if hold.grant == 2]


@in_memory("collective/no place", hosts=3, **beside("no place"))
async def test_iv_a_a_placed_job_attaches_with_a_place_alone(cluster: MemoryCluster) -> None:
    asked: list[str] = []

    async def attach(job: str, attempt: int, others: OutOfBand) -> Attachment:
        asked.append(job)
        return await library.attach(job, attempt, others)

    beside_0 = daemon(cluster, 0).collective
    assert beside_0 is not None
    library = beside_0.library
    beside_0.library = SimpleNamespace(attach=attach, aclose=library.aclose)
    granted(cluster, place=False)
    comms = await cluster.job("train", THREE, exact_plan=False)
    for index in range(20):
        assert await reduce(comms, index) == "switch"
    assert ring_of(cluster)["collective"]["may_attach"] is False
    assert not asked, "the library hears nothing of it"
    granted(cluster, place=True)
    assert places_of(cluster, 0) == ["held"]
    await until_it_stands(comms, 20)
    assert places_of(cluster, 0) == ["running"]
    await close_all(comms)
    await trio.sleep(1)
    assert places_of(cluster, 0) == ["held"]


@pytest.mark.parametrize("seed", seeds(6))
def test_iv_a_a_place_is_left_under_a_running_job_and_nothing_is_lost(seed: int) -> None:
    """Hosts hear of it one after the other, and each says that it has none only when it has left."""

    async def scenario(cluster: MemoryCluster) -> None:
        granted(cluster, place=True)
        comms = await cluster.job("train", THREE, exact_plan=False)
        index = await until_it_stands(comms)
        dice = random.Random(seed)
        for _ in range(4):
            for number, host in enumerate(dice.sample(THREE, 3)):
                granted(cluster, place=False, hosts=(host,))
                assert number or places_of(cluster, host) == ["running"]
                if dice.random() < 0.5:
                    assert await reduce(comms, index) in ("sharp", "switch")
                    index += 1
            for _ in range(3):
                await reduce(comms, index)
                index += 1
            await trio.sleep(0.5)
            assert [places_of(cluster, host) for host in THREE] == [[], [], []]
            assert {ring_of(cluster, host)["collective"]["session"] for host in THREE} == {"detached"}
            for host in dice.sample(THREE, 3):
                granted(cluster, place=True, hosts=(host,))
                await trio.sleep(dice.random() / 10)
            index = await until_it_stands(comms, index)
        redone = ring_of(cluster)["collective"]["redone_by_code"]
        assert redone == {}, "who leaves takes the operation under way along"
        await close_all(comms)

    run_world(f"collective/left/{seed}", scenario, hosts=3, **beside(f"left {seed}"))
