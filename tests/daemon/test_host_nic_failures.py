"""A NIC that refuses what it is asked for: its job goes on by other queue pairs, or ends in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

import inaproto
from inaproto.errors import FabricError, JobError, JoinRefused, Unsupported
from inaproto.ports import Nic, QpAddress, QpAttributes
from tests.clusters.loopback import Cluster, open_cluster

SMALL: dict[str, Any] = {"mtu": 256, "message_packets": 3}


class Refusing:
    """A NIC of which some calls fail, as those of a device do: ``refusals`` says how often, by name."""

    def __init__(self, nic: Nic, refusals: dict[str, int]) -> None:
        self._nic = nic
        self.refusals = refusals

    def __getattr__(self, name: str) -> Any:
        wanted = getattr(self._nic, name)
        if name not in {"connect_qp", "post_receive", "post_write_imm", "create_qp", "register_memory"}:
            return wanted

        def call(*arguments: Any, **keywords: Any) -> Any:
            if self.refusals.get(name, 0) > 0:
                self.refusals[name] -= 1
                raise FabricError(name, "10.0.0.2 QP 17", "posting", "Input/output error", retryable=True)
            return wanted(*arguments, **keywords)

        return call


class Slow:
    """A NIC that has yet to ask where its peers are: until :meth:`answer` it takes nothing that they send."""

    def __init__(self, nic: Nic) -> None:
        self._nic = nic
        self._asked: dict[int, tuple[QpAddress, QpAttributes]] = {}
        self._answered: trio.Event | None = trio.Event()
        self.refuses = False
        self.waiting = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nic, name)

    def connect_qp(self, qpn: int, remote: QpAddress, attributes: QpAttributes) -> None:
        if self._answered is None:
            self._nic.connect_qp(qpn, remote, attributes)
        else:
            self._asked[qpn] = remote, attributes

    def destroy_qp(self, qpn: int) -> None:
        self._asked.pop(qpn, None)
        self._nic.destroy_qp(qpn)

    async def wait_connected(self, qpn: int) -> None:
        if self._answered is not None:
            self.waiting += 1
            try:
                await self._answered.wait()
            finally:
                self.waiting -= 1
            if self.refuses:
                raise FabricError("connect", "10.0.0.2", "asking for it", "no answer", retryable=True)
        await self._nic.wait_connected(qpn)

    def answer(self) -> None:
        assert self._answered is not None
        if not self.refuses:
            for qpn, asked in self._asked.items():
                self._nic.connect_qp(qpn, *asked)
        self._answered.set()
        self._answered = None

    async def is_waited_for(self) -> None:
        while not self.waiting:
            await trio.testing.wait_all_tasks_blocked()


def refusing(refusals: dict[str, int]) -> Callable[[Nic], Any]:
    return lambda nic: Refusing(nic, refusals)


async def sums(comms: list[inaproto.Communicator], rounds: int = 3) -> list[str]:
    """Exact on all ranks; the paths of the last."""
    for number in range(1, 1 + rounds):
        works = [comm.all_reduce(np.full(2000, number, np.int32)) for comm in comms]
        for work in works:
            assert (await work.wait(30) == number * len(comms)).all()
    return [comm.statistics().recent[-1].path for comm in comms]


async def two_hosts(cluster: Cluster, refusals: dict[str, int]) -> None:
    await cluster.start_host(wrap_nic=refusing(refusals))
    await cluster.start_host()


@pytest.mark.parametrize("call", ["connect_qp", "post_receive"])
async def test_queue_pairs_that_cannot_be_connected_are_made_anew(runtime_dir: Path, call: str) -> None:
    refusals = {call: 1}
    async with open_cluster(runtime_dir, 0, **SMALL) as cluster:
        await two_hosts(cluster, refusals)
        comms = await cluster.job("j", 2)
        assert await sums(comms) == ["switch"] * 2
        assert refusals[call] == 0


async def test_a_write_that_is_refused_ends_the_ring_and_not_the_job(runtime_dir: Path) -> None:
    refusals: dict[str, int] = {}
    async with open_cluster(runtime_dir, 0, **SMALL) as cluster:
        await two_hosts(cluster, refusals)
        comms = await cluster.job("j", 2)
        await sums(comms)
        for call in ("post_write_imm", "post_receive"):
            refusals[call] = 1
            assert await sums(comms) == ["switch"] * 2
            assert refusals[call] == 0
        [ring] = cluster.hosts[0].daemon.status()["rings"]
        assert ring["recoveries"] == 2


async def test_a_nic_that_refuses_for_ever_ends_the_job_in_words(runtime_dir: Path) -> None:
    refusals: dict[str, int] = {}
    async with open_cluster(runtime_dir, 0, **SMALL) as cluster:
        await two_hosts(cluster, refusals)
        comms = await cluster.job("j", 2)
        await sums(comms)
        refusals["connect_qp"] = refusals["post_write_imm"] = 1000
        works = [comm.all_reduce(np.ones(100, np.int32)) for comm in comms]
        for work in works:
            with pytest.raises(JobError, match="Input/output error"):
                await work.wait(30)
        refusals.clear()
        assert await sums(await cluster.job("next", 2)) == ["switch"] * 2


@pytest.mark.parametrize("call", ["create_qp", "register_memory"])
async def test_a_nic_without_room_refuses_the_join(runtime_dir: Path, call: str) -> None:
    refusals: dict[str, int] = {}
    async with open_cluster(runtime_dir, 0, **SMALL) as cluster:
        await two_hosts(cluster, refusals)
        refusals[call] = 1
        with pytest.raises(JoinRefused, match="Input/output error"):
            await cluster.connect("j", 0, size=2)
        assert await sums(await cluster.job("j", 2)) == ["switch"] * 2


async def test_memory_that_cannot_be_registered_ends_that_job_alone(runtime_dir: Path) -> None:
    refusals: dict[str, int] = {}
    async with open_cluster(runtime_dir, 0, **SMALL) as cluster:
        await two_hosts(cluster, refusals)
        comms = await cluster.job("j", 2)
        refusals["register_memory"] = 1
        with pytest.raises(JobError, match="Input/output error"):
            await sums(comms)
        assert await sums(await cluster.job("next", 2)) == ["switch"] * 2


async def test_a_device_that_is_down_is_tried_again(runtime_dir: Path) -> None:
    """That it is not there is no reason to end a daemon that had it."""
    is_down = False
    refused: list[Nic] = []

    def open_or_not(nic: Nic) -> Nic:
        if is_down:
            refused.append(nic)
            raise Unsupported("the RoCE device rxe0 with 10.0.0.1", "port 1 is down")
        return nic

    async with open_cluster(runtime_dir, 0, **SMALL) as cluster:
        await cluster.start_host(wrap_nic=open_or_not)
        await cluster.start_host()
        comms = await cluster.job("j", 2)
        await sums(comms)
        is_down = True
        await cluster.hosts[0].nic.aclose()
        while "port 1 is down" not in cluster.hosts[0].daemon.status()["switch"]["error"]:
            await trio.testing.wait_all_tasks_blocked()
        is_down = False
        assert await sums(comms) == ["switch"] * 2
        for nic in refused:
            await nic.aclose()


async def with_a_slow_host(cluster: Cluster) -> Slow:
    """Whose first NIC is."""
    slow: list[Slow] = []

    def wrap(nic: Nic) -> Any:
        if slow:
            return nic
        slow.append(Slow(nic))
        return slow[0]

    await cluster.start_host(wrap_nic=wrap, transport_timeout=0)
    await cluster.start_host(transport_timeout=0)
    await cluster.job("warm-up", 1)
    return slow[0]


async def test_nobody_sends_to_who_has_yet_to_connect(runtime_dir: Path) -> None:
    """No host has a timer that would bring again what was lost."""
    async with open_cluster(runtime_dir, 0, **SMALL) as cluster:
        slow = await with_a_slow_host(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_first_sums, cluster)
            await slow.is_waited_for()
            slow.answer()
        for host in cluster.hosts:
            assert host.nic.statistics()["retransmits"] == 0


async def _first_sums(cluster: Cluster) -> None:
    assert await sums(await cluster.job("j", 2)) == ["switch"] * 2


async def test_a_peer_that_does_not_answer_costs_the_ring_and_not_the_job(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, **SMALL) as cluster:
        slow = await with_a_slow_host(cluster)
        slow.refuses = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_first_sums, cluster)
            await slow.is_waited_for()
            slow.answer()
        [ring] = [ring for ring in cluster.hosts[0].daemon.status()["rings"] if ring["job"] == "j"]
        assert ring["recoveries"] == 1
        assert "10.0.0.2 failed while asking for it: no answer" in ring["halted_because"][0]


async def test_a_ring_whose_processes_go_while_it_connects_is_not_waited_for(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, **SMALL) as cluster:
        slow = await with_a_slow_host(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_first_sums, cluster)
            await slow.is_waited_for()
            nursery.cancel_scope.cancel()
        cluster.kill_communicators()
        while slow.waiting:
            await trio.testing.wait_all_tasks_blocked()
        slow.answer()
        assert await sums(await cluster.job("next", 2)) == ["switch"] * 2


async def test_a_host_that_is_stopped_while_it_connects_says_so(runtime_dir: Path) -> None:
    """If none of its ranks looks for a successor of it."""
    async with open_cluster(runtime_dir, 0, recover_ms=0, **SMALL) as cluster:
        slow = await with_a_slow_host(cluster)
        heard: list[str] = []

        async def join(rank: int) -> None:
            with pytest.raises(JobError) as caught:
                await cluster.connect("j", rank, size=2)
            heard.append(str(caught.value))

        async with trio.open_nursery() as nursery:
            for rank in range(2):
                nursery.start_soon(join, rank)
            await slow.is_waited_for()
            await cluster.hosts[0].stop()
        assert len(heard) == 2
        assert all("was stopped" in words for words in heard)
        assert not slow.waiting


async def test_a_link_that_is_lost_while_it_connects_is_followed_by_another(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, **SMALL) as cluster:
        slow = await with_a_slow_host(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_first_sums, cluster)
            await slow.is_waited_for()
            await slow.aclose()
        assert not slow.waiting
