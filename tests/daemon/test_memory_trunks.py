"""Trunks that never come up, or late: who is told, how long a job waits, and by which path it is summed.

Real daemons in virtual time; a trunk is kept down by cutting frame links, so control sessions stand.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.settings.fabric_file import Fabric, fabric_of
from inaproto.errors import FabricLost, JobError
from inaproto.wire.control_messages import Status, StatusReply
from inaproto_adapters.memory import MemoryFramePort
from tests.clusters.fabrics import SEATS, spine_and_leaves
from tests.clusters.jobs import errors_of
from tests.clusters.memory import DIRECTORY, MemoryCluster, in_memory, run_world
from tests.daemon.test_allreduce_end_to_end import draw, numpy_dtype
from tests.daemon.test_memory_fabric import rack_job

FABRIC = spine_and_leaves(DIRECTORY)
STEERS = spine_and_leaves(DIRECTORY, steers=["leaf1"])
TRUNK = "the trunk between leaf1 and spine is down: cannot connect to /memory/trunk-leaf1.sock: "
FLAT = (0, 1, 2, 3)


def deep() -> Fabric:
    """spine over mid over leaf0, leaf1."""
    tables = [{"name": "spine", "dir": str(DIRECTORY)}]
    for name, above in (("mid", "spine"), ("leaf0", "mid"), ("leaf1", "mid")):
        tables.append({"name": name, "dir": str(DIRECTORY / name), "above": above})
    return fabric_of({"switches": tables}, DIRECTORY)


def cut(cluster: MemoryCluster, *, is_cut: bool, lower: str = "leaf1", upper: str = "spine") -> None:
    cluster.network.partition(lower, upper, kinds=(MemoryFramePort,), is_cut=is_cut)


async def start_with_a_cut_trunk(cluster: MemoryCluster) -> None:
    """It has never been up, and the root knows it."""
    cut(cluster, is_cut=True)
    assert cluster.fabric is not None
    for entry in cluster.fabric.entries:
        await cluster.start_switch(entry.name)
    for number in range(4):
        await cluster.start_host(number)
    await trio.sleep(3)


async def status(cluster: MemoryCluster, switch: str = "spine") -> dict[str, Any]:
    assert cluster.fabric is not None
    stream = ControlStream(cluster.network.node("status").dial(cluster.fabric.by_name[switch].control_path))
    await stream.send(Status(id=1))
    answer = await stream.receive()
    stream.close()
    assert isinstance(answer, StatusReply)
    return dict(answer.body)


def of_leaf1(told: dict[str, Any]) -> Any:
    return told["fabric"]["switches"][2]["trunk"]


def world_of(
    name: str, scenario: Any, *, fabric: Fabric = FABRIC, seats: Sequence[str] = SEATS, **options: Any
) -> None:
    run_world(f"trunks/{name}", scenario, hosts=4, fabric=fabric, seats=seats, start=False, **options)


@pytest.mark.parametrize(("recover_ms", "limit_s"), [(3000, 3), (0, 5)])
def test_a_job_over_a_trunk_that_is_never_up_ends_in_time_by_its_name(recover_ms: int, limit_s: int) -> None:
    errors: list[JobError] = []

    async def scenario(cluster: MemoryCluster) -> None:
        await start_with_a_cut_trunk(cluster)
        began = trio.current_time()
        errors.extend(await errors_of([partial(cluster.connect, "train", rank, size=4) for rank in range(4)]))
        assert limit_s <= trio.current_time() - began < limit_s + 0.1
        assert (await status(cluster))["fabric"]["rings"] == []

    world_of(f"never/{recover_ms}", scenario, switch={"recover_ms": recover_ms})
    assert len(errors) == 4
    for error in errors:
        assert isinstance(error, FabricLost)
        assert TRUNK in str(error)
        assert f"it did not come within {limit_s} s" in str(error)
        assert "rank 2 (h2" in str(error)


def test_a_job_waits_for_a_trunk_and_is_summed_by_the_switches_when_it_is_up() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await start_with_a_cut_trunk(cluster)
        job = rack_job(cluster, 6, "late")

        async def strike() -> None:
            await trio.sleep(2)
            (ring,) = (await status(cluster))["fabric"]["rings"]
            assert (ring["phase"], ring["waits_for"].startswith(TRUNK)) == ("waiting", True)
            assert job.done == [0] * 4
            cut(cluster, is_cut=False)

        await job.run(strike)
        assert job.paths == {"switch"}
        told = await status(cluster)
        assert told["rendezvous"]["recoveries"] == 0
        assert told["fabric"]["counters"]["trees_waited"] == 1

    world_of("late", scenario)


def test_a_trunk_that_is_down_is_named_at_the_root_and_at_the_leaf(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await start_with_a_cut_trunk(cluster)
        root, leaf = await status(cluster), await status(cluster, "leaf1")
        assert of_leaf1(root)["error"] == leaf["trunks"][0]["error"]
        assert f"the trunk between leaf1 and spine is down: {of_leaf1(root)['error']}".startswith(TRUNK)
        assert root["fabric"]["switches"][0]["trunk"] is None
        assert root["fabric"]["switches"][1]["trunk"]["is_up"]
        assert root["fabric"]["counters"]["trunks_down"] == 1
        await trio.sleep(60)
        cut(cluster, is_cut=False)
        await trio.sleep(2)
        told = of_leaf1(await status(cluster))
        assert (told["is_up"], told["error"]) == (True, "")

    with caplog.at_level(logging.INFO):
        world_of("named", scenario)
    said = [record.getMessage() for record in caplog.records]
    assert sum(text.startswith(TRUNK) for text in said) == 1
    assert said.count("the trunk between leaf1 and spine is up") == 1


def test_hosts_that_reach_each_other_sum_while_the_trunk_to_their_sum_is_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The leaf steers: what its hosts send is summed above. They are all at it."""

    async def scenario(cluster: MemoryCluster) -> None:
        await start_with_a_cut_trunk(cluster)
        comms = await cluster.job("train", 4)
        inputs = [draw(numpy_dtype("float32"), (4000,), rank) for rank in range(4)]

        async def sum_once() -> set[str]:
            results: dict[int, bytes] = {}

            async def one(comm: inaproto.Communicator) -> None:
                results[comm.rank] = (await comm.all_reduce(inputs[comm.rank])).tobytes()

            async with trio.open_nursery() as nursery:
                for comm in comms:
                    nursery.start_soon(one, comm)
            expected = ((inputs[0] + inputs[1]) + inputs[2]) + inputs[3]
            assert set(results.values()) == {expected.tobytes()}
            return {comm.statistics().recent[-1].path for comm in comms}

        assert await sum_once() == {"chain"}
        (job,) = (await status(cluster))["jobs"]
        assert (job["path"], job["fallback"].startswith(TRUNK)) == ("chain", True)
        await trio.sleep(100)
        told = await status(cluster)
        assert (told["rendezvous"]["fallbacks"], told["rendezvous"]["returns"]) == (1, 0)
        assert await sum_once() == {"chain"}
        cut(cluster, is_cut=False)
        await trio.sleep(2)
        assert await sum_once() == {"switch"}
        (job,) = (await status(cluster))["jobs"]
        assert (job["path"], job["fallback"]) == ("switch", "")

    with caplog.at_level(logging.INFO):
        world_of("steers", scenario, fabric=STEERS, seats=["leaf1"] * 4)
    said = [record.getMessage() for record in caplog.records]
    assert sum("the hosts sum: " + TRUNK in text for text in said) == 1


def test_a_job_below_the_trunk_does_not_need_it() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await start_with_a_cut_trunk(cluster)
        job = rack_job(cluster, 4, "below", FLAT)
        await job.run()
        assert job.paths == {"switch"}

    world_of("below", scenario, seats=["leaf1"] * 4)


@in_memory("trunks/mid", hosts=4, fabric=deep(), seats=SEATS, switch={"recover_ms": 3000})
async def test_a_switch_in_the_middle_that_does_not_come_back_is_named_in_time(
    cluster: MemoryCluster,
) -> None:
    """No rank is at it, so nobody but the root misses it."""
    await cluster.job("other", 1)  # of one host, which needs nobody
    comms = await cluster.job("train", 4)
    await cluster.switches["mid"].crash()
    began = trio.current_time()
    errors = await errors_of([comm.all_reduce(np.ones(4000, np.float32)).wait for comm in comms])
    assert trio.current_time() - began < 10
    assert all("switch mid is not connected" in str(error) for error in errors), errors


@pytest.mark.parametrize("down_s", [0.5, 20.0])
def test_a_trunk_that_is_cut_under_a_job_costs_frames_only(down_s: float) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        for name in ("spine", "leaf0", "leaf1"):
            await cluster.start_switch(name)
        for number in range(4):
            await cluster.start_host(number)
        job = rack_job(cluster, 10, ("cut", down_s))

        async def strike() -> None:
            await trio.sleep(0.02)
            cut(cluster, is_cut=True)
            await trio.sleep(down_s)
            assert of_leaf1(await status(cluster))["is_up"] == (down_s < 10)
            cut(cluster, is_cut=False)

        await job.run(strike)
        assert job.paths == {"switch"}
        assert (await status(cluster))["rendezvous"]["recoveries"] == 0

    world_of(f"cut/{down_s}", scenario)


def test_a_trunk_that_flaps_makes_no_storm(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await cluster.start_switch("spine")
        await cluster.start_switch("leaf1")
        await trio.sleep(1)
        for _ in range(100):
            (end,) = [
                port
                for mine, _, port in cluster.network._ends
                if mine.name == "leaf1" and isinstance(port, MemoryFramePort)
            ]
            await end.aclose()
            await trio.sleep(0.3)
        told = await status(cluster)
        assert told["trunks"][1]["times_up"] > 50
        assert of_leaf1(told)["is_up"]
        assert told["fabric"]["counters"]["trunks_down"] == 0

    with caplog.at_level(logging.INFO):
        run_world("trunks/flaps", scenario, hosts=0, fabric=FABRIC, start=False)
    said = [record.getMessage() for record in caplog.records]
    assert said.count("the trunk between leaf1 and spine is up") == 1
