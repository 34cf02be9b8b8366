"""Jobs that share a pool, every interleaving: both rules hold; the paper read literally does not.

Sizes are for every day; ``inaproto explore --world sharing`` runs larger ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto.errors import ConfigError
from inaproto.sim.explore.engine import Counterexample, Kind, Verdict, explore
from inaproto.sim.explore.sharing.config import SharingWorldConfig
from inaproto.sim.explore.sharing.states import State
from inaproto.sim.explore.sharing.variants import sharing_config, sharing_world
from inaproto.sim.explore.sharing.world import SharingWorld
from inaproto.wire.messages.sharing import Rule
from inaproto_hil.explore import explore as command

STATES_MAX = 80_000


def search(**options: Any) -> Verdict:
    return explore(SharingWorld(SharingWorldConfig(**options)), states_max=STATES_MAX)


def broken(variant: str) -> Counterexample:
    found = explore(sharing_world(variant), states_max=STATES_MAX).counterexample
    assert found is not None, f"{variant} holds"
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"jobs": 2, "hosts": 1},
        {"jobs": 1, "hosts": 2, "turns": 1, "losses": 1, "rounds": 2},
        {"jobs": 1, "hosts": 2, "turns": 1, "first": 1, "turn": 1, "losses": 1, "rounds": 2},
        {"jobs": 2, "hosts": 1, "turns": 3, "first": 1, "turn": 1, "operations": 3},
        {"jobs": 2, "hosts": 1, "turns": 2, "turn": 1, "capacity": 2, "operations": 1},
        {"jobs": 2, "hosts": 1, "turns": 3, "until": 1},
        {"jobs": 1, "hosts": 2, "turns": 1, "until": 1, "losses": 1, "rounds": 2},
        {"jobs": 1, "hosts": 2, "turns": 1, "host_crashes": 1, "rounds": 2},
        {"jobs": 1, "hosts": 1, "crashes": 1, "losses": 1, "rounds": 2},
        {"jobs": 1, "hosts": 1, "crashes": 1, "duplicates": 1, "rounds": 2},
        {"jobs": 1, "hosts": 2, "turns": 1, "operations": 1, "rounds": 1, "rule": Rule.EQUAL_INDEX},
        {"jobs": 2, "hosts": 1, "operations": 1, "rule": Rule.EQUAL_INDEX},
        {"jobs": 1, "hosts": 1, "crashes": 1, "losses": 1, "rounds": 2, "rule": Rule.EQUAL_INDEX},
    ],
    ids=str,
)
def test_the_product_holds(options: dict[str, Any]) -> None:
    verdict = search(**options)
    assert verdict.counterexample is None
    assert verdict.finished


class Unlike(SharingWorld):
    """Finds a run in which a seat has an operation on INA that another has on the fallback."""

    def violation(self, state: State) -> str | None:
        locals_ = [self.local(seat, at) for seat, at in enumerate(state[4:]) if at >= 0]
        mine, other = locals_
        is_same = mine.running == other.running >= 0
        return "unlike" if is_same and mine.is_ina is not other.is_ina else None


def test_a_seat_may_begin_a_turn_s_first_operation_by_the_fallback_and_all_can_end() -> None:
    """A world that has no margin, and holds (above): the operation is rescued."""
    size: dict[str, Any] = {"jobs": 1, "hosts": 2, "turns": 1, "rounds": 2, "losses": 1}
    found = explore(Unlike(SharingWorldConfig(**size)), states_max=STATES_MAX).counterexample
    assert found is not None
    assert "LOST" not in str(found.run), "it needs no fault"
    planned = explore(
        Unlike(SharingWorldConfig(**{**size, "losses": 0, "first": 1, "operations": 1})),
        states_max=STATES_MAX,
    )
    assert planned.counterexample is None, "before the first that is planned all go by the fallback"


@pytest.mark.parametrize("rule", list(Rule), ids=lambda rule: rule.value)
def test_reductions_change_no_verdict(rule: Rule) -> None:
    size: dict[str, Any] = {
        "jobs": 1,
        "hosts": 2,
        "turns": 1,
        "operations": 1,
        "rounds": 1,
        "losses": 1,
        "rule": rule,
    }
    full, reduced = search(**size, reduced=False), search(**size)
    assert full.counterexample is reduced.counterexample is None
    assert reduced.states < full.states


def test_hosts_that_decide_from_a_status_told_after_the_fact_start_two_jobs_at_once() -> None:
    found = broken("paper-status")
    assert found.kind is Kind.BROKEN
    assert found.rule.startswith("L2: jobs A and B")
    assert len(found.run) == 2


def test_a_commit_before_it_is_durable_gives_the_pool_away_twice() -> None:
    found = broken("no-persist")
    assert found.kind is Kind.BROKEN
    assert found.rule.startswith("L2")
    assert sum("CRASHES" in step for step in found.run) == 1


def test_a_size_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="hosts must be 1 to 4, not 9"):
        sharing_config("by-index", hosts=9)
    with pytest.raises(ConfigError, match="variant 'nonsense' does not exist"):
        sharing_config("nonsense")


def test_the_command_explores_both_rules(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    sizes = ["--jobs", "1", "--hosts", "1", "--turns", "1", "--losses", "1"]
    result = CliRunner().invoke(
        command, ["--world", "sharing", *sizes, "--json", str(path)], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    worlds = json.loads(path.read_text())["worlds"]
    assert [(one["rule"], one["violations"]) for one in worlds] == [("by-index", 0), ("equal-index", 0)]


def test_the_command_tells_a_counterexample_and_fails() -> None:
    result = CliRunner().invoke(
        command, ["--world", "sharing", "--variant", "paper-status"], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 1
    assert "L2: jobs A and B use the pool at once" in result.output
    assert "1. seat A/h0 starts an operation" in result.output
