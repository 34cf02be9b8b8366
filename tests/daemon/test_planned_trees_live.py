"""Trees that PARING plans for jobs of a running cluster: real daemons on real sockets, an uneven network.

Jobs arrive, the controller plans, switches get their slots and their rings; every result is numpy's by the
plan of that tree, bit by bit, and each link carries what was planned.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.wire.ina_header import Dtype, Op
from inaproto_controller.planning.paring.live_tree import LiveTree
from inaproto_controller.planning.paring.live_trees import LiveTrees
from inaproto_hil.rigs.irregular_network import Network, RunningNetwork, running_network

pytestmark = pytest.mark.timeout(600)
DEADLINE_S = 500
ABOVE = {
    "core-0": [],
    "server": [],
    "core-2": ["core-0"],
    "core-1": ["core-0", "core-2"],
    "mid": ["core-1"],
    "leaf-a": ["core-0"],
    "leaf-b": ["core-0", "core-1", "server"],
    "leaf-c": ["mid"],
    "leaf-d": ["mid"],
}
"""Trunks as the fabric file has them. ``server`` is a switch at a server, with one link."""
CAPACITIES: dict[str, int | str] = {
    "leaf-a": 6,
    "leaf-c": "10/3",
    "leaf-d": 4,
    "core-0": 10,
    "core-2": 5,
    "server": 8,
}
SEATS = (
    *("leaf-a", "leaf-a", "leaf-b", "leaf-c", "leaf-c"),
    *("leaf-d", "leaf-d", "core-2"),
    *("leaf-a", "leaf-a", "leaf-b"),
)
RATE_CAP = Fraction(2)
JOBS = {"a": (0, 1, 2, 3, 4), "b": (5, 6, 7), "c": (8, 9, 10)}
"""Numbers of their hosts. leaf-c is too slow for two at 2 Gbit/s, and leaf-a has no room for c beside a."""
ELEMENTS = 1000
COUNTED = 6
"""All-reduces of which the bytes are compared."""


NETWORK = Network(ABOVE, CAPACITIES, SEATS, RATE_CAP)


class Job:
    def __init__(self, name: str, comms: list[inaproto.Communicator], plan: ReductionPlan) -> None:
        self.name, self.comms, self.plan = name, comms, plan
        self._draws = np.random.default_rng(len(name))

    @classmethod
    async def connected(cls, on: RunningNetwork, name: str, plan: ReductionPlan) -> Job:
        hosts = JOBS[name]
        found: dict[int, inaproto.Communicator] = {}

        async def one(rank: int) -> None:
            socket = on.socket(f"h{hosts[rank]}")
            found[rank] = await inaproto.connect(name, rank, size=len(hosts), socket=socket, path="shared")

        async with trio.open_nursery() as nursery:
            for rank in range(len(hosts)):
                nursery.start_soon(one, rank)
        return cls(name, [found[rank] for rank in range(len(hosts))], plan)

    async def step(self, *, is_planned: bool) -> str:
        """One all-reduce: the path that it took. Its bytes are those of the planned tree, if it is there."""
        arrays = [self._draws.standard_normal(ELEMENTS).astype(np.float32) for _ in self.comms]
        results: dict[int, bytes] = {}

        async def one(rank: int) -> None:
            results[rank] = (await self.comms[rank].all_reduce(arrays[rank])).tobytes()

        async with trio.open_nursery() as nursery:
            for rank in range(len(self.comms)):
                nursery.start_soon(one, rank)
        assert len(set(results.values())) == 1
        if is_planned:
            inputs = [array.view(np.uint8) for array in arrays]
            assert results[0] == self.plan.reduce(inputs, Dtype.F32, Op.SUM).tobytes()
        return self.comms[0].statistics().recent[-1].path

    async def close(self) -> None:
        for comm in self.comms:
            await comm.aclose()


def expected(live: LiveTrees) -> dict[str, LiveTree]:
    """What is planned for the jobs, one after the other."""
    found: dict[str, LiveTree] = {}
    for job, hosts in JOBS.items():
        one = live.planned([f"h{number}" for number in hosts], live.free(found.values()))
        assert isinstance(one, LiveTree), one
        found[job] = one
    return found


def assert_as_planned(nbytes: Counter[tuple[str, str]], planned: LiveTree) -> None:
    """Towards the root each link carried what was planned, and nothing but results went elsewhere."""
    upwards = {(upper, lower): count for (lower, upper), count in planned.gradients.items()}
    carried = {at: found for at, found in nbytes.items() if at in upwards}
    each = COUNTED * ELEMENTS * Dtype.F32.itemsize
    assert carried == {at: count * each for at, count in upwards.items()}
    assert sum(carried.values()) == planned.links * each
    assert {(lower, upper) for upper, lower in nbytes.keys() - carried.keys()} <= upwards.keys()


async def test_jobs_of_an_uneven_network_go_along_the_trees_that_are_planned_for_them(
    runtime_dir: Path,
) -> None:
    async with running_network(NETWORK, runtime_dir, deadline_s=DEADLINE_S) as on:
        planned = expected(NETWORK.live_trees(runtime_dir))
        jobs = []
        for name, hosts in JOBS.items():
            plan = on.plan_of(planned[name].tree, [f"h{number}" for number in hosts])
            job = await Job.connected(on, name, plan)
            jobs.append(job)
            told: dict[str, Any] = {}
            while told.get("ring") != "standing" or told.get("epoch", 0) == 0:
                await job.step(is_planned=False)
                told = await on.told(name)
            assert told["planned"] == {"by": "paring", "reason": "", **planned[name].document()}
            paths: list[str] = []
            while paths != ["switch"] * COUNTED:
                on.seen.forget()
                paths = [await job.step(is_planned=True) for _ in range(COUNTED)]
            assert_as_planned(on.seen.nbytes, planned[name])
        assert planned["c"].tree.passing == ("leaf-a", "leaf-b"), "leaf-a adds up for a, and has no room"
        for job in jobs:
            await job.step(is_planned=True)
            await job.close()
