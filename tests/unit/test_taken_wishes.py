"""Trees that a controller wishes, and what is told of them, event by event."""

from __future__ import annotations

import pytest

from inaproto.core.migration.taken_wishes import (
    Connected,
    Disconnected,
    Follow,
    Report,
    StatesAre,
    TakenWishes,
    WishAction,
    WishesCame,
    WishesView,
    WishEvent,
)
from inaproto.units import Instant
from inaproto.wire.messages.trees import TreeWished

A, B, C = (TreeWished(job, 1) for job in "abc")
Said = tuple[WishEvent, list[WishAction]]
TAKEN: list[Said] = [(WishesCame(2, 5, (A,)), [Follow((A,))])]
STARTED = StatesAre(())
SCRIPTS: dict[str, list[Said]] = {
    "parts_are_put_in_their_order": [
        (WishesCame(2, 5, (C,), 2, 3), []),
        (WishesCame(2, 5, (A,), 0, 3), []),
        (WishesCame(2, 5, (B,), 1, 3), [Follow((A, B, C))]),
        (WishesCame(2, 5, (B,), 1, 3), []),
    ],
    "older_ones_change_nothing": [
        *TAKEN,
        (WishesCame(2, 4, (B,)), []),
        (WishesCame(1, 9, (B,)), []),
        (WishesCame(2, 5, (B,)), [Follow((B,))]),
        (WishesCame(3, 1, (C,)), [Follow((C,))]),
    ],
    "newer_ones_take_the_place_of_parts_that_come": [
        (WishesCame(2, 5, (A,), 0, 2), []),
        (WishesCame(2, 6, (B,), 1, 2), []),
        (WishesCame(2, 5, (A,), 1, 2), []),
        (WishesCame(2, 6, (C,), 0, 2), [Follow((C, B))]),
    ],
    "a_part_behind_the_last_is_none": [(WishesCame(2, 5, (A,), 1, 1), []), *TAKEN],
    "in_another_session_parts_are_said_again": [
        (WishesCame(2, 5, (A,), 0, 2), []),
        (Connected(), []),
        (WishesCame(2, 5, (B,), 1, 2), []),
        (WishesCame(2, 4, (B,), 0, 1), []),
        (WishesCame(2, 5, (A,), 0, 2), [Follow((A, B))]),
    ],
    "what_became_of_them_is_told_once_in_a_session": [
        *TAKEN,
        (STARTED, []),
        (Connected(), []),
        (STARTED, [Report(2, 5, ())]),
        (STARTED, []),
        (WishesCame(2, 6, ()), [Follow(())]),
        (STARTED, [Report(2, 6, ())]),
        (Disconnected(), []),
        (WishesCame(2, 7, ()), [Follow(())]),
        (STARTED, []),
        (Connected(), []),
        (STARTED, [Report(2, 7, ())]),
    ],
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_what_becomes_of_wishes(script: list[Said]) -> None:
    taken = TakenWishes()
    for number, (event, actions) in enumerate(script):
        assert taken.step(event, Instant(0)) == actions, number
    assert taken.deadline is None


def test_what_was_taken_is_shown() -> None:
    taken = TakenWishes()
    assert taken.view() == WishesView(0, 0, ())
    taken.step(WishesCame(0, 0, (A,), 0, 2), Instant(0))
    taken.step(WishesCame(2, 5, (A,)), Instant(0))
    taken.step(WishesCame(2, 6, (B,), 0, 2), Instant(0))
    assert taken.view() == WishesView(2, 5, (A,))
