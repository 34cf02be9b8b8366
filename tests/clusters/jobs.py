"""Jobs on a cluster in memory: ranks that check every result, what befalls them, and what may be left."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.core.host.events import NicRefused
from inaproto.daemon.host.attachment import Fabric
from inaproto.daemon.host.daemon import HostDaemon
from inaproto.errors import JobError
from inaproto.wire.control_messages import Message
from tests.clusters import fabrics
from tests.clusters.fabrics import Nested
from tests.clusters.memory import MemoryCluster
from tests.daemon.test_allreduce_end_to_end import draw, nested_reference, numpy_dtype, reference

WEATHER = "drop=0.01,duplicate=0.005,reorder=0.01,corrupt=0.002,truncate=0.001"
DTYPES = ("float32", "float16", "bfloat16", "int64", "float64")
MESSAGE_BYTES = 728

PAIRS = (0, 0, 1, 1)
TURNS = (0, 1, 0, 1, 0, 1)
ALONE = (0, 0, 0)
TRIPLE = (0, 1, 2, 0, 1, 2)
PLACES = {
    "2 hosts of 2": PAIRS,
    "2 hosts of 3, in turns": TURNS,
    "1 host of 3": ALONE,
    "uneven": (0, 1, 1, 2),
}
"""The host of each rank."""

Comms = Sequence[inaproto.Communicator]
Fault = Callable[[MemoryCluster, random.Random], Awaitable[None]]


# --- what a sum must be


def messages_of(array: Any) -> int:
    return max(1, -(-int(array.nbytes) // MESSAGE_BYTES))


def rotated_reference(arrays: Sequence[Any], places: Sequence[int], op: str, serial: int) -> Any:
    """Of an operation by the ring of hosts whose first message is the job's ``serial``th.

    Message m of a job begins at the host of position ``m mod P``.
    """
    hosts = list(dict.fromkeys(places))
    parts = [
        reference([array for array, place in zip(arrays, places, strict=True) if place == host], op)
        for host in hosts
    ]
    result = np.empty_like(parts[0])
    elements = MESSAGE_BYTES // result.itemsize
    for number in range(messages_of(result)):
        start = (serial + number) % len(hosts)
        here = slice(number * elements, (number + 1) * elements)
        result[here] = reference([part[here] for part in parts[start:] + parts[:start]], op)
    return result


async def reduce_nested(comms: Comms, arrays: Sequence[Any], places: Sequence[int], op: str = "sum") -> None:
    await reduce_to(nested_reference(arrays, places, op), comms, arrays, op)


async def reduce_to(expected: Any, comms: Comms, arrays: Sequence[Any], op: str = "sum") -> None:
    for work in [comm.all_reduce(array, op) for comm, array in zip(comms, arrays, strict=True)]:
        assert (await work).tobytes() == expected.tobytes()


async def reduce_once(comms: Comms, elements: int = 3000) -> None:
    await reduce_to(
        np.full(elements, len(comms), np.float32), comms, [np.ones(elements, np.float32)] * len(comms)
    )


async def errors_of(calls: Sequence[Callable[[], Awaitable[object]]]) -> list[JobError]:
    """Of all, which run at once and must all fail."""
    errors: list[JobError] = []

    async def one(call: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(JobError) as caught:
            await call()
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(one, call)
    return errors


async def close_all(comms: Comms) -> None:
    async with trio.open_nursery() as nursery:
        for comm in comms:
            nursery.start_soon(comm.aclose)


class Job:
    """Ranks that call all-reduces of random types and sizes, two at a time, and check them."""

    def __init__(
        self,
        cluster: MemoryCluster,
        places: int | Sequence[int],
        operations: int,
        seed: object,
        path: str = "auto",
        plan: Nested | None = None,
    ) -> None:
        """``places``: the host of each rank, or how many hosts have one each; ``path`` is asked for.

        ``plan``: what is added to what, if not the ranks of each host first.
        """
        self.cluster = cluster
        self.places = range(places) if isinstance(places, int) else places
        self.size = len(self.places)
        self.draws = random.Random(f"{seed}/job")
        self.called = [
            (self.draws.choice(DTYPES), self.draws.choice(("sum", "sum", "max")), self.draws.randint(1, 4000))
            for _ in range(operations)
        ]
        self.done = [0] * self.size
        self.paths: set[str] = set()
        """By which they were summed."""
        self.name = "train"
        self.path = path
        self.plan = plan
        self.seed = seed

    def inputs(self, index: int) -> list[Any]:
        dtype, _, length = self.called[index]
        return [draw(numpy_dtype(dtype), (length,), (self.seed, index, rank)) for rank in range(self.size)]

    def expected(self, index: int) -> Any:
        op = self.called[index][1]
        if self.plan is not None:
            return fabrics.nested_reference(self.plan, self.inputs(index), op)
        if self.path != "ring":
            return nested_reference(self.inputs(index), self.places, op)
        serial = sum(messages_of(self.inputs(before)[0]) for before in range(index))
        return rotated_reference(self.inputs(index), self.places, op, serial)

    async def rank(self, rank: int) -> None:
        async with await self.cluster.connect(
            self.name, rank, size=self.size, host=self.places[rank], path=self.path
        ) as comm:
            for first in range(0, len(self.called), 2):
                works: list[tuple[int, inaproto.Work]] = [
                    (index, comm.all_reduce(self.inputs(index)[rank], self.called[index][1]))
                    for index in range(first, min(first + 2, len(self.called)))
                ]
                for index, work in works:
                    result = await work
                    assert result.tobytes() == self.expected(index).tobytes(), (
                        rank,
                        index,
                        self.called[index],
                    )
                    self.done[rank] += 1
            self.paths.update(record.path for record in comm.statistics().recent)

    async def past(self, operations: int) -> None:
        """All ranks have the results of so many."""
        while min(self.done) < operations:  # noqa: ASYNC110
            await trio.sleep(0.0005)

    async def run(self, *faults: Callable[[], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            for rank in range(self.size):
                nursery.start_soon(self.rank, rank)
            for fault in faults:
                nursery.start_soon(fault)
        assert self.done == [len(self.called)] * self.size


# --- what befalls them


def daemon(cluster: MemoryCluster, host: int) -> HostDaemon:
    found = cluster.hosts[host].daemon
    assert found is not None
    return found


def fabric_of(cluster: MemoryCluster, host: int) -> Fabric:
    fabric = daemon(cluster, host).fabric
    assert fabric is not None
    return fabric


async def restart_switch(cluster: MemoryCluster, draws: random.Random) -> None:
    assert cluster.switch is not None
    await cluster.switch.crash()
    await trio.sleep(draws.choice((0.0, 0.1, 2.0)))
    await cluster.start_switch()


async def stop_and_start_switch(cluster: MemoryCluster, draws: random.Random) -> None:
    assert cluster.switch is not None
    await cluster.switch.stop()
    await trio.sleep(draws.choice((0.0, 0.5)))
    await cluster.start_switch()


async def lose_a_fabric(cluster: MemoryCluster, draws: random.Random) -> None:
    """A host's control connection ends, as if the switch had closed it; NIC and port go with it."""
    fabric = daemon(cluster, draws.randrange(len(cluster.hosts))).fabric
    if fabric is not None:
        fabric._lose("the control connection broke")


async def break_a_queue_pair(cluster: MemoryCluster, draws: random.Random) -> None:
    fabric = daemon(cluster, draws.randrange(len(cluster.hosts))).fabric
    for ring in fabric.rings() if fabric is not None else ():
        ring.feed(NicRefused("the queue pair failed"))


FAULTS: dict[str, Fault] = {
    "switch crash": restart_switch,
    "switch stop": stop_and_start_switch,
    "fabric": lose_a_fabric,
    "queue pair": break_a_queue_pair,
}


def lose_fabric_at(monkeypatch: pytest.MonkeyPatch, host: str, kind: type[Message]) -> Callable[[], None]:
    """From the call of the answer on, that host loses its connection instead of hearing one such message."""
    handle = Fabric._handle
    armed: list[bool] = []

    def cut(self: Fabric, message: Message) -> None:
        if self.settings.name == host and isinstance(message, kind) and armed:
            armed.clear()
            self._lose("the control connection broke")
            return
        handle(self, message)

    monkeypatch.setattr(Fabric, "_handle", cut)
    return lambda: armed.append(True)


# --- what is left of them


def nothing_left(cluster: MemoryCluster) -> None:
    """No host carries a rank any more."""
    left = {
        number: [(ring["job"], ring["ranks"], ring["phase"]) for ring in life.daemon.status()["rings"]]
        for number, life in cluster.hosts.items()
        if life.daemon is not None and life.daemon.fabric is not None
    }
    assert not any(left.values()), left


def as_new(cluster: MemoryCluster) -> None:
    """No rank, queue pair or memory region is left on any host."""
    nothing_left(cluster)
    for host in cluster.hosts:
        fabric = fabric_of(cluster, host)
        engine = fabric.nic._engine  # type: ignore[attr-defined]
        assert not engine._qps
        assert not engine._memory._regions
        assert not fabric._by_qpn
