"""Links of a host: what they hold of memory and NIC, where bytes lie, and who is told what."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from inaproto.core.host.link import Link, RingLink, TreeLink
from inaproto.core.host.operations import UP
from inaproto.core.rdma.verbs import QpAddress, QpAttributes, Segment
from inaproto.errors import LocalMisuse
from inaproto.wire.control_messages import IntoAddress
from inaproto.wire.ina_header import INA_HEADER_BYTES
from tests.unit.listing_nic import REGION_BYTES_MAX, ListingNic, Written, address, into_address, out_address

SLOTS, WINDOW, SLOT_BYTES, CHILDREN = 4, 3, 64, 2
ATTRIBUTES = QpAttributes(mtu=256)
SUCCESSOR, PREDECESSOR = into_address(7, 71), out_address(8, 81)
PARENT = into_address(7, 71, slots=WINDOW)
BELOW = [into_address(20 + i, i, va=0x50000 << i, rkey=30 + i, slots=WINDOW) for i in (0, 1)]
DIFFER = [{"slots": 5}, {"slot_bytes": 63}]


class Memory:
    """Gives memory, and knows how much."""

    def __init__(self) -> None:
        self.given: list[bytearray] = []

    def __call__(self, nbytes: int) -> memoryview:
        self.given.append(bytearray(nbytes))
        return memoryview(self.given[-1])

    def is_free(self) -> bool:
        """Nobody has a view of it: only then may it be resized."""
        for given in self.given:
            given.append(0)
        return True


def ring(nic: ListingNic, memory: Memory | None = None) -> RingLink:
    psns = iter((501, 502))
    allocate = memory or Memory()
    return RingLink(nic, slots=SLOTS, slot_bytes=SLOT_BYTES, allocate=allocate, first_psn=lambda: next(psns))


def tree(nic: ListingNic, memory: Memory | None = None, *, children: int = CHILDREN) -> TreeLink:
    psns = iter(range(501, 520))
    return TreeLink(
        nic,
        window=WINDOW,
        slot_bytes=SLOT_BYTES,
        children=children,
        allocate=memory or Memory(),
        first_psn=lambda: next(psns),
    )


def in_ring(nic: ListingNic) -> RingLink:
    link = ring(nic)
    link.connect(SUCCESSOR, PREDECESSOR, ATTRIBUTES)
    return link


def in_tree(nic: ListingNic) -> TreeLink:
    link = tree(nic)
    link.connect(PARENT, BELOW, ATTRIBUTES)
    return link


def header(number: int) -> bytes:
    return bytes([number]) * INA_HEADER_BYTES


def fill(nic: ListingNic, into: IntoAddress) -> None:
    """A peer writes all receive slots behind ``into``: byte b of slot s is 16 s + b // 40."""
    for slot in range(into.slots):
        data = bytes(16 * slot + at // INA_HEADER_BYTES for at in range(SLOT_BYTES))
        nic.write(into.rkey, into.va + slot * SLOT_BYTES, data)


def refused(text: str) -> pytest.RaisesExc[LocalMisuse]:
    return pytest.raises(LocalMisuse, match=f"^{re.escape(text)}$")


# --- what a link holds


@pytest.mark.parametrize(
    ("make", "slots", "areas", "receives"), [(ring, SLOTS, 1, 10), (tree, WINDOW, 3, 3 * 8)]
)
def test_a_link_has_slots_for_results_payloads_and_headers_and_gives_all_back_once(
    make: Callable[[ListingNic, Memory], Link], slots: int, areas: int, receives: int
) -> None:
    nic, memory = ListingNic(), Memory()
    link = make(nic, memory)
    received, staged, headers = nic.memory.values()
    assert (len(received), len(staged)) == (areas * slots * SLOT_BYTES, slots * SLOT_BYTES)
    assert len(headers) == areas * slots * INA_HEADER_BYTES
    assert [view.readonly for view in (received, staged, headers)] == [False, True, True]
    assert [len(given) for given in memory.given] == [len(staged) + len(headers)]
    assert (nic.qpns, link.qpns) == (list(link.qpns), (100, 101, 102)[: max(areas, 2)])
    assert (link.nic, link.slots, link.slot_bytes, link.is_open) == (nic, slots, SLOT_BYTES, True)
    assert link.work_requests_max == receives
    del received, staged, headers
    link.close()
    assert (nic.qpns, nic.memory, link.is_open) == ([], {}, False)
    link.close()
    assert memory.is_free()


@pytest.mark.parametrize("room", [{"qps_max": 1}, {"regions_max": 2}, {"regions_max": 1}, {"regions_max": 0}])
def test_a_link_that_could_not_be_made_holds_nothing(room: dict[str, int]) -> None:
    nic, memory = ListingNic(**room), Memory()
    with pytest.raises(LocalMisuse, match="no more"):
        ring(nic, memory)
    assert (nic.qpns, nic.memory) == ([], {})
    assert memory.is_free()


def test_memory_that_the_nic_still_reads_ends_with_the_nic_s_view() -> None:
    nic, memory = ListingNic(), Memory()
    link = ring(nic, memory)
    reading = struct.iter_unpack("B", nic.memory[1])
    link.close()
    assert (nic.qpns, nic.memory) == ([], {})
    with pytest.raises(BufferError):
        memory.is_free()
    assert len([*reading]) == SLOTS * SLOT_BYTES
    del link, reading
    assert memory.is_free()


# --- addresses


def test_a_ring_has_one_queue_pair_for_each_neighbour() -> None:
    nic = ListingNic()
    link = ring(nic)
    assert link.out == out_address(100, 501)
    assert link.into == into_address(101, 502, va=REGION_BYTES_MAX, rkey=1)
    assert link.below == ()
    assert link.edge_of(101) == UP


def test_a_tree_has_one_queue_pair_and_one_area_for_each_neighbour() -> None:
    nic = ListingNic()
    link = tree(nic)
    parent, *below = [
        into_address(100 + i, 501 + i, va=REGION_BYTES_MAX + i * WINDOW * SLOT_BYTES, rkey=1, slots=WINDOW)
        for i in range(3)
    ]
    assert (link.out, link.into, link.below) == (out_address(100, 501), parent, tuple(below))
    assert [link.edge_of(qpn) for qpn in link.qpns] == [UP, 0, 1]
    assert tree(ListingNic(), children=0).below == ()


# --- how it is connected


class _Selective(ListingNic):
    def create_qp(self, *, psn: int) -> QpAddress:
        return replace(super().create_qp(psn=psn), selective=True)


def test_peers_hear_which_ends_are_selective_and_the_nic_hears_it_of_them() -> None:
    links: list[Link] = [ring(_Selective()), tree(_Selective())]
    for link in links:
        assert link.out.selective
        assert all(into.selective for into in (link.into, *link.below))
    nic = ListingNic()
    ring(nic).connect(replace(SUCCESSOR, selective=True), PREDECESSOR, ATTRIBUTES)
    remotes = {qpn: said[0].selective for qpn, said in nic.told if isinstance(said, tuple)}
    assert remotes == {101: False, 100: True}


def test_a_ring_posts_its_receives_and_then_connects_to_its_predecessor_first() -> None:
    nic = ListingNic()
    link = ring(nic)
    assert link.connecting == []
    link.connect(SUCCESSOR, PREDECESSOR, ATTRIBUTES)
    fitting = ATTRIBUTES.for_messages(SLOTS // 2, SLOT_BYTES)
    connected = [(101, (address(8, 81), fitting)), (100, (address(7, 71), fitting))]
    assert nic.told == [*((101, receive) for receive in range(SLOTS + 2)), *connected]
    assert link.connecting == [101, 100]
    link.post_receives((77,))
    assert nic.told[-1] == (101, 77)


@pytest.mark.parametrize("has_parent", [True, False])
def test_a_tree_connects_to_each_neighbour_that_it_has_behind_the_receives(has_parent: bool) -> None:
    nic = ListingNic()
    link = tree(nic)
    assert link.connecting == []
    link.connect(PARENT if has_parent else None, BELOW, ATTRIBUTES)
    peers = {100: address(7, 71), 101: address(20, 0), 102: address(21, 1)}
    fitting = ATTRIBUTES.for_messages(WINDOW, SLOT_BYTES)
    expected: list[object] = []
    for qpn in link.qpns[not has_parent :]:
        expected += [*((qpn, receive) for receive in range(WINDOW + 2)), (qpn, (peers[qpn], fitting))]
    assert nic.told == expected
    assert link.connecting == list(link.qpns[not has_parent :])
    for edge, qpn in zip((UP, 0, 1), link.qpns, strict=True):
        link.post_receives((77,), edge)
        assert nic.told[-1] == (qpn, 77)


@pytest.mark.parametrize("differs", DIFFER)
def test_a_successor_with_other_slots_is_refused_and_nothing_is_begun(differs: dict[str, int]) -> None:
    nic = ListingNic()
    link = ring(nic)
    with refused("the successor's receive slots differ in number or size"):
        link.connect(into_address(7, 71, **differs), PREDECESSOR, ATTRIBUTES)
    with refused("a message before the queue pairs were connected"):
        link.post_message(1, 1, header(1), Segment(1, REGION_BYTES_MAX, 4))
    assert (nic.told, nic.sent(), link.connecting) == ([], [], [])


@pytest.mark.parametrize("differs", DIFFER)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_tree_refuses_neighbours_with_other_slots(place: int, differs: dict[str, int]) -> None:
    nic = ListingNic()
    link = tree(nic)
    parent, *children = [
        into_address(7, 71, **({"slots": WINDOW} | (differs if number == place else {})))
        for number in range(3)
    ]
    with refused("the receive slots of a host beside this one differ in number or size"):
        link.connect(parent, children, ATTRIBUTES)
    assert (nic.told, link.connecting) == ([], [])


@pytest.mark.parametrize("children", [BELOW[:1], [*BELOW, PARENT]])
def test_a_tree_refuses_more_or_fewer_children_than_it_was_made_for(children: Sequence[IntoAddress]) -> None:
    nic = ListingNic()
    link = tree(nic)
    with refused(f"{len(children)} hosts to gather from, and links to 2"):
        link.connect(PARENT, children, ATTRIBUTES)
    assert (nic.told, link.connecting) == ([], [])


# --- where bytes lie


def test_a_ring_writes_each_message_with_its_header_into_its_slot_at_the_successor() -> None:
    """Also when the transport sends all of them once more: what a header slot has is of its message."""
    nic, tensor = ListingNic(), bytes(range(200, 220))
    link = in_ring(nic)
    region = nic.register_memory(memoryview(bytearray(tensor)))
    for msg_id in range(4, 4 + SLOTS):
        payload = Segment(region.key, region.va + msg_id, 8)
        link.post_message(msg_id, msg_id % SLOTS, header(msg_id), payload)
    assert nic.sent() == [
        Written(100, at, 0x900000 + at % SLOTS * SLOT_BYTES, 9, at, (header(at), tensor[at : at + 8]))
        for at in range(4, 4 + SLOTS)
    ]


def test_a_ring_sends_what_its_slots_hold() -> None:
    nic = ListingNic()
    link = in_ring(nic)
    fill(nic, link.into)
    for slot in range(SLOTS):
        link.staged(slot, 24)[:] = bytes([100 + slot]) * 24
    link.post_staged(5, 1, header(5), 3, 20)
    link.post_received(6, 2, header(6), 3, 24)
    link.post_received(7, 3, header(7), 0, 1)
    sent = [(write.wr_id, write.remote_va - 0x900000, write.data) for write in nic.sent()]
    assert sent == [
        (5, 1 * SLOT_BYTES, (header(5), bytes([103]) * 20)),
        (6, 2 * SLOT_BYTES, (header(6), bytes([49]) * 24)),
        (7, 3 * SLOT_BYTES, (header(7), bytes([1]))),
    ]


def test_what_has_come_round_a_ring_is_a_header_and_a_result() -> None:
    nic = ListingNic()
    link = in_ring(nic)
    fill(nic, link.into)
    assert link.header(UP, 7, SLOT_BYTES) == header(3 * 16)
    assert link.header(UP, 6, 10) == header(2 * 16)[:10], "a message that is shorter than a header"
    assert bytes(link.result(2, 20)) == bytes([33]) * 20
    link.result(2, 20)[:] = bytes(20)
    assert bytes(link.result(2, 24)) == bytes(20) + bytes([33]) * 4


def test_a_tree_writes_up_and_down_with_a_header_slot_for_each_neighbour() -> None:
    """Of two slot numbers, a result's and that of what goes up, there is one slot."""
    nic = ListingNic()
    link = in_tree(nic)
    fill(nic, link.into)
    for slot in range(WINDOW):
        link.staged(2 * slot, 24)[:] = bytes([100 + slot]) * 24
    region = nic.register_memory(memoryview(bytearray(range(8))))
    for slot in (0, 2, 4):
        link.post_message(slot, slot, header(1 + slot), Segment(region.key, region.va + slot, 3))
        for child in (0, 1):
            link.post_down(child, 20 + slot, slot + 1, header(10 * (child + 1) + slot), slot + 1, 24)
    link.post_staged(6, 0, header(1), 4, 20)
    link.post_received(8, 2, header(3), 5, 24)
    expected = []
    for at, slot in enumerate((0, 2, 4)):
        there, result = at * SLOT_BYTES, bytes([16 * at + 1]) * 24
        own = header(1 + slot), bytes(range(slot, slot + 3))
        expected.append(Written(100, slot, 0x900000 + there, 9, slot, own))
        for child in (0, 1):
            va, rkey = (0x50000 << child) + there, 30 + child
            data = header(10 * (child + 1) + slot), result
            expected.append(Written(101 + child, 20 + slot, va, rkey, 20 + slot, data))
    expected.append(Written(100, 6, 0x900000, 9, 6, (header(1), bytes([102]) * 20)))
    expected.append(Written(100, 8, 0x900000 + SLOT_BYTES, 9, 8, (header(3), bytes([33]) * 24)))
    assert nic.sent() == expected
    assert [link.staged(slot, 1)[0] for slot in range(6)] == [100, 100, 101, 101, 102, 102]


def test_what_has_come_in_a_tree_is_apart_for_each_neighbour() -> None:
    nic = ListingNic()
    link = in_tree(nic)
    for number, into in enumerate((link.into, *link.below)):
        for slot in range(WINDOW):
            data = header(16 * number + slot) + bytes([100 + 16 * number + slot]) * 24
            nic.write(into.rkey, into.va + slot * SLOT_BYTES, data)
    for edge in (UP, 0, 1):
        for msg_id in range(2 * WINDOW, 4 * WINDOW):  # the second time round
            slot = msg_id % (2 * WINDOW) // 2
            assert link.header(edge, msg_id, SLOT_BYTES) == header(16 * (edge + 1) + slot)
    assert link.header(1, 2, 10) == header(2 * 16 + 1)[:10]
    for slot in range(2 * WINDOW):
        assert bytes(link.result(slot, 20)) == bytes([100 + slot // 2]) * 20
        assert bytes(link.came(0, slot, 20)) == bytes([116 + slot // 2]) * 20
        assert bytes(link.came(1, slot, 24)) == bytes([132 + slot // 2]) * 24


def test_nothing_goes_to_a_neighbour_that_is_not_there() -> None:
    nic = ListingNic()
    link = tree(nic)
    text = "a message before the queue pairs were connected, or up from the root"
    for _ in range(2):
        with refused(text):
            link.post_staged(0, 0, header(1), 0, 8)
        link.connect(None, BELOW, ATTRIBUTES)
    link.post_down(0, 1, 1, header(1), 1, 8)
    assert len(nic.sent()) == 1
