"""A switch whose accelerator has ports of its own: what it says of orders comes later, or never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import inaproto
from inaproto.daemon.observe.status import ask
from inaproto.daemon.settings.config import SwitchSettings
from inaproto.daemon.settings.fabric_file import Place
from inaproto.daemon.switch.daemon import Switch
from inaproto.errors import ConfigError
from inaproto.ports import load_adapter
from tests.clusters.board import SoftwareBoard
from tests.clusters.fabrics import spine_and_leaves
from tests.clusters.loopback import Cluster, open_cluster, together
from tests.daemon.test_allreduce_end_to_end import draw, reduce_all

RANKS = 3


async def begun(cluster: Cluster, board: SoftwareBoard, **options: Any) -> None:
    await cluster.start_switch(make_accelerator=board.make, **options)
    for _ in range(RANKS):
        await cluster.start_host()


async def summed(comms: list[inaproto.Communicator], seed: int) -> None:
    await reduce_all(comms, [draw(np.dtype(np.float32), (9000,), (seed, rank)) for rank in range(RANKS)])


async def status(cluster: Cluster) -> dict[str, Any]:
    return await ask(cluster.directory / "control.sock")


async def test_hosts_are_at_its_ports_and_their_rings_in_it(runtime_dir: Path) -> None:
    board = SoftwareBoard(runtime_dir / "ports.sock")
    async with open_cluster(runtime_dir, 0, switch=False) as cluster:
        await begun(cluster, board)
        comms = await cluster.job("train", RANKS)
        await summed(comms, 1)
        found = await status(cluster)
        assert found["ports"] == []
        assert found["board"] == {"is_there": True, "error": ""}
        assert found["accelerator"]["counters"]["results_out"] > 0
        (job,) = found["jobs"]
        assert job["path"] == "switch"


async def test_hosts_begin_when_the_ring_is_in(runtime_dir: Path) -> None:
    """What they sent before would pass as foreign packets, and be taken for results."""
    board = SoftwareBoard(runtime_dir / "ports.sock")
    board.may_answer = trio.Event()
    async with open_cluster(runtime_dir, 0, switch=False) as cluster:
        await begun(cluster, board)
        has_begun = False

        async def train() -> None:
            nonlocal has_begun
            comms = await cluster.job("train", RANKS)
            has_begun = True
            await summed(comms, 2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(train)
            await board.is_asked.wait()
            await wait_all_tasks_blocked(0.2)
            assert not has_begun
            board.may_answer.set()
        assert has_begun


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_what_it_refuses_is_summed_by_the_hosts(runtime_dir: Path, when: str) -> None:
    board = SoftwareBoard(runtime_dir / "ports.sock")
    reason = "its slots are taken by a ring of the test"
    if when == "at once":
        board.error = reason
    else:
        board.refusal = reason
    async with open_cluster(runtime_dir, 0, switch=False) as cluster:
        await begun(cluster, board)
        comms = await cluster.job("train", RANKS)
        await summed(comms, 3)
        (job,) = (await status(cluster))["jobs"]
        assert job["path"] != "switch"
        assert reason in str(job)
        assert board.installed == []


async def test_when_it_is_lost_its_jobs_go_on_without_it(runtime_dir: Path) -> None:
    board = SoftwareBoard(runtime_dir / "ports.sock")
    async with open_cluster(runtime_dir, 0, switch=False) as cluster:
        await begun(cluster, board)
        comms = await cluster.job("train", RANKS)
        await summed(comms, 4)
        assert len(board.installed) == 1
        board.lose("the card fell out")
        await summed(comms, 5)
        found = await status(cluster)
        assert "the card fell out" in str(found["jobs"])
        assert found["board"]["error"] == "the card fell out"
        board.error = ""
        with trio.fail_after(600):
            while len(board.installed) < 2:
                await summed(comms, 6)
        await summed(comms, 7)


async def test_it_has_no_interfaces_beside_it(runtime_dir: Path) -> None:
    settings = SwitchSettings.model_validate({"dir": runtime_dir})
    with pytest.raises(ConfigError, match="port: this accelerator has ports of its own"):
        Switch(
            settings,
            make_accelerator=SoftwareBoard(runtime_dir).make,
            links=[load_adapter("udp").open("127.0.0.1")],
        )


async def test_it_is_of_no_fabric(runtime_dir: Path) -> None:
    settings = SwitchSettings.model_validate({"dir": runtime_dir})
    with pytest.raises(ConfigError, match="fabric: a switch with this accelerator is alone"):
        Switch(
            settings,
            Place(spine_and_leaves(runtime_dir), "spine"),
            make_accelerator=SoftwareBoard(runtime_dir).make,
        )


async def test_two_jobs_at_once(runtime_dir: Path) -> None:
    board = SoftwareBoard(runtime_dir / "ports.sock")
    async with open_cluster(runtime_dir, 0, switch=False) as cluster:
        await begun(cluster, board)

        async def job(number: int) -> None:
            comms = await cluster.job(f"job{number}", RANKS)
            for turn in range(3):
                await summed(comms, 10 * number + turn)

        await together([lambda number=number: job(number) for number in range(2)])  # type: ignore[misc]
        assert len(board.installed) == 2
