"""NetReduce section 3.2: header recovery, reliability, idempotence, integrity, order, all else untouched."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.core.switch.accelerator import EmitFrames, FramesArrived
from inaproto.units import Frames, Instant, PortId, S
from inaproto.wire.icrc import seal
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.vector import FlowTemplate
from inaproto_hil.bench.traffic import host_ip, host_mac
from tests.accelerators import EACH_ACCELERATOR
from tests.paper.scripted_ring import NOW, Packet, ScriptedRing

pytestmark = EACH_ACCELERATOR


def body(packets: list[Packet]) -> bytes:
    return b"".join(packet.payload for packet in packets)[INA_HEADER_BYTES:]


# -- INA header recovery ---------------------------------------------------------------------------


def test_packets_whose_first_packet_was_lost_are_dropped() -> None:
    """Computation error (1): the table knows only older messages, the packets lie in none of them."""
    ring = ScriptedRing(window=2)
    ring.prepare(0)
    ring.prepare(1)
    ring.send(1, 0)
    ring.send(0, 0)
    ring.send(1, 1)
    assert ring.send(0, 1, 1, 2, 3) == {}
    ring.accelerator.step(FramesArrived(PortId(0), ()), Instant(S))  # nobody was overtaken
    dropped = ring.accelerator.view().counters.dropped
    assert dropped == {"first packet of the message not seen": 3}


def test_go_back_n_brings_a_lost_first_packet_again() -> None:
    ring = ScriptedRing(window=2)
    ring.prepare(0)
    ring.send(1, 0)
    ring.send(0, 0, 1, 2, 3)
    out = ring.send(0, 0)
    assert body(out[0]) == ring.expected(0)
    assert body(out[1]) == ring.expected(0)


def test_a_resend_inside_the_message_before_is_placed() -> None:
    """Why the table keeps 2N messages: message 1 has begun when packet 2 of message 0 comes again."""
    ring = ScriptedRing(window=2)
    ring.prepare(0)
    ring.prepare(1)
    ring.send(1, 0)
    ring.send(0, 0, 0, 1, 3)
    ring.send(0, 1, 0)
    out = ring.send(0, 0, 2, 3)
    assert [packet.psn for packet in out[1]] == ring.psns(1, 0)[2:]


# -- idempotence, kept results ---------------------------------------------------------------------


def test_aggregation_is_idempotent() -> None:
    """Computation error (2): however often a packet appears, it counts once."""
    ring = ScriptedRing(workers=3)
    ring.prepare(0)
    for _ in range(3):
        assert ring.send(0, 0) == {}
        assert ring.send(1, 0) == {}
    out = ring.send(2, 0)
    assert body(out[0]) == ring.expected(0)


def test_a_lost_result_comes_back_from_the_kept_one_on_its_own_flow_only() -> None:
    ring = ScriptedRing(workers=3)
    ring.prepare(0)
    ring.send(0, 0)
    ring.send(1, 0)
    first = ring.send(2, 0)
    again = ring.send(1, 0, 1, 2, 3)
    assert set(again) == {1}
    assert [packet.payload for packet in again[1]] == [packet.payload for packet in first[1][1:]]


def test_a_replay_carries_the_header_of_the_latest_packet() -> None:
    """A resend has another IP id (and perhaps AckReq): the answer must have it too."""
    ring = ScriptedRing()
    ring.prepare(0)
    ring.send(0, 0)
    ring.send(1, 0)
    resent = ring.packet(0, 0, 2).copy()
    resent[0, 18:20] = (0xAB, 0xCD)
    seal_again(resent)
    (packet,) = ring.arrive(0, resent)[0]
    assert packet.frame[18:20] == b"\xab\xcd"


def test_payloads_of_a_finished_packet_do_not_matter_any_more() -> None:
    """A sender that has its result may reuse its buffer: what it then resends must not change the sum."""
    ring = ScriptedRing()
    ring.prepare(0)
    ring.send(0, 0)
    first = ring.send(1, 0)
    resent = ring.packet(0, 0, 2).copy()
    resent[0, 60:90] = 0x55
    seal_again(resent)
    (packet,) = ring.arrive(0, resent)[0]
    assert packet.payload == first[0][2].payload


def seal_again(frame: Frames) -> None:
    raw = bytearray(frame[0].tobytes())
    seal(raw)
    frame[0] = np.frombuffer(bytes(raw), np.uint8)


# -- freeing ---------------------------------------------------------------------------------------


def test_a_result_lost_while_the_others_go_on_can_still_be_had() -> None:
    """The run that "clear the whole slot" does not survive (test_netreduce_3_2_freeing)."""
    ring = ScriptedRing(window=1)
    ring.prepare(0)
    ring.prepare(1)
    ring.send(0, 0)
    ring.send(1, 0)  # the result on flow 1 is lost on its way to rank 0
    assert ring.send(1, 1) == {}  # rank 1 has its result and goes on
    out = ring.send(1, 0)  # flow 1 times out: its sender resends message 0
    assert body(out[1]) == ring.expected(0)
    out = ring.send(0, 1)
    assert body(out[0]) == ring.expected(1)


def test_a_late_duplicate_is_dropped_as_older_than_the_tenant() -> None:
    """The run in which "clear the own bit" gives a wrong sum."""
    ring = ScriptedRing(window=1)
    for serial in range(3):
        ring.prepare(serial)
    for serial in range(2):
        ring.send(0, serial)
        ring.send(1, serial)
    ring.send(0, 2)  # message 2 takes the place of message 0
    assert ring.send(1, 0) == {}  # a copy of rank 1's message 0, late
    assert ring.accelerator.view().counters.dropped == {"older than the tenant": 4}
    out = ring.send(1, 2)
    assert body(out[0]) == ring.expected(2)


# -- integrity -------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [19, 45, 53, 70, 100, -1])
def test_a_packet_with_a_wrong_icrc_is_dropped_in_silence(offset: int) -> None:
    ring = ScriptedRing()
    ring.prepare(0)
    ring.send(0, 0)
    damaged = ring.packet(0, 1, 2).copy()
    damaged[0, offset] ^= 0x10
    out = ring.send(1, 0, 0, 1)
    assert ring.arrive(1, damaged) == {}
    assert ring.actions == []
    out = ring.send(1, 0, 2, 3)
    assert [packet.psn for packet in out[0]] == ring.psns(0, 0)[2:]


def test_one_damaged_packet_among_many_is_the_only_one_dropped() -> None:
    ring = ScriptedRing(packets=20)
    ring.prepare(0)
    ring.send(0, 0)
    middle = np.concatenate([ring.packet(0, 1, number) for number in range(1, 19)])
    middle[7, 80] ^= 1
    ring.send(1, 0, 0)
    out = ring.arrive(1, middle, ring.packet(0, 1, 19))
    assert [packet.psn for packet in out[0]] == ring.psns(0, 0)[1:8]
    out = ring.send(1, 0, *range(8, 20))
    assert [packet.psn for packet in out[0]] == ring.psns(0, 0)[8:]


# -- order -----------------------------------------------------------------------------------------


def test_results_that_are_finished_early_are_held() -> None:
    """Rank 1's packet 1 is missing: the other flow stays quiet about what lies behind it."""
    ring = ScriptedRing()
    ring.prepare(0)
    ring.send(0, 0)
    out = ring.send(1, 0, 0, 2, 3)
    assert [packet.psn for packet in out[0]] == ring.psns(0, 0)[:1]


def test_a_gap_lets_one_later_result_through_on_its_own_flow_once() -> None:
    ring = ScriptedRing()
    ring.prepare(0)
    ring.send(0, 0)
    out = ring.send(1, 0, 0, 2)
    psns = ring.psns(1, 0)
    assert [packet.psn for packet in out[1]] == [psns[0], psns[2]]
    assert ring.send(1, 0, 3) == {}
    out = ring.send(1, 0, 1)
    assert [packet.psn for packet in out[1]] == psns[1:]
    assert [packet.psn for packet in out[0]] == ring.psns(0, 0)[1:]


def test_resends_behind_an_unfinished_packet_do_not_overtake_it() -> None:
    """softroce-bench section 5, rule 1: rank 0 goes back to packet 1, which still waits for rank 1."""
    ring = ScriptedRing()
    ring.prepare(0)
    ring.send(0, 0)
    ring.send(1, 0, 0, 2, 3)
    assert ring.send(0, 0, 1, 2, 3) == {}


def test_a_short_hole_in_a_resend_is_filled_from_kept_results() -> None:
    ring = ScriptedRing()
    ring.prepare(0)
    ring.send(0, 0)
    ring.send(1, 0)
    out = ring.send(0, 0, 0, 1, 3)  # the resend loses packet 2
    assert [packet.psn for packet in out[0]] == ring.psns(0, 0)


# -- everything else -------------------------------------------------------------------------------


def plain_roce(
    rank: int, to: int, opcode: int, **extra: object
) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    template = FlowTemplate(host_mac(rank), host_mac(to), host_ip(rank), host_ip(to), 0xC001, 0x999)
    return template.build(
        opcode=opcode,
        psns=np.array([5]),
        ack_request=np.array([True]),
        ip_id=3,
        payload=np.arange(64, dtype=np.uint8)[None] if opcode != 0x11 else np.empty((1, 0), np.uint8),
        **extra,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("opcode", [0x06, 0x07, 0x09, 0x0A, 0x04, 0x11])
def test_a_plain_connection_passes_untouched(opcode: int) -> None:
    ring = ScriptedRing(workers=3)
    extra: dict[str, object] = {}
    if opcode in (0x06, 0x0A):
        extra["reth"] = (0, 1, 64)
    if opcode == 0x09:
        extra["imm"] = 7
    if opcode == 0x11:
        extra["aeth"] = (0x1F, 1)
    frame = plain_roce(0, 2, opcode, **extra)
    (action,) = ring.accelerator.step(FramesArrived(PortId(0), [frame]), NOW)
    assert isinstance(action, EmitFrames)
    assert action.port == 2
    assert action.frames.tobytes() == frame.tobytes()


def test_broadcasts_go_to_every_other_port() -> None:
    ring = ScriptedRing(workers=3)
    arp = np.zeros((1, 42), np.uint8)
    arp[0, :6] = 0xFF
    arp[0, 6:12] = np.frombuffer(host_mac(1), np.uint8)
    arp[0, 12:14] = (8, 6)
    ports = [
        a.port
        for a in ring.accelerator.step(FramesArrived(PortId(1), [arp]), NOW)
        if isinstance(a, EmitFrames)
    ]
    assert ports == [0, 2]
