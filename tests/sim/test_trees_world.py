"""Worlds of trees: jobs move between trees by the real cores, whatever befalls them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.errors import ConfigError
from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.campaign.log import Program
from inaproto.sim.campaign.marks import declared_of
from inaproto.sim.campaign.replay import Parts
from inaproto.sim.kernel.world import RunResult
from inaproto.sim.trees.config import FaultKind, Refusal, TreesConfig, TreesFault, TreesJob, Want
from inaproto.sim.trees.drawing import draw_trees
from inaproto.sim.trees.marks import DECLARED
from inaproto.sim.trees.world import TreesWorld
from inaproto.units import MS, S
from tests.planted.tree_faults import FAULTS, FINDS
from tests.seeds import seeds

PROGRAM = Program("0.1.0")
PARTS = Parts()


def world(**changes: Any) -> TreesConfig:
    """Two spines, two leaves, one job that can be on either, and nothing that befalls it."""
    config = TreesConfig(
        seed="calm",
        slots=(1, 1, 2, 2),
        trees=((0, 2, 3), (1, 2, 3)),
        jobs=(TreesJob("a", (0, 1), 0),),
        weather_until_ns=600 * MS,
    )
    return replace(config, **changes)


def run(config: TreesConfig) -> RunResult[TreesConfig]:
    result = TreesWorld(config).run()
    assert result.violation is None, result.violation
    return result


@pytest.mark.parametrize("seed", seeds(48))
def test_every_rule_holds(seed: int) -> None:
    result = TreesWorld(draw_trees(seed)).run()
    rerun = f"inaproto soak --world trees --seed {seed}"
    assert result.violation is None, f"{result.violation}; rerun: {rerun}"


def test_a_job_goes_there_and_back_as_people_want() -> None:
    wants = tuple(Want((60 + 80 * number) * MS, 0, 1 - number % 2) for number in range(6))
    result = run(world(wants=wants))
    assert result.marks["a move ended: stable"] == 6
    assert result.marks["a ring was parked"] == 6


def test_two_jobs_that_come_to_one_root_part() -> None:
    result = run(world(jobs=(TreesJob("a", (0, 1), 0), TreesJob("b", (0, 1), 0))))
    assert result.marks["a ring was parked"] == 1


@pytest.mark.parametrize("moment", ["a move is draining", "a switch granted a slot", "a ring was parked"])
def test_a_controller_that_dies_in_a_move_is_followed_by_one_that_ends_it(moment: str) -> None:
    for occurrence in range(1, 6):
        crash = TreesFault(0, FaultKind.CONTROLLER_CRASH, 0, 30 * MS, moment=moment, occurrence=occurrence)
        result = TreesWorld(world(wants=(Want(60 * MS, 0, 1),), faults=(crash,)))
        done = result.run()
        assert done.violation is None, done.violation
        assert result.root.rings["a"].state.pool == "shared@switch1"


@pytest.mark.parametrize("switch", range(4))
def test_a_switch_that_is_lost_and_comes_back_has_its_job_again(switch: int) -> None:
    restart = TreesFault(200 * MS, FaultKind.SWITCH_RESTART, switch, 100 * MS)
    its = TreesWorld(world(wants=(Want(60 * MS, 0, 1),), faults=(restart,)))
    done = its.run()
    assert done.violation is None, done.violation
    assert its.root.rings["a"].state.pool == "shared@switch1"


def test_a_tree_that_is_refused_is_left_until_it_is_not() -> None:
    wants = (Want(60 * MS, 0, 1),)
    its = TreesWorld(world(wants=wants, refusals=(Refusal(0, 1, 500 * MS),), weather_until_ns=2 * S))
    done = its.run()
    assert done.violation is None, done.violation
    assert done.marks["a ring was refused"] > 1
    assert its.root.rings["a"].state.pool == "shared@switch1"


def test_a_switch_that_stands_still_for_longer_than_a_lease_keeps_its_ring() -> None:
    still = TreesFault(200 * MS, FaultKind.SWITCH_STANDS_STILL, 2, 350 * MS)
    result = run(world(faults=(still,)))
    assert "a slot's lease ran out" not in result.marks


# --- planted faults


def test_every_planted_fault_has_its_world() -> None:
    assert set(FINDS) == set(FAULTS)


@pytest.mark.parametrize("name", FINDS)
def test_a_world_finds_it(name: str) -> None:
    seed, rule = FINDS[name]
    with FAULTS[name]():
        broken = TreesWorld(draw_trees(seed)).run().violation
    assert broken is not None
    assert broken.rule == rule
    assert TreesWorld(draw_trees(seed)).run().violation is None


# --- configuration, logs, campaigns


def test_seeds_draw_all_that_may_befall() -> None:
    drawn = [draw_trees(seed) for seed in range(200)]
    assert {fault.kind for config in drawn for fault in config.faults} == set(FaultKind)
    assert {len(config.jobs) for config in drawn} == {1, 2, 3, 4}
    assert any(config.refusals for config in drawn)
    assert any(job.ends_ns >= 0 for config in drawn for job in config.jobs)


@pytest.mark.parametrize(
    "changes",
    [
        {"trees": ()},
        {"trees": ((1, 2), (0, 2))},
        {"trees": ((0, 2), (0, 3))},
        {"trees": ((0, 7),)},
        {"jobs": (TreesJob("a", (2,), 0),)},
        {"wants": (Want(0, 1, 0),)},
        {"faults": (TreesFault(-1, FaultKind.BURST),)},
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="world of trees"):
        world(**changes)


def test_marks_of_worlds_of_trees_are_their_own() -> None:
    assert declared_of(WorldKind.TREES) == DECLARED


def test_a_world_ends_in_time_where_a_job_has_no_tree() -> None:
    """The last job has no slot left: it is told to park, and nobody waits for it."""
    jobs = tuple(TreesJob(name, (0, 1), 0) for name in "abc")
    result = run(world(jobs=jobs))
    assert result.virtual_ns < 2 * S
