"""A call of a worker that was cancelled, or ran out of time, goes on: the next of its kind waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import inaproto
from tests.clusters.models import WAIT_S, models_cluster, models_text


async def given_up(call: Callable[[], Awaitable[object]]) -> None:
    """Called, and cancelled while it waits."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_calls_that_were_cancelled_are_waited_for_by_the_next(tmp_path: Path) -> None:
    """Of each kind the daemon has one, and refuses a second."""
    text = models_text(2, 1, dtype="int64", elements=4, ahead_max=1)
    async with models_cluster(tmp_path, text) as cluster, await cluster.worker("h0") as model:
        model.push(np.ones(4, np.int64))
        await model.finish(WAIT_S)
        for _ in range(2):
            await given_up(partial(model.pull, 0))
            await given_up(model.make_durable)
        async with await cluster.worker("h1") as other:
            await other.finish(WAIT_S)
            assert (await model.pull(0, WAIT_S)).tolist() == [1] * 4
            assert await model.make_durable(WAIT_S) == 1


async def test_a_late_pull_is_kept_whatever_else_is_pulled_at_the_same_clock(tmp_path: Path) -> None:
    text = models_text(2, 1, dtype="int64", elements=4, staleness=1, ahead_max=3)
    async with models_cluster(tmp_path, text) as cluster, await cluster.worker("h0") as model:
        for _ in range(2):
            model.push(np.ones(4, np.int64))
            await model.finish(WAIT_S)
        for _ in range(3):
            for staleness in (0, 1):
                with pytest.raises(inaproto.OperationTimeout):
                    await model.pull(staleness, 0.0)
            await model.pull(2, WAIT_S)


async def test_a_leave_that_ran_out_of_time_is_waited_for_by_the_next(tmp_path: Path) -> None:
    text = models_text(2, 1, dtype="int64", elements=4)
    async with models_cluster(tmp_path, text) as cluster, await cluster.worker("h0") as model:
        await model.finish(WAIT_S)
        for _ in range(2):
            with pytest.raises(
                inaproto.OperationTimeout, match=r"leave of the worker .* worker 1 of host h1"
            ):
                await model.leave(0.0)
        with pytest.raises(inaproto.LocalMisuse, match="is leaving"):
            await model.pull(0, WAIT_S)
        async with await cluster.worker("h1") as other:
            await other.finish(WAIT_S)
            await other.leave(WAIT_S)
        await model.leave(WAIT_S)
        with pytest.raises(inaproto.LocalMisuse, match="has left"):
            await model.leave(WAIT_S)
