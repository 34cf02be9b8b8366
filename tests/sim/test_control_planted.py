"""Mistakes in sharing and in slots, each with a control world that finds it."""

from __future__ import annotations

import pytest

from inaproto.sim.control.drawing import draw_control
from inaproto.sim.control.world import ControlWorld
from tests.planted.sharing_faults import FAULTS

FINDS = {
    "lease_ignored": (2, "no deadline without work"),
    "lease_too_long": (7, "no lock for ever"),
    "drained_too_soon": (7, "pool never shared"),
    "granted_without_room": (2, "pool never shared"),
    "ina_operation_not_looked_at": (12, "pool never shared"),
    "turns_forgotten": (83, "pool never shared"),
    "slot_too_many": (21, "slots kept"),
}


def test_every_planted_fault_has_its_world() -> None:
    assert set(FINDS) == set(FAULTS)


@pytest.mark.parametrize("name", FINDS)
def test_a_world_finds_it(name: str) -> None:
    seed, rule = FINDS[name]
    with FAULTS[name]():
        broken = ControlWorld(draw_control(seed)).run().violation
    assert broken is not None
    assert broken.rule == rule
    assert ControlWorld(draw_control(seed)).run().violation is None
