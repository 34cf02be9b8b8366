"""A rank that comes seconds late, with real daemons: the others ask now and then, and nothing breaks.

Nothing is asserted of how often: that is for a machine's speed to say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import trio

from tests.clusters.loopback import open_cluster, together
from tests.daemon.test_allreduce_end_to_end import draw, reference

HOSTS: Final = 4
TIMEOUTS: Final = 4
"""Timers double: one second and more."""
PATIENCE_S: Final = 600.0
MESSAGES: Final = 7
"""Of 1 MiB in all: fewer than the window has, so all of them wait for the rank that is late."""


async def test_a_rank_that_comes_late_costs_a_few_packets_and_no_ring(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, HOSTS) as cluster:
        comms = await cluster.job("j", HOSTS)
        arrays = [draw(np.dtype(np.float32), (256, 1024), rank) for rank in range(HOSTS)]
        waiting = cluster.hosts[:-1]
        works = [comms[rank].all_reduce(arrays[rank]) for rank in range(HOSTS - 1)]
        with trio.fail_after(PATIENCE_S):
            while min(host.daemon.status()["nic"]["timeouts"] for host in waiting) < TIMEOUTS:  # noqa: ASYNC110
                await trio.sleep(0.05)
        for host in waiting:
            nic = host.daemon.status()["nic"]
            assert nic["retransmits"] <= (MESSAGES + 1) * nic["timeouts"], "a packet a message, one twice"
        works.append(comms[-1].all_reduce(arrays[-1]))
        expected = reference(arrays, "sum").tobytes()
        for work in works:
            assert (await work).tobytes() == expected
        for host in cluster.hosts:
            (ring,) = host.daemon.status()["rings"]
            assert (ring["path"], ring["recoveries"], ring["halted_because"]) == ("switch", 0, [])
            assert ring["messages_received"] == MESSAGES, "all of them by the ring that it began with"
        await together([comm.aclose for comm in comms])
