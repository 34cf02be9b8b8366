"""What the bench says when its guest fails; the guest itself: tests/hil."""

from __future__ import annotations

import pytest

from inaproto_hil.softroce.guest import GuestFailed, guest_failure_alone


def test_a_guest_that_fails_says_so_whatever_nurseries_are_around_it() -> None:
    with pytest.raises(GuestFailed, match="no boot"), guest_failure_alone():
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [GuestFailed("no boot")])])
    with pytest.raises(GuestFailed, match="bare"), guest_failure_alone():
        raise GuestFailed("bare")


def test_what_else_failed_is_not_hidden() -> None:
    with pytest.raises(ExceptionGroup) as group, guest_failure_alone():
        raise ExceptionGroup("outer", [GuestFailed("no boot"), ValueError("ours")])
    assert group.group_contains(ValueError)
