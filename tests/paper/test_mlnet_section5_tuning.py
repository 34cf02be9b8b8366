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


def test_section_5_only_a_clock_that_lasts_noticeably_longer_takes_a_change_back() -> None:
    """Of five looks the middle one counts: two slow ones are noise, whichever they are."""
    for after_ms, expected in (((10, 10, 11, 99, 99), []), ((10, 10, 12, 12, 12), ["worse"])):
        tuner = DegreeTuner(DegreeTuning(agreed=5), 8)
        assert [one.rule for one in _tuned(tuner, 9, lambda _: 10 * MS, link=950)] == ["link"]
        lasted = iter(after_ms)
        made = _tuned(tuner, 5, lambda _, lasted=lasted: next(lasted) * MS, link=600)  # type: ignore[misc]
        assert [one.rule for one in made] == expected


@pytest.mark.parametrize(
    ("waited", "link", "rule"),
    [(300, 950, None), (301, 849, None), (301, 850, "link"), (301, 401, None), (301, 400, "height")],
)
def test_section_5_a_link_is_full_or_idle_from_its_threshold_on(
    waited: int, link: int, rule: str | None
) -> None:
    tuner = DegreeTuner(DegreeTuning(), 4)
    looks = [tuner.step(replace(QUIET, waited_permille=waited, link_permille=link)) for _ in range(5)]
    made = looks[-1]
    assert (made and (made.what, made.rule)) == (rule and ("in-degree", rule))


@pytest.mark.parametrize(("waited", "rule"), [(300, None), (301, "waits"), (100, None), (99, "calm")])
def test_section_5_a_threshold_of_waiting_is_between(waited: int, rule: str | None) -> None:
    tuner = StalenessTuner(StalenessTuning(), 2)
    made = [tuner.step(replace(QUIET, waited_permille=waited)) for _ in range(3)][-1]
    assert (made and (made.what, made.rule)) == (rule and ("staleness", rule))


def test_section_5_staleness_does_not_drift_below_its_bound() -> None:
    tuner = StalenessTuner(StalenessTuning(staleness_min=2), 2)
    assert [tuner.step(replace(QUIET, change_ppm=10**6)) for _ in range(6)] == [None] * 6


def test_the_least_that_tunings_may_be() -> None:
    StalenessTuning(0, 0, 1, waited_little_permille=0, waited_much_permille=1000, agreed=1)
    DegreeTuning((1,), worse_permille=1, barred_looks=1)
    Look(0, 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: StalenessTuning(staleness_min=3, staleness_max=2), "tuning of staleness"),
        (lambda: StalenessTuning(waited_little_permille=300), "thresholds 300 and 300"),
        (lambda: StalenessTuning(agreed=0), "or 0 looks agree"),
        (lambda: StalenessTuning(drift_ppm_max=0), "tuning of staleness"),
        (lambda: StalenessTuner(StalenessTuning(), 9), "staleness 9"),
        (lambda: DegreeTuning(degrees=()), "in-degrees to choose from"),
        (lambda: DegreeTuning(degrees=(4, 2)), "in-degrees to choose from"),
        (lambda: DegreeTuning(barred_looks=0), "tuning of the in-degree"),
        (lambda: DegreeTuner(DegreeTuning(), 3), "in-degree 3"),
        (lambda: replace(QUIET, lasted_ns=0), "a look measures"),
        (lambda: replace(QUIET, clocks=-1), "a look measures"),
        (lambda: replace(QUIET, change_ppm=-1), "a look measures"),
    ],
    ids=range(12),
)
def test_tunings_without_sense_are_refused(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(LocalMisuse, match=says):
        wrong()
