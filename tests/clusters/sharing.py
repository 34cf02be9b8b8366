"""A controller in a memory cluster, which may be killed at any instant, and jobs with training steps.

What is of the controller here is the part that lets jobs share switch memory: sessions of host daemons,
groups, planner and coordinator, all real; the store is a dictionary that outlives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import trio

from inaproto.core.sharing.events import SharingConfig
from inaproto.daemon.host.daemon import HostDaemon
from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.net.names import CONTROL_SOCKET
from inaproto.wire.control_messages import Status, StatusReply
from inaproto.wire.messages.controller import AgentRole
from inaproto_adapters.memory import MemoryNode
from inaproto_controller.cluster.desired import Desired
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.fabric_trees import FabricTrees
from inaproto_controller.service.agents import Agents
from inaproto_controller.service.trees.service import TreeService
from inaproto_controller.service.turns.planner import PlannerConfig
from inaproto_controller.service.turns.service import SharingService
from tests.clusters.memory import DIRECTORY, MemoryCluster
from tests.daemon.test_allreduce_end_to_end import draw

AGENTS = DIRECTORY / "agents.sock"
DISK_S = 0.003
"""Of a write."""


@dataclass
class Disk:
    """What the controllers of a test leave behind."""

    records: dict[str, bytes] = field(default_factory=dict)
    terms: int = 0

    async def put(self, owner: str, body: bytes | None) -> None:
        await trio.sleep(DISK_S)
        if body is None:
            self.records.pop(owner, None)
        else:
            self.records[owner] = body


class LiveController:
    """``run`` it in a nursery; ``kill`` is without a word."""

    def __init__(
        self,
        cluster: MemoryCluster,
        disk: Disk,
        *,
        lease_s: float = 1.0,
        capacity: int = 1,
        topology: GraphTopology | None = None,
        desired: Desired | None = None,
    ) -> None:
        """``topology``: of the switches whose slots it gives to jobs; None: it moves no trees. ``desired``:
        what it has promised."""
        self._cluster = cluster
        self._disk = disk
        self._lease_s = lease_s
        self._capacity = capacity
        self._topology = topology
        self._desired = desired or Desired()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._node: MemoryNode | None = None
        self.sharing: SharingService
        self.trees: TreeService | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        roles: dict[str, AgentRole] = {f"h{number}": "host" for number in range(8)}

        def make(send: Any) -> SharingService:
            return SharingService(
                send,
                lease_s=self._lease_s,
                roots=() if topology is None else [switch.name for switch in topology.switches],
                config=SharingConfig("", capacity=self._capacity),
                planning=PlannerConfig(),
            )

        topology = self._topology
        if topology is not None:
            roles |= dict.fromkeys((switch.name for switch in topology.switches), "switch")

        def make_trees(send: Any, sharing: SharingService) -> TreeService | None:
            trees = None if topology is None else FabricTrees(topology, share_max=4)
            return None if trees is None else TreeService(send, sharing, trees)

        agents = Agents(
            roles,
            lease_s=30,
            report_s=0.5,
            sessions_max=32,
            changed=lambda: None,
            sharing=make,
            trees=make_trees,
        )
        self.sharing, self.trees = agents.sharing, agents.trees
        self._disk.terms += 1
        self._node = self._cluster.network.node("controller")
        try:
            with self._scope:
                listener = await self._node.listen(AGENTS, "agents' socket")
                agents.lead(self._disk.terms, self._desired)
                self.sharing.lead(self._disk.records, self._disk.put)
                if self.trees is not None:
                    self.trees.lead(self._disk.terms, self._disk.records, self._disk.put)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.sharing.run)
                    if self.trees is not None:
                        nursery.start_soon(self.trees.run)
                    nursery.start_soon(agents.accept_sessions, listener)
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self._ended.set()

    async def kill(self) -> None:
        assert self._node is not None
        self._node.crash()
        self._scope.cancel()
        await self._ended.wait()

    async def until_hosts(self, count: int) -> None:
        """Have found it."""
        while len(self.sharing.connected) < count:  # noqa: ASYNC110
            await trio.sleep(0.01)

    @property
    def group(self) -> Mapping[str, Any]:
        [group] = self.sharing.status()
        return group


class Training:
    """Ranks of a job that train: in each step they compute, call all-reduces, and wait for all of them."""

    def __init__(
        self,
        cluster: MemoryCluster,
        name: str,
        places: Sequence[int],
        *,
        steps: int,
        sizes: Sequence[int] = (300, 900, 2000),
        think_s: float = 0.015,
    ) -> None:
        self.cluster, self.name, self.places = cluster, name, places
        self.steps, self.sizes, self.think_s = steps, sizes, think_s
        self.done = [0] * len(places)
        self.paths: list[str] = []
        """Of rank 0's all-reduces, in order."""

    def part(self, index: int, rank: int) -> Any:
        length = self.sizes[index % len(self.sizes)]
        return draw(np.dtype("float32"), (length,), (self.name, index, rank))

    def expected(self, index: int) -> Any:
        total = self.part(index, 0)
        for other in range(1, len(self.places)):
            total = total + self.part(index, other)
        return total

    async def rank(self, rank: int) -> None:
        size = len(self.places)
        async with await self.cluster.connect(
            self.name, rank, size=size, host=self.places[rank], path="shared"
        ) as comm:
            for step in range(self.steps):
                works = []
                await trio.sleep(self.think_s)
                for number in range(len(self.sizes)):
                    await trio.sleep(self.think_s / 4)
                    index = step * len(self.sizes) + number
                    works.append((index, comm.all_reduce(self.part(index, rank))))
                for index, work in works:
                    result = await work
                    assert result.tobytes() == self.expected(index).tobytes(), (self.name, rank, index)
                    self.done[rank] += 1
            if rank == 0:
                self.paths = [record.path for record in comm.statistics().recent]

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for rank in range(len(self.places)):
                nursery.start_soon(self.rank, rank)
        assert self.done == [self.steps * len(self.sizes)] * len(self.places)

    async def past(self, operations: int) -> None:
        while min(self.done) < operations:  # noqa: ASYNC110
            await trio.sleep(0.001)


def seats_of(daemon: HostDaemon | None) -> list[dict[str, Any]]:
    assert daemon is not None
    found: list[dict[str, Any]] = daemon.status()["controller"]["turns"]
    return found


async def pool_of(cluster: MemoryCluster) -> Mapping[str, Any]:
    """As the switch has it."""
    stream = ControlStream(cluster.network.node("status").dial(DIRECTORY / CONTROL_SOCKET))
    await stream.send(Status(id=1))
    answer = await stream.receive()
    stream.close()
    assert isinstance(answer, StatusReply)
    [pool] = answer.body["accelerator"]["pools"].values()
    found: Mapping[str, Any] = pool
    return found
