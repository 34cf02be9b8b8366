"""Trees of hosts shaped like a plan: who gathers what, how much of it, and the bytes that come out."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core.plan.host_tree import OWN, OverlayTree, Run
from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op
from tests.property.test_plans_and_paths import random_plan
from tests.unit.exact_reference import HALF

Bytes = NDArray[np.uint8]
RACKS: PlanList = ((0, 1, 2), (3, 4, 5), (6, 7, 8))


def tree(lists: PlanList, in_degree: int) -> OverlayTree:
    return OverlayTree(ReductionPlan(lists), in_degree)


def test_each_list_s_first_rank_gathers_it() -> None:
    """Where the bound leaves room for that."""
    racks = tree(RACKS, 8)
    assert racks.parents == (None, 0, 0, 0, 3, 3, 0, 6, 6)
    assert (racks.root, racks.levels) == (0, 2)
    assert racks.children(0) == (1, 2, 3, 6)
    assert racks.runs(0) == (Run(0, (OWN, 1, 2), closes=True), Run(0, (OWN, 3, 6), closes=True))
    assert racks.runs(3) == (Run(0, (OWN, 4, 5), closes=True),)
    assert racks.runs(8) == ()


def test_longer_lists_are_gathered_in_runs_that_begin_with_the_accumulator_of_the_run_before() -> None:
    flat = tree(tuple(range(9)), 3)
    assert flat.parents == (4, 0, 0, 0, 7, 4, 4, None, 7)
    assert flat.runs(0) == (Run(0, (OWN, 1, 2, 3), closes=False),)
    assert flat.runs(4) == (Run(4, (0, OWN, 5, 6), closes=False),)
    assert flat.runs(7) == (Run(7, (4, OWN, 8), closes=True),)
    assert flat.runs(7)[0].values == 9
    assert (flat.root, flat.levels, flat.heights) == (7, 3, (1, 0, 0, 0, 2, 0, 0, 3, 0))


def test_who_gathers_least_so_far_is_the_head() -> None:
    uneven = tree(((0, 1, 2, 3), 4), 8)
    assert (uneven.root, uneven.children(4), uneven.children(0)) == (4, (0,), (1, 2, 3))


@pytest.mark.parametrize(("size", "in_degree", "levels"), [(16, 1, 15), (16, 4, 4), (16, 15, 1), (64, 4, 16)])
def test_the_bound_goes_from_a_chain_to_a_star(size: int, in_degree: int, levels: int) -> None:
    flat = tree(tuple(range(size)), in_degree)
    assert flat.levels == levels
    assert max(len(flat.children(rank)) for rank in range(size)) == in_degree


def test_lists_of_one_add_nothing() -> None:
    plain, wrapped = tree((2, (0, 1)), 4), tree((((2,),), (0, (1,))), 4)
    assert plain.parents == wrapped.parents
    assert [plain.runs(rank) for rank in range(3)] == [wrapped.runs(rank) for rank in range(3)]


def test_a_rank_alone_has_no_parent_and_gathers_nothing() -> None:
    alone = tree((0,), 1)
    assert (alone.root, alone.levels, alone.children(0)) == (0, 0, ())
    with pytest.raises(LocalMisuse, match="rank 0 gathers"):
        alone.fold(0, Dtype.F32, Op.SUM, [], np.zeros(8, np.uint8), np.zeros(8, np.uint8))


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(LocalMisuse, match="in-degree 0"):
        tree((0, 1), 0)


def test_a_result_goes_first_to_who_has_more_levels_below() -> None:
    uneven = tree(((0, 1), 2, 3, (4, (5, (6, 7)))), 8)
    assert (uneven.root, uneven.children(2)) == (2, (0, 3, 4))
    assert [uneven.heights[rank] for rank in (0, 3, 4)] == [1, 0, 3]
    assert uneven.downwards(2) == (2, 0, 1)


def test_sums_of_half_precision_that_are_not_complete_go_up_wide() -> None:
    flat = tree(tuple(range(9)), 3)
    assert flat.up_bytes(1, Dtype.F16, Op.SUM, 100) == 100
    assert flat.up_bytes(0, Dtype.F16, Op.SUM, 100) == 200
    assert flat.up_bytes(0, Dtype.F16, Op.MAX, 100) == 100
    assert flat.up_bytes(0, Dtype.F32, Op.SUM, 100) == 100
    assert flat.up_bytes(7, Dtype.BF16, Op.SUM, 100) == 100
    racks = tree(RACKS, 8)
    assert {racks.up_bytes(rank, Dtype.BF16, Op.SUM, 100) for rank in range(9)} == {100}
    assert flat.slot_bytes(1000) == racks.slot_bytes(1000) == INA_HEADER_BYTES + 2000


def test_wrong_sizes_are_refused() -> None:
    flat = tree((0, 1, 2), 2)
    whole, short = np.zeros(8, np.uint8), np.zeros(4, np.uint8)
    for came, out in (([whole], whole), ([whole, short], whole), ([whole, whole], short)):
        with pytest.raises(LocalMisuse, match=r"rank 0 gathers \[8, 8\] bytes into 8"):
            flat.fold(0, Dtype.F32, Op.SUM, came, whole, out)


@pytest.mark.parametrize("part", range(4))
def test_every_tree_is_one_keeps_its_bound_and_has_the_plan_s_bytes(part: int) -> None:
    """400 plans with the ranks in any order: each type, sums and extremes, folded up the tree."""
    for seed in range(part, 400, 4):
        draw = random.Random(f"overlay tree/{seed}")
        plan = random_plan(draw, draw.randint(2, 20))
        tree = OverlayTree(plan, draw.randint(1, 5))
        parents = tree.parents
        assert [rank for rank, parent in enumerate(parents) if parent is None] == [tree.root]
        for rank in range(plan.size):
            assert all(parents[child] == rank for child in tree.children(rank))
            inside = [run.operands for run in tree.runs(rank)[:-1]]
            gathered = sum(len(operands) - 1 for operands in inside)
            assert len(tree.children(rank)) <= max(tree.in_degree, gathered + 1), (seed, rank)
            assert sorted(tree.downwards(rank)) == list(range(len(tree.children(rank))))
        for dtype in Dtype:
            op = draw.choice((Op.SUM, Op.SUM, Op.MAX, Op.MIN))
            inputs = [np.frombuffer(draw.randbytes(48), np.uint8) for _ in range(plan.size)]
            expected = plan.reduce(inputs, dtype, op)
            assert bytes(folded(tree, tree.root, dtype, op, inputs)) == bytes(expected), (seed, dtype, op)


def folded(tree: OverlayTree, rank: int, dtype: Dtype, op: Op, inputs: list[Bytes]) -> Bytes:
    """What a rank sends up."""
    children = tree.children(rank)
    if not children:
        return inputs[rank]
    came = [folded(tree, child, dtype, op, inputs) for child in children]
    out = np.zeros(tree.up_bytes(rank, dtype, op, inputs[rank].size), np.uint8)
    tree.fold(rank, dtype, op, came, inputs[rank], out)
    assert dtype not in HALF or out.size in (48, 96)
    return out
