"""Random plans over shared memory: any order of the ranks, any cut, the bytes of the plan and of a chain."""

from __future__ import annotations

import contextlib
import itertools
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.client.stage import exchange
from inaproto.client.stage.exchange import Kind, reduce_blocks
from inaproto.client.stage.waits import Wait
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import RankLost, TensorMismatch
from inaproto.wire.ina_header import Dtype, Op
from tests.chain_schedule import chain
from tests.property.shm_ranks import WAYS, Ranks, Way, in_any_order
from tests.property.test_plans_and_paths import UNSIGNED, random_column, random_plan
from tests.schedule_run import run_schedule
from tests.seeds import all_seeds

COLUMNS = 24
LENGTHS = (0, 1, 7, 16, 33, 100, 257, 900)
TYPES = (Dtype.F32, Dtype.F16, Dtype.BF16)


def random_tensors(draw: random.Random, dtype: Dtype, ranks: int, elements: int) -> list[NDArray[np.uint8]]:
    """NaN, infinities, subnormals, cancellation: a few columns of them, each in many places."""
    columns = [random_column(draw, dtype, ranks) for _ in range(COLUMNS)]
    chosen = draw.choices(range(COLUMNS), k=elements)
    bits = np.array(columns, UNSIGNED[dtype.itemsize])[np.array(chosen, np.int64)]
    return [np.ascontiguousarray(bits[:, rank]).view(np.uint8) for rank in range(ranks)]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    """How ranks come by the arrays of others, where these are not tiny: some lines at once."""
    monkeypatch.setattr(exchange, "READ_BYTES_MIN", 64)
    monkeypatch.setattr(exchange, "READ_AT_ONCE_BYTES", 1024)
    monkeypatch.setattr(exchange, "GIVE_AT_ONCE_BYTES", 1024)
    monkeypatch.setattr(exchange, "TURN_BYTES", 300)
    chosen: Way = request.param
    return chosen


@pytest.mark.parametrize("part", range(4))
def test_shared_memory_and_plan_and_chain_agree(part: int, way: Way) -> None:
    """200 plans of 1 to 16 ranks; calls of all kinds follow each other, and ranks run ahead."""
    for seed in all_seeds(200)[part::4]:
        draw = random.Random(f"{seed}/shm plans")
        plan = random_plan(draw, draw.randint(1, 16))
        ranks = Ranks(plan, lines=draw.choice((1, 1, 2, 5)), choose=in_any_order(draw), way=way)
        for dtype, op in zip(TYPES, itertools.islice(itertools.cycle(Op), seed % 3, None), strict=False):
            elements = draw.choice(LENGTHS)
            inputs = random_tensors(draw, dtype, plan.size, elements)
            what = f"seed {seed}, {plan}, {elements} {dtype.name} {op.name}"
            expected = plan.reduce(inputs, dtype, op).tobytes()
            assert {result.tobytes() for result in ranks.all_reduce(inputs, dtype, op)} == {expected}, what
            parts = ranks.reduce_scatter(inputs, dtype, op)
            assert b"".join(part.tobytes() for part in parts) == expected, what
            gathered = ranks.all_gather(parts, elements, dtype)
            assert {result.tobytes() for result in gathered} == {expected}, what
            by_chain = run_schedule(chain(plan), inputs, dtype, op, segment_bytes=4096)
            assert {result.tobytes() for result in by_chain} == {expected}, what


def test_calls_follow_each_other_without_a_barrier_between(way: Way) -> None:
    """A rank that has its result begins with the next call, of any kind, while others are not through."""
    for seed in all_seeds(60):
        draw = random.Random(f"{seed}/shm programs")
        plan = random_plan(draw, draw.randint(2, 6))
        ranks = Ranks(plan, choose=in_any_order(draw), way=way)
        programs = [itertools.chain[Wait | None]() for _ in ranks.exchanges]
        checks = []
        for _ in range(6):
            kind = draw.choice(list(Kind))
            elements = draw.choice(LENGTHS)
            call = ranks.call(kind, elements, Dtype.I32)
            inputs = random_tensors(draw, Dtype.I32, plan.size, elements)
            total = plan.reduce(inputs, Dtype.I32, Op.SUM)
            slices = ranks.empty_slices(call)
            edges = list(itertools.accumulate((part.size for part in slices), initial=0))
            pieces = [total[first:end] for first, end in itertools.pairwise(edges)]
            if kind is Kind.ALL_REDUCE:
                outs, wanted = [np.empty_like(total) for _ in inputs], [total] * plan.size
                steps = [
                    each.all_reduce(call, inputs[each.rank], outs[each.rank]) for each in ranks.exchanges
                ]
            elif kind is Kind.REDUCE_SCATTER:
                outs, wanted = slices, pieces
                steps = [
                    each.reduce_scatter(call, inputs[each.rank], outs[each.rank]) for each in ranks.exchanges
                ]
            else:
                outs, wanted = [np.empty_like(total) for _ in inputs], [total] * plan.size
                steps = [
                    each.all_gather(call, pieces[each.rank], outs[each.rank]) for each in ranks.exchanges
                ]
            programs = [itertools.chain(done, more) for done, more in zip(programs, steps, strict=True)]
            checks.append((call, outs, wanted))
        ranks.run(programs)
        for call, outs, wanted in checks:
            found = [np.array_equal(out, want) for out, want in zip(outs, wanted, strict=True)]
            assert all(found), f"seed {seed}, {plan}, {call}: {found}"


@pytest.mark.parametrize(("dtype", "op"), [(Dtype.F16, Op.SUM), (Dtype.F32, Op.SUM), (Dtype.BF16, Op.MAX)])
def test_results_may_take_the_place_of_inputs(way: Way, dtype: Dtype, op: Op) -> None:
    for seed in all_seeds(40):
        draw = random.Random(f"{seed}/shm in place")
        plan = random_plan(draw, draw.randint(1, 8))
        ranks = Ranks(plan, choose=in_any_order(draw), way=way)
        elements = draw.choice(LENGTHS)
        inputs = random_tensors(draw, dtype, plan.size, elements)
        expected = plan.reduce(inputs, dtype, op).tobytes()
        call = ranks.call(Kind.ALL_REDUCE, elements, dtype, op)
        ranks.run([each.all_reduce(call, inputs[each.rank], inputs[each.rank]) for each in ranks.exchanges])
        assert {values.tobytes() for values in inputs} == {expected}


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize("same", [True, False])
def test_others_may_write_from_before_the_first_barrier_on(
    same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "READ_BYTES_MIN", 64)
    ranks = Ranks(ReductionPlan.flat(2), way="given")
    calls = [
        ranks.call(Kind.ALL_REDUCE, 100, dtype) for dtype in (Dtype.I32, Dtype.I32 if same else Dtype.F32)
    ]
    arrays = [np.full(400, 1 + rank, np.uint8) for rank in range(2)]
    programs = [
        each.all_reduce(calls[each.rank], arrays[each.rank], arrays[each.rank]) for each in ranks.exchanges
    ]
    assert [next(program) for program in programs] == [None, None]
    assert all(each.given is arrays[each.rank] for each in ranks.exchanges)
    with contextlib.nullcontext() if same else pytest.raises(TensorMismatch):
        ranks.run(programs)
    if not same:
        with pytest.raises(TensorMismatch):
            next(programs[1])
    assert [each.given for each in ranks.exchanges] == [None, None]
    assert [array.tolist() for array in arrays] == [[3 if same else 1 + rank] * 400 for rank in range(2)]


@pytest.mark.usefixtures("compiled_kernels")
def test_who_gave_up_behind_the_first_barrier_keeps_its_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "READ_BYTES_MIN", 64)
    ranks = Ranks(ReductionPlan.flat(2), way="given")
    arrays = [np.full(400, 1 + rank, np.uint8) for rank in range(2)]
    call = ranks.call(Kind.ALL_REDUCE, 100, Dtype.I32)
    programs = [
        each.all_reduce(call, array, array) for each, array in zip(ranks.exchanges, arrays, strict=True)
    ]
    assert [next(program) for program in programs] == [None, None]
    neighbours = ranks.exchanges[1].neighbours
    assert neighbours is not None
    neighbours.withdraw()
    with pytest.raises(RankLost, match="gave up while rank 0 wrote to its array"):
        next(programs[0])
    assert (arrays[1] == 2).all()


def test_blocks_of_any_size_give_the_same_bytes() -> None:
    for seed in all_seeds(40):
        draw = random.Random(f"{seed}/shm blocks")
        plan = random_plan(draw, draw.randint(1, 16))
        for dtype, op in itertools.product(Dtype, Op):
            inputs = random_tensors(draw, dtype, plan.size, 50)
            out = np.empty_like(inputs[0])
            reduce_blocks(plan, inputs, dtype, op, [out], block_bytes=8 * draw.randint(1, 20))
            assert out.tobytes() == plan.reduce(inputs, dtype, op).tobytes(), (seed, plan, dtype, op)


def test_a_plan_of_one_rank_changes_no_bit() -> None:
    nan = np.frombuffer(bytes.fromhex("0100c0ff"), np.uint8)
    (result,) = Ranks(ReductionPlan(((0,),))).all_reduce([nan], Dtype.F32, Op.SUM)
    assert result.tobytes() == nan.tobytes()
