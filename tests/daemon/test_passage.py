"""Private arrays that come while their all-reduce is under way: the same bytes, whatever ends its ring."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from inaproto.client import passage, starting
from inaproto.client.channel import Channel
from inaproto.client.memory import Region
from inaproto.client.passage import Passage
from inaproto.client.protocol import PendingOperation
from inaproto.daemon.host import ring_orders
from inaproto.daemon.net.shared_buffers import SharedBuffer, check_request
from inaproto.errors import JobError
from inaproto.wire.control_messages import encode_message
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.client import AllReduce, Filled
from tests.clusters.jobs import FAULTS, PAIRS, TURNS, WEATHER, Job
from tests.clusters.loopback import open_cluster
from tests.clusters.memory import MemoryCluster, in_memory, run_world
from tests.seeds import seeds

MIB = 1 << 20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of some hundred bytes come in parts."""
    monkeypatch.setattr(passage, "BYTES_MIN", 300)
    monkeypatch.setattr(passage, "FIRST_BYTES", 200)
    monkeypatch.setattr(ring_orders, "TOLD_BYTES_MIN", 100)


class SlowPassage(Passage):
    """What the host finds before its process says that it is there is wrong."""

    calls = 0

    def call(self, channel: Channel, region: Region, *called: Any) -> PendingOperation:
        SlowPassage.calls += 1
        dtype, op, shape, waited, words = called
        draws = random.Random(f"fill/{SlowPassage.calls}")
        data, self._shared[:] = np.empty(self._source.nbytes, np.uint8), 0xA5
        self._source.read(0, len(data), data)
        at = draws.randint(0, len(data))
        self._shared[:at] = data[:at]
        operation = channel.all_reduce(
            region, len(data), dtype, op, shape, waited=waited, filled=at, call=words
        )
        operation.takes = self.take

        async def fill(at: int) -> None:
            while at < len(data) and not channel.is_closed:
                await trio.sleep(draws.uniform(0, 0.01))
                end = min(at + draws.randint(1, 4000), len(data))
                self._shared[at:end] = data[at:end]
                channel.filled(operation, end)
                at = end

        trio.lowlevel.spawn_system_task(fill, at)
        return operation


@pytest.fixture
def slow(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "Passage", SlowPassage)
    monkeypatch.setattr(SlowPassage, "calls", 0)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("path", ["auto", "ring", "shared"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_job_goes_on_with_what_was_copied(name: str, path: str, seed: int) -> None:
    draws = random.Random(f"passage/{name}/{path}/{seed}")
    once = name == "queue pair" and path != "auto"

    async def scenario(cluster: MemoryCluster) -> None:
        job = Job(cluster, 3, 8, (name, seed), path)

        async def strike() -> None:
            for _ in range(1 if once else draws.randint(1, 3)):
                await trio.sleep(draws.uniform(0.005, 0.08))
                await FAULTS[name](cluster, draws)

        await job.run(strike)
        assert SlowPassage.calls

    run_world(
        f"passage/{name}/{path}/{seed}",
        scenario,
        hosts=3,
        weather=draws.choice(("", WEATHER)),
        switch={"memory_kib": 1 << 20 if path != "auto" else draws.choice((0, 1 << 20, 1 << 20))},
    )


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("places", [PAIRS, TURNS])
@in_memory("whole/{places}", hosts=2)
async def test_ranks_that_share_a_host_bring_whole_tensors(
    cluster: MemoryCluster, places: Sequence[int]
) -> None:
    await Job(cluster, places, 3, "whole").run()
    assert not SlowPassage.calls


def noted(takes: Callable[[int], None], early: list[int]) -> Callable[[int], None]:
    def took(nbytes: int) -> None:
        early.append(nbytes)
        takes(nbytes)

    return took


@pytest.mark.usefixtures("small")
@in_memory("kinds", hosts=2)
async def test_results_come_early_where_nobody_minds(cluster: MemoryCluster) -> None:
    comms = await cluster.job("j", 2)
    arrays = [np.full(9000, rank + 1, np.float32) for rank in range(2)]
    outs = [np.zeros(9000, np.float32) for _ in comms]
    early: list[int] = []
    for in_place in (False, True):
        works = [
            comm.all_reduce(array, in_place=in_place, out=None if in_place else out)
            for comm, array, out in zip(comms, arrays, outs, strict=True)
        ]
        operation = works[0]._operation
        assert isinstance(operation, PendingOperation)
        assert (operation.takes is not None) == in_place
        if operation.takes is not None:
            operation.takes = noted(operation.takes, early)
        for work in works:
            assert (await work == 3).all()
    assert early == sorted(set(early))
    assert 2 < len(early) < 12
    assert [(array == 3).all() for array in (*arrays, *outs)] == [True] * 4


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("bad", [[8], [-1], [400, 300], [5000]])
@in_memory("bad/{bad}", hosts=2)
async def test_what_no_library_says_ends_its_own_connection(cluster: MemoryCluster, bad: list[int]) -> None:
    comms = await cluster.job("j", 2)
    channel = comms[0].channel
    assert isinstance(channel, Channel)
    region = channel.memory.allocate(4000)
    channel.announce()
    operation = channel.all_reduce(region, 4000, Dtype.F32, Op.SUM, (1000,), filled=200)
    for nbytes in bad:
        index = operation.op_index if nbytes > 0 else 9
        channel.send(encode_message(Filled(id=9, op_index=index, nbytes=abs(nbytes))))
    with pytest.raises(JobError, match=r"are there, after|has not called"):
        await comms[0].all_reduce(np.ones(3, np.float32))


@in_memory("none", hosts=1)
async def test_a_tensor_that_has_to_be_whole_is_refused(cluster: MemoryCluster) -> None:
    comms = await cluster.job("j", (0, 0))
    channel = comms[0].channel
    assert isinstance(channel, Channel)
    region = channel.memory.allocate(4000)
    channel.announce()
    channel.all_reduce(region, 4000, Dtype.F32, Op.SUM, (1000,), filled=200)
    with pytest.raises(JobError, match="not whole"):
        await comms[0].all_reduce(np.ones(3, np.float32))


def test_no_more_can_be_there_than_there_is() -> None:
    request = AllReduce(id=1, op_index=0, segment=0, offset=0, nbytes=8, dtype=0, op=0, shape=(2,), filled=9)
    with pytest.raises(JobError, match="9 bytes are there of 8"):
        check_request(0, request, SharedBuffer(0, 8, mmap.mmap(-1, 8), memoryview(bytearray(8))))


async def test_arrays_of_some_mebibytes(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2) as cluster:
        comms = await cluster.job("j", 2)
        for nbytes in (MIB, MIB + 4, 5 * MIB + 12):
            arrays = [np.arange(nbytes // 4, dtype=np.int32) * (rank + 1) for rank in range(2)]
            expected = arrays[0] + arrays[1]
            for work in [comm.all_reduce(array) for comm, array in zip(comms, arrays, strict=True)]:
                assert (await work == expected).all()
            works = [comm.all_reduce(array, in_place=True) for comm, array in zip(comms, arrays, strict=True)]
            for work, array in zip(works, arrays, strict=True):
                assert await work is array
                assert (array == expected).all()


@pytest.mark.usefixtures("small")
@in_memory("interrupted", hosts=2)
async def test_who_is_interrupted_while_he_copies_fails_his_job(cluster: MemoryCluster) -> None:
    comms = await cluster.job("j", 2)

    class Torn(Channel):
        def filled(self, operation: PendingOperation, nbytes: int) -> None:
            raise KeyboardInterrupt

    assert isinstance(comms[0].channel, Channel)
    comms[0].channel.__class__ = Torn
    with pytest.raises(KeyboardInterrupt):
        comms[0].all_reduce(np.ones(1000, np.float32))
    with pytest.raises(JobError, match="interrupted while all-reduce 0 was called"):
        comms[0].all_reduce(np.ones(1000, np.float32))
    with pytest.raises(JobError, match="rank 0"):
        await comms[1].all_reduce(np.ones(1000, np.float32))
