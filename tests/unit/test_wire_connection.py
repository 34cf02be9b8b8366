"""Whose a frame is to a lenient receiver: every byte that decides, and the shortest frames that can tell."""

from __future__ import annotations

import pytest

from inaproto.faults.announcement import announcement
from inaproto.wire.connection import contradicts_itself, is_plainly_other, lenient_connection
from inaproto.wire.roce import Bth, Opcode, RocePacket

FRAME = RocePacket.build(
    src_mac=bytes.fromhex("525400000002"),
    dst_mac=bytes.fromhex("525400000001"),
    src_ip=bytes([10, 0, 0, 2]),
    dst_ip=bytes([10, 0, 0, 1]),
    udp_source_port=0xC000,
    bth=Bth(opcode=Opcode.RC_WRITE_MIDDLE, dest_qp=0xABCDEF, psn=7),
    payload=bytes(64),
).encode_frame()
CONNECTION = (bytes([10, 0, 0, 2]), bytes([10, 0, 0, 1]), 0xABCDEF, Opcode.RC_WRITE_MIDDLE)


def put(offset: int, value: bytes, frame: bytes = FRAME) -> bytes:
    return frame[:offset] + value + frame[offset + len(value) :]


def tagged(frame: bytes, *tags: bytes) -> bytes:
    return frame[:12] + b"".join(tag + b"\0\5" for tag in tags) + frame[12:]


def test_the_whole_queue_pair_number_and_both_addresses() -> None:
    assert lenient_connection(FRAME) == CONNECTION


@pytest.mark.parametrize(
    "tags", [(b"\x81\0",), (b"\x88\xa8",), (b"\x88\xa8", b"\x81\0"), (b"\x88\xa8", b"\x81\0", b"\x81\0")]
)
def test_up_to_three_vlan_tags(tags: tuple[bytes, ...]) -> None:
    frame = tagged(FRAME, *tags)
    assert not is_plainly_other(frame)
    assert lenient_connection(frame) == CONNECTION
    assert lenient_connection(tagged(frame, *(b"\x81\0",) * (4 - len(tags)))) is None


def test_the_shortest_frame_that_tells_ends_with_the_queue_pair() -> None:
    assert lenient_connection(FRAME[:50]) == CONNECTION
    for end in range(50):
        assert lenient_connection(FRAME[:end]) is None


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (14, b"\x65"),  # not IP version 4
        (14, b"\x44"),  # an IP header of 16 bytes
        (20, b"\x00\x01"),  # a later fragment, by the low byte of the offset
        (20, b"\x01\x00"),  # by the high bits
        (20, b"\x10\x00"),
        (23, b"\x06"),  # TCP
        (36, b"\x12\xb8"),  # another port, by its low byte
        (36, b"\x13\xb7"),  # by its high byte
    ],
)
def test_no_stack_would_find_a_connection(at: int, value: bytes) -> None:
    assert lenient_connection(put(at, value)) is None


def test_a_damaged_ethernet_type_hides_no_connection() -> None:
    for bit in range(16):
        value = (0x0800 ^ 1 << bit).to_bytes(2, "big")
        assert not is_plainly_other(put(12, value))
        assert lenient_connection(put(12, value)) == CONNECTION
        assert lenient_connection(put(12, value + b"\x46")) is None


def test_an_ip_header_cut_short_by_its_own_length_is_none() -> None:
    """Where it says 16 bytes, the ports of a well-meaning reader would lie in the addresses."""
    frame = bytearray(put(14, b"\x44"))
    frame[32:34] = (4791).to_bytes(2, "big")
    assert lenient_connection(bytes(frame)) is None


def test_ip_options_move_what_follows() -> None:
    frame = put(14, b"\x47")[:34] + bytes(8) + FRAME[34:]
    assert not is_plainly_other(frame)
    assert lenient_connection(frame) == CONNECTION


@pytest.mark.parametrize(
    ("frame", "other"),
    [
        (FRAME, False),
        (put(12, b"\x08\x06\x00"), True),  # ARP
        (put(12, b"\x86\xdd\x60"), True),  # IPv6
        (put(12, b"\x86\xdd"), False),  # a packet of RoCEv2 all the same, behind a damaged type
        (put(12, b"\x86\xdd")[:37], True),
        (put(12, b"\x86\xdd\x46"), True),
        (put(12, b"\x09\x00", put(36, b"\x12\xb8")), True),
        (put(23, b"\x06"), True),
        (put(36, b"\x12\xb8"), True),
        (put(36, b"\x12\xb8")[:38], True),  # the shortest that shows its port
        (put(36, b"\x12\xb8")[:37], False),
        (put(14, b"\x46", put(36, b"\x12\xb8")), False),  # IP options: the port lies elsewhere
        (put(20, b"\x00\x01", put(36, b"\x12\xb8")), False),  # a later fragment shows no port
        (put(20, b"\x01\x00", put(36, b"\x12\xb8")), False),
        (put(20, b"\x10\x00", put(36, b"\x12\xb8")), False),
        (put(20, b"\x20\x00", put(36, b"\x12\xb8")), True),  # the first fragment does
        (put(20, b"\x40\x00", put(36, b"\x12\xb8")), True),  # do not fragment
        (put(20, b"\x00\x00", put(36, b"\x12\xb8")), True),
    ],
)
def test_what_is_plainly_no_rocev2(frame: bytes, other: bool) -> None:
    assert is_plainly_other(frame) is other


def test_a_time_to_live_says_nothing_of_fragments() -> None:
    for ttl in (0, 1, 64):
        assert is_plainly_other(put(22, bytes([ttl]), put(36, b"\x12\xb8")))
        assert lenient_connection(put(22, bytes([ttl]))) == CONNECTION


def test_an_arp_packet_names_its_sender_twice() -> None:
    frame = announcement(b"\x02\0\0\0\0\x07", b"\x0a\0\0\x07").tobytes()
    assert not contradicts_itself(frame)
    for at in (*range(6, 12), *range(22, 28)):
        damaged = frame[:at] + bytes([frame[at] ^ 4]) + frame[at + 1 :]
        assert contradicts_itself(damaged)
        other = damaged[:12] + b"\x86\xdd" + damaged[14:]
        assert not contradicts_itself(other), "whatever it is, that is no sender's address"
    assert not contradicts_itself(FRAME)
