"""MINA, section III-C, as its authors' simulator had it later (generation L): groups merged after trials."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from inaproto_controller.cluster.model import EVALUATED, SHARING, measured
from inaproto_controller.cluster.network import FatTreeNetwork
from inaproto_controller.cluster.requests import HISTOGRAMS, draw_requests
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.trees.builder import TreeJob
from inaproto_controller.planning.trees.merging import GROUP_MAX, MergedGroups
from inaproto_controller.planning.trial.trial import STEPS, Trials, plain
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.presets import make_setting
from inaproto_controller.simulate.setting import Setting
from inaproto_controller.simulate.shared_switch import share
from tests.data.mina.reference import reference


@cache
def times_of(model: str, speeds: Speeds = SHARING) -> StepTimes:
    return StepTimes(measured(model), speeds, hosts=2)


NO_GAIN = Speeds(12.5e9, 1.0, 5e-5)


def entered(
    network: FatTreeNetwork, placed: Sequence[Sequence[int]], times: Sequence[StepTimes]
) -> list[TreeJob]:
    return [
        TreeJob(slot, 100 + slot, len(hosts), its, network.enter(slot, hosts), steps_left=10)
        for slot, (hosts, its) in enumerate(zip(placed, times, strict=True))
    ]


def build(builder: MergedGroups, jobs: Sequence[TreeJob], *, completed: bool = False) -> list[TreeJob]:
    """As they are afterwards."""
    new = [] if completed else range(len(jobs))
    changes = builder.build(jobs, new, now=0.0, completed=completed)
    return [replace(job, tree=changes.get(job.slot, job.tree)) for job in jobs]


def test_a_trial_is_the_group_alone_event_by_event() -> None:
    draw = random.Random("trials")
    for _ in range(60):
        trials = Trials()
        group = [
            (draw.choice([2, 4, 8, 32]), times_of(draw.choice(EVALUATED))) for _ in range(draw.randint(1, 7))
        ]
        jobs = [(hosts, trials.kind(times)) for hosts, times in group]
        found = trials.run(jobs)
        in_order = [group[index] for index in sorted(range(len(group)), key=lambda one: jobs[one])]
        judge = share(
            [times for _, times in in_order],
            Policy.SCORE,
            until=STEPS * max(times.step_plain for _, times in group),
            weights=[hosts for hosts, _ in in_order],
        )
        weighted = list(zip([hosts for hosts, _ in in_order], judge.jobs, strict=True))
        assert found.spent == pytest.approx(sum(hosts * run.step_start for hosts, run in weighted), rel=1e-12)
        assert found.plain == pytest.approx(
            sum(hosts * run.steps * run.times.step_plain for hosts, run in weighted), rel=1e-12
        )
        assert found.ina == pytest.approx(
            sum(hosts * run.steps * run.times.step_ina for hosts, run in weighted), rel=1e-12
        )
        draw.shuffle(jobs)
        assert trials.run(jobs) is found
        assert trials.scores(len(jobs)) == (1, found.score, 0)


def test_a_job_alone_gains_all_and_one_that_cannot_gain_has_no_score() -> None:
    trials = Trials()
    alone = trials.run([(4, trials.kind(times_of("opt-1.3b-4")))])
    assert alone.score == pytest.approx(1)
    assert plain(times_of("opt-1.3b-4"), 4).score == 0
    nothing = trials.run([(4, trials.kind(times_of("vit-base-4", NO_GAIN)))])
    assert nothing.score is None
    assert trials.scores(1) == (1, alone.score, 0)


def test_trials_know_how_groups_of_a_size_scored() -> None:
    trials, kinds = Trials(), [times_of(model) for model in EVALUATED]
    found = []
    for number, times in enumerate(kinds):
        score = trials.run([(2, trials.kind(times)), (4, trials.kind(kinds[number - 1]))]).score
        assert score is not None
        found.append(score)
        trials.run([(2, trials.kind(times))])
    count, mean, deviation = trials.scores(2)
    assert (count, mean, deviation) == pytest.approx((len(kinds), np.mean(found), np.std(found)))
    assert deviation > 0
    assert trials.scores(3) == (0, 0, 0)


def test_whoever_conflicts_with_one_group_alone_joins_it() -> None:
    """Three jobs between two racks of one pod, which have two ways up: two in the set, one joins."""
    network = FatTreeNetwork(FatTree((4, 2, 2), (1, 2, 1)), Quota.LINK)
    jobs = entered(network, [[0, 4], [1, 5], [2, 6]], [times_of("opt-1.3b-4")] * 3)
    done = build(MergedGroups(network, seed=1), jobs)
    trees = [job.tree for job in done]
    assert sorted(set(trees), key=str) == [0, 1]
    assert None not in trees


def crossing(network: FatTreeNetwork, times: Sequence[StepTimes]) -> list[TreeJob]:
    """Two jobs of their own in one rack each, under the switch quota, and one in both racks."""
    return entered(network, [[0, 1], [4, 5], [2, 6]], times)


def test_groups_are_merged_where_a_trial_says_that_it_pays() -> None:
    """The third job conflicts with both groups whichever way it goes up."""
    network = FatTreeNetwork(FatTree((4, 2, 1), (1, 2, 1)), Quota.SWITCH)
    idle, eager = times_of("vit-base-4", NO_GAIN), times_of("opt-1.3b-4")
    done = build(MergedGroups(network, seed=1), crossing(network, [idle, idle, eager]))
    assert None not in [job.tree for job in done]  # nobody loses by it
    done = build(
        MergedGroups(network, seed=1), crossing(FatTreeNetwork(network.tree, network.quota), [idle] * 3)
    )
    assert [job.tree is None for job in done] == [False, False, True]  # there is nothing to gain
    trials = Trials()
    kind = trials.kind(eager)
    apart, together = trials.run([(2, kind)]), trials.run([(2, kind)] * 3)
    before = (apart + apart + plain(eager, 2)).score
    assert before is not None
    assert together.score is not None
    done = build(
        MergedGroups(network, seed=1), crossing(FatTreeNetwork(network.tree, network.quota), [eager] * 3)
    )
    assert (done[2].tree is not None) is (together.score > before)


def test_who_has_no_group_loses_the_tree_and_gets_one_when_a_job_ends() -> None:
    network = FatTreeNetwork(FatTree((4, 2, 1), (1, 2, 1)), Quota.SWITCH)
    idle = times_of("vit-base-4", NO_GAIN)
    jobs = crossing(network, [idle] * 3)
    builder = MergedGroups(network, seed=1)
    assert builder.wants_completions
    done = build(builder, [*jobs[:2], replace(jobs[2], tree=1)])
    assert [job.tree is None for job in done] == [False, False, True]
    assert builder.build(done, [], now=1.0, completed=True) == {}  # the same candidates, the same trees
    network.leave(0)
    network.leave(1)
    assert [job.tree is not None for job in build(builder, done[2:], completed=True)] == [True]


def test_candidates_are_drawn_once_and_those_that_are_barred_are_left_out_meanwhile() -> None:
    network = FatTreeNetwork(FatTree.of_degree(16), Quota.LINK)
    jobs = entered(network, [[0, 200], [300, 400]], [times_of("bert-base-4")] * 2)
    builder = MergedGroups(network, seed=1)
    done = build(builder, jobs)
    for _ in range(5):
        assert builder.build(done, [], now=0.0, completed=True) == {}
    tree = done[0].tree
    assert tree is not None
    barred = build(builder, [replace(done[0], barred=frozenset({tree})), done[1]], completed=True)
    assert barred[0].tree not in {None, tree}
    assert barred[1].tree == done[1].tree
    back = build(builder, [replace(barred[0], barred=frozenset()), barred[1]], completed=True)
    assert back[0].tree == tree
    everything = build(builder, [replace(done[0], barred=frozenset(range(64))), done[1]], completed=True)
    assert everything[0].tree is None


@pytest.mark.parametrize("quota", Quota)
def test_no_group_that_a_merger_makes_is_larger_than_30_and_equal_seeds_are_equal(quota: Quota) -> None:
    draw = random.Random(f"large {quota}")
    order = draw.sample(range(128), 128)
    placed = [[order.pop(), order.pop()] for _ in range(60)]
    answers = []
    for _ in range(2):
        network = FatTreeNetwork(FatTree.of_degree(8, uplinks=1), quota)
        jobs = entered(network, placed, [times_of(EVALUATED[number % 7]) for number in range(60)])
        builder = MergedGroups(network, seed="large")
        done = build(builder, jobs)
        answers.append([job.tree for job in done])
        assert None in answers[-1]
        assert max(len(group) for group in builder._trials._known) <= GROUP_MAX
    assert answers[0] == answers[1]


def published(trace: int, run: str) -> dict[str, Any]:
    found = next(
        one for one in reference("ref13_later_algorithm_link_quota")["traces"] if one["trace"] == trace
    )
    return dict(found[run])


def test_merged_groups_score_as_the_published_simulator_s() -> None:
    """Trace 1 whole; candidates are drawn otherwise."""
    setting = make_setting(FatTree.of_degree(16), trees="merging", is_weighted=True, seed=1)
    found = simulate(setting, draw_requests(HISTOGRAMS[1], 2000))
    expected = published(1, "mina")
    assert found.score == pytest.approx(expected["JCTScore"], abs=0.003)
    assert found.weighted_score == pytest.approx(expected["JCTScoreWeighted"], abs=0.004)
    assert found.utilisation == pytest.approx(expected["SharpRatio"], abs=0.005)


@pytest.mark.parametrize("placement", ["least-fragments", "first"])
def test_exclusive_trees_score_to_the_digit_as_the_published_simulator_s(placement: str) -> None:
    setting: Setting = make_setting(
        FatTree.of_degree(16), placement=placement, trees="exclusive", policy=Policy.GREEDY
    )
    found = simulate(setting, draw_requests(HISTOGRAMS[1], 2000))
    name = {"least-fragments": "smart", "first": "first"}[placement]
    expected = published(1, f"{name}_placement_exclusive_first_tree_greedy")
    assert found.score == pytest.approx(expected["JCTScore"], abs=1e-9)
    assert found.utilisation == pytest.approx(expected["SharpRatio"], abs=1e-9)
    assert np.isclose(found.end, expected["SimulatedTime"], rtol=1e-9)
