"""The staleness of a worker that names none (MLNet section 5): what its host measures, and what follows."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.core.models.tuning import StalenessTuning
from inaproto.daemon.models.staleness_choice import CHANGE_PPM_MAX, LOOK_CLOCKS, StalenessChoice, change_ppm
from inaproto.units import MS, Instant

TUNING = StalenessTuning(staleness_max=4)


def _train(choice: StalenessChoice, clocks: int, *, waits_ms: int, moves: float, first: int = 0) -> list[int]:
    """A worker that computes for 10 ms; its weights of length 1 move so far in a clock. What was chosen."""
    chosen, now = [], first * 1000 * MS
    for clock in range(first, first + clocks):
        choice.asked(Instant(now))
        now += waits_ms * MS
        angle = moves * clock
        choice.answered(clock, [np.array([np.cos(angle)]), np.array([np.sin(angle)])], Instant(now))
        now += 10 * MS
        chosen.append(choice.staleness)
    return chosen


def test_a_worker_that_waits_much_gets_more_staleness_up_to_that_of_the_trees() -> None:
    choice = StalenessChoice("m", TUNING, 0)
    chosen = _train(choice, 100, waits_ms=20, moves=0.001)
    assert [chosen.index(staleness) for staleness in (1, 2, 3, 4)] == [
        LOOK_CLOCKS * looks for looks in (3, 6, 9, 12)
    ]
    assert choice.status()["decisions"][0].startswith("staleness 0 -> 1 (waits): at clock 15: pulls waited 6")


def test_weights_that_move_much_end_staleness_at_the_first_look() -> None:
    choice = StalenessChoice("m", TUNING, 4)
    chosen = _train(choice, 7, waits_ms=20, moves=0.05)
    assert chosen == [4] * LOOK_CLOCKS + [0, 0]
    assert choice.decisions[0].rule == "drift"


def test_who_waits_little_has_fresh_weights() -> None:
    choice = StalenessChoice("m", TUNING, 2)
    assert _train(choice, 60, waits_ms=0, moves=0.001)[-1] == 0


def test_a_worker_whose_clock_went_back_is_looked_at_anew() -> None:
    choice = StalenessChoice("m", TUNING, 0)
    _train(choice, 4, waits_ms=20, moves=0.001, first=100)
    _train(choice, 4, waits_ms=20, moves=0.001, first=90)
    assert not choice.decisions


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0),
        ([0.0, 0.0], [3.0, 4.0], 1_000_000),
        ([3.0, 4.5], [3.0, 4.0], 100_000),
        ([1.0, 0.0], [0.0, 0.0], CHANGE_PPM_MAX),
        ([0.0, 0.0], [np.nan, 1.0], CHANGE_PPM_MAX),
    ],
)
def test_change_is_relative_to_the_length_of_the_weights(
    before: list[float], after: list[float], expected: int
) -> None:
    cut = [np.array(before[:1]), np.array(before[1:])], [np.array(after[:1]), np.array(after[1:])]
    assert change_ppm(*cut) == expected


def test_whole_numbers_do_not_overflow() -> None:
    big = np.array([1 << 62, -(1 << 62)])
    assert change_ppm([big], [big]) == 0
    assert change_ppm([big], [-big]) == 2_000_000
