"""Schedules as data, what they cost, and what they compute when they are run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core.plan.half_precision import round_once, sums_are_wide, widen
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op
from inaproto_controller.simulate.schedules.parallel import parallel_netreduce, parallel_ring
from inaproto_controller.simulate.schedules.ring import ring
from inaproto_controller.simulate.schedules.schedule import (
    Aggregate,
    Schedule,
    Step,
    Traffic,
    Transfer,
    touched,
)
from inaproto_controller.simulate.schedules.tencent import tencent
from tests.chain_schedule import chain
from tests.schedule_run import RankTensor, run_schedule
from tests.unit.exact_reference import NUMPY
from tests.unit.schedule_orders import block_plans

PAIR = ReductionPlan.flat(2)
RACKS = ReductionPlan(((0, 1, 2), (3, 4)))


def make(*steps: Step, ranks: int = 3, blocks: int = 2, machine_of: tuple[int, ...] = ()) -> Schedule:
    return Schedule(name="test", ranks=ranks, blocks=blocks, transfers=steps, machine_of=machine_of)


def add(src: int, dst: int, block: int = 0, *, wide: bool = False, seals: bool = False) -> Transfer:
    return Transfer(src, dst, block, reduce=True, wide=wide, seals=seals)


def numbers(dtype: Dtype, *values: float) -> NDArray[np.uint8]:
    return np.array(values).astype(NUMPY[dtype]).view(np.uint8)


# ---- schedules ---------------------------------------------------------------------------------------


def test_a_schedule_is_its_steps() -> None:
    schedule = make(add(0, 1), Transfer(1, 0, 1))
    assert schedule.machine_of == (0, 1, 2)
    assert schedule.plan is None
    assert not schedule.exact
    assert Schedule(name="a", ranks=2, blocks=1, transfers=(), plan=PAIR).exact
    assert Transfer(1, 2, 3) == (1, 2, 3, False, False, False)


@pytest.mark.parametrize(
    "step",
    [
        Transfer(-1, 0, 0),
        Transfer(3, 0, 0),
        Transfer(0, -1, 0),
        Transfer(0, 3, 0),
        Transfer(0, 1, -1),
        Transfer(0, 1, 2),
        Transfer(1, 1, 0),
        Transfer(0, 1, 0, wide=True),
        Transfer(0, 1, 0, seals=True),
        Aggregate((0, 3), 0, PAIR),
        Aggregate((-1, 1), 0, PAIR),
        Aggregate((0, 1), 2, PAIR),
        Aggregate((0, 1), -1, PAIR),
    ],
)
def test_impossible_steps(step: Step) -> None:
    with pytest.raises(LocalMisuse) as refusal:
        make(step)
    assert str(refusal.value) == f"schedule test: impossible step {step}"


def test_steps_at_the_edges_are_possible() -> None:
    steps = (
        Transfer(2, 0, 1),
        Transfer(0, 2, 0),
        add(0, 1, wide=True),
        add(0, 1, seals=True),
        Aggregate((2, 0), 1, PAIR),
        Aggregate((0, 2), 0, PAIR),
    )
    assert make(*steps).transfers == steps


def test_aggregate_needs_a_plan_of_its_ranks() -> None:
    for ranks in ((0, 1, 2), (0,), (1, 1)):
        with pytest.raises(LocalMisuse) as refusal:
            Aggregate(ranks, 0, PAIR)
        assert str(refusal.value) == f"ranks {ranks} cannot follow the plan [0, 1]"


def test_what_is_no_schedule() -> None:
    for ranks, blocks, machine_of in ((0, 1, ()), (1, 0, (4,)), (2, 1, (0,)), (2, 1, (0, 0, 0))):
        with pytest.raises(LocalMisuse) as refusal:
            make(ranks=ranks, blocks=blocks, machine_of=machine_of)
        assert str(refusal.value) == f"schedule test: {ranks} ranks, {blocks} blocks, machines {machine_of}"
    with pytest.raises(LocalMisuse) as refusal:
        Schedule(name="test", ranks=3, blocks=1, transfers=(), plan=PAIR)
    assert str(refusal.value) == "schedule test: 3 ranks cannot follow the plan [0, 1]"


@pytest.mark.parametrize(
    ("blocks", "elements", "bounds"),
    [
        (1, 5, ((0, 5),)),
        (2, 5, ((0, 2), (2, 5))),
        (3, 7, ((0, 2), (2, 4), (4, 7))),
        (4, 2, ((0, 0), (0, 1), (1, 1), (1, 2))),
        (2, 0, ((0, 0), (0, 0))),
    ],
)
def test_blocks_are_near_equal(blocks: int, elements: int, bounds: tuple[tuple[int, int], ...]) -> None:
    schedule = make(*(Transfer(0, 1, block) for block in range(blocks)), blocks=blocks)
    assert schedule.block_bounds(elements) == bounds
    sizes = [schedule.bytes_of(step, elements, Dtype.F64) for step in schedule.transfers]
    assert sizes == [8 * (end - first) for first, end in bounds]


def test_ranks_that_a_step_touches() -> None:
    assert list(touched(Transfer(2, 0, 1))) == [2, 0]
    assert list(touched(Aggregate((2, 1, 0), 0, ReductionPlan.flat(3)))) == [2, 1, 0]


def test_who_waits_for_whom() -> None:
    schedule = make(
        add(0, 1),  # 0
        Transfer(0, 1, 1),  # 1: another block
        add(1, 2),  # 2: rank 1 after 0
        add(1, 2),  # 3: both after 2, once
        Transfer(0, 2, 0),  # 4: rank 0 after 0, rank 2 after 3
        Aggregate((2, 1, 0), 0, ReductionPlan.flat(3)),  # 5: rank 2 and 0 after 4, rank 1 after 3
        Transfer(0, 2, 1),  # 6: rank 0 after 1
    )
    assert schedule.predecessors == ((), (), (0,), (2,), (0, 3), (4, 3), (1,))
    assert schedule.queues() == {
        (0, 0): [0, 4, 5],
        (1, 0): [0, 2, 3, 5],
        (0, 1): [1, 6],
        (1, 1): [1],
        (2, 0): [2, 3, 4, 5],
        (2, 1): [6],
    }


def test_traffic_by_place() -> None:
    schedule = make(
        Transfer(0, 1, 0),
        add(1, 2, 1, wide=True),
        Aggregate((0, 2), 1, PAIR),
        Aggregate((1, 2), 0, PAIR),
        machine_of=(5, 5, 7),
    )
    assert [schedule.is_intra(step) for step in schedule.transfers] == [True, False, False, False]
    assert schedule.traffic(5, Dtype.F32) == Traffic(
        sent_intra=(8, 0, 0), sent_inter=(12, 20, 20), received_intra=(0, 8, 0), received_inter=(12, 8, 32)
    )
    assert schedule.bytes_sent_by_rank(5, Dtype.F32) == (20, 20, 20)


def test_only_unrounded_sums_are_wide() -> None:
    schedule = make(add(0, 1, wide=True), add(1, 2), blocks=1)
    for dtype, op in itertools.product(Dtype, Op):
        half_sum = dtype in {Dtype.F16, Dtype.BF16} and op is Op.SUM
        assert sums_are_wide(dtype, op) == half_sum
        size = dtype.itemsize
        assert schedule.bytes_sent_by_rank(3, dtype, op) == (3 * (4 if half_sum else size), 3 * size, 0)
    assert schedule.bytes_sent_by_rank(3, Dtype.F16) == (12, 6, 0)


# ---- the collectives ---------------------------------------------------------------------------------


def test_ring_of_three() -> None:
    schedule = ring(3)
    sums = [add(0, 1, 0), add(1, 2, 1), add(2, 0, 2), add(0, 1, 2), add(1, 2, 0), add(2, 0, 1)]
    assert list(schedule.transfers) == [
        *(step._replace(seals=True) for step in sums),
        *(Transfer(0, 1, 1), Transfer(1, 2, 2), Transfer(2, 0, 0)),
        *(Transfer(0, 1, 0), Transfer(1, 2, 1), Transfer(2, 0, 2)),
    ]
    assert (schedule.name, schedule.ranks, schedule.blocks, schedule.exact) == ("ring", 3, 3, False)
    assert ring(4, machine_of=(0, 0, 1, 1)).machine_of == (0, 0, 1, 1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 12])
def test_ring_traffic(ranks: int) -> None:
    for dtype in (Dtype.F32, Dtype.F16):
        tensor = 48 * dtype.itemsize
        sent = ring(ranks).bytes_sent_by_rank(48, dtype)
        assert sent == (2 * (ranks - 1) * tensor // ranks,) * ranks


def test_chain_of_a_flat_plan() -> None:
    schedule = chain(ReductionPlan((2, 0, 1, 3)), machine_of=(0, 0, 1, 1))
    assert schedule.transfers == (
        add(2, 0),
        add(0, 1, wide=True),
        add(1, 3, wide=True, seals=True),
        Transfer(3, 1, 0),
        Transfer(1, 0, 0),
        Transfer(0, 2, 0),
    )
    assert (schedule.name, schedule.ranks, schedule.blocks) == ("chain", 4, 1)
    assert schedule.plan == ReductionPlan((2, 0, 1, 3))
    assert schedule.machine_of == (0, 0, 1, 1)
    assert schedule.bytes_sent_by_rank(10, Dtype.F32) == (80, 80, 40, 40)
    assert schedule.bytes_sent_by_rank(10, Dtype.F16) == (60, 60, 20, 20)  # two sums of float32
    assert schedule.bytes_sent_by_rank(10, Dtype.F16, Op.MAX) == (40, 40, 20, 20)


def test_chain_of_racks() -> None:
    """Racks work at the same time; between them go rounded sums."""
    schedule = chain(RACKS)
    assert schedule.transfers == (
        add(0, 1),
        add(1, 2, wide=True, seals=True),
        add(3, 4, seals=True),
        add(2, 4, seals=True),
        Transfer(4, 2, 0),
        Transfer(4, 3, 0),
        Transfer(2, 1, 0),
        Transfer(1, 0, 0),
    )
    assert schedule.predecessors[2] == ()
    assert schedule.bytes_sent_by_rank(10, Dtype.F32) == (40, 80, 80, 40, 80)


def test_chain_with_lists_of_one() -> None:
    assert chain(ReductionPlan(((0,), ((1,),)))).transfers == (add(0, 1, seals=True), Transfer(1, 0, 0))
    assert chain(ReductionPlan(((0,),))).transfers == ()


def test_chain_sends_a_tensor_more_than_the_plan_is_deep() -> None:
    binary = ReductionPlan((((0, 1), (2, 3)), ((4, 5), (6, 7))))
    sent = chain(binary).bytes_sent_by_rank(1, Dtype.F32)
    assert sent == (4, 8, 4, 12, 4, 8, 4, 12)
    assert max(sent) <= (binary.depth + 1) * 4


def test_parallel_netreduce_of_two_by_three() -> None:
    seal = {"reduce": True, "seals": True}
    assert parallel_netreduce(2, 3).transfers == (
        *(add(0, 1, 1), add(1, 2, 2), add(2, 0, 0), add(3, 4, 1), add(4, 5, 2), add(5, 3, 0)),
        *(Transfer(0, 2, 2, **seal), Transfer(1, 0, 0, **seal), Transfer(2, 1, 1, **seal)),
        *(Transfer(3, 5, 2, **seal), Transfer(4, 3, 0, **seal), Transfer(5, 4, 1, **seal)),
        *(Aggregate((0, 3), 0, PAIR), Aggregate((1, 4), 1, PAIR), Aggregate((2, 5), 2, PAIR)),
        *(Transfer(0, 1, 0), Transfer(1, 2, 1), Transfer(2, 0, 2)),
        *(Transfer(3, 4, 0), Transfer(4, 5, 1), Transfer(5, 3, 2)),
        *(Transfer(0, 2, 0), Transfer(1, 0, 1), Transfer(2, 1, 2)),
        *(Transfer(3, 5, 0), Transfer(4, 3, 1), Transfer(5, 4, 2)),
    )


def test_parallel_netreduce_is_exact_with_one_or_two_ranks_on_a_machine() -> None:
    over_machines = ReductionPlan((1, (0, 2)))
    one, two, three = (parallel_netreduce(3, count, plan=over_machines) for count in (1, 2, 3))
    assert one.plan == over_machines
    assert two.plan == ReductionPlan(((2, 3), ((0, 1), (4, 5))))
    assert three.plan is None
    assert parallel_netreduce(2, 2).plan == ReductionPlan(((0, 1), (2, 3)))
    assert one.transfers == (Aggregate((0, 1, 2), 0, over_machines),)
    assert two.machine_of == (0, 0, 1, 1, 2, 2)
    assert (two.name, two.ranks, two.blocks) == ("parallel NetReduce", 6, 2)


def test_one_machine_needs_no_network() -> None:
    assert parallel_netreduce(1, 1).transfers == ()
    assert not [step for step in parallel_netreduce(1, 3).transfers if isinstance(step, Aggregate)]


def test_parallel_ring_of_two_by_two() -> None:
    schedule = parallel_ring(2, 2)
    seal = {"reduce": True, "seals": True}
    assert schedule.transfers[:8] == tuple(
        Transfer(src, dst, block, **seal)
        for src, dst, part in ((0, 1, (2, 3)), (1, 0, (0, 1)), (2, 3, (2, 3)), (3, 2, (0, 1)))
        for block in part
    )
    assert schedule.transfers[8:12] == (
        *(Transfer(0, 2, 0, **seal), Transfer(2, 0, 1, **seal)),
        *(Transfer(0, 2, 1), Transfer(2, 0, 0)),
    )
    assert schedule.transfers[12:16] == (
        *(Transfer(1, 3, 2, **seal), Transfer(3, 1, 3, **seal)),
        *(Transfer(1, 3, 3), Transfer(3, 1, 2)),
    )
    assert schedule.transfers[16:] == tuple(
        Transfer(src, dst, block)
        for src, dst, part in ((0, 1, (0, 1)), (1, 0, (2, 3)), (2, 3, (0, 1)), (3, 2, (2, 3)))
        for block in part
    )
    assert (schedule.name, schedule.ranks, schedule.blocks) == ("parallel ring", 4, 4)
    assert schedule.machine_of == (0, 0, 1, 1)
    assert not schedule.exact


def test_tencent_within_a_machine_of_four() -> None:
    schedule = tencent(1, 4)
    seal = {"reduce": True, "seals": True}
    assert schedule.transfers == (
        # halving: pairs 0-1 and 2-3, then 0-2 and 1-3
        *(Transfer(0, 1, 2, **seal), Transfer(0, 1, 3, **seal), Transfer(1, 0, 0, **seal)),
        *(Transfer(1, 0, 1, **seal), Transfer(2, 3, 2, **seal), Transfer(2, 3, 3, **seal)),
        *(Transfer(3, 2, 0, **seal), Transfer(3, 2, 1, **seal)),
        *(Transfer(0, 2, 1, **seal), Transfer(1, 3, 3, **seal)),
        *(Transfer(2, 0, 0, **seal), Transfer(3, 1, 2, **seal)),
        # gather
        *(Transfer(2, 0, 1), Transfer(3, 1, 3), Transfer(1, 0, 2), Transfer(1, 0, 3)),
        # scatter
        *(Transfer(0, 1, 2), Transfer(0, 1, 3), Transfer(0, 2, 1), Transfer(1, 3, 3)),
        # around: 0 has block 0, 1 has 2, 2 has 1, 3 has 3
        *(Transfer(0, 1, 0), Transfer(1, 2, 2), Transfer(2, 3, 1), Transfer(3, 0, 3)),
        *(Transfer(0, 1, 3), Transfer(1, 2, 0), Transfer(2, 3, 2), Transfer(3, 0, 1)),
        *(Transfer(0, 1, 1), Transfer(1, 2, 3), Transfer(2, 3, 0), Transfer(3, 0, 2)),
    )
    assert (schedule.name, schedule.ranks, schedule.blocks) == ("Tencent all-reduce", 4, 4)
    assert not schedule.exact


def test_tencent_blocks_suit_both_stages() -> None:
    for machines, per_machine, blocks in ((3, 4, 12), (4, 2, 4), (2, 8, 8), (6, 4, 12), (5, 1, 5)):
        schedule = tencent(machines, per_machine)
        assert schedule.blocks == blocks
        assert schedule.machine_of == tuple(rank // per_machine for rank in range(machines * per_machine))
    masters = {
        (step.src, step.dst)
        for step in tencent(3, 4).transfers
        if isinstance(step, Transfer) and step.src // 4 != step.dst // 4
    }
    assert masters == {(0, 4), (4, 8), (8, 0)}


@pytest.mark.parametrize(("machines", "per_machine"), [(2, 4), (4, 2), (3, 8), (1, 4), (3, 1)])
def test_tencent_traffic(machines: int, per_machine: int) -> None:
    """Appendix A's M parts: 2(n-1)/n for the reduce, 2(m-1)/m for the ring, 2(n-1)/n for the broadcast."""
    elements = 24 * 8
    share = elements * 4 * (per_machine - 1) // per_machine
    traffic = tencent(machines, per_machine).traffic(elements, Dtype.F32)
    masters = range(0, machines * per_machine, per_machine)
    for rank in range(machines * per_machine):
        ring_bytes = 2 * (machines - 1) * elements * 4 // machines if rank in masters else 0
        assert traffic.sent_inter[rank] == ring_bytes
        assert traffic.received_inter[rank] == ring_bytes
    for master in masters:
        assert traffic.sent_intra[master] == 3 * share  # reduce-scatter; scatter, all-gather
        assert traffic.received_intra[master] == 3 * share  # reduce-scatter, gather; all-gather


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tencent(2, 3), "2 machines of 3 ranks: halving needs ranks that are a power of two"),
        (lambda: tencent(2, 0), "2 machines of 0 ranks: halving needs ranks that are a power of two"),
        (lambda: tencent(0, 2), "0 machines of 2 ranks: halving needs ranks that are a power of two"),
        (lambda: parallel_netreduce(0, 2), "0 machines of 2 ranks are no job"),
        (lambda: parallel_netreduce(2, 0), "2 machines of 0 ranks are no job"),
        (lambda: parallel_ring(0, 2), "0 machines of 2 ranks are no job"),
        (lambda: parallel_netreduce(3, 2, plan=PAIR), "3 machines cannot follow the plan [0, 1]"),
    ],
)
def test_what_is_no_job(build: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(LocalMisuse) as refusal:
        build()
    assert str(refusal.value) == message


# ---- running them ------------------------------------------------------------------------------------

ALL = [
    *(ring(1), ring(2), ring(5), ring(6, machine_of=(0, 0, 0, 1, 1, 1))),
    *(chain(ReductionPlan.flat(5)), chain(RACKS), chain(ReductionPlan(((0, (1, 2)), (3,), 4)))),
    *(parallel_netreduce(1, 2), parallel_netreduce(3, 1), parallel_netreduce(3, 2)),
    *(parallel_netreduce(2, 4), parallel_netreduce(3, 3, plan=ReductionPlan(((2, 0), 1)))),
    *(parallel_ring(3, 2), parallel_ring(2, 3)),
    *(tencent(1, 4), tencent(2, 2), tencent(3, 4), tencent(3, 1), tencent(1, 1)),
]


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: f"{schedule.name}-{schedule.ranks}")
def test_every_rank_gets_the_sum_in_the_order_of_the_schedule(schedule: Schedule) -> None:
    plans = block_plans(schedule)
    elements = 2 * schedule.blocks + 1
    generator = np.random.default_rng(schedule.ranks)
    for dtype, op in itertools.product(Dtype, Op):
        bits = generator.integers(0, 256, (schedule.ranks, elements * dtype.itemsize), np.uint8)
        pick = random.Random(f"{dtype}/{op}").randrange
        results = run_schedule(schedule, list(bits), dtype, op, segment_bytes=dtype.itemsize, choose=pick)
        assert len({result.tobytes() for result in results}) == 1
        if schedule.ranks == 1:
            continue
        for plan, bounds in zip(plans, schedule.block_bounds(elements), strict=True):
            part = slice(bounds[0] * dtype.itemsize, bounds[1] * dtype.itemsize)
            inputs = list(bits[:, part])
            assert results[0][part].tobytes() == plan.reduce(inputs, dtype, op).tobytes()
            if schedule.plan is not None:
                assert results[0][part].tobytes() == schedule.plan.reduce(inputs, dtype, op).tobytes()


def test_tencent_adds_up_a_machine_in_one_order() -> None:
    """Up to the order of two operands, on which no bit depends: only the ring of masters is not exact."""

    def unordered(node: object) -> object:
        return frozenset(map(unordered, node)) if isinstance(node, tuple) else node

    orders = {unordered(plan.children) for plan in block_plans(tencent(1, 8))}
    assert orders == {unordered((((0, 1), (2, 3)), ((4, 5), (6, 7))))}


def test_inputs_are_left_alone() -> None:
    inputs = [numbers(Dtype.I32, 1, 2), numbers(Dtype.I32, 10, 20)]
    results = run_schedule(ring(2), inputs, Dtype.I32, Op.SUM, segment_bytes=64)
    assert [result.view(np.int32).tolist() for result in results] == [[11, 22], [11, 22]]
    assert inputs[0].view(np.int32).tolist() == [1, 2]
    assert not np.shares_memory(results[0], inputs[0])


def test_segments_run_by_themselves() -> None:
    """Two steps on 5 elements, in segments of 2, 2 and 1: what is ready is chosen from."""
    offered: list[int] = []

    def first(ready: int) -> int:
        offered.append(ready)
        return 0

    inputs = [numbers(Dtype.I32, *range(5))] * 2
    schedule = chain(PAIR)
    results = run_schedule(schedule, inputs, Dtype.I32, Op.SUM, segment_bytes=11, choose=first)
    assert results[0].view(np.int32).tolist() == [0, 2, 4, 6, 8]
    assert offered == [3, 3, 3, 2, 1, 1]
    offered.clear()
    run_schedule(schedule, inputs, Dtype.I32, Op.SUM, segment_bytes=4, choose=first)
    assert offered == [5, 5, 5, 4, 3, 3, 3, 2, 1, 1]


def test_the_last_segment_may_come_first() -> None:
    offered: list[int] = []

    def last(ready: int) -> int:
        offered.append(ready)
        return ready - 1

    inputs = [numbers(Dtype.I64, 1, 2, 3)] * 2
    results = run_schedule(chain(PAIR), inputs, Dtype.I64, Op.SUM, segment_bytes=8, choose=last)
    assert results[1].view(np.int64).tolist() == [2, 4, 6]
    assert offered == [3, 3, 2, 2, 1, 1]


def test_runs_that_cannot_be() -> None:
    good = numbers(Dtype.F32, 1)
    message = "schedule ring needs 2 inputs of one length"
    for inputs in ([good], [good] * 3, [good, numbers(Dtype.F32, 1, 2)]):
        with pytest.raises(LocalMisuse) as refusal:
            run_schedule(ring(2), inputs, Dtype.F32, Op.SUM, segment_bytes=4)
        assert str(refusal.value) == message
    with pytest.raises(LocalMisuse) as refusal:
        run_schedule(ring(2), [good, good], Dtype.F32, Op.SUM, segment_bytes=3)
    assert str(refusal.value) == "segments of 3 bytes hold no element of 4"


def test_a_sum_that_is_never_sealed() -> None:
    schedule = make(add(0, 1), ranks=2, blocks=1)
    inputs = [numbers(Dtype.F16, 1, 2, 3)] * 2
    with pytest.raises(LocalMisuse) as refusal:
        run_schedule(schedule, inputs, Dtype.F16, Op.SUM, segment_bytes=4)
    assert str(refusal.value) == "sums of elements [(0, 2), (2, 3)] were never sealed"
    results = run_schedule(schedule, inputs, Dtype.F16, Op.MAX, segment_bytes=4)
    assert results[1].view(np.float16).tolist() == [1, 2, 3]


def test_an_open_sum_is_rounded_on_its_way_unless_it_is_wide() -> None:
    """2048 + 1 is 2049 in float32, and 2048 in float16."""
    tensor = RankTensor(numbers(Dtype.F16, 1, 5), Dtype.F16, Op.SUM)
    here = (0, 1)
    assert tensor.outgoing(here, wide=True).view(np.float32).tolist() == [1]
    tensor.absorb(here, numbers(Dtype.F16, 2048))
    assert tensor.outgoing(here, wide=True).view(np.float32).tolist() == [2049]
    assert tensor.outgoing(here).view(np.float16).tolist() == [2048]
    tensor.absorb(here, np.array([2], np.float32).view(np.uint8), wide=True)
    assert tensor.outgoing(here, wide=True).view(np.float32).tolist() == [2051]
    tensor.absorb(here, numbers(Dtype.F16, 0), seals=True)
    assert tensor.outgoing(here, wide=True).view(np.float32).tolist() == [2052]
    assert tensor.result().view(np.float16).tolist() == [2052, 5]
    tensor.absorb(here, numbers(Dtype.F16, 1))
    tensor.replace(here, numbers(Dtype.F16, 7))
    assert tensor.result().view(np.float16).tolist() == [7, 5]


def test_what_is_sent_is_a_copy() -> None:
    for dtype in (Dtype.F32, Dtype.F16):
        tensor = RankTensor(numbers(dtype, 1, 2), dtype, Op.SUM)
        for wide in (False, True):
            sent = tensor.outgoing((0, 2), wide=wide)
            sent[:] = 0xFF
        if dtype is Dtype.F16:
            tensor.absorb((0, 1), numbers(dtype, 1))
            tensor.outgoing((0, 1), wide=True)[:] = 0xFF
            tensor.absorb((0, 1), numbers(dtype, 0), seals=True)
        expected = [2, 2] if dtype is Dtype.F16 else [1, 2]
        assert tensor.result().view(NUMPY[dtype]).tolist() == expected


def test_a_misfit_leaves_the_value_untouched() -> None:
    for dtype in (Dtype.F32, Dtype.F16):
        tensor = RankTensor(numbers(dtype, 1, 2), dtype, Op.SUM)
        tensor.absorb((0, 2), numbers(dtype, 1, 1))
        with pytest.raises(LocalMisuse):
            tensor.absorb((0, 2), numbers(dtype, 1), seals=True)
        assert tensor.outgoing((0, 2)).view(NUMPY[dtype]).tolist() == [2, 3]


@pytest.mark.parametrize("dtype", [Dtype.F16, Dtype.BF16])
def test_every_half_survives_widening(dtype: Dtype) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = widen(dtype, every.view(np.uint8))
    with np.errstate(all="ignore"):
        expected = every.view(NUMPY[dtype]).astype(np.float32)
    is_nan = np.isnan(expected)
    assert np.array_equal(wide.view(np.uint32)[~is_nan], expected.view(np.uint32)[~is_nan])
    assert np.array_equal(np.isnan(wide.view(np.float32)), is_nan)
    back = round_once(dtype, wide).view(np.uint16)
    assert np.array_equal(back[~is_nan], every[~is_nan])
    assert set(back[is_nan].tolist()) == {0x7E00 if dtype is Dtype.F16 else 0x7FC0}


@pytest.mark.parametrize("dtype", [Dtype.F16, Dtype.BF16])
def test_rounding_is_to_nearest_even(dtype: Dtype) -> None:
    """Against numpy's and ml_dtypes' casts, around every half and every point between two."""
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = widen(dtype, every.view(np.uint8)).view(np.uint32)
    half = 0x1000 if dtype is Dtype.F16 else 0x8000
    near = np.concatenate([wide + np.uint32(half + step) for step in (-1, 0, 1)])
    near = near[~np.isnan(near.view(np.float32))]
    before = near.copy()
    rounded = round_once(dtype, near.view(np.uint8)).view(np.uint16)
    with np.errstate(all="ignore"):
        expected = near.view(np.float32).astype(NUMPY[dtype]).view(np.uint16)
    assert np.array_equal(rounded, expected)
    assert np.array_equal(near, before)
