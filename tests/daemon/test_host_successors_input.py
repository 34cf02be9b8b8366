"""What processes say to the successor of their host daemon, by mistake or in malice: nobody else suffers.

Raw messages are sent to a daemon that has other ranks, whose job must go on (docs/protocol.md 11, 13.8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import trio

import inaproto
from inaproto.core.host import journal as layout
from inaproto.core.host.journal import Journal
from inaproto.daemon.host.ring_settings import OPERATIONS_MAX, host_config
from inaproto.daemon.host.shared_arena import SharedArena
from inaproto.errors import JobError, RankLost
from inaproto.wire.control_messages import Error, Message
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.client import AllReduce, Buffer, Join, Joined, Leave, Ok, Rejoin
from tests.clusters.loopback import Cluster, open_cluster
from tests.daemon.test_host_bad_input import SMALL, cluster_with_bystanders, memfd, raw


def join(rank: int, size: int = 3) -> Join:
    return Join(id=1, job="j", rank=rank, size=size, key="", pid=1, life=f"life of {rank}")


def rejoin(rank: int, size: int = 3, *, done: int = 0, called: int = 0) -> Rejoin:
    life = f"life of {rank}"
    return Rejoin(id=1, job="j", rank=rank, size=size, key="", pid=1, life=life, done=done, called=called)


def call(number: int) -> AllReduce:
    return AllReduce(
        id=3, op_index=number, segment=0, offset=0, nbytes=4, dtype=Dtype.I32, op=Op.SUM, shape=(1,)
    )


def journal_of(
    cluster: Cluster, joins: Sequence[Join], left: Mapping[int, int] | None = None
) -> tuple[SharedArena, Journal]:
    """As a daemon before this one would have left it."""
    config = host_config("", cluster.hosts[0].settings)
    arena = SharedArena()
    journal = Journal(arena, window_messages=config.window_messages, tensor_bytes=config.tensor_bytes)
    journal.say(joins, left or {}, "boot", (7, 2))
    return arena, journal


async def answer(stream: object, kind: type[Message]) -> Message:
    message = await stream.receive()  # type: ignore[attr-defined]
    assert isinstance(message, kind), message
    return message


async def test_facts_that_change_after_they_were_checked_are_not_read_again(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster, raw(cluster.hosts[0]) as stream:
        arena, journal = journal_of(cluster, [join(0)])
        await stream.send(rejoin(0, called=1), descriptors=[arena.descriptor])
        await stream.send(Buffer(id=2, segment=0, nbytes=4096), descriptors=[memfd(4096)])
        await answer(stream, Ok)
        at = journal._layout.facts_at + journal._facts_turn * (layout.FACTS_BYTES_MAX + 8) + 8
        arena.look(at, 64)[:] = b"\xc1" * 64
        await stream.send(call(0))
        await stream.receive()


async def test_more_ranks_than_a_host_has_are_refused_before_they_are_read(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster:
        ranks = [join(rank, layout.RANKS_MAX + 1) for rank in range(layout.RANKS_MAX + 1)]
        arena, _ = journal_of(cluster, ranks)
        async with raw(cluster.hosts[0]) as stream:
            await stream.send(rejoin(0, layout.RANKS_MAX + 1), descriptors=[arena.descriptor])
            refused = await answer(stream, Error)
            assert isinstance(refused, Error)
            assert f"it has {layout.RANKS_MAX + 1} ranks" in refused.message


async def test_a_rank_that_had_left_may_come_and_go_before_the_others(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster:
        arena, _ = journal_of(cluster, [join(0), join(1)], {0: 0})
        daemon = cluster.hosts[0].daemon
        async with raw(cluster.hosts[0]) as stream:
            await stream.send(rejoin(0), descriptors=[arena.descriptor])
            while not daemon.successions.status():
                await trio.lowlevel.checkpoint()
            await stream.send(Leave(id=9))
            while not daemon.successions._waiting[0].leaving:
                await trio.lowlevel.checkpoint()
        while any(session._leave_id for session in daemon._sessions):
            await trio.lowlevel.checkpoint()
        async with raw(cluster.hosts[0]) as stream:
            await stream.send(rejoin(1), descriptors=[arena.descriptor])
            await answer(stream, Ok)


async def test_who_waits_for_others_calls_no_more_than_a_daemon_keeps(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster:
        arena, _ = journal_of(cluster, [join(0), join(1)])
        async with raw(cluster.hosts[0]) as stream:
            await stream.send(rejoin(0, called=1 << 20), descriptors=[arena.descriptor])
            for number in range(OPERATIONS_MAX + 1):
                await stream.send(call(number))
            refused = await answer(stream, Error)
            assert isinstance(refused, Error)
            assert f"{OPERATIONS_MAX} all-reduces wait already" in refused.message


async def test_a_second_rejoin_by_a_connection_that_was_refused_is_not_heard(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster:
        arena, _ = journal_of(cluster, [join(0)])
        async with raw(cluster.hosts[0]) as stream:
            await stream.send(rejoin(2), descriptors=[arena.descriptor])
            refused = await answer(stream, Error)
            assert isinstance(refused, Error)
            assert "its journal is not that of this rank" in refused.message
            with pytest.raises(Exception, match="closed"):
                await stream.receive()


async def test_who_waits_for_a_sibling_that_does_not_come_is_told_in_time(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL, recover_ms=1000) as cluster:
        await cluster.start_switch(recover_ms=1000)
        for _ in range(2):
            await cluster.start_host()
        comms: dict[int, inaproto.Communicator] = {}

        async def connect(rank: int, host: int) -> None:
            comms[rank] = await cluster.connect("v", rank, size=3, host=host)

        async with trio.open_nursery() as nursery:
            for rank, host in ((0, 0), (1, 0), (2, 1)):
                nursery.start_soon(connect, rank, host)
        await cluster.hosts[0].stop()
        comms[1].channel.close()
        await cluster.restart_host(0)
        found: dict[int, JobError] = {}

        async def add(rank: int) -> None:
            with pytest.raises(JobError) as info:
                await comms[rank].all_reduce(np.ones(4, np.float32))
            found[rank] = info.value

        async with trio.open_nursery() as nursery:
            nursery.start_soon(add, 0)
            nursery.start_soon(add, 2)
        assert isinstance(found[0], RankLost)
        assert isinstance(found[2], RankLost)
        assert not cluster.hosts[0].daemon.successions


async def test_a_process_of_an_older_release_is_promised_no_successor(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster, trio.open_nursery() as nursery:
        others: list[inaproto.Communicator] = []

        async def other() -> None:
            others.append(await cluster.connect("v", 1, size=2))

        nursery.start_soon(other)
        async with raw(cluster.hosts[0]) as stream:
            await stream.send(Join(id=1, job="v", rank=0, size=2, key="", pid=1))
            joined = await answer(stream, Joined)
            assert isinstance(joined, Joined)
            assert joined.successor_ms == 0
            (ring,) = cluster.hosts[0].daemon.status()["rings"]
            assert "a process has the library of a release that looks for none" in ring["no_successor"]
            await cluster.hosts[0].stop()
            with pytest.raises(RankLost, match="its host daemon was stopped"):
                await others[0].all_reduce(np.ones(4, np.float32))
