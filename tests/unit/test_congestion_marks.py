"""Congestion marks (ECN) and notifications (CNP) on their way through switches: none is lost or invented."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from inaproto.wire.icrc import seal, verify
from inaproto.wire.ipv4 import internet_checksum
from tests.accelerators import software_only
from tests.unit.switched_ring import SwitchedRing, block, by_port, emitted, mac
from tests.unit.switched_tree import SwitchedTree
from tests.unit.test_accelerator_ipv6 import over_ipv6, six

PACKETS = 10
ECT, MARK = 0x6A, 0x6B
"""DSCP 26, capable of ECN; and with a mark."""
CNP = 0x81


def with_tos(frame: bytes, tos: int) -> bytes:
    """As a switch changes it on the way: with the IP checksum that belongs to it."""
    changed = bytearray(frame)
    changed[15] = tos
    changed[24:26] = bytes(2)
    changed[24:26] = internet_checksum(bytes(changed[14:34])).to_bytes(2, "big")
    return bytes(changed)


def marks(frames: Iterable[bytes]) -> list[int]:
    """Which of a message's packets have a mark; each is whole, and its IP checksum right."""
    found = []
    for number, frame in enumerate(frames):
        assert verify(frame)
        assert internet_checksum(frame[14:34]) == 0
        if frame[15] == MARK:
            found.append(number)
    return found


def sent(frames: list[bytes], *marked: int) -> list[bytes]:
    return [with_tos(frame, MARK if number in marked else ECT) for number, frame in enumerate(frames)]


@pytest.mark.parametrize("kernels", ["numpy", "compiled"])
@pytest.mark.parametrize("together", [1, 64])
def test_one_switch_keeps_the_marks_of_each_connection_on_it(
    use_kernels: Callable[[str], None], together: int, kernels: str
) -> None:
    """Who is told to send slower is who sent what was marked, as with no switch between."""
    use_kernels(kernels)
    ring = SwitchedRing(3, message_packets=PACKETS)
    out: dict[int, list[bytes]] = {}
    for rank, marked in enumerate([(), (0, 3, 4), (9,)]):
        frames = sent(ring.message(rank, 0), *marked)
        blocks = [frames[at : at + 1] for at in range(PACKETS)]
        if together > 1:
            blocks = [frames[:1], frames[1:-1], frames[-1:]]
        out |= by_port(ring.arrive_blocks(rank, *(block(*group) for group in blocks)))
    assert {port: marks(frames) for port, frames in out.items()} == {1: [], 2: [0, 3, 4], 0: [9]}
    assert {frame[15] >> 2 for frames in out.values() for frame in frames} == {ECT >> 2}


KEEPS = pytest.mark.parametrize("selective", [False, True])
"""Whether the NICs keep what comes behind a gap, so that results leave one by one."""


@software_only("marks do not go from switch to switch")
@KEEPS
@pytest.mark.parametrize("marked", [(3,), (0,), (9, 2)])
@pytest.mark.parametrize("rank", [0, 1])
def test_marks_of_one_input_are_on_all_results_of_a_tree(
    rank: int, marked: tuple[int, ...], *, selective: bool
) -> None:
    """Rank 1's results are made where its packets never came; rank 0's where they did."""
    tree = SwitchedTree(message_packets=PACKETS, selective=selective)
    for other in tree.tree.ranks:
        tree.from_host(other, *sent(tree.hosts.message(other, 0), *(marked if other == rank else ())))
    tree.settle()
    assert {host: marks(frames) for host, frames in tree.got.items()} == dict.fromkeys(
        range(4), sorted(marked)
    )
    assert {frame[15] | 1 for frames in tree.got.values() for frame in frames} == {MARK}


@software_only("marks do not go from switch to switch")
@KEEPS
def test_what_is_marked_on_the_way_down_is_marked_below(*, selective: bool) -> None:
    tree = SwitchedTree(message_packets=PACKETS, selective=selective)
    for rank in tree.tree.ranks:
        tree.from_host(rank, *sent(tree.hosts.message(rank, 0)))
    while tree.under_way:
        one = tree.under_way.popleft()
        frame, is_down = one.frame, (one.sender, one.receiver) == ("S", "L1")
        if is_down and one.note is None and one.packet.bth.psn == tree.psn_at(5):
            frame = with_tos(frame, 3)
        tree.arrive(one.receiver, tree.ports[one.receiver][one.sender], frame)
    assert {host: marks(frames) for host, frames in tree.got.items()} == {0: [5], 1: [5], 2: [], 3: []}


@software_only("marks do not go from switch to switch")
@KEEPS
@pytest.mark.parametrize("again", [False, True], ids=["", "and comes twice"])
def test_what_a_trunk_marks_on_the_way_up_is_marked_for_all(*, selective: bool, again: bool) -> None:
    """The sum is in every result, whoever marked it: the switch that made it, a host, or the link."""
    tree = SwitchedTree(message_packets=PACKETS, selective=selective)
    for rank in tree.tree.ranks:
        tree.from_host(rank, *sent(tree.hosts.message(rank, 0)))
    while tree.under_way:
        one = tree.under_way.popleft()
        frame, is_up = one.frame, (one.sender, one.receiver) == ("L1", "S")
        is_it = is_up and one.note is None and one.packet.bth.psn == tree.psn_at(5)
        if is_it:
            frame = with_tos(frame, 3)
        for _ in range(1 + (is_it and again)):
            tree.arrive(one.receiver, tree.ports[one.receiver][one.sender], frame)
    assert {host: marks(frames) for host, frames in tree.got.items()} == {host: [5] for host in range(4)}
    assert all(frame[15] & ~1 == ECT & ~1 for frames in tree.got.values() for frame in frames)


@software_only("marks do not go from switch to switch")
@KEEPS
@pytest.mark.parametrize("marked", [False, True])
def test_results_have_the_class_of_the_packets_in_whose_place_they_come(
    *, selective: bool, marked: bool
) -> None:
    """DSCP is kept over several switches, whatever the other hosts have, and a mark changes none of it."""
    tree = SwitchedTree(message_packets=PACKETS, selective=selective)
    for rank in tree.tree.ranks:
        tos = (26 + rank) << 2 | 2
        frames = [with_tos(frame, tos) for frame in tree.hosts.message(rank, 0)]
        if marked and rank == 0:
            frames[4] = with_tos(frames[4], tos | 1)
        tree.from_host(rank, *frames)
    tree.settle()
    for host, frames in tree.got.items():
        tos = (26 + (host - 1) % 4) << 2 | 2
        expected = [tos | (marked and number == 4) for number in range(PACKETS)]
        assert [frame[15] for frame in frames] == expected, host


@software_only("marks do not go from switch to switch")
@KEEPS
@pytest.mark.parametrize("incapable", [{1, 2}, {0}, {3}, {0, 1}, {2, 3}, {0, 1, 2}, {1, 2, 3}])
def test_who_is_not_capable_of_ecn_gets_no_mark(incapable: set[int], *, selective: bool) -> None:
    """Between switches a mark goes on whatever a host says: others have to hear of it."""
    tree = SwitchedTree(message_packets=PACKETS, selective=selective)
    for rank in tree.tree.ranks:
        frames = tree.hosts.message(rank, 0)
        tree.from_host(rank, *(frames if rank in incapable else sent(frames, 4)))
    tree.settle()
    deaf = {(rank + 1) % 4 for rank in incapable}
    assert {host: marks(frames) for host, frames in tree.got.items()} == {
        host: [] if host in deaf else [4] for host in range(4)
    }
    assert {frame[15] for host in deaf for frame in tree.got[host]} == {0}


@software_only("marks do not go from switch to switch")
@KEEPS
def test_sums_have_the_marks_of_what_is_in_them(*, selective: bool) -> None:
    tree = SwitchedTree(message_packets=PACKETS, selective=selective)
    for rank in tree.tree.ranks:
        tree.from_host(rank, *sent(tree.hosts.message(rank, 0), *((7,) if rank == 3 else ())))
    tree.settle()
    for sender, receiver, marked in (("L1", "S", []), ("L2", "S", [7]), ("S", "L1", [7]), ("S", "L2", [7])):
        data = [one.frame for one in tree.between(sender, receiver) if one.note is None]
        assert [number for number, frame in enumerate(data) if frame[15] & 3 == 3] == marked
        assert all(internet_checksum(frame[14:34]) == 0 and verify(frame) for frame in data)


def cnp(ring: SwitchedRing, rank: int) -> bytes:
    """From the receiver of a rank's results to the rank: of its own queue pair, with 16 bytes that are 0."""
    frame = bytearray(ring.ack(rank))
    frame[42], frame[46] = CNP, 0x40
    body = bytes(frame[:54]) + bytes(16) + bytes(4)
    whole = bytearray(body)
    whole[16:18] = (len(whole) - 14).to_bytes(2, "big")
    whole[38:40] = (len(whole) - 34).to_bytes(2, "big")
    whole = bytearray(with_tos(bytes(whole), 0xC0))
    seal(whole)
    return bytes(whole)


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("rows", [1, 3])
def test_a_notification_goes_to_whom_it_belongs(rank: int, rows: int) -> None:
    ring = SwitchedRing(3, message_packets=PACKETS)
    frame, receiver = cnp(ring, rank), (rank + 1) % 3
    assert emitted(ring.arrive_blocks(receiver, block(*[frame] * rows))) == [(rank, frame)] * rows
    ring.finish(0)
    assert emitted(ring.arrive(receiver, frame)) == [(rank, frame)]
    assert ring.accelerator.counters.dropped == {}


def test_a_notification_goes_through_a_tree() -> None:
    tree = SwitchedTree(message_packets=PACKETS)
    tree.finish(0)
    tree.forget()
    for rank in tree.tree.ranks:
        tree.from_host((rank + 1) % 4, cnp(tree.hosts, rank))
    tree.settle()
    assert tree.got == {rank: [cnp(tree.hosts, rank)] for rank in tree.tree.ranks}


@software_only("its hosts have IPv4 addresses")
def test_a_notification_over_ipv6_goes_to_whom_it_belongs() -> None:
    ring = six()
    ring.finish(0)
    frame = over_ipv6(cnp(ring, 0), tag=b"\x81\0\x60\x64")
    assert frame[:6] == mac(0)
    assert emitted(ring.arrive(1, frame)) == [(0, frame)]


@software_only("its hosts have IPv4 addresses")
def test_marks_over_ipv6_are_those_of_the_connection() -> None:
    ring = six()
    out: dict[int, list[bytes]] = {}
    for rank in range(2):
        frames = [over_ipv6(frame) for frame in sent(ring.message(rank, 0), *((4,) if rank else ()))]
        out |= by_port(ring.arrive(rank, *frames))
    classes = {port: [int.from_bytes(frame[14:16], "big") >> 4 & 0xFF for frame in out[port]] for port in out}
    assert classes == {1: [ECT] * PACKETS, 0: [MARK if at == 4 else ECT for at in range(PACKETS)]}
