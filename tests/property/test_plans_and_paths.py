"""Random plans: a chain of hosts in any order of events, ``ReductionPlan.reduce``, and sums by hand agree.

The third judge shares no code with the others: it recurses over the plan with one numpy scalar at a time.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.wire.ina_header import Dtype, Op
from tests.chain_schedule import chain
from tests.schedule_run import run_schedule
from tests.seeds import all_seeds
from tests.unit.exact_reference import HALF, NUMPY, QUIET_NAN

ELEMENTS = 9
UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}
# Bits behind the binary point, bits of the exponent.
FORMAT = {Dtype.F32: (23, 8), Dtype.F64: (52, 11), Dtype.F16: (10, 5), Dtype.BF16: (7, 8)}


def random_plan(draw: random.Random, size: int) -> ReductionPlan:
    """Ranks in any order; lists of one included."""
    nodes: list[int | PlanList] = list(range(size))
    draw.shuffle(nodes)
    while len(nodes) > 1 and draw.random() < 0.8:
        first = draw.randrange(len(nodes))
        end = min(len(nodes), first + draw.choice((1, 2, 2, 3, 4)))
        nodes[first:end] = [tuple(nodes[first:end])]
    return ReductionPlan(tuple(nodes))


def special_bits(dtype: Dtype) -> list[int]:
    """Zeros, ones, least and greatest subnormal, least and greatest normal, infinity, NaNs; of both signs."""
    point, exponent = FORMAT[dtype]
    infinity = ((1 << exponent) - 1) << point
    one = ((1 << exponent - 1) - 1) << point
    bits = [0, one, 1, (1 << point) - 1, 1 << point, infinity - 1, infinity, infinity + 1]
    bits.append(infinity | 1 << point - 1)
    return [*bits, *(value | 1 << point + exponent for value in bits)]


def random_column(draw: random.Random, dtype: Dtype, ranks: int) -> list[int]:
    """One element of every rank, as bits."""
    width = 8 * dtype.itemsize
    kind = draw.choice(("any", "special", "cancel", "subnormal", "near"))
    if dtype not in FORMAT or kind == "any":
        return [draw.getrandbits(width) for _ in range(ranks)]
    point, _ = FORMAT[dtype]
    sign = 1 << width - 1
    if kind == "special":
        finite = [bits for bits in special_bits(dtype) if draw.random() < 0.5] or [sign]
        return [draw.choice(finite) for _ in range(ranks)]
    if kind == "subnormal":
        return [draw.getrandbits(point + 1) | draw.choice((0, sign)) for _ in range(ranks)]
    if kind == "cancel":
        some = [draw.getrandbits(width) & ~(1 << width - 2) for _ in range(3)]
        return [draw.choice(some) ^ draw.choice((0, sign)) for _ in range(ranks)]
    one = special_bits(dtype)[1]
    return [one + (draw.randrange(-2, 3) << point) + draw.getrandbits(3) for _ in range(ranks)]


def by_hand(node: int | PlanList, column: list[Any], dtype: Dtype, op: Op) -> Any:
    """A numpy scalar; a NaN in any form."""
    if isinstance(node, int):
        return column[node]
    values = [by_hand(child, column, dtype, op) for child in node]
    if dtype in HALF and op is Op.SUM:
        values = [np.float32(value) for value in values]
    total = values[0]
    for value in values[1:]:
        total = combined(total, value, op)
    return NUMPY[dtype].type(total)


def combined(left: Any, right: Any, op: Op) -> Any:
    if op is Op.SUM:
        return left + right
    if left != left or right != right:  # noqa: PLR0124  a NaN is what differs from itself
        return left + right
    # -0 is below +0
    left_key, right_key = ((value, not np.signbit(value)) for value in (left, right))
    return left if (left_key > right_key) == (op is Op.MAX) else right


def expected_bytes(plan: ReductionPlan, inputs: list[NDArray[np.uint8]], dtype: Dtype, op: Op) -> bytes:
    columns = zip(*(list(values.view(NUMPY[dtype])) for values in inputs), strict=True)
    found = bytearray()
    for column in columns:
        total = by_hand(plan.children, list(column), dtype, op)
        is_nan = dtype in QUIET_NAN and total != total  # noqa: PLR0124
        found += QUIET_NAN[dtype] if is_nan else total.tobytes()
    return bytes(found)


@pytest.mark.parametrize("part", range(4))
def test_chain_and_plan_and_hand_agree(part: int) -> None:
    """200 plans of 2 to 16 ranks, with all types; operations take turns."""
    for seed in all_seeds(200)[part::4]:
        draw = random.Random(f"{seed}/plans and paths")
        plan = random_plan(draw, draw.randint(2, 16))
        schedule = chain(plan)
        assert schedule.exact
        for dtype, op in zip(Dtype, itertools.islice(itertools.cycle(Op), seed % 3, None), strict=False):
            bits = [random_column(draw, dtype, plan.size) for _ in range(ELEMENTS)]
            inputs = [
                np.array([column[rank] for column in bits], UNSIGNED[dtype.itemsize]).view(np.uint8)
                for rank in range(plan.size)
            ]
            with np.errstate(all="ignore"):
                expected = expected_bytes(plan, inputs, dtype, op)
            what = f"seed {seed}, {plan}, {dtype.name} {op.name}"
            assert plan.reduce(inputs, dtype, op).tobytes() == expected, what
            results = run_schedule(
                schedule,
                inputs,
                dtype,
                op,
                segment_bytes=dtype.itemsize * draw.choice((1, 2, 4, ELEMENTS)),
                choose=draw.randrange,
            )
            assert {result.tobytes() for result in results} == {expected}, what


def test_the_draws_are_worth_drawing() -> None:
    """Among the plans: flat ones, deep ones, lists of one; among the data: all that is special."""
    plans = [random_plan(random.Random(f"{seed}/shapes"), 8) for seed in range(100)]
    assert {1, 2, 3, 4} <= {plan.depth for plan in plans}
    assert any("[[" in str(plan) for plan in plans)
    draw = random.Random("data")
    for dtype in FORMAT:
        columns = [random_column(draw, dtype, 8) for _ in range(400)]
        values = np.array(columns, UNSIGNED[dtype.itemsize]).view(NUMPY[dtype])
        with np.errstate(all="ignore"):
            wide = values.astype(np.float64)
        assert np.isnan(wide).any()
        assert np.isposinf(wide).any()
        assert np.isneginf(wide).any()
        assert ((wide == 0) & np.signbit(wide)).any()
        with np.errstate(all="ignore"):
            zero_sums = (np.abs(wide).min(axis=1) > 0) & (wide.sum(axis=1) == 0)
        assert zero_sums.any()
        subnormal = (wide != 0) & (np.abs(wide) < 2.0 ** (2 - (1 << FORMAT[dtype][1] - 1)))
        assert subnormal.any()
