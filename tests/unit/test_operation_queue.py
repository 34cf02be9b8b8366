"""What outlives a ring: how operations go on by the next one, and where they cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.host.engines.in_network import RingAction, RingEngine
from inaproto.core.host.operation_queue import KeptResult, OperationQueue
from inaproto.core.host.operations import (
    Fail,
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


def halted(results: int, *, messages: int = 4, rank: int = 0) -> OperationQueue:
    """Of a rank that has so many results of two operations: one of one message, and a long one."""
    engine = RingEngine(ring_config(rank, 2))
    posts = engine.step(Submit(operation()), NOW)
    engine.step(Submit(operation(1, messages * FULL)), NOW)
    for _ in range(results):
        actions = engine.step(result(engine, posts.pop(0)), NOW)
        posts += [action for action in actions if isinstance(action, PostMessage)]
        engine.step(SendCompleted(engine.view().messages_received - 1), NOW)
    return engine.halt()


def next_ring(operations: OperationQueue, progress: int, donor: int) -> RingEngine:
    config = replace(ring_config(0, 2), ring_id=RingId(8))
    return RingEngine(config, operations, Recovery(progress=progress, donor=donor))


def test_a_ring_that_ended_is_silent_and_its_operations_wait() -> None:
    engine = RingEngine(ring_config(0, 2))
    (post,) = engine.step(Submit(operation()), NOW)
    operations = engine.halt()
    assert engine.step(result(engine, post), NOW) == []
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
    (own,) = engine.step(result(engine, first), NOW)
    assert type(own) is PostMessage
    assert (own.msg_id, own.offset) == (2, 2 * FULL)
    (last,) = engine.step(result(engine, second), NOW)
    assert isinstance(last, PostMessage)
    assert last.offset == 3 * FULL
    assert engine.step(result(engine, own), NOW) == [TakeResult(2, OpIndex(1), 2 * FULL, FULL)]


def test_who_lacks_results_contributes_nothing_to_them_and_takes_them() -> None:
    engine = next_ring(halted(0), progress=2, donor=1)
    (neutral,) = engine.resume(NOW)
    assert isinstance(neutral, PostNeutral)
    assert neutral.op_index == 0
    taken, done, *posts = engine.step(result(engine, neutral), NOW)
    assert (taken, done) == (TakeResult(0, OpIndex(0), 0, FULL), OperationDone(OpIndex(0)))
    assert [type(post) for post in posts] == [PostNeutral, PostMessage]
    assert [post.offset for post in posts if isinstance(post, PostMessage)] == [0, FULL]


def test_who_has_a_result_and_is_no_donor_contributes_nothing_and_lets_it_go() -> None:
    engine = next_ring(halted(2), progress=3, donor=1)
    posts = engine.resume(NOW)
    assert [type(post) for post in posts] == [PostNeutral, PostNeutral]
    (after,) = engine.step(result(engine, posts[0]), NOW)
    assert type(after) is PostMessage
    assert engine.step(result(engine, posts[1]), NOW)[0] == TakeResult(1, OpIndex(1), FULL, FULL)


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
    (post,) = engine.resume(NOW)
    assert type(post) is PostMessage
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


def test_nothing_is_sent_or_taken_without_an_operation() -> None:
    operations = OperationQueue(ring_config(0, 2))
    uses = (
        (operations.next_part, "a message belongs to no operation"),
        (lambda: operations.part(0), "a message belongs to no operation"),
        (lambda: operations.take(RingId(7), 0, NOW), "a result belongs to no operation"),
    )
    for use, why in uses:
        with pytest.raises(InvariantBroken, match=f"^{why}$"):
            use()
    assert operations.unsent == 0
