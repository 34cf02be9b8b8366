"""One rank with two rings: clocks, pictures, what comes too soon or too late, and whose turn it is."""

from __future__ import annotations

import re

import pytest

from inaproto.core.host.engines.hosts import PostSlot
from inaproto.core.host.engines.two_paths import (
    AskBinding,
    Binding,
    Bound,
    Drained,
    OnPath,
    TwoPaths,
    TwoPathsAction,
    Wait,
)
from inaproto.core.host.operation_queue import OperationQueue
from inaproto.core.host.operations import (
    BASE,
    INA,
    BoundPath,
    Fail,
    OperationDone,
    OperationFailed,
    PostMessage,
    ResultArrived,
    SendCompleted,
    Submit,
    TakeResult,
)
from inaproto.core.host.recovery import Recovery
from inaproto.core.plan.accumulators import Accumulators
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import LocalMisuse
from inaproto.units import Epoch, Instant, OpIndex
from inaproto.wire.host_header import Kind
from tests.unit.host_arrivals import FULL, NOW, kinds, message_at, operation
from tests.unit.test_two_paths import config, pair, posted, result_of
from tests.unit.two_paths_job import always

T = [Instant(at) for at in range(5, 15)]
STALL_NS = config(7).stall_ns
FLAT = Accumulators(ReductionPlan.flat(2))
NO_RING = "there is no INA ring to park, or an operation or a message is on it"


def came(engine: TwoPaths, kind: Kind, serial: int, op_index: int) -> ResultArrived:
    """On the base ring, an operation of one message."""
    return message_at(engine.config, kind, serial, FULL, last=True, op_index=op_index)


def resumed(operations: OperationQueue, rank: int = 1) -> TwoPaths:
    """The next generation, in which the others may be sooner; nobody has a result yet."""
    return TwoPaths(config(17, rank), FLAT, operations=operations, recovery=Recovery(0, 0))


def bound(actions: list[TwoPathsAction]) -> list[tuple[int, BoundPath]]:
    return [(action.op_index, action.path) for action in actions if isinstance(action, Bound)]


# --- what it shows


def test_what_stands_at_the_beginning_is_the_base_ring_and_an_ina_ring_when_it_is_attached() -> None:
    engine = TwoPaths(config(7), FLAT)
    shown = engine.carrier, engine.ina_config, engine.deadline, engine.started
    assert shown == (BASE, None, None, {INA: 0, BASE: 0})
    assert (engine.is_parked, engine.is_ina_idle, engine.ina_messages) == (False, True, 0)
    with pytest.raises(LocalMisuse, match=f"^{re.escape(NO_RING)}$"):
        engine.park()
    engine.attach(config(8))
    assert (engine.config, engine.ina_config) == (config(7), config(8))


def test_a_picture_has_the_messages_of_both_rings() -> None:
    engine = pair(always(INA))
    post = posted(engine.step(Submit(operation(1)), NOW), INA)
    view = engine.view()
    assert (view.messages_sent, view.messages_received, view.unacknowledged) == (2, 1, 2)
    engine.step(result_of(post, 0)._replace(path=INA), NOW)
    engine.step(SendCompleted(post.msg_id, path=INA), NOW)
    view = engine.view()
    assert (view.messages_sent, view.messages_received, view.unacknowledged) == (2, 2, 1)
    assert (view.operations_done, view.running) == (2, None)
    alone = pair(always(BASE), ina=None).view()
    assert (alone.messages_sent, alone.messages_received, alone.unacknowledged) == (1, 1, 1)


# --- its clock


@pytest.mark.parametrize("path", [BASE, INA])
def test_the_clock_begins_anew_with_each_operation_and_result_on_either_ring(path: BoundPath) -> None:
    engine = pair(always(path))
    actions = engine.step(Submit(operation(1, nbytes=3 * FULL)), T[0])
    assert engine.deadline == T[0] + STALL_NS
    if path == INA:
        post = next(action for action in actions if isinstance(action, PostMessage))
        result = result_of(post, 0)
    else:
        result = message_at(engine.config, Kind.RESULT, 1, FULL, last=False, op_index=1)
    engine.step(result._replace(path=path), T[1])
    assert (engine.deadline, engine.progress) == (T[1] + STALL_NS, 2)


def test_an_operation_s_clock_starts_when_it_is_bound_though_it_was_called_before() -> None:
    asks = TwoPaths(config(7), FLAT, ina=config(8))
    asks.step(Submit(operation()), NOW)
    asks.step(came(asks, Kind.RESULT, 0, 0), NOW)
    assert asks.step(Submit(operation(1)), NOW) == [AskBinding(OpIndex(1))]
    asks.answered(OpIndex(1), Wait(T[9]), T[0])
    assert asks.deadline == T[9]
    asks.step(Submit(operation(2)), T[9])
    asks.answered(OpIndex(1), Wait(T[9]), T[9])
    assert (asks.carrier, asks.started) == (BASE, {INA: 0, BASE: 2})
    assert asks.deadline == T[9] + STALL_NS


@pytest.mark.parametrize("ends", [False, True])
def test_nothing_waits_for_a_binding_after_the_end(ends: bool) -> None:
    engine = pair(lambda op_index, now: Wait(T[9]))
    engine.step(Submit(operation(1)), T[0])
    assert engine.deadline == T[9]
    if ends:
        engine.halt()
    else:
        engine.step(Fail("code", "why"), T[0])
    assert engine.deadline is None


# --- whose turn it is


def test_while_an_operation_is_on_the_ina_ring_the_base_ring_contributes_to_nothing() -> None:
    """Whatever becomes free there: each message is contributed to once, by one ring."""
    engine = pair(always(INA))
    engine.step(Submit(operation(1, nbytes=5 * FULL)), NOW)
    assert engine.step(SendCompleted(0), NOW) == []
    assert engine.step(came(engine, Kind.RESULT, 1, 1), NOW) != [], "and none of its results is believed"


def test_an_operation_is_drained_when_all_its_messages_are_acknowledged() -> None:
    """Operations on the base ring do not count: here the first three."""
    engine = pair(lambda op_index, now: Binding(BASE if op_index < 3 else INA))
    for index in (1, 2):
        engine.step(SendCompleted(2 * index - 2), NOW)
        engine.step(Submit(operation(index)), NOW)
        engine.step(came(engine, Kind.RESULT, index, index), NOW)
    actions = engine.step(Submit(operation(3, nbytes=2 * FULL)), NOW)
    posts = [action for action in actions if isinstance(action, PostMessage)]
    engine.step(result_of(posts[0], 0)._replace(path=INA), NOW)
    actions = engine.step(result_of(posts[1], 0)._replace(path=INA), NOW)
    assert actions == [OnPath(INA), actions[1], OperationDone(OpIndex(3)), OnPath(BASE)]
    assert isinstance(actions[1], TakeResult)
    assert engine.step(SendCompleted(0, path=INA), NOW) == []
    assert engine.step(SendCompleted(1, path=INA), NOW) == [Drained(OpIndex(3))]
    post = posted(engine.step(Submit(operation(4)), NOW), INA)
    assert engine.step(SendCompleted(2, path=INA), NOW) == []
    assert engine.step(result_of(post, 0)._replace(path=INA), NOW)[-2:] == [OnPath(BASE), Drained(OpIndex(4))]
    assert engine.ina_messages == 3


def test_an_ina_operation_that_is_answered_too_late_is_started_on_the_base_ring_with_all_behind_it() -> None:
    """The last of the chain has done what it has all accumulators of, when it may start it."""
    engine = TwoPaths(config(7, 1), FLAT, ina=config(8, 1))
    engine.step(Submit(operation()), NOW)
    engine.step(came(engine, Kind.ACCUMULATOR, 0, 0), NOW)
    for index in (1, 2):
        engine.step(Submit(operation(index)), NOW)
    engine.step(came(engine, Kind.ACCUMULATOR, 1, 1), NOW)
    engine.park()
    actions = engine.answered(OpIndex(1), Binding(INA, Epoch(9)), T[3])
    assert bound(actions) == [(1, BASE), (2, BASE)]
    assert (engine.progress, engine.deadline) == (2, T[3] + STALL_NS)
    assert engine.view().since == T[3]


# --- what comes too soon, or too late


def test_what_others_send_before_this_rank_may_begin_waits_for_it() -> None:
    waits = resumed(pair_of_nothing(1))
    for index in (0, 1):
        assert waits.step(Submit(operation(index)), NOW) == []
        assert waits.step(came(waits, Kind.ACCUMULATOR, index, index), NOW) == []
    actions = waits.resume(T[4])
    assert bound(actions) == [(0, BASE), (1, BASE)]
    assert sum(isinstance(action, PostSlot) for action in actions) == 2
    assert (waits.progress, waits.view().since) == (2, T[4])


def test_an_operation_that_ran_goes_on_with_what_came_before_this_rank_may_begin() -> None:
    before = TwoPaths(config(7, 1), FLAT)
    before.step(Submit(operation()), NOW)
    waits = resumed(before.halt())
    assert waits.step(came(waits, Kind.ACCUMULATOR, 0, 0), T[0]) == []
    assert OperationDone(OpIndex(0)) in waits.resume(T[4])
    assert waits.view().since == T[4]


def pair_of_nothing(rank: int) -> OperationQueue:
    """A generation that ended before anything was called."""
    return TwoPaths(config(7, rank), FLAT).halt()


def test_without_an_ina_ring_nothing_is_taken_from_one() -> None:
    engine = pair(always(BASE), ina=None)
    assert engine.step(SendCompleted(0, path=INA), NOW) == []
    engine.step(Submit(operation(1)), NOW)
    assert engine.step(Fail("code", "why"), NOW) == [OperationFailed(OpIndex(1), "code", "why")]


def test_after_the_end_nothing_is_drained_started_or_asked() -> None:
    engine = pair(always(INA))
    post = posted(engine.step(Submit(operation(1)), NOW), INA)
    engine.step(result_of(post, 0)._replace(path=INA), NOW)
    engine.halt()
    assert engine.step(SendCompleted(post.msg_id, path=INA), NOW) == []
    assert kinds(engine.step(Submit(operation(2)), NOW)) == []
    assert (engine.binds_next, engine.operations_queued) == (2, 1)
