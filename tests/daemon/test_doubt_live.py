"""Hosts that disagree on an all-reduce's path, for one of them is in doubt: how long training stands still.

Real daemons in virtual time, without a controller; what it had said before it died is put to hosts by hand.
"""

from __future__ import annotations

import trio

from inaproto.core.sharing.participant import Phase
from inaproto.daemon.host.daemon import HostDaemon
from inaproto.units import MS, Epoch, JobId, OpIndex
from inaproto.wire.messages.sharing import Commit, Decision, Prepare, Rule, Seat, Turn, Version
from tests.clusters.memory import MemoryCluster, in_memory
from tests.clusters.sharing import AGENTS, Training, seats_of

JOB = JobId("train")
LEASE_MS = 200
STALL_MS = 5000
VERSION = Version(1, 1)
FIRST = OpIndex(30)


def prepare(seat: Seat, peers: tuple[Seat, ...], lease_ms: int) -> Prepare:
    return Prepare(
        seat=seat,
        term=1,
        version=VERSION,
        rule=Rule.BY_INDEX,
        granted=JOB,
        over_below=Epoch(1),
        margin=2,
        lease_ns=lease_ms * MS,
        peers=peers,
        first=FIRST,
    )


@in_memory("sharing/doubt", hosts=2, stall_ms=STALL_MS, controller=[AGENTS])
async def test_a_doubt_of_one_host_costs_no_stall_of_the_others(cluster: MemoryCluster) -> None:
    """It hears of the decision the moment after the other has given it up: they start on different paths."""
    job = Training(cluster, JOB, (0, 1), steps=20)

    async def doubt() -> None:
        await job.past(3)
        daemons: list[HostDaemon] = []
        for host in range(2):
            daemon = cluster.hosts[host].daemon
            assert daemon is not None
            daemons.append(daemon)
        lives = [seats_of(daemon)[0]["life"] for daemon in daemons]
        sure, doubtful = (Seat(JOB, f"h{host}", lives[host]) for host in range(2))
        daemons[0]._turn_seats.heard(prepare(sure, (sure, doubtful), 10_000))
        daemons[1]._turn_seats.heard(prepare(doubtful, (sure, doubtful), LEASE_MS))
        await job.past(FIRST)
        began = trio.current_time()
        while seats_of(daemons[1])[0]["phase"] != Phase.IN_DOUBT.value:  # noqa: ASYNC110
            await trio.sleep(0.0001)
        turn = Turn(JOB, Epoch(1), FIRST, OpIndex(FIRST + 6))
        daemons[0]._turn_seats.heard(Commit(sure, 1, VERSION, Decision(turn)))
        await job.past(FIRST + 1)
        assert trio.current_time() - began < (LEASE_MS + 100) / 1000
        assert [daemon.status()["totals"]["recoveries"] for daemon in daemons] == [1, 1]

    async with trio.open_nursery() as running:
        running.start_soon(job.run)
        running.start_soon(doubt)
