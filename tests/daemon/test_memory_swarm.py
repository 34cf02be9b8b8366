"""Real daemons under faults drawn from seeds; see :mod:`tests.clusters.swarm`.

More of them: ``INAPROTO_SEEDS=0:500``; one: ``INAPROTO_SEEDS=17:18``.
"""

from __future__ import annotations

import pytest

from tests.clusters.swarm import FAULTS, draw_config, run_swarm
from tests.seeds import seeds

SEEDS_DEFAULT = 10


@pytest.mark.parametrize("seed", seeds(SEEDS_DEFAULT))
def test_swarm(seed: int) -> None:
    run_swarm(seed)


def test_a_swarm_repeats() -> None:
    assert run_swarm(3) == run_swarm(3)


def test_the_default_seeds_draw_every_fault() -> None:
    drawn = {fault.kind for seed in range(SEEDS_DEFAULT) for fault in draw_config(seed).faults}
    assert drawn == set(FAULTS)
