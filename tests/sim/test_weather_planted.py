"""Mistakes that the weather of real clusters shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from inaproto.sim.control.config import ControlConfig, ControlFault, FaultKind
from inaproto.sim.control.world import ControlWorld
from inaproto.units import MS
from tests.planted.weather_faults import FAULTS
from tests.sim.test_cluster_weather import config

POWER: Final = ControlFault(
    0, FaultKind.RACK_POWER, 0, 60 * MS, moment="an operation by the switches", occurrence=9
)
FINDS: Final[dict[str, tuple[ControlConfig, str]]] = {
    "lost_hosts_told_by_others_of_the_ring": (
        config("by-index", POWER, turn_operations=0, slice_ns=30 * MS, silent_ns=100 * MS),
        "no pool for a seat that stands still",
    ),
}


def test_every_planted_fault_has_its_world() -> None:
    assert set(FINDS) == set(FAULTS)


@pytest.mark.parametrize("name", FINDS)
def test_a_world_finds_it(name: str) -> None:
    given, rule = FINDS[name]
    with FAULTS[name]():
        broken = ControlWorld(given).run().violation
    assert broken is not None
    assert broken.rule == rule
    assert ControlWorld(given).run().violation is None


@pytest.mark.parametrize("name", FINDS)
def test_without_the_weather_it_is_not_found(name: str) -> None:
    given, _ = FINDS[name]
    with FAULTS[name]():
        assert ControlWorld(replace(given, faults=())).run().violation is None
