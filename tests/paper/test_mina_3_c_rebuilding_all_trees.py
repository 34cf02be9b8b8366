"""MINA, section III-C: trees that are all built anew, as the paper's evaluation does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from inaproto.errors import ConfigError
from inaproto_controller.cluster.model import CLUSTER, measured
from inaproto_controller.cluster.network import FatTreeNetwork
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.trees.builder import Changes, TreeJob
from inaproto_controller.planning.trees.candidates import CandidateDraws
from inaproto_controller.planning.trees.rebuild_all import RebuildAll, add_to_groups

TIMES = StepTimes(measured("opt-125m-4"), CLUSTER, hosts=2)


def entered(network: FatTreeNetwork, draw: random.Random, count: int) -> list[TreeJob]:
    """Jobs of 1 to 8 hosts, anywhere."""
    order = draw.sample(range(network.hosts), network.hosts)
    jobs = []
    for slot in range(count):
        hosts = [order.pop() for _ in range(min(draw.randint(1, 8), len(order) - count + slot + 1))]
        jobs.append(TreeJob(slot, slot, len(hosts), TIMES, network.enter(slot, hosts), steps_left=10))
    return jobs


def after(jobs: Sequence[TreeJob], changes: Changes) -> list[TreeJob]:
    return [replace(job, tree=changes.get(job.slot, job.tree)) for job in jobs]


def conflicting(network: FatTreeNetwork, jobs: Sequence[TreeJob]) -> int:
    """Pairs of jobs whose trees do."""
    having = [(job.slot, job.tree) for job in jobs if job.tree is not None]
    slots, roots = (np.array(column, np.int64) for column in zip(*having, strict=True))
    return int(network.conflicts(slots, roots).sum()) // 2


@pytest.mark.parametrize("quota", Quota)
def test_jobs_of_the_set_have_trees_without_conflict_and_others_keep_theirs(quota: Quota) -> None:
    kept = without = 0
    for seed in range(10):
        network = FatTreeNetwork(FatTree.of_degree(8), quota)
        jobs = entered(network, random.Random(f"rebuild {quota} {seed}"), 20)
        builder = RebuildAll(network, seed=seed)
        assert not builder.wants_completions
        assert builder.build(jobs, [], now=0.0, completed=True) == {}
        first = builder.build(jobs[:12], range(12), now=0.0, completed=False)
        running = after(jobs[:12], first)
        assert conflicting(network, running) == 0
        second = builder.build([*running, *jobs[12:]], range(12, 20), now=1.0, completed=False)
        assert set(second) - set(first)
        for job in running:
            assert second.get(job.slot, -1) != job.tree  # only changes are named
        both = after([*running, *jobs[12:]], second)
        kept += conflicting(network, both)
        for job in both:
            if job.tree is None:
                assert job.slot not in first  # nobody's tree is taken
                without += 1
    assert kept > 0  # some keep an old tree that is in others' way
    assert without > 0


def test_candidates_are_drawn_anew_each_time_from_one_stream() -> None:
    network = FatTreeNetwork(FatTree.of_degree(16), Quota.LINK)
    jobs = entered(network, random.Random("anew"), 60)
    one, other, different = (RebuildAll(network, seed=seed) for seed in (7, 7, 8))
    answers = [
        [builder.build(jobs, range(60), now=0.0, completed=False) for _ in range(3)]
        for builder in (one, other, different)
    ]
    assert answers[0] == answers[1] != answers[2]
    assert answers[0][0] != answers[0][1]


def test_k_candidates_are_drawn_each_as_likely_and_in_order() -> None:
    jobs = [TreeJob(4, 0, 1, TIMES, 1), TreeJob(2, 1, 9, TIMES, 12), TreeJob(9, 2, 9, TIMES, 3)]
    draws, seen = CandidateDraws(3, "likely"), Counter[int]()
    for _ in range(4000):
        found = draws.draw(jobs)
        assert found.jobs.tolist() == [0, 1, 1, 1, 2, 2, 2]
        assert found.slots.tolist() == [4, 2, 2, 2, 9, 9, 9]
        assert found.roots[[0, 4, 5, 6]].tolist() == [0, 0, 1, 2]
        some = found.roots[1:4].tolist()
        assert some == sorted(set(some))
        seen.update(some)
    assert set(seen) == set(range(12))
    assert max(abs(count - 1000) for count in seen.values()) < 130  # 4.7 standard deviations
    assert draws.draw([]).roots.size == 0
    with pytest.raises(ConfigError, match="at least one"):
        CandidateDraws(0, 1)


@pytest.mark.parametrize("quota", Quota)
def test_additions_as_printed_make_sharing_groups_that_are_stars(quota: Quota) -> None:
    added = 0
    for seed in range(20):
        network = FatTreeNetwork(FatTree.of_degree(8), quota)
        jobs = entered(network, random.Random(f"additions {quota} {seed}"), 22)
        without = RebuildAll(network, seed=seed).build(jobs, range(22), now=0.0, completed=False)
        having = RebuildAll(network, seed=seed, additions=True).build(
            jobs, range(22), now=0.0, completed=False
        )
        assert without.items() <= having.items()
        more = sorted(set(having) - set(without))
        added += len(more)
        for slot in more:
            root = having[slot]
            assert root is not None
            middles = [
                one
                for one, its in without.items()
                if its is not None and excludes(network, (slot, root), (one, its))
            ]
            assert len(middles) == 1
    assert added > 20


def excludes(network: FatTreeNetwork, one: tuple[int, int], other: tuple[int, int]) -> bool:
    slots, roots = (np.array([number], np.int64) for number in other)
    return bool(network.conflicts_with(*one, slots, roots)[0])


def test_the_job_with_most_hosts_is_added_first_then_the_lowest_candidate() -> None:
    """Candidate 0 is chosen; 1 and 2 (one job), 3, 4 and 5 conflict with it, 3 and 4 also with each other."""
    jobs = [TreeJob(slot, slot, hosts, TIMES, 9) for slot, hosts in enumerate((2, 4, 3, 8, 4))]
    numbers = CandidateDraws(1, 0).draw(jobs)._replace(jobs=np.array([0, 1, 1, 2, 3, 4]), roots=np.arange(6))
    conflicts = np.zeros((6, 6), np.bool_)
    for one, other in ((0, 1), (0, 2), (1, 2), (0, 3), (0, 4), (3, 4), (0, 5), (5, 1)):
        conflicts[one, other] = conflicts[other, one] = True
    chosen = np.array([True, *[False] * 5])
    added = add_to_groups(jobs, numbers, conflicts, chosen)
    assert np.flatnonzero(added).tolist() == [1, 4]
    # A candidate that conflicts with two that are chosen is in no group.
    conflicts[4, 5] = conflicts[5, 4] = True
    chosen[5] = True
    conflicts[0, 5] = conflicts[5, 0] = False
    assert np.flatnonzero(add_to_groups(jobs, numbers, conflicts, chosen)).tolist() == [2, 3]
