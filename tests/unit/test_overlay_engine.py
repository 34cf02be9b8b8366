"""One rank of an overlay: what it gathers, sends up and down and when, what it believes, how it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from inaproto.core.host.engines.host_tree import Came, Fold, OverlayEngine, PostDown
from inaproto.core.host.engines.hosts import Place, PostSlot
from inaproto.core.host.operation_queue import OperationQueue, Source
from inaproto.core.host.operations import (
    UP,
    Fail,
    OperationDone,
    OperationFailed,
    PostKept,
    PostMessage,
    PostNeutral,
    ResultArrived,
    RingBroken,
    RingEvent,
    SendCompleted,
    Stalled,
    Submit,
    TakeResult,
    Woke,
)
from inaproto.core.host.recovery import Recovery
from inaproto.core.plan.host_tree import OverlayTree
from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant, OpIndex
from inaproto.wire.host_header import HostHeader, Kind
from inaproto.wire.ina_header import Dtype
from tests.unit.host_arrivals import FULL, NOW, kinds, message_at, operation
from tests.unit.ideal_ring import ring_config

ACC, RES = Kind.ACCUMULATOR, Kind.RESULT
RACKS: PlanList = ((0, 1), (2, 3))
"""0 is the root, with children 1 and 2; 3 is a child of 2."""


def engine(rank: int, lists: PlanList = RACKS, in_degree: int = 4, **changes: Any) -> OverlayEngine:
    plan = ReductionPlan(lists)
    return OverlayEngine(ring_config(rank, plan.size, **changes), OverlayTree(plan, in_degree))


def arrival(
    at: OverlayEngine, sender: int, kind: Kind, serial: int, nbytes: int = FULL, **fields: Any
) -> ResultArrived:
    """The last message of operation 0."""
    return message_at(at.config, kind, serial, nbytes, **({"last": True, "rank": sender} | fields))


def came(at: OverlayEngine, child: int, serial: int = 0, **fields: Any) -> ResultArrived:
    return arrival(at, at.tree.children(at.config.rank)[child], Kind.ACCUMULATOR, serial, **fields)


def result(at: OverlayEngine, serial: int = 0, **fields: Any) -> ResultArrived:
    parent = at.tree.parents[at.config.rank]
    assert parent is not None
    return arrival(at, parent, Kind.RESULT, serial, **fields)


def long(messages: int) -> Submit:
    return Submit(operation(nbytes=messages * FULL))


# --- the way of a message


def test_a_leaf_sends_its_part_up_and_takes_the_result() -> None:
    leaf = engine(1)
    (post,) = leaf.step(Submit(operation()), NOW)
    assert isinstance(post, PostMessage)
    assert (post.msg_id, post.slot, post.op_index, post.offset, post.nbytes) == (0, 0, 0, 0, FULL)
    header = HostHeader.decode(post.header)
    assert (header.kind, header.fields.rank, header.fields.ring_size) == (Kind.ACCUMULATOR, 1, 4)
    assert leaf.step(result(leaf), NOW) == [TakeResult(1, OpIndex(0), 0, FULL), OperationDone(OpIndex(0))]
    view = leaf.view()
    assert (view.messages_sent, view.messages_received, view.unacknowledged) == (1, 1, 1)


def test_a_rank_in_the_middle_adds_when_all_is_there_and_sends_the_result_on() -> None:
    middle = engine(2)
    assert middle.step(Submit(operation()), NOW) == []
    fold, post = middle.step(came(middle, 0)._replace(edge=0), NOW)
    assert fold == Fold((Came(0, 0, FULL),), Place.STAGED, 0, FULL, operation(), Source.OWN, 0, FULL)
    assert isinstance(post, PostSlot)
    assert (post.msg_id, post.slot, post.place, post.at, post.nbytes) == (0, 0, Place.STAGED, 0, FULL)
    taken, done, down = middle.step(result(middle), NOW)
    assert (taken, done) == (TakeResult(1, OpIndex(0), 0, FULL), OperationDone(OpIndex(0)))
    assert isinstance(down, PostDown)
    assert (down.child, down.msg_id, down.slot, down.at, down.nbytes) == (0, 1, 1, 1, FULL)
    onward = HostHeader.decode(down.header)
    assert (onward.kind, onward.fields.rank, onward.fields.msg_id) == (Kind.RESULT, 2, 1)
    assert middle.view().unacknowledged == 2


def test_the_root_has_the_result_at_once_and_sends_it_to_all_who_has_more_below_first() -> None:
    root = engine(0)
    root.step(Submit(operation()), NOW)
    assert root.step(came(root, 1)._replace(edge=1), NOW) == []
    fold, taken, done, *down = root.step(came(root, 0)._replace(edge=0), NOW)
    gathered = (Came(0, 0, FULL), Came(1, 0, FULL))
    assert fold == Fold(gathered, Place.RECEIVED, 1, FULL, operation(), Source.OWN, 0, FULL)
    assert (taken, done) == (TakeResult(1, OpIndex(0), 0, FULL), OperationDone(OpIndex(0)))
    assert [(post.child, post.at) for post in down if isinstance(post, PostDown)] == [(1, 1), (0, 1)]


def test_what_is_not_complete_goes_up_wide_and_says_its_size() -> None:
    head = engine(0, (0, 1, 2, 3), 1)
    assert head.tree.children(0) == (1,)
    half = operation(dtype=Dtype.F16)
    head.step(Submit(half), NOW)
    fold, post = head.step(came(head, 0, dtype=Dtype.F16)._replace(edge=0), NOW)
    assert isinstance(fold, Fold)
    assert isinstance(post, PostSlot)
    assert (fold.goes, post.nbytes) == (2 * FULL, 2 * FULL)
    assert HostHeader.decode(post.header).fields.msg_len == 4


def test_a_rank_that_is_alone_is_done_at_once() -> None:
    assert engine(0, (0,)).step(Submit(operation()), NOW) == [OperationDone(OpIndex(0))]


def test_a_tensor_without_elements_takes_part_with_headers_alone() -> None:
    root = engine(0, (0, 1))
    root.step(Submit(operation(nbytes=0)), NOW)
    assert kinds(root.step(came(root, 0, nbytes=0)._replace(edge=0), NOW)) == [
        Fold,
        TakeResult,
        OperationDone,
        PostDown,
    ]


# --- when it waits


def test_at_most_n_messages_are_on_their_way_and_a_result_lets_the_next_out() -> None:
    leaf = engine(1)
    posts = leaf.step(long(5), NOW)
    assert [post.msg_id for post in posts if isinstance(post, PostMessage)] == [0, 2]
    assert kinds(leaf.step(result(leaf, last=False), NOW)) == [TakeResult]  # its slot is still being sent
    (post,) = leaf.step(SendCompleted(0), NOW)
    assert isinstance(post, PostMessage)
    assert (post.msg_id, post.slot, post.offset) == (4, 0, 2 * FULL)


def test_a_send_that_is_acknowledged_lets_nothing_out_before_the_result() -> None:
    """N receive slots are enough because nobody is more than N results ahead."""
    leaf = engine(1)
    leaf.step(long(5), NOW)
    assert leaf.step(SendCompleted(0), NOW) == []
    assert kinds(leaf.step(result(leaf, last=False), NOW)) == [TakeResult, PostMessage]


def test_the_root_adds_into_no_slot_that_is_still_being_sent() -> None:
    root = engine(0, (0, 1, 2))
    root.step(long(5), NOW)
    found = [
        root.step(came(root, child, serial, last=False)._replace(edge=child), NOW)
        for serial in range(3)
        for child in (0, 1)
    ]
    assert found[-1] == [], "result 2 lies where result 0 did"
    assert root.step(SendCompleted(1, edge=0), NOW) == []
    assert kinds(root.step(SendCompleted(1, edge=1), NOW)) == [Fold, TakeResult, PostDown, PostDown]


def test_a_child_that_has_not_acknowledged_gets_the_next_result_later_than_others() -> None:
    middle = engine(0, ((0, 1, 2), 3, 4), 2)
    assert (middle.tree.root, middle.tree.children(0)) == (3, (1, 2))
    middle.step(long(5), NOW)
    sent = []
    for serial in range(3):
        for child in (0, 1):
            middle.step(came(middle, child, serial, last=False)._replace(edge=child), NOW)
        middle.step(SendCompleted(2 * serial), NOW)
        actions = middle.step(result(middle, serial, last=False), NOW)
        sent.append([post.child for post in actions if isinstance(post, PostDown)])
        if serial == 0:
            assert middle.step(SendCompleted(1, edge=1), NOW) == []
    assert sent == [[0, 1], [0, 1], [1]]
    late = middle.step(SendCompleted(1, edge=0), NOW)
    assert [(post.child, post.msg_id) for post in late if isinstance(post, PostDown)] == [(0, 5)]


def test_it_waits_for_its_own_call() -> None:
    middle = engine(2)
    assert middle.step(came(middle, 0)._replace(edge=0), NOW) == []
    assert kinds(middle.step(Submit(operation()), NOW)) == [Fold, PostSlot]


# --- what it does not believe


def broken(at: OverlayEngine, event: ResultArrived | SendCompleted, edge: int = UP) -> tuple[Blame, str]:
    blame, failed, ring = at.step(event._replace(edge=edge), NOW)
    assert isinstance(blame, Blame)
    assert isinstance(failed, OperationFailed)
    assert isinstance(ring, RingBroken)
    assert at.step(event._replace(edge=edge), NOW) == [], "after a failure nothing is taken"
    return blame, ring.code


def called(rank: int, lists: PlanList = RACKS) -> OverlayEngine:
    at = engine(rank, lists)
    at.step(long(9), NOW)
    return at


@pytest.mark.parametrize(
    ("rank", "sender", "kind", "serial", "edge", "blame"),
    [
        (2, 3, ACC, 1, 0, Blame("rank 3", "accumulator out of order", "accumulator 2 where 0 is due")),
        (1, 0, RES, 1, UP, Blame("rank 0", "result out of order", "result 3 where 1 is due")),
        (2, 0, RES, 0, UP, Blame("rank 0", "result of a message not sent", "result 1 where 1 is due")),
        (0, 3, RES, 0, UP, Blame("transport", "result at the root of the tree", "result 1 where 1 is due")),
        (2, 0, ACC, 0, UP, Blame("rank 0", "result out of order", "result 0 where 1 is due")),
        (2, 3, RES, 0, 0, Blame("rank 3", "accumulator out of order", "accumulator 1 where 0 is due")),
    ],
)
def test_what_comes_in_must_be_what_is_due(
    rank: int, sender: int, kind: Kind, serial: int, edge: int, blame: Blame
) -> None:
    at = called(rank)
    assert broken(at, arrival(at, sender, kind, serial), edge)[0] == blame


def test_no_child_goes_beyond_the_window() -> None:
    root = engine(0, (0, 1, 2))
    root.step(long(9), NOW)
    for serial in range(2):
        assert root.step(came(root, 0, serial, last=False)._replace(edge=0), NOW) == []
    blame, code = broken(root, came(root, 0, 2, last=False), 0)
    text = "accumulator 4 where 4 is due"
    assert (blame, code) == (Blame("rank 1", "accumulator beyond the window", text), "fabric_lost")


@pytest.mark.parametrize("fields", [{"rank": 1}, {"key": 5}, {"epoch": 9}, {"ring_id": 9}, {"op_index": 3}])
def test_every_field_of_a_header_is_checked(fields: dict[str, int]) -> None:
    at = called(2)
    blame, code = broken(at, came(at, 0, **({"last": False} | fields)), 0)
    assert (blame.peer, blame.rule, code) == ("rank 3", "accumulator header", "fabric_lost")
    at = called(1)
    blame, _ = broken(
        at, result(at, **({"last": False} | fields | ({"rank": 2} if "rank" in fields else {})))
    )
    assert (blame.peer, blame.rule) == ("rank 0", "result header")


def test_ranks_that_call_different_all_reduces_are_told_so() -> None:
    at = called(2)
    blame, code = broken(at, came(at, 0, last=False, signature=9), 0)
    assert (blame.rule, code) == ("tensors differ", "tensor_mismatch")


def test_sends_complete_in_their_order_on_each_connection() -> None:
    at = called(1)
    blame, _ = broken(at, SendCompleted(2))
    assert (blame.peer, blame.rule) == ("transport", "send completed out of order")


def test_a_ring_that_is_outlived_breaks_and_fails_nothing() -> None:
    at = engine(1, outlived=True)
    at.step(Submit(operation()), NOW)
    assert kinds(at.step(result(at, 1), NOW)) == [Blame, RingBroken]
    assert at.step(result(at), NOW) == []


def test_misuse_is_refused() -> None:
    at = engine(1)
    with pytest.raises(LocalMisuse, match="rank 1 has no connection 0"):
        at.step(SendCompleted(0, edge=0), NOW)
    with pytest.raises(LocalMisuse, match="a plan of 4 ranks in a ring of 3"):
        OverlayEngine(ring_config(0, 3), OverlayTree(ReductionPlan(RACKS), 2))
    with pytest.raises(LocalMisuse, match="a plan of 4 ranks in a ring of 5"):
        OverlayEngine(ring_config(4, 5), OverlayTree(ReductionPlan(RACKS), 2))
    with pytest.raises(LocalMisuse, match="runs already"):
        at.resume(NOW)


# --- its clock, and other rings


def test_it_tells_when_it_stalls_and_fails_when_it_is_told() -> None:
    leaf = engine(1)
    leaf.step(Submit(operation()), NOW)
    assert leaf.deadline is not None
    assert kinds(leaf.step(Woke(), Instant(leaf.deadline))) == [Stalled]
    assert kinds(leaf.step(Fail("rank_lost", "gone"), NOW)) == [OperationFailed]
    assert leaf.step(result(leaf), NOW) == []


def deadline_after(at: OverlayEngine, event: RingEvent, now: int) -> int:
    """The rest of the patience of ``at``, which begins anew by ``event``."""
    at.step(event, Instant(now))
    assert at.deadline is not None
    return at.deadline - at.config.stall_ns


def test_its_clock_begins_anew_with_each_operation_and_each_result() -> None:
    leaf = engine(1)
    leaf.step(long(2), NOW)
    leaf.step(Submit(operation(1)), NOW)
    assert deadline_after(leaf, result(leaf, last=False), 5) == 5
    assert deadline_after(leaf, result(leaf, 1), 6) == 6, "the next operation starts"
    assert leaf.view().since == 6
    root = engine(0, (0, 1))
    root.step(long(9), NOW)
    assert deadline_after(root, came(root, 0, last=False)._replace(edge=0), 7) == 7
    root.step(came(root, 0, 1, last=False)._replace(edge=0), Instant(8))
    assert deadline_after(root, came(root, 0, 2, last=False)._replace(edge=0), 9) == 8, (
        "the slot is still being sent"
    )
    assert deadline_after(root, SendCompleted(1, edge=0), 10) == 10
    waits = OverlayEngine(
        ring_config(1, 4), OverlayTree(ReductionPlan(RACKS), 4), engine(1).halt(), Recovery(0, 0)
    )
    assert waits.step(Submit(operation()), NOW) == [], "the others may not be ready"
    assert (waits.deadline, kinds(waits.resume(Instant(11)))) == (None, [PostMessage])
    assert waits.deadline == 11 + waits.config.stall_ns


def test_a_message_that_starts_at_an_acknowledgement_starts_an_operation_s_clock() -> None:
    """The send of the operation before keeps its slot until it is complete."""
    root = engine(0, (0, 1))
    for index in range(3):
        root.step(Submit(operation(index)), NOW)
        root.step(came(root, 0, index, op_index=index)._replace(edge=0), Instant(index))
    assert root.progress == 2, "the slot of the third is still being sent"
    root.step(Submit(operation(3)), NOW)
    assert deadline_after(root, SendCompleted(1, edge=0), 9) == 9


def halted_after(rank: int, results: int) -> OperationQueue:
    """Of a leaf."""
    before = engine(rank)
    before.step(long(5), NOW)
    for serial in range(results):
        before.step(result(before, serial, last=False), NOW)
        before.step(SendCompleted(2 * serial), NOW)
    return before.halt()


def test_it_goes_on_with_kept_results_at_the_donor_and_neutral_elements_elsewhere() -> None:
    tree, recovery = OverlayTree(ReductionPlan(RACKS), 4), Recovery(progress=3, donor=1)
    donor = OverlayEngine(ring_config(1, 4), tree, halted_after(1, 3), recovery)
    posts = donor.resume(NOW)
    assert [(type(post), post.offset) for post in posts if isinstance(post, PostMessage)] == [
        (PostKept, FULL),
        (PostKept, 2 * FULL),
    ]
    view = donor.view()
    assert (view.messages_sent, view.messages_received, view.unacknowledged) == (2, 0, 2)
    other = OverlayEngine(ring_config(3, 4), tree, halted_after(3, 2), recovery)
    posts = other.resume(NOW)
    assert [(type(post), post.offset) for post in posts if isinstance(post, PostMessage)] == [
        (PostNeutral, FULL),
        (PostNeutral, 2 * FULL),
    ]
    again = message_at(other.config, Kind.RESULT, 1, FULL, last=False, rank=2, msg_id=3)
    assert kinds(other.step(again, NOW)) == [], "it has that one"
    lacked = message_at(other.config, Kind.RESULT, 2, FULL, last=False, rank=2, msg_id=5)
    assert kinds(other.step(lacked, NOW)) == [TakeResult]
    assert [(kept.serial, kept.ring_id, kept.slot) for kept in other.halt().kept][-1] == (2, 7, 1)
    assert other.view().messages_received == 2


def test_once_halted_nothing_is_taken() -> None:
    leaf = engine(1)
    leaf.step(Submit(operation()), NOW)
    leaf.halt()
    assert leaf.step(result(leaf), NOW) == []
    assert leaf.step(SendCompleted(0), NOW) == []
