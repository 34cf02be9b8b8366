"""Jobs of hosts that have InfiniBand addresses alone, through real daemons: paths, bytes, words.

Every test is one seeded run in virtual time. What a device does with such an address is in
``tests/unit/test_verbs_infiniband.py``.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import trio

from inaproto.core.host.events import NicRefused
from inaproto.core.rendezvous.jobs import NO_SWITCH
from inaproto.daemon.host import opening
from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.settings.config import load_host_settings
from inaproto.errors import ConfigError, JobError, JoinRefused
from inaproto.wire.control_messages import Hello, Message, Welcome
from tests.clusters.fabrics import spine_and_leaves
from tests.clusters.infiniband import gid_of
from tests.clusters.jobs import close_all, daemon, fabric_of, reduce_once, restart_switch, rotated_reference
from tests.clusters.memory import DIRECTORY, MemoryCluster, in_memory, run_world
from tests.daemon.test_allreduce_end_to_end import draw, numpy_dtype, reference
from tests.daemon.test_collective_beside import beside, reduce, until_it_stands
from tests.daemon.test_link_probing import measured

ALL = (0, 1, 2)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
@pytest.mark.parametrize(
    ("asked", "path"), [("chain", "chain"), ("overlay", "overlay"), ("ring", "ring"), ("auto", "chain")]
)
def test_three_hosts_sum_by_their_own_paths(asked: str, path: str, dtype: str) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", 3, path=asked)
        for index in range(3):
            arrays = [draw(numpy_dtype(dtype), (2000,), (index, rank)) for rank in ALL]
            results = [comm.all_reduce(array) for comm, array in zip(comms, arrays, strict=True)]
            found = {(await result).tobytes() for result in results}
            messages = index * -(-2000 * numpy_dtype(dtype).itemsize // 728)
            expected = (
                rotated_reference(arrays, ALL, "sum", messages)
                if path == "ring"
                else reference(arrays, "sum")
            )
            assert found == {expected.tobytes()}
        status = daemon(cluster, 0).status()
        assert (status["ip"], status["gid"]) == ("", gid_of(0))
        assert [ring["path"] for ring in status["rings"]] == [path]
        [job] = _switch_status(cluster)["jobs"]
        assert job["path"] == path
        assert job["fallback"] == (NO_SWITCH if asked == "auto" else "asked for")
        assert {record.path for record in comms[0].statistics().recent} == {path}
        await close_all(comms)

    run_world(f"infiniband/{asked}/{dtype}", scenario, hosts=3, infiniband=ALL)


def _switch_status(cluster: MemoryCluster) -> dict[str, Any]:
    assert cluster.switch is not None
    assert cluster.switch.daemon is not None
    found: dict[str, Any] = cluster.switch.daemon.status()
    return found


@in_memory("infiniband, both paths", hosts=3, infiniband=ALL)
async def test_a_job_on_both_paths_goes_by_its_chain_alone(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", 3, path="shared")
    await reduce_once(comms)
    assert {record.path for record in comms[0].statistics().recent} == {"chain"}
    [job] = _switch_status(cluster)["jobs"]
    assert job["fallback"] == NO_SWITCH
    await close_all(comms)


@in_memory("infiniband, switch lost", hosts=3, infiniband=ALL)
async def test_they_go_on_when_the_control_plane_comes_back(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", 3)
    await reduce_once(comms)
    await restart_switch(cluster, random.Random(1))
    await reduce_once(comms)
    await close_all(comms)


@in_memory("infiniband and ethernet", hosts=3, infiniband=(1,))
async def test_hosts_of_different_link_layers_are_refused_before_anything_waits(
    cluster: MemoryCluster,
) -> None:
    first: list[BaseException] = []

    async def opens() -> None:
        try:
            await cluster.connect("train", 0, size=2, host=0, timeout=2.0)
        except JobError as error:
            first.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(opens)
        await trio.sleep(0.5)
        began = trio.current_time()
        with pytest.raises(
            JoinRefused, match=r"its host is on InfiniBand, that of rank 0 \(h0, .* on Ethernet"
        ):
            await cluster.connect("train", 1, size=2, host=1)
        assert trio.current_time() - began < 1
    assert "its host is on InfiniBand" in str(first[0]), "who waits hears of it"


@in_memory("infiniband beside ethernet", hosts=4, infiniband=(0, 1))
async def test_a_job_of_each_kind_at_one_switch(cluster: MemoryCluster) -> None:
    there = await cluster.job("there", (0, 1))
    here = await cluster.job("here", (2, 3))
    for comms in (there, here):
        await reduce_once(comms)
    paths = [{record.path for record in comms[0].statistics().recent} for comms in (there, here)]
    assert paths == [{"chain"}, {"switch"}]
    await close_all([*there, *here])


@in_memory(
    "infiniband in a fabric",
    hosts=4,
    infiniband=(0, 1, 2, 3),
    fabric=spine_and_leaves(DIRECTORY),
    seats=("leaf0", "leaf1", "leaf0", "leaf1"),
)
async def test_in_a_fabric_no_switch_is_asked(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", 4)
    arrays = [np.full(700, rank, np.int64) for rank in range(4)]
    works = [comm.all_reduce(array) for comm, array in zip(comms, arrays, strict=True)]
    assert {(await work).tobytes() for work in works} == {np.full(700, 6, np.int64).tobytes()}
    [job] = _switch_status(cluster)["jobs"]
    assert (job["path"], job["fallback"]) == ("overlay", NO_SWITCH)
    await close_all(comms)


@in_memory("infiniband, MTU", hosts=3, infiniband=ALL, mtu="auto")
async def test_an_mtu_that_is_found_is_that_of_their_ports(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", 3)
    await reduce_once(comms)
    found = [daemon(cluster, host).status() for host in ALL]
    assert [(status["mtu"], status["path"]["carries"]) for status in found] == [(4096, 0)] * 3
    await close_all(comms)


@in_memory("infiniband, probing", hosts=2, infiniband=(0, 1), switch={"link_probe_kib": 64})
async def test_their_links_are_measured(cluster: MemoryCluster) -> None:
    [link] = await measured(cluster, 1)
    assert set(link["hosts"]) == {"h0", "h1"}


class _Says:
    """A control plane that answers each hello so."""

    def __init__(self, answer: Message) -> None:
        self.answer = answer
        self.heard: list[Message] = []

    async def send(self, message: Message) -> None:
        self.heard.append(message)

    async def receive(self) -> Message:
        return self.answer


async def test_a_control_plane_of_an_older_release_is_not_told_zeros_as_addresses() -> None:
    flags = {"name": "h0", "nic": "verbs", "gid": gid_of(0), "dir": "/run/none"}
    settings = load_host_settings(flags, None, {}).settings
    welcome = Welcome(id=1, boot_id="b", port_path="/p", mtu_max=4096)
    older = _Says(welcome)
    with pytest.raises(ConfigError, match="knows no hosts on InfiniBand; start it from a newer one"):
        await opening._introduce(settings, cast("ControlStream", older), "/c", "i")
    [hello] = older.heard
    assert isinstance(hello, Hello)
    assert (hello.gid, hello.mac, hello.ip) == (settings.gid_bytes, bytes(6), bytes(4))
    newer = _Says(replace(welcome, infiniband=True))
    assert await opening._introduce(settings, cast("ControlStream", newer), "/c", "i") is newer.answer
    ethernet = load_host_settings({"name": "h0", "ip": "10.0.0.1", "dir": "/run/none"}, None, {}).settings
    assert await opening._introduce(ethernet, cast("ControlStream", older), "/c", "i") is welcome


@in_memory("infiniband, a library beside", hosts=3, infiniband=ALL, **beside("on infiniband"))
async def test_a_collective_library_stands_beside_their_paths(cluster: MemoryCluster) -> None:
    """As SHARP does there; what is not tried by it, and its votes, go by the chain."""
    comms = await cluster.job("train", 3, exact_plan=False)
    index = await until_it_stands(comms)
    assert await reduce(comms, index) == "sharp"
    assert {record.path for record in comms[0].statistics().recent} <= {"chain", "sharp"}
    [job] = _switch_status(cluster)["jobs"]
    assert (job["path"], job["fallback"]) == ("chain", NO_SWITCH)
    await close_all(comms)


@in_memory("infiniband, broken", hosts=3, infiniband=ALL)
async def test_a_chain_that_breaks_twice_is_followed_by_another_path_of_theirs(
    cluster: MemoryCluster,
) -> None:
    comms = await cluster.job("train", 3)
    works = [comm.all_reduce(np.ones(10, np.float32)) for comm in comms[:2]]
    for _ in range(2):
        await trio.sleep(0.05)
        [ring] = fabric_of(cluster, 1).rings()
        ring.feed(NicRefused("the queue pair failed"))
    await trio.sleep(0.05)
    works.append(comms[2].all_reduce(np.ones(10, np.float32)))
    assert {(await work).tobytes() for work in works} == {np.full(10, 3, np.float32).tobytes()}
    assert comms[0].statistics().recent[-1].path == "overlay"
    await close_all(comms)
