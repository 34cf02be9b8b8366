"""Packets that overtake the first one of their message: they wait for it, and for no longer than they may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inaproto.core.switch.accelerator import AcceleratorConfig, Action, FramesArrived, RemoveRing
from inaproto.errors import Blame
from inaproto.units import MS, Instant, PortId
from tests.unit.switched_ring import SwitchedRing, block, by_port, dropped, emitted, mac, others
from tests.unit.switched_tree import FIGURE_5, SwitchedTree
from tests.unit.test_accelerator_fabrics import blocks_of, tagged

PACKETS = 10
NOT_SEEN = "first packet of the message not seen"
WAIT_NS, SELECTIVE_NS = AcceleratorConfig().early_ns, AcceleratorConfig().early_selective_ns


def ring_of_ten(**config: Any) -> SwitchedRing:
    return SwitchedRing(2, message_packets=PACKETS, config=AcceleratorConfig(**config))


def at(ring: SwitchedRing, port: int, now: int, *frames: bytes) -> list[Action]:
    blocks = tuple(block(frame) for frame in frames)
    return ring.accelerator.step(FramesArrived(PortId(port), blocks), Instant(now))


def counts(ring: SwitchedRing) -> tuple[int, int, int]:
    """Packets that ever waited, that were taken in time, that wait now."""
    counters = ring.accelerator.counters
    return counters.early, counters.early_taken, ring.accelerator.waiting


@pytest.mark.parametrize("kernels", ["numpy", "compiled"])
@pytest.mark.parametrize("together", [1, 4, 64])
@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("first", range(PACKETS))
def test_all_is_summed_wherever_first_packets_come(
    use_kernels: Callable[[str], None], first: int, steps: bool, together: int, kernels: str
) -> None:
    """20 of 20: in one receive or in as many as there are packets."""
    use_kernels(kernels)
    ring = ring_of_ten()
    ring.finish(0)
    out: list[tuple[int, bytes]] = []
    for rank in range(2):
        head, *rest = ring.message(rank, 1)
        rest.insert(first, head)
        groups = [block(*group) for group in blocks_of(rest, together)]
        arrivals = [[group] for group in groups] if steps else [groups]
        out += [each for blocks in arrivals for each in emitted(ring.arrive_blocks(rank, *blocks))]
    assert {port: [frame for to, frame in out if to == port] for port in range(2)} == ring.results(1)
    early, taken, waiting = counts(ring)
    assert (taken, waiting) == (early, 0)
    assert early == 2 * first if steps or together == 1 else early <= 2 * first
    assert ring.accelerator.counters.dropped == {}


def test_packets_may_come_in_any_order() -> None:
    rng = np.random.default_rng(3)
    ring = ring_of_ten()
    for serial in range(8):
        out = []
        for rank in range(2):
            frames = ring.message(rank, serial)
            out += [
                each for row in rng.permutation(PACKETS) for each in emitted(ring.arrive(rank, frames[row]))
            ]
        gaps = ring.accelerator.counters.gaps_signalled
        found = {port: [frame for to, frame in out if to == port] for port in range(2)}
        for port, results in ring.results(serial).items():
            assert set(found[port]) == set(results)
            assert len(found[port]) <= PACKETS + gaps
    assert ring.accelerator.counters.dropped == {}


def test_before_the_very_first_message_packets_wait_too() -> None:
    ring = ring_of_ten()
    for rank in range(2):
        head, *rest = ring.message(rank, 0)
        ring.arrive(rank, *rest)
        ring.arrive(rank, head)
    assert ring.accelerator.counters.results_out == 2 * PACKETS


def test_messages_may_overtake_each_other_within_the_window() -> None:
    ring = ring_of_ten()
    heads = []
    for serial in (0, 1):
        head, *rest = ring.message(1, serial)
        heads.append(head)
        ring.arrive(1, *rest)
        ring.send(0, serial)
    assert counts(ring) == (18, 0, 18)
    ring.arrive(1, heads[1])
    assert counts(ring) == (18, 9, 9)
    sent = by_port(ring.arrive(1, heads[0]))
    assert sent == {port: ring.results(0)[port] + ring.results(1)[port] for port in (0, 1)}


@pytest.mark.parametrize("late", [-1, 0, MS])
@pytest.mark.parametrize(("selective", "wait"), [(False, WAIT_NS), (True, SELECTIVE_NS)])
def test_they_wait_for_a_bounded_time(selective: bool, wait: int, late: int) -> None:
    """On a selective ring for longer than first timers, since the first packet alone comes again."""
    waited, is_taken = wait + late, late < 0
    ring = SwitchedRing(2, message_packets=PACKETS, selective=selective)
    ring.send(0, 0)
    head, *rest = ring.message(1, 0)
    at(ring, 1, 5, *rest)
    sent = emitted(at(ring, 1, 5 + waited, head))
    assert len(sent) == (2 * PACKETS if is_taken else 2)
    assert counts(ring) == (9, 9 if is_taken else 0, 0)
    assert ring.accelerator.counters.dropped == ({} if is_taken else {NOT_SEEN: 9})


def test_what_came_later_waits_longer() -> None:
    ring = ring_of_ten()
    frames = ring.message(1, 0)
    at(ring, 1, 0, *frames[1:4])
    at(ring, 1, 5, *frames[4:6])
    at(ring, 0, WAIT_NS + 1)
    assert counts(ring) == (5, 0, 2)
    assert ring.accelerator.counters.dropped == {NOT_SEEN: 3}


@pytest.mark.parametrize(
    "bound", [{"early_packets_max": 4}, {"early_flow_packets_max": 4}, {"early_packets_max": 0}]
)
def test_they_are_bounded_in_number(bound: dict[str, int]) -> None:
    ring = ring_of_ten(**bound)
    room = next(iter(bound.values()))
    head, *rest = ring.message(1, 0)
    ring.arrive(1, *rest)
    assert counts(ring) == (room, 0, room)
    assert ring.accelerator.counters.dropped == {NOT_SEEN: 9 - room}
    ring.arrive_blocks(1, block(*rest[:5]))
    assert ring.accelerator.counters.dropped == {NOT_SEEN: 14 - room}
    ring.arrive(1, head)
    assert counts(ring) == (room, room, 0)


def test_the_bound_of_the_switch_is_that_of_all_its_connections() -> None:
    ring = ring_of_ten(early_packets_max=12)
    for rank in range(2):
        ring.arrive(rank, *ring.message(rank, 0)[1:])
    assert counts(ring) == (12, 0, 12)
    assert ring.accelerator.counters.dropped == {NOT_SEEN: 6}


def test_packets_of_no_message_to_come_do_not_wait() -> None:
    """Behind the newest message at most a window is to come; what is older than a window is over."""
    ring = ring_of_ten()
    for serial in range(6):
        ring.finish(serial)
    ahead = [ring.packet(1, serial, 1) for serial in (6, 7)]
    beyond = [ring.packet(1, serial, 1) for serial in (8, 30, 1, 0)]
    ring.arrive(1, *ahead, *beyond)
    assert counts(ring)[2] == 2
    assert ring.accelerator.counters.dropped == {NOT_SEEN: 4}


def test_what_no_message_can_have_any_more_is_dropped_when_others_open() -> None:
    """So a number never means another message, however narrow numbers are and however long one waits."""
    ring = SwitchedRing(2, psn_bits=5, psn0=0)
    late = ring.packet(1, 1, 2, packets=3, payload=bytes(64))
    ring.finish(0)
    ring.arrive(1, late)
    assert counts(ring)[2] == 1
    for serial in range(1, 9):  # message 1 has two packets, so what waits is of none
        ring.finish(serial, packets=2)
    assert counts(ring) == (1, 0, 0)
    assert ring.accelerator.counters.dropped == {NOT_SEEN: 1}


def test_a_packet_in_the_place_of_a_first_one_is_not_taken() -> None:
    """It would fault the ring, though nobody knows whose it is."""
    ring = SwitchedRing(2)
    ring.arrive(0, ring.packet(0, 0, 0, opcode=0x09))
    ring.send(0, 0, packets=1)
    assert by_port(ring.send(1, 0, packets=1)) == ring.results(0, packets=1)
    assert ring.accelerator.counters.dropped == {NOT_SEEN: 1}


@pytest.mark.parametrize("strange", ["port", "address"])
def test_what_waited_is_taken_only_from_where_its_rank_is(strange: str) -> None:
    """Before its first packet nobody knows where a rank is, and anybody's packets wait."""
    ring = ring_of_ten()
    ring.send(0, 0)
    head, *rest = ring.message(1, 0)
    forged = ring.packet(1, 0, 1, payload=bytes(64))
    if strange == "port":
        ring.arrive(2, forged)
        actions = ring.arrive(1, head)
    else:
        ring.arrive(1, tagged(forged, 5))
        actions = ring.arrive(1, head)
    assert [action.rule for action in others(actions) if isinstance(action, Blame)] == [
        "not from where its rank is"
    ]
    assert len(emitted(actions)) == 2
    assert by_port(ring.arrive(1, *rest)) == {port: found[1:] for port, found in ring.results(0).items()}


def test_of_another_address_nothing_waits() -> None:
    ring = ring_of_ten()
    forged = ring.packet(1, 0, 1)
    (blame,) = ring.arrive(1, forged[:6] + mac(9) + forged[12:])
    assert isinstance(blame, Blame)
    assert counts(ring) == (0, 0, 0)


def test_damaged_packets_and_those_of_other_kinds_do_not_wait() -> None:
    ring = ring_of_ten()
    frame = ring.packet(1, 0, 1)
    ring.arrive(1, frame[:-5] + bytes([frame[-5] ^ 1]) + frame[-4:])
    ring.arrive(1, ring.packet(1, 0, 1, opcode=0x04))
    assert counts(ring) == (0, 0, 0)


def test_a_port_may_use_its_memory_again_while_they_wait() -> None:
    ring = ring_of_ten()
    ring.send(0, 0)
    head, *rest = ring.message(1, 0)
    frames = block(*rest[:-1]).copy()
    ring.arrive_blocks(1, frames)
    frames[:] = 0xFF
    ring.arrive(1, rest[-1])
    assert by_port(ring.arrive(1, head)) == ring.results(0)


def test_they_wait_with_their_tags() -> None:
    ring = ring_of_ten()
    ring.arrive(0, *(tagged(frame, 7) for frame in ring.message(0, 0)))
    head, *rest = ring.message(1, 0)
    ring.arrive(1, *(tagged(frame, 0x2007) for frame in rest))
    sent = by_port(ring.arrive(1, tagged(head, 0x4007)))
    assert sent[1] == [tagged(frame, 7) for frame in ring.results(0)[1]]
    assert {frame[:14] + frame[16:] for frame in sent[0]} == {
        frame[:12] + b"\x81\0" + frame[12:] for frame in ring.results(0)[0]
    }


def test_those_of_a_ring_that_is_removed_are_dropped() -> None:
    ring = ring_of_ten()
    ring.arrive(1, *ring.message(1, 0)[1:])
    ring.accelerator.step(RemoveRing(7), Instant(0))
    assert counts(ring) == (9, 0, 0)
    assert ring.accelerator.counters.dropped == {NOT_SEEN: 9}


def test_those_of_a_ring_that_failed_fault_nobody_again() -> None:
    ring = ring_of_ten()
    ring.arrive(1, *ring.message(1, 0)[1:])
    ring.send(0, 0, 0)
    actions = others(ring.arrive(1, ring.packet(1, 0, 0, flags=0)))
    assert len(actions) == 1
    assert dropped(ring) == {"operations differ": 1, NOT_SEEN: 9}


def test_a_sender_that_went_back_is_not_past_what_had_waited() -> None:
    """Its first packet was lost and comes again: nothing tells it to go back once more."""
    ring = ring_of_ten()
    ring.send(0, 0)
    ring.send(0, 1)
    head, *rest = ring.message(1, 0)
    ring.arrive(1, *rest[:3], *rest[4:])
    ring.arrive(1, head)
    assert ring.accelerator.counters.gaps_signalled == 0
    assert len(by_port(ring.arrive(1, *rest[3:]))[0]) == 6


def test_at_every_switch_of_a_tree_they_wait() -> None:
    tree = SwitchedTree(FIGURE_5)
    for rank in tree.tree.ranks:
        head, *rest = tree.hosts.message(rank, 0)
        tree.from_host(rank, *rest, head)
    under_way = list(tree.under_way)
    tree.under_way.clear()
    for sent in [*under_way[1:], *under_way[:1]]:
        tree.under_way.append(sent)
    tree.settle()
    for rank in tree.tree.ranks:
        assert set(tree.got[rank]) == set(tree.results(0)[rank])
    assert tree.count("L1")["early_taken"] == 6
    assert tree.said == []


def test_the_view_says_how_many_wait() -> None:
    ring = ring_of_ten()
    ring.arrive(1, *ring.message(1, 0)[1:])
    assert ring.accelerator.view().waiting == 9
