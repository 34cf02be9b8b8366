"""Emission: which of several gaps each flow hears of, resends over the frontier, and what is counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from inaproto.core.switch.accelerator import Counters
from tests.accelerators import EACH_ACCELERATOR
from tests.unit.switched_ring import SwitchedRing, block, by_port, dropped, emitted, mac, nameless, ring_of

pytestmark = EACH_ACCELERATOR


def counters(ring: SwitchedRing) -> Counters:
    return ring.accelerator.view().counters


def begun(serial: int, **changes: Any) -> SwitchedRing:
    """Three ranks, all messages before ``serial`` summed."""
    ring = SwitchedRing(3, **changes)
    for earlier in range(serial):
        ring.finish(earlier)
    return ring


@pytest.mark.parametrize("serial", [0, 1, 6])
def test_each_loser_hears_of_the_first_result_behind_its_own_gap(serial: int) -> None:
    """Rank 1 lost packet 1, rank 2 packet 2: for both the first finished one behind it is packet 3."""
    ring = begun(serial)
    ring.send(0, serial)
    ring.send(1, serial, 0, 2, 3)
    actions = ring.send(2, serial, 0, 1, 3)
    assert by_port(actions) == {
        1: [ring.result(0, serial, 0)],
        2: [ring.result(1, serial, 0), ring.result(1, serial, 3)],
        0: [ring.result(2, serial, 0), ring.result(2, serial, 3)],
    }
    assert counters(ring).gaps_signalled == 2
    assert emitted(ring.send(0, serial, 3)) == [], "once"
    assert counters(ring).gaps_signalled == 2


@pytest.mark.parametrize("serial", [0, 1, 6])
def test_a_gap_in_the_next_message_is_found_before_the_offset_of_the_frontier(serial: int) -> None:
    """The frontier stands at packet 3 of one message, the other rank's gap is packet 1 of the next."""
    ring = begun(serial)
    ring.send(0, serial)
    ring.send(0, serial + 1)
    ring.send(1, serial, 0, 1, 2)
    ring.send(1, serial + 1)
    ring.send(2, serial)
    actions = ring.send(2, serial + 1, 0, 2, 3)
    sent = by_port(actions)
    assert sent[0] == [ring.result(2, serial + 1, 2)], "rank 2 has all of the message before"
    assert sent[2] == [ring.result(1, serial + 1, 0)], "rank 1 has a gap in it"
    assert 1 not in sent, "rank 0 lost nothing"


def test_a_new_gap_is_never_taken_for_an_old_one() -> None:
    """Packet 1 of message 0, later the first packet of message 4: different places, signalled each."""
    ring = begun(0)
    ring.send(0, 0)
    ring.send(2, 0)
    ring.send(1, 0, 0, 2, 3)
    ring.send(1, 0, 1)
    assert counters(ring).gaps_signalled == 1
    for serial in (1, 2, 3):
        ring.finish(serial)
    for rank in (0, 2):
        ring.send(rank, 4)
        ring.send(rank, 5)
    ring.send(1, 4, 1, 2, 3)
    actions = ring.send(1, 5)
    assert by_port(actions) == {2: [ring.result(1, 5, 0)]}
    assert counters(ring).gaps_signalled == 2


def trickled(ring: SwitchedRing, rank: int, serial: int, offsets: Iterable[int]) -> list[bytes]:
    """A resend that comes packet by packet: what it brings out on the rank's own flow, in order."""
    to = (rank + 1) % ring.spec.size
    sent = []
    for offset in offsets:
        sent += by_port(ring.send(rank, serial, offset)).get(to, [])
    return sent


@pytest.mark.parametrize("serial", [0, 1, 6])
def test_a_resend_that_trickles_in_moves_the_hole_and_signals_nothing(serial: int) -> None:
    """Rank 1's first packet was lost, and so none of its message could be placed; none waited so long."""
    ring = begun(serial, message_packets=8)
    for rank in (0, 2):
        ring.send(rank, serial)
        ring.send(rank, serial + 1)
    ring.send(1, serial, *range(1, 8))
    assert dropped(ring) == {"first packet of the message not seen": 7}
    assert by_port(ring.send(1, serial + 1)) == {2: [ring.result(1, serial + 1, 0)]}
    assert trickled(ring, 1, serial, range(8)) == [
        *(ring.result(1, serial, offset) for offset in range(8)),
        *(ring.result(1, serial + 1, offset) for offset in range(8)),
    ]
    assert counters(ring).gaps_signalled == 1


def test_a_resend_signals_nothing_though_packets_came_behind_the_gap_after_its_signal() -> None:
    ring = begun(0, message_packets=8)
    ring.send(0, 0)
    ring.send(2, 0)
    ring.send(1, 0, 0, 4)
    for offset in (5, 6, 7):  # sent before the NAK came
        ring.send(1, 0, offset)
    assert counters(ring).gaps_signalled == 1
    assert trickled(ring, 1, 0, (1, 2)) == [ring.result(1, 0, offset) for offset in (1, 2)]
    assert counters(ring).gaps_signalled == 1


def test_a_hole_that_a_resend_leaves_open_is_signalled_no_second_time() -> None:
    ring = begun(0, message_packets=8)
    ring.send(0, 0)
    ring.send(2, 0)
    ring.send(1, 0, 0, 2, 3)
    assert counters(ring).gaps_signalled == 1
    assert emitted(ring.send(1, 0, 0)) != [], "it goes back farther than it must"
    ring.send(1, 0, 2, 3)
    assert counters(ring).gaps_signalled == 1


def test_what_others_finish_while_a_resend_trickles_in_signals_nothing() -> None:
    ring = begun(0, message_packets=8)
    ring.send(0, 0)
    ring.send(1, 0, 0, 4, 5, 6, 7)
    for offset in range(5):
        ring.send(2, 0, offset)
    assert counters(ring).gaps_signalled == 1
    ring.send(1, 0, 1)
    for offset in (5, 6, 7):
        assert emitted(ring.send(2, 0, offset)) == []
    assert counters(ring).gaps_signalled == 1


@pytest.mark.parametrize("together", [True, False])
def test_a_packet_that_its_resend_loses_again_is_signalled_once_the_sender_is_past_it(together: bool) -> None:
    ring = begun(0, message_packets=8)
    ring.send(0, 0)
    ring.send(2, 0)
    ring.send(1, 0, 0, 4, 5, 6, 7)
    assert counters(ring).gaps_signalled == 1
    again = [ring.packet(1, 0, offset) for offset in (1, 2, 4, 5)]
    steps = [again] if together else [[packet] for packet in again]
    sent = [frame for packets in steps for frame in by_port(ring.arrive(1, *packets)).get(2, [])]
    assert sent == [ring.result(1, 0, offset) for offset in (1, 2, 4)]
    assert counters(ring).gaps_signalled == 2


@pytest.mark.parametrize(
    ("damaged", "brought", "signalled"),
    [
        pytest.param(3, (1, 2, 3), 1, id="the last of a block: nothing came behind the hole"),
        pytest.param(3, (1, 2, 3, 4), 2, id="one in a block: the one behind it is past the hole"),
    ],
)
def test_only_right_packets_say_how_far_a_sender_is(
    damaged: int, brought: tuple[int, ...], signalled: int
) -> None:
    ring = SwitchedRing(3, message_packets=8)
    for rank in range(3):
        frames = ring.message(rank, 0)  # as blocks: what the flow's middle packets are is known by now
        ring.arrive_blocks(rank, block(frames[0]), block(*frames[1:7]), block(frames[7]))
    ring.send(0, 1)
    ring.send(2, 1)
    ring.send(1, 1, 0, 6, 7)
    assert counters(ring).gaps_signalled == 1
    again = {offset: ring.packet(1, 1, offset) for offset in brought}
    again[damaged] = again[damaged][:-1] + bytes([again[damaged][-1] ^ 1])
    ring.arrive_blocks(1, block(*again.values()))
    assert counters(ring).dropped["wrong ICRC"] == 1
    assert counters(ring).gaps_signalled == signalled
    ring.send(1, 1, 5)
    assert counters(ring).gaps_signalled == 2, "packet 3 is missing now"


def test_results_are_counted_as_they_leave() -> None:
    ring = begun(0)
    ring.send(0, 0)
    ring.send(1, 0)
    for offset in range(4):
        assert len(emitted(ring.send(2, 0, offset))) == 3
        assert counters(ring).results_out == 3 * (offset + 1)


def test_fills_add_up() -> None:
    ring = begun(2)
    for serial in (0, 1):
        ring.send(0, serial, 0)
        ring.send(0, serial, 2)
    ring.send(0, 1, 3)
    # Packet 1 of each message, and packet 3 of message 0 between the two resends.
    assert counters(ring).replay_filled == 3
    assert counters(ring).replayed == 5 + 3


def test_a_resend_that_runs_on_into_new_packets_fills_nothing() -> None:
    """It reached the frontier: what comes behind is no answer to it, and nothing is counted."""
    ring = begun(1)
    ring.send(0, 1)
    ring.send(1, 1, 0, 1)
    ring.send(2, 1, 0, 1)
    assert emitted(ring.send(0, 1, 1)) == [(1, ring.result(0, 1, 1))]
    ring.send(0, 0, 2)
    for offset in (2, 3):
        ring.send(0, 1, offset)
    assert counters(ring).replay_filled == 1 + 2, "the rest of message 0, then what was finished of 1"
    ring.send(1, 1, 2)
    ring.send(2, 1, 2)
    assert counters(ring).replay_filled == 3


@pytest.mark.parametrize("knows_addresses", [False, True])
def test_a_replay_for_a_host_that_is_not_known_is_flooded_but_not_to_its_sender(
    knows_addresses: bool,
) -> None:
    """Where the control plane knows its address, that counts, whatever one packet says."""
    ring = begun(1) if knows_addresses else begun(1, flows=nameless(ring_of(3)))
    resent = mac(9) + ring.packet(1, 0, 1)[6:]
    ring.send(1, 0, 0)
    ports = {port for port, _ in emitted(ring.arrive(1, resent))}
    assert ports == ({2} if knows_addresses else {0, 2, 3})


@pytest.mark.parametrize("knows_addresses", [False, True])
def test_a_gap_of_a_host_that_is_not_known_is_signalled_to_all_but_its_sender(knows_addresses: bool) -> None:
    ring = begun(0) if knows_addresses else begun(0, flows=nameless(ring_of(3)))
    ring.send(0, 0)
    ring.send(2, 0)
    actions = ring.arrive(1, ring.packet(1, 0, 0), mac(9) + ring.packet(1, 0, 2)[6:])
    signalled = [(port, frame) for port, frame in emitted(actions) if frame[6:] == ring.result(1, 0, 2)[6:]]
    assert {port for port, _ in signalled} == ({2} if knows_addresses else {0, 2, 3})
