"""All-reduces that are under way together, through real daemons in virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from inaproto.core.host.operations import Memory
from inaproto.daemon.net.shared_buffers import SharedBuffer, check_request
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.client import AllReduce
from tests.clusters.memory import MemoryCluster, run_world
from tests.daemon.test_allreduce_end_to_end import reference

RANKS = 2
QUEUED = 12


@pytest.mark.parametrize("weather", ["", "drop=0.01,duplicate=0.005,reorder=0.01"], ids=["clear", "weather"])
def test_each_has_its_own_sum(weather: str) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("queued", RANKS)
        arrays = [[np.full(700, 100 * k + rank, np.int32) for k in range(QUEUED)] for rank in range(RANKS)]
        works = [[comm.all_reduce(array) for array in mine] for comm, mine in zip(comms, arrays, strict=True)]
        for mine in works:
            for k, work in enumerate(mine):
                assert np.array_equal(await work, reference([each[k] for each in arrays], "sum"))
        for comm in comms:
            await comm.aclose()

    run_world("queued/sums", scenario, hosts=RANKS, weather=weather)


def test_one_on_the_memory_of_another_sums_its_result() -> None:
    """A buffer is to be left alone until its result is here; a call is no write, and waits its turn."""

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("again", RANKS)
        buffers = [comm.buffer(900, np.int32) for comm in comms]
        beside = [comm.buffer(900, np.int32) for comm in comms]
        for work in [comm.all_reduce(np.ones(4, np.int32)) for comm in comms]:
            await work  # from here on packets leave when they are sent
        works = []
        for rank, comm in enumerate(comms):
            buffers[rank][:] = rank + 1
            beside[rank][:] = 5
            arrays = (buffers[rank], buffers[rank], buffers[rank][300:], beside[rank])
            works += [comm.all_reduce(array, in_place=True) for array in arrays]
        for work in works:
            await work
        for buffer, other in zip(buffers, beside, strict=True):
            assert np.array_equal(buffer, np.repeat([6, 12], [300, 600]))
            assert (other == 10).all()
        for comm in comms:
            await comm.aclose()

    run_world("queued/again", scenario, hosts=RANKS)


def test_a_call_says_where_its_tensor_is() -> None:
    buffer = cast("SharedBuffer", SimpleNamespace(nbytes=4096))
    call = AllReduce(
        op_index=0, segment=3, offset=64, nbytes=8, dtype=int(Dtype.F32), op=int(Op.SUM), shape=(2,)
    )
    assert check_request(5, call, buffer).memory == (Memory(5, 3, 64, 72),)
