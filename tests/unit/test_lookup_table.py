"""Flows of the connection lookup table alone: placing packets by PSN, at every edge of every message."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.switch.lookup_table import FIRST_SIGHTINGS, Flow, FlowRepair, LookupTable, MessageEntry
from inaproto.core.switch.ring_spec import FlowSpec

SPEC = FlowSpec(0, b"\1\1\1\1", b"\2\2\2\2", 17)
KNOWN = FlowSpec(0, b"\1\1\1\1", b"\2\2\2\2", 17, b"source", b"target")
MASK = 0xFF


def flow(*entries: MessageEntry, messages: int = 4, mask: int = MASK) -> Flow:
    made = LookupTable().add(SPEC, ring_id=1, messages=messages, psn_mask=mask)
    for entry in entries:
        assert made.open_message(entry)
    return made


def placed(made: Flow, psns: list[int]) -> dict[int, tuple[int, int]]:
    """Row -> (serial, offset); every row at most once."""
    found: dict[int, tuple[int, int]] = {}
    for entry, rows, offsets in made.locate(np.array(psns, np.int64)):
        all_rows = np.arange(len(psns))[rows]
        all_offsets = np.arange(entry.packets)[offsets]
        assert len(all_rows) == len(all_offsets) > 0
        for row, offset in zip(all_rows.tolist(), all_offsets.tolist(), strict=True):
            assert row not in found
            found[row] = (entry.serial, offset)
    return found


def expected(entries: list[MessageEntry], psns: list[int], mask: int = MASK) -> dict[int, tuple[int, int]]:
    """Row by row, by the definition."""
    found = {}
    for row, psn in enumerate(psns):
        for entry in entries:
            offset = (psn - entry.psn0) & mask
            if offset < entry.packets:
                found[row] = (entry.serial, offset)
    return found


THREE = [MessageEntry(0, 250, 4), MessageEntry(1, 254, 5), MessageEntry(2, 3, 2)]
"""Side by side around the wrap of 8-bit PSNs: 250-253, 254-2, 3-4."""


def test_the_newest_message_stays_the_newest_when_an_older_one_opens() -> None:
    """A switch that repairs says what is missing up to there (docs/protocol.md 6.14)."""
    made = flow()
    made.repair = FlowRepair(0)
    for entry, newest in zip((THREE[1], THREE[0], THREE[2]), (1, 1, 2), strict=True):
        assert made.open_message(entry)
        assert made.repair.newest == newest


@given(
    st.lists(st.integers(244, 264).map(lambda psn: psn & MASK), min_size=1, max_size=12), st.integers(0, 2)
)
def test_packets_in_any_order_are_placed_as_if_alone(psns: list[int], latest: int) -> None:
    made = flow(*THREE)
    made.latest = latest
    assert placed(made, psns) == expected(THREE, psns)


@given(st.integers(240, 270), st.integers(1, 12), st.integers(0, 3))
def test_runs_of_packets_are_placed_as_if_alone(first: int, n: int, latest: int) -> None:
    psns = [psn & MASK for psn in range(first, first + n)]
    made = flow(*THREE)
    made.latest = latest
    assert placed(made, psns) == expected(THREE, psns)


@pytest.mark.parametrize("psn", range(240, 270))
@pytest.mark.parametrize("latest", range(4))
def test_one_packet_is_found_whatever_was_hit_last(psn: int, latest: int) -> None:
    made = flow(*THREE)
    made.latest = latest
    found = made.find(psn & MASK)
    assert (found and (found[0].serial, found[1])) == expected(THREE, [psn & MASK]).get(0)


def test_a_packet_in_the_numbers_of_two_messages_is_placed_once() -> None:
    """Messages that claim each other's PSNs: the one that is remembered first has the packet."""
    made = flow(MessageEntry(0, 250, 4), MessageEntry(1, 252, 4))
    assert placed(made, [250, 252, 253, 254, 255]) == {0: (0, 0), 1: (0, 2), 2: (0, 3), 3: (1, 2), 4: (1, 3)}


def test_messages_come_in_the_order_of_their_first_packets() -> None:
    made = flow(*THREE)
    order = [entry.serial for entry, _, _ in made.locate(np.array([3, 250, 254, 4, 251], np.int64))]
    assert order == [2, 0, 1]


def test_a_message_whose_first_packet_was_lost_leaves_a_gap_that_hides_no_other() -> None:
    """Serial 1 is not remembered: its packets are placed nowhere, those of serial 2 are."""
    made = flow(THREE[0], THREE[2])
    assert placed(made, [253, 254, 2, 3, 4, 5]) == {0: (0, 3), 3: (2, 0), 4: (2, 1)}


@pytest.mark.parametrize(
    "psns",
    [
        [250, 252, 251, 253],
        [250, 250, 252, 253],
        [253, 252, 251, 250],
        [250, 251, 251, 253],
        [250, 252],
        [250, 253],
        [250, 252, 253],
        [250, 251, 253],
    ],
)
def test_rows_that_only_look_consecutive(psns: list[int]) -> None:
    made = flow(*THREE)
    assert placed(made, psns) == expected(THREE, psns)


def test_a_run_within_one_message_is_one_slice() -> None:
    """The quick way of the data path: no index arrays for what is consecutive, across the wrap too."""
    made = flow(*THREE)
    for psns, offset in (([251, 252], 1), ([254, 255, 0, 1, 2], 0), ([255, 0], 1), ([2], 4)):
        [(_, rows, offsets)] = made.locate(np.array(psns, np.int64))
        assert rows == slice(0, len(psns))
        assert offsets == slice(offset, offset + len(psns))


def test_a_first_packet_again_is_known_and_with_another_psn_it_is_refused() -> None:
    made = flow(THREE[0])
    assert made.open_message(THREE[0])
    assert not made.open_message(MessageEntry(0, 251, 4))
    assert not made.open_message(MessageEntry(0, 250, 5))
    assert made.entries[0] == THREE[0]
    assert made.open_message(MessageEntry(4, 20, 4)), "its place is that of serial 0, which is long done"
    assert made.find(250) is None


def test_where_a_rank_is() -> None:
    made = LookupTable().add(KNOWN, ring_id=1, messages=4, psn_mask=MASK)
    assert made.is_at(3, b"source"), "at any port while its own is not known"
    assert not made.is_at(3, b"other!")
    made.settle(3, b"source", b"target", 0)
    assert made.is_at(3, b"source")
    assert not made.is_at(3, b"other!")
    assert not made.is_at(2, b"source")


def test_packets_teach_no_address_that_is_known() -> None:
    made = LookupTable().add(KNOWN, ring_id=1, messages=4, psn_mask=MASK)
    made.settle(3, b"other!", b"others", 1)
    assert (made.src_mac, made.dst_mac, made.ingress) == (b"source", b"target", 3)
    assert made.is_at(3, b"source")
    assert not made.is_at(3, b"other!")


def test_first_packets_say_from_where_and_in_which_vlan_others_may_come() -> None:
    made = LookupTable().add(KNOWN, ring_id=1, messages=4, psn_mask=MASK)
    assert made.is_at(3, b"source", b"\x81\0\0\7"), "in any VLAN while its own is not known"
    made.show(b"router", b"beyond", 1, b"\x81\0\x20\7")
    made.settle(3, b"router", b"beyond", 1, b"\x81\0\x20\7")
    assert made.tag == b"\x81\0\x20\7"
    for source in (b"source", b"router"):
        assert made.is_at(3, source, b"\x81\0\0\7"), "the priority may be another"
        assert not made.is_at(3, source, b"\x81\0\0\6")
        assert not made.is_at(3, source)
    assert not made.is_at(3, b"other!", b"\x81\0\0\7")
    made.show(b"router", b"beyond", 2)
    assert made.is_at(3, b"router"), "in none"
    assert made.is_at(3, b"router", b"\x81\0\x60\0"), "that of a priority tag is none"


def test_results_follow_the_first_packets_of_two_messages() -> None:
    made = LookupTable().add(KNOWN, ring_id=1, messages=4, psn_mask=MASK)
    ways = [
        (b"router", b"beyond", 1),
        (b"router", b"beyond", 1),
        (b"other!", b"beyond", 2),
        (b"router", b"beyond", 3),
    ]
    for way in ways:
        made.show(*way)
        assert (made.src_mac, made.dst_mac, made.is_routed) == (b"source", b"target", False)
    made.show(b"router", b"beyond", 4)
    assert (made.src_mac, made.dst_mac, made.is_routed) == (b"router", b"beyond", True)
    made.show(b"source", b"target", 5)
    made.show(b"source", b"target", 6)
    assert (made.src_mac, made.dst_mac, made.is_routed) == (b"source", b"target", False)


def test_results_follow_a_first_packet_that_another_one_confirms() -> None:
    """A copy of a damaged packet confirms nothing, nor does what came by another way."""
    made = LookupTable().add(KNOWN, ring_id=1, messages=4, psn_mask=MASK)
    made.show(b"router", b"beyond", 1)
    for source, target, psn in (
        (b"router", b"beyond", 1),
        (b"router", b"other!", 2),
        (b"other!", b"beyond", 2),
    ):
        made.settle(3, source, target, psn)
        assert (made.src_mac, made.dst_mac, made.is_routed) == (b"source", b"target", False)
    made.settle(3, b"router", b"beyond", 2)
    assert (made.src_mac, made.dst_mac, made.is_routed) == (b"router", b"beyond", True)


def test_results_follow_a_first_packet_that_comes_often() -> None:
    """The only packet of a message, whose result does not come back: no other one comes."""
    made = LookupTable().add(KNOWN, ring_id=1, messages=4, psn_mask=MASK)
    for _ in range(FIRST_SIGHTINGS - 1):
        made.show(b"router", b"beyond", 1)
        assert (made.src_mac, made.dst_mac) == (b"source", b"target")
    made.show(b"other!", b"beyond", 1)
    for _ in range(FIRST_SIGHTINGS - 1):
        made.show(b"router", b"beyond", 1)
        assert (made.src_mac, made.dst_mac) == (b"source", b"target"), "not in a row"
    made.show(b"router", b"beyond", 1)
    assert (made.src_mac, made.dst_mac) == (b"router", b"beyond")


def test_what_comes_by_a_router_does_not_say_where_its_rank_is() -> None:
    made = LookupTable().add(KNOWN, ring_id=1, messages=4, psn_mask=MASK)
    told = [made.teaches]
    for way in ((b"router", b"beyond", 1), (b"source", b"target", 2)):
        made.show(*way)
        told.append(made.teaches)
    assert told == [True, False, True], "though it is not believed yet"


def test_four_addresses_and_vlans_of_first_packets_are_remembered() -> None:
    made = LookupTable().add(KNOWN, ring_id=1, messages=4, psn_mask=MASK)
    for number in range(5):
        made.show(b"other%d" % number, b"target", number, bytes([0x81, 0, 0, number + 1]))
    assert made.sources == (b"other1", b"other2", b"other3", b"other4")
    assert made.vlans == (2, 3, 4, 5)
    made.show(b"other1", b"target", 9, bytes([0x81, 0, 0, 2]))
    assert (made.sources[0], made.vlans[0]) == (b"other1", 2), "known already"


def test_where_no_address_is_known_the_port_alone_counts() -> None:
    made = flow()
    made.settle(3, b"first!", b"to one", 0)
    assert made.is_at(3, b"second")
    assert not made.is_at(4, b"first!")
    made.settle(3, b"second", b"to two", 1)
    assert (made.src_mac, made.dst_mac, made.ingress) == (b"second", b"to two", 3), "of the last packet"


def test_connections_come_and_go() -> None:
    table = LookupTable()
    made = table.add(SPEC, ring_id=5, messages=8, psn_mask=0xFFFFFF)
    assert (made.spec, made.ring_id, made.psn_mask, made.entries) == (SPEC, 5, 0xFFFFFF, [None] * 8)
    assert table.get(*SPEC.connection) is made
    assert SPEC.connection in table
    assert len(table) == 1
    table.remove(SPEC)
    table.remove(SPEC)
    assert table.get(*SPEC.connection) is None
    assert SPEC.connection not in table
    assert len(table) == 0


def test_a_connection_that_has_its_state_is_found_by_what_its_packets_show() -> None:
    table, made = LookupTable(), flow()
    table.put(made)
    assert table.get(*SPEC.connection) is made
    assert (SPEC.connection in table, len(table)) == (True, 1)


def test_a_rank_at_its_own_address_takes_no_place_of_a_router() -> None:
    """Its address counts in any case. Its first packets keep all others, whichever way takes them in."""
    own, target = b"\x02own..", b"\x02to..."
    flow = Flow(
        FlowSpec(0, bytes(4), bytes(4), 7, own, target), 0, 0xFF_FFFF, [None] * 4, src_mac=own, dst_mac=target
    )
    flow.show(own, target, 0)
    routers = [b"\x02rout%d" % number for number in range(4)]
    for psn, router in enumerate(routers, 1):
        flow.show(router, target, psn)
    assert flow.sources == tuple(routers)
    flow.show(own, target, 9)
    assert all(flow.is_at(0, address) for address in (own, *routers))
