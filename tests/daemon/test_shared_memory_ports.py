"""All-reduces of daemons that share memory: in weather, beside hosts at the socket, past a killed one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.daemon.observe.status import ask
from inaproto.errors import RankLost
from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster
from tests.clusters.loopback import Cluster, open_cluster
from tests.daemon.test_allreduce_end_to_end import BAD_WIRE, SMALL

GIVE_UP_S = 600
COUNT = 50_000


async def start(cluster: Cluster, *adapters: str, **switch_options: Any) -> None:
    await cluster.start_switch(adapter="shm", **switch_options)
    for adapter in adapters:
        await cluster.start_host(adapter=adapter)


async def check_sum(comms: list[inaproto.Communicator], seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(COUNT).astype(np.float32) for _ in comms]
    expected = arrays[0].copy()
    for array in arrays[1:]:
        expected += array
    works = [comm.all_reduce(array) for comm, array in zip(comms, arrays, strict=True)]
    for work in works:
        assert (await work).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kernels", ["compiled", "numpy"])
async def test_it_sums_to_the_last_bit(runtime_dir: Path, use_kernels: Any, kernels: str) -> None:
    use_kernels(kernels)
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await start(cluster, "shm", "shm", "shm")
        comms = await cluster.job("j", 3)
        for seed in range(3):
            await check_sum(comms, seed)
        told = await ask(runtime_dir / "control.sock")
        assert told["totals"]["frames_lost"] == 0
        assert [host.nic.statistics()["output_lost"] for host in cluster.hosts] == [0] * 3


async def test_hosts_at_the_socket_are_in_the_same_ring(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await start(cluster, "shm", "frames", "shm")
        await check_sum(await cluster.job("j", 3), 7)


async def test_weather_falls_on_it(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await start(cluster, "shm", "shm", weather=BAD_WIRE)
        await check_sum(await cluster.job("j", 2), 11)
        again = [host.nic.statistics()["retransmits"] for host in cluster.hosts]
        assert sum(again) > 0


async def test_a_host_that_plugs_in_again_has_new_memory(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await start(cluster, "shm", "shm")
        await check_sum(await cluster.job("first", 2), 1)
        await cluster.hosts[1].stop()
        await cluster.restart_host(1)
        await check_sum(await cluster.job("second", 2), 2)


async def test_a_host_that_is_killed_is_lost_and_others_go_on() -> None:
    """A real SIGKILL: memory that it has written stays as it was."""
    with trio.fail_after(GIVE_UP_S), LocalCluster(ClusterConfig(hosts=3, adapter="shm")) as running:
        async with trio.open_nursery() as nursery:
            comms: dict[tuple[str, int], inaproto.Communicator] = {}

            async def join(job: str, rank: int, host: int) -> None:
                found = await inaproto.connect(job, rank, size=2, socket=running.host_socket(host))
                comms[job, rank] = found

            async with trio.open_nursery() as joining:
                for job, hosts in (("ends", (0, 1)), ("stays", (0, 2))):
                    for rank, host in enumerate(hosts):
                        joining.start_soon(join, job, rank, host)
            stays = [comms["stays", 0], comms["stays", 1]]
            await check_sum([comms["ends", 0], comms["ends", 1]], 1)
            await check_sum(stays, 2)
            kinds = [port["kind"] for port in running.switch_status()["ports"]]
            assert kinds == ["shared memory"] * 3
            os.kill(running.hosts[1].pid, signal.SIGKILL)
            with pytest.raises(RankLost, match="rank 1"):
                await comms["ends", 0].all_reduce(np.ones(COUNT, np.float32))
            for seed in range(3):
                await check_sum(stays, seed)
            while len(running.switch_status()["ports"]) > 2:
                await trio.lowlevel.checkpoint()
            for comm in comms.values():
                comm.channel.close()
            nursery.cancel_scope.cancel()
