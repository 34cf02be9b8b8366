"""Real daemons in virtual time and bad weather, at paths that carry packets of different sizes."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from inaproto.errors import JobError
from inaproto.units import Frames
from tests.clusters.memory import MemoryCluster, TracedPort, in_memory
from tests.clusters.successors import kill
from tests.daemon.test_allreduce_end_to_end import draw, reduce_all
from tests.seeds import seeds


def narrow(monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int]) -> None:
    """What these hosts send is dropped without a word where it is longer."""
    send = TracedPort.send_nowait

    def send_nowait(self: TracedPort, frames: Frames) -> int:
        if frames.shape[1] > bounds.get(self._node, frames.shape[1]):
            return len(frames)
        return send(self, frames)

    monkeypatch.setattr(TracedPort, "send_nowait", send_nowait)


@pytest.mark.parametrize("seed", seeds(8))
@in_memory(
    "path MTU/{seed}",
    hosts=3,
    weather="drop=0.02,duplicate=0.01,reorder=0.01,corrupt=0.002",
    mtu="auto",
    message_packets=8,
)
async def test_a_job_goes_on_with_what_all_paths_carry_also_when_these_change(
    cluster: MemoryCluster, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next ring has other packets, and the same messages; the bytes of the results are the same."""
    bounds = {"h1": 1200}
    narrow(monkeypatch, bounds)
    for life in list(cluster.hosts.values()):
        await life.crash()
    for number in range(3):
        await cluster.start_host(number)
    comms = await cluster.job("train", 3)

    async def reduce() -> None:
        arrays = [draw(np.dtype(np.float32), (9000,), (seed, rank)) for rank in range(3)]
        await reduce_all(comms, arrays)

    def mtus() -> list[int]:
        return [life.daemon.status()["mtu"] for life in cluster.hosts.values() if life.daemon is not None]

    with trio.fail_after(120):
        await reduce()
        assert mtus() == [4096, 1024, 4096]
        bounds |= {"h2": 700}
        switch = cluster.switch
        assert switch is not None
        await switch.crash()
        await cluster.start_switch()
        await reduce()
        assert mtus() == [4096, 1024, 512]


@pytest.mark.parametrize("lost", ["switch", "host"])
@in_memory("path MTU of settings", hosts=3, mtu="4096", message_packets=8)
async def test_a_job_does_not_go_on_by_a_path_that_cannot_carry_its_packets(
    cluster: MemoryCluster, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks hear why when the switch or their daemon is back, as one that would join then."""
    bounds: dict[str, int] = {}
    narrow(monkeypatch, bounds)
    comms = await cluster.job("train", 3)
    arrays = [draw(np.dtype(np.float32), (9000,), (0, rank)) for rank in range(3)]
    told: dict[int, JobError] = {}

    async def reduce(rank: int) -> None:
        try:
            await comms[rank].all_reduce(arrays[rank])
        except JobError as error:
            told[rank] = error

    with trio.fail_after(120):
        await reduce_all(comms, arrays)
        bounds |= {"h1": 1200}
        switch = cluster.switch
        assert switch is not None
        if lost == "switch":
            await switch.crash()
            await cluster.start_switch()
        else:
            await kill(cluster.hosts[1])
            await cluster.start_host(1)
        async with trio.open_nursery() as nursery:
            for rank in range(3):
                nursery.start_soon(reduce, rank)
    for rank in range(3):
        assert "mtu is 4096, and the path to the switch carries RoCE packets of 1024" in str(told[rank])
