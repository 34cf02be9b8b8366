"""Accumulators along a chain: what travels, how wide it is, and that the last rank has the plan's bytes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core.plan.accumulators import Accumulators, RotatedAccumulators, accumulators_on
from inaproto.core.plan.neutral import neutral_bytes
from inaproto.core.plan.reduce import reduce_into
from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op
from tests.property.test_recovery import draw_bytes, draw_lists
from tests.unit.exact_reference import HALF, exact

Bytes = NDArray[np.uint8]
PAIRS = list(itertools.product(Dtype, Op))
NESTED: PlanList = ((0, 1), (2, (3, 4)), 5)


def along(plan: ReductionPlan, dtype: Dtype, op: Op, inputs: list[Bytes]) -> tuple[Bytes, list[int]]:
    """The last rank's result, and the bytes that each rank passed on."""
    chain = Accumulators(plan)
    stack, sizes = np.empty(0, np.uint8), []
    for rank, own in enumerate(inputs):
        goes = own.size
        if rank < plan.size - 1:
            goes = chain.stack_bytes(rank, dtype, op, own.size)
            sizes.append(goes)
        out = np.full(goes, 0xA5, np.uint8)
        before = stack.copy(), own.copy()
        chain.combine(rank, dtype, op, stack, own, out)
        assert np.array_equal(before[0], stack)
        assert np.array_equal(before[1], own)
        stack = out
    return stack, sizes


def by_hand(child: int | PlanList, dtype: Dtype, op: Op, inputs: list[Bytes]) -> bytes:
    """The plan's reduction by outside formulas."""
    if isinstance(child, int):
        return inputs[child].tobytes()
    operands = [by_hand(part, dtype, op, inputs) for part in child]
    return operands[0] if len(operands) == 1 else exact(dtype, op, operands)


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_the_last_rank_has_the_plan_s_bytes(dtype: Dtype, op: Op) -> None:
    for seed in range(40):
        draw = random.Random(f"{seed}/{dtype}/{op}")
        size = draw.randint(2, 7)
        lists = draw_lists(draw, list(range(size)))
        nbytes = draw.randrange(20) * dtype.itemsize
        inputs = [draw_bytes(draw, nbytes, dtype) for _ in range(size)]
        result, _ = along(ReductionPlan(lists), dtype, op, inputs)
        assert result.tobytes() == by_hand(lists, dtype, op, inputs), lists


def test_half_sums_travel_in_float32_and_are_rounded_once_a_list() -> None:
    """1 + 2^-11 + 2^-11 is 1 + 2^-10 if it is rounded at the end, and 1 if it is rounded each time."""
    one, tiny = np.float16(1), np.float16(2**-11)
    inputs = [np.array([value], np.float16).view(np.uint8) for value in (one, tiny, tiny)]
    flat, sizes = along(ReductionPlan.flat(3), Dtype.F16, Op.SUM, inputs)
    assert flat.view(np.float16)[0] == np.float16(1 + 2**-10)
    assert sizes == [2, 4]
    nested, sizes = along(ReductionPlan(((0, 1), 2)), Dtype.F16, Op.SUM, inputs)
    assert nested.view(np.float16)[0] == one
    assert sizes == [2, 2]


@pytest.mark.parametrize(
    ("lists", "wide", "narrow"),
    [
        ((0, 1, 2), [2, 4], [2, 2]),
        (((0, 1), (2, 3)), [2, 2, 4], [2, 2, 4]),
        ((0, (1, 2)), [2, 4], [2, 4]),
        ((0, 1, (2, 3), 4), [2, 4, 6, 4], [2, 2, 4, 2]),
        (((0,), (1,)), [2], [2]),
        ((0, (1, (2, (3, 4)))), [2, 4, 6, 8], [2, 4, 6, 8]),
        (NESTED, [2, 2, 4, 6, 4], [2, 2, 4, 6, 2]),
    ],
)
def test_what_each_rank_passes_on(lists: PlanList, wide: list[int], narrow: list[int]) -> None:
    """Bytes an element, of half types: for each list that is open, its contribution or the sum of several."""
    plan = ReductionPlan(lists)
    inputs = [np.zeros(2 * 8, np.uint8)] * plan.size
    for dtype in HALF:
        assert along(plan, dtype, Op.SUM, inputs)[1] == [8 * size for size in wide]
        assert along(plan, dtype, Op.MAX, inputs)[1] == [8 * size for size in narrow]
    assert along(plan, Dtype.F32, Op.SUM, inputs)[1] == [8 * size for size in narrow]


@pytest.mark.parametrize(
    ("lists", "slot"),
    [((0,), 40 + 216), ((0, 1), 40 + 216), ((0, 1, 2), 40 + 432), ((0, 1, (2, 3), 4), 40 + 648)],
)
def test_a_slot_takes_the_largest_message(lists: PlanList, slot: int) -> None:
    assert Accumulators(ReductionPlan(lists)).slot_bytes(216) == slot


def test_the_plan_must_follow_the_ring() -> None:
    with pytest.raises(
        LocalMisuse,
        match=r"^a chain follows its ring: the plan \[\[1, 0\], 2\] has the ranks in another order$",
    ):
        Accumulators(ReductionPlan(((1, 0), 2)))


@pytest.mark.parametrize(("rank", "came", "goes"), [(0, 8, 8), (1, 8, 8), (1, 4, 16), (2, 16, 16), (2, 8, 8)])
def test_sizes_that_are_wrong(rank: int, came: int, goes: int) -> None:
    chain = Accumulators(ReductionPlan.flat(3))
    right = [(0, 8), (8, 16), (16, 8)][rank]
    out = np.full(goes, 0xA5, np.uint8)
    with pytest.raises(LocalMisuse) as caught:
        chain.combine(rank, Dtype.F16, Op.SUM, np.zeros(came, np.uint8), np.zeros(8, np.uint8), out)
    assert (
        str(caught.value) == f"rank {rank} combines {right[0]} bytes into {right[1]}, not {came} into {goes}"
    )
    assert set(out.tolist()) == {0xA5}


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_neutral_elements_change_no_result(dtype: Dtype, op: Op) -> None:
    """Whatever its bits are: one rank's result comes out of any plan in which all others are neutral."""
    draw = random.Random(f"{dtype}/{op}")
    raw = draw_bytes(draw, 512 * dtype.itemsize, dtype)
    result = np.empty_like(raw)
    reduce_into(
        dtype, op, [raw, raw] if op is not Op.SUM else [raw, draw_bytes(draw, raw.size, dtype)], result
    )
    negative_zero = np.frombuffer(neutral_bytes(dtype, Op.SUM, dtype.itemsize), np.uint8)
    result[: dtype.itemsize] = negative_zero
    result[dtype.itemsize : 2 * dtype.itemsize] = 0
    neutral = np.frombuffer(neutral_bytes(dtype, op, raw.size), np.uint8)
    for donor in range(6):
        inputs = [result if rank == donor else neutral for rank in range(6)]
        assert ReductionPlan(NESTED).reduce(inputs, dtype, op).tobytes() == result.tobytes()


def test_neutral_elements() -> None:
    assert neutral_bytes(Dtype.F32, Op.SUM, 8) == bytes.fromhex("0000008000000080")
    assert neutral_bytes(Dtype.BF16, Op.SUM, 2) == bytes.fromhex("0080")
    assert neutral_bytes(Dtype.F16, Op.MAX, 4) == bytes.fromhex("00fc00fc")
    assert neutral_bytes(Dtype.BF16, Op.MIN, 2) == bytes.fromhex("807f")
    assert neutral_bytes(Dtype.I64, Op.MIN, 8) == bytes.fromhex("ffffffffffffff7f")
    assert neutral_bytes(Dtype.I32, Op.MAX, 0) == b""


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_from_any_rank_on_the_sizes_say_whose_turn_it_is(size: int, dtype: Dtype, op: Op) -> None:
    draw = random.Random(f"{size}/{dtype}/{op}")
    rotated = RotatedAccumulators(ReductionPlan.flat(size))
    for start in range(size):
        nbytes = draw.randrange(9) * dtype.itemsize
        inputs = [draw_bytes(draw, nbytes, dtype) for _ in range(size)]
        order = [*range(start, size), *range(start)]
        stack = inputs[start]
        for turn, rank in enumerate(order[1:], 1):
            goes = rotated.stack_bytes(turn, dtype, op, nbytes) if turn < size - 1 else nbytes
            out = np.full(goes, 0xA5, np.uint8)
            rotated.combine(rank, dtype, op, stack, inputs[rank], out)
            stack = out
        assert stack.tobytes() == exact(dtype, op, [inputs[rank].tobytes() for rank in order])


def test_messages_begin_at_any_rank_of_a_flat_plan_alone() -> None:
    with pytest.raises(
        LocalMisuse,
        match=r"^messages begin at other ranks in turn: the plan \[0, \[1, 2\]\] is not flat$",
    ):
        RotatedAccumulators(ReductionPlan((0, (1, 2))))
    with pytest.raises(LocalMisuse, match="the ranks in another order"):
        RotatedAccumulators(ReductionPlan((1, 0)))


@pytest.mark.parametrize(
    ("size", "came", "goes"),
    [(2, 8, 16), (2, 16, 8), (3, 8, 8), (3, 16, 16), (4, 8, 8), (4, 4, 16), (4, 0, 8)],
)
def test_a_rotated_turn_of_sizes_that_none_has_is_refused(size: int, came: int, goes: int) -> None:
    """8 bytes of float16."""
    rotated = RotatedAccumulators(ReductionPlan.flat(size))
    arrays = [np.zeros(nbytes, np.uint8) for nbytes in (came, 8, goes)]
    with pytest.raises(LocalMisuse, match=r"^rank \d combines"):
        rotated.combine(0, Dtype.F16, Op.SUM, *arrays)


# --- those of a path


def test_a_chain_follows_the_plan_that_its_ring_names() -> None:
    assert accumulators_on("chain", "[[0, 1], [2, 3]]", 4) == Accumulators(ReductionPlan(((0, 1), (2, 3))))
    assert accumulators_on("chain", "", 3) == Accumulators(ReductionPlan.flat(3))
    with pytest.raises(LocalMisuse, match="the ranks in another order"):
        accumulators_on("chain", "[[0, 2], 1]", 3)
    for plan in ("[0, 1", "[" * 8000, "[" * 65 + "0" + "]" * 65, "2"):
        with pytest.raises(LocalMisuse, match="plan"):
            accumulators_on("chain", plan, 2)


def test_the_ring_has_the_rotated_ones_whatever_the_plan() -> None:
    for plan in ("", "[[0, 2], 1]"):
        assert accumulators_on("ring", plan, 3) == RotatedAccumulators(ReductionPlan.flat(3))
