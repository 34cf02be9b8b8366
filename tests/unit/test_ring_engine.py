"""One rank's all-reduce engine: cutting, headers, checks of results, order, failures, stalls."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.host.engines.in_network import (
    Fail,
    Operation,
    OperationDone,
    OperationFailed,
    Overdue,
    PostMessage,
    ResultArrived,
    RingBroken,
    RingEngine,
    SendCompleted,
    Stalled,
    Submit,
    TakeResult,
    Woke,
)
from inaproto.errors import Blame, FabricLost, LocalMisuse
from inaproto.units import Instant, OpIndex
from inaproto.wire.ina_header import FLAG_LAST, FLAG_RESULT, INA_HEADER_BYTES, Dtype, InaHeader, Op
from tests.unit.ideal_ring import IdealRing, marked_as_result, ring_config

NOW = Instant(0)
FULL = 2 * 256 - INA_HEADER_BYTES


def operation(index: int = 0, nbytes: int = FULL, dtype: Dtype = Dtype.I32) -> Operation:
    return Operation(OpIndex(index), dtype, Op.SUM, nbytes, 0x1234)


def result(engine: RingEngine, msg_id: int, post: PostMessage) -> ResultArrived:
    """What the predecessor's flow brings when this rank posted ``post``."""
    config = engine.config
    header = dataclasses.replace(
        InaHeader.decode(marked_as_result(post.header)),
        rank=(config.rank - 1) % config.ring_size,
        msg_id=msg_id,
    )
    return ResultArrived(msg_id, INA_HEADER_BYTES + post.nbytes, header.encode())


def test_cuts_full_messages_and_a_short_last_one() -> None:
    engine = RingEngine(ring_config(1, 4, window_messages=4))
    posts = engine.step(Submit(operation(nbytes=2 * FULL + 300)), NOW)
    assert [(p.msg_id, p.slot, p.offset, p.nbytes) for p in posts if isinstance(p, PostMessage)] == [
        (0, 0, 0, FULL),
        (1, 1, FULL, FULL),
        (2, 2, 2 * FULL, 300),
    ]
    headers = [InaHeader.decode(p.header) for p in posts if isinstance(p, PostMessage)]
    assert [h.msg_len for h in headers] == [2, 2, 2]
    assert [h.is_last for h in headers] == [False, False, True]
    assert {(h.rank, h.ring_size, h.ring_id, h.epoch, h.key, h.signature) for h in headers} == {
        (1, 4, 7, 3, 0xC0FFEE, 0x1234)
    }


@pytest.mark.parametrize(("nbytes", "packets"), [(4, 1), (216, 1), (220, 2), (FULL, 2)])
def test_msg_len_counts_the_header(nbytes: int, packets: int) -> None:
    engine = RingEngine(ring_config(0, 2))
    (post,) = engine.step(Submit(operation(nbytes=nbytes)), NOW)
    assert isinstance(post, PostMessage)
    assert InaHeader.decode(post.header).msg_len == packets


@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
@pytest.mark.parametrize("packets", [1, 2, 170])
def test_no_element_is_cut_in_two(mtu: int, packets: int) -> None:
    config = ring_config(0, 2, mtu=mtu, message_packets=packets)
    assert config.tensor_bytes % 8 == 0
    assert INA_HEADER_BYTES % 8 == 0
    assert mtu % 8 == 0


def test_a_tensor_without_elements_takes_part_with_a_header_alone() -> None:
    """Else a rank whose tensor is empty would be done, and those whose is not would wait for ever."""
    engine = RingEngine(ring_config(0, 3))
    (post,) = engine.step(Submit(operation(nbytes=0)), NOW)
    assert isinstance(post, PostMessage)
    assert (post.offset, post.nbytes) == (0, 0)
    header = InaHeader.decode(post.header)
    assert (header.msg_len, header.is_last, header.signature) == (1, True, 0x1234)
    assert engine.step(result(engine, 0, post), NOW) == [
        TakeResult(0, OpIndex(0), 0, 0),
        OperationDone(OpIndex(0)),
    ]
    assert RingEngine(ring_config(0, 1)).step(Submit(operation(nbytes=0)), NOW) == [OperationDone(OpIndex(0))]


def test_a_ring_of_one_is_done_at_once() -> None:
    engine = RingEngine(ring_config(0, 1))
    assert engine.step(Submit(operation(nbytes=FULL * 9)), NOW) == [OperationDone(OpIndex(0))]
    assert engine.view().bytes_reduced == FULL * 9


def test_the_window_runs_over_operations() -> None:
    engine = RingEngine(ring_config(0, 2))
    (post,) = engine.step(Submit(operation(0)), NOW)
    (empty,) = engine.step(Submit(operation(1, 0)), NOW)
    assert engine.step(Submit(operation(2)), NOW) == [], "two messages are on their way"
    assert isinstance(post, PostMessage)
    assert isinstance(empty, PostMessage)
    assert (empty.op_index, empty.msg_id, empty.slot) == (1, 1, 1)
    assert InaHeader.decode(empty.header).is_last
    assert engine.view().running == operation(0), "its results come next"
    assert engine.step(SendCompleted(0), NOW) == []
    actions = engine.step(result(engine, 0, post), NOW)
    assert [type(action) for action in actions] == [TakeResult, OperationDone, PostMessage]
    assert engine.view().running == operation(1, 0)
    last = actions[-1]
    assert isinstance(last, PostMessage)
    assert isinstance(last, PostMessage)
    assert (last.op_index, last.msg_id, last.slot) == (2, 2, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 0},
        {"op_index": 1},
        {"msg_id": 5},
        {"epoch": 4},
        {"ring_id": 8},
        {"key": 1},
        {"signature": 1},
        {"dtype": Dtype.F32},
        {"op": Op.MAX},
        {"flags": FLAG_RESULT},
        {"flags": FLAG_LAST},
        {"msg_len": 1},
        {"ring_size": 3},
    ],
)
def test_a_result_with_any_wrong_header_field_breaks_the_ring(wrong: dict[str, Any]) -> None:
    engine = RingEngine(ring_config(0, 2))
    (post,) = engine.step(Submit(operation()), NOW)
    assert isinstance(post, PostMessage)
    good = result(engine, 0, post)
    header = dataclasses.replace(InaHeader.decode(good.header), **wrong)
    actions = engine.step(good._replace(header=header.encode()), NOW)
    assert [type(action) for action in actions] == [Blame, OperationFailed, RingBroken]
    assert engine.step(Submit(operation(1)), NOW)[0] == OperationFailed(
        OpIndex(1),
        FabricLost.code,
        engine.view().failure.message,  # type: ignore[union-attr]
    )


def test_a_gradient_that_was_not_aggregated_is_not_taken_for_a_sum() -> None:
    """What a plain switch on the path would deliver: right in everything but the mark of the accelerator."""
    engine = RingEngine(ring_config(0, 2))
    (post,) = engine.step(Submit(operation()), NOW)
    assert isinstance(post, PostMessage)
    assert not InaHeader.decode(post.header).is_result
    good = result(engine, 0, post)
    raw = InaHeader.decode(good.header)
    raw = dataclasses.replace(raw, flags=raw.flags & ~FLAG_RESULT)
    blame, failed, broken = engine.step(good._replace(header=raw.encode()), NOW)
    assert isinstance(blame, Blame)
    assert blame.rule == "result not aggregated"
    assert isinstance(failed, OperationFailed)
    assert isinstance(broken, RingBroken)
    assert failed.code == broken.code == FabricLost.code
    for words in ("without having been aggregated", "an accelerator on the path", "did the switch restart"):
        assert words in broken.message


def test_the_secret_key_is_in_no_message() -> None:
    engine = RingEngine(ring_config(0, 2))
    assert engine.deadline is None
    (post,) = engine.step(Submit(operation()), NOW)
    assert isinstance(post, PostMessage)
    good = result(engine, 0, post)
    header = dataclasses.replace(InaHeader.decode(good.header), key=0xDEADBEEF)
    text = repr(engine.step(good._replace(header=header.encode()), NOW))
    assert "wrong key" in text
    for secret in (0xDEADBEEF, 0xC0FFEE):
        assert str(secret) not in text
        assert f"{secret:x}" not in text.lower()


@pytest.mark.parametrize(
    "change", [{"nbytes": FULL}, {"imm": 1}, {"header": b"short"}, {"header": bytes(40)}]
)
def test_a_result_of_wrong_size_or_without_header_breaks_the_ring(change: dict[str, Any]) -> None:
    engine = RingEngine(ring_config(0, 2))
    (post,) = engine.step(Submit(operation()), NOW)
    assert isinstance(post, PostMessage)
    event = result(engine, 0, post)._replace(**change)
    assert isinstance(engine.step(event, NOW)[-1], RingBroken)


def test_a_result_when_nothing_runs_breaks_the_ring() -> None:
    engine = RingEngine(ring_config(0, 2))
    actions = engine.step(ResultArrived(0, 100, b""), NOW)
    assert [type(action) for action in actions] == [Blame, RingBroken]


def test_failure_ends_all_operations_once_and_silences_the_ring() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=1))
    (post,) = engine.step(Submit(operation(0, 5 * FULL)), NOW)
    engine.step(Submit(operation(1)), NOW)
    assert isinstance(post, PostMessage)
    failed = engine.step(Fail("rank_lost", "rank 1 is gone"), NOW)
    assert failed == [
        OperationFailed(OpIndex(0), "rank_lost", "rank 1 is gone"),
        OperationFailed(OpIndex(1), "rank_lost", "rank 1 is gone"),
    ]
    assert engine.step(Fail("fabric_lost", "later"), NOW) == []
    assert engine.step(result(engine, 0, post), NOW) == []
    assert engine.step(SendCompleted(0), NOW) == []
    assert engine.deadline is None
    assert engine.step(Submit(operation(2)), NOW) == [
        OperationFailed(OpIndex(2), "rank_lost", "rank 1 is gone")
    ]


def test_an_acknowledgement_lets_nothing_of_a_failed_operation_out() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=1))
    (post,) = engine.step(Submit(operation(0, 5 * FULL)), NOW)
    assert isinstance(post, PostMessage)
    engine.step(result(engine, 0, post), NOW)  # message 1 waits for the completion of message 0
    engine.step(Fail("rank_lost", "rank 1 is gone"), NOW)
    assert engine.step(SendCompleted(0), NOW) == []


def test_stalls_are_reported_again_and_again_until_progress() -> None:
    engine = RingEngine(ring_config(0, 2, stall_ns=100))
    actions = engine.step(Submit(operation(0, 2 * FULL)), Instant(50))
    assert engine.deadline == 150
    assert engine.step(Woke(), Instant(149)) == []
    assert engine.step(Woke(), Instant(150)) == [Stalled(operation(0, 2 * FULL), 100, 2, 0)]
    assert engine.deadline == 250
    assert engine.step(Woke(), Instant(260)) == [Stalled(operation(0, 2 * FULL), 210, 2, 0)]
    post = actions[0]
    assert isinstance(post, PostMessage)
    engine.step(result(engine, 0, post), Instant(300))
    assert engine.deadline == 400
    assert engine.view().stalls == 2


def test_an_operation_is_overdue_once_whatever_its_progress() -> None:
    engine = RingEngine(ring_config(0, 2, stall_ns=100, timeout_ns=250))
    actions = engine.step(Submit(operation(0, 2 * FULL)), Instant(50))
    engine.step(Submit(operation(1)), Instant(60))
    assert engine.step(Woke(), Instant(150)) == [Stalled(operation(0, 2 * FULL), 100, 2, 0)]
    first, second = actions
    assert isinstance(first, PostMessage)
    assert isinstance(second, PostMessage)
    engine.step(result(engine, 0, first), Instant(220))
    assert engine.deadline == 300, "progress defers the report of a stall, and nothing else"
    assert engine.step(Woke(), Instant(299)) == []
    assert engine.step(Woke(), Instant(300)) == [Overdue(operation(0, 2 * FULL), 250, 2, 1)]
    assert engine.deadline == 320
    assert engine.step(Woke(), Instant(320)) == [Stalled(operation(0, 2 * FULL), 100, 2, 1)]
    engine.step(result(engine, 1, second), Instant(330))  # it is for the owner to end it
    assert engine.step(Woke(), Instant(580))[-1] == Overdue(operation(1), 250, 1, 0)


def test_an_operation_may_take_for_ever_if_the_owner_says_so() -> None:
    engine = RingEngine(ring_config(0, 2, stall_ns=100))
    engine.step(Submit(operation(0)), NOW)
    assert engine.step(Woke(), Instant(1 << 60)) == [Stalled(operation(0), 1 << 60, 1, 0)]


def test_misuse_leaves_the_state_untouched() -> None:
    engine = RingEngine(ring_config(0, 2, operations_max=1))
    engine.step(Submit(operation(0)), NOW)
    engine.step(Submit(operation(1)), NOW)
    before = engine.view()
    for wrong in (operation(1), operation(3), operation(2, -4), operation(2, 6), operation(2)):
        with pytest.raises(LocalMisuse):
            engine.step(Submit(wrong), NOW)
    assert engine.view() == before


@pytest.mark.parametrize(
    "change", [{"mtu": 1000}, {"message_packets": 0}, {"message_packets": 1 << 16}, {"window_messages": 3}]
)
def test_configurations_that_cannot_work_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(LocalMisuse):
        RingEngine(ring_config(0, 2, **change))
    with pytest.raises(LocalMisuse):
        ring_config(2, 2)


@given(
    size=st.integers(2, 5),
    exponent=st.integers(0, 2),
    lengths=st.lists(st.integers(0, 700), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
)
def test_a_ring_of_engines_sums_exactly_in_any_order_of_events(
    size: int, exponent: int, lengths: list[int], seed: int
) -> None:
    choose = random.Random(seed)
    numbers = np.random.default_rng(seed)
    ring = IdealRing(size, window_messages=1 << exponent, id_bits=6)
    tensors = [[numbers.integers(-9, 9, n, dtype=np.int32) for n in lengths] for _ in range(size)]
    for index in range(len(lengths)):
        for rank in choose.sample(range(size), size):
            ring.submit(rank, index, tensors[rank][index])
            for _ in range(choose.randrange(9)):
                if possible := ring.events():
                    choose.choice(possible)()
    ring.run(choose.randrange)
    for member in ring.members:
        assert member.done == list(range(len(lengths)))
        assert member.other == []
        for index in range(len(lengths)):
            expected = sum(tensor[index] for tensor in tensors)
            assert np.array_equal(member.buffers[index].view(np.int32), expected)
    assert all(member.engine.view().unacknowledged == 0 for member in ring.members)


def test_several_acknowledgements_are_the_same_as_each_after_the_other() -> None:
    """Results came first: it is for their acknowledgement that the next messages wait."""
    together, apart = (RingEngine(ring_config(0, 2, window_messages=2)) for _ in range(2))
    for engine in (together, apart):
        posts = engine.step(Submit(operation(nbytes=6 * FULL)), NOW)
        for msg_id, post in enumerate(posts):
            assert isinstance(post, PostMessage)
            assert len(engine.step(result(engine, msg_id, post), NOW)) == 1
    found = together.exchanged((0, 1), (), NOW)
    assert found == [*apart.step(SendCompleted(0), NOW), *apart.step(SendCompleted(1), NOW)]
    assert [(it.msg_id, it.offset) for it in found if isinstance(it, PostMessage)] == [
        (2, 2 * FULL),
        (3, 3 * FULL),
    ]
    assert together.view() == apart.view()
    together.halt()
    assert together.exchanged((2, 3), (), NOW) == []


def arrivals(engine: RingEngine, posts: list[Any], first: int = 0) -> list[tuple[int, int, bytes]]:
    """Results of those messages, as ``exchanged`` has them."""
    made = [result(engine, msg_id, post) for msg_id, post in enumerate(posts, first)]
    return [(event.imm, event.nbytes, event.header) for event in made]


def test_several_results_are_the_same_as_each_after_the_other_and_taken_before_more_is_sent() -> None:
    together, apart = (RingEngine(ring_config(0, 2, window_messages=4)) for _ in range(2))
    posts: list[Any] = []
    for engine in (together, apart):
        posts = engine.step(Submit(operation(0, nbytes=2 * FULL + 8)), NOW)
        posts += engine.step(Submit(operation(1, nbytes=3 * FULL)), NOW)
        assert engine.exchanged((0, 1, 2, 3), (), NOW) == []
    assert len(posts) == 4
    found = together.exchanged((), arrivals(together, posts), NOW)
    kinds = [TakeResult] * 3 + [OperationDone, TakeResult] + [PostMessage] * 2
    assert [type(it) for it in found] == kinds
    one_by_one = [
        it for msg_id, post in enumerate(posts) for it in apart.step(result(apart, msg_id, post), NOW)
    ]
    assert [it for it in one_by_one if not isinstance(it, PostMessage)] == found[:5]
    assert [it for it in one_by_one if isinstance(it, PostMessage)] == found[5:]
    assert together.view() == apart.view()
    assert list(together.halt().kept) == list(apart.halt().kept)
    assert together.exchanged((), arrivals(together, found[5:], 4), NOW) == []


@pytest.mark.parametrize("outlived", [False, True])
def test_of_several_results_those_before_a_wrong_one_are_taken(outlived: bool) -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=4, outlived=outlived))
    posts = engine.step(Submit(operation(0, nbytes=5 * FULL)), NOW)
    engine.exchanged((0, 1, 2, 3), (), NOW)
    came = arrivals(engine, posts)
    imm, nbytes, header = came[2]
    found = engine.exchanged((), [*came[:2], (imm, nbytes, header[:-1] + b"\xff"), came[3]], NOW)
    ended = [] if outlived else [OperationFailed]
    assert [type(it) for it in found] == [TakeResult, TakeResult, PostMessage, Blame, *ended, RingBroken]
    assert engine.exchanged((), came[2:], NOW) == []
    assert engine.exchanged((), (), NOW) == []


def test_what_is_acknowledged_and_what_came_make_room_together() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=2))
    posts = engine.step(Submit(operation(0, nbytes=6 * FULL)), NOW)
    found = engine.exchanged((0, 1), arrivals(engine, posts), NOW)
    assert [type(it) for it in found] == [TakeResult, TakeResult, PostMessage, PostMessage]
    assert engine.view().unacknowledged == 2
    wrong = engine.exchanged((3,), arrivals(engine, found[2:], 2), NOW)
    blame = Blame("transport", "send completed out of order", "message 3 where 2 is due")
    assert wrong[0] == blame
    assert [type(it) for it in wrong[1:]] == [OperationFailed, RingBroken]


def test_what_waits_follows_as_soon_as_the_window_takes_it_before_the_running_operation_has_ended() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=2))
    posts = engine.step(Submit(operation(0, nbytes=6 * FULL)), NOW)
    assert engine.step(Submit(operation(1, nbytes=FULL)), NOW) == []
    for first in (0, 2):
        posts = engine.exchanged((first, first + 1), arrivals(engine, posts, first), NOW)[2:]
        assert [it.op_index for it in posts if isinstance(it, PostMessage)] == [0, 0]
    found = engine.exchanged((4,), arrivals(engine, posts[:1], 4), NOW)
    assert [type(it) for it in found] == [TakeResult, PostMessage]
    assert isinstance(found[1], PostMessage)
    assert found[1].op_index == 1


def test_a_result_behind_all_that_was_sent_is_blamed() -> None:
    engine = RingEngine(ring_config(0, 2, window_messages=2))
    posts = engine.step(Submit(operation(0, nbytes=FULL)), NOW)
    came = arrivals(engine, posts)
    found = engine.exchanged((), [*came, (1, *came[0][1:])], NOW)
    assert [type(it) for it in found] == [TakeResult, OperationDone, Blame, RingBroken]
    assert found[2] == Blame("predecessor", "result of a message not sent", "result 1")


def test_headers_follow_the_operation_and_its_last_message() -> None:
    engine = RingEngine(ring_config(1, 4, window_messages=8))
    first = engine.step(Submit(operation(0, nbytes=2 * FULL)), NOW)
    second = engine.step(Submit(operation(1, nbytes=2 * FULL, dtype=Dtype.F32)), NOW)
    headers = [InaHeader.decode(it.header) for it in first + second if isinstance(it, PostMessage)]
    assert [(it.op_index, it.msg_id, it.dtype, it.is_last, it.is_result) for it in headers] == [
        (0, 0, Dtype.I32, False, False),
        (0, 1, Dtype.I32, True, False),
        (1, 2, Dtype.F32, False, False),
        (1, 3, Dtype.F32, True, False),
    ]
    assert all(it.rank == 1 for it in headers)
