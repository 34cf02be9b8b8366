"""One rank with two rings: what it asks its binder, what goes by which ring, and how rings come and go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.host.engines.chain import ChainEngine
from inaproto.core.host.engines.in_network import RingEngine
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
    Filled,
    OperationDone,
    OperationFailed,
    PostMessage,
    ResultArrived,
    RingBroken,
    RingConfig,
    RingEvent,
    SendCompleted,
    Stalled,
    Submit,
    Woke,
)
from inaproto.core.host.recovery import Recovery
from inaproto.core.plan.accumulators import Accumulators, RotatedAccumulators
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Epoch, Instant, OpIndex, RingId
from inaproto.wire.host_header import Kind
from inaproto.wire.ina_header import INA_HEADER_BYTES, InaHeader
from tests.unit.host_arrivals import FULL, NOW, message_at, operation
from tests.unit.ideal_ring import marked_as_result, ring_config
from tests.unit.two_paths_job import AnsweredPaths, Binder, always

LATER = Instant(NOW + 1000)
RECEIVED = INA_HEADER_BYTES + FULL


def config(ring_id: int, rank: int = 0, **changes: int) -> RingConfig:
    made = ring_config(rank, 2, **({"outlived": True} | changes))
    return RingConfig(**{name: getattr(made, name) for name in made.__slots__} | {"ring_id": RingId(ring_id)})


def pair(binder: Binder, rank: int = 0, *, ina: int | None = 8, **changes: int) -> TwoPaths:
    """One of two ranks; the base ring is 7. The first operation, which is always that one's, is over."""
    made = AnsweredPaths(
        config(7, rank, **changes),
        Accumulators(ReductionPlan.flat(2)),
        binder,
        ina=None if ina is None else config(ina, rank, **changes),
    )
    made.step(Submit(operation()), NOW)
    kind = Kind.ACCUMULATOR if rank else Kind.RESULT
    made.step(message_at(made.config, kind, 0, FULL, last=True), NOW)
    assert made.progress == 1
    return made


def by(actions: list[TwoPathsAction], path: BoundPath) -> list[TwoPathsAction]:
    """Those of one of the rings, and nothing that is of none."""
    found: list[TwoPathsAction] = []
    now = BASE
    for action in actions:
        if isinstance(action, OnPath):
            now = action.path
        elif now == path and not isinstance(action, Bound | Drained):
            found.append(action)
    return found


def posted(actions: list[TwoPathsAction], path: BoundPath) -> PostMessage:
    (post,) = (action for action in by(actions, path) if isinstance(action, PostMessage))
    return post


def result_of(post: PostMessage, rank: int) -> ResultArrived:
    """As the accelerator gives it: the predecessor's message, its payload a sum."""
    predecessor = ((rank - 1) % 2).to_bytes(2, "big")
    header = marked_as_result(post.header[:24] + predecessor + post.header[26:])
    return ResultArrived(post.msg_id, RECEIVED, header)


def test_the_first_operation_of_a_job_is_the_base_ring_s_whatever_the_binder_says() -> None:
    engine = AnsweredPaths(config(7), Accumulators(ReductionPlan.flat(2)), always(INA), ina=config(8))
    actions = engine.step(Submit(operation()), NOW)
    assert actions[0] == Bound(OpIndex(0), BASE, Epoch(0))
    assert posted(actions, BASE).op_index == 0


def test_an_operation_is_bound_when_it_starts_and_its_epoch_is_in_the_headers() -> None:
    asked = []

    def binder(op_index: OpIndex, now: Instant) -> Binding:
        asked.append((op_index, now))
        return Binding(INA, Epoch(77))

    engine = pair(binder)
    assert asked == []
    assert engine.binds_next == 1
    actions = engine.step(Submit(operation(1)), NOW)
    assert asked == [(1, NOW)]
    assert engine.binds_next == 2
    assert actions[0] == Bound(OpIndex(1), INA, Epoch(77))
    header = InaHeader.decode(posted(actions, INA).header)
    assert (header.ring_id, header.epoch, header.msg_id) == (8, 77, 0)
    assert by(actions, BASE) == []
    engine.step(Submit(operation(2)), NOW)
    assert asked == [(1, NOW)], "bound before the one before it has ended"


def test_without_an_epoch_the_headers_have_that_of_the_ring() -> None:
    engine = pair(always(INA))
    actions = engine.step(Submit(operation(1)), NOW)
    assert InaHeader.decode(posted(actions, INA).header).epoch == config(8).epoch


def test_operations_go_by_the_rings_in_turn_and_serials_count_over_both() -> None:
    paths: dict[int, BoundPath] = {1: INA, 2: BASE, 3: INA}
    engine = pair(lambda op_index, now: Binding(paths[op_index]))
    first = posted(engine.step(Submit(operation(1)), NOW), INA)
    actions = engine.step(result_of(first, 0)._replace(path=INA), NOW)
    assert OperationDone(OpIndex(1)) in by(actions, INA)
    second = posted(engine.step(Submit(operation(2)), NOW), BASE)
    assert second.msg_id == 2, "the base ring counts its own messages: accumulators of its second"
    engine.step(message_at(engine.config, Kind.RESULT, 1, FULL, last=True, op_index=2), NOW)
    third = posted(engine.step(Submit(operation(3)), NOW), INA)
    assert third.msg_id == 1
    engine.step(result_of(third, 0)._replace(path=INA), NOW)
    kept = [(result.serial, result.ring_id) for result in engine.halt().kept]
    assert kept == [(2, 7), (3, 8)], "of the last N messages, by whichever ring"
    assert engine.started == {INA: 2, BASE: 2}


def test_a_rank_passes_the_last_result_of_the_chain_on_while_the_next_operation_is_on_the_ina_ring() -> None:
    """Its successor may need that before it can take part."""
    engine = AnsweredPaths(_of_three(7), Accumulators(ReductionPlan.flat(3)), always(INA), ina=_of_three(8))
    engine.step(Submit(operation()), NOW)
    engine.step(Submit(operation(1)), NOW)
    came = message_at(engine.config, Kind.RESULT, 0, FULL, last=True)
    actions = engine.step(came, NOW)
    assert [type(action).__name__ for action in by(actions, BASE)] == [
        "TakeResult",
        "OperationDone",
        "PostSlot",
    ]
    assert posted(actions, INA).op_index == 1


def _of_three(ring_id: int) -> RingConfig:
    made = ring_config(0, 3)
    return RingConfig(**{name: getattr(made, name) for name in made.__slots__} | {"ring_id": RingId(ring_id)})


@pytest.mark.parametrize("is_result_first", [True, False])
def test_an_operation_is_drained_when_its_results_are_taken_and_its_sends_are_acknowledged(
    is_result_first: bool,
) -> None:
    engine = pair(always(INA))
    post = posted(engine.step(Submit(operation(1)), NOW), INA)
    assert not engine.is_ina_idle
    events: list[RingEvent] = [result_of(post, 0)._replace(path=INA), SendCompleted(post.msg_id, path=INA)]
    first, second = events if is_result_first else events[::-1]
    assert drained(engine.step(first, NOW)) == []
    assert not engine.is_ina_idle
    assert drained(engine.step(second, NOW)) == [1]
    assert engine.is_ina_idle


def drained(actions: list[TwoPathsAction]) -> list[int]:
    return [action.op_index for action in actions if isinstance(action, Drained)]


# --- a binder that cannot say yet


def test_an_operation_waits_for_its_binding_and_starts_when_that_is_there() -> None:
    answer: list[Binding | Wait] = [Wait(LATER)]
    engine = pair(lambda op_index, now: answer[0])
    assert engine.step(Submit(operation(1)), NOW) == []
    assert (engine.deadline, engine.binds_next) == (LATER, 1)
    assert engine.step(Woke(), NOW) == []
    answer[0] = Binding(INA)
    assert engine.step(Woke(), NOW)[0] == Bound(OpIndex(1), INA, config(8).epoch)
    assert engine.deadline != LATER


def test_nothing_waits_for_a_binder_longer_than_it_said() -> None:
    engine = pair(lambda op_index, now: Wait(LATER))
    engine.step(Submit(operation(1)), NOW)
    assert engine.step(Woke(), LATER)[0] == Bound(OpIndex(1), BASE, Epoch(0))


def asking() -> TwoPaths:
    """It has asked by which ring operation 1 is to go, and was not answered."""
    engine = TwoPaths(config(7), Accumulators(ReductionPlan.flat(2)), ina=config(8))
    engine.step(Submit(operation()), NOW)
    engine.step(message_at(engine.config, Kind.RESULT, 0, FULL, last=True), NOW)
    assert engine.step(Submit(operation(1)), NOW) == [AskBinding(OpIndex(1))]
    return engine


def test_who_is_asked_is_asked_once_and_again_when_it_could_not_say() -> None:
    engine = asking()
    assert engine.step(Woke(), NOW) == []
    assert engine.answered(OpIndex(1), Wait(LATER), NOW) == []
    assert engine.deadline == LATER
    assert engine.step(Woke(), LATER) == [AskBinding(OpIndex(1))]
    assert engine.answered(OpIndex(1), Wait(LATER), LATER)[0] == Bound(OpIndex(1), BASE, Epoch(0))


def test_an_answer_that_comes_too_late_is_nothing() -> None:
    """Of a generation that has ended, of an operation that failed, of one that was not asked about."""
    engine = asking()
    assert engine.answered(OpIndex(2), Binding(INA), NOW) == []
    engine.halt()
    assert engine.answered(OpIndex(1), Binding(INA), NOW) == []
    failed = asking()
    failed.step(Fail("lost", "a rank is lost"), NOW)
    assert failed.answered(OpIndex(1), Binding(INA), NOW) == []


def test_a_ring_that_was_parked_meanwhile_carries_nothing_whatever_was_answered() -> None:
    engine = asking()
    engine.park()
    assert engine.answered(OpIndex(1), Binding(INA), NOW)[0] == Bound(OpIndex(1), BASE, Epoch(0))


# --- rings that come and go


def test_without_an_ina_ring_the_binder_is_not_asked() -> None:
    def binder(op_index: OpIndex, now: Instant) -> Binding:
        raise AssertionError("asked")

    engine = pair(binder, ina=None)
    assert engine.step(Submit(operation(1)), NOW)[0] == Bound(OpIndex(1), BASE, Epoch(0))


def test_a_ring_that_is_parked_carries_nothing_and_goes_on_with_its_next_message() -> None:
    engine = pair(always(INA))
    post = posted(engine.step(Submit(operation(1)), NOW), INA)
    for event in (None, result_of(post, 0)):
        if event is not None:
            engine.step(event._replace(path=INA), NOW)
        with pytest.raises(LocalMisuse, match="or an operation or a message is on it"):
            engine.park()
    engine.step(SendCompleted(post.msg_id, path=INA), NOW)
    engine.park()
    assert (engine.is_parked, engine.ina_messages) == (True, 1)
    on_base = posted(engine.step(Submit(operation(2)), NOW), BASE)
    assert on_base.op_index == 2
    engine.step(message_at(engine.config, Kind.RESULT, 1, FULL, last=True, op_index=2), NOW)
    engine.stand()
    assert not engine.is_parked
    assert posted(engine.step(Submit(operation(3)), NOW), INA).msg_id == 1


def test_a_ring_that_is_not_there_is_not_parked() -> None:
    with pytest.raises(LocalMisuse, match="there is no INA ring to park"):
        pair(always(INA), ina=None).park()


def test_a_ring_that_is_none_for_these_operations_is_not_attached() -> None:
    engine = pair(always(INA), ina=None)
    with pytest.raises(LocalMisuse, match="is the base ring, or has another order of ranks"):
        engine.attach(config(7))
    with pytest.raises(LocalMisuse, match="is the base ring, or has another order of ranks"):
        engine.attach(config(8, rank=1))
    with pytest.raises(LocalMisuse, match="the operations that are to go on have"):
        engine.attach(config(8, message_packets=3))
    engine.attach(config(8))
    with pytest.raises(LocalMisuse, match="is attached beside another"):
        engine.attach(config(9))
    engine.halt()
    with pytest.raises(LocalMisuse, match="or after the end"):
        engine.attach(config(9))


def test_who_is_alone_or_on_no_chain_has_no_two_paths() -> None:
    alone = ring_config(0, 1)
    with pytest.raises(LocalMisuse, match="has no two paths"):
        AnsweredPaths(alone, Accumulators(ReductionPlan.flat(1)), always(BASE))
    with pytest.raises(LocalMisuse, match="has no two paths"):
        AnsweredPaths(config(7), RotatedAccumulators(ReductionPlan.flat(2)), always(BASE))


# --- ends


def test_a_wrong_message_on_either_ring_ends_both() -> None:
    for path in (BASE, INA):
        engine = pair(always(path))
        engine.step(Submit(operation(1)), NOW)
        wrong = ResultArrived(5, RECEIVED, bytes(INA_HEADER_BYTES))
        said = {type(action) for action in engine.step(wrong._replace(path=path), NOW)}
        assert {Blame, RingBroken} <= said
        assert OperationFailed not in said
        assert engine.step(Submit(operation(2)), NOW) == []
        for other in (BASE, INA):
            assert engine.step(wrong._replace(path=other), NOW) == [], "of a ring that has ended"


def test_all_operations_fail_together_and_once() -> None:
    engine = pair(always(INA))
    engine.step(Submit(operation(1)), NOW)
    engine.step(Submit(operation(2)), NOW)
    failed = engine.step(Fail("code", "why"), NOW)
    assert failed == [OperationFailed(OpIndex(index), "code", "why") for index in (1, 2)]
    assert engine.step(Fail("code", "why"), NOW) == []
    assert engine.step(Submit(operation(3)), NOW) == [OperationFailed(OpIndex(3), "code", "why")]


def test_the_clock_runs_for_an_operation_on_either_ring() -> None:
    engine = pair(always(INA))
    engine.step(Submit(operation(1)), NOW)
    assert engine.deadline is not None
    (stalled,) = engine.step(Woke(), engine.deadline)
    assert isinstance(stalled, Stalled)
    assert engine.carrier == INA


def next_generation(operations: OperationQueue, progress: int, donor: int = 1) -> TwoPaths:
    return AnsweredPaths(
        config(17),
        Accumulators(ReductionPlan.flat(2)),
        always(INA),
        ina=config(18),
        operations=operations,
        recovery=Recovery(progress, donor),
    )


def test_what_the_last_generation_did_not_end_is_the_base_ring_s() -> None:
    """Whatever it was bound to: ranks that have not started it yet cannot know."""
    engine = pair(always(INA))
    engine.step(Submit(operation(1)), NOW)
    engine.step(Submit(operation(2)), NOW)
    following = next_generation(engine.halt(), 1)
    assert following.step(Submit(operation(3)), NOW) == [], "the other ranks may not be ready"
    actions = following.resume(NOW)
    assert [post.op_index for post in by(actions, BASE) if isinstance(post, PostMessage)] == [0, 1]
    assert by(actions, INA) == []
    again = message_at(following.config, Kind.RESULT, 0, FULL, last=True)
    following.step(again, NOW)
    own = message_at(following.config, Kind.RESULT, 1, FULL, last=True, op_index=1)
    assert Bound(OpIndex(2), INA, Epoch(3)) in following.step(own, NOW)


def test_operations_that_were_on_their_way_together_are_bound_one_by_one() -> None:
    """On the rings before, a window ran over them; here each has to end before the next is bound."""
    alone = RingEngine(config(16))
    for index in range(3):
        alone.step(Submit(operation(index, 8)), NOW)
    operations = alone.halt()
    assert operations.in_flight == 2
    following = next_generation(operations, 1)
    actions = following.resume(NOW)
    assert [post.op_index for post in actions if isinstance(post, PostMessage)] == [0]
    assert operations.in_flight == 1
    result = message_at(following.config, Kind.RESULT, 0, 8, last=True)
    actions = following.step(result, NOW)
    assert Bound(OpIndex(1), BASE, Epoch(0)) in actions, "message 1 is the base ring's, at all ranks"
    result = message_at(following.config, Kind.RESULT, 1, 8, last=True, op_index=1)
    assert Bound(OpIndex(2), INA, Epoch(3)) in following.step(result, NOW)


def test_who_has_not_started_the_operation_where_the_others_were_starts_it_on_the_base_ring() -> None:
    engine = pair(always(INA))
    following = next_generation(engine.halt(), 1)
    following.resume(NOW)
    assert following.step(Submit(operation(1)), NOW)[0] == Bound(OpIndex(1), BASE, Epoch(0))


def test_an_operation_is_bound_when_its_tensor_is_there() -> None:
    """A ring through the switches has a turn for all of it, or none."""
    engine = pair(always(INA))
    assert engine.step(Submit(replace(operation(1), filled=0)), NOW) == []
    assert engine.step(Filled(OpIndex(1), FULL - 8), NOW) == []
    actions = engine.step(Filled(OpIndex(1), FULL), NOW)
    assert [it for it in actions if isinstance(it, Bound)] == [Bound(OpIndex(1), INA, Epoch(3))]
    assert len([it for it in by(actions, INA) if isinstance(it, PostMessage)]) == 1


def test_a_running_operation_is_filled_on_the_base_ring() -> None:
    """That of a generation before this one, whose hosts had one ring."""
    chain = ChainEngine(config(6), Accumulators(ReductionPlan.flat(2)))
    chain.step(Submit(replace(operation(0, 2 * FULL), filled=FULL)), NOW)
    engine = TwoPaths(
        config(7), Accumulators(ReductionPlan.flat(2)), operations=chain.halt(), recovery=Recovery(0, 0)
    )
    resumed = [it for it in engine.resume(NOW) if isinstance(it, PostMessage)]
    filled = [it for it in engine.step(Filled(OpIndex(0), 2 * FULL), NOW) if isinstance(it, PostMessage)]
    assert [it.offset for it in (*resumed, *filled)] == [0, FULL]
