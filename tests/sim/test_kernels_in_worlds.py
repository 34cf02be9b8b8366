"""Worlds go the same way with compiled kernels and with their twins in numpy, frame by frame.

Longer: ``INAPROTO_SEEDS=0:2000 pytest tests/sim/test_kernels_in_worlds.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inaproto.sim.campaign.kinds import WorldKind, draw_kind
from inaproto.sim.frames.draw.swarm import WorldConfig
from tests.seeds import seeds
from tests.sim.worlds import run, small

USE = Callable[[str], None]
FOUND = (
    (WorldKind.MACHINES, 74),  # what came damaged counted as the newest packet, without kernels
    (WorldKind.SINGLE, 374),  # what came twice at once counted as a question, with kernels
    (WorldKind.SHARED, 614),  # an ACK did not name all that had come with what closed a gap, with kernels
)
"""Worlds that once did not."""


def same_with_both(config: WorldConfig, use_kernels: USE) -> None:
    results = []
    for kernels in ("compiled", "numpy"):
        use_kernels(kernels)
        result = run(config)
        assert result.violation is None, f"{result.violation}, {kernels} kernels"
        results.append((result.digest, result.events, result.fates, result.operations_done))
    assert results[0] == results[1]


@pytest.mark.parametrize("seed", seeds(24))
def test_both_go_the_same_way(seed: int, use_kernels: USE) -> None:
    same_with_both(small(seed), use_kernels)


@pytest.mark.parametrize(("kind", "number"), FOUND)
def test_both_go_the_same_way_where_they_once_did_not(kind: WorldKind, number: int, use_kernels: USE) -> None:
    same_with_both(draw_kind(number, kind), use_kernels)


def test_a_nak_behind_a_packet_as_long_is_no_ack_made_up() -> None:
    """Its checker once saw the first of each block alone."""
    assert run(draw_kind(462, WorldKind.SINGLE)).violation is None
