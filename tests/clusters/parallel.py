"""Machines with several NICs, hence several host daemons, in the memory cluster: ranks of parallel rings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

import inaproto
from tests.clusters.memory import DIRECTORY, MemoryCluster

MACHINES = (0, 0, 0, 1, 1, 1)
"""Two machines with three ranks each."""


def host_of(machine: int, ring: int, rings: int) -> int:
    """The number of the daemon that has NIC ``ring`` of a machine."""
    return machine * rings + ring


async def connect_rank(
    cluster: MemoryCluster, rank: int, machines: Sequence[int], rings: int, job: str = "train", **options: Any
) -> inaproto.Communicator:
    """Rank i is on machine ``machines[i]``."""
    sockets = [DIRECTORY / f"h{host_of(machines[rank], ring, rings)}.sock" for ring in range(rings)]
    return await connect_at(cluster, rank, len(machines), sockets, job, **options)


async def connect_at(
    cluster: MemoryCluster, rank: int, size: int, sockets: Any, job: str = "train", **options: Any
) -> inaproto.Communicator:
    dial = cluster.network.node(f"{job}.{rank}").dial
    comm = await inaproto.connect(job, rank, size=size, socket=sockets, dial=dial, **options)
    cluster._communicators.append(comm)
    return comm


async def connect_machines(
    cluster: MemoryCluster, machines: Sequence[int], rings: int, job: str = "train", **options: Any
) -> list[inaproto.Communicator]:
    found: dict[int, inaproto.Communicator] = {}

    async def one(rank: int) -> None:
        found[rank] = await connect_rank(cluster, rank, machines, rings, job, **options)

    async with trio.open_nursery() as nursery:
        for rank in range(len(machines)):
            nursery.start_soon(one, rank)
    return [found[rank] for rank in range(len(machines))]
