"""Reduction plans: what is one and what is none, what they add, and trees of switches as plans."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.plan.reduction_plan import DEPTH_MAX, PlanList, ReductionPlan, holder
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op

RACKS = ReductionPlan(((0, 1), (2, 3)))


def nested(depth: int) -> PlanList:
    children: PlanList = (0,)
    for _ in range(depth - 1):
        children = (children,)
    return children


def f16(*values: float) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    return [np.array([value], np.float16).view(np.uint8) for value in values]


def test_racks() -> None:
    assert RACKS.ranks == (0, 1, 2, 3)
    assert RACKS.size == 4
    assert RACKS.depth == 2
    assert str(RACKS) == "[[0, 1], [2, 3]]"
    assert RACKS.to_lists() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("children", "ranks", "depth"),
    [
        ((0,), (0,), 1),
        ((2, 0, 1), (2, 0, 1), 1),
        (((1,), 0), (1, 0), 2),
        ((((0, 3), 1), 2), (0, 3, 1, 2), 3),
        ((0, (1, (2, (3, 4)))), (0, 1, 2, 3, 4), 4),
    ],
)
def test_order_and_depth(children: PlanList, ranks: tuple[int, ...], depth: int) -> None:
    plan = ReductionPlan(children)
    assert plan.ranks == ranks
    assert plan.depth == depth
    assert ReductionPlan.from_lists(json.loads(json.dumps(plan.to_lists()))) == plan
    assert ReductionPlan.from_lists(children) == plan


def test_flat() -> None:
    assert ReductionPlan.flat(3) == ReductionPlan((0, 1, 2))
    assert ReductionPlan.flat(1).ranks == (0,)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([], "a list of a reduction plan is empty"),
        ([0, []], "a list of a reduction plan is empty"),
        ([[], 0], "a list of a reduction plan is empty"),
        ([0, 2], "a reduction plan of 2 ranks has each of 0 to 1 once, not [0, 2]"),
        ([[0, 1], [1, 2]], "a reduction plan of 4 ranks has each of 0 to 3 once, not [0, 1, 1, 2]"),
        ([-1, 0], "a reduction plan of 2 ranks has each of 0 to 1 once, not [-1, 0]"),
        ([1, 2], "a reduction plan of 2 ranks has each of 0 to 1 once, not [1, 2]"),
        (7, "a reduction plan is a list of ranks and lists, not 7"),
        ("01", "a reduction plan is a list of ranks and lists, not '01'"),
        ([0, "1"], "a reduction plan is made of ranks and lists; '1' is neither"),
        ([False, 1], "a reduction plan is made of ranks and lists; False is neither"),
        ([0.0], "a reduction plan is made of ranks and lists; 0.0 is neither"),
    ],
)
def test_what_is_no_plan(lists: object, message: str) -> None:
    with pytest.raises(LocalMisuse) as refusal:
        ReductionPlan.from_lists(lists)
    assert str(refusal.value) == message


def test_flat_of_nobody_is_no_plan() -> None:
    with pytest.raises(LocalMisuse, match="a list of a reduction plan is empty"):
        ReductionPlan.flat(0)


def test_depth_is_bounded() -> None:
    assert DEPTH_MAX == 64
    deepest = nested(DEPTH_MAX)
    assert ReductionPlan(deepest).depth == DEPTH_MAX
    assert ReductionPlan.from_lists(ReductionPlan(deepest).to_lists()).depth == DEPTH_MAX
    message = "a reduction plan has lists within lists, 64 deep at most"
    for build in (ReductionPlan, ReductionPlan.from_lists):
        for depth in (DEPTH_MAX + 1, DEPTH_MAX + 2, 20_000):
            with pytest.raises(LocalMisuse) as refusal:
                build(nested(depth))
            assert str(refusal.value) == message


def test_holder_is_the_last_rank() -> None:
    assert holder(5) == 5
    assert holder((0, 1, 2)) == 2
    assert holder((0, (1, (2, 3)))) == 3
    assert holder(((0, 1), 2)) == 2


@pytest.mark.parametrize(
    ("children", "gone", "rest"),
    [
        (((0, 1), (2, 3)), 0, ((0,), (1, 2))),
        (((0, 1), (2, 3)), 1, ((0,), (1, 2))),
        (((0, 1), (2, 3)), 3, ((0, 1), (2,))),
        (((3, 1), 0, 2), 1, ((2,), 0, 1)),
        (((0,), (1, 2)), 0, ((0, 1),)),
        ((((2,),), 1, 0), 2, (1, 0)),
    ],
)
def test_without_a_rank_the_others_move_down(children: PlanList, gone: int, rest: PlanList) -> None:
    assert ReductionPlan(children).without(gone) == ReductionPlan(rest)


def test_without_whom_it_has_not() -> None:
    with pytest.raises(LocalMisuse) as refusal:
        RACKS.without(4)
    assert str(refusal.value) == "rank 4 is not in the plan [[0, 1], [2, 3]]"
    with pytest.raises(LocalMisuse) as refusal:
        ReductionPlan(((0,),)).without(0)
    assert str(refusal.value) == "without rank 0 nothing is left of the plan [[0]]"


def test_each_list_rounds_once() -> None:
    """float16: 2048 + 1 is rounded to 2048 (ties to even), 2048 + 2 to 2050."""
    inputs = f16(2048, 1, 1, 1)

    def total(children: PlanList) -> float:
        result = ReductionPlan(children).reduce(inputs, Dtype.F16, Op.SUM)
        return float(result.view(np.float16)[0])

    assert total((0, 1, 2, 3)) == 2052  # 2051 is a tie, to even
    assert total(((0, 1), 2, 3)) == 2050
    assert total((((0, 1), 2), 3)) == 2048
    assert total(((0, 1), (2, 3))) == 2050
    assert total((0, (1, 2, 3))) == 2052
    assert total(((0, 1, 2), 3)) == 2052


def test_order_of_additions() -> None:
    inputs = [np.array([value], np.float32).view(np.uint8) for value in (1.0, 2.0**24, -(2.0**24))]

    def total(children: PlanList) -> float:
        return float(ReductionPlan(children).reduce(inputs, Dtype.F32, Op.SUM).view(np.float32)[0])

    assert total((0, 1, 2)) == 0
    assert total((1, 2, 0)) == 1
    assert total((0, (1, 2))) == 1


def test_one_child_adds_nothing() -> None:
    """Not even a canonical NaN: a plan of one rank gives its bytes back, in an array of its own."""
    nan = np.frombuffer(bytes.fromhex("0100c0ff"), np.uint8)
    for plan in (ReductionPlan.flat(1), ReductionPlan(((0,),))):
        result = plan.reduce([nan], Dtype.F32, Op.SUM)
        assert result.tobytes() == nan.tobytes()
        assert not np.shares_memory(result, nan)
    pair = ReductionPlan(((0,), ((1,),)))
    inputs = f16(1, 2)
    assert pair.reduce(inputs, Dtype.F16, Op.SUM).tobytes() == f16(3)[0].tobytes()


def test_inputs_by_rank() -> None:
    inputs = f16(1, 2, 4, 8)
    by_rank = {rank: inputs[rank] for rank in (3, 1, 0, 2)}
    assert RACKS.reduce(by_rank, Dtype.F16, Op.SUM).tobytes() == f16(15)[0].tobytes()
    assert RACKS.reduce(inputs, Dtype.F16, Op.MAX).tobytes() == f16(8)[0].tobytes()
    assert RACKS.reduce(inputs, Dtype.F16, Op.MIN).tobytes() == f16(1)[0].tobytes()
    assert [value.tobytes() for value in inputs] == [value.tobytes() for value in f16(1, 2, 4, 8)]


@pytest.mark.parametrize(
    ("hosts", "ranks", "expected"),
    [
        ((0, 1), [(0, 1), (2, 3)], [[0, 1], [2, 3]]),
        ((0, 1), [(0,), (1,)], [0, 1]),
        ((0, 1, 2), [(0, 2, 5), (1, 3), (4,)], [[0, 2, 5], [1, 3], 4]),
        (((0, 2), (1,)), [(0,), (1, 2), (3, 4)], [[0, [3, 4]], [[1, 2]]]),
        ((0,), [(0, 1, 2)], [[0, 1, 2]]),
    ],
)
def test_a_plan_over_hosts_sums_the_ranks_of_each_host_first(
    hosts: PlanList, ranks: list[tuple[int, ...]], expected: list[object]
) -> None:
    assert ReductionPlan(hosts).over(ranks).to_lists() == expected


def test_a_plan_over_hosts_needs_the_ranks_of_each_host() -> None:
    with pytest.raises(LocalMisuse) as refusal:
        ReductionPlan.flat(2).over([(0,), (1,), (2,)])
    assert str(refusal.value) == "a plan of 2 hosts was given the ranks of 3"
    with pytest.raises(LocalMisuse, match="has each of 0 to 1 once"):
        ReductionPlan.flat(2).over([(0,), (2,)])


def test_half_precision_is_rounded_on_each_host_and_over_hosts() -> None:
    """From 2048 on float16 has even numbers only: two ones are lost where each meets it by itself."""
    inputs = f16(2048, 1, 1, 0)
    of_ranks = ReductionPlan.flat(4).reduce(inputs, Dtype.F16, Op.SUM)
    apart = ReductionPlan.flat(2).over([(0, 1), (2, 3)]).reduce(inputs, Dtype.F16, Op.SUM)
    assert of_ranks.view(np.float16).tolist() == [2050]
    assert apart.view(np.float16).tolist() == [2048]


def test_inputs_that_do_not_fit() -> None:
    with pytest.raises(LocalMisuse) as refusal:
        RACKS.reduce(f16(1, 2, 3), Dtype.F16, Op.SUM)
    assert str(refusal.value) == "a plan of 4 ranks was given inputs of ranks [0, 1, 2]"
    with pytest.raises(LocalMisuse) as refusal:
        RACKS.reduce({rank: f16(0)[0] for rank in (1, 2, 3, 4)}, Dtype.F16, Op.SUM)
    assert str(refusal.value) == "a plan of 4 ranks was given inputs of ranks [1, 2, 3, 4]"
    with pytest.raises(LocalMisuse) as refusal:
        ReductionPlan.flat(2).reduce([np.zeros(2, np.uint8), np.zeros(4, np.uint8)], Dtype.F16, Op.SUM)
    assert str(refusal.value) == "the inputs of a reduction must be of one length"


def test_plan_of_a_tree() -> None:
    left = TreeSwitch("left", (0, 1))
    right = TreeSwitch("right", (2, TreeSwitch("deep", (4, 3))))
    assert ReductionPlan.from_tree(TreeSwitch("root", (left, right))).to_lists() == [[0, 1], [2, [4, 3]]]
    assert ReductionPlan.from_tree(TreeSwitch("root", (1, 0))).to_lists() == [1, 0]


def test_a_switch_that_steers_is_no_aggregation_point() -> None:
    steering = TreeSwitch("steering", (1, TreeSwitch("below", (2, 3)), 4), aggregates=False)
    assert ReductionPlan.from_tree(TreeSwitch("root", (0, steering, 5))).to_lists() == [0, 1, [2, 3], 4, 5]
    with pytest.raises(LocalMisuse) as refusal:
        ReductionPlan.from_tree(TreeSwitch("top", (0, 1), aggregates=False))
    assert str(refusal.value) == "switch top, the root, must aggregate"
