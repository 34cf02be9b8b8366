"""Real daemons of a fabric in virtual time: rings over several switches, and switches that go and come.

Sums are compared with a numpy reference of the nested plan, by equality: which switch adds what decides the
bytes, and no failure may change them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.settings.fabric_file import fabric_of
from inaproto.errors import ConfigError, RankLost
from inaproto.wire.control_messages import Status, StatusReply
from inaproto_adapters.memory import MemoryFramePort
from tests.clusters.fabrics import NESTED, SEATS, Nested, spine_and_leaves
from tests.clusters.jobs import WEATHER, Job, errors_of
from tests.clusters.memory import DIRECTORY, MemoryCluster, in_memory, run_world
from tests.seeds import seeds

FABRIC = spine_and_leaves(DIRECTORY)


def rack_job(cluster: MemoryCluster, operations: int, seed: object, plan: Nested = NESTED) -> Job:
    """Four ranks, whose sums are those of a nested plan."""
    return Job(cluster, 4, operations, seed, plan=plan)


@pytest.mark.parametrize(
    ("seats", "plan"),
    [
        (SEATS, NESTED),
        (("leaf0", "leaf1", "leaf0", "leaf1"), ((0, 2), (1, 3))),
        (("leaf1", "leaf1", "leaf1", "leaf1"), (0, 1, 2, 3)),
        (("", "leaf0", "leaf1", "spine"), (0, (1,), (2,), 3)),
    ],
    ids=["racks", "interleaved", "one leaf", "with the root"],
)
@pytest.mark.parametrize("weather", ["", WEATHER], ids=["clear", "weather"])
def test_sums_are_those_of_the_nested_plan(seats: tuple[str, ...], plan: Nested, weather: str) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        job = rack_job(cluster, 8, (seats, weather), plan)
        await job.run()
        assert job.paths == {"switch"}

    run_world(f"fabric/{seats}", scenario, hosts=4, weather=weather, fabric=FABRIC, seats=seats)


def test_a_leaf_that_steers_leaves_the_sum_to_the_root() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await rack_job(cluster, 8, "steers", (0, 1, (2, 3))).run()

    fabric = spine_and_leaves(DIRECTORY, steers=["leaf0"])
    run_world("fabric/steers", scenario, hosts=4, fabric=fabric, seats=SEATS)


@pytest.mark.parametrize("restarted", ["", "mid", "leaf0", "spine"])
def test_three_levels(restarted: str) -> None:
    tables = [{"name": "spine", "dir": str(DIRECTORY)}]
    for name, above in (("mid", "spine"), ("leaf0", "mid"), ("leaf1", "mid")):
        tables.append({"name": name, "dir": str(DIRECTORY / name), "above": above})
    fabric = fabric_of({"switches": tables}, DIRECTORY)

    async def scenario(cluster: MemoryCluster) -> None:
        job = rack_job(cluster, 10, ("deep", restarted), (((0,), (1,), 2), 3))

        async def strike() -> None:
            if restarted:
                await trio.sleep(0.02)
                await cluster.switches[restarted].crash()
                await trio.sleep(0.5)
                await cluster.start_switch(restarted)

        await job.run(strike)

    seats = ("leaf0", "leaf1", "mid", "spine")
    run_world(f"fabric/deep/{restarted}", scenario, hosts=4, weather=WEATHER, fabric=fabric, seats=seats)


def test_two_runs_of_one_seed_are_the_same() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await rack_job(cluster, 4, "same").run()

    options: dict[str, Any] = {"hosts": 4, "weather": WEATHER, "fabric": FABRIC, "seats": SEATS}
    assert run_world("fabric/same", scenario, **options) == run_world("fabric/same", scenario, **options)


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("how", ["crash", "stop"])
@pytest.mark.parametrize("name", ["leaf0", "leaf1", "spine"])
def test_a_job_goes_on_when_a_switch_restarts(name: str, how: str, seed: int) -> None:
    draws = random.Random(f"fabric/{name}/{how}/{seed}")

    async def scenario(cluster: MemoryCluster) -> None:
        job = rack_job(cluster, 10, (name, how, seed))

        async def strike() -> None:
            for _ in range(2):
                await trio.sleep(draws.uniform(0.005, 0.05))
                life = cluster.switches[name]
                await (life.crash() if how == "crash" else life.stop())
                await trio.sleep(draws.choice((0.0, 0.1, 2.0)))
                await cluster.start_switch(name)

        await job.run(strike)

    weather = draws.choice(("", WEATHER))
    run_world(f"fabric/{name}/{how}/{seed}", scenario, hosts=4, weather=weather, fabric=FABRIC, seats=SEATS)


@pytest.mark.parametrize("seed", seeds(3))
@in_memory("fabric/order/{seed}", hosts=4, fabric=FABRIC, seats=SEATS, start=False)
async def test_any_start_order_will_do(cluster: MemoryCluster, seed: int) -> None:
    order: list[str | int] = [*(entry.name for entry in FABRIC.entries), 0, 1, 2, 3]
    draws = random.Random(f"fabric/order/{seed}")
    draws.shuffle(order)

    for what in order:
        if isinstance(what, int):
            await cluster.start_host(what)
        else:
            await cluster.start_switch(what)
        await trio.sleep(draws.choice((0.0, 0.3, 7.0)))
    await rack_job(cluster, 4, ("order", seed)).run()


@in_memory("fabric/lost", hosts=4, fabric=FABRIC, seats=SEATS, switch={"recover_ms": 3000})
async def test_a_leaf_that_does_not_come_back_is_named_in_time(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", 4)
    await cluster.switches["leaf1"].crash()
    began = trio.current_time()
    errors = await errors_of([comm.all_reduce(np.ones(4000, np.float32)).wait for comm in comms])
    assert trio.current_time() - began < 10
    assert any(isinstance(error, RankLost) for error in errors)
    assert all("leaf1" in str(error) for error in errors), errors


def test_a_host_at_no_switch_of_the_fabric_is_told_so() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await cluster.start_host(0)
        await trio.sleep(60)

    with pytest.raises(BaseExceptionGroup) as caught:
        run_world("fabric/unknown", scenario, hosts=0, fabric=FABRIC, seats=["leaf7"])
    matched = caught.value.subgroup(lambda error: isinstance(error, ConfigError) and "leaf7" in str(error))
    assert matched is not None


def test_paths_of_the_fabric() -> None:
    assert FABRIC.by_name["leaf1"].trunk == Path("/memory/trunk-leaf1.sock")


@in_memory("fabric/stuck", hosts=4, fabric=FABRIC, seats=SEATS)
async def test_a_trunk_that_is_stuck_is_dialled_again(cluster: MemoryCluster) -> None:
    """Its connection stands, but nothing comes through it, nor through those dialled meanwhile."""

    async def trunks(cluster: MemoryCluster) -> list[dict[str, Any]]:
        path = FABRIC.by_name["leaf1"].control_path
        stream = ControlStream(cluster.network.node("status").dial(path))
        await stream.send(Status(id=1))
        answer = await stream.receive()
        stream.close()
        assert isinstance(answer, StatusReply)
        return list(answer.body["trunks"])

    await rack_job(cluster, 4, "before").run()
    cluster.network.partition("leaf1", "spine", kinds=(MemoryFramePort,))
    await trio.sleep(20)
    (trunk,) = await trunks(cluster)
    assert not trunk["is_up"]
    cluster.network.partition("leaf1", "spine", kinds=(MemoryFramePort,), is_cut=False)
    await trio.sleep(5)
    (trunk,) = await trunks(cluster)
    assert (trunk["is_up"], trunk["times_up"]) == (True, 2)
