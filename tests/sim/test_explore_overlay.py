"""Push, pull and clock explored: whatever the order, every rule holds and all can finish."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from inaproto.errors import ConfigError
from inaproto.sim.explore.engine import Verdict, explore
from inaproto.sim.explore.overlay_config import OverlayWorldConfig
from inaproto.sim.explore.overlay_world import OverlayExplored
from inaproto_hil.explore import explore as command
from tests.planted.overlay_faults import FAULTS


def explored(**sizes: Any) -> Verdict:
    return explore(OverlayExplored(OverlayWorldConfig(**sizes)), states_max=60_000)


@pytest.mark.parametrize("tree", ["flat", "interior", "chain"])
def test_without_faults_every_order_ends(tree: str) -> None:
    verdict = explored(tree=tree, crashes=0)
    assert verdict.counterexample is None
    assert verdict.finished >= 1


def test_with_staleness_every_order_ends() -> None:
    verdict = explored(tree="pair", staleness=1, clocks=2, crashes=0)
    assert verdict.counterexample is None
    assert verdict.finished >= 1


def test_connections_that_break_change_nothing() -> None:
    verdict = explored(tree="pair", crashes=0, resets=1)
    assert verdict.counterexample is None
    assert verdict.states > 300


@pytest.mark.parametrize("fault", ["merged_told_too_soon", "acknowledges_before_durable"])
def test_a_mistake_is_found(fault: str) -> None:
    with FAULTS[fault]():
        found = explored(tree="pair", crashes=0).counterexample
    assert found is not None
    assert "on the disk is" in found.rule


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="tree 'star' does not exist"):
        OverlayWorldConfig(tree="star")
    with pytest.raises(ConfigError, match="clocks must be a multiple"):
        OverlayWorldConfig(staleness=1)
    with pytest.raises(ConfigError, match="crashes must be 0 to 2"):
        OverlayWorldConfig(crashes=3)


def test_the_command_explores_it() -> None:
    asked = ["--world", "overlay", "--variant", "interior"]
    done = CliRunner().invoke(command, asked, catch_exceptions=False)
    assert done.exit_code == 0
    assert "violations" in done.output
    done = CliRunner().invoke(command, [*asked, "--set", "size=3"], catch_exceptions=False)
    assert done.exit_code == 2
    assert "--set size: there are tree" in done.output
