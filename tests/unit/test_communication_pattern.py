"""The pattern of a job, call by call, in steps of a few nanoseconds (MINA section IV-B); traces of models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.sharing.communication_pattern import (
    Loss,
    Pattern,
    PatternAction,
    PatternConfig,
    PatternEvent,
    PatternFound,
    PatternLost,
    PatternView,
    PatternWatch,
    Submitted,
    WaitBegan,
    WaitEnded,
)
from inaproto.core.sharing.model_trace import BYTES_LIMIT, ModelTrace
from inaproto.errors import ConfigError, LocalMisuse
from inaproto.units import Instant, S

LEAST = PatternConfig(0, 2, 0, 0.0, 0.0, 2, 2)
QUICK = replace(LEAST, history_operations_max=100, history_segments_max=100)
"""What repeats once is a step."""
TWO = Pattern((10, 20), (3, 5), 8)


class Calls:
    """Of one job, from nanosecond 100 on."""

    def __init__(self, config: PatternConfig = QUICK, **changes: Any) -> None:
        self.core = PatternWatch(replace(config, **changes))
        self.now = 100

    def at(self, event: PatternEvent, offset: int = 0) -> list[PatternAction]:
        return self.core.step(event, Instant(self.now + offset))

    def submits(self, *pairs: tuple[int, int]) -> list[PatternAction]:
        """(when, bytes)"""
        return [action for when, nbytes in pairs for action in self.at(Submitted(nbytes), when)]

    def segment(
        self, one: Pattern = TWO, *, wait: int | None = None, late: int = 0, took: int = 7
    ) -> list[PatternAction]:
        """Submissions, ``late``, and the wait behind them; what follows counts from its end."""
        found = self.submits(
            *((when + late, size) for when, size in zip(one.ready_ns, one.nbytes, strict=True))
        )
        wait = one.duration_ns if wait is None else wait
        found += self.at(WaitBegan(), wait)
        found += self.at(WaitEnded(), wait + took)
        self.now += wait + took
        return found

    def segments(self, *ones: Pattern) -> list[PatternAction]:
        return [action for one in ones for action in self.segment(one)]

    def known(self, *ones: Pattern) -> Calls:
        """With a pattern of these segments, from the first of which the open one is."""
        count = len(ones or (TWO,))
        for number in range(1000):
            self.segment((ones or (TWO,))[number % count])
            if self.core.view().pattern is not None and (number + 1) % count == 0:
                return self
        raise AssertionError("no pattern was found")


# --- configuration


def test_the_least_configuration_is_taken_and_nothing_below_it() -> None:
    numbers = "warmup_steps, moved_ns, moved_share, moved_scatter: must be 0 or more"
    kept = "history_segments_max, history_operations_max: must hold so many steps"
    for changes, why in (
        ({"warmup_steps": -1}, numbers),
        ({"moved_ns": -1}, numbers),
        ({"moved_share": -0.1}, numbers),
        ({"moved_scatter": -0.1}, numbers),
        ({"steps": 1}, "steps 1: a step is what repeats, so at least 2"),
        ({"history_segments_max": 1}, kept),
        ({"history_operations_max": 1}, kept),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(why)}$"):
            replace(LEAST, **changes)
    assert replace(LEAST) == LEAST


# --- patterns


def test_the_pattern_of_a_job_is_that_of_its_slowest_hosts() -> None:
    hosts = [
        Pattern((1, 2), (10, 20), 30, 1),
        Pattern((1, 2), (12, 18), 29, 2),
        Pattern((1, 2), (1, 1), 31, 0),
    ]
    assert Pattern.of_job(hosts) == Pattern((1, 2), (12, 20), 31, 2)
    assert Pattern.of_job(hosts[:1]) == hosts[0]
    assert Pattern.of_job([hosts[0], Pattern((1, 3), (1, 1), 1)]) is None
    assert Pattern.of_job([]) is None


def test_a_pattern_is_a_trace_in_seconds() -> None:
    assert Pattern((1, 2), (S, 2 * S), 4 * S).trace("job") == ModelTrace("job", 4.0, (1.0, 2.0), (1, 2))


@pytest.mark.parametrize(
    ("other", "by"),
    [
        (Pattern((10, 20), (3, 5), 8), 0),
        (Pattern((10, 20), (2, 9), 6), 4),
        (Pattern((10, 20), (9, 4), 10), 6),
        (Pattern((10, 20), (3, 4), 1), 7),
        (Pattern((10, 20), (3, 4), 17), 9),
    ],
)
def test_a_pattern_has_moved_by_what_moved_most(other: Pattern, by: int) -> None:
    assert TWO.moved_by(other) == other.moved_by(TWO) == by


# --- a step is found


def test_a_step_is_known_when_it_has_repeated_often_enough_behind_the_warm_up() -> None:
    calls = Calls(warmup_steps=1, steps=3)
    assert calls.core.view() == PatternView(None, 0, 0, 0, 0, 0)
    assert calls.segments(TWO, TWO, TWO) == []
    assert calls.core.view() == PatternView(None, 6, 1, 2, 0, 0), "the first may be the end of a step"
    assert calls.submits((3, 10)) == []
    assert calls.at(Submitted(20), 5) == []
    calls.at(WaitBegan(), 8)
    calls.now += 8
    assert calls.at(Submitted(10), 3) == [PatternFound(Pattern((10, 20), (3, 5), 8), 8)]
    assert calls.core.view() == PatternView(Pattern((10, 20), (3, 5), 8), 9, 3, 6, 1, 0)
    assert calls.core.deadline is None


def test_the_steps_of_the_warm_up_are_waited_for() -> None:
    calls = Calls(warmup_steps=4, steps=2)
    assert calls.segments(*[TWO] * 6) == []
    assert calls.submits((3, 10)) == [PatternFound(TWO, 12)]


def test_times_are_medians_over_the_last_steps() -> None:
    calls = Calls(steps=3)
    for ready, duration in (((90, 91), 99), ((1, 7), 8), ((3, 5), 100), ((2, 6), 9)):
        assert calls.segment(Pattern((10, 20), ready, duration)) == []
    assert calls.submits((1, 10)) == [PatternFound(Pattern((10, 20), (2, 6), 9), 8)]


def test_a_step_begins_where_the_last_wait_before_it_has_ended() -> None:
    """And where that is not told, where it began; what is told in the middle of a step says nothing."""
    calls = Calls()
    for _ in range(3):
        calls.submits((3, 10))
        calls.at(WaitEnded(), 4)
        calls.submits((5, 20))
        calls.at(WaitBegan(), 8)
        calls.at(WaitBegan(), 9)
        calls.at(WaitEnded(), 11)
        calls.now += 11
    assert calls.submits((3, 10)) == [PatternFound(TWO, 6)]
    silent = Calls()
    for _ in range(3):
        silent.submits((3, 10), (5, 20))
        silent.at(WaitBegan(), 8)
        silent.at(WaitBegan(), 12)
        silent.now += 12
    assert silent.submits((3, 10)) == [PatternFound(TWO, 6)]
    late = Calls()
    late.at(WaitBegan())
    late.at(WaitEnded(), 2)
    late.now += 2
    late.segments(TWO, TWO, TWO)
    assert late.submits((3, 10)) == [PatternFound(TWO, 6)], "a wait without operations ends nothing"


@pytest.mark.parametrize(
    ("turned", "warmup_steps", "step"),
    [(False, 0, 12), (True, 0, 10), (True, 1, 10), (False, 1, 12), (False, 2, 16)],
)
def test_a_step_of_several_waits_begins_behind_the_longest_time(
    turned: bool, warmup_steps: int, step: int
) -> None:
    ones = Pattern((10, 20), (6, 7), 8), Pattern((10, 40), (2, 2), 5)
    found = Calls(warmup_steps=warmup_steps).segments(*(ones[::-1] if turned else ones) * 8)
    assert found == [PatternFound(Pattern((10, 20, 10, 40), (6, 7, 17, 17), 20, 1), step)]


def test_of_periods_that_repeat_the_one_that_explains_most_is_the_step() -> None:
    """Two equal segments and a third that differs: the step of one is taken as long as no more was seen."""
    same, other = Pattern((10,), (4,), 6), Pattern((30,), (9,), 10)
    found = Calls().segments(same, *(same, same, other) * 4, same, same)
    assert found == [
        PatternFound(same, 3),
        PatternLost(same, Loss.SIZE, 3),
        PatternFound(same, 6),
        PatternLost(same, Loss.SIZE, 6),
        PatternFound(Pattern((30, 10, 10), (9, 21, 34), 36, 2), 9),
    ]


# --- a pattern is lost


@pytest.mark.parametrize(
    ("pairs", "waits", "loss", "operation"),
    [
        ([(3, 11)], False, Loss.SIZE, 6),
        ([(3, 10), (5, 21)], False, Loss.SIZE, 7),
        ([(3, 10), (5, 20), (6, 10)], False, Loss.MORE, 8),
        ([(3, 10)], True, Loss.EARLY_WAIT, 7),
    ],
)
def test_another_size_or_number_is_no_step_of_the_pattern(
    pairs: Sequence[tuple[int, int]], waits: bool, loss: Loss, operation: int
) -> None:
    calls = Calls()
    calls.segments(TWO, TWO, TWO)
    found = calls.submits(*pairs)
    if waits:
        found += calls.at(WaitBegan(), 8)
    assert found == [PatternFound(TWO, 6), PatternLost(TWO, loss, operation)]
    view = calls.core.view()
    assert (view.pattern, view.found, view.lost) == (None, 1, 1)


def test_a_pattern_that_was_lost_is_found_again() -> None:
    calls = Calls().known()
    for times in (1, 2):
        (lost,) = calls.segment(Pattern((10, 20, 30 * times), (3, 5, 6), 8))
        assert isinstance(lost, PatternLost)
        assert calls.segments(TWO, TWO) == []
        assert calls.segment() == [PatternFound(TWO, lost.operation + 5)]
        view = calls.core.view()
        assert (view.found, view.lost) == (times + 1, times)


def test_sizes_of_a_step_of_several_waits_are_followed_round_and_round() -> None:
    ones = (Pattern((10, 20), (6, 7), 8), Pattern((40,), (2,), 5), Pattern((80,), (1,), 5))
    whole = Pattern((10, 20, 40, 80), (6, 7, 17, 28), 32, 2)
    calls = Calls().known(*ones)
    assert calls.segments(*ones * 5) == []
    count = calls.core.view().operations
    assert calls.segments(*ones[:2], ones[1]) == [PatternLost(whole, Loss.SIZE, count + 3)]


def test_starts_of_a_step_of_several_waits_are_compared_over_whole_steps() -> None:
    ones = (Pattern((10, 20), (6, 7), 8), Pattern((40,), (2,), 5))
    calls = Calls(moved_ns=4).known(*ones)
    count = calls.core.view().operations
    moved = (replace(ones[0], ready_ns=(12, 12), duration_ns=14), ones[1])
    lost, found = calls.segments(*moved * 5)
    assert isinstance(lost, PatternLost)
    assert lost.operation == count + 9, "three steps later: the second one is compared with one that had not"
    assert found == PatternFound(Pattern((10, 20, 40), (12, 12, 23), 26, 1), lost.operation)


@pytest.mark.parametrize(
    ("changes", "late"),
    [
        ({"moved_ns": 4}, 4),
        ({"moved_share": 0.25}, 2),
        ({"moved_ns": 1, "moved_share": 0.25}, 2),
        ({"moved_ns": 3, "moved_share": 0.25}, 3),
    ],
)
def test_starts_that_move_by_more_than_is_allowed_are_another_pattern(
    changes: dict[str, Any], late: int
) -> None:
    moved = Pattern((10, 20), (3 + late, 5 + late), 8)
    calls = Calls(**changes).known()
    assert calls.segments(*[moved] * 8) == []
    calls = Calls(**changes).known()
    moved = Pattern((10, 20), (4 + late, 5 + late), 8)
    lost, found, *more = calls.segments(*[moved] * 8)
    assert isinstance(lost, PatternLost)
    assert (lost.pattern, lost.loss, more) == (TWO, Loss.MOVED, [])
    assert found == PatternFound(moved, 14), "compared at 10 with one that had moved, and at 14 with two"
    assert lost.operation == 14
    view = calls.core.view()
    assert (view.pattern, view.found, view.lost) == (moved, 2, 1)


def test_starts_that_scatter_must_move_by_more() -> None:
    base = Pattern((10, 20), (3, 15), 20)
    for scatter, is_lost in ((1.9, True), (2.0, False)):
        calls = Calls(steps=3, moved_scatter=scatter).known(base)
        found = calls.segments(*(replace(base, ready_ns=(5 + late, 15)) for late in (0, 4, 2) * 3))
        assert [type(one) for one in found] == [PatternLost, PatternFound] * is_lost


# --- bounds


def test_what_is_kept_is_bounded_by_segments() -> None:
    calls = Calls(history_segments_max=3, warmup_steps=99)
    calls.segments(*[TWO] * 20)
    view = calls.core.view()
    assert (view.segments_kept, view.operations_kept, view.operations) == (3, 6, 40)


@pytest.mark.parametrize(("most", "kept"), [(5, 4), (6, 6)])
def test_what_is_kept_is_bounded_by_operations(most: int, kept: int) -> None:
    calls = Calls(history_operations_max=most, warmup_steps=99)
    calls.segments(*[TWO] * 20)
    view = calls.core.view()
    assert (view.segments_kept, view.operations_kept) == (kept // 2, kept)


def test_a_job_that_does_not_wait_is_forgotten_and_begins_anew() -> None:
    calls = Calls(history_operations_max=6).known(Pattern((10,), (4,), 6))
    many = [(4 + number, 10) for number in range(6)]
    (lost,) = calls.submits(*many)
    assert isinstance(lost, PatternLost)
    assert lost.loss is Loss.MORE
    assert calls.core.view().operations_kept > 0
    assert calls.submits((11, 10)) == []
    view = calls.core.view()
    assert (view.segments_kept, view.operations_kept) == (0, 0)
    calls.now += 20
    assert calls.segments(TWO, TWO, TWO) == [], "the first of them is cut off"
    assert [type(one) for one in calls.submits((3, 10))] == [PatternFound]


def test_an_operation_of_no_bytes_is_misuse_and_changes_nothing() -> None:
    calls = Calls()
    before = calls.core.view()
    for nbytes in (0, -1):
        with pytest.raises(LocalMisuse, match=f"^an all-reduce of {nbytes} bytes$"):
            calls.at(Submitted(nbytes))
    assert calls.core.view() == before
    assert calls.submits((1, 1)) == []


# --- traces


def decoded(**changes: Any) -> ModelTrace:
    fields = {"duration": 3, "allreduces": [{"start": 0, "size": 1}, {"start": 2, "size": 2.0}]}
    return ModelTrace.decode("mine", {**fields, **changes})


def test_a_trace_is_read() -> None:
    assert decoded() == ModelTrace("mine", 3.0, (0.0, 2.0), (1, 2))
    assert decoded(duration=0, allreduces=({"start": 1.5, "size": BYTES_LIMIT - 1},)) == ModelTrace(
        "mine", 0.0, (1.5,), (BYTES_LIMIT - 1,)
    )
    assert all(isinstance(at, float) for at in (decoded().duration, *decoded().ready))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"allreduces": None}, "needs a duration, and a list of allreduces"),
        ({"allreduces": []}, "needs all-reduces whose starts ascend from 0"),
        (
            {"allreduces": [{"start": 2, "size": 1}, {"start": 1, "size": 1}]},
            "needs all-reduces whose starts ascend from 0",
        ),
        ({"allreduces": [{"start": -1, "size": 1}]}, "needs all-reduces whose starts ascend from 0"),
        ({"allreduces": [{"start": 0, "size": 0}]}, "sizes and duration must be positive"),
        ({"duration": -1}, "sizes and duration must be positive"),
        (
            {"allreduces": [{"start": 0, "size": BYTES_LIMIT}]},
            f"an all-reduce of {BYTES_LIMIT} bytes or more",
        ),
        ({"duration": "inf"}, "duration and starts must be finite"),
        ({"allreduces": [{"start": float("nan"), "size": 1}]}, "duration and starts must be finite"),
        ({"allreduces": [{"size": 1}]}, "KeyError('start')"),
        ({"allreduces": [{"start": 1}]}, "KeyError('size')"),
        ({"duration": "long"}, "ValueError(\"could not convert string to float: 'long'\")"),
        ({"allreduces": [{"start": 0, "size": float("inf")}]}, "OverflowError("),
        ({"duration": []}, "TypeError("),
    ],
)
def test_a_trace_that_cannot_be_says_why(changes: dict[str, Any], why: str) -> None:
    end = "" if why.endswith("(") else "$"
    with pytest.raises(ConfigError, match=f"^model trace mine: {re.escape(why)}{end}"):
        decoded(**changes)


def test_a_trace_is_a_mapping_with_a_duration() -> None:
    with pytest.raises(ConfigError, match="needs a duration, and a list of allreduces"):
        ModelTrace.decode("mine", [1])
    with pytest.raises(ConfigError, match=r"^model trace mine: KeyError\('duration'\)$"):
        ModelTrace.decode("mine", {"allreduces": []})
