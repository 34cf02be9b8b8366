"""Mistakes in push, pull and clock over trees, each with an overlay world that finds it."""

from __future__ import annotations

import pytest

from inaproto.sim.models.drawing import draw_overlay
from inaproto.sim.models.world import OverlayWorld
from tests.planted.overlay_faults import FAULTS, FINDS
from tests.planted.table import TABLE, overlay_section


def test_every_planted_fault_has_its_world() -> None:
    assert set(FINDS) == set(FAULTS)


def test_the_manual_has_them_all() -> None:
    assert TABLE.read_text().endswith(overlay_section())


@pytest.mark.parametrize("name", FINDS)
def test_a_world_finds_it(name: str) -> None:
    seed, rule = FINDS[name]
    with FAULTS[name]():
        broken = OverlayWorld(draw_overlay(seed, has_processes=False)).run().violation
    assert broken is not None
    assert broken.rule == rule
    assert OverlayWorld(draw_overlay(seed, has_processes=False)).run().violation is None
