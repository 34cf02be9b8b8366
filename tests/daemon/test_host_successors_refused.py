"""Ranks that a host daemon's successor does not take: an error that says why, and nobody else is hurt."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.core.host.operations import TakeResult
from inaproto.daemon.host.ring import HostRing
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.errors import JobError
from inaproto.wire.control_messages import Error
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.client import AllReduce, Buffer, Leave, Rejoin
from tests.clusters import successors
from tests.clusters.jobs import PAIRS, errors_of, reduce_once
from tests.clusters.memory import DIRECTORY, MemoryCluster, in_memory
from tests.clusters.successors import kill, rings_of

NAMED_S = 5.2
"""Bound on what waits for a host that may come back (switch: recover_ms), and then hears that it does not."""
ONES = np.ones(2000, np.float32)


async def all_fail(comms: Sequence[inaproto.Communicator], words: str) -> None:
    """One of them with ``words``, and all in time."""
    began = trio.current_time()
    errors = await errors_of([partial(wait, comm.all_reduce(ONES)) for comm in comms])
    assert any(words in str(error) for error in errors), errors
    assert trio.current_time() - began <= NAMED_S


async def wait(work: inaproto.Work) -> None:
    assert (await work == 4).all()


async def all_well(comms: Sequence[inaproto.Communicator]) -> None:
    """Each rank waits for its own result."""
    async with trio.open_nursery() as nursery:
        for work in [comm.all_reduce(ONES) for comm in comms]:
            nursery.start_soon(wait, work)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("window_messages", 4, "had a window of 2 messages with 728 bytes each, this one has 4 with 728"),
        ("message_packets", 5, "had a window of 2 messages with 728 bytes each, this one has 2 with 1240"),
        ("recover_ms", 0, "recover_ms = 0"),
    ],
)
@in_memory("settings/{setting}", hosts=2)
async def test_a_successor_with_other_settings_says_which(
    cluster: MemoryCluster, setting: str, value: int, words: str
) -> None:
    comms = await cluster.job("train", PAIRS)
    await reduce_once(comms)
    await kill(cluster.hosts[0])
    cluster._options[setting] = value
    await cluster.start_host(0)
    del cluster._options[setting]
    await all_fail(comms, words)


WRONG: dict[str, Callable[[memoryview], None]] = {
    "nothing": lambda memory: memory.__setitem__(slice(0, 4096), bytes(4096)),
    "noise": lambda memory: memory.__setitem__(slice(64, 4096), random.Random(0).randbytes(4032)),
    "a count": lambda memory: memory.__setitem__(slice(64, 72), b"\xff" * 8),
    "facts": lambda memory: memory.__setitem__(slice(72, 80), b"\x09" + bytes(7)),
}


@pytest.mark.parametrize("wrong", WRONG)
@in_memory("journal/{wrong}", hosts=2)
async def test_a_journal_that_is_none_ends_its_job_alone(cluster: MemoryCluster, wrong: str) -> None:
    comms = await cluster.job("train", PAIRS)
    others = await cluster.job("other", PAIRS)
    await reduce_once(comms)
    await reduce_once(others)
    [ring] = [ring for ring in rings_of(cluster.hosts[0]) if ring.job == "train"]
    assert ring._arena is not None
    memory = ring._arena.look(0, 4096)
    await kill(cluster.hosts[0])
    WRONG[wrong](memory)
    await cluster.start_host(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(all_well, others)
        await all_fail(comms, "its journal is refused")
    with trio.fail_after(2.0):
        await reduce_once(await cluster.job("again", PAIRS))


# --- ranks that lie


class Liar:
    """A rank of a host whose daemon was killed, which says to the successor what it likes."""

    def __init__(self, cluster: MemoryCluster, rank: int, journal: int) -> None:
        self.journal = journal
        life = self._life(cluster, rank)
        self.truth = Rejoin(id=1, job="train", rank=rank, size=4, key="", pid=7, life=life, done=1, called=2)
        self._cluster = cluster

    def _life(self, cluster: MemoryCluster, rank: int) -> str:
        [ring] = rings_of(cluster.hosts[0])
        return ring.ranks[rank].join.life

    async def says(self, said: Rejoin | None, *more: Any, journal: int | None = None) -> list[str]:
        """What it is told, until the connection ends or nothing comes for a while."""
        dial = self._cluster.network.node("liar").dial
        stream = ControlStream(dial(DIRECTORY / "h0.sock"))
        told: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            if said is not None:
                stream.send_nowait(said, descriptors=[self.journal if journal is None else journal])
            for message in more:
                if isinstance(message, Buffer):
                    segment = os.memfd_create("segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                    os.ftruncate(segment, message.nbytes)
                    fcntl.fcntl(segment, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
                    stream.send_nowait(message, descriptors=[segment])
                else:
                    stream.send_nowait(message)
            with trio.move_on_after(0.2):
                while True:
                    try:
                        message = await stream.receive()
                    except EndOfChannel:
                        break
                    told.append(message.message if isinstance(message, Error) else message.TYPE)
            nursery.cancel_scope.cancel()
        stream.close()
        return told


def called(index: int, nbytes: int = 8000, segment: int = 0) -> AllReduce:
    return AllReduce(
        id=10 + index, op_index=index, segment=segment, offset=0, nbytes=nbytes, dtype=Dtype.F32, op=Op.SUM,
        shape=(nbytes // 4,),
    )  # fmt: skip


BUFFER = Buffer(id=2, segment=0, nbytes=8192)
OTHER = Rejoin(id=6, job="j", rank=0, size=1, key="", pid=1, done=0, called=0)
LIES: dict[str, tuple[dict[str, Any], list[Any], str]] = {
    "another rank": ({"rank": 2}, [], "its journal is not that of this rank"),
    "a rank that there is not": ({"rank": 77}, [], "its journal is not that of this rank"),
    "another key": ({"key": "guessed"}, [], "its journal is not that of this rank"),
    "another size": ({"size": 5}, [], "its journal is not that of this rank"),
    "another job": ({"job": "other"}, [], "its journal is not that of this rank"),
    "another process": ({"life": "0"}, [], "its journal is not that of this rank"),
    "more results than calls": ({"done": 9}, [], "has the results of 9 of 2 all-reduces"),
    "a segment that is missing": ({}, [called(1)], "there is no segment 0"),
    "a tensor behind its segment": ({}, [BUFFER, called(1, 9000)], "which has 8192"),
    "calls out of order": ({"called": 4}, [BUFFER, called(1), called(3)], "all_reduce 3 after 1"),
    "a call of the future": ({"called": 9}, [BUFFER, called(8)], "all_reduce 8 where 1 is next"),
    "a second rejoin": ({}, [Leave(id=5), OTHER], "a rank already"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
@in_memory("liar/{lie}", hosts=2)
async def test_who_lies_is_told_so_and_the_daemon_lives(cluster: MemoryCluster, lie: str) -> None:
    comms = await cluster.job("train", (0, 1, 1, 1))
    await reduce_once(comms)
    works = [comm.all_reduce(ONES) for comm in comms[1:]]
    journal = os.dup(rings_of(cluster.hosts[0])[0]._arena.descriptor)  # type: ignore[union-attr]
    liar = Liar(cluster, 0, journal)
    cluster.network.node("train.0").crash()
    await kill(cluster.hosts[0])
    life = await cluster.start_host(0)
    await trio.sleep(0.3)
    changes, more, words = LIES[lie]
    told = await liar.says(replace(liar.truth, **changes), *more)
    assert any(words in each for each in told), told
    for work in works:
        with pytest.raises(JobError):
            await work
    assert not life.ended.is_set()
    os.close(journal)
    with trio.fail_after(12.0):
        await reduce_once(await cluster.job("again", PAIRS))


@in_memory("torn liar", hosts=2)
async def test_a_result_is_not_copied_again_into_another_tensor(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", (0, 1, 1, 1))
    await reduce_once(comms)
    works = [comm.all_reduce(ONES) for comm in comms]
    journal = os.dup(rings_of(cluster.hosts[0])[0]._arena.descriptor)  # type: ignore[union-attr]
    liar = Liar(cluster, 0, journal)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill_at_a_result, cluster)
        await trio.sleep(0.1)
    cluster.network.node("train.0").crash()
    life = await cluster.start_host(0)
    told = await liar.says(liar.truth, BUFFER, called(1, 400))
    assert any("not all ranks here called it so" in each for each in told), told
    for work in works[1:]:
        with pytest.raises(JobError):
            await work
    assert not life.ended.is_set()
    os.close(journal)


async def kill_at_a_result(cluster: MemoryCluster) -> None:
    """While the second result of an all-reduce is being copied."""
    [ring] = rings_of(cluster.hosts[0])
    died = trio.Event()

    def perform(actions: Any) -> None:
        for number, action in enumerate(actions):
            if isinstance(action, TakeResult) and action.offset:
                HostRing._perform_all(ring, actions[:number])
                successors._tear(ring, action)
                successors._silence(cluster.hosts[0])
                died.set()
                return
        HostRing._perform_all(ring, actions)

    ring._perform_all = perform  # type: ignore[method-assign]
    await died.wait()
    await kill(cluster.hosts[0])
