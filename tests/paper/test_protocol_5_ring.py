"""Section 5 of the protocol, the bandwidth-optimal ring of hosts: the baseline of NetReduce section 3.4."""

from __future__ import annotations

import random

import numpy as np
import pytest

from inaproto.core.plan.accumulators import RotatedAccumulators
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op
from tests.paper.test_protocol_5_recovery import Tensors, fork, state, tensors_of
from tests.unit.exact_reference import exact
from tests.unit.ideal_job import IdealJob

PART = 256 - INA_HEADER_BYTES


def in_turn(inputs: Tensors, dtype: Dtype, op: Op) -> list[bytes]:
    """Every operation's result: message by message, each summed from the next rank on."""
    results, serial = [], 0
    for tensors in inputs:
        result = b""
        for at in range(0, max(1, tensors[0].size), PART):
            parts = [tensor[at : at + PART].tobytes() for tensor in tensors]
            start = serial % len(tensors)
            result += exact(dtype, op, parts[start:] + parts[:start])
            serial += 1
        results.append(result)
    return results


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("dtype", Dtype)
def test_all_ranks_have_the_bytes_of_one_order_that_turns_from_message_to_message(
    dtype: Dtype, op: Op
) -> None:
    draw = random.Random(f"{dtype}/{op}")
    size = draw.randint(2, 6)
    inputs = [
        [np.frombuffer(draw.randbytes(nbytes), np.uint8) for _ in range(size)]
        for nbytes in (5 * PART + 8, 0, 3 * PART)
    ]
    job = IdealJob(ReductionPlan.flat(size), ["ring"], window=4)
    for rank in range(size):
        for index, tensors in enumerate(inputs):
            job.submit(rank, index, tensors[rank], dtype, op)
    job.run(draw.randrange)
    for member in job.members:
        assert member.faults == []
        assert member.done == [0, 1, 2]
        assert [member.tensors[index].tobytes() for index in range(3)] == in_turn(inputs, dtype, op)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("window", [1, 2, 8])
def test_each_host_sends_2_w_minus_1_w_ths_of_the_tensor(size: int, window: int) -> None:
    """Appendix A equation (1), and all links alike: what the chain's busiest host sends twice."""
    job = IdealJob(ReductionPlan.flat(size), ["ring"], window=window)
    tensor = np.zeros(3 * size * PART, np.uint8)
    for rank in range(size):
        job.submit(rank, 0, tensor, Dtype.F32, Op.SUM)
    job.run(lambda _: 0)
    assert [member.done for member in job.members] == [[0]] * size
    assert [member.payload_bytes for member in job.members] == [2 * (size - 1) * tensor.size // size] * size


def test_half_precision_sums_of_several_ranks_travel_wide() -> None:
    """They are rounded once, when all ranks have added to them: between, float32."""
    size = 5
    rotated = RotatedAccumulators(ReductionPlan.flat(size))
    assert [rotated.stack_bytes(turn, Dtype.F16, Op.SUM, 100) for turn in range(4)] == [100, 200, 200, 200]
    job = IdealJob(ReductionPlan.flat(size), ["ring"])
    for rank in range(size):
        job.submit(rank, 0, np.zeros(size * PART, np.uint8), Dtype.F16, Op.SUM)
    job.run(lambda _: 0)
    assert [member.payload_bytes for member in job.members] == [(1 + 2 * (size - 2) + size - 1) * PART] * size


def overtaken() -> tuple[IdealJob, Tensors]:
    """Result 0 does not get from rank 2 to rank 0; all that can go on without it has gone on."""
    inputs = tensors_of((6 * PART,), 3)
    job = IdealJob(ReductionPlan.flat(3), ["ring"], window=4)
    for rank in range(3):
        job.submit(rank, 0, inputs[0][rank], Dtype.I32, Op.SUM)
    arrived = 0
    while events := job.events():
        if link := job.members[2].sent:  # then the first event is that its next message arrives
            arrived += 1
            if arrived > 2:
                assert link[0].msg_id == 1
                events = events[1:]
        if not events:
            break
        events[0]()
    return job, inputs


def test_a_rank_that_lacks_a_result_does_not_go_on_past_its_window() -> None:
    """All contribute to messages 0 to 3; ranks 0 and 1 to no more, though they have results 1 and 2."""
    job, _ = overtaken()
    assert [member.engine.progress for member in job.members] == [0, 0, 4]
    assert [member.engine.view().messages_sent for member in job.members[:2]] == [4, 4]


def test_results_that_overtake_others_are_taken_in_their_order() -> None:
    job, inputs = overtaken()
    job.run(lambda _: 0)
    for member in job.members:
        assert member.done == [0]
        assert member.tensors[0].tobytes() == in_turn(inputs, Dtype.I32, Op.SUM)[0]


def every_way(size: int, window: int, sizes: tuple[int, ...]) -> tuple[int, bool]:
    """(states, whether results overtook others) of all ways in which a job goes, submissions included.

    Nothing that happens can happen again, so each way ends; where nothing can happen, all must be done.
    """
    inputs = tensors_of(sizes, size)
    results = in_turn(inputs, Dtype.I32, Op.SUM)
    start = IdealJob(ReductionPlan.flat(size), ["ring"], window=window), (0,) * size
    seen, todo, overtaken = {(state(start[0]), start[1])}, [start], False
    while todo:
        now, submitted = todo.pop()
        choices = len(now.events())
        ready = [rank for rank in range(size) if submitted[rank] < len(sizes)]
        if not choices and not ready:
            for member in now.members:
                assert member.faults == []
                assert member.done == list(range(len(sizes)))
                assert [member.tensors[index].tobytes() for index in range(len(sizes))] == results
        for choice in range(choices + len(ready)):
            then, counts = fork(now), submitted
            if choice < choices:
                then.events()[choice]()
            else:
                rank = ready[choice - choices]
                index = submitted[rank]
                then.submit(rank, index, inputs[index][rank], Dtype.I32, Op.SUM)
                counts = (*submitted[:rank], index + 1, *submitted[rank + 1 :])
            reached = state(then), counts
            if reached not in seen:
                seen.add(reached)
                todo.append((then, counts))
                overtaken |= any(member.engine._results for member in then.members)
    return len(seen), overtaken


@pytest.mark.parametrize(
    ("size", "window", "sizes"),
    [
        (2, 1, (PART + 4, 4, PART)),
        (2, 2, (3 * PART, 4)),
        (2, 4, (4 * PART, 4)),
        (3, 1, (PART + 4, 4)),
        (3, 2, (3 * PART,)),
    ],
)
def test_whatever_is_late_every_rank_gets_to_the_end(size: int, window: int, sizes: tuple[int, ...]) -> None:
    states, overtaken = every_way(size, window, sizes)
    assert states > 300
    assert overtaken == (window > 1)
