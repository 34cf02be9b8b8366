"""A virtual day of 64 hosts and 8 jobs, and its weather; a morning of it where a day is too long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.campaign.log import Program
from inaproto.sim.campaign.marks import declared_of
from inaproto.sim.campaign.replay import Parts
from inaproto.sim.campaign.replay import replay as run_again
from inaproto.sim.campaign.rules import rules_of
from inaproto.sim.campaign.worlds import any_kind_of, config_from
from inaproto.sim.control.cluster_faults import CLUSTER_KINDS
from inaproto.sim.control.config import RULES, ControlConfig, WeatherConfig
from inaproto.sim.control.day import DAY, HOUR, JOBS, RACK_HOSTS, RACKS, draw_day
from inaproto.sim.control.world import ControlWorld
from tests.seeds import seeds

MORNING = 2 * HOUR


def morning(seed: int) -> WeatherConfig:
    """The first hours, into which all that befalls the day is squeezed; jobs have as much less to do."""
    config = draw_day(seed)
    jobs = tuple(replace(job, operations=max(2, job.operations // 12)) for job in config.jobs)
    faults = tuple(
        replace(fault, at_ns=fault.at_ns // 12, duration_ns=max(1, fault.duration_ns // 3))
        for fault in config.faults
    )
    return replace(config, jobs=jobs, faults=faults, plan=(), weather_until_ns=MORNING)


@pytest.mark.parametrize("seed", seeds(4))
def test_a_morning_keeps_every_rule(seed: int) -> None:
    result = ControlWorld(morning(seed)).run()
    assert result.violation is None, result.violation
    assert result.marks["a job ended"] == JOBS


@pytest.mark.parametrize("seed", seeds(1))
def test_a_day_keeps_every_rule_and_every_stop_has_a_cause(seed: int) -> None:
    result = ControlWorld(draw_day(seed)).run()
    rerun = f"inaproto soak --world weather --seed {seed}"
    assert result.violation is None, f"{result.violation}; rerun: {rerun}"
    assert result.marks["a job ended"] == JOBS
    assert result.virtual_ns >= DAY
    assert all(stop.job.startswith("job") and stop.cause for stop in result.stops)


def test_days_are_of_64_hosts_and_8_jobs_and_have_all_kinds_of_weather() -> None:
    drawn = [draw_day(seed) for seed in range(40)]
    assert {config.rule for config in drawn} == set(RULES)
    for config in drawn:
        hosts = sorted(host for job in config.jobs for host in job.hosts)
        assert hosts == list(range(RACKS * RACK_HOSTS)) == list(range(64))
        assert len(config.jobs) == 8
        for job in config.jobs:
            racks = {config.rack_of(host) for host in job.hosts}
            assert racks <= set(config.trees[job.tree])
    assert {fault.kind for config in drawn for fault in config.faults} >= CLUSTER_KINDS


def test_a_day_is_a_world_of_its_own_kind_with_the_rules_of_control_worlds() -> None:
    config = draw_day(3)
    assert any_kind_of(config) is WorldKind.WEATHER
    assert config_from("weather", config.as_record()) == config
    assert type(config_from("control", config.as_record())) is ControlConfig
    assert rules_of(WorldKind.WEATHER) == rules_of(WorldKind.CONTROL)
    assert {f"fault: {kind}" for kind in CLUSTER_KINDS} <= set(declared_of(WorldKind.WEATHER))


def test_a_log_of_a_morning_replays() -> None:
    parts, program = Parts(), Program("0.1.0")
    log = parts.record(morning(1), program)
    assert run_again(log, parts, program).same
