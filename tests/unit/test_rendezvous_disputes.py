"""The rendezvous core where ranks call different all-reduces (docs/protocol.md 12.6)."""

from __future__ import annotations

import pytest

from inaproto.core.rendezvous.disputes import CALLS_NS
from inaproto.core.rendezvous.events import (
    MemberBroken,
    RendezvousEvent,
    Send,
    SessionId,
    Woke,
)
from inaproto.core.switch.accelerator import RemoveRing, RingFault
from inaproto.units import Instant
from inaproto.wire.control_messages import (
    AskCalls,
    Broken,
    Failed,
    JobStatus,
)
from tests.unit.rendezvous_world import NOW, World, sent


@pytest.mark.parametrize("difference", [{"nbytes": 128}, {"signature": 10}])
def test_different_operations_fail_the_job(difference: dict[str, int]) -> None:
    world = World()
    world.running()
    world.stalled(0, 5)
    actions = world.stalled(1, 5, **difference)
    [(session, status)] = sent(actions, JobStatus)
    assert session == 1
    assert (
        "all-reduce 5 of job 'train' differs between ranks: rank 0 (h0, pid 1000): 64 bytes"
        in status.mismatch
    )
    assert {(s, message.code) for s, message in sent(actions, Failed)} == {
        (s, "tensor_mismatch") for s in range(3)
    }
    assert world.installed == {}


@pytest.mark.parametrize("rule", ["operations differ", "packet layout"])
def test_fault_of_the_accelerator_is_a_tensor_mismatch(rule: str) -> None:
    world = World()
    world.running()
    [ring_id] = world.installed
    asked = world.step(RingFault(ring_id, 1, rule, "rank 1 sent f32, rank 0 sent i32"))
    assert asked == [Send(SessionId(session), AskCalls(job="train")) for session in range(3)]
    assert world.step(RingFault(ring_id, 1, rule, "again")) == [], "asked once"
    assert world.core.deadline == NOW + CALLS_NS
    assert world.core.step(Woke(), Instant(NOW + CALLS_NS - 1)) == []
    actions = world.core.step(Woke(), Instant(NOW + CALLS_NS))
    for session in range(3):
        [message] = [m for s, m in sent(actions, Failed) if s == session]
        assert message.code == "tensor_mismatch"
        assert "seen at rank 1 (h1, pid 1001): rank 1 sent f32, rank 0 sent i32" in message.message
    assert [action for action in actions if isinstance(action, RemoveRing)] == [RemoveRing(ring_id)]
    assert world.step(RingFault(ring_id, 1, rule, "late")) == []


THIRTY, MORE = "sum of float32 (30,)", "sum of float32 (31,)"


@pytest.mark.parametrize("finder", ["accelerator", "host"])
def test_a_mismatch_is_told_in_the_words_of_all_ranks(finder: str) -> None:
    """docs/protocol.md 12.6: as soon as all have told, of the first all-reduce that differs."""
    world = World()
    world.running()
    [ring_id] = world.installed
    found: RendezvousEvent = RingFault(ring_id, 1, "operations differ", "digests")
    if finder == "host":
        told = Broken(job="train", rank=1, ring_id=ring_id, progress=4, reason="digests", differs=True)
        found = MemberBroken(SessionId(1), told)
    assert [message for _, message in sent(world.step(found), AskCalls)] == [AskCalls(job="train")] * 3
    assert world.calls(0, 4, MORE, THIRTY) == []
    assert world.calls(1, 5, MORE, "max of int32 (1,)") == []
    actions = world.calls(2, 4, MORE, THIRTY, THIRTY)
    text = (
        f"all-reduce 5 of job 'train' differs between ranks: rank 0 (h0, pid 1000), rank 2 (h2, pid 1002): "
        f"{THIRTY}; rank 1 (h1, pid 1001): {MORE}; every rank must call the same ones in the same order, "
        "with the same shape, dtype and op"
    )
    assert [(told.code, told.message) for _, told in sent(actions, Failed)] == [("tensor_mismatch", text)] * 3
    assert world.installed == {}
    assert world.core.deadline is None


def test_who_has_left_or_is_of_an_older_release_is_not_waited_for_in_a_mismatch() -> None:
    world = World()
    world.running()
    world.leave(2)
    world.step(RingFault(next(iter(world.installed)), 1, "operations differ", "digests"))
    world.calls(0, 5, THIRTY)
    [(_, failed), *_] = sent(world.calls(1, 5, MORE), Failed)
    assert f"{THIRTY}; rank 1 (h1, pid 1001): {MORE}" in failed.message
    world = World()
    world.running()
    world.step(RingFault(next(iter(world.installed)), 1, "operations differ", "digests"))
    world.calls(0, 5, THIRTY)
    world.calls(2, 5, MORE)
    [(_, failed), *_] = sent(world.core.step(Woke(), Instant(NOW + CALLS_NS)), Failed)
    assert f"{THIRTY}; rank 2 (h2, pid 1002): {MORE}" in failed.message, "in time, and without rank 1"


def test_a_mismatch_with_a_host_of_an_older_release_has_the_words_of_the_others() -> None:
    """Its rank, whose call is the other one, knows that by itself, and reads here what theirs is."""
    world = World()
    world.running()
    world.step(RingFault(next(iter(world.installed)), 1, "operations differ", "digests"))
    world.calls(0, 5, THIRTY, MORE)
    world.calls(2, 5, THIRTY)
    [(_, failed), *_] = sent(world.core.step(Woke(), Instant(NOW + CALLS_NS)), Failed)
    assert failed.message.startswith("the ranks of job 'train' called different all-reduces, seen at ")
    who = "rank 0 (h0, pid 1000), rank 2 (h2, pid 1002)"
    assert f"digests; all-reduce 5 of {who}: {THIRTY}; every rank must" in failed.message
    assert MORE not in failed.message


def test_calls_that_nobody_asked_for_end_nothing() -> None:
    world = World()
    world.running()
    assert [world.calls(rank, 5, f"sum of float32 ({rank},)") for rank in range(3)] == [[]] * 3
