"""A simulated cluster whose jobs do not all arrive at 0."""

from __future__ import annotations

import math

import pytest

from inaproto_controller.model import SHARING
from inaproto_controller.requests import Request, draw_requests
from inaproto_controller.sharing.policy import Policy
from inaproto_controller.simulate.arrivals import poisson
from inaproto_controller.simulate.cluster import Operation, simulate
from inaproto_controller.simulate.setting import Setting
from inaproto_controller.simulate.settings import make_setting
from inaproto_controller.topology import FatTree, Quota

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
