"""Offloads undone, judged by scapy: every frame that comes out is as a sender without offloads had made
it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from inaproto.units import Frames
from inaproto_adapters.frames.offloads import CannotCut, VnetHeader, cut, fill_checksums, with_tag

TCP4, TCP6, UDP_L4 = 1, 4, 5
PARTIAL = 1


def frame_of(packet: Any) -> Frames:
    return np.frombuffer(bytes(packet), np.uint8).copy()


def segment(
    kind: int, payload: bytes, *, ident: int = 65530, seq: int = 0xFFFFFF00, flags: str = "PA"
) -> Any:
    """What a stack hands over: one long packet."""
    network: Any = (
        IPv6(src="fd00::1", dst="fd00::2") if kind == TCP6 else IP(src="10.0.0.1", dst="10.0.0.2", id=ident)
    )
    if kind == UDP_L4:
        return (
            Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
            / network
            / UDP(sport=5, dport=6)
            / payload
        )
    options = [("NOP", None), ("NOP", None), ("Timestamp", (7, 9))]
    transport: Any = TCP(sport=5, dport=6, seq=seq, ack=77, flags=flags, options=options)
    return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / network / transport / payload


def described(kind: int, step: int) -> VnetHeader:
    start = 54 if kind == TCP6 else 34
    return VnetHeader(PARTIAL, kind, start + 32, step, start, 6 if kind == UDP_L4 else 16)


def remade(frame: bytes) -> bytes:
    """scapy's own lengths and checksums."""
    packet: Any = Ether(frame)
    for layer, fields in (
        (IP, ("len", "chksum")),
        (IPv6, ("plen",)),
        (TCP, ("chksum",)),
        (UDP, ("len", "chksum")),
    ):
        if packet.haslayer(layer):
            for name in fields:
                delattr(packet[layer], name)
    return bytes(packet)


@given(
    st.sampled_from([TCP4, TCP6, UDP_L4]),
    st.integers(1, 3000),
    st.integers(150, 1500),
    st.sampled_from(["PA", "FPA", "A", "PAC"]),
    st.integers(0, 1 << 32),
)
def test_every_frame_of_a_long_segment_is_right(
    kind: int, length: int, step: int, flags: str, seed: int
) -> None:
    payload = np.random.default_rng(seed).bytes(length)
    whole = segment(kind, payload, flags=flags)
    blocks = cut(frame_of(whole), described(kind, step))
    frames = [row.tobytes() for block in blocks for row in block]
    assert len(frames) == -(-length // step)
    got = b""
    for i, frame in enumerate(frames):
        assert frame == remade(frame)
        read: Any = Ether(frame)
        part = bytes(read[Raw].load)
        assert len(part) == step or i == len(frames) - 1
        if kind != TCP6:
            assert read[IP].id == (65530 + i) % 65536
        if kind != UDP_L4:
            assert read[TCP].seq == (0xFFFFFF00 + len(got)) % (1 << 32)
            is_last = i == len(frames) - 1
            expected = {letter for letter in flags if letter == "A" or (letter == "C" and i == 0)}
            expected |= {letter for letter in flags if letter in "FP" and is_last}
            assert set(str(read[TCP].flags)) == expected
        got += part
    assert got == payload


@given(
    st.sampled_from([TCP4, TCP6, UDP_L4, 0x80, 3, 255]),
    st.binary(max_size=120),
    st.integers(0, 66_500),
    st.tuples(st.integers(0, 1), st.integers(0, 255), st.integers(0, 255), st.integers(0, 0xFFFF)),
    st.booleans(),
)
def test_a_segment_of_any_bytes_is_cut_or_dropped(
    kind: int, begin: bytes, length: int, fields: tuple[int, int, int, int], is_tcp: bool
) -> None:
    """Its sender may be a virtual machine."""
    flags, start, offset, step = fields
    known = bytes(segment(TCP6 if kind == TCP6 else TCP4 if is_tcp else UDP_L4, b""))
    frame = np.zeros(length, np.uint8)
    head = (known[:40] + begin)[:length]  # all but the last headers are right
    frame[: len(head)] = list(head)
    with suppress(CannotCut):
        blocks = cut(frame, VnetHeader(flags, kind, 0, step, start, offset))
        assert sum(len(block) for block in blocks) >= 1


@pytest.mark.parametrize("kind", [TCP4, TCP6, UDP_L4])
def test_a_frame_that_no_ip_packet_can_be_is_not_made(kind: int) -> None:
    whole = np.concatenate([frame_of(segment(kind, b"")), np.zeros(65_535, np.uint8)])
    with pytest.raises(CannotCut, match="longer than an IP packet"):
        cut(whole, described(kind, 65_535))


@given(st.sampled_from([TCP4, TCP6, UDP_L4]), st.integers(0, 300), st.integers(1, 5), st.integers(0, 1 << 32))
def test_checksums_that_were_left_to_hardware(kind: int, length: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = [bytes(segment(kind, rng.bytes(length), ident=i)) for i in range(n)]
    header = described(kind, 0)
    field = header.checksum_start + header.checksum_offset
    frames = np.frombuffer(b"".join(whole), np.uint8).reshape(n, -1).copy()
    for row in frames:  # the sum of the pseudo header, as a sender leaves it
        transport = row[header.checksum_start :].tobytes()
        addresses = row[22:54].tobytes() if kind == TCP6 else row[26:34].tobytes()
        pseudo = addresses + bytes([0, 17 if kind == UDP_L4 else 6]) + len(transport).to_bytes(2, "big")
        total = sum(int.from_bytes(pseudo[i : i + 2], "big") for i in range(0, len(pseudo), 2))
        while total > 0xFFFF:
            total = (total & 0xFFFF) + (total >> 16)
        row[field : field + 2] = list(total.to_bytes(2, "big"))
    assert fill_checksums(frames, header.checksum_start, header.checksum_offset)
    for row, expected in zip(frames, whole, strict=True):
        got = row.tobytes()
        if got[field : field + 2] == b"\xff\xff":  # the other zero
            got = got[:field] + b"\0\0" + got[field + 2 :]
            expected = expected.replace(b"\xff\xff", b"\0\0", 1) if kind == UDP_L4 else expected
        assert got == expected


def test_checksum_outside_the_frame_is_left_alone() -> None:
    frames = np.zeros((2, 60), np.uint8)
    assert not fill_checksums(frames, 50, 9)
    assert not frames.any()
    assert fill_checksums(frames, 50, 8)


@pytest.mark.parametrize(
    ("header", "rule"),
    [
        (VnetHeader(PARTIAL, 3, 42, 1000, 34, 6), "kind 3"),
        (VnetHeader(PARTIAL, TCP4, 54, 0, 34, 16), "without a segment size"),
        (VnetHeader(PARTIAL, TCP4, 104, 1000, 84, 16), "in a tunnel"),
        (VnetHeader(PARTIAL, UDP_L4, 42, 1000, 34, 6), "in a tunnel"),
    ],
)
def test_what_cannot_be_cut_says_why(header: VnetHeader, rule: str) -> None:
    with pytest.raises(CannotCut, match=rule):
        cut(frame_of(segment(TCP4, bytes(3000))), header)


@given(
    st.binary(min_size=14, max_size=120),
    st.sampled_from([b"\x08\x00\x45", b"\x08\x00\x4f", b"\x08\x00\x40", b"\x86\xdd\x60"]),
    st.sampled_from([6, 17]),
    st.tuples(*[st.integers(0, 5), st.sampled_from([0, 1, 4, 5, 0x81, 0x85]), st.integers(0, 2000)]),
)
def test_no_bytes_make_it_fail_otherwise(
    data: bytes, head: bytes, protocol: int, words: tuple[int, ...]
) -> None:
    flags, kind, step = words
    frame = np.frombuffer(data[:12] + head + data[15:], np.uint8).copy()
    for at in (20, 23):
        frame[at : at + 1] = protocol
    with suppress(CannotCut):
        cut(frame, VnetHeader(flags, kind, 0, step, 34, 16))


def test_a_tag_is_put_back() -> None:
    frame = frame_of(segment(UDP_L4, b"tagged"))
    (row,) = with_tag(frame[None], 0x88A8, 0x6005)
    assert row.tobytes() == frame[:12].tobytes() + b"\x88\xa8\x60\x05" + frame[12:].tobytes()
