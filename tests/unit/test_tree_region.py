"""Slots of a message at a switch of a tree: results in the place of sums, repeats, headers made here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core.switch.message_packets import LAST, ONLY_IMM
from inaproto.core.switch.packet_memory import PayloadPool
from inaproto.core.switch.region_kernels import LastPacket
from inaproto.core.switch.tree.region import Shape, TreeRegion
from inaproto.core.switch.tree.translation import base_header
from inaproto.wire.crc import crc32
from inaproto.wire.ina_header import Dtype
from inaproto.wire.roce import Opcode, RocePacket
from tests.unit.switched_ring import MTU, SwitchedRing
from tests.unit.switched_tree import SwitchedTree, data_of

PACKETS = 8
HOSTS = SwitchedRing(4, message_packets=PACKETS)


def region_of(*done: int, serial: int = 0) -> TreeRegion:
    """Of a message, at a switch with two inputs that is no root; these slots hold sums."""
    region = TreeRegion(Shape(2, 3, root=False), HOSTS.spec, PayloadPool(2, PACKETS, MTU))
    region.take_over(serial, HOSTS.header(0, serial, PACKETS))
    region.done[list(done)] = True
    return region


def results(count: int, seed: int, width: int = MTU) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Payloads and their CRCs."""
    tails = np.random.default_rng(seed).integers(0, 256, (count, width), np.uint8)
    return tails, np.array([crc32(row.tobytes()) for row in tails], np.uint32)


def keep(region: TreeRegion, offsets: list[int], seed: int, width: int = MTU) -> list[tuple[int, int]]:
    return region.keep_results(np.array(offsets), *results(len(offsets), seed, width))


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "spans"),
    [
        ([2, 3, 4], [(2, 5)]),
        ([6], [(6, 7)]),
        ([5, 1, 2, 4], [(1, 3), (4, 6)]),
        ([1, 3, 5, 6], [(1, 2), (3, 4), (5, 7)]),
        ([4, 3, 2], [(2, 5)]),
    ],
)
def test_results_take_the_place_of_the_sums_in_whatever_order_they_come(
    offsets: list[int], spans: list[tuple[int, int]]
) -> None:
    region = region_of(*range(PACKETS))
    assert keep(region, offsets, seed=1) == spans
    tails, crcs = results(len(offsets), 1)
    assert np.array_equal(region.result[offsets], tails)
    assert np.array_equal(region.result_crc[offsets], crcs)
    assert np.flatnonzero(region.final).tolist() == sorted(offsets)
    assert region.answered(0, PACKETS) == spans


def test_a_slot_keeps_the_first_result_that_came() -> None:
    region = region_of(*range(PACKETS))
    assert keep(region, [3, 1, 3], seed=1) == [(1, 2), (3, 4)]
    assert keep(region, [2, 3, 4], seed=2) == [(2, 3), (4, 5)]
    assert keep(region, [1, 2, 3], seed=3) == []
    firsts, seconds = results(3, 1)[0], results(3, 2)[0]
    for offset, tail in {1: firsts[1], 2: seconds[0], 3: firsts[0], 4: seconds[2]}.items():
        assert np.array_equal(region.result[offset], tail)
        assert region.result_crc[offset] == crc32(tail.tobytes())


def test_a_short_last_result_is_kept_as_long_as_it_is() -> None:
    region = region_of(*range(PACKETS))
    assert keep(region, [7], seed=1, width=24) == [(7, 8)]
    assert np.array_equal(region.result[7, :24], results(1, 1, 24)[0][0])


def test_the_frontier_stops_at_the_first_sum_without_a_result_from_where_it_is() -> None:
    region = region_of(*range(PACKETS))
    keep(region, [1, 2, 4], seed=1)
    assert [region.done_until(begin) for begin in range(5)] == [0, 3, 3, 3, 5]


# -- repeats ---------------------------------------------------------------------------------------


def test_sums_without_results_and_results_are_told_apart_anywhere_in_a_message() -> None:
    region = region_of(1, 2, 3, 5, 6)
    keep(region, [2, 5], seed=1)
    assert region.unanswered(0, PACKETS) == [(1, 2), (3, 4), (6, 7)]
    assert region.unanswered(2, 6) == [(3, 4)]
    assert region.answered(1, 7) == [(2, 3), (5, 6)]


def test_a_sum_goes_up_again_at_its_first_repeat_and_then_at_the_second_of_one_sender() -> None:
    region = region_of(2, 3, 5)
    assert region.to_ask_again(0, 3, 4) == [(3, 4)]
    assert region.to_ask_again(1, 1, 7) == [(2, 3), (5, 6)], "slot 3 was asked for, slot 4 has no sum"
    assert region.to_ask_again(1, 1, 7) == [(2, 4), (5, 6)], "rank 1's second"
    assert region.to_ask_again(0, 1, 7) == [], "the count began anew"
    keep(region, [2], seed=1)
    assert region.to_ask_again(0, 1, 7) == [(3, 4), (5, 6)], "what is answered is not asked for"


def test_repeats_of_the_message_before_in_the_region_count_for_nothing() -> None:
    region = region_of(2, 3)
    assert region.to_ask_again(0, 2, 4) == [(2, 4)]
    region.take_over(4, HOSTS.header(0, 4, PACKETS))
    region.done[2] = True
    assert region.to_ask_again(1, 2, 4) == [(2, 3)]


# -- headers ---------------------------------------------------------------------------------------


def test_headers_of_a_row_stand_until_it_is_undressed() -> None:
    tree = SwitchedTree()
    role = tree.specs()["L1"].role
    assert role is not None
    assert role.parent is not None
    region = region_of(serial=2)
    region.last = LastPacket(LAST, 54, MTU, 0)
    headers = region.virtual_headers(base_header(role.parent), PACKETS)
    moved = headers._replace(psn0=headers.psn0 + 1)
    region.dress(2, headers, bytes(40))
    region.dress_last(2, headers)
    assert [region.wears(row) for row in range(3)] == [False, False, True]
    before = region.header[2, 7].copy()
    region.dress_last(2, moved)
    assert np.array_equal(region.header[2, 7], before)
    region.undress(2)
    assert not region.wears(2)
    region.dress_last(2, moved)
    assert not np.array_equal(region.header[2, 7], before)


def test_a_told_message_keeps_the_immediate_of_its_only_packet() -> None:
    region = region_of(serial=2)
    packet = RocePacket.decode_frame(HOSTS.packet(3, 2, 0, packets=1))
    assert packet.bth.opcode == ONLY_IMM
    assert packet.imm is not None
    only = replace(packet, imm=replace(packet.imm, value=0x0102_0304)).encode_frame()[:74]
    assert region.told_headers(only).imm == 0x0102_0304
    first = HOSTS.packet(3, 2, 0)[:70]
    assert region.told_headers(first).imm == 2, "not in the first of several: the message's number"


def test_sums_between_switches_ask_for_no_ack_and_say_the_bytes_of_the_first_input() -> None:
    tree = SwitchedTree()
    for rank, nbytes in ((0, 1000), (1, 2000)):
        frames = tree.hosts.message(rank, 0)
        first = RocePacket.decode_frame(frames[0])
        assert first.reth is not None
        frames[0] = replace(first, reth=replace(first.reth, dma_length=nbytes)).encode_frame()
        tree.from_host(rank, *frames)
    sums = [sent.packet for sent in data_of(tree.between("L1", "S"))]
    assert [packet.bth.ack_request for packet in sums] == [False] * 4
    assert sums[0].reth is not None
    assert (sums[0].reth.va, sums[0].reth.rkey, sums[0].reth.dma_length) == (0, 0, 1000)


def test_a_last_packet_with_pad_is_right_on_every_link() -> None:
    tree = SwitchedTree()
    tree.finish(0, dtype=Dtype.F16, last_bytes=62)
    assert tree.said == []
    last = [
        sent.packet for sent in data_of(tree.carried) if sent.packet.bth.opcode == Opcode.RC_WRITE_LAST_IMM
    ]
    assert [(len(packet.payload), packet.bth.pad) for packet in last] == [(62, 2)] * 4
    for frames in tree.got.values():
        got = [RocePacket.decode_frame(frame, verify=True) for frame in frames]
        assert [len(packet.payload) for packet in got] == [64, 64, 64, 62]


@pytest.mark.parametrize("packets", [1, 2, 3])
def test_messages_of_few_packets_have_whole_headers(packets: int) -> None:
    tree = SwitchedTree()
    tree.finish(0, packets=packets)
    assert tree.got == tree.results(0, packets=packets)
