"""One rank of a chain: what it sends and when, what it believes, how it fails, and how it goes on."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.host.engines.chain import ChainEngine
from inaproto.core.host.engines.hosts import Combine, Place, PostSlot
from inaproto.core.host.operation_queue import OperationQueue, Source
from inaproto.core.host.operations import (
    Fail,
    OperationDone,
    OperationFailed,
    Overdue,
    PostKept,
    PostMessage,
    PostNeutral,
    ResultArrived,
    RingBroken,
    SendCompleted,
    Stalled,
    Submit,
    TakeResult,
    Woke,
)
from inaproto.core.host.recovery import Recovery
from inaproto.core.plan.accumulators import Accumulators
from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant, OpIndex
from inaproto.wire.host_header import HostHeader, Kind
from inaproto.wire.ina_header import Dtype, Op
from tests.unit.host_arrivals import FULL, NOW, kinds, message_at, operation
from tests.unit.ideal_ring import ring_config


def engine(rank: int, size: int = 3, plan: PlanList = (), **changes: int) -> ChainEngine:
    lists = plan or tuple(range(size))
    return ChainEngine(ring_config(rank, size, **changes), Accumulators(ReductionPlan(lists)))


def arrival(
    at: ChainEngine, kind: Kind, serial: int, nbytes: int = FULL, index: int = 0, **fields: Any
) -> ResultArrived:
    """The last message of operation ``index``."""
    return message_at(at.config, kind, serial, nbytes, **({"last": True, "op_index": index} | fields))


# --- the way of a message


def test_the_first_rank_sends_its_own_part_takes_the_result_and_passes_it_on() -> None:
    first = engine(0)
    (post,) = first.step(Submit(operation()), NOW)
    assert isinstance(post, PostMessage)
    assert (post.msg_id, post.slot, post.op_index, post.offset, post.nbytes) == (0, 0, 0, 0, FULL)
    header = HostHeader.decode(post.header)
    assert header.kind is Kind.ACCUMULATOR
    fields = header.fields
    assert (fields.rank, fields.ring_size, fields.ring_id, fields.epoch, fields.key) == (0, 3, 7, 3, 0xC0FFEE)
    assert (fields.msg_id, fields.msg_len, fields.is_last, fields.signature) == (0, 2, True, 0x1234)
    taken, done, passed = first.step(arrival(first, Kind.RESULT, 0), NOW)
    assert (taken, done) == (TakeResult(1, OpIndex(0), 0, FULL), OperationDone(OpIndex(0)))
    assert isinstance(passed, PostSlot)
    assert (passed.msg_id, passed.slot, passed.place, passed.at, passed.nbytes) == (
        1,
        1,
        Place.RECEIVED,
        1,
        FULL,
    )
    onward = HostHeader.decode(passed.header)
    assert (onward.kind, onward.fields.rank, onward.fields.msg_id) == (Kind.RESULT, 0, 1)
    view = first.view()
    assert (view.messages_sent, view.messages_received, view.unacknowledged) == (1, 1, 2)


def test_a_rank_in_the_middle_combines_and_passes_on_and_the_last_but_one_keeps_the_result() -> None:
    middle = engine(1)
    half = operation(dtype=Dtype.F16)
    assert middle.step(Submit(half), NOW) == []
    combine, post = middle.step(arrival(middle, Kind.ACCUMULATOR, 0, dtype=Dtype.F16), NOW)
    assert combine == Combine(0, FULL, Place.STAGED, 0, 2 * FULL, half, Source.OWN, 0, FULL)
    assert isinstance(post, PostSlot)
    assert (post.msg_id, post.slot, post.place, post.at, post.nbytes) == (0, 0, Place.STAGED, 0, 2 * FULL)
    assert HostHeader.decode(post.header).fields.msg_len == 4  # of this message, not of the tensor's part
    assert kinds(middle.step(arrival(middle, Kind.RESULT, 0, dtype=Dtype.F16), NOW)) == [
        TakeResult,
        OperationDone,
    ]


def test_the_last_rank_has_the_result_at_once() -> None:
    last = engine(2)
    last.step(Submit(operation()), NOW)
    combine, taken, done, post = last.step(arrival(last, Kind.ACCUMULATOR, 0), NOW)
    assert combine == Combine(0, FULL, Place.RECEIVED, 1, FULL, operation(), Source.OWN, 0, FULL)
    assert (taken, done) == (TakeResult(1, OpIndex(0), 0, FULL), OperationDone(OpIndex(0)))
    assert isinstance(post, PostSlot)
    assert (post.msg_id, post.slot, post.place, post.at, post.nbytes) == (1, 1, Place.RECEIVED, 1, FULL)
    assert HostHeader.decode(post.header).kind is Kind.RESULT


def test_two_ranks_pass_no_result_on() -> None:
    first = engine(0, 2)
    first.step(Submit(operation()), NOW)
    assert kinds(first.step(arrival(first, Kind.RESULT, 0), NOW)) == [TakeResult, OperationDone]


def test_a_ring_of_one_is_done_at_once() -> None:
    alone = engine(0, 1)
    assert alone.step(Submit(operation()), NOW) == [OperationDone(OpIndex(0))]


def test_a_tensor_without_elements_takes_part_with_a_header_alone() -> None:
    last = engine(2)
    last.step(Submit(operation(nbytes=0)), NOW)
    actions = last.step(arrival(last, Kind.ACCUMULATOR, 0, nbytes=0), NOW)
    assert kinds(actions) == [Combine, TakeResult, OperationDone, PostSlot]


# --- when it waits


def test_at_most_n_messages_are_on_their_way_and_a_result_lets_the_next_out() -> None:
    first = engine(0)
    posts = first.step(Submit(operation(nbytes=5 * FULL)), NOW)
    assert [post.msg_id for post in posts if isinstance(post, PostMessage)] == [0, 2]
    more = arrival(first, Kind.RESULT, 0, flags=0)
    assert kinds(first.step(more, NOW)) == [TakeResult, PostSlot]  # the send of 0 still has its header slot
    (post,) = first.step(SendCompleted(0), NOW)
    assert isinstance(post, PostMessage)
    assert (post.msg_id, post.slot, post.offset) == (4, 0, 2 * FULL)


def test_completions_alone_let_nothing_out() -> None:
    first = engine(0)
    first.step(Submit(operation(nbytes=5 * FULL)), NOW)
    assert first.step(SendCompleted(0), NOW) == []
    assert first.step(SendCompleted(2), NOW) == []
    assert first.view().unacknowledged == 0


def test_accumulators_wait_for_the_operation_and_for_the_result_of_a_window_ago() -> None:
    middle = engine(1)
    for serial in range(2):
        event = arrival(middle, Kind.ACCUMULATOR, serial, flags=0)
        assert middle.step(event, NOW) == []
    assert kinds(middle.step(Submit(operation(nbytes=3 * FULL)), NOW)) == [Combine, PostSlot] * 2
    assert middle.step(arrival(middle, Kind.ACCUMULATOR, 2), NOW) == []
    for msg_id in (0, 2):
        assert middle.step(SendCompleted(msg_id), NOW) == []
    actions = middle.step(arrival(middle, Kind.RESULT, 0, flags=0), NOW)
    assert kinds(actions) == [TakeResult, Combine, PostSlot]
    combine = actions[1]
    assert isinstance(combine, Combine)
    assert (combine.slot, combine.out, combine.offset) == (0, 0, 2 * FULL)


def test_the_last_rank_does_not_write_a_slot_that_is_still_being_sent() -> None:
    last = engine(2)
    last.step(Submit(operation(nbytes=3 * FULL)), NOW)
    for serial in range(2):
        last.step(arrival(last, Kind.ACCUMULATOR, serial, flags=0), NOW)
    assert last.step(arrival(last, Kind.ACCUMULATOR, 2), NOW) == []
    assert kinds(last.step(SendCompleted(1), NOW)) == [Combine, TakeResult, OperationDone, PostSlot]


def test_a_result_is_passed_on_when_its_header_slot_is_free() -> None:
    first = engine(0, window_messages=1)
    first.step(Submit(operation(nbytes=2 * FULL)), NOW)
    assert kinds(first.step(arrival(first, Kind.RESULT, 0, flags=0), NOW)) == [TakeResult, PostSlot]
    assert kinds(first.step(SendCompleted(0), NOW)) == [PostMessage]
    assert kinds(first.step(arrival(first, Kind.RESULT, 1), NOW)) == [TakeResult, OperationDone]
    (passed,) = first.step(SendCompleted(1), NOW)
    assert isinstance(passed, PostSlot)
    assert (passed.msg_id, passed.slot, passed.at) == (3, 1, 1)


def test_ids_and_slots_run_on_through_the_wrap() -> None:
    first = engine(0, 2, id_bits=3)
    ids = []
    for index in range(10):
        (post,) = first.step(Submit(operation(index)), NOW)
        assert isinstance(post, PostMessage)
        ids.append((post.msg_id, post.slot))
        first.step(SendCompleted(post.msg_id), NOW)
        event = arrival(first, Kind.RESULT, index % 4, index=index)
        assert kinds(first.step(event, NOW)) == [TakeResult, OperationDone]
    assert ids == [(2 * index % 8, 2 * index % 4) for index in range(10)]


# --- what it does not believe


WRONG = [
    {"rank": 0},
    {"op_index": 1},
    {"msg_id": 5},
    {"epoch": 4},
    {"ring_id": 8},
    {"key": 1},
    {"ring_size": 4},
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", Kind)
def test_a_message_with_any_wrong_header_field_breaks_the_ring(kind: Kind, wrong: dict[str, int]) -> None:
    rank = engine(0 if kind is Kind.RESULT else 2, window_messages=1)
    rank.step(Submit(operation()), NOW)
    rank.step(Submit(operation(1)), NOW)
    actions = rank.step(arrival(rank, kind, 0, **wrong), NOW)
    assert kinds(actions) == [Blame, OperationFailed, OperationFailed, RingBroken]
    blame, broken = actions[0], actions[-1]
    assert isinstance(blame, Blame)
    assert isinstance(broken, RingBroken)
    assert (blame.rule, broken.code) == (f"{kind.name.lower()} header", "fabric_lost")
    assert blame.peer == f"rank {(rank.config.rank - 1) % 3}"
    key = " and a wrong key" if "key" in wrong else ""
    assert re.fullmatch(
        rf"got {kind.name.lower()} of INA ring .* sig 0x1234{key}, expected .*", blame.evidence
    )
    assert str(0xC0FFEE) not in broken.message


def test_an_accumulator_is_not_taken_for_a_result() -> None:
    first = engine(0)
    first.step(Submit(operation()), NOW)
    event = arrival(first, Kind.RESULT, 0)._replace(
        header=arrival(first, Kind.ACCUMULATOR, 0, msg_id=1).header
    )
    blame, *_ = first.step(event, NOW)
    assert isinstance(blame, Blame)
    assert blame.rule == "result header"


@pytest.mark.parametrize(
    "called", [{"dtype": Dtype.F32}, {"op": Op.MAX}, {"flags": 0}, {"signature": 1}, {"msg_len": 1}]
)
def test_ranks_that_call_different_tensors_are_told_so(called: dict[str, Any]) -> None:
    last = engine(2)
    last.step(Submit(operation()), NOW)
    blame, failed, broken = last.step(arrival(last, Kind.ACCUMULATOR, 0, **called), NOW)
    assert isinstance(blame, Blame)
    assert isinstance(failed, OperationFailed)
    assert isinstance(broken, RingBroken)
    assert (blame.peer, blame.rule) == ("rank 1", "tensors differ")
    assert failed.code == broken.code == "tensor_mismatch"


def test_a_message_of_wrong_size_or_without_header_breaks_the_ring() -> None:
    for change, rule, evidence in (
        ({"nbytes": FULL}, "accumulator size", f"{FULL} bytes, expected {FULL + 40}"),
        (
            {"header": b"short"},
            "accumulator without a valid header",
            "host header: 5 bytes, needs 40 (at byte 5)",
        ),
    ):
        last = engine(2)
        last.step(Submit(operation()), NOW)
        event = arrival(last, Kind.ACCUMULATOR, 0)._replace(**change)
        blame, _, broken = last.step(event, NOW)
        assert isinstance(blame, Blame)
        assert isinstance(broken, RingBroken)
        assert (blame.peer, blame.rule) == ("rank 1", rule)
        assert blame.evidence == evidence
        assert broken.message == (
            f"rank 2 of ring 7 got a wrong message ({blame}); "
            "the job cannot go on: start it again, and report this if it comes back"
        )


@pytest.mark.parametrize(
    ("rank", "kind", "serial", "blame"),
    [
        (
            0,
            Kind.ACCUMULATOR,
            0,
            Blame("predecessor", "accumulator at the wrong end of the chain", "accumulator 0 where 2 is due"),
        ),
        (
            2,
            Kind.RESULT,
            0,
            Blame("predecessor", "result at the wrong end of the chain", "result 1 where 1 is due"),
        ),
        (
            1,
            Kind.ACCUMULATOR,
            1,
            Blame("predecessor", "accumulator out of order", "accumulator 2 where 0 is due"),
        ),
        (0, Kind.RESULT, 1, Blame("predecessor", "result out of order", "result 3 where 1 is due")),
        (1, Kind.RESULT, 0, Blame("predecessor", "result of a message not sent", "result 1 where 1 is due")),
    ],
)
def test_messages_that_cannot_come_now(rank: int, kind: Kind, serial: int, blame: Blame) -> None:
    it = engine(rank)
    it.step(Submit(operation()), NOW)
    assert it.step(arrival(it, kind, serial), NOW)[0] == blame


def test_accumulators_beyond_the_window() -> None:
    middle = engine(1)
    for serial in range(2):
        assert middle.step(arrival(middle, Kind.ACCUMULATOR, serial), NOW) == []
    assert middle.step(arrival(middle, Kind.ACCUMULATOR, 2), NOW)[0] == Blame(
        "predecessor", "accumulator beyond the window", "accumulator 4 where 4 is due"
    )


def test_completions_out_of_order_are_the_transports_fault() -> None:
    first = engine(0)
    rule = "send completed out of order"
    assert first.step(SendCompleted(0), NOW)[0] == Blame("transport", rule, "message 0 where none is due")
    first = engine(0)
    first.step(Submit(operation()), NOW)
    assert first.step(SendCompleted(1), NOW)[0] == Blame("transport", rule, "message 1 where 0 is due")


# --- failures and the clock


def test_failure_ends_all_operations_once_and_silences_the_ring() -> None:
    first = engine(0)
    first.step(Submit(operation(nbytes=5 * FULL)), NOW)
    first.step(Submit(operation(1)), NOW)
    lost = Fail("rank_lost", "rank 1 is gone")
    assert first.step(lost, NOW) == [
        OperationFailed(OpIndex(i), *("rank_lost", "rank 1 is gone")) for i in (0, 1)
    ]
    assert first.step(lost, NOW) == []
    assert first.step(arrival(first, Kind.RESULT, 0), NOW) == []
    assert first.step(SendCompleted(99), NOW) == []
    assert first.step(Submit(operation(2)), NOW) == [
        OperationFailed(OpIndex(2), "rank_lost", "rank 1 is gone")
    ]
    assert (first.deadline, first.operations_queued, first.view().failure) == (None, 0, lost)


def test_an_operation_without_progress_stalls_and_one_that_takes_too_long_is_overdue() -> None:
    first = engine(0, stall_ns=100, timeout_ns=250)
    first.step(Submit(operation()), NOW)
    assert first.deadline == 100
    assert first.step(Woke(), Instant(99)) == []
    assert first.step(Woke(), Instant(100)) == [Stalled(operation(), 100, 1, 0)]
    assert first.deadline == 200
    assert first.step(Woke(), Instant(260)) == [
        Stalled(operation(), 260, 1, 0),
        Overdue(operation(), 260, 1, 0),
    ]
    assert first.deadline == 360
    assert first.view().stalls == 2


def test_rings_that_cannot_be() -> None:
    with pytest.raises(LocalMisuse, match=r"^a plan of 2 ranks in a ring of 3$"):
        engine(0, 3, (0, 1))
    engine(0, 3, message_packets=32767)
    with pytest.raises(
        LocalMisuse,
        match=r"^accumulators of \[0, 1, 2\] do not fit the header's 16 bits of packets$",
    ):
        engine(0, 3, message_packets=32768)
    with pytest.raises(LocalMisuse, match="a window of 4 messages does not fit message ids of 2 bits"):
        engine(0, 3, window_messages=4, id_bits=2)
    with pytest.raises(LocalMisuse, match="must be a power of two"):
        engine(0, 3, window_messages=3)
    with pytest.raises(LocalMisuse, match="operation 1 where 0 is next"):
        engine(0).step(Submit(operation(1)), NOW)
    assert engine(0, 3).slot_bytes == 40 + 2 * FULL


def test_progress_is_a_result_that_was_taken() -> None:
    """Each event is one nanosecond after the last; an operation starts with the event that lets it."""
    first, last = engine(0, stall_ns=100), engine(2, stall_ns=100)
    first.step(Submit(operation(0, 2 * FULL)), Instant(1))
    first.step(Submit(operation(1)), Instant(2))
    assert (first.view().since, first.deadline) == (1, 101)
    first.step(arrival(first, Kind.RESULT, 0, flags=0), Instant(3))
    assert (first.view().since, first.deadline) == (3, 103)
    first.step(arrival(first, Kind.RESULT, 1), Instant(4))
    assert (first.view().since, first.deadline) == (4, 104)
    last.step(Submit(operation(0, 2 * FULL)), Instant(1))
    last.step(arrival(last, Kind.ACCUMULATOR, 0, flags=0), Instant(2))
    assert (last.view().since, last.deadline) == (2, 102)


def test_a_completion_that_lets_the_last_rank_go_on_is_when_it_does() -> None:
    last = engine(2, stall_ns=100)
    last.step(Submit(operation(nbytes=4 * FULL)), NOW)
    for serial in range(2):
        last.step(arrival(last, Kind.ACCUMULATOR, serial, flags=0), NOW)
    last.step(arrival(last, Kind.ACCUMULATOR, 2, flags=0), NOW)
    last.step(SendCompleted(1), Instant(7))
    assert (last.view().since, last.deadline) == (7, 107)


# --- going on by another ring


def test_a_ring_that_ended_takes_nothing_more() -> None:
    first = engine(0)
    first.step(Submit(operation(nbytes=3 * FULL)), NOW)
    operations = first.halt()
    assert first.step(arrival(first, Kind.RESULT, 0, flags=0), NOW) == []
    assert first.step(SendCompleted(99), NOW) == []
    assert first.step(Submit(operation(1)), NOW) == []
    assert (operations.progress, len(operations)) == (0, 2)
    with pytest.raises(LocalMisuse, match=r"^ring 7 runs already$"):
        first.resume(NOW)


def test_the_donor_sends_what_it_kept_and_who_lacks_a_result_takes_it() -> None:
    ahead, behind = engine(0), engine(0)
    for it in (ahead, behind):
        it.step(Submit(operation(nbytes=3 * FULL)), NOW)
        it.step(arrival(it, Kind.RESULT, 0, flags=0), NOW)
    ahead.step(arrival(ahead, Kind.RESULT, 1, flags=0), NOW)
    config, chain = ring_config(0, 3), Accumulators(ReductionPlan.flat(3))
    assert [kept.serial for kept in ahead.halt().kept] == [0, 1]
    assert [(kept.ring_id, kept.slot, kept.is_last) for kept in ahead.halt().kept] == [
        (7, 1, False),
        (7, 3, False),
    ]
    donor = ChainEngine(config, chain, ahead.halt(), Recovery(progress=2, donor=0))
    posts = donor.resume(NOW)
    assert kinds(posts) == [PostKept, PostKept]
    assert [post.offset for post in posts if isinstance(post, PostMessage)] == [0, FULL]
    other = ChainEngine(config, chain, behind.halt(), Recovery(progress=2, donor=1))
    assert kinds(other.resume(NOW)) == [PostNeutral, PostNeutral]
    for it, first, second in ((donor, [PostSlot], [PostSlot]), (other, [PostSlot], [TakeResult, PostSlot])):
        assert kinds(it.step(arrival(it, Kind.RESULT, 0, flags=0), NOW)) == first
        assert kinds(it.step(arrival(it, Kind.RESULT, 1, flags=0), NOW)) == second
        (post,) = it.step(SendCompleted(0), NOW)
        assert type(post) is PostMessage
        assert post.offset == 2 * FULL


def test_what_comes_before_the_ring_goes_on_waits() -> None:
    last = engine(2)
    last.step(Submit(operation()), NOW)
    chain = Accumulators(ReductionPlan.flat(3))
    again = ChainEngine(ring_config(2, 3), chain, last.halt(), Recovery(progress=0, donor=0))
    assert again.step(arrival(again, Kind.ACCUMULATOR, 0), NOW) == []
    assert last.step(Submit(operation(1)), NOW) == []
    assert kinds(again.resume(Instant(9))) == [Combine, TakeResult, OperationDone, PostSlot]
    assert again.view().since == 9


def test_what_is_counted_is_of_one_ring() -> None:
    operations = OperationQueue(ring_config(0, 3))
    operations.progress = 3
    again = ChainEngine(
        ring_config(0, 3), Accumulators(ReductionPlan.flat(3)), operations, Recovery(progress=3, donor=0)
    )
    view = again.view()
    assert (view.messages_sent, view.messages_received) == (0, 0)


def test_a_ring_that_breaks_does_not_fail_operations_that_outlive_it() -> None:
    config = replace(ring_config(2, 3), outlived=True)
    last = ChainEngine(config, Accumulators(ReductionPlan.flat(3)))
    last.step(Submit(operation()), NOW)
    blame, broken = last.step(arrival(last, Kind.ACCUMULATOR, 0, key=1), NOW)
    assert broken == RingBroken(
        "fabric_lost", f"rank 2 of ring 7 got a wrong message ({blame}); the ring cannot go on"
    )
    assert last.step(arrival(last, Kind.ACCUMULATOR, 0, key=1), NOW) == []
    assert len(last.halt()) == 1
    last = ChainEngine(config, Accumulators(ReductionPlan.flat(3)))
    last.step(Submit(operation()), NOW)
    actions = last.step(arrival(last, Kind.ACCUMULATOR, 0, signature=1), NOW)
    assert kinds(actions) == [Blame, RingBroken], "no path makes them equal: ranks are asked"
    assert len(last.halt()) == 1
