"""Ingest: what exactly is said of packets that are refused or fault the ring, and how each is counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.switch.accelerator import Action, RingFault
from inaproto.core.switch.ingest import foreign_field
from inaproto.core.switch.region import consecutive
from inaproto.errors import Blame
from inaproto.wire import icrc
from inaproto.wire.ina_header import FLAG_LAST, FLAG_RESULT, Dtype, Op
from inaproto.wire.roce import RocePacket
from tests.unit.switched_ring import (
    MTU,
    SwitchedRing,
    block,
    by_port,
    dropped,
    emitted,
    mac,
    nameless,
    others,
    ring_of,
)

PEER = "10.0.0.0 to queue pair 513"
"""Rank 0's connection."""


# -- refusals, by way of single packets and of blocks


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"key": 0xBAD}, "wrong key", "ring 7, rank 0"),
    ({"ring_id": 8}, "wrong ring", "ring 7, rank 0: 8, expected 7"),
    ({"claimed_rank": 2}, "wrong rank", "ring 7, rank 0: 2, expected 0"),
    ({"epoch": 4}, "wrong epoch", "ring 7, rank 0: 4, expected 3"),
    ({"ring_size": 4}, "wrong ring size", "ring 7, rank 0: 4, expected 3"),
    ({"msg_len": 5}, "message too long", "5 packets, at most 4"),
    (
        {"flags": FLAG_LAST | FLAG_RESULT},
        "no INA header",
        "a result, where a rank's own payload must be",
    ),
    (
        {"payload": bytes(MTU)},
        "no INA header",
        "INA header: magic is 0x00000000, not 0x494e4150 (at byte 0)",
    ),
]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("changes", "rule", "evidence"), REFUSALS)
def test_a_first_packet_that_is_refused(changes: dict[str, Any], rule: str, evidence: str, rows: int) -> None:
    ring = SwitchedRing(3)
    blame = Blame(PEER, rule, evidence)
    frames = [ring.packet(0, 0, 0, **changes)] * rows
    assert ring.arrive_blocks(0, block(*frames)) == [blame] * rows
    assert dropped(ring) == {rule: rows}
    assert by_port(ring.finish(0)) == ring.results(0), "it left nothing behind"


@pytest.mark.parametrize("done", [0, 5])
def test_a_message_beyond_the_window_says_how_far(done: int) -> None:
    ring = SwitchedRing(3)
    for serial in range(done):
        ring.finish(serial)
    blame = Blame(PEER, "window passed", f"message {done + 2}, 2 past the first unfinished one")
    assert ring.send(0, done + 2, 0) == [blame]
    assert others(ring.send(0, done + 1, 0)) == [], "the last one within it"


def test_a_message_with_another_psn_says_which() -> None:
    ring = SwitchedRing(3)
    ring.send(0, 0)
    assert ring.arrive(0, ring.packet(0, 0, 0, psn=77)) == [
        Blame(PEER, "message has another PSN", "message 0")
    ]


@pytest.mark.parametrize("rows", [1, 3])
def test_requests_of_another_kind_are_refused_each(rows: int) -> None:
    ring = SwitchedRing(3, message_packets=9)
    frames = [ring.packet(0, 0, 1 + row, opcode=0x04) for row in range(rows)]
    blame = Blame(PEER, "not an RDMA WRITE", "opcode 0x04")
    assert ring.arrive_blocks(0, block(*frames)) == [blame]
    assert dropped(ring) == {"not an RDMA WRITE": rows}


@pytest.mark.parametrize("offsets", [(1,), (1, 2)])
def test_packets_from_elsewhere_say_from_where(offsets: tuple[int, ...]) -> None:
    ring = SwitchedRing(3)
    ring.send(0, 0, 0)
    frames = [ring.packet(0, 0, offset) for offset in offsets]
    blame = Blame(PEER, "not from where its rank is", "port 2, address 02:00:00:00:00:00")
    assert ring.arrive_blocks(2, block(*frames)) == [blame]
    assert dropped(ring) == {"not from where its rank is": len(offsets)}


def test_packets_of_an_unknown_message_beside_those_of_a_known_one() -> None:
    """Only those that find no place are dropped."""
    ring = SwitchedRing(2)
    ring.send(0, 0, 0)
    frames = [ring.packet(0, serial, offset) for serial in (0, 1) for offset in (1, 2)]
    assert ring.arrive_blocks(0, block(*frames)) == []
    assert dropped(ring) == {"first packet of the message not seen": 2}
    assert ring.accelerator.view().counters.aggregated_in == 3


def test_old_packets_are_counted_each() -> None:
    ring = SwitchedRing(2)
    for serial in range(5):
        ring.finish(serial)
    ring.send(0, 5, 0)
    before = ring.accelerator.view().counters.aggregated_in
    assert ring.send(0, 1, 0) == []
    assert dropped(ring) == {"older than the tenant": 1}
    assert ring.accelerator.view().counters.aggregated_in == before


# -- faults


def fault(actions: list[Action]) -> RingFault:
    assert emitted(actions) == []
    [found] = others(actions)
    assert isinstance(found, RingFault)
    return found


@pytest.mark.parametrize(
    ("offset", "changes", "evidence"),
    [
        (1, {"payload": bytes(60)}, "60 payload bytes in a packet that is not the last; the MTU is 64"),
        (1, {"opcode": 0x09}, "opcode 0x09 at packets 1 to 1 of 4"),
        (3, {"opcode": 0x07}, "opcode 0x07 at packets 3 to 3 of 4"),
        (3, {"payload": bytes(68)}, "68 payload bytes; the MTU is 64"),
        (3, {"payload": b""}, "0 payload bytes; the MTU is 64"),
        (3, {"payload": bytes(6)}, "6 bytes are no whole number of I32 elements"),
    ],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_layout_that_cannot_be(offset: int, changes: dict[str, Any], evidence: str, rows: int) -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0)
    ring.send(1, 0, 0)
    before = ring.accelerator.view().counters.aggregated_in
    frames = [ring.packet(1, 0, offset, **changes)] * rows
    assert fault(ring.arrive_blocks(1, block(*frames))) == RingFault(7, 1, "packet layout", evidence)
    second = {"ring failed": 1} if rows == 2 else {}  # what comes twice is no vector
    assert dropped(ring) == {"layout": 1} | second
    assert ring.accelerator.view().counters.aggregated_in == before, "it is not stored"


def test_last_packets_that_differ_say_how() -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0, op_index=5)
    assert fault(ring.send(1, 0, last_bytes=60, op_index=5)) == RingFault(
        7,
        1,
        "operations differ",
        "last packet of operation 5 has 60 bytes, another rank's 64",
    )
    assert dropped(ring) == {"layout": 1}


@pytest.mark.parametrize(
    ("changes", "other"),
    [
        ({}, "operation 0 sum of i32, 4 packets (its last), digest of type, operation and shape 0x5151"),
        (
            {"op_index": 9, "dtype": Dtype.F32, "op": Op.MAX, "flags": 0, "signature": 0xAB},
            "operation 9 max of f32, 4 packets, digest of type, operation and shape 0x00ab",
        ),
    ],
)
def test_operations_that_differ_are_described_side_by_side(changes: dict[str, Any], other: str) -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0, signature=0x1)
    mine = "operation 0 sum of i32, 4 packets (its last), digest of type, operation and shape 0x0001"
    assert fault(ring.send(1, 0, 0, **changes)) == RingFault(
        7, 1, "operations differ", f"rank 1 sent {other}; rank 0 sent {mine}"
    )
    assert dropped(ring) == {"operations differ": 1}


def test_a_failed_ring_drops_everything_under_one_rule() -> None:
    ring = SwitchedRing(2, message_packets=8)
    ring.finish(0)
    ring.send(0, 1)
    ring.send(1, 1, 0, flags=0)
    before = dropped(ring).get("ring failed", 0)
    first, *middle, last = ring.message(0, 2)
    assert ring.arrive_blocks(0, block(first), block(*middle), block(last)) == []
    assert dropped(ring)["ring failed"] - before == 8


# -- the quick ways


def quick_and_general(ring: SwitchedRing, rank: int, serial: int, *, alone: bool) -> list[Action]:
    first, *middle, last = ring.message(rank, serial)
    blocks = [block(frame) for frame in middle] if alone else [block(*middle)]
    return ring.arrive_blocks(rank, block(first), *blocks, block(last))


@pytest.mark.parametrize("packets", [3, 4, 9])
@pytest.mark.parametrize("alone", [True, False])
def test_counters_of_the_quick_ways(packets: int, alone: bool) -> None:
    ring = SwitchedRing(2, message_packets=packets)
    for serial in range(6):
        quick_and_general(ring, 0, serial, alone=alone)
        assert by_port(quick_and_general(ring, 1, serial, alone=alone)) == ring.results(serial)
    counters = ring.accelerator.view().counters
    assert counters.aggregated_in == counters.results_out == 6 * 2 * packets
    assert counters.dropped == {}


def test_a_rank_that_moved_is_found_where_it_is_by_blocks_too() -> None:
    ring = SwitchedRing(2, message_packets=6)
    ring.finish(0)
    ring.send(0, 1)
    first, *middle, last = ring.message(1, 1)
    sent = by_port(ring.arrive_blocks(2, block(first), block(*middle), block(last)))
    assert [len(sent[port]) for port in sorted(sent)] == [6, 6]
    first, *middle, last = ring.message(1, 2)
    ring.send(0, 2)
    sent = by_port(ring.arrive_blocks(2, block(first), block(*middle), block(last)))
    assert sum(map(len, sent.values())) == 12
    assert dropped(ring) == {}


def known_by_blocks(**changes: Any) -> SwitchedRing:
    """Two ranks whose middle packets have come in blocks, so that their headers are known."""
    ring = SwitchedRing(2, message_packets=6, **changes)
    for rank in (0, 1):
        quick_and_general(ring, rank, 0, alone=False)
    return ring


def middle_block(ring: SwitchedRing, rank: int, serial: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return block(*ring.message(rank, serial)[1:-1])


@pytest.mark.parametrize("wrong", [{1}, {2}, {4}, {1, 4}, {1, 2, 3, 4}])
def test_damage_within_a_block_costs_only_what_is_damaged(wrong: set[int]) -> None:
    ring = known_by_blocks()
    ring.send(0, 1)
    ring.send(1, 1, 0)
    frames = []
    for offset in (1, 2, 3, 4):
        frame = bytearray(ring.packet(1, 1, offset))
        frame[60] ^= offset in wrong
        frames.append(bytes(frame))
    before = ring.accelerator.view().counters.aggregated_in
    now = by_port(ring.arrive_blocks(1, block(*frames)))
    assert now.get(1, []) == ring.results(1, *range(1, min(wrong)))[1][: min(wrong) - 1], "at once"
    assert dropped(ring) == {"wrong ICRC": len(wrong)}
    assert ring.accelerator.view().counters.aggregated_in - before == 4 - len(wrong)
    ring.send(1, 1, 5)
    sent: dict[int, list[bytes]] = {}
    for offset in sorted(wrong):
        for port, got in by_port(ring.send(1, 1, offset)).items():
            sent.setdefault(port, []).extend(got)
    assert sent[1] == ring.results(1, *range(min(wrong), 6))[1]


@pytest.mark.parametrize("elsewhere", ["port", "address"])
def test_a_block_from_elsewhere_is_refused_though_its_headers_are_known(elsewhere: str) -> None:
    ring = known_by_blocks()
    ring.send(0, 1)
    ring.send(1, 1, 0)
    frames = ring.message(1, 1)[1:-1]
    if elsewhere == "address":
        frames = [frame[:6] + mac(9) + frame[12:] for frame in frames]
    port, end = (2, "01") if elsewhere == "port" else (1, "09")
    evidence = f"port {port}, address 02:00:00:00:00:{end}"
    assert ring.arrive_blocks(port, block(*frames)) == [
        Blame("10.0.0.1 to queue pair 512", "not from where its rank is", evidence)
    ]
    assert len(emitted(ring.arrive_blocks(1, middle_block(ring, 1, 1)))) == 8


@pytest.mark.parametrize("alone", [True, False])
def test_middle_packets_older_than_the_tenant_are_dropped(alone: bool) -> None:
    """Rank 1 comes with packets of message 0 when rank 0 has opened message 4 in its place."""
    ring = known_by_blocks()
    for serial in (1, 2, 3):
        ring.finish(serial)
    ring.send(0, 4)
    before = ring.accelerator.view().counters.aggregated_in
    frames = ring.message(1, 0)[1:-1]
    blocks = [block(frame) for frame in frames] if alone else [block(*frames)]
    assert ring.arrive_blocks(1, *blocks) == []
    assert dropped(ring) == {"older than the tenant": 4}
    assert ring.accelerator.view().counters.aggregated_in == before
    assert by_port(ring.send(1, 4)) == ring.results(4)


def test_a_block_over_two_messages_is_placed_whole() -> None:
    ring = known_by_blocks()
    for rank in (0, 1):
        for serial in (1, 2):
            ring.send(rank, serial, 0, 5)
    frames = [frame for serial in (1, 2) for frame in ring.message(0, serial)[1:-1]]
    before = ring.accelerator.view().counters.aggregated_in
    ring.arrive_blocks(0, block(*frames))
    assert ring.accelerator.view().counters.aggregated_in - before == 8
    assert dropped(ring) == {}


@pytest.mark.parametrize(("kernels", "taken"), [("numpy", 0), ("compiled", 1)])
def test_a_block_that_reaches_the_first_or_the_last_place_is_no_block_of_middles(
    kernels: str, taken: int, use_kernels: Callable[[str], None]
) -> None:
    """Kernels take what is right before it, packet by packet."""
    use_kernels(kernels)
    for places in ((0, 1), (4, 5)):
        ring = known_by_blocks()
        ring.send(0, 1)
        ring.send(1, 1, 0)
        frames = [ring.packet(1, 1, 1, psn=(ring.psn0 + 6 + place) & 0xFF_FFFF) for place in places]
        actions = ring.arrive_blocks(1, block(*frames))
        begin = places[0] + (taken if places[0] else 0)
        evidence = f"opcode 0x07 at packets {begin} to {places[1]} of 6"
        assert fault(actions) == RingFault(7, 1, "packet layout", evidence)


@pytest.mark.parametrize(
    ("offset", "changes"),
    [
        (3, {"opcode": 0x07}),
        (3, {"opcode": 0x08, "payload": bytes(68)}),
        (3, {"payload": b""}),
        (3, {"payload": bytes(6)}),
        (2, {"opcode": 0x09}),
        (2, {"opcode": 0x08}),
        (1, {"opcode": 0x08, "payload": bytes(60)}),
        (2, {"payload": bytes(60)}),
    ],
)
def test_the_first_rank_that_comes_sets_no_layout_that_cannot_be(
    offset: int, changes: dict[str, Any]
) -> None:
    """Nobody else has sent a last packet: it is measured by the rules, not by another rank's."""
    ring = SwitchedRing(2)
    ring.send(0, 0, 0)
    found = fault(ring.arrive(0, ring.packet(0, 0, offset, **changes)))
    assert (found.rank, found.rule) == (0, "packet layout")
    assert dropped(ring) == {"layout": 1}


@pytest.mark.parametrize(
    ("nbytes", "pad"),
    [(nbytes, pad) for nbytes in (58, 60, 62, 64) for pad in range(4) if pad != -nbytes % 4],
)
def test_a_pad_that_does_not_fit_sets_no_layout(nbytes: int, pad: int) -> None:
    """Payload and pad together are a multiple of 4 bytes, the pad being the least that makes it so."""
    ring = SwitchedRing(2)
    layout: dict[str, Any] = {"last_bytes": 60, "dtype": Dtype.F16}
    whole = ring.packet(0, 0, 3, **layout)
    frame = bytearray(whole[:-64] + bytes(nbytes + pad) + whole[-4:])
    frame[43] = pad << 4
    for at in (16, 38):  # IP and UDP length
        length = int.from_bytes(frame[at : at + 2], "big") - 60 + nbytes + pad
        frame[at : at + 2] = length.to_bytes(2, "big")
    icrc.seal(frame)
    ring.send(0, 0, 0, **layout)
    assert fault(ring.arrive(0, bytes(frame))).evidence == f"{pad} pad bytes behind {nbytes}"


@pytest.mark.parametrize("opcode", [0x08, 0x09])
def test_a_message_of_one_packet_is_not_ended_by_a_last_one(opcode: int) -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0, packets=1)
    harmed = bytearray(ring.packet(1, 0, 0, packets=1))
    harmed[-1] ^= 1
    assert ring.arrive(1, bytes(harmed)) == []
    assert emitted(ring.arrive(1, ring.packet(1, 0, 0, packets=1, opcode=opcode))) == []
    assert by_port(ring.send(1, 0, packets=1)) == ring.results(0, packets=1)


@pytest.mark.parametrize("msg_id", [0x0100_0000, 0x8000_0000, 0xFF00_0001, 0xFFFF_FFFE, 0xFFFF_FFFF])
def test_every_bit_of_a_message_id_counts(msg_id: int) -> None:
    ring = SwitchedRing(3)
    ring.arrive(0, ring.packet(0, 0, 0, msg_id=msg_id))
    assert list(dropped(ring)) in (["window passed"], ["older than the tenant"])
    assert by_port(ring.finish(0)) == ring.results(0)


@pytest.mark.parametrize("claimed", [1, 2, 0x0100])
def test_a_header_of_another_rank_is_refused_though_all_else_agrees(claimed: int) -> None:
    """The message is open: what its first rank sent is compared without the rank."""
    ring = SwitchedRing(3)
    ring.send(1, 0)
    own = RocePacket.decode_frame(ring.packet(0, 0, 0))
    payload = own.payload[:24] + claimed.to_bytes(2, "big") + own.payload[26:]
    [blame] = ring.arrive(0, dataclasses.replace(own, payload=payload).encode_frame())
    assert isinstance(blame, Blame)
    assert blame.rule == ("wrong rank" if claimed < 3 else "no INA header")
    assert ring.accelerator.view().counters.aggregated_in == 4


@pytest.mark.parametrize("at", [at for at in range(40) if at not in {23, 24, 25}])
def test_every_byte_of_a_first_packets_header_must_agree(at: int) -> None:
    """But for the rank, and the last byte of the message id, which names another message of the window."""
    ring = SwitchedRing(3)
    ring.send(1, 0)
    own = RocePacket.decode_frame(ring.packet(0, 0, 0))
    payload = own.payload[:at] + bytes([own.payload[at] ^ 1]) + own.payload[at + 1 :]
    actions = ring.arrive(0, dataclasses.replace(own, payload=payload).encode_frame())
    assert len(actions) == 1
    assert isinstance(actions[0], Blame | RingFault)
    assert ring.accelerator.view().counters.aggregated_in == 4


def test_only_middle_packets_are_known_by_their_headers() -> None:
    """A last packet came by the general way before, as a resend; two in one block are no middles for that."""
    ring = SwitchedRing(2, message_packets=6)
    ring.finish(0, immediate=False)
    ring.send(0, 0, 5, immediate=False)
    ring.send(1, 1, immediate=False)
    ring.send(0, 1, 0, immediate=False)
    frames = [ring.packet(0, 1, offset, opcode=0x08) for offset in (1, 2)]
    assert fault(ring.arrive_blocks(0, block(*frames))).evidence == "opcode 0x08 at packets 1 to 2 of 6"


# -- pieces


@given(st.lists(st.integers(0, 12), min_size=1, max_size=12))
def test_consecutive_offsets(offsets: list[int]) -> None:
    spans = consecutive(np.array(offsets))
    assert [offset for begin, past in spans for offset in range(begin, past)] == offsets
    assert all(past != begin for (_, past), (begin, _) in pairwise(spans))


def test_foreign_fields_of_a_header() -> None:
    ring = SwitchedRing(3)
    header = ring.header(1, 0, 4)
    assert foreign_field(header, ring.spec, 3, 1) is None
    assert foreign_field(header, ring.spec, 3, 2) == ("wrong rank", "ring 7, rank 2: 1, expected 2")
    assert foreign_field(header, ring.spec, 4, 1) == ("wrong epoch", "ring 7, rank 1: 3, expected 4")


@pytest.mark.parametrize("in_blocks", [False, True])
def test_addresses_that_nobody_knows_are_those_of_the_packets(in_blocks: bool) -> None:
    """None is strange, whichever way the packets took."""
    ring = SwitchedRing(3, flows=nameless(ring_of(3)))
    for rank in range(3):
        one, other = (ring.message(rank, serial) for serial in (0, 1))
        if in_blocks:
            middles = (block(*one[1:3]), block(*other[1:3]))
            ring.arrive_blocks(rank, block(one[0], other[0]), *middles, block(one[3], other[3]))
        else:
            for frame in (*one, *other):
                ring.arrive(rank, frame)
    counters = ring.accelerator.view().counters
    assert counters.aggregated_in == 3 * 2 * 4
    assert counters.strange_addresses == 0


def test_a_last_packet_of_another_length_breaks_the_ring_whichever_way_the_first_one_came() -> None:
    """The general way keeps the layout too: a damaged frame beside it keeps a block from the quick one."""
    ring = SwitchedRing(3)
    for rank in range(3):
        ring.send(rank, 0, 0, 1, 2)
    last = ring.packet(0, 0, 3)
    damaged = bytearray(last)
    damaged[-1] ^= 1
    ring.arrive_blocks(0, block(last, bytes(damaged)))
    actions = ring.arrive(1, ring.packet(1, 0, 3, last_bytes=MTU - 4))
    assert [fault.rule for fault in actions if isinstance(fault, RingFault)] == ["operations differ"]


def test_what_is_new_in_a_block_of_old_packets_is_sent_at_once() -> None:
    """A sender that went back: packet 1 of the block was finished before, packet 2 was missing."""
    ring = SwitchedRing(3)
    for rank in (0, 2):
        ring.send(rank, 0)
    ring.send(1, 0, 0, 1)
    frames = ring.message(1, 0, ip_id=2)
    actions = ring.arrive_blocks(1, block(*frames[1:3]))
    sent = {frame for _, frame in emitted(actions)}
    assert {ring.result(rank, 0, 2) for rank in (0, 2)} <= sent
    assert ring.result(1, 0, 2, ip_id=2) in sent
