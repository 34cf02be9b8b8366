"""Staleness and in-degree tuned at run time (MLNet section 5, its future work)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.models.tuning import (
    Decision,
    DegreeTuner,
    DegreeTuning,
    Look,
    StalenessTuner,
    StalenessTuning,
)
from inaproto.errors import LocalMisuse
from inaproto.units import MS

QUIET = Look(clocks=1, lasted_ns=10 * MS, waited_permille=0, link_permille=500, change_ppm=100)
LOADED = replace(QUIET, waited_permille=600)


def test_section_5_a_loaded_network_raises_staleness_one_by_one_and_a_quiet_one_lowers_it() -> None:
    tuner = StalenessTuner(StalenessTuning(staleness_max=3), 0)
    raised = [tuner.step(LOADED) for _ in range(12)]
    assert [(made.old, made.new, made.rule) for made in raised if made] == [
        (0, 1, "waits"),
        (1, 2, "waits"),
        (2, 3, "waits"),
    ]
    assert [nth for nth, made in enumerate(raised) if made] == [2, 5, 8], "three looks agree each time"
    lowered = [made for _ in range(12) if (made := tuner.step(QUIET))]
    assert [(made.new, made.rule) for made in lowered] == [(2, "calm"), (1, "calm"), (0, "calm")]


def test_section_5_weights_that_move_much_allow_less_staleness_at_once() -> None:
    tuner = StalenessTuner(StalenessTuning(drift_ppm_max=20_000), 8)
    assert tuner.step(replace(LOADED, change_ppm=5_000)) is None, "8 clocks are twice the tolerance, not more"
    made = tuner.step(replace(LOADED, change_ppm=5_001))
    assert made is not None
    assert (made.old, made.new, made.rule) == (8, 3, "drift")


def test_section_5_as_the_model_converges_staleness_is_allowed_where_it_is_of_use() -> None:
    tuner = StalenessTuner(StalenessTuning(staleness_max=4), 0)
    chosen = []
    for change in [100_000] * 6 + [10_000] * 9 + [4_000] * 12:
        tuner.step(replace(LOADED, change_ppm=change))
        chosen.append(tuner.staleness)
    assert chosen[5] == 0
    assert chosen[14] == 2, "2 clocks of 1 % are the tolerance of 2 %"
    assert chosen[-1] == 4


def test_section_5_between_the_thresholds_nothing_changes() -> None:
    tuner = StalenessTuner(StalenessTuning(), 2)
    for nth in range(100):
        assert tuner.step(replace(QUIET, waited_permille=101 + nth * 198 // 99)) is None


@given(st.lists(st.sampled_from([0, 90, 110, 290, 310, 900]), max_size=60), st.integers(0, 8))
def test_section_5_looks_that_do_not_agree_change_nothing(waited: list[int], staleness: int) -> None:
    """Hysteresis: two changes are three looks apart, and those three said the same."""
    tuner, changed = StalenessTuner(StalenessTuning(), staleness), list[int]()
    for nth, permille in enumerate(waited):
        made = tuner.step(replace(QUIET, waited_permille=permille))
        assert 0 <= tuner.staleness <= 8
        if made is not None:
            changed.append(nth)
            said = waited[nth - 2 : nth + 1]
            assert all(one > 300 for one in said) or all(one < 100 for one in said)
            assert abs(made.new - made.old) == 1
    assert all(later - earlier >= 3 for earlier, later in pairwise(changed))


# --- in-degree


def _clock_ns(best: int) -> Callable[[int], int]:
    """How long a clock lasts with an in-degree: longer, the further it is from the best."""
    return lambda degree: 10 * MS * max(degree, best) // min(degree, best)


def _tuned(tuner: DegreeTuner, looks: int, lasts: Callable[[int], int], link: int) -> list[Decision]:
    made = list[Decision]()
    for nth in range(looks):
        look = Look(
            clocks=nth, lasted_ns=lasts(tuner.degree), waited_permille=700, link_permille=link, change_ppm=0
        )
        decision = tuner.step(look)
        if decision is not None:
            made.append(decision)
    return made


def test_section_5_a_full_link_wants_fewer_children_and_an_idle_one_a_flatter_tree() -> None:
    tuner = DegreeTuner(DegreeTuning(), 8)
    assert [(one.new, one.rule) for one in _tuned(tuner, 20, _clock_ns(2), link=950)] == [
        (4, "link"),
        (2, "link"),
    ]
    assert [(one.new, one.rule) for one in _tuned(tuner, 30, _clock_ns(16), link=100)] == [
        (4, "height"),
        (8, "height"),
        (16, "height"),
    ]


def test_section_5_a_change_that_makes_it_worse_is_taken_back_and_not_tried_again_for_a_while() -> None:
    tuner = DegreeTuner(DegreeTuning(barred_looks=20), 8)
    made = _tuned(tuner, 31, _clock_ns(8), link=950)
    assert [(one.old, one.new, one.rule) for one in made] == [
        (8, 4, "link"),
        (4, 8, "worse"),
        (8, 4, "link"),
    ]
    assert "before it was 10.000 ms" in made[1].why


def test_section_5_who_does_not_wait_keeps_the_tree() -> None:
    tuner = DegreeTuner(DegreeTuning(), 8)
    for link in (0, 500, 1000) * 10:
        assert tuner.step(replace(QUIET, link_permille=link)) is None


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 100)), max_size=80))
def test_section_5_an_in_degree_stays_one_of_those_to_choose_from(looks: list[tuple[int, int, int]]) -> None:
    tuner, changed = DegreeTuner(DegreeTuning(), 4), list[int]()
    for nth, (waited, link, lasted) in enumerate(looks):
        made = tuner.step(Look(nth, lasted * MS, waited, link, 0))
        assert tuner.degree in (2, 4, 8, 16)
        if made is not None:
            assert made.new == tuner.degree != made.old
            changed.append(nth)
    assert all(later - earlier >= 3 for earlier, later in pairwise(changed))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: StalenessTuning(staleness_min=3, staleness_max=2),
        lambda: StalenessTuning(waited_little_permille=300),
        lambda: StalenessTuning(agreed=0),
        lambda: StalenessTuning(drift_ppm_max=0),
        lambda: StalenessTuner(StalenessTuning(), 9),
        lambda: DegreeTuning(degrees=()),
        lambda: DegreeTuning(degrees=(4, 2)),
        lambda: DegreeTuning(barred_looks=0),
        lambda: DegreeTuner(DegreeTuning(), 3),
        lambda: replace(QUIET, lasted_ns=0),
        lambda: replace(QUIET, change_ppm=-1),
    ],
    ids=range(11),
)
def test_tunings_without_sense_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(LocalMisuse):
        wrong()
