"""Rings that end at any moment and go on by another path: every rank has the plan's bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op
from tests.unit.exact_reference import HALF, exact
from tests.unit.ideal_job import IdealJob

Bytes = NDArray[np.uint8]
PART = 256 - INA_HEADER_BYTES
"""Tensor bytes of a full message here."""


def draw_lists(draw: random.Random, ranks: list[int], depth: int = 0) -> PlanList:
    """A nested plan of ``ranks``, in their order; sometimes flat, sometimes with lists of one child."""
    if depth == 3 or draw.random() < 0.3:
        return tuple(ranks)
    children: list[int | PlanList] = []
    rest = list(ranks)
    while rest:
        count = draw.randint(1, len(rest))
        part, rest = rest[:count], rest[count:]
        if count == 1 and draw.random() < 0.7:
            children.append(part[0])
        else:
            children.append(draw_lists(draw, part, depth + 1))
    return tuple(children)


def draw_bytes(draw: random.Random, nbytes: int, dtype: Dtype) -> Bytes:
    """Any bits (so NaN, infinities, subnormals, both zeros), among numbers that cancel and round."""
    raw = np.frombuffer(draw.randbytes(nbytes), np.uint8).copy()
    if dtype in HALF or dtype is Dtype.F32:
        words = raw.view(np.uint16 if dtype in HALF else np.uint32)
        for index in range(0, words.size, 3):
            words[index] = draw.choice([0, 1, 0x8000, 0x3C01, 0x7BFF, 0x3F800001, 0x80000000]) & (
                0xFFFF if dtype in HALF else 0xFFFFFFFF
            )
    return raw


def result_of(job: IdealJob, serial: int, dtype: Dtype, op: Op, parts: list[Bytes]) -> bytes:
    """What all ranks must have of message ``serial``: the reduction of the path that completed it."""
    ended = sum(max(progress) <= serial for progress in job.progress)
    if job.paths_used[ended] != "ring":
        return job.plan.reduce(parts, dtype, op).tobytes()
    start = serial % job.size
    return exact(dtype, op, [part.tobytes() for part in parts[start:] + parts[:start]])


def run_job(draw: random.Random, job: IdealJob, operations: int, ends: int) -> None:
    """Submit at any time, end rings at any time, and compare every rank's bytes with the plan's."""
    work = []
    for _ in range(operations):
        dtype, op = draw.choice(list(Dtype)), draw.choice(list(Op))
        elements = draw.choice([0, 1, 27, PART // dtype.itemsize, draw.randrange(4 * PART // dtype.itemsize)])
        nbytes = elements * dtype.itemsize
        work.append((dtype, op, [draw_bytes(draw, nbytes, dtype) for _ in range(job.size)]))
    to_submit = [[rank, 0] for rank in range(job.size)]
    while True:
        if ends and not job.is_ending and draw.random() < 0.08:
            ends -= 1
            job.end_ring()
        events = job.events()
        ready = [turn for turn in to_submit if turn[1] < operations]
        if not events and not ready:
            break
        pick = draw.randrange(len(events) + len(ready))
        if pick < len(events):
            events[pick]()
        else:
            turn = ready[pick - len(events)]
            dtype, op, inputs = work[turn[1]]
            job.submit(turn[0], turn[1], inputs[turn[0]], dtype, op)
            turn[1] += 1
    serial = 0
    for index, (dtype, op, inputs) in enumerate(work):
        expected = b""
        for at in range(0, max(1, inputs[0].size), PART):
            expected += result_of(job, serial, dtype, op, [tensor[at : at + PART] for tensor in inputs])
            serial += 1
        for rank, member in enumerate(job.members):
            assert member.tensors[index].tobytes() == expected, (
                f"rank {rank}, operation {index}, {dtype}, {op}"
            )
    for member in job.members:
        assert member.faults == []
        assert member.done == list(range(operations))


def worlds(paths: list[str]) -> Iterator[random.Random]:
    for seed in range(120):
        yield random.Random(f"{seed}/{paths}")


@pytest.mark.parametrize("first", ["switch", "chain", "overlay"])
@pytest.mark.parametrize("second", ["switch", "chain", "overlay"])
def test_whatever_ends_and_whichever_path_follows_every_rank_has_the_plan_s_bytes(
    first: str, second: str
) -> None:
    run_worlds(first, second, ranks_max=5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ring", "ring"),
        ("ring", "chain"),
        ("chain", "ring"),
        ("ring", "switch"),
        ("switch", "ring"),
        ("ring", "overlay"),
    ],
)
def test_each_message_has_one_result_also_where_paths_add_in_different_orders(
    first: str, second: str
) -> None:
    run_worlds(first, second, ranks_max=8)


def run_worlds(first: str, second: str, ranks_max: int) -> None:
    recovered = behind = 0
    for draw in worlds([first, second]):
        size = draw.randint(2, ranks_max)
        plan = ReductionPlan(draw_lists(draw, list(range(size))))
        job = IdealJob(plan, [first, second] * 4, window=draw.choice([1, 2, 4]), in_degree=draw.randint(1, 3))
        run_job(draw, job, operations=draw.randint(1, 5), ends=draw.randint(1, 6))
        recovered += len(job.recoveries)
        behind += sum(min(progress) < max(progress) for progress in job.progress)
    assert recovered > 150
    assert behind > 50, "ranks were hardly ever apart"
