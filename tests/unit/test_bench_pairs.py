"""Two jobs on one pool, live in virtual time: what they score, and what the simulator predicts."""

from __future__ import annotations

import json
from itertools import combinations_with_replacement, pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto_controller.cluster.model import EVALUATED, SHARING, measured
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.shared_switch import share
from inaproto_hil.bench.pairs import pairs_bench
from inaproto_hil.evaluation.shared_pool.pairs import GOAL, NEAR, PairsConfig, measure, run_pair
from inaproto_hil.evaluation.shared_pool.world import WorldConfig, play
from inaproto_hil.evaluation.yardsticks.pool_time import score_bound


@pytest.mark.parametrize("pair", [("bert-base-4", "bert-large-4"), ("vit-base-4", "vit-base-4")])
def test_two_jobs_on_one_pool_gain_what_is_predicted(pair: tuple[str, str]) -> None:
    """Of all pairs: ``inaproto bench pairs``."""
    report = measure([pair], PairsConfig(steps=25))
    [row] = report["rows"]
    assert row["live"] >= GOAL
    assert abs(row["difference"]) <= NEAR
    assert row["rescued"] == row["patterns_lost"] == row["aborted"] == 0
    assert row["bound"] >= row["at_once"]
    assert report["summary"]["reach_the_goal"]["live"] == 1


def test_runs_repeat_to_the_bit_and_one_host_s_errors_rescue_nobody() -> None:
    config = PairsConfig(steps=14, hosts=3, error=0.02)
    first, again = (run_pair(("bert-base-4", "vit-base-4"), config) for _ in range(2))
    assert first.operations == again.operations
    assert first.turns == again.turns
    assert any(one.uses_ina for one in first.operations)
    assert first.rescued == 0


def test_no_two_jobs_have_ina_at_once_and_an_operation_is_of_one_turn() -> None:
    run = run_pair(("opt-125m-4", "vit-large-4"), PairsConfig(steps=14))
    granted = {turn.epoch: turn.job for turn in run.turns}
    mine = sorted((one for one in run.operations if one.uses_ina), key=lambda one: one.begin)
    assert {one.job for one in mine} == {0, 1}
    assert all(granted[one.epoch or 0] == f"job{one.job}" for one in mine)
    assert all(before.end <= after.begin for before, after in pairwise(mine))


def test_a_job_alone_has_ina_for_all_but_its_first_operations() -> None:
    times = StepTimes(measured("vit-large-4"), SHARING, hosts=2)
    run = play([times], [measured("vit-large-4").nbytes], WorldConfig(until=12 * times.step_plain))
    assert sum(not one.uses_ina for one in run.operations) <= 2
    assert run.steps[0][-1] - run.steps[0][2] == pytest.approx(
        times.step_ina * (len(run.steps[0]) - 3), rel=1e-6
    )


def test_no_policy_beats_the_bound_by_time() -> None:
    jobs = {model: StepTimes(measured(model), SHARING, hosts=3) for model in EVALUATED}
    for pair in combinations_with_replacement(EVALUATED, 2):
        times = [jobs[model] for model in pair]
        bound = score_bound(times)
        assert bound is not None
        for policy in (Policy.SCORE, Policy.GREEDY):
            score = share(times, policy, until=30 * max(one.step_plain for one in times)).score
            assert score is not None
            assert score <= bound + 1e-9, pair
    scarce = score_bound([jobs["vit-large-4"]] * 2)
    assert scarce is not None
    assert scarce < 0.8
    assert score_bound([jobs["vit-large-4"]]) == pytest.approx(1)
    idle = StepTimes(ModelTrace("idle", 1.0, (0.1,), (1000,)), Speeds(1e9, 2.0, 0.0), hosts=2)
    assert score_bound([idle]) is None


def test_the_command_prints_json_draws_and_refuses_nonsense(tmp_path: Path) -> None:
    options = ["--pair", "vit-base-4+vit-base-4", "--steps", "12", "--timeline", str(tmp_path), "--json", "-"]
    done = CliRunner().invoke(pairs_bench, options)
    assert done.exit_code == 0, done.output
    assert [row["pair"] for row in json.loads(done.stdout)["rows"]] == [["vit-base-4", "vit-base-4"]]
    assert "live" in done.stderr
    assert (tmp_path / "vit-base-4+vit-base-4.svg").read_text().startswith("<?xml")
    assert CliRunner().invoke(pairs_bench, ["--pair", "vit-base-4"]).exit_code == 2
