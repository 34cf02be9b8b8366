"""One rank of the ring of hosts: when it starts, adds, completes, takes, passes on, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.accumulators import RotatedAccumulators
from inaproto.core.chain_engine import ChainAction, Combine, Place, PostSlot
from inaproto.core.operation_queue import OperationQueue, Source
from inaproto.core.operations import (
    Fail,
    Operation,
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
from inaproto.core.recovery import Recovery
from inaproto.core.reduction_plan import ReductionPlan
from inaproto.core.ring_all_reduce_engine import RingAllReduceEngine
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant, OpIndex
from inaproto.wire.host_header import HOST_HEADER_BYTES, HostHeader, Kind
from inaproto.wire.ina_header import FLAG_LAST, Dtype, InaHeader, Op
from tests.unit.ideal_ring import ring_config

NOW = Instant(0)
FULL = 2 * 256 - HOST_HEADER_BYTES
ACC, RES = Kind.ACCUMULATOR, Kind.RESULT


def rotated(size: int) -> RotatedAccumulators:
    return RotatedAccumulators(ReductionPlan.flat(size))


def engine(rank: int, size: int = 3, **changes: int) -> RingAllReduceEngine:
    return RingAllReduceEngine(ring_config(rank, size, **changes), rotated(size))


def operation(index: int = 0, nbytes: int = FULL, dtype: Dtype = Dtype.I32) -> Operation:
    return Operation(OpIndex(index), dtype, Op.SUM, nbytes, 0x1234)


def arrival(
    at: RingAllReduceEngine, kind: Kind, serial: int, *, last: bool = False, nbytes: int = FULL, **fields: Any
) -> ResultArrived:
    """What the predecessor sends: ``nbytes`` of payload; ``last`` of operation 0."""
    config = at.config
    header = InaHeader(
        dtype=Dtype.I32,
        op=Op.SUM,
        flags=FLAG_LAST if last else 0,
        ring_id=config.ring_id,
        epoch=config.epoch,
        op_index=0,
        msg_id=(2 * serial + (kind is RES)) % (1 << config.id_bits),
        rank=(config.rank - 1) % config.ring_size,
        ring_size=config.ring_size,
        msg_len=-(-(HOST_HEADER_BYTES + nbytes) // config.mtu),
        signature=0x1234,
        key=config.key,
    )
    data = HostHeader(kind, replace(header, **fields)).encode()
    return ResultArrived(header.msg_id, HOST_HEADER_BYTES + nbytes, data)


def kinds(actions: list[ChainAction]) -> list[type]:
    return [type(action) for action in actions]


def posted(actions: list[ChainAction]) -> list[int]:
    return [action.msg_id for action in actions if isinstance(action, PostMessage | PostSlot)]


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
    assert it.step(Submit(operation(1)), NOW) == []
    actions = it.step(arrival(it, RES, 0, last=True), NOW)
    assert kinds(actions) == [TakeResult, OperationDone, PostMessage], "it starts message 1"
    assert posted(actions) == [2]


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


# --- what it does not believe


WRONG = [
    {"rank": 1},
    {"op_index": 1},
    {"msg_id": 9},
    {"epoch": 4},
    {"ring_id": 8},
    {"key": 1},
    {"ring_size": 4},
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", Kind)
def test_a_message_with_any_wrong_header_field_breaks_the_ring(kind: Kind, wrong: dict[str, int]) -> None:
    it = engine(0)
    it.step(Submit(operation(nbytes=2 * FULL)), NOW)
    it.step(Submit(operation(1)), NOW)
    event = arrival(it, kind, 0 if kind is RES else 1, last=kind is ACC, **wrong)
    actions = it.step(event, NOW)
    assert kinds(actions) == [Blame, OperationFailed, OperationFailed, RingBroken]
    blame, broken = actions[0], actions[-1]
    assert isinstance(blame, Blame)
    assert isinstance(broken, RingBroken)
    assert (blame.peer, blame.rule) == ("rank 2", f"{kind.name.lower()} header")
    assert broken.code == "fabric_lost"
    assert broken.message.startswith(f"rank 0 of ring 7 got a wrong message ({blame}); the job cannot go on")


@pytest.mark.parametrize("kind", Kind)
def test_one_kind_is_not_taken_for_the_other(kind: Kind) -> None:
    it = engine(0)
    it.step(Submit(operation(nbytes=2 * FULL)), NOW)
    serial = 0 if kind is RES else 1
    imm = 2 * serial + (kind is RES)
    other = arrival(it, ACC if kind is RES else RES, serial, last=kind is ACC, msg_id=imm)
    blame = it.step(replace(other, imm=imm), NOW)[0]
    assert isinstance(blame, Blame)
    assert blame.rule == f"{kind.name.lower()} header"


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    "called", [{"dtype": Dtype.F32}, {"op": Op.MAX}, {"flags": 0}, {"signature": 1}, {"msg_len": 1}]
)
def test_ranks_that_call_different_tensors_are_told_so(kind: Kind, called: dict[str, Any]) -> None:
    it = engine(2 if kind is ACC else 0)
    it.step(Submit(operation()), NOW)
    blame, failed, broken = it.step(arrival(it, kind, 0, **({"last": True} | called)), NOW)
    assert isinstance(blame, Blame)
    assert isinstance(failed, OperationFailed)
    assert isinstance(broken, RingBroken)
    assert blame.rule == "tensors differ"
    assert failed.code == broken.code == "tensor_mismatch"


@pytest.mark.parametrize(
    ("rank", "kind", "serial", "rule", "evidence"),
    [
        (1, ACC, 2, "accumulator outside the window", "accumulator 4 where 0 to 2 may come"),
        (1, RES, 2, "result outside the window", "result 5 where 1 to 3 may come"),
        (
            0,
            ACC,
            0,
            "accumulator at a rank to which it does not come",
            "accumulator 0 of the messages that begin at rank 0",
        ),
        (
            2,
            RES,
            0,
            "result at a rank to which it does not come",
            "result 1 of the messages that begin at rank 0",
        ),
        (
            1,
            RES,
            0,
            "result of a message not sent",
            "result 1 where 1 is due of the messages that begin at rank 0",
        ),
        (
            0,
            RES,
            2,
            "result outside the window",
            "result 5 where 1 to 3 may come",
        ),
    ],
)
def test_messages_that_cannot_come_now(rank: int, kind: Kind, serial: int, rule: str, evidence: str) -> None:
    it = engine(rank)
    assert it.step(arrival(it, kind, serial), NOW)[0] == Blame("predecessor", rule, evidence)


def test_a_result_of_a_message_that_waits_for_its_accumulators() -> None:
    it = engine(1)
    it.step(Submit(operation(nbytes=4 * FULL)), NOW)
    evidence = "result 1 where 1 is due of the messages that begin at rank 0"
    assert it.step(arrival(it, RES, 0), NOW)[0] == Blame(
        "predecessor", "result of a message not sent", evidence
    )


@pytest.mark.parametrize("kind", Kind)
def test_what_began_at_one_rank_comes_in_its_order(kind: Kind) -> None:
    """With two ranks and a window of four, two messages of each may come; here the second comes first."""
    it = engine(1 if kind is ACC else 0, 2, window_messages=4)
    it.step(Submit(operation(nbytes=4 * FULL)), NOW)
    name, due = kind.name.lower(), kind is RES
    evidence = f"{name} {4 + due} where {0 + due} is due of the messages that begin at rank 0"
    blame = Blame("predecessor", f"{name} out of order", evidence)
    assert it.step(arrival(it, kind, 2), NOW)[0] == blame


@pytest.mark.parametrize("kind", Kind)
def test_nothing_comes_twice(kind: Kind) -> None:
    it = engine(1 if kind is ACC else 0, 2, window_messages=4)
    first = arrival(it, kind, 0 if kind is ACC else 2)
    if kind is ACC:
        it.step(first, NOW)
    else:
        it.step(Submit(operation(nbytes=4 * FULL)), NOW)
        it.step(arrival(it, RES, 0), NOW)
        it.step(first, NOW)
    blame = it.step(first, NOW)[0]
    assert isinstance(blame, Blame)
    assert blame.rule == f"{kind.name.lower()} out of order"


def test_accumulators_come_a_window_after_those_that_were_added_to() -> None:
    """Although the ones between, which this rank starts, have not gone out: it waits for a result."""
    it = engine(1, 2)
    it.step(Submit(operation(nbytes=6 * FULL)), NOW)
    assert posted(it.step(arrival(it, ACC, 0), NOW)) == [1]
    assert it.step(arrival(it, ACC, 2), NOW) == [], "it waits for the header slot of result 0"
    blame = it.step(arrival(it, ACC, 4), NOW)[0]
    assert blame == Blame(
        "predecessor", "accumulator outside the window", "accumulator 8 where 4 to 6 may come"
    )


def test_ids_beyond_their_bits_are_none() -> None:
    it = engine(1, 2, id_bits=3)
    event = arrival(it, ACC, 0)
    blame = it.step(replace(event, imm=8), NOW)[0]
    assert isinstance(blame, Blame)
    assert blame.evidence == "accumulator 8 where 0 is due of the messages that begin at rank 0"
    it = engine(1, 2, id_bits=3)
    blame = it.step(arrival(it, ACC, 2), NOW)[0]
    assert isinstance(blame, Blame)
    assert blame.rule == "accumulator outside the window", "the upper half of the ids is not the lower one"


def test_completions_out_of_order_are_the_transports_fault() -> None:
    it = engine(0)
    rule = "send completed out of order"
    assert it.step(SendCompleted(0), NOW)[0] == Blame("transport", rule, "message 0 where none is due")
    it = engine(0)
    it.step(Submit(operation()), NOW)
    assert it.step(SendCompleted(1), NOW)[0] == Blame("transport", rule, "message 1 where 0 is due")


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
    assert kinds(actions) == [Blame, OperationFailed, RingBroken], "no other path makes tensors equal"
