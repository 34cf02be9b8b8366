"""Random turns of rings in one pool, below random trees of real accelerators, whatever the links do.

Longer: ``INAPROTO_SEEDS=0:2000 pytest tests/property/test_pools.py``. One seed: ``INAPROTO_SEEDS=17:18``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest

from tests.property.pool_world import PoolWorld
from tests.seeds import seeds

SEEDS = seeds(24)


@pytest.mark.parametrize("seed", SEEDS)
def test_rings_that_wait_for_their_turn_all_finish_and_nobody_is_blamed(seed: int) -> None:
    PoolWorld(seed).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_breaks_the_rule_of_turns_gets_the_right_bytes_or_nothing(seed: int) -> None:
    PoolWorld(seed, disciplined=False).run_wild()


@pytest.mark.parametrize("seed", SEEDS)
def test_rings_that_move_between_their_turns_all_finish_and_nobody_is_blamed(seed: int) -> None:
    PoolWorld(seed, moves=0.7).run()


def test_rings_moved_in_these_worlds_while_copies_of_before_were_on_their_way() -> None:
    met: Counter[str] = Counter()
    for seed in (1, 16, 20):
        world = PoolWorld(seed, moves=1.0)
        world.run()
        met["moved"] += world.moved
        for accelerator in world.switches.values():
            met.update(accelerator.counters.dropped)
    assert met["moved"] > 15
    assert met["older than the tenant"], "of a turn that the pool has forgotten"


def test_the_worlds_meet_what_they_promise() -> None:
    met: Counter[str] = Counter()
    for seed in range(10):
        for disciplined in (True, False):
            world = PoolWorld(seed, disciplined=disciplined)
            if disciplined:
                world.run()
            else:
                world.run_wild()
            kind = "disciplined" if disciplined else "wild"
            for accelerator in world.switches.values():
                counters = asdict(accelerator.counters)
                for name, count in {**counters.pop("dropped"), **counters}.items():
                    met[f"{kind}: {name}"] += count
            met[f"{kind}: results"] += world.results
            met.update(f"{kind}: blamed for {blame.rule}" for blame in world.blames)
    for name in (
        "disciplined: pool_takeovers",
        "disciplined: stale_turns",
        "disciplined: replayed",
        "disciplined: notes_in",
        "disciplined: results",
        "wild: pool_conflicts",
        "wild: stale_turns",
        "wild: blamed for wrong epoch",
        "wild: results",
    ):
        assert met[name], f"{name} never happened in these worlds"
    assert not met["disciplined: pool_conflicts"]
