"""Failures: drawn ones by their statistics and streams, given ones by what can happen."""

from __future__ import annotations

import json
from itertools import pairwise
from math import inf, nan

import pytest

from inaproto.errors import ConfigError
from inaproto_controller.simulate.failures import (
    FailureEvent,
    Part,
    Reliability,
    checked,
    document,
    draw_failures,
    parse,
)

COUNTS = {Part.HOST: 40, Part.SWITCH: 10}
KINDS = {Part.HOST: Reliability(1000.0, 50.0), Part.SWITCH: Reliability(400.0, 100.0)}
GIVEN = (
    FailureEvent(1.0, Part.HOST, 3, False),
    FailureEvent(1.0, Part.SWITCH, 3, False),
    FailureEvent(2.5, Part.HOST, 3, True),
    FailureEvent(9.0, Part.HOST, 3, False),
)


def test_drawn_failures_can_happen_and_are_as_long_and_far_apart_as_their_means_say() -> None:
    """Means over some 2000 and 4000 failures; bounds of four standard deviations."""
    until = 50_000.0
    events = draw_failures(COUNTS, KINDS, until=until, seed=3)
    assert checked(events, COUNTS) == events
    assert events[-1].seconds < until
    for part, kind in KINDS.items():
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(COUNTS[part]):
            own = [one for one in events if one.part is part and one.number == number]
            for earlier, later in pairwise(own):
                times[earlier.up].append(later.seconds - earlier.seconds)
        for up, mean in ((True, kind.mtbf), (False, kind.mttr)):
            count = len(times[up])
            assert count > 900
            # A horizon cuts off long times more often than short ones.
            assert sum(times[up]) / count == pytest.approx(mean, rel=4 / count**0.5 + mean / until)


def test_failures_depend_on_the_seed_and_on_nothing_else_that_fails() -> None:
    events = draw_failures(COUNTS, KINDS, until=5000, seed=3)
    assert draw_failures(COUNTS, KINDS, until=5000, seed=3) == events
    assert draw_failures(COUNTS, KINDS, until=5000, seed=4) != events
    hosts = draw_failures({Part.HOST: 40}, {Part.HOST: KINDS[Part.HOST]}, until=5000, seed=3)
    assert hosts == tuple(one for one in events if one.part is Part.HOST)
    fewer = draw_failures({Part.HOST: 7}, KINDS, until=2000, seed=3)
    assert fewer == tuple(one for one in hosts if one.number < 7 and one.seconds < 2000)


def test_what_never_fails_has_no_events() -> None:
    never = {Part.HOST: Reliability(inf, 1.0)}
    assert draw_failures(COUNTS, never, until=1e9, seed=1) == ()
    assert never[Part.HOST].availability == 1.0
    assert KINDS[Part.SWITCH].availability == pytest.approx(0.8)
    assert draw_failures(COUNTS, KINDS, until=0.0, seed=1) == ()


def test_failures_are_written_and_read_again() -> None:
    for events in (GIVEN, draw_failures(COUNTS, KINDS, until=5000, seed=3)):
        assert parse(json.dumps(document(events)), COUNTS) == events


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {2: FailureEvent(0.5, Part.HOST, 3, True)},
            "event 2: at 0.5 s; .* the last is 1.0",
        ),
        ({0: FailureEvent(-1.0, Part.HOST, 3, False)}, "event 0: at -1.0 s"),
        ({3: FailureEvent(inf, Part.HOST, 3, False)}, "event 3: at inf s"),
        ({3: FailureEvent(nan, Part.HOST, 3, False)}, "event 3: at nan s"),
        ({1: FailureEvent(1.0, Part.SWITCH, 10, False)}, "event 1: no switch 10; there are 10"),
        ({1: FailureEvent(1.0, Part.SWITCH, -1, False)}, "event 1: no switch -1"),
        ({1: FailureEvent(1.0, Part.ROW, 0, False)}, "event 1: no row 0; there are 0: say with row_racks"),
        ({2: FailureEvent(2.5, Part.HOST, 3, False)}, "event 2: host 3 is down already"),
        ({2: FailureEvent(2.5, Part.HOST, 4, True)}, "event 2: host 4 is up already"),
    ],
)
def test_given_failures_that_cannot_happen(change: dict[int, FailureEvent], message: str) -> None:
    events = [change.get(place, one) for place, one in enumerate(GIVEN)]
    with pytest.raises(ConfigError, match=message):
        checked(events, COUNTS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 1', '"version": 2', "version 2 is not 1"),
        ('"events"', '"event"', "an object with version and events"),
        ('"part": "switch"', '"part": "link"', "event 1: part 'link': host, switch or row"),
        ('"number": 3', '"number": true', "event 0: seconds a number"),
        ('"up": true', '"up": 1', "event 2: seconds a number"),
        ('"seconds": 9.0', '"second": 9.0', "event 3: an object with seconds, part, number, up"),
        ('"seconds": 9.0', '"seconds": NaN', "event 3: at nan"),
        ("}]}", "}]", "line 1"),
        ('"number": 3', '"number": ' + "9" * 5000, "digits"),
    ],
)
def test_bad_files_of_failures(old: str, new: str, message: str) -> None:
    text = json.dumps(document(GIVEN))
    assert old in text
    with pytest.raises(ConfigError, match=message):
        parse(text.replace(old, new, 1), COUNTS)


def test_bad_reliabilities_and_horizons() -> None:
    for mtbf, mttr in ((0.0, 1.0), (-1.0, 1.0), (nan, 1.0), (1.0, 0.0), (1.0, inf)):
        with pytest.raises(ConfigError):
            Reliability(mtbf, mttr)
    for until in (-1.0, inf, nan):
        with pytest.raises(ConfigError, match="until"):
            draw_failures(COUNTS, KINDS, until=until, seed=1)
    with pytest.raises(ConfigError, match="more than"):
        draw_failures(COUNTS, KINDS, until=1e12, seed=1)
