"""The ring of a running job leaves its switches and comes back, elsewhere, in one deterministic program.

Daemons are real; who gives turns, and who wishes, is the test: operations go by the ring through the switches
but for those around each move, as hosts agree on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
import trio

from inaproto.core.host.engines.two_paths import Binding
from inaproto.core.host.operations import INA
from inaproto.daemon.switch.control_plane import ControlPlane
from inaproto.daemon.switch.daemon import Switch
from inaproto.units import Instant, OpIndex
from inaproto.wire.messages.trees import FabricTree, TreeState
from tests.clusters.fabrics import SEATS, tree_of_root, two_spines
from tests.clusters.jobs import WEATHER, Job, daemon
from tests.clusters.memory import DIRECTORY, MemoryCluster, run_world
from tests.clusters.moving_job import Agreed, Daemons, Mover, Parking, engine_of, generations
from tests.daemon.test_further_roots import Paced
from tests.daemon.test_two_paths import shared_job

HOME = FabricTree("spine0")
AWAY = FabricTree("spine1")
JOB = "train"


def short(job: Job) -> Job:
    """Its tensors: so that there are many operations."""
    job.called = [(dtype, op, length % 500 + 1) for dtype, op, length in job.called]
    return job


def daemon_of(cluster: MemoryCluster, name: str) -> Switch:
    found = cluster.switches[name].daemon
    assert found is not None
    return found


def plane_of(cluster: MemoryCluster) -> ControlPlane:
    found = daemon_of(cluster, cluster.fabric.root.name if cluster.fabric else "").plane
    assert found is not None
    return found


def daemons(cluster: MemoryCluster) -> Daemons:
    return Daemons(lambda: [daemon(cluster, host) for host in cluster.hosts], lambda: plane_of(cluster))


@pytest.mark.parametrize("seed", range(2))
def test_a_job_moves_back_and_forth_under_traffic_and_no_generation_ends(seed: int) -> None:
    agreed = Agreed()

    async def scenario(cluster: MemoryCluster) -> None:
        job = short(shared_job(cluster, 3, 60, seed))

        async def moves() -> None:
            mover = Mover(daemons(cluster), agreed)
            await job.past(2)
            before = generations(daemons(cluster))
            for number in range(3):
                done = min(job.done)
                await mover.move(HOME if number % 2 else AWAY, JOB)
                await job.past(done + 2)
            assert generations(daemons(cluster)) == before
            assert len(before) == 1
            assert set(mover.phases) == {"parking", "parked", "standing"}

        await job.run(moves)
        assert job.paths == {"switch", "chain"}
        for [turns] in agreed.turns.values():
            assert [stand for _, stand in turns.pools] == [0, 2, 4, 6]
            assert {pool for pool, _ in turns.pools} == {"shared", "shared@spine0", "shared@spine1"}

    run_world(f"tree moves/{seed}", scenario, hosts=3, weather=WEATHER, turns=agreed)


def test_a_parked_ring_sends_nothing_and_all_goes_by_the_base_ring() -> None:
    agreed = Agreed()

    async def scenario(cluster: MemoryCluster) -> None:
        job = short(shared_job(cluster, 3, 40, "parked"))

        async def moves() -> None:
            mover = Mover(daemons(cluster), agreed)
            await job.past(4)
            await mover.park(JOB)
            engines = [engine_of(daemon(cluster, host)) for host in range(3)]
            assert all(engine.is_parked for engine in engines)
            sent = {engine.ina_messages for engine in engines}
            between, agreed.between = agreed.between, []  # whatever is agreed on: no ring is there
            await job.past(max(job.done) + 3)
            assert {engine.ina_messages for engine in engines} == sent
            agreed.between = between
            mover.wish(HOME, JOB)
            await mover.stands()

        await job.run(moves)

    run_world("tree moves/parked", scenario, hosts=3, weather=WEATHER, turns=agreed)


def test_a_generation_that_ends_while_its_ring_is_parked_is_followed_by_one_that_begins_parked() -> None:
    agreed = Agreed()

    async def scenario(cluster: MemoryCluster) -> None:
        job = short(shared_job(cluster, 3, 100, "halted"))

        async def moves() -> None:
            mover = Mover(daemons(cluster), agreed)
            await job.past(4)
            await mover.park(JOB)
            host = daemon(cluster, 1)
            assert host.fabric is not None
            host.fabric._lose("its cable was pulled")
            await job.past(max(job.done) + 4)
            assert mover.state() == TreeState(JOB, ("h0", "h1", "h2"), 1, "parked")
            assert [status for _, status in generations(daemons(cluster))] == [1]
            mover.wish(AWAY, JOB)
            done = max(job.done)
            await mover.stands()
            assert [status for _, status in generations(daemons(cluster))] == [1]
            await job.past(done + 4)

        await job.run(moves)
        assert job.paths == {"switch", "chain"}

    run_world("tree moves/halted", scenario, hosts=3, weather=WEATHER, turns=agreed)


def test_a_ring_whose_hosts_do_not_park_it_is_parked_by_the_end_of_its_generation() -> None:
    """Its turn does not end: an all-reduce waits for a rank, or a host has lost what it was told."""
    agreed = Agreed()

    async def scenario(cluster: MemoryCluster) -> None:
        job = Paced(cluster, JOB)

        async def moves() -> None:
            mover = Mover(daemons(cluster), agreed)
            await job.past(2)
            mover.wish(None, JOB)
            begun = trio.current_time()
            await mover.until("parked")
            assert 10 <= trio.current_time() - begun < 11
            assert plane_of(cluster).status()["rendezvous"]["parkings_given_up"] == 1
            await job.past(max(job.done) + 2)
            assert {recoveries for _, recoveries in generations(daemons(cluster))} == {1}

        await beside(job, moves)

    options: dict[str, Any] = {"turns": agreed, "fabric": two_spines(DIRECTORY), "seats": SEATS}
    run_world("tree moves/mute", scenario, hosts=4, **options)


async def beside(job: Job, moves: Callable[[], Awaitable[None]]) -> None:
    """A job without end, until that is done."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(job.run)
        await moves()
        nursery.cancel_scope.cancel()


def test_a_ring_of_two_racks_moves_between_two_spines() -> None:
    """Hosts, leaves and links to the hosts are the same; the switch where all is added up is another."""
    agreed = Agreed()
    summed: list[tuple[int, int]] = []

    async def scenario(cluster: MemoryCluster) -> None:
        job = Paced(cluster, JOB)

        def look() -> None:
            found = [daemon_of(cluster, name).status()["accelerator"] for name in ("spine", "spine1")]
            summed.append((found[0]["counters"]["aggregated_in"], found[1]["counters"]["aggregated_in"]))

        async def moves() -> None:
            mover = Mover(daemons(cluster), agreed)
            await job.past(2)
            before = generations(daemons(cluster))
            look()
            for root in ("spine1", "spine", "spine1"):
                await mover.move(tree_of_root(root), JOB)
                await job.past(max(job.done) + 2)
                look()
            assert generations(daemons(cluster)) == before
            mover.wish(tree_of_root("spine1"), JOB)
            state = mover.state()
            assert (state.phase, state.epoch, state.pool) == ("standing", mover.epoch, "shared@spine1")

        await beside(job, moves)
        assert [one < other for one, other in pairwise(at for _, at in summed)] == [True, False, True]
        assert [one < other for one, other in pairwise(at for at, _ in summed)] == [False, True, False]

    options: dict[str, Any] = {"turns": agreed, "fabric": two_spines(DIRECTORY), "seats": SEATS}
    run_world("tree moves/racks", scenario, hosts=4, weather=WEATHER, **options)


def test_a_spine_that_is_lost_while_a_ring_moves_there_leaves_the_job_on_its_base_ring() -> None:
    agreed = Agreed()

    async def scenario(cluster: MemoryCluster) -> None:
        job = Paced(cluster, JOB)

        async def moves() -> None:
            mover = Mover(daemons(cluster), agreed)
            await job.past(2)
            before = generations(daemons(cluster))
            await mover.park(JOB)
            await cluster.switches["spine1"].crash()
            mover.wish(tree_of_root("spine1"), JOB)
            state = await mover.until("refused")
            assert "spine1" in state.reason
            engines = [engine_of(daemon(cluster, host)) for host in range(4)]
            await job.past(max(job.done) + 2)
            assert all(engine.is_parked for engine in engines), "no host heard that it stands"
            assert generations(daemons(cluster)) == before, "and none was halted"
            mover.wish(tree_of_root("spine"), JOB)
            await mover.stands()
            await job.past(max(job.done) + 2)
            assert mover.state().pool == "shared"
            assert generations(daemons(cluster)) == before

        await beside(job, moves)

    options: dict[str, Any] = {"turns": agreed, "fabric": two_spines(DIRECTORY), "seats": SEATS}
    run_world("tree moves/lost", scenario, hosts=4, **options)


def test_bindings_are_what_hosts_agree_on() -> None:
    turns = Parking(Agreed())
    assert turns.bind(OpIndex(3), Instant(0)) == Binding(INA)
