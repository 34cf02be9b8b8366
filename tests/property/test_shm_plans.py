"""Random plans over shared memory: any order of the ranks, any cut, the bytes of the plan and of a chain."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.client.stage import exchange
from inaproto.client.stage.exchange import Kind, reduce_blocks
from inaproto.client.stage.waits import Wait
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.wire.ina_header import Dtype, Op
from tests.chain_schedule import chain
from tests.property.shm_ranks import Ranks, in_any_order
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


@pytest.fixture(params=[False, True], ids=["copied", "read"])
def reads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether ranks read the arrays of others where they are: those that are not tiny, some lines at once."""
    monkeypatch.setattr(exchange, "READ_BYTES_MIN", 64)
    monkeypatch.setattr(exchange, "READ_AT_ONCE_BYTES", 1024)
    monkeypatch.setattr(exchange, "TURN_BYTES", 300)
    return bool(request.param)


@pytest.mark.parametrize("part", range(4))
def test_shared_memory_and_plan_and_chain_agree(part: int, reads: bool) -> None:
    """200 plans of 1 to 16 ranks; calls of all kinds follow each other, and ranks run ahead."""
    for seed in all_seeds(200)[part::4]:
        draw = random.Random(f"{seed}/shm plans")
        plan = random_plan(draw, draw.randint(1, 16))
        ranks = Ranks(plan, lines=draw.choice((1, 1, 2, 5)), choose=in_any_order(draw), reads=reads)
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


def test_calls_follow_each_other_without_a_barrier_between(reads: bool) -> None:
    """A rank that has its result begins with the next call, of any kind, while others are not through."""
    for seed in all_seeds(60):
        draw = random.Random(f"{seed}/shm programs")
        plan = random_plan(draw, draw.randint(2, 6))
        ranks = Ranks(plan, choose=in_any_order(draw), reads=reads)
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
def test_results_may_take_the_place_of_inputs(reads: bool, dtype: Dtype, op: Op) -> None:
    for seed in all_seeds(40):
        draw = random.Random(f"{seed}/shm in place")
        plan = random_plan(draw, draw.randint(1, 8))
        ranks = Ranks(plan, choose=in_any_order(draw), reads=reads)
        elements = draw.choice(LENGTHS)
        inputs = random_tensors(draw, dtype, plan.size, elements)
        expected = plan.reduce(inputs, dtype, op).tobytes()
        call = ranks.call(Kind.ALL_REDUCE, elements, dtype, op)
        ranks.run([each.all_reduce(call, inputs[each.rank], inputs[each.rank]) for each in ranks.exchanges])
        assert {values.tobytes() for values in inputs} == {expected}


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
