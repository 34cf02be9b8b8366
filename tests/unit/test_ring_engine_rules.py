"""Whom an engine blames and in which words, what its view counts, and the limits of its configuration."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from inaproto.core.host.engines.in_network import (
    Fail,
    OperationDone,
    OperationFailed,
    PostMessage,
    ResultArrived,
    RingAction,
    RingBroken,
    RingEngine,
    RingView,
    SendCompleted,
    Submit,
    TakeResult,
)
from inaproto.core.host.message_window import WindowConfig
from inaproto.errors import Blame, FabricLost, LocalMisuse
from inaproto.units import Instant, OpIndex
from inaproto.wire.ina_header import FLAG_RESULT, INA_HEADER_BYTES, InaHeader
from tests.unit.ideal_ring import ring_config
from tests.unit.test_ring_engine import FULL, NOW, operation, result

AGAIN = "start it again, and report this if it comes back"
ACCELERATOR = "see that the path has an accelerator, then start it again"


def posts(actions: list[RingAction]) -> list[PostMessage]:
    return [action for action in actions if isinstance(action, PostMessage)]


def changed(event: ResultArrived, **changes: Any) -> ResultArrived:
    return ResultArrived(
        **{name: changes.get(name, getattr(event, name)) for name in ("imm", "nbytes", "header")}
    )


def broken_by(blame: Blame, advice: str = AGAIN) -> list[RingAction]:
    """What an engine of rank 1 of ring 7, in its operation 0, answers to a message that breaks the ring."""
    text = f"rank 1 of ring 7 got a wrong message ({blame}); the job cannot go on: {advice}"
    return [
        blame,
        OperationFailed(OpIndex(0), FabricLost.code, text),
        RingBroken(FabricLost.code, text),
    ]


def running() -> tuple[RingEngine, ResultArrived]:
    """Rank 1 of 3 with one message out, and the result that is due."""
    engine = RingEngine(ring_config(1, 3))
    [post] = posts(engine.step(Submit(operation()), NOW))
    return engine, result(engine, 0, post)


def test_a_new_engine() -> None:
    assert RingEngine(ring_config(0, 2)).view() == RingView(
        operations_submitted=0,
        operations_done=0,
        operations_failed=0,
        operations_queued=0,
        running=None,
        messages=0,
        results=0,
        since=Instant(0),
        bytes_reduced=0,
        messages_sent=0,
        messages_received=0,
        unacknowledged=0,
        stalls=0,
        failure=None,
    )


def test_the_view_counts_operations_messages_and_bytes() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=2))
    sent = posts(engine.step(Submit(operation(0, 3 * FULL)), Instant(5)))
    engine.step(Submit(operation(1)), Instant(6))
    engine.step(Submit(operation(2)), Instant(7))
    engine.step(SendCompleted(0), Instant(7))
    sent += posts(engine.step(result(engine, 0, sent[0]), Instant(8)))
    assert engine.view() == RingView(
        operations_submitted=3,
        operations_done=0,
        operations_failed=0,
        operations_queued=3,
        running=operation(0, 3 * FULL),
        messages=3,
        results=1,
        since=Instant(8),
        bytes_reduced=0,
        messages_sent=3,
        messages_received=1,
        unacknowledged=2,
        stalls=0,
        failure=None,
    )
    for msg_id in range(1, 5):
        engine.step(SendCompleted(msg_id), Instant(10))
        sent += posts(engine.step(result(engine, msg_id, sent[msg_id]), Instant(10 + msg_id)))
    view = engine.view()
    assert (view.operations_done, view.operations_queued, view.running) == (3, 0, None)
    assert view.bytes_reduced == 5 * FULL
    assert view.messages_received == 5


def test_operations_that_fail_are_counted_once_each() -> None:
    engine = RingEngine(ring_config(0, 2))
    engine.step(Submit(operation(0)), NOW)
    engine.step(Submit(operation(1)), NOW)
    engine.step(Fail("rank_lost", "rank 1 is gone"), NOW)
    assert engine.view().operations_failed == 2
    for index in (2, 3):
        engine.step(Submit(operation(index)), NOW)
    view = engine.view()
    assert (view.operations_failed, view.operations_done, view.operations_queued) == (4, 0, 0)
    assert view.failure == Fail("rank_lost", "rank 1 is gone")


def test_operations_that_wait_start_one_after_the_other() -> None:
    """A ring of one ends them all at once, in order, however many wait."""
    engine = RingEngine(ring_config(0, 1))
    for index in range(3):
        assert engine.step(Submit(operation(index)), NOW) == [OperationDone(OpIndex(index))]
    assert engine.view().operations_done == 3
    assert engine.view().bytes_reduced == 3 * FULL


def test_a_result_and_what_it_lets_out_come_in_one_answer() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=1))
    [first] = posts(engine.step(Submit(operation(0)), NOW))
    engine.step(Submit(operation(1)), NOW)
    engine.step(SendCompleted(0), NOW)
    actions = engine.step(result(engine, 0, first), NOW)
    assert actions[:2] == [TakeResult(0, OpIndex(0), 0, FULL), OperationDone(OpIndex(0))]
    [second] = posts(actions)
    assert (second.msg_id, second.op_index) == (1, 1)


def test_a_message_id_of_few_bits_wraps_in_the_header_too() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=1, id_bits=2))
    ids = []
    sent = posts(engine.step(Submit(operation(0, 6 * FULL)), NOW))
    while sent:
        [post] = sent
        assert InaHeader.decode(post.header).msg_id == post.msg_id
        ids.append(post.msg_id)
        engine.step(SendCompleted(post.msg_id), NOW)
        sent = posts(engine.step(result(engine, post.msg_id, post), NOW))
    assert ids == [0, 1, 2, 3, 0, 1]


# --- whom it blames


def test_a_result_of_wrong_size() -> None:
    engine, good = running()
    size = INA_HEADER_BYTES + FULL
    blame = Blame("rank 0", "result size", f"{size - 1} bytes, expected {size}")
    assert engine.step(changed(good, nbytes=size - 1), NOW) == broken_by(blame)


def test_a_result_without_header() -> None:
    engine, good = running()
    blame = Blame("rank 0", "result without a valid header", "INA header: 5 bytes, needs 40 (at byte 5)")
    assert engine.step(changed(good, header=b"short"), NOW) == broken_by(blame)


@pytest.mark.parametrize(
    ("changes", "wrong_key"),
    [({"msg_id": 5}, ""), ({"epoch": 9}, ""), ({"key": 9}, " and a wrong key"), ({"rank": 1}, "")],
)
def test_a_result_with_another_header(changes: dict[str, Any], wrong_key: str) -> None:
    engine, good = running()
    expected = InaHeader.decode(good.header)
    got = dataclasses.replace(expected, **changes)
    plain = dataclasses.replace(expected, flags=expected.flags & ~FLAG_RESULT)
    blame = Blame("rank 0", "result header", f"got {got}{wrong_key}, expected {plain}")
    event = changed(good, header=got.encode())
    assert engine.step(event, NOW) == broken_by(blame)


def test_a_result_that_was_not_summed() -> None:
    engine, good = running()
    got = InaHeader.decode(good.header)
    got = dataclasses.replace(got, flags=got.flags & ~FLAG_RESULT)
    blame = Blame(
        "rank 0",
        "result not aggregated",
        f"the payload of {got} came without having been aggregated; is there an accelerator on the path, "
        "did the switch restart?",
    )
    event = changed(good, header=got.encode())
    assert engine.step(event, NOW) == broken_by(blame, ACCELERATOR)


def test_results_that_nothing_was_sent_for() -> None:
    engine, good = running()
    blame = Blame("predecessor", "result of a message not sent", "result 1")
    engine.step(good, NOW)
    text = f"rank 1 of ring 7 got a wrong message ({blame}); the job cannot go on: {AGAIN}"
    assert engine.step(ResultArrived(1, 40, b""), NOW) == [blame, RingBroken(FabricLost.code, text)]


def test_more_results_than_messages_out() -> None:
    """The window is shut by a send that is not complete, so the second message is not out."""
    engine = RingEngine(ring_config(1, 3, window_messages=1))
    [first] = posts(engine.step(Submit(operation(0, 3 * FULL)), NOW))
    assert posts(engine.step(result(engine, 0, first), NOW)) == []
    blame = Blame("predecessor", "result of a message not sent", "result 1")
    assert engine.step(changed(result(engine, 0, first), imm=1), NOW) == broken_by(blame)


def test_a_result_that_comes_too_soon_is_out_of_order_whatever_its_header() -> None:
    """It agrees with its immediate: a result of this ring, not the next."""
    engine = RingEngine(ring_config(1, 3))
    [first, _] = posts(engine.step(Submit(operation(nbytes=3 * FULL)), NOW))
    blame = Blame("predecessor", "result out of order", "result 1 where 0 is due")
    assert engine.step(result(engine, 1, first), NOW) == broken_by(blame)


def test_a_completion_out_of_order_is_the_transports_fault_and_breaks_the_ring() -> None:
    engine, _ = running()
    blame = Blame("transport", "send completed out of order", "message 3 where 0 is due")
    assert engine.step(SendCompleted(3), NOW) == broken_by(blame)
    assert engine.step(SendCompleted(3), NOW) == [blame], "a ring breaks once"


# --- misuse


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mtu": 1000}, "mtu 1000 is not a RoCE path MTU (256, 512, 1024, 2048 or 4096)"),
        ({"message_packets": 0}, "message_packets 0 does not fit the header's 16 bits"),
        ({"message_packets": 1 << 16}, "message_packets 65536 does not fit the header's 16 bits"),
    ],
)
def test_configurations_that_cannot_work_say_why(changes: dict[str, int], message: str) -> None:
    with pytest.raises(LocalMisuse) as caught:
        ring_config(0, 2, **changes)
    assert str(caught.value) == message


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 1 << 16), (65536, 65537), (0, 0)])
def test_ranks_that_no_ring_has(rank: int, size: int) -> None:
    with pytest.raises(LocalMisuse, match=rf"^rank {rank} in a ring of {size}$"):
        ring_config(rank, size)


def test_the_largest_ring_and_message() -> None:
    config = ring_config(65534, 65535, mtu=4096, message_packets=65535)
    assert config.message_bytes == 65535 * 4096
    assert config.tensor_bytes == 65535 * 4096 - 40


def test_ids_of_the_configured_width_bound_the_window() -> None:
    with pytest.raises(LocalMisuse, match="a window of 4 messages does not fit message ids of 2 bits"):
        RingEngine(ring_config(0, 2, window_messages=4, id_bits=2))
    assert WindowConfig().id_bits == 32


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (operation(1), "operation 1 where 2 is next"),
        (operation(2, -4), "-4 bytes are not whole I32 elements"),
        (operation(2, 6), "6 bytes are not whole I32 elements"),
        (operation(2), "1 operations wait already; wait for one of them first"),
    ],
)
def test_operations_that_cannot_be_submitted(wrong: Any, message: str) -> None:
    engine = RingEngine(ring_config(0, 2, operations_max=1))
    engine.step(Submit(operation(0)), NOW)
    engine.step(Submit(operation(1)), NOW)
    with pytest.raises(LocalMisuse) as caught:
        engine.step(Submit(wrong), NOW)
    assert str(caught.value) == message
    assert engine.view().operations_submitted == 2


def test_an_exploration_may_have_two_windows_unacknowledged() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=1, unacknowledged_messages=2))
    [first] = posts(engine.step(Submit(operation(0, 3 * FULL)), NOW))
    [second] = posts(engine.step(result(engine, 0, first), NOW))
    assert second.msg_id == 1
