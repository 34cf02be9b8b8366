"""Rings that share the slots of a switch by turns, told apart by the epoch in their headers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.switch.accelerator import (
    Accelerator,
    AcceleratorConfig,
    Action,
    InstallRing,
    RemoveRing,
    RingFault,
    RingRefused,
)
from inaproto.core.switch.aggregator import bytes_needed
from inaproto.errors import Blame, LocalMisuse
from inaproto.wire.ina_header import Dtype
from inaproto.wire.messages.switch import PoolSpec
from tests.unit.pooled_rings import POOL, pool_of, pooled_ring, two_rings
from tests.unit.switched_ring import MTU, NOW, SwitchedRing, block, by_port, dropped, emitted, others, ring_of


def turn(ring: SwitchedRing, epoch: int, *serials: int) -> None:
    """The ring's turn, to its end: every message gets its results."""
    ring.epoch = epoch
    for serial in serials:
        assert by_port(ring.finish(serial)) == ring.results(serial)


def faults(actions: list[Action]) -> list[tuple[int, str]]:
    return [(action.ring_id, action.rule) for action in actions if isinstance(action, RingFault)]


def rules(actions: list[Action]) -> list[str]:
    return [action.rule for action in actions if isinstance(action, Blame)]


# -- turns


def test_rings_take_turns_and_count_their_messages_on() -> None:
    one, two = two_rings()
    turn(one, 1, 0, 1, 2)
    turn(two, 2, 0)
    turn(one, 3, 3)
    turn(two, 7, 1, 2, 3, 4, 5)
    turn(one, 8, 4, 5, 6, 7, 8)
    view = pool_of(one)
    assert (view.takeovers, view.conflicts, view.stale) == (5, 0, 0)
    assert (view.rings, view.holders, view.epochs) == ((1, 2), (1,), (8,))
    assert dropped(one) == {}


def test_what_a_message_is_like_ends_with_the_turn() -> None:
    """Slots in which another ring had messages of another type as often as this one had turns."""
    one, two = two_rings()
    turn(two, 1, *range(8))
    turn(one, 2, *range(4))
    turn(one, 3, *range(4, 8))
    two.epoch = 4
    for serial in range(8, 12):
        assert by_port(two.finish(serial, dtype=Dtype.F16)) == two.results(serial, dtype=Dtype.F16)


@pytest.mark.parametrize("epoch", [0, 0xFFFF_FFFF])
def test_any_epoch_may_be_the_first(epoch: int) -> None:
    one, _ = two_rings()
    assert pool_of(one).epochs == (-1,)
    turn(one, epoch, 0)
    assert pool_of(one).epochs == (epoch,)


def test_the_first_message_of_a_turn_is_known_whichever_packet_comes_first() -> None:
    """Its own was lost on one flow: the ring's frontier is where its last turn ended, not what came first."""
    one, two = two_rings()
    turn(one, 1, 0, 1)
    turn(two, 2, 0)
    one.epoch = 3
    assert one.send(0, 3) == []
    assert one.send(1, 2) == one.send(1, 3) == one.send(2, 2) == []
    assert by_port(one.send(2, 3)) == {1: [one.result(0, 3, 0)]}, "the gap is told, once"
    actions = one.send(0, 2)
    assert by_port(actions) == {
        port: frames + one.results(3)[port] for port, frames in one.results(2).items()
    }


def test_the_same_ring_may_have_turn_after_turn() -> None:
    one, _ = two_rings()
    turn(one, 4, 0, 1)
    turn(one, 5, 2)
    assert pool_of(one).takeovers == 2
    assert one.send(0, 1, epoch=4) == [], "kept results are of the turn that is over"
    assert dropped(one) == {"stale turn": 1, "first packet of the message not seen": 3}


def test_a_resend_within_the_turn_is_answered_from_the_kept_result() -> None:
    one, two = two_rings()
    turn(two, 1, 0)
    turn(one, 2, 0)
    assert by_port(one.send(1, 0)) == {2: one.results(0)[2]}


def test_results_are_those_of_the_ring_that_has_the_turn_though_both_send_the_same_message() -> None:
    """Message 0 of either, same header but for ring and key; then a late copy of the first."""
    one, two = two_rings()
    turn(one, 1, 0)
    two.epoch = 2
    assert two.send(0, 0) == two.send(1, 0) == []
    assert one.send(0, 0, epoch=1) == []
    assert by_port(two.send(2, 0)) == two.results(0)
    assert pool_of(one).stale == 1


def test_rings_of_different_shapes_share_a_pool() -> None:
    """Other ranks, messages and windows: the slots are made anew, for one ring at a time."""
    one = pooled_ring(1, 3)
    two = pooled_ring(2, 2, beside=one, window_messages=4, message_packets=7, psn0=0)
    for number in range(4):
        turn(one, 2 * number, number)
        turn(two, 2 * number + 1, number)
    need = max(bytes_needed(one.spec), bytes_needed(two.spec))
    assert one.accelerator.view().memory_bytes == need


# -- what comes too late


def test_packets_of_a_turn_that_is_over_are_dropped_and_counted() -> None:
    one, two = two_rings()
    turn(one, 1, 0, 1)
    turn(two, 2, 0)
    assert one.send(0, 1, epoch=1) == [], "a late copy"
    assert one.send(0, 2, epoch=1) == [], "a holder that does not know that its turn is over"
    assert dropped(one) == {"stale turn": 2, "first packet of the message not seen": 6}
    view = one.accelerator.view()
    assert (view.counters.stale_turns, view.pools["shared"].stale) == (2, 2)
    assert pool_of(one).holders == (2,)


def test_late_middle_packets_belong_to_no_message_after_the_turn() -> None:
    """Also not when it is the ring's turn again: the quick way knows their headers still."""
    one, two = two_rings()
    turn(one, 1, 0)
    middles = block(*one.message(0, 0)[1:3])
    turn(two, 2, 0)
    assert one.arrive_blocks(0, middles) == []
    turn(one, 3, 1)
    assert one.arrive_blocks(0, middles) == []
    assert dropped(one) == {"first packet of the message not seen": 4}


def test_a_message_of_an_earlier_turn_cannot_begin_one() -> None:
    one, two = two_rings()
    turn(one, 1, 0, 1)
    turn(two, 2, 0)
    assert one.send(0, 1, epoch=3) == []
    assert dropped(one)["older than the tenant"] == 1
    assert pool_of(one).epochs == (2,)


def test_a_message_of_an_earlier_turn_is_stale_whatever_turn_it_says() -> None:
    """Its slots hold nothing of it any more: what a resend would be answered with was never summed."""
    one, two = two_rings()
    turn(one, 1, 0, 1)
    turn(two, 2, 0)
    turn(one, 3, 2)
    assert one.send(0, 1, epoch=3) == []
    assert one.send(0, 0, epoch=3) == []
    assert dropped(one)["older than the tenant"] == 2
    turn(one, 4, 3)
    assert one.send(0, 2, epoch=4) == [], "also where no other ring had a turn between them"


def test_a_message_beyond_the_window_cannot_begin_a_turn() -> None:
    one, two = two_rings()
    turn(two, 2, 0)
    assert rules(one.send(0, 2, epoch=3)) == ["window passed"]
    assert one.send(0, 1, epoch=3) == []
    assert pool_of(one).holders == (1,)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"key": 1}, "wrong key"),
        ({"ring_id": 1}, "wrong ring"),
        ({"ring_size": 4}, "wrong ring size"),
        ({"claimed_rank": 1}, "wrong rank"),
    ],
)
def test_no_stranger_begins_a_turn(changes: dict[str, int], rule: str) -> None:
    one, two = two_rings()
    turn(one, 1, 0)
    assert rules(two.send(0, 0, epoch=9, **changes)) == [rule]
    assert pool_of(one).epochs == (1,)


def test_a_damaged_packet_begins_no_turn() -> None:
    one, two = two_rings()
    turn(one, 1, 0)
    frame = bytearray(two.packet(0, 0, 0, epoch=9))
    frame[-1] ^= 1
    assert two.arrive(0, bytes(frame)) == []
    assert (pool_of(one).epochs, dropped(one)) == ((1,), {"wrong ICRC": 1})


def test_a_result_begins_no_turn() -> None:
    one, two = two_rings()
    turn(one, 1, 0)
    assert rules(two.send(0, 0, 0, epoch=9, flags=3)) == ["no INA header"]
    assert pool_of(one).epochs == (1,)


# -- ranks, and rings, that do not agree


@pytest.mark.parametrize("epoch", [4, 6])
def test_ranks_that_send_one_message_under_different_epochs_are_blamed(epoch: int) -> None:
    one, _ = two_rings()
    one.epoch = 5
    one.send(0, 0)
    assert rules(one.send(1, 0, epoch=epoch)) == ["wrong epoch"]
    assert faults(one.send(1, 0)) == []
    assert by_port(one.send(2, 0)) == one.results(0)
    assert pool_of(one).epochs == (5,)


def test_two_rings_with_one_turn_are_not_both_served() -> None:
    one, two = two_rings()
    turn(one, 5, 0)
    assert rules(two.send(0, 0, epoch=5)) == ["wrong epoch"]
    assert pool_of(one).holders == (1,)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_ring_whose_messages_are_unfinished_is_stopped_when_its_turn_is_taken(ranks: int) -> None:
    one, two = two_rings()
    turn(one, 1, 0)
    for rank in range(ranks):
        one.send(rank, 1)
    two.epoch = 2
    actions = two.send(0, 0)
    assert others(actions) == [
        RingFault(1, 0, "turn lost", "ring 2 has turn 2 of pool shared, and messages were unfinished")
    ]
    assert (pool_of(one).conflicts, one.accelerator.view().counters.pool_conflicts) == (1, 1)
    assert one.send(2, 1) == [], "what was added up is gone"
    two.send(1, 0)
    assert by_port(two.send(2, 0)) == two.results(0)
    assert one.accelerator.view().rings[1]["failed"]


def test_a_message_of_which_one_packet_is_missing_is_unfinished() -> None:
    one, two = two_rings()
    one.epoch = 1
    for rank in range(3):
        one.send(rank, 0, 0, 1, 2)
    assert faults(two.send(0, 0, epoch=2)) == [(1, "turn lost")]


def test_a_ring_that_begins_a_turn_before_its_last_one_is_finished_is_stopped() -> None:
    one, two = two_rings()
    one.epoch = 1
    one.send(0, 0)
    assert faults(one.send(1, 1, epoch=2)) == [(1, "turn lost")]
    assert pool_of(one).holders == (None,)
    assert pool_of(one).epochs == (2,)
    turn(two, 3, 0)
    assert one.send(1, 1, epoch=4) == []
    assert pool_of(one).holders == (2,)


def test_a_takeover_in_the_step_in_which_the_old_ring_got_its_last_packets_makes_no_results_of_them() -> None:
    one, two = two_rings()
    one.epoch, two.epoch = 1, 2
    for rank in range(2):
        one.send(rank, 0)
    both = [*one.message(2, 0), *two.message(2, 0)]
    actions = one.arrive(2, *both)
    assert (emitted(actions), faults(actions)) == ([], [(1, "turn lost")])


def test_a_ring_that_has_failed_already_does_not_conflict() -> None:
    one, two = two_rings()
    one.epoch = 1
    one.send(0, 0)
    assert faults(one.send(1, 0, op_index=9)) == [(1, "operations differ")]
    turn(two, 2, 0)
    assert pool_of(one).conflicts == 0


def test_a_ring_that_is_removed_gives_its_turn_up_and_the_epoch_stays() -> None:
    one, two = two_rings()
    one.epoch = 5
    one.send(0, 0)
    assert one.accelerator.step(RemoveRing(1), NOW) == []
    assert (pool_of(two).holders, pool_of(two).epochs, pool_of(two).rings) == ((None,), (5,), (2,))
    assert two.send(0, 0, epoch=5) != [], "blamed"
    assert two.send(0, 0, epoch=4) == []
    turn(two, 6, 0)
    assert pool_of(two).conflicts == 0


def test_faults_of_tensors_are_found_in_turns_too() -> None:
    one, _ = two_rings()
    one.epoch = 5
    one.send(0, 0)
    assert faults(one.send(1, 0, signature=1)) == [(1, "operations differ")]


# -- capacity


def test_a_pool_of_two_takes_two_rings_at_once() -> None:
    pool = PoolSpec("shared", 2)
    one, two = two_rings(pool=pool)
    three = pooled_ring(3, beside=one, pool=pool)
    one.epoch, two.epoch = 2, 3
    for rank in range(2):
        assert one.send(rank, 0) == two.send(rank, 0) == []
    assert by_port(two.send(2, 0)) == two.results(0)
    assert by_port(one.send(2, 0)) == one.results(0)
    one.send(0, 1)
    turn(three, 5, 0)
    assert pool_of(one).holders == (1, 3)
    assert pool_of(one).epochs == (2, 5)
    assert two.send(0, 1) == [], "the third took the second's place, not the first's"
    assert pool_of(one).stale == 1
    one.send(1, 1)
    assert by_port(one.send(2, 1)) == one.results(1)
    assert one.accelerator.view().memory_bytes == 2 * bytes_needed(one.spec)


def test_a_ring_has_one_place_at_most() -> None:
    pool = PoolSpec("shared", 2)
    one, two = two_rings(pool=pool)
    turn(one, 2, 0)
    turn(one, 5, 1)
    assert pool_of(one).holders == (None, 1)
    assert one.send(0, 2, epoch=4) == [], "its own later turn was there before"
    assert pool_of(one).stale == 1
    turn(two, 4, 0)
    assert pool_of(one).holders == (2, 1)
    one.send(0, 2)
    assert faults(one.send(1, 3, epoch=6)) == [(1, "turn lost")]
    assert pool_of(one).holders == (None, None)
    assert pool_of(one).conflicts == 1, "the other had finished"


# -- memory


def test_a_pool_is_charged_once_for_its_greatest_ring() -> None:
    small, large = ring_of(3), ring_of(5)
    room = bytes_needed(large) + bytes_needed(small)
    one = pooled_ring(1, config=AcceleratorConfig(memory_bytes_max=room))
    assert one.accelerator.view().memory_bytes == bytes_needed(small)
    three = pooled_ring(3, 5, beside=one)
    pooled_ring(2, beside=one)
    assert pool_of(one).memory_bytes == one.accelerator.view().memory_bytes == bytes_needed(large)
    own = ring_of(3, ring_id=9, flows=tuple(replace(flow, dst_qp=9) for flow in small.flows))
    assert one.accelerator.step(InstallRing(own), NOW) == []
    assert one.accelerator.view().memory_bytes == room
    more = replace(three.spec, ring_id=4, flows=tuple(replace(f, dst_qp=8) for f in three.spec.flows))
    assert one.accelerator.step(InstallRing(more), NOW) == [], "a pool has room for any number of rings"
    greater = replace(
        more, ring_id=5, window_messages=4, flows=tuple(replace(f, dst_qp=7) for f in more.flows)
    )
    [refused] = one.accelerator.step(InstallRing(greater), NOW)
    whole = 2 * bytes_needed(large)
    reason = f"needs {whole} bytes of memory, it has {room} in all"
    assert refused == RingRefused(5, reason, until_switch=True)
    for ring_id in (3, 4):
        one.accelerator.step(RemoveRing(ring_id), NOW)
    assert pool_of(one).memory_bytes == bytes_needed(small)
    for ring_id in (9, 1, 2):
        one.accelerator.step(RemoveRing(ring_id), NOW)
    assert one.accelerator.view().memory_bytes == 0
    assert one.accelerator.view().pools == {}


def test_slots_of_a_ring_that_left_are_not_kept_beyond_what_the_pool_has() -> None:
    one, two = two_rings()
    large = pooled_ring(3, 5, beside=one)
    turn(large, 1, 0)
    before = one.accelerator.rings[3].array.regions
    one.accelerator.step(RemoveRing(3), NOW)
    turn(two, 2, 0)
    after = one.accelerator.rings[2].array.regions
    turn(one, 3, 0)
    assert one.accelerator.rings[1].array.regions is after, "the same slots, as they fit"
    assert after is not before
    assert sum(len(ring.array.regions) > 1 for ring in one.accelerator.rings.values()) == 1


def test_a_pool_has_one_capacity() -> None:
    one, _ = two_rings()
    spec = replace(ring_of(2), ring_id=5, pool=PoolSpec("shared", 2))
    spec = replace(spec, flows=tuple(replace(flow, dst_qp=9) for flow in spec.flows))
    refused = RingRefused(5, "pool shared takes 1 rings at once, not 2")
    assert one.accelerator.step(InstallRing(spec), NOW) == [refused]


def test_pools_do_not_know_each_other() -> None:
    one = pooled_ring(1)
    two = pooled_ring(2, beside=one, pool=PoolSpec("other"))
    one.epoch, two.epoch = 9, 1
    for rank in range(2):
        one.send(rank, 0)
        two.send(rank, 0)
    assert by_port(two.send(2, 0)) == two.results(0)
    assert by_port(one.send(2, 0)) == one.results(0)
    assert one.accelerator.view().memory_bytes == 2 * bytes_needed(one.spec)


def test_a_ring_without_pool_keeps_its_epoch() -> None:
    ring = SwitchedRing(3)
    assert rules(ring.send(0, 0, epoch=4)) == ["wrong epoch"]
    pooled_ring(1, beside=ring)
    assert by_port(ring.finish(0)) == ring.results(0)
    assert ring.accelerator.view().counters.pool_takeovers == 0


@pytest.mark.parametrize(("name", "capacity"), [("", 1), ("shared", 0)])
def test_what_no_pool_can_be(name: str, capacity: int) -> None:
    with pytest.raises(LocalMisuse, match=f"a pool named '{name}' that takes {capacity} rings at once"):
        PoolSpec(name, capacity)


def test_short_last_packets_of_one_ring_say_nothing_of_the_other() -> None:
    one, two = two_rings()
    one.epoch = 1
    assert by_port(one.finish(0, last_bytes=MTU - 8)) == one.results(0, last_bytes=MTU - 8)
    turn(two, 2, 0)
    assert POOL.capacity == 1


def test_a_pool_that_is_larger_than_all_memory_will_never_be() -> None:
    """Whoever has a part of it already: what is missing would fit, the whole does not."""
    small = replace(ring_of(2), pool=POOL)
    flows = tuple(replace(flow, dst_qp=9) for flow in small.flows)
    large = replace(small, ring_id=9, flows=flows, window_messages=4 * small.window_messages)
    room = POOL.capacity * bytes_needed(large) - 1
    for before in ([], [small]):
        accelerator = Accelerator(AcceleratorConfig(memory_bytes_max=room))
        for spec in before:
            assert accelerator.step(InstallRing(spec), NOW) == []
        [refused] = accelerator.step(InstallRing(large), NOW)
        reason = f"needs {room + 1} bytes of memory, it has {room} in all"
        assert refused == RingRefused(large.ring_id, reason, until_switch=True)
