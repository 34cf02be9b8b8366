"""NetReduce section 3.4: parallel NetReduce (PN) uses every rank of a machine, Tencent all-reduce (TA) one.

Bytes are counted on the schedules that also run. What they cost in seconds is the cost model's affair.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from inaproto.wire.ina_header import Dtype, Op
from inaproto_controller.simulate.schedules.parallel import parallel_netreduce, parallel_ring
from inaproto_controller.simulate.schedules.ring import ring
from inaproto_controller.simulate.schedules.schedule import Aggregate, Schedule, Transfer
from inaproto_controller.simulate.schedules.tencent import tencent
from tests.schedule_run import run_schedule

SHAPES = [(2, 2), (3, 2), (4, 8), (3, 3), (6, 4)]
"""Machines, and ranks (GPUs) on each."""
ELEMENTS = 2 * 2 * 2 * 2 * 2 * 3 * 3


def network_sums(schedule: Schedule) -> list[Aggregate]:
    return [step for step in schedule.transfers if isinstance(step, Aggregate)]


def of_tensor(counts: tuple[int, ...]) -> set[Fraction]:
    return {Fraction(count, ELEMENTS * 4) for count in counts}


@pytest.mark.parametrize(("machines", "per_machine"), SHAPES)
def test_the_ith_rank_of_each_machine_is_in_the_ith_ring(machines: int, per_machine: int) -> None:
    sums = network_sums(parallel_netreduce(machines, per_machine))
    assert [step.ranks for step in sums] == [
        tuple(machine * per_machine + local for machine in range(machines)) for local in range(per_machine)
    ]


@pytest.mark.parametrize(("machines", "per_machine"), SHAPES)
def test_each_ring_carries_one_nth_of_the_tensor(machines: int, per_machine: int) -> None:
    schedule = parallel_netreduce(machines, per_machine)
    sums = network_sums(schedule)
    assert [step.block for step in sums] == list(range(per_machine))
    share = ELEMENTS * 4 // per_machine
    assert {schedule.bytes_of(step, ELEMENTS, Dtype.F32) for step in sums} == {share}
    traffic = schedule.traffic(ELEMENTS, Dtype.F32)
    assert of_tensor(traffic.sent_inter) == {Fraction(1, per_machine)}
    assert of_tensor(traffic.received_inter) == {Fraction(1, per_machine)}


@pytest.mark.parametrize(("machines", "per_machine"), SHAPES)
def test_reduce_scatter_fetches_the_ith_piece_from_all_others(machines: int, per_machine: int) -> None:
    """n - 1 fetches of 1/n at each rank, and as many in the all-gather: appendix A's stages 1 and 3."""
    schedule = parallel_netreduce(machines, per_machine)
    for rank in range(machines * per_machine):
        machine, local = divmod(rank, per_machine)
        others = [machine * per_machine + other for other in range(per_machine) if other != local]
        fetched = [step for step in schedule.transfers if isinstance(step, Transfer) and step.dst == rank]
        assert sorted(step.src for step in fetched if step.reduce) == others
        assert {step.block for step in fetched if step.reduce} == {local}
        copies = {step.src: step.block for step in fetched if not step.reduce}
        assert copies == {other: other % per_machine for other in others}
        assert len(fetched) == 2 * (per_machine - 1)
    stage = Fraction(per_machine - 1, per_machine)
    assert of_tensor(schedule.traffic(ELEMENTS, Dtype.F32).sent_intra) == {2 * stage}
    assert of_tensor(schedule.traffic(ELEMENTS, Dtype.F32).received_intra) == {2 * stage}


@pytest.mark.parametrize(("machines", "per_machine"), SHAPES)
def test_stages_follow_each_other_at_each_rank(machines: int, per_machine: int) -> None:
    """A part goes to the network when its machine's sum is complete, and to the machine when it is back."""
    schedule = parallel_netreduce(machines, per_machine)
    for rank in range(machines * per_machine):
        local = rank % per_machine
        steps = [schedule.transfers[index] for index in schedule.queues()[rank, local]]
        kinds = ["sum" if isinstance(step, Aggregate) else "add" if step.reduce else "copy" for step in steps]
        assert kinds == ["add"] * (per_machine - 1) + ["sum"] + ["copy"] * (per_machine - 1)


def test_one_rank_on_each_machine_is_netreduce_itself() -> None:
    (step,) = parallel_netreduce(6, 1).transfers
    assert isinstance(step, Aggregate)
    assert step.ranks == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(("machines", "per_machine"), [(2, 2), (4, 8), (6, 4)])
def test_masters_of_tencent_all_reduce_work_more_than_the_others(machines: int, per_machine: int) -> None:
    """All inter-machine traffic is theirs, n times that of any rank in PR; PN's is the same for all ranks."""
    masters = tencent(machines, per_machine).traffic(ELEMENTS, Dtype.F32)
    ring_share = Fraction(2 * (machines - 1), machines)
    for rank, sent in enumerate(masters.sent_inter):
        expected = 0 if rank % per_machine else ring_share
        assert Fraction(sent, ELEMENTS * 4) == expected
    parallel = parallel_ring(machines, per_machine).traffic(ELEMENTS, Dtype.F32)
    assert of_tensor(parallel.sent_inter) == {ring_share / per_machine}


@pytest.mark.parametrize(("machines", "per_machine"), [(3, 2), (4, 8), (6, 4)])
def test_pn_sends_less_between_machines_than_pr(machines: int, per_machine: int) -> None:
    """By in-network aggregation: 1/n against 2(m-1)/m of 1/n; they are equal at two machines."""
    netreduce = sum(parallel_netreduce(machines, per_machine).traffic(ELEMENTS, Dtype.F32).sent_inter)
    rings = sum(parallel_ring(machines, per_machine).traffic(ELEMENTS, Dtype.F32).sent_inter)
    assert Fraction(rings, netreduce) == Fraction(2 * (machines - 1), machines)
    assert rings > netreduce


def test_a_flat_ring_ignores_machines() -> None:
    """Every hop carries the same, within machines and between them."""
    schedule = ring(8, machine_of=(0, 0, 0, 0, 1, 1, 1, 1))
    traffic = schedule.traffic(ELEMENTS, Dtype.F32)
    hop = Fraction(2 * 7, 8)
    assert [Fraction(sent, ELEMENTS * 4) for sent in traffic.sent_inter] == [0, 0, 0, hop, 0, 0, 0, hop]
    assert [Fraction(sent, ELEMENTS * 4) for sent in traffic.sent_intra] == [hop, hop, hop, 0] * 2


@pytest.mark.parametrize("build", [parallel_netreduce, parallel_ring, tencent])
def test_every_rank_ends_with_the_sum(build: Callable[[int, int], Schedule]) -> None:
    for machines, per_machine in ((2, 2), (3, 4)):
        ranks = machines * per_machine
        inputs = [np.arange(37, dtype=np.int32) * (rank + 1) for rank in range(ranks)]
        schedule = build(machines, per_machine)
        results = run_schedule(
            schedule, [values.view(np.uint8) for values in inputs], Dtype.I32, Op.SUM, segment_bytes=16
        )
        expected = np.arange(37, dtype=np.int32) * (ranks * (ranks + 1) // 2)
        assert len(results) == ranks
        assert all(np.array_equal(result.view(np.int32), expected) for result in results)
