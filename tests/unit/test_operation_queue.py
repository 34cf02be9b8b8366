"""What outlives a ring: how operations go on by the next one, and where they cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.host.engines.in_network import RingAction, RingEngine
from inaproto.core.host.operation_queue import KeptResult, OperationQueue
from inaproto.core.host.operations import (
    Fail,
    Filled,
    Memory,
    Operation,
    OperationDone,
    OperationFailed,
    PostKept,
    PostMessage,
    PostNeutral,
    ResultArrived,
    RingBroken,
    SendCompleted,
    Submit,
    TakeResult,
)
from inaproto.core.host.recovery import Recovery
from inaproto.errors import Blame, InvariantBroken, LocalMisuse
from inaproto.units import Instant, OpIndex, RingId
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, InaHeader, Op
from tests.unit.ideal_ring import marked_as_result, ring_config

NOW = Instant(0)
FULL = 2 * 256 - INA_HEADER_BYTES


def operation(index: int = 0, nbytes: int = FULL) -> Operation:
    return Operation(OpIndex(index), Dtype.I32, Op.SUM, nbytes, 0x1234)


def result(engine: RingEngine, post: RingAction) -> ResultArrived:
    """Of the message that ``post`` sent."""
    assert isinstance(post, PostMessage)
    header = replace(InaHeader.decode(marked_as_result(post.header)), rank=engine.config.rank ^ 1)
    return ResultArrived(post.msg_id, INA_HEADER_BYTES + post.nbytes, header.encode())


def arrived(engine: RingEngine, post: RingAction) -> list[RingAction]:
    """The successor has the message that ``post`` sent, and says so; its result is here."""
    assert isinstance(post, PostMessage)
    acknowledged = engine.step(SendCompleted(post.msg_id), NOW)
    return [*acknowledged, *engine.step(result(engine, post), NOW)]


def halted(results: int, *, messages: int = 4, rank: int = 0) -> OperationQueue:
    """Of a rank that has so many results of two operations: one of one message, and a long one."""
    engine = RingEngine(ring_config(rank, 2))
    posts = engine.step(Submit(operation()), NOW)
    posts += engine.step(Submit(operation(1, messages * FULL)), NOW)
    for _ in range(results):
        actions = arrived(engine, posts.pop(0))
        posts += [action for action in actions if isinstance(action, PostMessage)]
    return engine.halt()


def next_ring(operations: OperationQueue, progress: int, donor: int) -> RingEngine:
    config = replace(ring_config(0, 2), ring_id=RingId(8))
    return RingEngine(config, operations, Recovery(progress=progress, donor=donor))


def test_a_ring_that_ended_is_silent_and_its_operations_wait() -> None:
    engine = RingEngine(ring_config(0, 2))
    (post,) = engine.step(Submit(operation()), NOW)
    operations = engine.halt()
    assert arrived(engine, post) == []
    assert engine.step(SendCompleted(0), NOW) == []
    assert engine.step(Submit(operation(1)), NOW) == []
    assert (len(operations), operations.progress, engine.view().operations_queued) == (2, 0, 2)
    assert engine.halt() is operations


def test_the_last_n_results_are_kept() -> None:
    assert list(halted(3).kept) == [
        KeptResult(1, operation(1, 4 * FULL), False, 0, FULL, RingId(7), 1),
        KeptResult(2, operation(1, 4 * FULL), False, FULL, FULL, RingId(7), 2),
    ]
    assert list(halted(1).kept) == [KeptResult(0, operation(), True, 0, FULL, RingId(7), 0)]


def test_the_donor_contributes_what_it_kept_and_takes_nothing_twice() -> None:
    engine = next_ring(halted(3), progress=3, donor=0)
    first, second = engine.resume(NOW)
    assert isinstance(first, PostKept)
    assert isinstance(second, PostKept)
    assert first[:2] + first[3:] == (0, 0, 1, 0, FULL)
    assert second[:2] + second[3:] == (1, 1, 1, FULL, FULL)
    header = InaHeader.decode(second.header)
    assert (header.ring_id, header.op_index, header.is_last, header.rank) == (8, 1, False, 0)
    (own,) = arrived(engine, first)
    assert type(own) is PostMessage
    assert (own.msg_id, own.offset) == (2, 2 * FULL)
    (last,) = arrived(engine, second)
    assert isinstance(last, PostMessage)
    assert last.offset == 3 * FULL
    assert arrived(engine, own) == [TakeResult(2, OpIndex(1), 2 * FULL, FULL)]


def test_who_lacks_results_contributes_nothing_to_them_and_takes_them() -> None:
    engine = next_ring(halted(0), progress=2, donor=1)
    neutral, of_the_next = engine.resume(NOW)
    assert isinstance(neutral, PostNeutral)
    assert isinstance(of_the_next, PostNeutral)
    assert (neutral.op_index, of_the_next.op_index, of_the_next.offset) == (0, 1, 0)
    taken, done, own = arrived(engine, neutral)
    assert (taken, done) == (TakeResult(0, OpIndex(0), 0, FULL), OperationDone(OpIndex(0)))
    assert type(own) is PostMessage
    assert own.offset == FULL


def test_who_has_a_result_and_is_no_donor_contributes_nothing_and_lets_it_go() -> None:
    engine = next_ring(halted(2), progress=3, donor=1)
    posts = engine.resume(NOW)
    assert [type(post) for post in posts] == [PostNeutral, PostNeutral]
    (after,) = arrived(engine, posts[0])
    assert type(after) is PostMessage
    assert arrived(engine, posts[1])[0] == TakeResult(1, OpIndex(1), FULL, FULL)


def test_a_result_that_exists_is_checked_as_any_other() -> None:
    engine = next_ring(halted(3), progress=3, donor=0)
    (post, _) = engine.resume(NOW)
    event = result(engine, post)
    blame, *_ = engine.step(event._replace(nbytes=event.nbytes - 1), NOW)
    assert isinstance(blame, Blame)
    assert blame.rule == "result size"


def test_operations_that_were_submitted_in_between_begin_on_the_next_ring() -> None:
    engine = RingEngine(ring_config(0, 2))
    operations = engine.halt()
    assert engine.step(Submit(operation()), NOW) == []
    engine = next_ring(operations, progress=0, donor=0)
    assert engine.step(Submit(operation(1)), NOW) == []
    posts = engine.resume(NOW)
    assert [type(post) for post in posts] == [PostMessage, PostMessage]
    with pytest.raises(LocalMisuse, match=r"^ring 8 runs already$"):
        engine.resume(NOW)


def test_operations_that_have_failed_do_not_go_on() -> None:
    engine = next_ring(halted(1), progress=1, donor=0)
    assert engine.step(Fail("rank_lost", "gone"), NOW) == [OperationFailed(OpIndex(1), "rank_lost", "gone")]
    assert engine.resume(NOW) == []


def test_the_clock_of_an_operation_runs_on() -> None:
    engine = RingEngine(ring_config(0, 2, stall_ns=100))
    engine.step(Submit(operation()), NOW)
    operations = engine.halt()
    assert operations.deadline == engine.deadline == 100
    assert next_ring(operations, progress=0, donor=0).deadline == 100


@pytest.mark.parametrize(("results", "progress", "donor"), [(2, 3, 0), (0, 3, 1), (3, 2, 1), (3, 2, 0)])
def test_recoveries_in_which_a_rank_cannot_take_part(results: int, progress: int, donor: int) -> None:
    with pytest.raises(LocalMisuse) as caught:
        next_ring(halted(results), progress, donor)
    assert str(caught.value) == (
        f"rank 0 has {results} results and cannot take part in Recovery(progress={progress}, donor={donor})"
    )


@pytest.mark.parametrize("change", [{"mtu": 512}, {"window_messages": 4}, {"ring_size": 3}])
def test_rings_on_which_operations_cannot_go_on(change: dict[str, int]) -> None:
    config = replace(ring_config(0, 2), **change)  # type: ignore[arg-type]
    with pytest.raises(LocalMisuse) as caught:
        RingEngine(config, halted(0))
    asked = (config.ring_size, config.tensor_bytes, config.window_messages)
    assert str(caught.value) == (
        f"ring 7 has (ranks, tensor bytes of a message, window) {asked}, "
        f"the operations that are to go on have (2, {FULL}, 2)"
    )


def test_a_gradient_that_was_not_aggregated_ends_the_ring_and_not_its_operations() -> None:
    """What a switch that restarted does: the job may go on by another path."""
    engine = RingEngine(replace(ring_config(0, 2), outlived=True))
    (post,) = engine.step(Submit(operation()), NOW)
    event = result(engine, post)
    raw = replace(InaHeader.decode(event.header), flags=1).encode()
    blame, broken = engine.step(event._replace(header=raw), NOW)
    assert isinstance(blame, Blame)
    assert isinstance(broken, RingBroken)
    assert broken.message == f"rank 0 of ring 7 got a wrong message ({blame}); the ring cannot go on"
    assert engine.step(event, NOW) == []
    assert len(engine.halt()) == 1
    assert engine.view().failure is None


def test_the_last_message_of_an_operation_is_so_again() -> None:
    (post,) = next_ring(halted(1, messages=0), progress=1, donor=0).resume(NOW)[:1]
    assert isinstance(post, PostKept)
    assert InaHeader.decode(post.header).is_last


def test_a_rank_that_is_alone_goes_on_with_all_that_wait() -> None:
    engine = RingEngine(ring_config(0, 1))
    operations = engine.halt()
    for index in range(3):
        engine.step(Submit(operation(index)), NOW)
    assert RingEngine(ring_config(0, 1), operations).resume(NOW) == [
        OperationDone(OpIndex(index)) for index in range(3)
    ]


def test_an_operation_that_waited_starts_when_the_next_ring_runs() -> None:
    engine = RingEngine(ring_config(0, 2, stall_ns=100))
    operations = engine.halt()
    engine.step(Submit(operation()), NOW)
    assert operations.deadline is None
    engine = next_ring(operations, progress=0, donor=0)
    engine.resume(Instant(50))
    assert engine.deadline == 150


# --- several operations on their way


def small(count: int, *, window: int, memory: tuple[Memory, ...] = ()) -> tuple[RingEngine, list[RingAction]]:
    """A rank that has called so many operations of one message each, and what it has sent."""
    engine = RingEngine(ring_config(0, 2, window_messages=window))
    posts: list[RingAction] = []
    for index in range(count):
        posts += engine.step(Submit(replace(operation(index, 8), memory=memory)), NOW)
    return engine, posts


def indices(posts: list[RingAction]) -> list[int]:
    return [post.op_index for post in posts if isinstance(post, PostMessage)]


def test_a_window_of_small_operations_is_on_its_way_at_once() -> None:
    engine, posts = small(20, window=16)
    assert indices(posts) == list(range(16))
    assert engine.operations.in_flight == 16
    assert engine.operations.started == 1, "the others wait, for whoever asks"
    actions = arrived(engine, posts[0])
    assert [type(action) for action in actions] == [TakeResult, OperationDone, PostMessage]
    assert indices(actions[2:]) == [16]
    assert (engine.operations.running, engine.operations.in_flight) == (operation(1, 8), 16)


def test_the_rest_of_an_operation_goes_before_the_next() -> None:
    engine = RingEngine(ring_config(0, 2))
    posts = engine.step(Submit(operation(0, 3 * FULL)), NOW)
    assert engine.step(Submit(operation(1)), NOW) == []
    assert indices(arrived(engine, posts[0])) == [0]
    assert engine.operations.in_flight == 1
    assert indices(arrived(engine, posts[1])) == [1]
    assert engine.operations.in_flight == 2


def test_an_operation_on_the_memory_of_another_is_sent_when_that_has_ended() -> None:
    """What it reads is what the other writes."""
    engine, posts = small(3, window=4, memory=(Memory(0, 1, 0, 8),))
    assert indices(posts) == [0]
    assert engine.operations.in_flight == 1
    assert indices(arrived(engine, posts[0])) == [1]


def test_operations_on_memory_of_their_own_wait_for_no_other() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=4))
    for index in range(3):
        mine = (Memory(0, 1, 8 * index, 8 * index + 8),)
        assert indices(engine.step(Submit(replace(operation(index, 8), memory=mine)), NOW)) == [index]


def test_an_operation_of_which_a_part_is_sent_is_on_its_way() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=1))
    posts = engine.step(Submit(operation(0, 3 * FULL)), NOW)
    assert engine.operations.in_flight == 1
    arrived(engine, posts[0])
    assert not engine.operations.lacks_several(3)
    assert engine.operations.lacks_several(4)


@pytest.mark.parametrize(
    ("other", "shares"),
    [
        (Memory(0, 1, 8, 16), False),
        (Memory(0, 1, 0, 4), True),
        (Memory(0, 1, 4, 12), True),
        (Memory(0, 1, 4, 4), False),
        (Memory(0, 2, 0, 8), False),
        (Memory(1, 1, 0, 8), False),
    ],
)
def test_memory_is_shared_where_a_byte_is(other: Memory, shares: bool) -> None:
    mine = replace(operation(), memory=(Memory(2, 1, 0, 8), Memory(0, 1, 0, 8)))
    its = replace(operation(1), memory=(other,))
    assert mine.shares_memory_with(its) is its.shares_memory_with(mine) is shares
    assert not mine.shares_memory_with(operation(1))
    assert replace(its, memory=()) == its, "each rank has its own"


def test_who_is_behind_by_several_operations_takes_them_all_and_goes_on() -> None:
    engine, _ = small(6, window=4)
    operations = engine.halt()
    assert operations.lacks_several(3)
    assert not operations.lacks_several(1)
    config = ring_config(0, 2, window_messages=4)
    engine = RingEngine(config, operations, Recovery(progress=3, donor=1))
    posts = engine.resume(NOW)
    assert [type(post) for post in posts] == [PostNeutral, PostNeutral, PostNeutral, PostMessage]
    assert indices(posts) == [0, 1, 2, 3]
    taken = [arrived(engine, post)[0] for post in posts]
    assert taken == [TakeResult(index, OpIndex(index), 0, 8) for index in range(4)]


def test_who_is_ahead_by_several_operations_gives_them_all() -> None:
    engine, posts = small(6, window=4)
    for post in list(posts[:3]):
        posts += arrived(engine, post)[2:]
    operations = engine.halt()
    assert (operations.progress, operations.in_flight) == (3, 3)
    again = RingEngine(ring_config(0, 2, window_messages=4), operations, Recovery(progress=3, donor=0))
    posts = again.resume(NOW)
    assert [type(post) for post in posts] == [PostKept, PostKept, PostKept, PostMessage]
    assert indices(posts) == [0, 1, 2, 3]
    assert again.operations.in_flight == 1, "what was ahead on the ring that ended is sent anew"


def test_a_ring_that_begins_after_all_has_ended_sends_whole_operations() -> None:
    engine, posts = small(1, window=2)
    arrived(engine, posts[0])
    again = RingEngine(ring_config(0, 2), engine.halt(), Recovery(progress=1, donor=0))
    again.step(Submit(operation(1, 2 * FULL)), NOW)
    kept, own = again.resume(NOW)
    assert (type(kept), type(own)) == (PostKept, PostMessage)
    assert isinstance(own, PostMessage)
    assert own.offset == 0


def test_operations_that_fail_on_their_way_fail_together() -> None:
    engine, _ = small(3, window=4)
    assert engine.step(Fail("rank_lost", "gone"), NOW) == [
        OperationFailed(OpIndex(index), "rank_lost", "gone") for index in range(3)
    ]
    assert (engine.operations.unsent, engine.operations.in_flight) == (0, 0)


def test_nothing_is_sent_or_taken_without_an_operation() -> None:
    operations = OperationQueue(ring_config(0, 2))
    uses = (
        (operations.next_part, "a message belongs to no operation"),
        (lambda: operations.take(RingId(7), 0, NOW), "a result belongs to no operation"),
    )
    for use, why in uses:
        with pytest.raises(InvariantBroken, match=f"^{why}$"):
            use()
    assert operations.unsent == 0


# --- tensors that are filled while their operation is under way


def filling(index: int, nbytes: int, filled: int) -> Operation:
    return replace(operation(index, nbytes), filled=filled)


def posted(actions: list[RingAction]) -> list[tuple[int, int, int]]:
    """(operation, offset, bytes) of what is sent."""
    return [(it.op_index, it.offset, it.nbytes) for it in actions if isinstance(it, PostMessage)]


def test_a_message_waits_for_its_last_byte() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=4))
    assert posted(engine.step(Submit(filling(0, 2 * FULL + 8, FULL - 1)), NOW)) == []
    assert posted(engine.step(Filled(OpIndex(0), FULL), NOW)) == [(0, 0, FULL)]
    assert posted(engine.step(Filled(OpIndex(0), 2 * FULL + 7), NOW)) == [(0, FULL, FULL)]
    assert posted(engine.step(Filled(OpIndex(0), 2 * FULL + 8), NOW)) == [(0, 2 * FULL, 8)]
    assert engine.step(Filled(OpIndex(0), 2 * FULL + 8), NOW) == []


def test_what_follows_waits_too_and_the_window_is_filled_at_once() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=4))
    assert len(posted(engine.step(Submit(filling(0, 2 * FULL, FULL)), NOW))) == 1
    assert posted(engine.step(Submit(operation(1, 2 * FULL)), NOW)) == []
    sent = posted(engine.step(Filled(OpIndex(0), 2 * FULL), NOW))
    assert sent == [(0, FULL, FULL), (1, 0, FULL), (1, FULL, FULL)]


def test_of_one_behind_another_that_is_whole_what_is_there_is_sent() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=4))
    first = engine.step(Submit(operation(0, 6 * FULL)), NOW)
    assert len(first) == 4
    assert engine.step(Submit(filling(1, 3 * FULL, FULL)), NOW) == []
    assert engine.step(Filled(OpIndex(1), FULL), NOW) == [], "no more than before"
    sent = [it for post in first for it in posted(arrived(engine, post))]
    assert sent == [(0, 4 * FULL, FULL), (0, 5 * FULL, FULL), (1, 0, FULL)]


def test_an_operation_that_was_called_whole_is_never_asked() -> None:
    engine = RingEngine(ring_config(0, 2))
    assert len(posted(engine.step(Submit(filling(0, FULL, FULL)), NOW))) == 1
    assert engine.step(Filled(OpIndex(0), 3), NOW) == []
    assert engine.step(Filled(OpIndex(7), 3), NOW) == []


@pytest.mark.parametrize("nbytes", [FULL - 1, 2 * FULL + 1])
def test_bytes_that_were_there_stay_and_no_more_come_than_there_are(nbytes: int) -> None:
    engine = RingEngine(ring_config(0, 2))
    engine.step(Submit(filling(0, 2 * FULL, FULL)), NOW)
    with pytest.raises(LocalMisuse, match="bytes were there"):
        engine.step(Filled(OpIndex(0), nbytes), NOW)


def test_the_next_ring_sends_what_is_there_from_the_results_on() -> None:
    engine = RingEngine(ring_config(0, 2))
    (post,) = engine.step(Submit(filling(0, 4 * FULL, FULL + 1)), NOW)
    arrived(engine, post)
    operations = engine.halt()
    assert engine.step(Filled(OpIndex(0), 2 * FULL), NOW) == []
    following = next_ring(operations, progress=1, donor=0)
    assert posted(following.resume(NOW)) == [(0, 0, FULL), (0, FULL, FULL)]
    assert posted(following.step(Filled(OpIndex(0), 4 * FULL), NOW)) == []
    assert operations.unsent == 2


def test_what_is_filled_of_a_failed_operation_is_nothing() -> None:
    engine = RingEngine(ring_config(0, 2))
    engine.step(Submit(filling(0, 2 * FULL, 0)), NOW)
    engine.step(Fail("x", "over"), NOW)
    assert engine.step(Filled(OpIndex(0), 2 * FULL), NOW) == []
    assert engine.operations.unsent == 0
