"""Section 5 of the protocol, the chain: hosts that reduce along their ring, past any accelerator."""

from __future__ import annotations

import random

import numpy as np
import pytest

from inaproto.core.plan.accumulators import Accumulators
from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.wire.host_header import HostHeader, Kind
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op
from tests.unit.ideal_job import IdealJob
from tests.unit.switched_ring import MTU, SwitchedRing, emitted

STRANGE_QP = 0x999
"""Of a ring that no accelerator has."""


@pytest.mark.parametrize("kind", Kind)
def test_an_accelerator_on_the_way_passes_host_messages(kind: Kind) -> None:
    """Raw INA messages of unknown rings are dropped and blamed; these are none."""
    switch = SwitchedRing(2)
    header = HostHeader(kind, switch.header(0, 3, 1)).encode()
    frame = switch.packet(
        0, 3, 0, packets=1, payload=header + bytes(MTU - INA_HEADER_BYTES), dest_qp=STRANGE_QP
    )
    assert emitted(switch.arrive(0, frame)) == [(1, frame)]
    raw = switch.packet(0, 3, 0, packets=1, dest_qp=STRANGE_QP)
    assert emitted(switch.arrive(0, raw)) == []


@pytest.mark.parametrize("lists", [(0, 1, 2, 3), ((0, 1), (2, 3)), (0, (1, 2, 3)), ((0, 1, 2), 3)])
@pytest.mark.parametrize("dtype", Dtype)
def test_the_chain_has_the_accelerator_s_bytes(lists: PlanList, dtype: Dtype) -> None:
    """Also where lists are nested, and half-precision sums are rounded once for each of them."""
    draw = random.Random(f"{lists}/{dtype}")
    plan = ReductionPlan(lists)
    inputs = [np.frombuffer(draw.randbytes(400), np.uint8) for _ in range(4)]
    tensors = {}
    for path in ("switch", "chain"):
        job = IdealJob(plan, [path])
        for rank in range(4):
            job.submit(rank, 0, inputs[rank], dtype, Op.SUM)
        job.run(draw.randrange)
        assert [member.done for member in job.members] == [[0]] * 4
        tensors[path] = {member.tensors[0].tobytes() for member in job.members}
    assert tensors["switch"] == tensors["chain"] == {plan.reduce(inputs, dtype, Op.SUM).tobytes()}


@pytest.mark.parametrize(("size", "sent"), [(2, [1, 1]), (3, [2, 1, 1]), (5, [2, 2, 2, 1, 1])])
def test_a_host_sends_each_byte_at_most_twice(size: int, sent: list[int]) -> None:
    """2M against the 2(W-1)/W M of a bandwidth-optimal ring, for a flat plan of full-width elements."""
    job = IdealJob(ReductionPlan.flat(size), ["chain"])
    tensor = np.zeros(5 * 216, np.uint8)
    for rank in range(size):
        job.submit(rank, 0, tensor, Dtype.F32, Op.SUM)
    job.run(lambda _: 0)
    assert [member.payload_bytes for member in job.members] == [times * tensor.size for times in sent]


def test_half_precision_sums_travel_wide_and_nested_lists_side_by_side() -> None:
    """What the chain costs beyond that: float32 for half types, a sum for each list that is open."""
    flat, nested = (Accumulators(ReductionPlan(lists)) for lists in ((0, 1, 2), (0, (1, 2))))
    assert flat.stack_bytes(1, Dtype.BF16, Op.SUM, 100) == 200
    assert flat.stack_bytes(1, Dtype.BF16, Op.MAX, 100) == 100
    assert nested.stack_bytes(1, Dtype.F32, Op.SUM, 100) == 200
