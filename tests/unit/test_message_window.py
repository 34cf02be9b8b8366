"""The message window: FIFO, at most N in flight, slots, wrap, and what a peer can do wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.host.message_window import (
    MessageWindow,
    Offered,
    ResultAccepted,
    ResultArrived,
    SendCompleted,
    SendMessage,
    WindowAction,
    WindowConfig,
)
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant, MsgId

NOW = Instant(0)


def sends(actions: list[WindowAction]) -> list[int]:
    return [action.msg_id for action in actions if isinstance(action, SendMessage)]


def test_lets_out_at_most_n_messages_in_order() -> None:
    window = MessageWindow(WindowConfig(window_messages=4))
    assert sends(window.step(Offered(10), NOW)) == [0, 1, 2, 3]
    assert window.step(Offered(1), NOW) == []
    assert window.view().in_flight == 4


def test_a_result_is_accepted_before_the_send_that_it_makes_room_for() -> None:
    window = MessageWindow(WindowConfig(window_messages=2))
    window.step(Offered(3), NOW)
    window.step(SendCompleted(0), NOW)
    assert window.step(ResultArrived(0), NOW) == [ResultAccepted(MsgId(0), 0), SendMessage(MsgId(2), 2)]


def test_acknowledgements_do_not_advance_the_window() -> None:
    window = MessageWindow(WindowConfig(window_messages=2))
    window.step(Offered(9), NOW)
    assert window.step(SendCompleted(0), NOW) == []
    assert window.step(SendCompleted(1), NOW) == []
    assert window.view().in_flight == 2


def test_at_most_n_messages_may_be_sent_again() -> None:
    """The accelerator holds as many of each rank, whatever the others send meanwhile."""
    window = MessageWindow(WindowConfig(window_messages=2))
    assert sends(window.step(Offered(4), NOW)) == [0, 1]
    assert sends(window.step(ResultArrived(0), NOW)) == []  # the successor may lack message 0
    assert sends(window.step(ResultArrived(1), NOW)) == []
    assert sends(window.step(SendCompleted(0), NOW)) == [2]
    assert sends(window.step(SendCompleted(1), NOW)) == [3]


def test_ids_and_slots_run_on_through_the_wrap() -> None:
    window = MessageWindow(WindowConfig(window_messages=2, id_bits=3))
    seen = window.step(Offered(20), NOW)
    for serial in range(20):
        seen += window.step(SendCompleted(serial % 8), NOW)
        seen += window.step(ResultArrived(serial % 8), NOW)
    posted = [(action.msg_id, action.slot) for action in seen if isinstance(action, SendMessage)]
    assert posted == [(serial % 8, serial % 4) for serial in range(20)]


@pytest.mark.parametrize("event", [ResultArrived(1), ResultArrived(5), SendCompleted(1)])
def test_what_is_out_of_order_is_blamed_and_changes_nothing(event: ResultArrived | SendCompleted) -> None:
    window = MessageWindow(WindowConfig(window_messages=2))
    window.step(Offered(2), NOW)
    before = window.view()
    (blame,) = window.step(event, NOW)
    assert isinstance(blame, Blame)
    assert window.view() == before


def test_a_result_of_nothing_sent_is_blamed() -> None:
    window = MessageWindow(WindowConfig())
    (blame,) = window.step(ResultArrived(0), NOW)
    assert isinstance(blame, Blame)
    assert blame.rule == "result of a message not sent"


def test_explorations_of_the_paper_have_two_windows_unacknowledged() -> None:
    window = MessageWindow(WindowConfig(1, unacknowledged_messages=2))
    window.step(Offered(3), NOW)
    assert sends(window.step(ResultArrived(0), NOW)) == [1]
    assert sends(window.step(ResultArrived(1), NOW)) == []  # slot 0 still belongs to message 0
    assert sends(window.step(SendCompleted(0), NOW)) == [2]
    assert {WindowConfig(2, unacknowledged_messages=n).unacknowledged_messages for n in (2, 4)} == {2, 4}
    for wrong in (1, 5):
        with pytest.raises(LocalMisuse, match=f"^{wrong} messages without an acknowledgement, window 2$"):
            WindowConfig(2, unacknowledged_messages=wrong)


@pytest.mark.parametrize(("n", "bits"), [(0, 32), (3, 32), (6, 32), (8, 3)])
def test_windows_that_cannot_work_are_refused(n: int, bits: int) -> None:
    with pytest.raises(LocalMisuse):
        WindowConfig(window_messages=n, id_bits=bits)


def test_offering_less_than_nothing_is_misuse() -> None:
    with pytest.raises(LocalMisuse):
        MessageWindow(WindowConfig()).step(Offered(-1), NOW)


@given(
    exponent=st.integers(0, 3),
    script=st.lists(st.sampled_from(["offer", "result", "complete"]), max_size=200),
)
def test_invariants_hold_for_every_interleaving(exponent: int, script: list[str]) -> None:
    n = 1 << exponent
    window = MessageWindow(WindowConfig(window_messages=n, id_bits=5))
    order: list[int] = []
    for kind in script:
        view = window.view()
        if kind == "offer":
            actions = window.step(Offered(3), NOW)
        elif kind == "result" and view.in_flight:
            actions = window.step(ResultArrived(view.received % 32), NOW)
        elif kind == "complete" and view.unacknowledged:
            actions = window.step(SendCompleted(view.completed % 32), NOW)
        else:
            continue
        order += sends(actions)
        view = window.view()
        assert 0 <= view.in_flight <= n
        assert 0 <= view.unacknowledged <= n
        assert view.sent <= view.offered
        # Work-conserving: what is not sent is held back by a result or by an acknowledgement.
        assert view.sent == view.offered or n in (view.in_flight, view.unacknowledged)
    assert order == [serial % 32 for serial in range(len(order))]


# --- the same without a record for each message


def offered(messages: int) -> MessageWindow:
    """A window of two messages, which are sent."""
    window = MessageWindow(WindowConfig(2))
    window.offer(messages)
    assert window.sendable() == range(min(2, messages))
    return window


def test_a_window_takes_several_acknowledgements_at_once() -> None:
    window = offered(6)
    assert [window.accept(result) for result in range(2)] == [None, None]
    assert window.sendable() == range(2, 2), "a send has to be complete, too"
    assert window.complete((0, 1)) is None
    assert window.sendable() == range(2, 4)
    assert window.view().completed == 2
    assert window.complete(()) is None
    assert list(window.sendable()) == []


def test_acknowledgements_out_of_order_are_blamed_behind_what_was_good() -> None:
    window = offered(6)
    assert [window.accept(result) for result in range(2)] == [None, None]
    blamed = window.complete((0, 0))
    assert blamed == Blame("transport", "send completed out of order", "message 0 where 1 is due")
    assert window.sendable() == range(2, 3)


def test_acknowledgements_of_what_was_not_sent_are_blamed() -> None:
    window = offered(1)
    blamed = window.complete((0, 1))
    assert blamed == Blame("transport", "send completed out of order", "message 1 where 1 is due")
    assert window.view().completed == 1


def test_a_result_that_is_not_due_is_blamed_and_does_not_count() -> None:
    window = offered(2)
    blamed = window.accept(1)
    assert blamed == Blame("predecessor", "result out of order", "result 1 where 0 is due")
    assert window.view().received == 0
    assert [window.accept(result) for result in range(2)] == [None, None]
    blamed = window.accept(2)
    assert blamed == Blame("predecessor", "result of a message not sent", "result 2 where 2 is due")
    assert window.view().received == 2


def test_a_step_blames_behind_the_messages_that_it_lets_out() -> None:
    window = offered(6)
    blame = Blame("transport", "send completed out of order", "message 1 where 0 is due")
    assert window.step(SendCompleted(1), NOW) == [blame]
    window.offer(0)
    with pytest.raises(LocalMisuse, match="-1 messages offered"):
        window.offer(-1)


def test_serials_run_on_where_ids_wrap() -> None:
    window = MessageWindow(WindowConfig(1, id_bits=1))
    window.offer(4)
    for serial in range(3):
        assert window.sendable() == range(serial, serial + 1)
        assert window.accept(serial & 1) is None
        assert window.complete((serial & 1,)) is None


def test_a_result_is_taken_from_the_slot_of_its_id() -> None:
    window = MessageWindow(WindowConfig(1))
    window.offer(4)
    taken = []
    for serial in range(4):
        window.sendable()
        taken += window.step(ResultArrived(serial), NOW)
        window.complete((serial,))
    assert taken == [ResultAccepted(MsgId(serial), serial % 2) for serial in range(4)]
