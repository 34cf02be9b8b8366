"""Random plans, the same tensors on every exact path: all ranks get the same bytes, those of the plan.

Trees of real accelerators, under any weather; hosts in a chain, live and as a schedule; overlays of hosts
with any bound on in-degrees; shared memory; ``ReductionPlan.reduce``; sums by hand.

A plan of one rank is left out: no ring has fewer than two (``RingSpec``). Every other nested list is a tree
of switches: children in any order, ranks and lists mixed, lists of one rank or of one list included.

Longer: ``INAPROTO_SEEDS=0:2000 pytest tests/property/test_plans_on_every_path.py``.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.wire.ina_header import Dtype, Op
from tests.chain_schedule import chain
from tests.property.accelerator_rings import Operation
from tests.property.shm_ranks import Ranks, in_any_order
from tests.property.tensor_world import TensorWorld, tree_of
from tests.property.test_plans_and_paths import FORMAT, expected_bytes, random_plan
from tests.property.test_shm_plans import TYPES, random_tensors
from tests.schedule_run import run_schedule
from tests.seeds import all_seeds
from tests.unit.exact_reference import NUMPY
from tests.unit.ideal_job import IdealJob

Bytes = NDArray[np.uint8]
LENGTHS = (1, 7, 24, 60, 130)
"""Elements: from one packet to several messages, on the way through accelerators and along the chain."""


def draw_case(seed: int) -> tuple[ReductionPlan, list[Operation]]:
    """A plan of 2 to 16 ranks; a sum in each type, and a maximum or minimum, in types that take turns."""
    draw = random.Random(f"{seed}/every path")
    plan = random_plan(draw, draw.randint(2, 16))
    calls = [(dtype, Op.SUM) for dtype in TYPES]
    calls.append((TYPES[seed % 3], (Op.MAX, Op.MIN)[seed // 3 % 2]))
    operations = []
    for index, (dtype, op) in enumerate(calls):
        inputs = random_tensors(draw, dtype, plan.size, draw.choice(LENGTHS))
        data = tuple(values.tobytes() for values in inputs)
        operations.append(Operation(dtype, op, index, draw.getrandbits(16), data))
    return plan, operations


def arrays(operation: Operation) -> list[Bytes]:
    return [np.frombuffer(data, np.uint8) for data in operation.data]


# --- the paths: of every operation the results, by rank

Results = list[list[bytes]]


def by_accelerators(plan: ReductionPlan, operations: list[Operation], seed: int) -> Results:
    draw = random.Random(f"{seed}/every path, tree")
    tree = tree_of(plan, draw, partial=draw.choice((0.0, 0.0, 0.4)))
    assert ReductionPlan.from_tree(tree) == plan
    world = TensorWorld(seed, tree, operations, weather=draw.choice((0.0, 0.0, 0.05, 0.15)))
    world.run()
    return world.results()


def by_live_chain(plan: ReductionPlan, operations: list[Operation], seed: int) -> Results:
    """The engines of the host daemons.

    A chain follows its ring, so daemons refuse a plan with the ranks in another order than 0, 1, 2, ...
    (``Accumulators``). Here rank ``p`` of the ring is the plan's rank ``plan.ranks[p]``: the same additions.
    """
    draw = random.Random(f"{seed}/every path, chain")
    job = IdealJob(in_ring_order(plan), ["chain"], window=draw.choice((1, 2, 4)))
    for index, operation in enumerate(operations):
        for place in draw.sample(range(plan.size), plan.size):
            values = arrays(operation)[plan.ranks[place]]
            job.submit(place, index, values, operation.dtype, operation.op)
    job.run(draw.randrange)
    for member in job.members:
        assert (member.faults, member.done) == ([], list(range(len(operations))))
    return [[member.tensors[index].tobytes() for member in job.members] for index in range(len(operations))]


def by_live_overlay(plan: ReductionPlan, operations: list[Operation], seed: int) -> Results:
    """The engines of the host daemons; they take the ranks in any order, under any bound."""
    draw = random.Random(f"{seed}/every path, overlay")
    in_degree, window = draw.choice((1, 2, 3, 4, plan.size)), draw.choice((1, 2, 4))
    job = IdealJob(plan, ["overlay"], window=window, in_degree=in_degree)
    for index, operation in enumerate(operations):
        for rank in draw.sample(range(plan.size), plan.size):
            job.submit(rank, index, arrays(operation)[rank], operation.dtype, operation.op)
    job.run(draw.randrange)
    for member in job.members:
        assert (member.faults, member.done) == ([], list(range(len(operations))))
    return [[member.tensors[index].tobytes() for member in job.members] for index in range(len(operations))]


def in_ring_order(plan: ReductionPlan) -> ReductionPlan:
    """The plan with rank ``plan.ranks[p]`` called ``p``."""
    places = itertools.count()

    def renamed(children: PlanList) -> PlanList:
        return tuple(next(places) if isinstance(child, int) else renamed(child) for child in children)

    return ReductionPlan(renamed(plan.children))


def by_chain_schedule(plan: ReductionPlan, operations: list[Operation], seed: int) -> Results:
    draw = random.Random(f"{seed}/every path, schedule")
    schedule = chain(plan)
    found = []
    for operation in operations:
        results = run_schedule(
            schedule,
            arrays(operation),
            operation.dtype,
            operation.op,
            segment_bytes=draw.choice((32, 100, 1000)),
            choose=draw.randrange,
        )
        found.append([result.tobytes() for result in results])
    return found


def by_shared_memory(plan: ReductionPlan, operations: list[Operation], seed: int) -> Results:
    draw = random.Random(f"{seed}/every path, shm")
    ranks = Ranks(plan, lines=draw.choice((1, 2)), choose=in_any_order(draw))
    return [
        [result.tobytes() for result in ranks.all_reduce(arrays(each), each.dtype, each.op)]
        for each in operations
    ]


def by_plan(plan: ReductionPlan, operations: list[Operation]) -> list[bytes]:
    return [plan.reduce(arrays(each), each.dtype, each.op).tobytes() for each in operations]


def by_hand(plan: ReductionPlan, operations: list[Operation]) -> list[bytes]:
    with np.errstate(all="ignore"):
        return [expected_bytes(plan, arrays(each), each.dtype, each.op) for each in operations]


PATHS = (by_accelerators, by_live_chain, by_live_overlay, by_chain_schedule, by_shared_memory)


@pytest.mark.parametrize("part", range(4))
def test_every_path_gives_every_rank_the_bytes_of_the_plan(part: int) -> None:
    """200 plans of 2 to 16 ranks, 4 operations each."""
    for seed in all_seeds(200)[part::4]:
        plan, operations = draw_case(seed)
        expected = by_hand(plan, operations)
        assert by_plan(plan, operations) == expected, f"seed {seed}, {plan}"
        for path in PATHS:
            found = path(plan, operations, seed)
            for operation, want, results in zip(operations, expected, found, strict=True):
                what = f"seed {seed}, {plan}, {path.__name__}, {operation.dtype.name} {operation.op.name}"
                assert results == [want] * plan.size, what


def test_these_plans_and_data_can_tell_paths_apart() -> None:
    """Plans of all shapes; sums that NaN, infinity, subnormals, cancellation or the order decide."""
    depths: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    data: Counter[tuple[Dtype, str]] = Counter()
    ordered = ones = 0
    for seed in range(200):
        plan, operations = draw_case(seed)
        depths[plan.depth] += 1
        sizes[plan.size] += 1
        ordered += plan.ranks == tuple(range(plan.size))
        ones += lists_of_one(plan.children)
        flat = ReductionPlan.flat(plan.size)
        for operation in operations[: len(TYPES)]:
            (total,) = by_plan(plan, [operation])
            data.update((operation.dtype, kind) for kind in special_in(operation, total))
            if [total] != by_plan(flat, [operation]):
                data[operation.dtype, "order"] += 1
    assert set(sizes) == set(range(2, 17))
    assert {1, 2, 3, 4, 5} <= set(depths)
    assert ordered < 20
    assert ones > 50
    for dtype in TYPES:
        for kind in ("nan", "infinity", "subnormal", "cancelled", "order"):
            assert data[dtype, kind] >= 20, (dtype, kind, data[dtype, kind])


def lists_of_one(children: PlanList) -> int:
    inner = sum(lists_of_one(child) for child in children if not isinstance(child, int))
    return inner + (len(children) == 1)


def special_in(operation: Operation, total: bytes) -> set[str]:
    """What stands in the sum: NaN, infinity, a subnormal, less than a sixteenth of its greatest input."""
    inputs = np.stack([np.frombuffer(data, NUMPY[operation.dtype]) for data in operation.data])
    with np.errstate(all="ignore"):
        values = np.frombuffer(total, NUMPY[operation.dtype]).astype(np.float64)
        greatest = np.abs(inputs.astype(np.float64)).max(axis=0)
        cancelled = np.isfinite(greatest) & (np.abs(values) < greatest / 16)
    least_normal = 2.0 ** (2 - (1 << FORMAT[operation.dtype][1] - 1))
    found = {
        "nan": np.isnan(values),
        "infinity": np.isinf(values),
        "subnormal": (values != 0) & (np.abs(values) < least_normal),
        "cancelled": cancelled,
    }
    return {kind for kind, where in found.items() if where.any()}
