"""NetReduce section 3.4: first and last stage of parallel NetReduce in shared memory, and what lies between.

"The i-th GPU would fetch the i-th piece of the gradient from all other local GPUs, and aggregate these pieces
... GPUs belonging to the same ring perform NetReduce aggregation ... all GPUs within a machine perform the
all-gather operation to exchange the complete aggregated piece."
"""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.wire.ina_header import Dtype, Op
from tests.chain_schedule import chain
from tests.property.shm_ranks import Ranks, in_any_order
from tests.property.test_plans_and_paths import random_plan
from tests.property.test_shm_plans import random_tensors
from tests.schedule_run import run_schedule

Bytes = NDArray[np.uint8]


def with_machines(child: int | PlanList, machines: list[ReductionPlan]) -> PlanList:
    """The plan over all ranks: in place of each machine the list of its ranks."""
    if isinstance(child, int):
        first = sum(machine.size for machine in machines[:child])
        return _moved(machines[child].children, first)
    return tuple(with_machines(part, machines) for part in child)


def _moved(children: PlanList, first: int) -> PlanList:
    return tuple(child + first if isinstance(child, int) else _moved(child, first) for child in children)


@pytest.mark.parametrize("per_machine", [1, 2, 3, 4, 8])
def test_the_ith_rank_reduces_the_ith_piece(per_machine: int) -> None:
    elements = 8 * 3 * 50
    tensors = [np.arange(elements, dtype=np.int32) * (rank + 1) for rank in range(per_machine)]
    total = np.sum(tensors, axis=0)
    ranks = Ranks(ReductionPlan.flat(per_machine))
    parts = ranks.reduce_scatter([tensor.view(np.uint8) for tensor in tensors], Dtype.I32, Op.SUM)
    for rank, part in enumerate(parts):
        assert Fraction(part.size // 4, elements) == Fraction(1, per_machine)
        first = elements // per_machine * rank
        assert np.array_equal(part.view(np.int32), total[first : first + elements // per_machine])


def test_ranks_of_a_machine_are_an_innermost_list_of_the_plan() -> None:
    """Shared memory inside, the i-th ring for the i-th pieces outside: the bytes of the nested plan.

    The network is a chain of hosts or whatever follows the plan over machines. Departure: a rank adds up its
    piece in the plan's order, not beginning with its own, so this holds for any number of ranks on a machine.
    """
    for seed in range(60):
        draw = random.Random(f"{seed}/machines")
        per_machine, count = draw.randint(1, 6), draw.randint(1, 4)
        over_machines = random_plan(draw, count)
        machines = [random_plan(draw, per_machine) for _ in range(count)]
        nested = ReductionPlan(with_machines(over_machines.children, machines))
        dtype = draw.choice((Dtype.F32, Dtype.F16, Dtype.BF16))
        elements = draw.choice((5, 64, 333))
        inputs = random_tensors(draw, dtype, nested.size, elements)
        stages = [Ranks(plan, choose=in_any_order(draw)) for plan in machines]
        parts = [
            stage.reduce_scatter(inputs[machine * per_machine :][:per_machine], dtype, Op.SUM)
            for machine, stage in enumerate(stages)
        ]
        rings = [
            _ring([part[local] for part in parts], over_machines, dtype, seed) for local in range(per_machine)
        ]
        expected = nested.reduce(inputs, dtype, Op.SUM).tobytes()
        for machine, stage in enumerate(stages):
            results = stage.all_gather(
                [rings[local][machine] for local in range(per_machine)], elements, dtype
            )
            assert {result.tobytes() for result in results} == {expected}, (seed, nested, dtype)


def _ring(pieces: list[Bytes], plan: ReductionPlan, dtype: Dtype, seed: int) -> list[Bytes]:
    if seed % 2:
        return [plan.reduce(pieces, dtype, Op.SUM)] * plan.size
    return run_schedule(chain(plan), pieces, dtype, Op.SUM, segment_bytes=64)
