"""Confidence intervals, against SciPy's."""

from __future__ import annotations

import pytest
from scipy import stats

from inaproto_controller.simulate.confidence import CONFIDENCE, half_width, student_t
from inaproto_controller.simulate.scenario.statistics import mean_of
from inaproto_hil.evaluation.spread import spread

VALUES = [0.91, 0.95, 0.89, 0.97, 0.93]


@pytest.mark.parametrize("degrees", [*range(1, 40), 99, 100, 999, 9999])
def test_student_s_t_is_exact(degrees: int) -> None:
    assert student_t(degrees) == pytest.approx(stats.t.ppf((1 + CONFIDENCE) / 2, degrees), rel=1e-11)


def test_intervals_are_student_s() -> None:
    low, high = stats.t.interval(0.95, len(VALUES) - 1, loc=stats.tmean(VALUES), scale=stats.sem(VALUES))
    assert half_width(VALUES) == pytest.approx((high - low) / 2)


def test_all_intervals_are_these() -> None:
    assert mean_of([*VALUES, None]).half_width == half_width(VALUES) == spread(VALUES).half_width


@pytest.mark.parametrize("values", [[], [1.0]])
def test_there_is_none_of_less_than_two(values: list[float]) -> None:
    assert half_width(values) is None
