"""The vectorised accelerator against the per-packet one, on seeded fabrics with bad weather.

Longer: ``INAPROTO_SEEDS=0:5000 pytest tests/property/test_accelerator_against_reference.py``.
One seed: ``INAPROTO_SEEDS=17:18``.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from tests.property.accelerator_world import World
from tests.seeds import seeds

SEEDS: Final = seeds(40)
SOMETIMES: Final = frozenset(
    {
        "replayed",
        "gaps_signalled",
        "results_out",
        "bridged",
        "wrong ICRC",
        "first packet of the message not seen",
        "older than the tenant",
        "frame shorter than an Ethernet header",
        "connection not registered",
        "no INA header",
        "wrong ring",
        "wrong key",
        "wrong epoch",
        "wrong rank",
        "wrong ring size",
    }
)
"""What must have happened in some world, or the sweep does not test what it says."""


@pytest.mark.parametrize("seed", SEEDS)
def test_same_frames_faults_and_counters_as_packet_by_packet(seed: int) -> None:
    World(seed).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_that_disagree_fault_the_ring_alike_and_get_no_result(seed: int) -> None:
    world = World(seed, disagreement=True)
    world.run()
    ring = world.rings[0]
    assert ring.disagrees
    assert [(ring_id, rule) for ring_id, _, rule in world.faults] == [
        (ring.spec.ring_id, "operations differ")
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_result_is_exact_and_every_ring_finishes_with_blocks_as_ports_deliver_them(seed: int) -> None:
    World(seed, exact=False).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_result_is_exact_and_every_ring_finishes_where_ports_are_looked_at_together(seed: int) -> None:
    World(seed, rounds=True).run()


def test_a_seed_is_one_history() -> None:
    first, second = World(7), World(7)
    first.run()
    second.run()
    assert first.digest == second.digest
    assert World(8).digest != first.digest


def test_the_sweep_meets_what_it_promises() -> None:
    met: Counter[str] = Counter()
    for seed in range(20):
        world = World(seed)
        world.run()
        met.update(world.events())
    assert {name for name, count in met.items() if count} >= SOMETIMES
