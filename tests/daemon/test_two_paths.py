"""Jobs on the path shared, through real daemons: two rings at once, each all-reduce by one of them.

Every test is one seeded run in virtual time. Results are compared, by equality, with numpy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import trio

from inaproto.core.host.engines.two_paths import Binding, Wait
from inaproto.core.host.operations import BASE, INA, BoundPath
from inaproto.daemon.host.daemon import HostDaemon
from inaproto.daemon.host.ring import HostRing
from inaproto.daemon.host.turns import Turns, TurnsOf
from inaproto.units import MS, Instant, OpIndex
from tests.clusters.fabrics import NESTED, SEATS, spine_and_leaves
from tests.clusters.jobs import FAULTS, WEATHER, Job, daemon
from tests.clusters.memory import DIRECTORY, MemoryCluster, in_memory, run_world
from tests.seeds import seeds

Plan = Callable[[int], BoundPath]
STALL_MS = 200


class Planned(Turns):
    """Turns that were planned before the job began."""

    def __init__(self, plan: Plan, *, wait_ns: int = 0) -> None:
        self.plan, self.wait_ns = plan, wait_ns
        self.asked: dict[int, Instant] = {}
        self.drained_operations: list[int] = []
        self.rings_ended = 0

    def bind(self, op_index: OpIndex, now: Instant) -> Binding | Wait:
        first = self.asked.setdefault(op_index, now)
        if now < first + self.wait_ns:
            return Wait(Instant(first + 2 * self.wait_ns))
        return Binding(self.plan(op_index))

    def drained(self, op_index: OpIndex) -> None:
        self.drained_operations.append(op_index)

    def ring_ended(self) -> None:
        self.rings_ended += 1


class Given:
    """Of all hosts; ``strays`` has hosts with plans of their own."""

    def __init__(self, plan: Plan, *, wait_ns: int = 0, strays: dict[int, Plan] | None = None) -> None:
        self.plan, self.wait_ns, self.strays = plan, wait_ns, strays or {}
        self.turns: dict[int, list[Planned]] = {}

    def __call__(self, host: int) -> TurnsOf:
        def of(job: str) -> Turns:
            made = Planned(self.strays.get(host, self.plan), wait_ns=self.wait_ns)
            self.turns.setdefault(host, []).append(made)
            return made

        return of


def shared_job(cluster: MemoryCluster, places: int | Sequence[int], operations: int, seed: object) -> Job:
    return Job(cluster, places, operations, seed, path="shared")


def alternate(op_index: int) -> BoundPath:
    return INA if op_index % 2 else BASE


def ring_of(host: HostDaemon) -> HostRing:
    fabric = host.fabric
    assert fabric is not None
    [ring] = fabric.rings()
    return ring


def by_path(cluster: MemoryCluster, host: int) -> dict[str, int]:
    found: dict[str, int] = ring_of(daemon(cluster, host)).status()["operations_by_path"]
    return found


@pytest.mark.parametrize("wait_ns", [0, 3 * MS])
@pytest.mark.parametrize("places", [(0, 1, 2), (0, 0, 1, 2)])
def test_all_reduces_go_by_both_rings_in_turn_and_have_numpy_s_bytes(
    places: Sequence[int], wait_ns: int
) -> None:
    given = Given(alternate, wait_ns=wait_ns)

    async def scenario(cluster: MemoryCluster) -> None:
        job = shared_job(cluster, places, 12, "alternate")
        counts: list[dict[str, int]] = []

        async def look() -> None:
            await job.past(11)
            counts.extend(by_path(cluster, host) for host in range(3))
            status = ring_of(daemon(cluster, 0)).status()
            assert status["path"] == "shared"
            assert status["ina_ring_id"] not in (None, status["ring_id"])

        await job.run(look)
        assert job.paths == {"switch", "chain"}
        for count in counts:
            assert count["switch"] >= 5
            assert count["chain"] >= 5
        for turns in given.turns.values():
            drained = turns[0].drained_operations  # the last may be acknowledged after all have left
            assert drained in ([1, 3, 5, 7, 9], [1, 3, 5, 7, 9, 11])

    run_world(f"two paths/{places}/{wait_ns}", scenario, hosts=3, weather=WEATHER, turns=given)


@in_memory("two paths/no turns", hosts=3, weather=WEATHER)
async def test_who_has_no_turns_goes_by_its_base_ring(cluster: MemoryCluster) -> None:
    job = shared_job(cluster, 3, 6, "none")
    await job.run()
    assert job.paths == {"chain"}


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("name", FAULTS)
def test_whatever_ends_the_rings_the_job_goes_on(name: str, seed: int) -> None:
    draws = random.Random(f"two paths/{name}/{seed}")
    paths = [draws.choice((BASE, INA)) for _ in range(16)]

    async def scenario(cluster: MemoryCluster) -> None:
        job = shared_job(cluster, 3, 16, seed)

        async def strike() -> None:
            for after in sorted(draws.sample(range(1, 13), 2)):
                await job.past(after)
                await trio.sleep(draws.random() / 1000)
                await FAULTS[name](cluster, draws)

        await job.run(strike)
        assert job.paths == {"switch", "chain"}

    run_world(f"two paths/{name}/{seed}", scenario, hosts=3, weather=WEATHER, turns=Given(paths.__getitem__))


@in_memory("two paths/no room", hosts=3, weather=WEATHER, turns=Given(alternate))
async def test_a_switch_that_comes_back_without_room_leaves_the_job_on_its_base_ring(
    cluster: MemoryCluster,
) -> None:
    job = shared_job(cluster, 3, 20, "no room")

    async def strike() -> None:
        await job.past(10)
        assert by_path(cluster, 0)["switch"] > 2
        assert cluster.switch is not None
        await cluster.switch.crash()
        await cluster.start_switch(memory_kib=0)
        await job.past(15)
        assert ring_of(daemon(cluster, 0)).status()["path"] == "chain"

    await job.run(strike)
    assert job.paths == {"switch", "chain"}


def test_a_leaf_that_is_lost_ends_both_rings_and_both_come_back() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        job = Job(cluster, 4, 14, "leaf", "shared", NESTED)

        async def strike() -> None:
            await job.past(6)
            assert by_path(cluster, 0)["switch"] > 1
            await cluster.switches["leaf1"].crash()
            await cluster.start_switch("leaf1")

        await job.run(strike)
        assert job.paths == {"switch", "chain"}

    fabric = spine_and_leaves(DIRECTORY)
    run_world("two paths/leaf", scenario, hosts=4, turns=Given(alternate), fabric=fabric, seats=SEATS)


@pytest.mark.parametrize("stray", [INA, BASE])
def test_hosts_that_bind_an_all_reduce_differently_are_rescued_in_bounded_time(stray: BoundPath) -> None:
    other: BoundPath = BASE if stray == INA else INA
    strays: dict[int, Plan] = {1: lambda op_index: stray if op_index == 7 else alternate(op_index)}

    def plan(op_index: int) -> BoundPath:
        return other if op_index == 7 else alternate(op_index)

    given = Given(plan, strays=strays)

    async def scenario(cluster: MemoryCluster) -> None:
        job = shared_job(cluster, 3, 12, "stray")
        seen: list[float] = []
        halts: list[str] = []

        async def look() -> None:
            await job.past(7)
            seen.append(trio.current_time())
            await job.past(8)
            seen.append(trio.current_time())
            halts.extend(ring_of(daemon(cluster, 0)).status()["halted_because"])

        await job.run(look)
        assert seen[1] - seen[0] < 2 * STALL_MS / 1000
        assert [turns[0].rings_ended for turns in given.turns.values()] == [2, 2, 2]  # and when all have left
        [reason] = halts
        assert reason.startswith("all-reduce 7 was bound to different paths:")

    run_world(f"two paths/stray/{stray}", scenario, hosts=3, turns=given, stall_ms=STALL_MS)
