"""The contract of exact collectives over shared memory: blocking in threads, and in Trio."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any

import trio
from numpy.typing import NDArray

from inaproto.client.stage import SharedMemoryStage, TrioSharedMemoryStage, open_stage, open_trio_stage
from inaproto.core.plan.reduction_plan import ReductionPlan
from tests.contract.exact_collective_contract import SEGMENT_BYTES, ExactCollectiveContract, Members


class InThread:
    """A blocking stage, each call in a thread."""

    def __init__(self, stage: SharedMemoryStage) -> None:
        self.stage = stage

    async def all_reduce(
        self, array: NDArray[Any], out: NDArray[Any] | None = None, *, op: str = "sum"
    ) -> NDArray[Any]:
        return await trio.to_thread.run_sync(partial(self.stage.all_reduce, array, out, op=op))

    def close(self) -> None:
        self.stage.close()


class TestBlocking(ExactCollectiveContract):
    @asynccontextmanager
    async def members(self, plan: ReductionPlan, timeout: float = 30.0) -> AsyncIterator[Members]:
        stages: dict[int, SharedMemoryStage] = {}
        with tempfile.TemporaryDirectory(prefix="ina-", dir="/tmp") as directory:

            async def enter(rank: int) -> None:
                opening = partial(open_stage, f"{directory}/s", rank, plan=plan, chunk_bytes=SEGMENT_BYTES)
                stages[rank] = await trio.to_thread.run_sync(opening)
                stages[rank].timeout = timeout

            async with trio.open_nursery() as nursery:
                for rank in range(plan.size):
                    nursery.start_soon(enter, rank)
            assert os.listdir(directory) == []
        with ExitStack() as opened:
            yield [InThread(opened.enter_context(stages[rank])) for rank in range(plan.size)]


class TestTrio(ExactCollectiveContract):
    @asynccontextmanager
    async def members(self, plan: ReductionPlan, timeout: float = 30.0) -> AsyncIterator[Members]:
        stages: dict[int, TrioSharedMemoryStage] = {}
        with tempfile.TemporaryDirectory(prefix="ina-", dir="/tmp") as directory:

            async def enter(rank: int) -> None:
                stages[rank] = await open_trio_stage(
                    f"{directory}/s", rank, plan=plan, chunk_bytes=SEGMENT_BYTES
                )
                stages[rank].timeout = timeout

            async with trio.open_nursery() as nursery:
                for rank in range(plan.size):
                    nursery.start_soon(enter, rank)
        yield [stages[rank] for rank in range(plan.size)]
        for stage in stages.values():
            stage.close()
