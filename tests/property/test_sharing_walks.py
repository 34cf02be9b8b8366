"""Jobs that share a pool, in worlds too large to search: random orders with faults, then none, to the end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from inaproto.sim.explore.sharing.config import SharingWorldConfig
from inaproto.sim.explore.sharing.states import State
from inaproto.sim.explore.sharing.world import SharingWorld
from inaproto.wire.messages.sharing import Rule

FAULTY_STEPS = 120
HEALED_STEPS_MAX = 4_000
WALKS = 25
FAULTS: dict[str, Any] = {
    "losses": 3,
    "duplicates": 3,
    "crashes": 2,
    "host_crashes": 1,
    "early_timers": 3,
    "hasty": True,
    "reduced": False,
}
SIZES: tuple[dict[str, Any], ...] = (
    {"jobs": 2, "hosts": 3, "operations": 4, "turns": 4},
    {"jobs": 3, "hosts": 2, "operations": 3, "turns": 5, "turn": 1},
    {"jobs": 2, "hosts": 2, "operations": 5, "turns": 4, "margin": 1},
    {"jobs": 2, "hosts": 3, "operations": 5, "turns": 5, "turn": 2, "first": 2},
    {"jobs": 4, "hosts": 2, "operations": 4, "turns": 6, "turn": 1, "capacity": 2},
    {"jobs": 4, "hosts": 1, "operations": 6, "turns": 6, "capacity": 3},
)


@pytest.mark.parametrize("rule", list(Rule), ids=lambda rule: rule.value)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_no_walk_breaks_a_law_and_each_can_end(rule: Rule, size: dict[str, Any]) -> None:
    world = SharingWorld(SharingWorldConfig(rule=rule, **size, **FAULTS))
    for seed in range(WALKS):
        choice = random.Random(f"{seed}/sharing walk")
        (state,) = world.initial()
        for _ in range(FAULTY_STEPS):
            state = _step(world, state, choice, with_faults=True, seed=seed)
        for _ in range(HEALED_STEPS_MAX):
            if world.is_finished(state):
                break
            state = _step(world, state, choice, with_faults=False, seed=seed)
        assert world.is_finished(state), f"walk {seed} does not end"


def _step(world: SharingWorld, state: State, choice: random.Random, *, with_faults: bool, seed: int) -> State:
    if world.is_finished(state):
        return state
    found = [
        (step, after) for step, after in world.successors(state) if with_faults or not world.is_fault(step)
    ]
    assert found, f"walk {seed} is stuck"
    after = choice.choice(found)[1]
    assert world.violation(after) is None, f"walk {seed}: {world.violation(after)}"
    return after
