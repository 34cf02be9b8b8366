"""Control worlds: who may use the switches when, by the real cores, whatever befalls them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inaproto.errors import ConfigError
from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.campaign.log import DamagedLog, Program, read_log
from inaproto.sim.campaign.replay import Parts
from inaproto.sim.campaign.replay import replay as run_again
from inaproto.sim.campaign.rules import rules_of
from inaproto.sim.control.cluster_faults import CLUSTER_KINDS
from inaproto.sim.control.config import (
    NO_TREE,
    RULES,
    ControlConfig,
    ControlFault,
    ControlJob,
    FaultKind,
    PlanStep,
    Rule,
)
from inaproto.sim.control.drawing import draw_control
from inaproto.sim.control.world import ControlWorld
from inaproto.units import MS, US
from tests.seeds import seeds

PROGRAM = Program("0.1.0")
PARTS = Parts()
RULES_KEPT = rules_of(WorldKind.CONTROL)
BOTH = pytest.mark.parametrize("rule", RULES)


def job(number: int, **changes: object) -> ControlJob:
    """On two hosts, all-reduces of 200 us by the switches and 600 us by the chain."""
    plain = ControlJob(
        name=f"job{number}",
        hosts=(0, 1),
        tree=0,
        arrives_ns=1,
        operations=60,
        ina_ns=200 * US,
        chain_ns=600 * US,
        think_ns=100 * US,
        drain_ns=50 * US,
        stall_ns=5 * MS,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def world(rule: Rule = "by-index", **changes: object) -> ControlConfig:
    """Two jobs that share the pool of one tree of two switches, and nothing that befalls them."""
    config = ControlConfig(
        seed="calm",
        rule=rule,
        hosts=2,
        switches=(2, 2),
        trees=((0, 1),),
        pools=(1,),
        jobs=(job(0), job(1)),
        weather_until_ns=20 * MS,
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def test_a_slot_is_asked_for_again_when_its_job_has_ended_meanwhile() -> None:
    """What was on disk when it was asked for first may be repeated: the answer says what is to be freed."""
    assert ControlWorld(draw_control(456)).run().violation is None


def test_a_seat_may_follow_a_peer_that_runs_its_operation_by_the_fallback() -> None:
    """It has heard of the turn, the peer is in doubt and has said so: by no path do they disagree."""
    assert ControlWorld(draw_control(415)).run().violation is None


def test_a_seat_that_is_given_up_holds_no_turn_that_a_round_has_ended() -> None:
    """It has voted, the decision was lost on its way, and it did not say in time that it has done it."""
    assert ControlWorld(draw_control(782)).run().violation is None


@pytest.mark.parametrize("seed", seeds(24))
def test_every_rule_holds(seed: int) -> None:
    result = ControlWorld(draw_control(seed)).run()
    rerun = f"inaproto soak --world control --seed {seed}"
    assert result.violation is None, f"{result.violation}; rerun: {rerun}"
    assert result.operations_done


@BOTH
def test_jobs_that_share_a_pool_take_turns(rule: Rule) -> None:
    result = ControlWorld(world(rule, margin=2)).run()
    assert result.violation is None
    assert result.operations_done == 2 * 2 * 60
    measures = result.measures
    assert measures.turns >= 4
    assert measures.ina_operations > 60
    assert measures.rescued == 0
    assert result.marks["a job ended"] == 2
    # Turns have their ends in the grant, so nobody is asked for them, and operations rarely meet a lock.
    assert (measures.stalls > 0) == (rule == "equal-index")


def test_one_job_alone_runs_nearly_all_by_the_switches() -> None:
    result = ControlWorld(world(jobs=(job(0),), turn_operations=0)).run()
    assert result.violation is None
    assert result.measures.turns == 1
    assert result.measures.ina_operations > 0.8 * result.operations_done


def moving(margin: int) -> ControlConfig:
    """Two jobs that exchange their trees."""
    return world(
        switches=(1, 1),
        trees=((0,), (1,)),
        pools=(1, 1),
        jobs=(job(0), job(1, tree=1)),
        plan=(PlanStep(12 * MS, (1, 0)),),
        margin=margin,
    )


def test_a_plan_moves_trees_under_running_jobs() -> None:
    result = ControlWorld(moving(8)).run()
    assert result.violation is None
    for mark in ("a job has drained", "a job was to drain under an operation by the switches"):
        assert mark in result.marks
    assert result.marks["a tree stands"] == 4
    assert result.measures.rescued == 0


def test_where_a_margin_is_shorter_than_a_round_operations_wait_for_the_decision() -> None:
    """By the chain they would differ from those of other seats, whose votes differ, and all be rescued."""
    result = ControlWorld(moving(1)).run()
    assert result.violation is None
    assert result.marks["an operation waited for a decision"]
    assert "an operation of two bindings was rescued" not in result.marks


def test_a_job_that_loses_a_host_gives_everything_back() -> None:
    crash = ControlFault(
        0, FaultKind.HOST_CRASH, 0, 2 * MS, moment="an operation by the switches", occurrence=9
    )
    result = ControlWorld(world(faults=(crash,))).run()
    assert result.violation is None
    assert result.marks["a job failed"] == 2


def test_a_lease_runs_out_where_no_host_can_renew_it() -> None:
    cut = tuple(ControlFault(8 * MS, FaultKind.PEER_PARTITION, host, 60 * MS) for host in range(2))
    result = ControlWorld(world(faults=cut, slot_lease_ns=15 * MS, weather_until_ns=80 * MS)).run()
    assert result.violation is None
    assert "a slot's lease ran out" in result.marks
    assert result.marks["a job ended"] == 2


# --- the configuration


def test_seeds_draw_both_rules_and_all_that_may_befall() -> None:
    drawn = [draw_control(seed) for seed in range(200)]
    assert {config.rule for config in drawn} == set(RULES)
    assert {fault.kind for config in drawn for fault in config.faults} == set(FaultKind) - CLUSTER_KINDS
    assert {len(config.jobs) for config in drawn} >= {1, 2, 3, 4, 5}
    assert {capacity for config in drawn for capacity in config.pools} == {1, 2}
    assert any(one.tree == NO_TREE for config in drawn for one in config.jobs)
    assert any(config.plan for config in drawn)


@pytest.mark.parametrize(
    "changes",
    [
        {"rule": "by-vote"},
        {"pools": ()},
        {"pools": (0,)},
        {"trees": ((1, 0),)},
        {"trees": ((0, 2),)},
        {"jobs": (job(0, hosts=(0,)),)},
        {"jobs": (job(0, hosts=(0, 2)),)},
        {"jobs": (job(0, tree=1),)},
        {"plan": (PlanStep(0, (0,)),)},
        {"plan": (PlanStep(0, (0, 7)),)},
        {"faults": (ControlFault(-1, FaultKind.BURST),)},
        {"faults": (ControlFault(0, FaultKind.BURST, occurrence=0),)},
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="control world"):
        world(**changes)


# --- logs


def test_an_edited_log_is_found_out(tmp_path: Path) -> None:
    log = PARTS.record(world(), PROGRAM)
    log.records[40]["detail"] = "something else"
    verdict = run_again(log, PARTS, PROGRAM).verdict()
    assert "The first event that differs is 41" in verdict
    path = tmp_path / "log"
    log.write(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(DamagedLog, match="its header says"):
        read_log(path)
    path.write_text('{"world":"control"}\n')
    with pytest.raises(DamagedLog, match="not the header"):
        read_log(path)
    path.write_text('{"world":"control","format":99,"events":0}\n')
    with pytest.raises(ConfigError, match="format 99"):
        read_log(path)
