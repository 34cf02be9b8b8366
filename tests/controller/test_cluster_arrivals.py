"""A simulated cluster whose jobs do not all arrive at 0."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from inaproto.errors import ConfigError
from inaproto_controller.cluster.model import CLUSTER, SHARING, measured
from inaproto_controller.cluster.requests import Request, draw_requests
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.arrivals import poisson
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.presets import make_setting
from inaproto_controller.simulate.results import Operation
from inaproto_controller.simulate.setting import Setting

TREE = FatTree((4, 4, 4), (1, 2, 2))
JOB = Request("opt-125m-4", 4, 10)


def setting(policy: Policy = Policy.SCORE) -> Setting:
    return make_setting(TREE, quota=Quota.SWITCH, trees="first", policy=policy, speeds=SHARING)


def test_a_job_that_arrives_late_takes_as_long_as_at_0() -> None:
    at_0 = simulate(setting(), [JOB]).jobs[0]
    late = simulate(setting(), [JOB], arrivals=[7.0]).jobs[0]
    assert (late.start, late.queued) == (7.0, 0.0)
    assert late.seconds == pytest.approx(at_0.seconds)


def test_an_empty_cluster_waits_for_the_next_job() -> None:
    found = simulate(setting(), [JOB, JOB], arrivals=[1.0, 100.0])
    assert [job.start for job in found.jobs] == [1.0, 100.0]
    assert found.end == pytest.approx(100.0 + found.jobs[0].seconds)


def test_who_arrives_after_the_limit_gets_no_hosts() -> None:
    found = simulate(setting(), [JOB, JOB], arrivals=[1.0, 100.0], until=50.0)
    assert [job.number for job in found.jobs] == [0]
    assert found.jobs[0].is_finished
    assert found.unplaced == 1
    assert found.end < 50.0
    nobody = simulate(setting(), [JOB], arrivals=[100.0], until=50.0)
    assert (len(nobody.jobs), nobody.unplaced) == (0, 1)


@pytest.mark.parametrize("rate", [0.2, 5.0])
@pytest.mark.parametrize("policy", list(Policy))
def test_jobs_left_behind_do_what_they_do_in_turn(rate: float, policy: Policy) -> None:
    """Watching operations takes all jobs event by event; at the rate 5 the queue is long."""
    requests = draw_requests({1: 1, 2: 3, 4: 3, 8: 2, 32: 1}, 60)
    arrivals = poisson(len(requests), rate=rate, seed=1)
    operations: list[Operation] = []
    watched = simulate(setting(policy), requests, arrivals=arrivals, on_operation=operations.append)
    found = simulate(setting(policy), requests, arrivals=arrivals)
    assert found.events == watched.events
    for ours, theirs in zip(found.jobs, watched.jobs, strict=True):
        assert ours.placed_on == theirs.placed_on
        assert ours.finish == pytest.approx(theirs.finish, rel=1e-12)
        assert ours.ina_seconds == pytest.approx(theirs.ina_seconds, rel=1e-12)
    in_ina = math.fsum(one.end - one.begin for one in operations if one.uses_ina)
    assert in_ina == pytest.approx(sum(job.ina_seconds for job in found.jobs), rel=1e-9)


def test_the_queue_is_noted_when_it_grows() -> None:
    whole = Request("opt-125m-4", TREE.hosts, 100)
    found = simulate(setting(), [whole, JOB, JOB], arrivals=[0.0, 1.0, 2.0])
    assert [(moment.at, moment.queued) for moment in found.moments[:3]] == [(0.0, 0), (1.0, 1), (2.0, 2)]
    assert found.moments[3].queued == 0


@pytest.mark.parametrize("jitter", [0.05, 0.3])
def test_jobs_left_behind_do_what_they_do_in_turn_with_jitter(jitter: float) -> None:
    """To the last bit, also who was in an operation with INA when it was left behind."""
    requests = draw_requests(
        {1: 1, 2: 3, 4: 3, 8: 2}, 60, models=["opt-125m-4", "vit-large-4", "opt-125m-16"]
    )
    arrivals = poisson(len(requests), rate=5.0, seed=1)
    watched, found = (
        simulate(replace(setting(), jitter=jitter), requests, arrivals=arrivals, on_operation=note)
        for note in (lambda _: None, None)
    )
    assert found == watched


@pytest.mark.parametrize("model", ["vit-large-4", "opt-125m-4"])
@pytest.mark.parametrize("start", [1e6, 1e8, 1.7e9])
def test_clocks_that_began_long_ago_are_coarse(start: float, model: str) -> None:
    """Logs have seconds since 1970: what rounding adds up to is more than a millisecond in a job."""
    found = simulate(setting(), [Request(model, 4, 100), Request(model, 1, 37)], arrivals=[start, start])
    assert [(job.steps, job.is_finished) for job in found.jobs] == [(100, True), (37, True)]
    operations = len(measured(model).ready)
    assert found.events == sum(1 + steps * (2 * operations + 1) for steps in (100, 37))


def test_nobody_gets_hosts_when_the_event_after_the_limit_ends_a_job() -> None:
    whole = Request("bert-base-4", TREE.hosts, 1)
    times = StepTimes(measured(whole.model), CLUSTER, hosts=2)
    cluster = replace(setting(), speeds=CLUSTER)
    found = simulate(cluster, [whole, whole], until=times.step_plain - 1e-6)
    assert [(job.number, job.is_finished) for job in found.jobs] == [(0, True)]
    assert found.unplaced == 1
    assert found.events == 1 + 2 * times.count + 1
    assert found.end == times.step_plain


@pytest.mark.parametrize("start", [math.nan, -1.0])
def test_arrivals_that_are_none_are_refused(start: float) -> None:
    with pytest.raises(ConfigError, match="ascending from 0"):
        simulate(setting(), [JOB], arrivals=[start])


@pytest.mark.parametrize(("jitter", "until"), [(1.0, 1.0), (math.nan, 1.0), (0.0, math.nan), (0.0, -1.0)])
def test_a_jitter_or_a_limit_that_is_none_is_refused(jitter: float, until: float) -> None:
    with pytest.raises(ConfigError, match=f"jitter {jitter}, until {until}"):
        simulate(replace(setting(), jitter=jitter), [JOB], until=until)


def test_a_cluster_without_requests_does_nothing() -> None:
    found = simulate(setting(), [])
    assert (found.end, found.events, found.score, len(found.jobs)) == (0.0, 0, None, 0)


@pytest.mark.parametrize("is_watched", [False, True])
def test_operations_of_one_host_may_take_no_time(is_watched: bool) -> None:
    cluster = replace(setting(), speeds=replace(SHARING, latency=0.0))
    note = (lambda _: None) if is_watched else None
    found = simulate(cluster, [Request("vit-large-4", 1, 3), JOB], on_operation=note)
    assert all(job.is_finished for job in found.jobs)


def test_a_bound_that_is_wrong_is_an_error_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inaproto_controller.simulate.turns._MARGIN_S", -1.0)
    with pytest.raises(AssertionError, match="has ended"):
        simulate(setting(), [JOB, JOB._replace(steps=200)])
