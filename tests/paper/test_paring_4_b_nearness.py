"""PARING section IV-B asks how far a tree may be from the best; on random masks it is measured here.

Some masks of the forty that ``tests/figures`` measures, times included.
"""

from __future__ import annotations

import pytest

from inaproto_controller.planning.paring.comparison import Compared, Mask, comparisons


@pytest.fixture(scope="module")
def compared() -> list[Compared]:
    return list(comparisons(range(6, 12)))


def test_the_highest_rate_on_all_masks_with_few_hops_too_many(compared: list[Compared]) -> None:
    assert all(row.is_proved for row in compared)
    assert all(row.fast_rate == row.rate for row in compared)
    gaps = [row.fast_gap for row in compared]
    assert min(gaps) >= 0
    assert max(gaps) <= 0.10
    assert sum(gaps) / len(gaps) <= 0.03


def test_the_printed_algorithm_misses_the_highest_rate(compared: list[Compared]) -> None:
    assert all(row.printed_rate < row.rate for row in compared)
    assert all(row.printed_gap >= 0 for row in compared)


def test_a_seed_draws_a_mask() -> None:
    masks = [Mask.drawn(seed) for seed in range(40)]
    assert len({(mask.network.capacities, mask.task) for mask in masks}) == 40
    for mask in masks:
        assert 2 <= len(mask.network.programmable) <= 16
        assert 8 <= mask.task.workers <= 40
        assert Mask.drawn(masks.index(mask)) == mask
