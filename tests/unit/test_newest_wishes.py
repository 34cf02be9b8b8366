"""Which wishes of controllers an agent takes (docs/protocol.md 17)."""

from __future__ import annotations

import pytest

from inaproto.core.grants.newest import NewestWishes


@pytest.mark.parametrize(
    ("term", "revision", "is_taken"),
    [
        (3, 7, True),
        (3, 8, True),
        (3, 6, False),
        (2, 9, False),
        (4, 1, True),  # revisions of another term go by themselves
    ],
)
def test_the_newest_are_taken_by_term_and_then_by_revision(term: int, revision: int, is_taken: bool) -> None:
    newest = NewestWishes()
    assert newest.take(3, 7)
    assert newest.take(term, revision) is is_taken
    assert newest.taken == ((term, revision) if is_taken else (3, 7))


def test_who_leads_no_more_wishes_nothing() -> None:
    newest = NewestWishes()
    assert newest.take(3, 7)
    assert newest.welcomed(4)
    assert not newest.take(3, 8)
    assert (newest.term, newest.taken) == (4, (3, 7))
    assert newest.take(4, 8)


def test_a_controller_of_an_earlier_term_does_not_lead() -> None:
    newest = NewestWishes()
    assert newest.welcomed(4)
    assert not newest.welcomed(3)
    assert newest.welcomed(4)


def test_who_has_heard_of_none_takes_those_of_any_controller() -> None:
    newest = NewestWishes()
    assert (newest.term, newest.taken) == (0, (0, 0))
    assert newest.welcomed(0)
    assert newest.take(0, 0)
