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

from inaproto.core.fabric_tree import FabricTree
from inaproto.core.rendezvous_types import TreeState, TreeWished
from inaproto.core.two_paths import BASE, INA, Binding, BoundPath, TwoPaths
from inaproto.daemon.control_plane import ControlPlane
from inaproto.daemon.switch import Switch
from inaproto.daemon.turns import Turns, TurnsOf
from inaproto.units import Instant, OpIndex
from tests.daemon.fabrics import SEATS, tree_of_root, two_spines
from tests.daemon.memory_cluster import DIRECTORY, MemoryCluster, run_world
from tests.daemon.test_further_roots import Paced
from tests.daemon.test_memory_recovery import WEATHER, daemon
from tests.daemon.test_two_paths import Job, Planned, RackJob, past, ring_of

HOME = FabricTree("spine0")
AWAY = FabricTree("spine1")
JOB = "train"
NEVER = 1 << 30


def short(job: Job) -> Job:
    """Its tensors: so that there are many operations."""
    job.called = [(dtype, op, length % 500 + 1) for dtype, op, length in job.called]
    return job


class Agreed:
    """What all hosts have agreed on: all goes by the switches but what lies between two turns."""

    def __init__(self) -> None:
        self.between: list[tuple[int, int]] = []
        """The operation that ends a turn, and the one that begins the next."""
        self.turns: dict[int, list[Parking]] = {}

    @property
    def until(self) -> int:
        return self.between[-1][0] if self.between else NEVER

    def path(self, op_index: int) -> BoundPath:
        return BASE if any(until <= op_index < first for until, first in self.between) else INA

    def ends(self, cluster: MemoryCluster) -> None:
        """The turn, with the operation that the host which is ahead binds next."""
        self.between.append((max(self._binds_next(cluster)), NEVER))
        for turns in self.turns.values():
            turns[-1].look()

    def begins(self, cluster: MemoryCluster) -> None:
        self.between[-1] = (self.until, max(self._binds_next(cluster)))

    @staticmethod
    def _binds_next(cluster: MemoryCluster) -> list[int]:
        found = [ring_of(daemon(cluster, host)).binds_next for host in cluster.hosts]
        return [index for index in found if index is not None]

    def __call__(self, host: int) -> TurnsOf:
        def of(job: str) -> Turns:
            self.turns.setdefault(host, []).append(Parking(self))
            return self.turns[host][-1]

        return of


class Parking(Planned):
    """Of one host."""

    def __init__(self, agreed: Agreed) -> None:
        super().__init__(agreed.path)
        self.agreed = agreed
        self.pools: list[tuple[str, int]] = []
        self.stood = trio.Event()
        self._next = 0
        self._on_its_way: set[int] = set()
        self._parked: Callable[[], None] | None = None

    def begin(
        self,
        *,
        ring_id: int,
        hosts: int,
        next_operation: OpIndex,
        changed: Callable[[], None],
        pool: str = "",
        stand: int = 0,
    ) -> None:
        self.pools.append((pool, stand))
        self.stood.set()
        self._next = next_operation
        self._on_its_way.clear()

    def park(self, parked: Callable[[], None]) -> None:
        self._parked = parked
        self.look()

    def look(self) -> None:
        parked = self._parked
        if parked is not None and self._next >= self.agreed.until and not self._on_its_way:
            self._parked, self.stood = None, trio.Event()
            parked()

    def bound(self, op_index: OpIndex, path: BoundPath) -> None:
        self._next = op_index + 1
        if path == INA:
            self._on_its_way.add(op_index)
        self.look()

    def drained(self, op_index: OpIndex) -> None:
        super().drained(op_index)
        self._on_its_way.discard(op_index)
        self.look()

    def ring_ended(self) -> None:
        super().ring_ended()
        self._parked, self.stood = None, trio.Event()
        self._on_its_way.clear()


def daemon_of(cluster: MemoryCluster, name: str) -> Switch:
    found = cluster.switches[name].daemon
    assert found is not None
    return found


def plane_of(cluster: MemoryCluster) -> ControlPlane:
    found = daemon_of(cluster, cluster.fabric.root.name if cluster.fabric else "").plane
    assert found is not None
    return found


class Mover:
    """Wishes, and waits until they are followed; raises if anything is refused."""

    def __init__(self, cluster: MemoryCluster, agreed: Agreed) -> None:
        self.cluster, self.agreed = cluster, agreed
        self.epoch = 0
        self.phases: list[str] = []

    def state(self) -> TreeState:
        [state] = plane_of(self.cluster).tree_states()
        return state

    async def until(self, phase: str) -> TreeState:
        changed = trio.Event()

        def look() -> None:
            state = self.state()
            self.phases.append(state.phase)
            if (state.phase, state.epoch) == (phase, self.epoch):
                changed.set()

        plane = plane_of(self.cluster)
        plane.trees_changed = look
        look()
        await changed.wait()
        plane.trees_changed = lambda: None
        return self.state()

    def wish(self, tree: FabricTree | None, job: str) -> None:
        self.epoch += 1
        plane_of(self.cluster).wish_trees((TreeWished(job, self.epoch, tree),))

    async def park(self, job: str) -> None:
        self.agreed.ends(self.cluster)
        self.wish(None, job)
        await self.until("parked")

    async def move(self, tree: FabricTree, job: str) -> None:
        await self.park(job)
        self.wish(tree, job)
        await self.stands()

    async def stands(self) -> None:
        """And every host has heard of it: a turn begins."""
        await self.until("standing")
        for host in self.cluster.hosts:
            await self.agreed.turns[host][-1].stood.wait()
        self.agreed.begins(self.cluster)


def engine_of(cluster: MemoryCluster, host: int) -> TwoPaths:
    engine = ring_of(daemon(cluster, host))._engine
    assert isinstance(engine, TwoPaths)
    return engine


def generations(cluster: MemoryCluster) -> set[tuple[object, int]]:
    """Ring of each host, and how many it had before."""
    found = [ring_of(daemon(cluster, host)).status() for host in cluster.hosts]
    return {(ring["ring_id"], ring["recoveries"]) for ring in found}


@pytest.mark.parametrize("seed", range(2))
def test_a_job_moves_back_and_forth_under_traffic_and_no_generation_ends(seed: int) -> None:
    agreed = Agreed()

    async def scenario(cluster: MemoryCluster) -> None:
        job = short(Job(cluster, 3, 60, seed))

        async def moves() -> None:
            mover = Mover(cluster, agreed)
            await past(job, 2)
            before = generations(cluster)
            for number in range(3):
                done = min(job.done)
                await mover.move(HOME if number % 2 else AWAY, JOB)
                await past(job, done + 2)
            assert generations(cluster) == before
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
        job = short(Job(cluster, 3, 40, "parked"))

        async def moves() -> None:
            mover = Mover(cluster, agreed)
            await past(job, 4)
            await mover.park(JOB)
            engines = [engine_of(cluster, host) for host in range(3)]
            assert all(engine.is_parked for engine in engines)
            sent = {engine.ina_messages for engine in engines}
            between, agreed.between = agreed.between, []  # whatever is agreed on: no ring is there
            await past(job, max(job.done) + 3)
            assert {engine.ina_messages for engine in engines} == sent
            agreed.between = between
            mover.wish(HOME, JOB)
            await mover.stands()

        await job.run(moves)

    run_world("tree moves/parked", scenario, hosts=3, weather=WEATHER, turns=agreed)


def test_a_generation_that_ends_while_its_ring_is_parked_is_followed_by_one_that_begins_parked() -> None:
    agreed = Agreed()

    async def scenario(cluster: MemoryCluster) -> None:
        job = short(Job(cluster, 3, 100, "halted"))

        async def moves() -> None:
            mover = Mover(cluster, agreed)
            await past(job, 4)
            await mover.park(JOB)
            host = daemon(cluster, 1)
            assert host.fabric is not None
            host.fabric._lose("its cable was pulled")
            await past(job, max(job.done) + 4)
            assert mover.state() == TreeState(JOB, ("h0", "h1", "h2"), 1, "parked")
            assert [status for _, status in generations(cluster)] == [1]
            mover.wish(AWAY, JOB)
            done = max(job.done)
            await mover.stands()
            assert [status for _, status in generations(cluster)] == [1]
            await past(job, done + 4)

        await job.run(moves)
        assert job.paths == {"switch", "chain"}

    run_world("tree moves/halted", scenario, hosts=3, weather=WEATHER, turns=agreed)


async def beside(job: RackJob, moves: Callable[[], Awaitable[None]]) -> None:
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
            mover = Mover(cluster, agreed)
            await past(job, 2)
            before = generations(cluster)
            look()
            for root in ("spine1", "spine", "spine1"):
                await mover.move(tree_of_root(root), JOB)
                await past(job, max(job.done) + 2)
                look()
            assert generations(cluster) == before
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
            mover = Mover(cluster, agreed)
            await past(job, 2)
            await mover.park(JOB)
            await cluster.switches["spine1"].crash()
            mover.wish(tree_of_root("spine1"), JOB)
            state = await mover.until("refused")
            assert "spine1" in state.reason
            await past(job, max(job.done) + 2)
            mover.wish(tree_of_root("spine"), JOB)
            await mover.stands()
            await past(job, max(job.done) + 2)
            assert mover.state().pool == "shared"

        await beside(job, moves)

    options: dict[str, Any] = {"turns": agreed, "fabric": two_spines(DIRECTORY), "seats": SEATS}
    run_world("tree moves/lost", scenario, hosts=4, **options)


def test_bindings_are_what_hosts_agree_on() -> None:
    turns = Parking(Agreed())
    assert turns.bind(OpIndex(3), Instant(0)) == Binding(INA)
