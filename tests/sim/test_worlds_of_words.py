"""What all worlds of words have alike: records, repeats, logs, smaller failures, the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto.errors import ConfigError
from inaproto.faults.weather import Weather
from inaproto.sim.campaign.failure import say_failure
from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.campaign.log import Program, read_log
from inaproto.sim.campaign.marks import declared_of, meaning_of, seeds_min_of
from inaproto.sim.campaign.replay import Parts
from inaproto.sim.campaign.replay import replay as run_again
from inaproto.sim.campaign.rules import rules_of
from inaproto.sim.campaign.shrink import shrink
from inaproto.sim.control.checkers import checkers as control_checkers
from inaproto.sim.control.drawing import draw_control
from inaproto.sim.control.world import ControlWorld
from inaproto.sim.models import checkers as models_checkers
from inaproto.sim.models.drawing import draw_overlay
from inaproto.sim.models.world import OverlayWorld
from inaproto.sim.trees import checkers as trees_checkers
from inaproto.sim.trees.drawing import draw_trees
from inaproto.sim.trees.world import TreesWorld
from inaproto.units import MS
from inaproto_hil.soak import replay, soak
from tests.planted import overlay_faults, sharing_faults, tree_faults
from tests.planted.planting import PlantedFault
from tests.sim import test_control_world, test_overlay_world, test_trees_world

PROGRAM = Program("0.1.0")
PARTS = Parts()


@dataclass(frozen=True)
class Kind:
    name: str
    draw: Callable[[int], Any]
    world: Callable[[Any], Any]
    calm: Callable[..., Any]
    """A configuration in which nothing befalls anybody, with changes."""
    fault: PlantedFault
    checkers: Callable[[], Sequence[Any]]
    wrong: tuple[str, str]
    """A field of the record that is no text, and what is said of it then."""
    words: tuple[str, ...]
    """Of what a run says."""
    parts: str
    """Of what a smaller failure says."""

    def digests(self, *seeds: int) -> str:
        return " ".join(self.world(self.draw(seed)).run().digest for seed in seeds)


KINDS = (
    Kind(
        "control",
        draw_control,
        ControlWorld,
        test_control_world.world,
        sharing_faults.FAULTS["granted_without_room"],
        control_checkers.all_checkers,
        ("hosts", "world: hosts"),
        ("rounds", "trees", "messages hit"),
        " jobs",
    ),
    Kind(
        "overlay",
        draw_overlay,
        OverlayWorld,
        test_overlay_world.world,
        overlay_faults.FAULTS["acknowledges_before_durable"],
        models_checkers.all_checkers,
        ("hosts", "world: hosts"),
        ("shards", "updates", "pulls", "messages hit"),
        " shards, ",
    ),
    Kind(
        "trees",
        draw_trees,
        TreesWorld,
        test_trees_world.world,
        tree_faults.FAULTS["released_while_parking"],
        trees_checkers.all_checkers,
        ("slots", "world of trees: slots"),
        ("switches", "moves"),
        " jobs",
    ),
)
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@EACH
def test_a_configuration_survives_its_record(kind: Kind) -> None:
    for seed in range(40):
        config = kind.draw(seed)
        assert type(config).from_record(json.loads(json.dumps(config.as_record()))) == config


@EACH
def test_a_record_that_is_no_configuration_is_refused_by_name(kind: Kind) -> None:
    field, words = kind.wrong
    config = kind.calm()
    with pytest.raises(ConfigError, match=words):
        type(config).from_record(config.as_record() | {field: "many"})


@EACH
def test_a_digest_does_not_depend_on_hashes(kind: Kind) -> None:
    draw, world = kind.draw, kind.world
    program = (
        f"from {draw.__module__} import {draw.__name__} as draw\n"
        f"from {world.__module__} import {world.__name__} as World\n"
        "print(*(World(draw(seed)).run().digest for seed in (0, 3)))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert said == {kind.digests(0, 3) + "\n"}


@EACH
def test_a_log_replays_without_a_draw_of_weather(kind: Kind, tmp_path: Path) -> None:
    weather = Weather(drop=0.01 if kind.name == "overlay" else 0.1, reorder=0.2)
    config = kind.calm(weather=weather, weather_until_ns=40 * MS)
    log = PARTS.record(config, PROGRAM)
    assert log.fates
    path = tmp_path / "log"
    log.write(path)
    again = read_log(path)
    assert again == log
    calm = replace(again, config=replace(config, weather=Weather()))
    assert run_again(calm, PARTS, PROGRAM).differs is None
    assert "passes as in the log" in run_again(again, PARTS, PROGRAM).verdict()


@EACH
def test_a_failure_is_told_made_smaller_and_replayed(kind: Kind) -> None:
    with kind.fault():
        seed = next(seed for seed in range(400) if kind.world(kind.draw(seed)).run().violation)
        log = PARTS.record(kind.draw(seed), PROGRAM)
        assert log.violation is not None
        said = say_failure(log, path="x.jsonl")
        assert f"rerun     inaproto soak --world {kind.name} --seed {seed}" in said
        assert "replay    inaproto replay x.jsonl" in said
        shrunk = shrink(log.config, PARTS.run, runs_max=60)
        assert shrunk.after.violation is not None
        assert shrunk.after.violation.rule == log.violation.rule
        assert shrunk.after.events <= shrunk.before.events
        assert kind.name != "control" or shrunk.after.events < shrunk.before.events
        assert "shrunk in" in str(shrunk)
        assert kind.parts in str(shrunk)
        small = PARTS.record(shrunk.config, PROGRAM, shrunk.fates)
        assert small.violation == shrunk.after.violation
        assert run_again(small, PARTS, PROGRAM).same
    assert "this run breaks no rule" in run_again(small, PARTS, PROGRAM).verdict()
    with pytest.raises(ConfigError, match="breaks no rule"):
        shrink(kind.calm(), PARTS.run)


# --- the command


def run(*arguments: str) -> tuple[int, str]:
    command = soak if arguments[0] == "soak" else replay
    done = CliRunner().invoke(command, arguments[1:], catch_exceptions=False)
    return done.exit_code, done.output


@EACH
def test_the_command_runs_and_replays_one_seed(kind: Kind, tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = ("soak", "--world", kind.name, "--seed", "3")
    status, said = run(*asked, "--log", str(log))
    assert status == 0
    digest = kind.digests(3)
    for word in (*kind.words, "every rule was kept", digest):
        assert word in said
    assert run(*asked, "--digest") == (0, digest + "\n")
    status, said = run("replay", str(log))
    assert (status, "passes as in the log" in said) == (0, True)
    status, said = run("replay", str(log), "--svg", str(tmp_path / "svg"))
    assert (status, "has no frames to draw" in said) == (2, True)


@EACH
def test_a_campaign_reports(kind: Kind, tmp_path: Path) -> None:
    status, said = run("soak", "--world", kind.name, "--seeds", "3", "--jobs", "1", "--out", str(tmp_path))
    assert status == 0, said
    assert "messages " in said
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"]
    assert report["rules"] == rules_of(WorldKind(kind.name))
    assert report["plan"]["world"] == kind.name
    assert (tmp_path / "report.html").exists()
    if kind.name == "control":
        assert set(report["core_steps"]) >= {"coordinator", "participant", "migration", "slot_ledger"}
        assert "fault: controller crash" in (tmp_path / "report.html").read_text()


def test_a_campaign_that_fails_says_how_to_run_it_again(tmp_path: Path) -> None:
    variant = "tests.planted.sharing_faults:granted_without_room"
    asked = ("--seeds", "4:5", "--jobs", "1", "--with", variant, "--out", str(tmp_path), "--no-shrink")
    status, said = run("soak", "--world", "control", *asked)
    assert status == 1
    assert f"inaproto soak --world control --seed 4 --with {variant}    # a decision is kept" in said
    assert run("replay", str(tmp_path / "seed-4.jsonl"))[0] == 1
    assert run("replay", str(tmp_path / "seed-4.jsonl"), "--with", variant)[0] == 0


@EACH
def test_marks_and_rules_of_its_worlds_are_their_own(kind: Kind) -> None:
    world = WorldKind(kind.name)
    declared = declared_of(world)
    assert seeds_min_of(world) == 1000
    for name, meaning in declared.items():
        assert meaning_of(name) is not None
        assert meaning
    assert not set(declared) & {"weather: lost", "a job finished after it had started anew"}
    rules = [rules_of(one) for one in WorldKind if one is not WorldKind.WEATHER]  # a day of a control world
    assert all(rules.count(one) == 1 for one in rules if one == rules_of(world))
    assert {one.name for one in kind.checkers()} < set(rules_of(world))
