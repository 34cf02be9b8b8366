"""NetReduce section 3.1: aggregator addressing, bitmap and packet buffer, result construction."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, INA_HEADER_BYTES, InaHeader
from tests.accelerators import EACH_ACCELERATOR
from tests.paper.scripted_ring import ScriptedRing

pytestmark = EACH_ACCELERATOR

# Header bytes that must reach the receiver as they were sent: Ethernet to the end of the BTH.
HEADERS = slice(0, 54)


def test_same_relative_sequence_number_same_aggregator() -> None:
    """PSN - PSN0 addresses the aggregator: initial PSNs differ between workers, sums are still right."""
    ring = ScriptedRing(workers=3, psn0=(7, 1_000_000, 42))
    ring.prepare(0)
    assert ring.send(0, 0) == {}
    assert ring.send(1, 0) == {}
    out = ring.send(2, 0)
    for flow in range(3):
        assert [packet.psn for packet in out[flow]] == ring.psns(flow, 0)
        body = b"".join(packet.payload for packet in out[flow])
        assert body[INA_HEADER_BYTES:] == ring.expected(0)


def test_psn_wraps_inside_a_message() -> None:
    ring = ScriptedRing(workers=2, psn0=(0xFF_FFFE, 0xFF_FFFF))
    ring.prepare(0)
    ring.send(0, 0)
    out = ring.send(1, 0)
    assert [packet.psn for packet in out[0]] == [0xFF_FFFE, 0xFF_FFFF, 0, 1]
    assert [packet.psn for packet in out[1]] == [0xFF_FFFF, 0, 1, 2]
    assert b"".join(packet.payload for packet in out[1])[INA_HEADER_BYTES:] == ring.expected(0)


def test_an_aggregator_answers_when_its_bitmap_is_full_and_not_before() -> None:
    ring = ScriptedRing(workers=4)
    ring.prepare(0)
    for rank in (2, 0, 3):
        assert ring.send(rank, 0, 0) == {}
    out = ring.send(1, 0, 0)
    assert {flow: len(packets) for flow, packets in out.items()} == {0: 1, 1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("window", [1, 2, 4])
def test_the_array_holds_two_windows_and_wraps(window: int) -> None:
    """MsgID % 2N: messages 2N apart use the same aggregators, with right sums throughout."""
    ring = ScriptedRing(window=window)
    for serial in range(4 * window + 1):
        ring.prepare(serial)
        ring.send(0, serial)
        out = ring.send(1, serial)
        assert b"".join(packet.payload for packet in out[0])[INA_HEADER_BYTES:] == ring.expected(serial)


def test_result_packets_keep_their_original_headers() -> None:
    """Section 3.2, connection preservation: only payload and ICRC differ from what the worker sent."""
    ring = ScriptedRing()
    ring.prepare(0)
    ring.send(0, 0)
    out = ring.send(1, 0)
    for flow in range(2):
        for number, packet in enumerate(out[flow]):
            sent = ring.packet(0, flow, number)[0].tobytes()
            assert packet.frame[HEADERS] == sent[HEADERS]
            assert len(packet.frame) == len(sent)
            assert packet.frame[-4:] != sent[-4:]


def test_the_header_of_a_first_packet_is_never_summed() -> None:
    ring = ScriptedRing()
    ring.prepare(0)
    ring.send(0, 0)
    out = ring.send(1, 0)
    for flow in range(2):
        header = InaHeader.decode(out[flow][0].payload[:INA_HEADER_BYTES])
        assert header.rank == flow
        assert header.ring_id == ring.spec.ring_id
        sent = bytearray(ring.packet(0, flow, 0)[0, 70:110].tobytes())
        sent[FLAGS_OFFSET] |= FLAG_RESULT  # ours: marked, so that nobody takes a raw payload for a sum
        assert out[flow][0].payload[:INA_HEADER_BYTES] == bytes(sent)


def test_additions_are_in_rank_order_whatever_the_order_of_arrival() -> None:
    """One result: float addition is not associative, so the order must not depend on the network."""
    results = set()
    ring = ScriptedRing(workers=4)
    ring.prepare(0)
    for first, *others, last in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)):
        ring = ScriptedRing(workers=4)
        ring.prepare(0)
        for rank in (first, *others):
            ring.send(rank, 0)
        out = ring.send(last, 0)
        results.add(b"".join(packet.payload for packet in out[0])[INA_HEADER_BYTES:])
    assert results == {ring.expected(0)}
    backwards = ring.data[0][3]
    for addend in ring.data[0][2::-1]:
        backwards = backwards + addend
    assert backwards.tobytes() != ring.expected(0), "the data must be able to show a difference"


def test_a_short_last_message_is_aggregated() -> None:
    ring = ScriptedRing()
    ring.prepare(0)
    ring.send(0, 0)
    ring.send(1, 0)
    ring.prepare(1, packets=2)
    ring.send(0, 1)
    out = ring.send(1, 1)
    assert b"".join(packet.payload for packet in out[1])[INA_HEADER_BYTES:] == ring.expected(1)


def test_a_message_of_one_packet_is_aggregated() -> None:
    ring = ScriptedRing()
    ring.prepare(0, packets=1)
    ring.send(0, 0)
    out = ring.send(1, 0)
    assert out[0][0].payload[INA_HEADER_BYTES:] == ring.expected(0)
    assert np.frombuffer(out[1][0].payload[INA_HEADER_BYTES:], np.float32).shape == ring.data[0][0].shape
