"""Section 5 of the protocol: rings that end, and what the ranks have then; every interleaving of small jobs.

The claim: no rank lacks more than the N results before the largest progress, the rank that is ahead still has
all of those in its slots, and nobody has a later one, so all inputs from there on are intact. On the ring of
hosts, where each message begins at another rank, a result that overtook others may lie where one of those
was: then no rank lacks that one.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core.host.engines.chain import ChainEngine
from inaproto.core.host.engines.host_messages import HostMessages
from inaproto.core.host.engines.in_network import RingEngine
from inaproto.core.host.engines.ring import RingAllReduceEngine
from inaproto.core.host.message_window import MessageWindow
from inaproto.core.host.operation_queue import OperationQueue
from inaproto.core.host.recovery import Recovery, Refusal, decide
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op
from tests.unit.ideal_job import IdealJob, Member

PART = 256 - INA_HEADER_BYTES
Tensors = list[list[NDArray[np.uint8]]]
"""By operation and rank."""

STATEFUL = {
    MessageWindow,
    HostMessages,
    OperationQueue,
    RingEngine,
    ChainEngine,
    RingAllReduceEngine,
    Member,
    IdealJob,
}
CONSTANT = {"_config", "_accumulators"}


def fork(value: Any) -> Any:
    """A copy that can go another way: of all that changes, however deep; the rest is shared."""
    kind = type(value)
    if kind in STATEFUL:
        twin = object.__new__(kind)
        for name in vars(value) if hasattr(value, "__dict__") else kind.__slots__:
            setattr(twin, name, fork(getattr(value, name)))
        return twin
    if kind in (deque, set, bytearray, np.ndarray):
        return value.copy()
    if kind is list:
        return [fork(item) for item in value]
    if kind is dict:
        return {key: fork(item) for key, item in value.items()}
    return value


def signature(value: Any) -> Any:
    """What a state is, hashable: all that changes but the bytes in slots, which follow from the rest."""
    kind = type(value)
    if kind in STATEFUL:
        return tuple([signature(item) for name, item in vars(value).items() if name not in CONSTANT])
    if kind is deque:
        return tuple(value)
    if kind is set:
        return frozenset(value)
    if kind is dict:
        return tuple(value.items())
    return value


def state(job: IdealJob) -> Any:
    return tuple(
        (
            signature(m.engine),
            tuple(m.sent),
            tuple(m.inbox),
            tuple(m.unacknowledged),
            m.progress,
            tuple(m.kept.items()),
        )
        for m in job.members
    )


def tensors_of(sizes: tuple[int, ...], ranks: int) -> Tensors:
    """No two parts are alike."""
    draw = random.Random(0)
    return [[np.frombuffer(draw.randbytes(size), np.uint8) for _ in range(ranks)] for size in sizes]


def check_claim(job: IdealJob, inputs: Tensors, results: list[NDArray[np.uint8]]) -> None:
    """Of the ring that has just ended."""
    (decided,), (progress,) = job.recoveries, job.progress
    parts = [(index, at) for index, result in enumerate(results) for at in range(0, result.size, PART)]
    window = job.config(0).window_messages
    assert max(progress) - min(progress) <= window
    assert decided.progress == max(progress) == progress[decided.donor]
    for serial, (index, at) in enumerate(parts):
        span = slice(at, at + PART)
        may_lack = min(progress) if job.paths_used[-2] == "ring" else decided.progress - window
        if may_lack <= serial < decided.progress:
            assert job.members[decided.donor].kept[index, at] == results[index][span].tobytes()
        for rank, member in enumerate(job.members):
            has = results[index] if serial < progress[rank] else inputs[index][rank]
            assert member.tensors[index][span].tobytes() == has[span].tobytes()


def search(path: str, size: int, window: int, sizes: tuple[int, ...]) -> tuple[int, set[tuple[int, ...]]]:
    """(states, progress of the ranks when their ring had ended) of all ways in which one ring ends."""
    plan = ReductionPlan.flat(size)
    job = IdealJob(plan, [path, "chain" if path == "switch" else "switch"], window=window)
    inputs = tensors_of(sizes, size)
    results = [plan.reduce(tensors, Dtype.I32, Op.SUM) for tensors in inputs]
    for rank in range(size):
        for index in range(len(sizes)):
            job.submit(rank, index, inputs[index][rank], Dtype.I32, Op.SUM)
    job.end_ring()
    seen, todo, ends = {state(job)}, [job], set()
    while todo:
        now = todo.pop()
        for choice in range(len(now.events())):
            then = fork(now)
            then.events()[choice]()
            reached = state(then)
            if reached in seen:
                continue
            seen.add(reached)
            if not then.recoveries:
                todo.append(then)
                continue
            check_claim(then, inputs, results)
            ends.add(tuple(then.progress[0]))
            then.run(lambda _: 0)
            for member in then.members:
                assert member.faults == []
                for index, result in enumerate(results):
                    assert member.tensors[index].tobytes() == result.tobytes()
    return len(seen), ends


@pytest.mark.parametrize("path", ["switch", "chain"])
@pytest.mark.parametrize(
    ("size", "window", "sizes"),
    [(2, 1, (PART + 4, 4, PART)), (2, 2, (PART + 4, 4, PART)), (3, 1, (PART + 4,))],
)
def test_nobody_lacks_more_than_n_results_and_the_donor_has_them(
    path: str, size: int, window: int, sizes: tuple[int, ...]
) -> None:
    states, ends = search(path, size, window, sizes)
    assert states > 150
    assert max(max(end) - min(end) for end in ends) == window, "ranks can be a whole window apart"


@pytest.mark.parametrize(
    ("size", "window", "sizes"),
    [(2, 1, (PART + 4, 4, PART)), (2, 2, (3 * PART + 4,)), (3, 1, (PART + 4,))],
)
def test_the_same_of_the_ring_on_which_messages_overtake_each_other(
    size: int, window: int, sizes: tuple[int, ...]
) -> None:
    states, ends = search("ring", size, window, sizes)
    assert states > 150
    assert max(max(end) - min(end) for end in ends) == window, "ranks can be a whole window apart"


def test_a_spread_that_no_fault_explains_is_refused() -> None:
    assert decide({0: 5, 1: 4, 2: 5}, 1) == Recovery(progress=5, donor=0)
    assert decide({0: 4, 1: 5, 2: 5}, 1) == Recovery(progress=5, donor=1)
    assert decide({0: 5, 1: 3, 2: 3}, 1) == Refusal(
        1,
        "has 3 results and another host 5: more than the window of 1 apart, "
        "which no fault of the network explains",
    )
