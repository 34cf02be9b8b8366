"""One rank of the ring of hosts: when it starts, adds, completes, takes, passes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.host.engines.hosts import Combine, Place, PostSlot
from inaproto.core.host.engines.ring import RingAllReduceEngine
from inaproto.core.host.operation_queue import OperationQueue, Source
from inaproto.core.host.operations import (
    Fail,
    OperationDone,
    OperationFailed,
    Overdue,
    PostKept,
    PostMessage,
    PostNeutral,
    RingBroken,
    SendCompleted,
    Stalled,
    Submit,
    TakeResult,
    Woke,
)
from inaproto.core.host.recovery import Recovery
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant, OpIndex
from inaproto.wire.host_header import HOST_HEADER_BYTES, HostHeader
from inaproto.wire.ina_header import Dtype
from tests.unit.host_arrivals import FULL, NOW, kinds, operation
from tests.unit.ideal_ring import ring_config
from tests.unit.ring_of_hosts import ACC, RES, arrival, engine, posted, rotated

# --- the turns of a rank


def test_a_rank_starts_completes_and_passes_on_in_turn() -> None:
    """Rank 0 of 3 is the first to add to message 0, the last to add to 1 and in the middle of 2."""
    it = engine(0, window_messages=4)
    (start,) = it.step(Submit(operation(nbytes=3 * FULL)), NOW)
    assert isinstance(start, PostMessage)
    assert (start.msg_id, start.slot, start.op_index, start.offset, start.nbytes) == (0, 0, 0, 0, FULL)
    fields = HostHeader.decode(start.header).fields
    assert (fields.rank, fields.ring_size, fields.ring_id, fields.epoch, fields.key) == (0, 3, 7, 3, 0xC0FFEE)
    assert (fields.msg_id, fields.msg_len, fields.is_last, fields.signature) == (0, 2, False, 0x1234)

    assert (it.view().messages_sent, it.view().unacknowledged) == (1, 1)

    complete, result = it.step(arrival(it, ACC, 1), NOW)  # its result waits for that of message 0
    whole = operation(nbytes=3 * FULL)
    assert complete == Combine(2, FULL, Place.RECEIVED, 3, FULL, whole, Source.OWN, FULL, FULL)
    assert isinstance(result, PostSlot)
    assert (result.msg_id, result.slot, result.place, result.at, result.nbytes) == (
        3,
        3,
        Place.RECEIVED,
        3,
        FULL,
    )
    assert HostHeader.decode(result.header).kind is RES

    add, onward = it.step(arrival(it, ACC, 2, last=True), NOW)
    assert add == Combine(4, FULL, Place.STAGED, 4, FULL, whole, Source.OWN, 2 * FULL, FULL)
    assert isinstance(onward, PostSlot)
    assert (onward.msg_id, onward.slot, onward.place, onward.at, onward.nbytes) == (
        4,
        4,
        Place.STAGED,
        4,
        FULL,
    )
    assert HostHeader.decode(onward.header).kind is ACC

    *taken, passed = it.step(arrival(it, RES, 0), NOW)
    assert taken == [TakeResult(1, OpIndex(0), 0, FULL), TakeResult(3, OpIndex(0), FULL, FULL)]
    assert isinstance(passed, PostSlot)
    assert (passed.msg_id, passed.slot, passed.place, passed.at, passed.nbytes) == (
        1,
        1,
        Place.RECEIVED,
        1,
        FULL,
    )
    assert (it.view().messages_sent, it.view().messages_received, it.view().unacknowledged) == (3, 2, 4)
    assert it.step(arrival(it, RES, 2, last=True), NOW) == [
        TakeResult(5, OpIndex(0), 2 * FULL, FULL),
        OperationDone(OpIndex(0)),
    ]


def test_a_half_precision_sum_is_wide_between_its_second_rank_and_its_last() -> None:
    """Rank 0 of 4 in its turns: the second of message 3, the third of 2, the last of 1."""
    it = engine(0, 4, window_messages=4)
    it.step(Submit(operation(nbytes=4 * FULL, dtype=Dtype.F16)), NOW)
    sizes = []
    for serial, came in ((1, 2 * FULL), (2, 2 * FULL), (3, FULL)):
        event = arrival(it, ACC, serial, nbytes=came, dtype=Dtype.F16, last=serial == 3)
        combine, post = it.step(event, NOW)
        assert isinstance(combine, Combine)
        assert isinstance(post, PostSlot)
        assert post.nbytes == combine.goes
        assert HostHeader.decode(post.header).fields.msg_len == -(-(combine.goes + 40) // 256)
        sizes.append((combine.came, combine.goes))
    assert sizes == [(2 * FULL, FULL), (2 * FULL, 2 * FULL), (FULL, 2 * FULL)]


def test_two_ranks_pass_no_result_on() -> None:
    it = engine(0, 2)
    it.step(Submit(operation()), NOW)
    assert kinds(it.step(arrival(it, RES, 0, last=True), NOW)) == [TakeResult, OperationDone]


def test_a_ring_of_one_is_done_at_once() -> None:
    assert engine(0, 1).step(Submit(operation()), NOW) == [OperationDone(OpIndex(0))]


def test_a_tensor_without_elements_takes_part_with_a_header_alone() -> None:
    it = engine(2)
    it.step(Submit(operation(nbytes=0)), NOW)
    actions = it.step(arrival(it, ACC, 0, nbytes=0, last=True), NOW)
    assert kinds(actions) == [Combine, TakeResult, OperationDone, PostSlot]


def test_the_turns_go_on_from_one_operation_to_the_next() -> None:
    it = engine(1)
    it.step(Submit(operation()), NOW)
    assert kinds(it.step(arrival(it, ACC, 0, last=True), NOW)) == [Combine, PostSlot]
    assert posted(it.step(Submit(operation(1)), NOW)) == [2], "it starts message 1"
    assert kinds(it.step(arrival(it, RES, 0, last=True), NOW)) == [TakeResult, OperationDone]


# --- when it waits


def test_a_rank_starts_all_its_messages_of_the_window_and_waits_for_no_other_rank() -> None:
    assert posted(engine(0, 2, window_messages=8).step(Submit(operation(nbytes=9 * FULL)), NOW)) == [
        *(0, 4, 8, 12)
    ]
    assert posted(engine(2, 4, window_messages=8).step(Submit(operation(nbytes=9 * FULL)), NOW)) == [4, 12]


def test_a_result_that_overtook_others_waits_and_opens_no_window() -> None:
    it = engine(1, 2)
    assert posted(it.step(Submit(operation(nbytes=4 * FULL)), NOW)) == [2]
    it.step(SendCompleted(2), NOW)
    assert it.step(arrival(it, RES, 1), NOW) == [], "that of message 0 is not here"
    assert (it.progress, it.view().messages_received) == (0, 0)
    actions = it.step(arrival(it, ACC, 0), NOW)
    assert kinds(actions) == [Combine, TakeResult, TakeResult, PostSlot, PostMessage]
    assert posted(actions) == [1, 6]
    assert it.progress == 2


def test_accumulators_wait_for_the_operation_and_for_the_result_of_a_window_ago() -> None:
    it = engine(2, 4)
    for serial in (0, 1):
        assert it.step(arrival(it, ACC, serial), NOW) == []
    assert kinds(it.step(Submit(operation(nbytes=4 * FULL)), NOW)) == [Combine, PostSlot] * 2
    assert kinds(it.step(arrival(it, RES, 1), NOW)) == [PostSlot], "passed on at once, but not taken"
    assert it.step(arrival(it, ACC, 3, last=True), NOW) == []
    actions = it.step(arrival(it, RES, 0), NOW)
    assert kinds(actions) == [TakeResult] * 2, "message 2 lacks its header slot"
    assert posted(it.step(SendCompleted(0), NOW)) == [4]
    assert it.step(SendCompleted(2), NOW) == []
    assert posted(it.step(SendCompleted(3), NOW)) == [7]


def test_a_header_slot_is_used_again_when_its_send_is_complete() -> None:
    it = engine(0, 2)
    assert posted(it.step(Submit(operation(nbytes=4 * FULL)), NOW)) == [0]
    assert kinds(it.step(arrival(it, RES, 0), NOW)) == [TakeResult], "message 2 lacks header slot 0"
    assert posted(it.step(SendCompleted(0), NOW)) == [4]


def test_no_slot_is_written_that_is_still_being_sent() -> None:
    """Of the results it completes as of those it passes on."""
    it = engine(2, 3, window_messages=1)
    it.step(Submit(operation(nbytes=4 * FULL)), NOW)
    assert posted(it.step(arrival(it, ACC, 0), NOW)) == [1]
    assert posted(it.step(arrival(it, ACC, 1), NOW)) == [2]
    assert it.step(SendCompleted(1), NOW) == []
    actions = it.step(arrival(it, RES, 1), NOW)
    assert kinds(actions) == [TakeResult], "rank 2 is the last but one of message 1; 2 lacks header slot 0"
    assert posted(it.step(SendCompleted(2), NOW)) == [4]
    assert kinds(it.step(arrival(it, RES, 2), NOW)) == [TakeResult, PostSlot]
    it.step(SendCompleted(4), NOW)
    assert it.step(arrival(it, ACC, 3, last=True), NOW) == [], "result 2 is still being sent from that slot"
    assert kinds(it.step(SendCompleted(5), NOW)) == [Combine, TakeResult, OperationDone, PostSlot]


def test_a_result_is_passed_on_when_its_header_slot_is_free() -> None:
    it = engine(0, 4, window_messages=1)
    it.step(Submit(operation(nbytes=2 * FULL)), NOW)
    assert posted(it.step(arrival(it, RES, 0), NOW)) == [1]
    it.step(SendCompleted(0), NOW)
    assert it.step(arrival(it, ACC, 1, last=True), NOW) == [], "it completes 1 where 0 is being sent from"
    assert posted(it.step(SendCompleted(1), NOW)) == [3]


def test_a_result_is_passed_on_and_lets_the_next_message_out() -> None:
    it = engine(0, 4, window_messages=4)
    it.step(Submit(operation(nbytes=8 * FULL)), NOW)
    it.step(SendCompleted(0), NOW)
    assert kinds(it.step(arrival(it, RES, 0), NOW)) == [TakeResult, PostSlot, PostMessage]


def test_the_lowest_message_goes_first_and_is_not_overtaken() -> None:
    """Else accumulators that began at one rank could change places on a link."""
    it = engine(2, 4, window_messages=4)
    for serial in (3, 1, 0):
        assert it.step(arrival(it, ACC, serial), NOW) == []
    assert posted(it.step(Submit(operation(nbytes=8 * FULL)), NOW)) == [0, 2, 4, 7]
    for serial in (3, 0, 1, 2):
        if serial != 3:
            it.step(arrival(it, RES, serial), NOW)
    assert it.progress == 4, "message 3 was completed here"
    for serial in (4, 5):
        assert it.step(arrival(it, ACC, serial), NOW) == []
    assert posted(it.step(SendCompleted(0), NOW)) == [8]


def test_ids_and_slots_run_on_through_the_wrap() -> None:
    it = engine(0, 2, id_bits=3)
    it.step(Submit(operation(nbytes=10 * FULL)), NOW)
    sent, completed = [0], 0
    for serial in range(10):
        while completed < len(sent):
            completed += 1
            sent += posted(it.step(SendCompleted(sent[completed - 1]), NOW))
        sent += posted(it.step(arrival(it, ACC if serial % 2 else RES, serial, last=serial == 9), NOW))
    assert it.view().operations_done == 1
    assert sent == [0, 4, 3, 0, 7, 4, 3, 0, 7, 3]


# --- failures and the clock


def test_failure_ends_all_operations_once_and_silences_the_ring() -> None:
    it = engine(0)
    it.step(Submit(operation(nbytes=5 * FULL)), NOW)
    it.step(Submit(operation(1)), NOW)
    lost = Fail("rank_lost", "rank 1 is gone")
    assert it.step(lost, NOW) == [OperationFailed(OpIndex(i), "rank_lost", "rank 1 is gone") for i in (0, 1)]
    assert it.step(lost, NOW) == []
    assert it.step(arrival(it, RES, 0), NOW) == []
    assert it.step(SendCompleted(99), NOW) == []
    assert it.step(Submit(operation(2)), NOW) == [OperationFailed(OpIndex(2), "rank_lost", "rank 1 is gone")]
    assert (it.deadline, it.operations_queued, it.view().failure) == (None, 0, lost)


def test_an_operation_without_progress_stalls_and_one_that_takes_too_long_is_overdue() -> None:
    it = engine(0, stall_ns=100, timeout_ns=250)
    it.step(Submit(operation()), NOW)
    assert (it.deadline, it.operations_queued) == (100, 1)
    assert it.step(Woke(), Instant(100)) == [Stalled(operation(), 100, 1, 0)]
    assert it.step(Woke(), Instant(260)) == [
        Stalled(operation(), 260, 1, 0),
        Overdue(operation(), 260, 1, 0),
    ]


def test_progress_is_a_result_that_was_taken() -> None:
    """Each event is one nanosecond after the last; an operation starts with the event that lets it."""
    it = engine(1, 2, stall_ns=100)
    it.step(Submit(operation(nbytes=4 * FULL)), Instant(1))
    assert (it.view().since, it.deadline) == (1, 101)
    it.step(arrival(it, RES, 1), Instant(2))
    assert it.view().since == 1, "it waits for the result before it"
    it.step(arrival(it, ACC, 0), Instant(3))
    assert (it.view().since, it.deadline) == (3, 103)
    it.step(arrival(it, ACC, 2), Instant(4))
    assert it.view().since == 3, "result 0 is still being sent from the slot of result 2"
    it.step(SendCompleted(2), Instant(5))
    it.step(SendCompleted(1), Instant(6))
    assert it.view().since == 6
    it = engine(0, 2, stall_ns=100)
    it.step(Submit(operation(nbytes=4 * FULL)), Instant(1))
    it.step(arrival(it, RES, 0), Instant(7))
    assert (it.view().since, it.deadline) == (7, 107)


def test_rings_that_cannot_be() -> None:
    with pytest.raises(LocalMisuse, match=r"^a plan of 2 ranks in a ring of 3$"):
        RingAllReduceEngine(ring_config(0, 3), rotated(2))
    with pytest.raises(LocalMisuse, match="a window of 4 messages does not fit message ids of 2 bits"):
        engine(0, window_messages=4, id_bits=2)
    with pytest.raises(LocalMisuse, match="operation 1 where 0 is next"):
        engine(0).step(Submit(operation(1)), NOW)
    assert engine(0).slot_bytes == HOST_HEADER_BYTES + 2 * FULL


# --- going on by another ring


def test_a_ring_that_ended_takes_nothing_more() -> None:
    it = engine(0)
    it.step(Submit(operation(nbytes=3 * FULL)), NOW)
    operations = it.halt()
    assert it.step(arrival(it, RES, 0), NOW) == []
    assert it.step(SendCompleted(99), NOW) == []
    assert it.step(Submit(operation(1)), NOW) == []
    assert (operations.progress, len(operations)) == (0, 2)
    with pytest.raises(LocalMisuse, match=r"^ring 7 runs already$"):
        it.resume(NOW)


def test_a_result_that_waited_when_the_ring_ended_is_made_again() -> None:
    it = engine(1, 2)
    it.step(Submit(operation(nbytes=4 * FULL)), NOW)
    it.step(arrival(it, RES, 1), NOW)
    again = RingAllReduceEngine(ring_config(1, 2), rotated(2), it.halt(), Recovery(progress=0, donor=0))
    (post,) = again.resume(NOW)
    assert isinstance(post, PostMessage)
    assert (post.msg_id, post.offset) == (2, FULL)


def test_the_donor_sends_what_it_kept_and_who_lacks_a_result_takes_it() -> None:
    ahead, behind = engine(0, 2), engine(0, 2)
    for it in (ahead, behind):
        it.step(Submit(operation(nbytes=6 * FULL)), NOW)
        it.step(arrival(it, RES, 0), NOW)
    ahead.step(arrival(ahead, ACC, 1), NOW)
    assert [(kept.serial, kept.slot) for kept in ahead.halt().kept] == [(0, 1), (1, 3)]
    donor = RingAllReduceEngine(ring_config(0, 2), rotated(2), ahead.halt(), Recovery(progress=2, donor=0))
    other = RingAllReduceEngine(ring_config(0, 2), rotated(2), behind.halt(), Recovery(progress=2, donor=1))
    for it, post, source, taken in (
        (donor, PostKept, Source.KEPT, []),
        (other, PostNeutral, Source.NEUTRAL, [TakeResult]),
    ):
        assert kinds(it.resume(NOW)) == [post]
        combine, *rest = it.step(arrival(it, ACC, 1), NOW)
        assert isinstance(combine, Combine)
        assert (combine.source, combine.offset) == (source, FULL)
        assert kinds(rest) == [PostSlot]
        it.step(SendCompleted(0), NOW)
        actions = it.step(arrival(it, RES, 0), NOW)
        assert kinds(actions) == [*taken, PostMessage]
        assert isinstance(actions[-1], PostMessage)
        assert (actions[-1].msg_id, actions[-1].offset) == (4, 2 * FULL)


def test_what_comes_before_the_ring_goes_on_waits() -> None:
    it = engine(2)
    it.step(Submit(operation()), NOW)
    again = RingAllReduceEngine(ring_config(2, 3), rotated(3), it.halt(), Recovery(progress=0, donor=0))
    assert again.step(arrival(again, ACC, 0, last=True), NOW) == []
    assert it.step(Submit(operation(1)), NOW) == []
    assert kinds(again.resume(Instant(9))) == [Combine, TakeResult, OperationDone, PostSlot]
    assert again.view().since == 9


def test_what_is_counted_and_what_is_due_is_of_one_ring() -> None:
    """It begins with message 1; the first that begins at rank 0, of three, is 3."""
    operations = OperationQueue(ring_config(1, 3))
    operations.progress = 3
    again = RingAllReduceEngine(ring_config(1, 3), rotated(3), operations, Recovery(progress=3, donor=0))
    view = again.view()
    assert (view.messages_sent, view.messages_received) == (0, 0)
    blame = again.step(arrival(again, ACC, 0), NOW)[0]
    assert blame == Blame(
        "predecessor", "accumulator outside the window", "accumulator 0 where 2 to 4 may come"
    )
    again = RingAllReduceEngine(ring_config(1, 3), rotated(3), operations, Recovery(progress=3, donor=0))
    assert again.step(arrival(again, ACC, 2), NOW) == []


def test_a_ring_that_breaks_does_not_fail_operations_that_outlive_it() -> None:
    config = replace(ring_config(2, 3), outlived=True)
    it = RingAllReduceEngine(config, rotated(3))
    it.step(Submit(operation()), NOW)
    blame, broken = it.step(arrival(it, ACC, 0, last=True, key=1), NOW)
    assert broken == RingBroken(
        "fabric_lost", f"rank 2 of ring 7 got a wrong message ({blame}); the ring cannot go on"
    )
    assert it.step(arrival(it, ACC, 0, last=True, key=1), NOW) == []
    assert len(it.halt()) == 1
    it = RingAllReduceEngine(config, rotated(3))
    it.step(Submit(operation()), NOW)
    actions = it.step(arrival(it, ACC, 0, last=True, signature=1), NOW)
    assert kinds(actions) == [Blame, RingBroken], "no path makes them equal: ranks are asked"
    assert len(it.halt()) == 1
