"""Rings along trees of two spines over the same leaves, through real daemons in virtual time.

Every result is compared, by equality, with numpy's of the nested plan, which is the same on both trees.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import trio

from inaproto.daemon.settings.config import SwitchSettings
from inaproto.daemon.settings.fabric_file import Place
from inaproto.daemon.switch.control_plane import ControlPlane
from inaproto.daemon.switch.daemon import Switch
from inaproto.errors import ConfigError
from inaproto.ports import FramePort, PortClosed
from inaproto.wire.messages.trees import TreeState, TreeWished
from inaproto_adapters.memory import MemoryFramePort
from tests.clusters.fabrics import NESTED, SEATS, tree_of_root, two_spines
from tests.clusters.jobs import WEATHER, Job
from tests.clusters.memory import DIRECTORY, MemoryCluster, in_memory, run_world
from tests.daemon.test_two_paths import Given, alternate

FABRIC = two_spines(DIRECTORY)
PACE_S = 0.2


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
        job = Job(cluster, 4, 8, "further", "shared", NESTED)

        async def look() -> None:
            await job.past(7)
            assert state(cluster, "train").phase == "standing"
            assert state(cluster, "train").pool == "shared@spine1"
            assert summed(cluster, "spine1") > 0
            assert summed(cluster, "spine") == 0

        await job.run(look)
        assert job.paths == {"switch", "chain"}

    options: dict[str, Any] = {"fabric": FABRIC, "seats": SEATS, "turns": Given(alternate)}
    run_world(f"roots/{weather}", scenario, hosts=4, weather=weather, **options)


# --- what is lost


class Paced(Job):
    """Small all-reduces, one after the other, so that much may happen between few."""

    def __init__(self, cluster: MemoryCluster, name: str) -> None:
        super().__init__(cluster, 4, 1000, name, "shared", NESTED)
        self.name = name
        self.called = [(dtype, op, 1 + length % 200) for dtype, op, length in self.called]

    async def rank(self, rank: int) -> None:
        comm = await self.cluster.connect(self.name, rank, size=4, path=self.path)
        for index, (_, op, _) in enumerate(self.called):
            result = await comm.all_reduce(self.inputs(index)[rank], op)
            assert result.tobytes() == self.expected(index).tobytes(), (self.name, rank, index)
            self.done[rank] += 1
            await trio.sleep(PACE_S)


def told(cluster: MemoryCluster, job: str) -> dict[str, Any]:
    (found,) = [one for one in plane(cluster).status()["jobs"] if one["name"] == job]
    return dict(found)


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await trio.sleep(PACE_S)


async def crash(cluster: MemoryCluster) -> None:
    await cluster.switches["spine1"].crash()


async def start(cluster: MemoryCluster) -> None:
    await cluster.start_switch("spine1")


async def cut(cluster: MemoryCluster) -> None:
    cluster.network.partition("leaf1", "spine1", kinds=(MemoryFramePort,))


async def mend(cluster: MemoryCluster) -> None:
    cluster.network.partition("leaf1", "spine1", kinds=(MemoryFramePort,), is_cut=False)


@pytest.mark.parametrize(
    ("lose", "bring_back", "words"),
    [
        (crash, start, "spine1"),
        (cut, mend, "the trunk between leaf1 and spine1 is down"),
    ],
    ids=["spine1", "trunk"],
)
def test_what_a_job_alone_needs_is_lost_and_it_alone_goes_on_without(
    lose: Callable[[MemoryCluster], Awaitable[None]],
    bring_back: Callable[[MemoryCluster], Awaitable[None]],
    words: str,
) -> None:
    """By its base ring; and by both again when what was lost is there again."""

    async def scenario(cluster: MemoryCluster) -> None:
        wish(cluster, hurt="spine1")
        hurt, other = Paced(cluster, "hurt"), Paced(cluster, "other")
        scope = trio.CancelScope()

        async def strike() -> None:
            await hurt.past(4)
            await other.past(4)
            assert state(cluster, "hurt").pool == "shared@spine1"
            assert state(cluster, "other").pool == "shared"
            ring = told(cluster, "other")["ring_id"]
            await lose(cluster)
            await until(lambda: words in told(cluster, "hurt")["fallback"])
            await hurt.past(min(hurt.done) + 4)
            assert state(cluster, "hurt").phase == "refused"
            await other.past(min(other.done) + 4)
            await bring_back(cluster)
            await until(lambda: state(cluster, "hurt").phase == "standing")
            before = summed(cluster, "spine1")
            await hurt.past(min(hurt.done) + 4)
            assert summed(cluster, "spine1") > before
            assert (told(cluster, "other")["ring_id"], told(cluster, "other")["recoveries"]) == (ring, 0)
            assert told(cluster, "hurt")["recoveries"] >= 1
            scope.cancel()

        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hurt.run)
                nursery.start_soon(other.run)
                nursery.start_soon(strike)
        assert scope.cancelled_caught

    options: dict[str, Any] = {"fabric": FABRIC, "seats": SEATS, "turns": Given(alternate)}
    run_world(f"roots/lost/{words}", scenario, hosts=4, **options)


# --- no hosts


def test_a_host_at_a_further_root_is_told_that_none_can_be_there() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await cluster.start_host(0)
        await trio.sleep(60)

    with pytest.raises(BaseExceptionGroup) as caught:
        run_world("roots/host", scenario, hosts=0, fabric=FABRIC, seats=["spine1"])
    words = "spine1 is a further root, at which no host can be"
    matched = caught.value.subgroup(lambda error: isinstance(error, ConfigError) and words in str(error))
    assert matched is not None


@in_memory("roots/port", hosts=0, fabric=FABRIC)
async def test_nobody_has_a_port_of_a_further_root(cluster: MemoryCluster) -> None:
    path = FABRIC.by_name["spine1"].ports_path
    port: FramePort = cluster.network.node("stranger").connect_port(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.run)
        with pytest.raises(PortClosed):
            await port.receive()
        await port.aclose()
    assert all(one["name"].startswith("trunk-") for one in switch(cluster, "spine1").status()["ports"])


class Interface:
    """As of a machine's: it can be used."""

    def require(self) -> None:
        pass


async def test_an_interface_is_no_port_of_a_further_root() -> None:
    settings = SwitchSettings.model_validate({"dir": "/memory/spine1", "name": "spine1"})
    links: Any = [Interface()]
    with pytest.raises(ConfigError, match="no host can be at spine1, a further root"):
        Switch(settings, Place(FABRIC, "spine1"), links=links)


# --- no loop


@in_memory("roots/storm", hosts=0, fabric=FABRIC)
async def test_what_is_flooded_comes_once_and_goes_nowhere_else(cluster: MemoryCluster) -> None:
    """Each leaf is next to both spines: bridged on all those trunks, a broadcast would go round for ever."""
    frames = [
        np.frombuffer(b"\xff" * 6 + bytes([2, 0, 0, 0, 7, number]) + b"\x08\x06" + bytes(46), np.uint8)
        for number in range(50)
    ]
    came: dict[str, list[bytes]] = {}

    async def plug(cluster: MemoryCluster, nursery: trio.Nursery, name: str, leaf: str) -> FramePort:
        port: FramePort = cluster.network.node(name).connect_port(FABRIC.by_name[leaf].ports_path)
        nursery.start_soon(port.run)
        nursery.start_soon(listen, name, port)
        return port

    async def listen(name: str, port: FramePort) -> None:
        while True:
            try:
                blocks = await port.receive()
            except PortClosed:
                return
            came.setdefault(name, []).extend(row.tobytes() for block in blocks for row in block)

    await until(lambda: sum(trunk["is_up"] for trunk in switch(cluster, "spine1").status()["trunks"]) == 2)
    async with trio.open_nursery() as nursery:
        ports = [await plug(cluster, nursery, f"at {leaf}", leaf) for leaf in ("leaf0", "leaf1")]
        await trio.sleep(1)
        came.clear()
        for frame in frames:
            ports[0].send_nowait(frame.reshape(1, -1))
        await trio.sleep(30)
        for port in ports:
            await port.aclose()
    assert came == {"at leaf1": [frame.tobytes() for frame in frames]}
    for name in ("spine", "spine1", "leaf0", "leaf1"):
        counters = switch(cluster, name).status()["accelerator"]["counters"]
        assert counters["dropped"] == {}, "none came on a trunk that is for rings"
