"""Ranks with two rings: whatever path each operation is bound to, every rank has the plan's bytes."""

from __future__ import annotations

import random
from collections import Counter

from inaproto.core.host.engines.two_paths import Binding, Wait
from inaproto.core.host.operations import BASE, INA, BoundPath
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.units import Epoch, Instant
from inaproto.wire.ina_header import Dtype, Op
from tests.property.test_recovery import PART, Bytes, draw_bytes, draw_lists
from tests.unit.two_paths_job import TwoPathsJob

LATER = Instant(1 << 62)


class Bindings:
    """What the ranks have agreed on: of each operation a path and an epoch, if it has been decided by now.

    ``stray`` operations are bound to a path by each rank for itself.
    """

    def __init__(self, draw: random.Random, operations: int, *, stray: float = 0.0) -> None:
        self.draw = draw
        self.paths: list[BoundPath] = [draw.choice([BASE, INA]) for _ in range(operations)]
        self.epochs = [Epoch(1 + index // 3) for index in range(operations)]
        self.known = operations if draw.random() < 0.5 else 0
        self.stray = [draw.random() < stray for _ in range(operations)]
        self.waited = 0

    def settle(self, last: int) -> None:
        """A new tree is for operations after ``last``: some rank has started that one without a tree."""
        for op_index in range(last + 1):
            self.paths[op_index], self.stray[op_index] = BASE, False

    def __call__(self, rank: int, op_index: int) -> Binding | Wait:
        if op_index >= self.known:
            self.waited += 1
            return Wait(LATER)
        path = self.draw.choice([BASE, INA]) if self.stray[op_index] else self.paths[op_index]
        return Binding(path, self.epochs[op_index])


Work = list[tuple[Dtype, Op, list[Bytes]]]


def draw_work(draw: random.Random, size: int, operations: int) -> Work:
    work = []
    for _ in range(operations):
        dtype, op = draw.choice(list(Dtype)), draw.choice(list(Op))
        elements = draw.choice([0, 1, 27, PART // dtype.itemsize, draw.randrange(4 * PART // dtype.itemsize)])
        work.append((dtype, op, [draw_bytes(draw, elements * dtype.itemsize, dtype) for _ in range(size)]))
    return work


def run(draw: random.Random, job: TwoPathsJob, bindings: Bindings, work: Work, *, ends: int) -> Counter[str]:
    """Submit, decide, migrate and end generations at any time; what happened, counted."""
    counts: Counter[str] = Counter()
    to_submit = [[rank, 0] for rank in range(job.size)]
    while True:
        if ends and not job.is_ending and draw.random() < 0.05:
            ends -= 1
            counts["ended"] += 1
            job.end_generation()
        elif job.may_migrate and draw.random() < 0.1:
            counts["migrated"] += 1
            if job.has_tree:
                job.lose_tree()
            else:
                job.gain_tree()
                bindings.settle(max(max(member.bound, default=-1) for member in job.members))
        events = job.events()
        ready = [turn for turn in to_submit if turn[1] < len(work)]
        if draw.random() < 0.1 or not (events or ready):
            if bindings.known < len(work):
                bindings.known += 1
                for rank in range(job.size):
                    job.wake(rank)
                continue
            if not (events or ready):
                if all(len(member.done) == len(work) for member in job.members):
                    return counts
                counts["rescued"] += 1  # nothing happens any more: ranks disagree
                job.end_generation()
                continue
        pick = draw.randrange(len(events) + len(ready)) if events or ready else -1
        if 0 <= pick < len(events):
            events[pick]()
        elif pick >= 0:
            turn = ready[pick - len(events)]
            dtype, op, inputs = work[turn[1]]
            job.submit(turn[0], turn[1], inputs[turn[0]], dtype, op)
            turn[1] += 1


def check(job: TwoPathsJob, work: Work) -> None:
    for index, (dtype, op, inputs) in enumerate(work):
        expected = job.plan.reduce(inputs, dtype, op).tobytes()
        for rank, member in enumerate(job.members):
            assert member.tensors[index].tobytes() == expected, (
                f"rank {rank}, operation {index}, {dtype}, {op}, {member.bound[index]}"
            )
    for member in job.members:
        assert member.faults == []
        assert member.done == list(range(len(work)))


def run_worlds(purpose: str, *, worlds: int, ends: int = 0, stray: float = 0.0) -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in range(worlds):
        draw = random.Random(f"{seed}/two paths/{purpose}")
        size, operations = draw.randint(2, 5), draw.randint(2, 8)
        work = draw_work(draw, size, operations)
        bindings = Bindings(draw, operations, stray=stray)
        plan = ReductionPlan(draw_lists(draw, list(range(size))))
        job = TwoPathsJob(plan, bindings, window=draw.choice([1, 2, 4]))
        total += run(draw, job, bindings, work, ends=draw.randint(0, ends))
        check(job, work)
        total["waited"] += bindings.waited
        for member in job.members:
            total.update(member.bound.values())
            total["drained"] += len(member.drained)
        for progress in job.progress:
            total["apart"] += min(progress) < max(progress)
    return total


def test_each_operation_goes_by_the_path_that_it_is_bound_to_and_gives_the_plan_s_bytes() -> None:
    total = run_worlds("agreed", worlds=150)
    assert total[INA] > 300
    assert total[BASE] > 300
    assert total["migrated"] > 100
    assert total["waited"] > 100
    assert total["drained"] == total[INA], "an operation on the INA ring was never drained"
    assert total["rescued"] == 0


def test_generations_may_end_at_any_moment_whatever_path_an_operation_is_on() -> None:
    total = run_worlds("ended", worlds=250, ends=5)
    assert total[INA] > 300
    assert total[BASE] > 300
    assert total["ended"] > 300
    assert total["apart"] > 50, "ranks were hardly ever apart"
    assert total["rescued"] == 0, "ranks went on by different paths, though they had agreed"


def test_ranks_that_disagree_on_an_operation_go_on_by_the_base_ring() -> None:
    total = run_worlds("disagreed", worlds=150, ends=2, stray=0.3)
    assert total["rescued"] > 50
