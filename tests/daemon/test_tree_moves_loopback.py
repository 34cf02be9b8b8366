"""The ring of a job under traffic moves between two spines, over real sockets and in real time."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import trio

import inaproto
from inaproto.daemon.host.daemon import HostDaemon, run_host
from inaproto.daemon.settings.config import HostSettings
from inaproto.ports import Nic, load_adapter
from inaproto_hil.rigs.running_fabric import RunningFabric, running_fabric
from tests.clusters.fabrics import NESTED, SEATS, nested_reference, tree_of_root, two_spines
from tests.clusters.moving_job import Agreed, Daemons, Mover, generations

MOVES = 20
DEADLINE_S = 600.0
"""Of a machine that does much else."""
RANKS = len(SEATS)


class Traffic:
    """Four ranks, each on a host of its own, that add without end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._until = 1 << 40
        self.done = [0] * RANKS

    @staticmethod
    def _inputs(index: int) -> list[Any]:
        return [np.random.default_rng((index, rank)).random(300, np.float32) for rank in range(RANKS)]

    async def rank(self, rank: int) -> None:
        socket = self._directory / f"h{rank}.sock"
        async with await inaproto.connect("train", rank, size=RANKS, socket=socket, path="shared") as comm:
            for index in count():
                if index >= self._until:
                    return
                inputs = self._inputs(index)
                result = await comm.all_reduce(inputs[rank], "sum")
                assert result.tobytes() == nested_reference(NESTED, inputs, "sum").tobytes(), (rank, index)
                self.done[rank] += 1

    async def past(self, operations: int) -> None:
        while True:
            if min(self.done) >= operations:
                return
            await trio.sleep(0.001)

    def end(self) -> None:
        """At the same all-reduce on all ranks: none has begun the one behind its next."""
        self._until = max(self.done) + 2


async def start_host(fabric: RunningFabric, nursery: trio.Nursery, number: int, turns: Agreed) -> HostDaemon:
    settings = HostSettings.model_validate(
        {
            "name": f"h{number}",
            "ip": f"10.0.0.{number + 1}",
            "dir": fabric.fabric.root.dir,
            "switch": SEATS[number],
            "mtu": 256,
            "message_packets": 3,
            "stall_ms": 60_000,
        }
    )

    async def open_nic(port_path: str) -> Nic:
        port = await load_adapter("frames").open().connect(Path(port_path))
        nic: Nic = load_adapter("softnic").open(port, mac=settings.mac_bytes, ip=settings.ip_bytes)
        return nic

    async def serve(task_status: trio.TaskStatus[HostDaemon]) -> None:
        await run_host(settings, open_nic=open_nic, turns_of=turns(number), task_status=task_status)

    found: HostDaemon = await nursery.start(serve)
    return found


async def test_a_job_under_traffic_moves_back_and_forth_many_times(
    runtime_dir: Path, record_property: Any
) -> None:
    agreed, spent_ms = Agreed(), []
    async with running_fabric(two_spines(runtime_dir), deadline_s=DEADLINE_S) as fabric:
        for leaf in ("leaf0", "leaf1"):
            await fabric.trunks_up(leaf, up=2)
        async with trio.open_nursery() as nursery:
            hosts = [await start_host(fabric, nursery, number, agreed) for number in range(RANKS)]
            plane = fabric.switches["spine"].plane
            assert plane is not None
            traffic, mover = Traffic(runtime_dir), Mover(Daemons(lambda: hosts, lambda: plane), agreed)
            async with trio.open_nursery() as ranks:
                for rank in range(RANKS):
                    ranks.start_soon(traffic.rank, rank)
                await traffic.past(3)
                before = generations(mover.daemons)
                for number in range(MOVES):
                    began = trio.current_time()
                    await mover.move(tree_of_root("spine" if number % 2 else "spine1"), "train")
                    spent_ms.append(round(1000 * (trio.current_time() - began), 1))
                    await traffic.past(max(traffic.done) + 2)
                assert generations(mover.daemons) == before
                assert len(before) == 1
                assert "refused" not in mover.phases
                traffic.end()
            nursery.cancel_scope.cancel()
    assert len(spent_ms) == MOVES
    assert min(spent_ms) > 0
    record_property("moves_ms", sorted(spent_ms))
    print(f"{MOVES} moves, {min(traffic.done)} all-reduces; ms: {sorted(spent_ms)}")
