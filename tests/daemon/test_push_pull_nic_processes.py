"""Four hosts and two parameter servers as processes, whose arrays go over softnics' queue pairs: on loopback
by UDP, and through a switch in weather; a host and a server are killed and come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.daemon.observe.model_tables import show_server
from inaproto_hil.rigs.models_cluster import ModelsCluster
from tests.contract.test_frame_port_udp import free_address

HOSTS, SERVERS, CLOCKS, ELEMENTS = 4, 2, 6, 20_000
WAIT_S = 600.0
MODELS = f"""
[[models]]
name = "m"
dtype = "int64"
elements = {ELEMENTS}
heartbeat_ms = 500
"""
NAMES = [f"h{number}" for number in range(HOSTS)] + [f"ps{number}" for number in range(SERVERS)]
WEATHER = "drop=0.002,duplicate=0.001,reorder=0.002,corrupt=0.001,delay=1ms"


def options(name: str, address: str, port: str) -> list[str]:
    prefix = "--models-" if name.startswith("h") else "--"
    found = [f"{prefix}nic", "softnic", f"{prefix}ip", address]
    return [*found, f"{prefix}port", port] if port else found


def on_loopback() -> dict[str, list[str]]:
    addresses = {name: free_address() for name in NAMES}
    return {name: options(name, address, f"udp:{address}") for name, address in addresses.items()}


def at_the_switch(network: str) -> dict[str, list[str]]:
    return {name: options(name, f"{network}{number + 1}", "") for number, name in enumerate(NAMES)}


def update(worker: int, clock: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng([worker, clock]).integers(-(1 << 40), 1 << 40, ELEMENTS)


async def work(
    cluster: ModelsCluster, worker: int, told: Callable[[int, int], None], may_end: trio.Event | None = None
) -> bytes:
    """All clocks of a worker, in as many connections as that takes; returns the weights at the end.

    The last clock begins when ``may_end`` is set.
    """
    path = cluster.directory / f"h{worker}.sock"
    while True:
        try:
            async with await inaproto.connect_model("m", socket=path, timeout=WAIT_S) as model:
                while model.clock < CLOCKS:
                    if may_end is not None and model.clock == CLOCKS - 1:
                        await may_end.wait()
                    model.push(update(worker, model.clock + 1))
                    told(worker, await model.finish(WAIT_S))
                    await model.pull(0, WAIT_S)
                return bytes((await model.pull(0, WAIT_S)).tobytes())
        except inaproto.DaemonUnreachable:
            await trio.sleep(0.05)


async def train(cluster: ModelsCluster) -> list[bytes]:
    """A host and a server are killed on the way, and started again."""
    found: dict[int, bytes] = {}
    clocks = [0] * HOSTS
    news, all_killed = trio.Event(), trio.Event()

    def told(worker: int, clock: int) -> None:
        nonlocal news
        clocks[worker] = clock
        news.set()
        news = trio.Event()

    async def one(worker: int) -> None:
        found[worker] = await work(cluster, worker, told, all_killed)

    async def kill(name: str, at: int) -> None:
        while min(clocks) < at:
            await news.wait()
        cluster.kill(name)
        cluster.begin_again(name)
        await trio.to_thread.run_sync(cluster.wait_ready, name)

    with trio.fail_after(3 * WAIT_S):
        async with trio.open_nursery() as nursery:
            for worker in range(HOSTS):
                nursery.start_soon(one, worker)
            await kill("h1", 2)
            await kill("ps0", 4)
            all_killed.set()
    return [found[worker] for worker in range(HOSTS)]


@pytest.mark.timeout(600)  # up to eleven processes, on machines that have other things to do
@pytest.mark.parametrize("network", ["loopback", "switch in weather", "switch in weather, IPv6"])
def test_arrays_go_by_the_nics_and_all_updates_are_in_the_weights_once(tmp_path: Path, network: str) -> None:
    weather = None if network == "loopback" else WEATHER
    nics = on_loopback() if weather is None else at_the_switch("fd00::" if "IPv6" in network else "10.1.0.")
    with ModelsCluster(HOSTS, SERVERS, MODELS, nics=nics, weather=weather, log_dir=tmp_path) as cluster:
        expected = sum(update(worker, clock) for worker in range(HOSTS) for clock in range(1, CLOCKS + 1))
        assert set(trio.run(train, cluster)) == {np.asarray(expected).tobytes()}
        for name in NAMES:
            status = cluster.status(name)
            nic = status["nic" if name.startswith("ps") else "models_nic"]
            shards = status["shards"] if name.startswith("ps") else status["models"][0]["shards"]
            links = [link for shard in shards for link in shard["links"] if link["connected"]]
            assert {link["by"] for link in links} == {"nic"}, links
            assert not nic["trouble"]
            array = ELEMENTS * 8 // SERVERS
            if name not in ("h1", "ps0"):  # the others' counters are of their last life
                assert nic["carried"]["nic"] > 2 * CLOCKS * array, nic  # up and down, at least once
                assert nic["counters"]["bytes_sent"] + nic["counters"]["bytes_received"] > 2 * CLOCKS * array
            assert sum(count for by, count in nic["carried"].items() if by != "nic") < array // 10, nic


def test_an_edge_without_a_nic_goes_by_tcp_and_the_status_says_why(tmp_path: Path) -> None:
    nics = {name: its for name, its in on_loopback().items() if name != "h0"}
    with ModelsCluster(2, 1, MODELS, nics=nics, log_dir=tmp_path) as cluster:

        async def both() -> None:
            async with trio.open_nursery() as nursery:
                for worker in range(2):
                    nursery.start_soon(work, cluster, worker, lambda worker, clock: None)

        trio.run(both)
        (shard,) = cluster.status("ps0")["shards"]
        ways = {link["peer"]: (link["by"], link["why"]) for link in shard["links"]}
        assert ways["h0"] == ("tcp", "the peer has no NIC")
        assert ways["h1"] == ("nic", "")
        told = "\n".join(str(one) for one in show_server(cluster.status("ps0")))
        assert "edge to h0: tcp, because the peer has no NIC" in told
        assert "NIC of the trees: softnic 127." in told
