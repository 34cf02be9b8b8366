"""Section 5 of the protocol, the overlay: hosts reduce up a tree shaped like the plan (MLNet section 3.2)."""

from __future__ import annotations

import random

import numpy as np
import pytest

from inaproto.core.plan.host_tree import OverlayTree
from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.wire.ina_header import Dtype, Op
from tests.unit.ideal_job import IdealJob

RACKS: PlanList = tuple(tuple(range(4 * rack, 4 * rack + 4)) for rack in range(4))


@pytest.mark.parametrize("lists", [(0, 1, 2, 3), ((2, 1), (0, 3)), (3, (1, 2, 0)), ((0, 3, 2), 1)])
@pytest.mark.parametrize("in_degree", [1, 2, 3])
@pytest.mark.parametrize("dtype", Dtype)
def test_the_overlay_has_the_accelerator_s_bytes(lists: PlanList, in_degree: int, dtype: Dtype) -> None:
    """Also where ranks come in another order than that of the ring, in which no chain can add."""
    draw = random.Random(f"{lists}/{in_degree}/{dtype}")
    plan = ReductionPlan(lists)
    inputs = [np.frombuffer(draw.randbytes(400), np.uint8) for _ in range(4)]
    tensors = {}
    for path in ("switch", "overlay"):
        job = IdealJob(plan, [path], in_degree=in_degree)
        for rank in range(4):
            job.submit(rank, 0, inputs[rank], dtype, Op.SUM)
        job.run(draw.randrange)
        assert [member.done for member in job.members] == [[0]] * 4
        tensors[path] = {member.tensors[0].tobytes() for member in job.members}
    assert tensors["switch"] == tensors["overlay"] == {plan.reduce(inputs, dtype, Op.SUM).tobytes()}


@pytest.mark.parametrize("in_degree", [1, 2, 4, 15])
def test_a_host_sends_each_byte_up_once_and_down_once_to_each_child(in_degree: int) -> None:
    """MLNet 3.2: each node sends its d children one copy of the model each."""
    plan = ReductionPlan(RACKS)
    tree = OverlayTree(plan, in_degree)
    job = IdealJob(plan, ["overlay"], in_degree=in_degree)
    tensor = np.zeros(5 * 216, np.uint8)
    for rank in range(plan.size):
        job.submit(rank, 0, tensor, Dtype.F32, Op.SUM)
    job.run(lambda _: 0)
    sent = [member.payload_bytes // tensor.size for member in job.members]
    assert sent == [len(tree.children(rank)) + (rank != tree.root) for rank in range(plan.size)]


def test_a_message_passes_the_levels_of_the_tree_where_a_chain_passes_all_ranks() -> None:
    racks = ReductionPlan(RACKS)
    assert [OverlayTree(racks, bound).levels for bound in (1, 2, 4, 6)] == [6, 5, 4, 2]
    assert [OverlayTree(ReductionPlan.flat(16), bound).levels for bound in (1, 2, 4, 15)] == [15, 8, 4, 1]


def test_in_the_push_window_each_rank_sends_once_for_each_message() -> None:
    """MLNet 3.2 at staleness 0: one upstream push per node and clock, when all children have come."""
    plan = ReductionPlan(RACKS)
    job = IdealJob(plan, ["overlay"], in_degree=3)
    for rank in range(plan.size):
        job.submit(rank, 0, np.zeros(5 * 216, np.uint8), Dtype.F32, Op.SUM)
    job.run(random.Random(7).randrange)
    for rank, member in enumerate(job.members):
        view = member.engine.view()
        assert (view.messages_sent, view.messages_received) == (5, 5), rank
