"""Captures: the layout that we write, round trips, what others write, and everything that is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.capture_reader import BLOCK_BYTES_MAX, CaptureReader, read_capture
from inaproto.wire.pcapng import INTERFACES_MAX, CapturedFrame, CaptureWriter, Direction, Interface

PORTS = (Interface("h0"), Interface("uplink", snaplen=16))
FRAMES = np.arange(3 * 21, dtype=np.uint8).reshape(3, 21)
WHEN = 1_700_000_000_123_456_789


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    total = len(body) + 12
    return struct.pack(order + "II", kind, total) + body + struct.pack(order + "I", total)


def section(order: str = "<", major: int = 1) -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, major, 0, -1), order)


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def interface(options: bytes = b"", order: str = "<", snaplen: int = 0) -> bytes:
    return block(1, struct.pack(order + "HHI", 1, 0, snaplen) + options, order)


def enhanced(data: bytes, options: bytes = b"", order: str = "<", ticks: int = 0, index: int = 0) -> bytes:
    head = struct.pack(order + "5I", index, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
    return block(6, head + data + bytes(-len(data) % 4) + options, order)


def test_the_layout_of_a_batch() -> None:
    writer = CaptureWriter(PORTS[:1], application="x")
    header = bytes.fromhex(
        "0a0d0d0a280000004d3c2b1a01000000ffffffffffffffff"
        "04000100780000000000000028000000"
        "01000000280000000100000000000000"
        "020002006830000009000100090000000000000028000000"
    )  # fmt: skip
    assert writer.header() == header
    blocks = writer.packets(0, WHEN, FRAMES[:2, :5], Direction.OUTBOUND)
    one = bytes.fromhex("060000003400000000000000629f971715cd7a570500000005000000")
    one = one.replace(bytes.fromhex("629f971715cd7a57"), struct.pack("<II", WHEN >> 32, WHEN & 0xFFFFFFFF))
    tail = bytes.fromhex("00000002000400020000000000000034000000")
    assert blocks.tobytes() == one + bytes(range(5)) + tail + one + bytes(range(21, 26)) + tail


def test_round_trip_of_batches_with_times_directions_and_losses() -> None:
    writer = CaptureWriter(PORTS)
    times = WHEN + np.arange(3)
    data = writer.header() + writer.packets(0, times, FRAMES, Direction.INBOUND, dropped=7).tobytes()
    data += writer.packets(1, WHEN, FRAMES[:1]).tobytes()
    late, more = writer.add_interface(Interface("late"))
    data += more + writer.packets(late, 5, FRAMES[:1], Direction.OUTBOUND, dropped=1).tobytes()
    data += writer.statistics(1, WHEN, received=9, dropped=8)
    reader = CaptureReader()
    got = list(reader.feed(data))
    reader.finish()
    assert [(f.number, f.interface.name, f.when_ns, f.direction, f.dropped) for f in got] == [
        (1, "h0", WHEN, Direction.INBOUND, 7),
        (2, "h0", WHEN + 1, Direction.INBOUND, 0),
        (3, "h0", WHEN + 2, Direction.INBOUND, 0),
        (4, "uplink", WHEN, Direction.UNKNOWN, 0),
        (5, "late", 5, Direction.OUTBOUND, 1),
    ]
    assert [f.data for f in got] == [*map(bytes, FRAMES), bytes(FRAMES[0, :16]), bytes(FRAMES[0])]
    assert [f.is_whole for f in got] == [True, True, True, False, True]
    assert got[3].wire_bytes == 21
    assert (reader.received, reader.lost) == ({1: 9}, {1: 8})
    assert [port.name for port in reader.interfaces] == ["h0", "uplink", "late"]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.integers(1, 50))
def test_a_stream_cut_anywhere_reads_the_same(frames: list[bytes], step: int) -> None:
    writer = CaptureWriter(PORTS)
    data = writer.header()
    for frame in frames:
        data += writer.packets(0, WHEN, np.frombuffer(frame, np.uint8)[None], Direction.INBOUND).tobytes()
    reader = CaptureReader()
    got: list[CapturedFrame] = []
    for at in range(0, len(data), step):
        got += reader.feed(data[at : at + step])
    reader.finish()
    assert got == read_capture(data)
    assert [frame.data for frame in got] == frames


def test_frames_left_unread_come_with_the_next_piece() -> None:
    writer = CaptureWriter(PORTS)
    reader = CaptureReader()
    first = next(reader.feed(writer.header() + writer.packets(0, 0, FRAMES).tobytes()))
    assert [frame.number for frame in reader.feed(b"")] == [2, 3]
    assert first.number == 1
    reader.finish()


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_units_of_time_and_unknown_blocks(order: str) -> None:
    data = section(order)
    data += interface(option(2, b"eth0", order) + option(9, b"\x03", order) + option(0, b"", order), order)
    data += interface(option(9, b"\x81", order) + option(14, struct.pack(order + "q", -2), order), order)
    data += interface(order=order)
    data += block(0xBAD, b"what is this", order)
    flags = option(2989, b"custom", order) + option(2, struct.pack(order + "I", 0xFF01), order)
    data += enhanced(b"abcde", flags, order, ticks=2)
    data += enhanced(b"abcde", b"", order, ticks=7, index=1)
    data += enhanced(b"abcde", b"", order, ticks=(1 << 33) + 5, index=2)
    reader = CaptureReader()
    got = list(reader.feed(data))
    reader.finish()
    assert [frame.when_ns for frame in got] == [2_000_000, 1_500_000_000, ((1 << 33) + 5) * 1000]
    assert [frame.interface.name for frame in got] == ["eth0", "", ""]
    assert (got[0].direction, got[1].direction) == (Direction.INBOUND, Direction.UNKNOWN)
    assert reader.skipped == {0xBAD: 1}


def test_interfaces_count_from_each_section_and_direction_3_is_none() -> None:
    data = section() + interface(option(2, b"a")) + enhanced(b"1")
    data += section(">") + interface(option(2, b"b", ">"), ">")
    data += enhanced(b"2", option(2, struct.pack(">I", 3), ">"), ">")
    assert [(f.interface.name, f.direction) for f in read_capture(data)] == [("a", 0), ("b", 0)]
    with pytest.raises(DecodeError, match="interface 1 was not described"):
        read_capture(data + enhanced(b"3", order=">", index=1))


def test_simple_packet_blocks_have_no_time() -> None:
    data = section() + interface(snaplen=4) + block(3, struct.pack("<I", 9) + b"abcd")
    (frame,) = read_capture(data)
    assert (frame.data, frame.wire_bytes, frame.when_ns) == (b"abcd", 9, None)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "unit"), [(0xA1B2C3D4, 1000), (0xA1B23C4D, 1)])
def test_classic_pcap(order: str, magic: int, unit: int) -> None:
    data = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, 0x10000001)
    data += struct.pack(order + "IIII", 3, 5, 4, 60) + b"abcd"
    data += struct.pack(order + "IIII", 4, 0, 1, 1) + b"x"
    first, second = read_capture(data)
    assert (first.data, first.wire_bytes, first.when_ns) == (b"abcd", 60, 3_000_000_000 + 5 * unit)
    assert (second.number, second.data, second.interface.linktype) == (2, b"x", 1)
    assert (first.offset, second.offset) == (24, 44)


PCAP = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
BEGUN = section() + interface()


@pytest.mark.parametrize(
    ("data", "reason", "offset"),
    [
        (b"", "is empty", 0),
        (b"\x0a\x0d", "ends 2 bytes into a block", 0),
        (b"GIF89a", "begins 47494638: neither pcapng nor pcap", 0),
        (section()[:8] + bytes(20), "byte-order magic 00000000", 8),
        (section(major=2), "pcapng version 2", 12),
        (BEGUN + struct.pack("<III", 6, 8, 0), "a block of 8 bytes", 52),
        (BEGUN + struct.pack("<III", 6, 14, 0), "a block of 14 bytes", 52),
        (BEGUN + struct.pack("<III", 9, BLOCK_BYTES_MAX + 4, 0), "a block of 1048580 bytes", 52),
        (BEGUN + struct.pack("<III", 9, 12, 16), "a block of 12 bytes says 16 at its end", 56),
        (BEGUN + enhanced(b"abcde")[:-1], "ends 39 bytes into a block", 48),
        (section() + enhanced(b"a"), "interface 0 was not described", 36),
        (BEGUN + block(6, bytes(16)), "a block body of 16 bytes, needs 20", 56),
        (BEGUN + block(6, struct.pack("<5I", 0, 0, 0, 5, 9) + bytes(4)), "5 bytes of a frame of 9", 68),
        (BEGUN + block(6, struct.pack("<5I", 0, 0, 0, 4, 3) + bytes(4)), "4 bytes of a frame of 3", 68),
        (BEGUN + enhanced(b"abcd", struct.pack("<HHI", 2, 8, 0)), "option 2 of 8 bytes passes its block", 80),
        (BEGUN + block(3, struct.pack("<I", 5) + bytes(4)), "a frame of 5 bytes in a block too short", 56),
        (BEGUN + block(5, struct.pack("<III", 1, 0, 0)), "interface 1 was not described", 56),
        (PCAP[:20], "ends 20 bytes into a block", 0),
        (struct.pack("<IHHiIII", 0xA1B2C3D4, 3, 4, 0, 0, 65535, 1), "pcap version 3", 4),
        (PCAP + struct.pack("<IIII", 0, 0, 5, 4), "5 bytes of a frame of 4", 32),
        (PCAP + struct.pack("<IIII", 0, 0, 1 << 21, 1 << 21), "2097152 bytes of a frame of 2097152", 32),
        (PCAP + struct.pack("<IIII", 0, 0, 4, 4) + b"abc", "ends 19 bytes into a block", 24),
    ],
)
def test_what_is_damaged_is_refused_with_its_offset(data: bytes, reason: str, offset: int) -> None:
    with pytest.raises(DecodeError) as caught:
        read_capture(data)
    assert reason in caught.value.reason
    assert (caught.value.layer, caught.value.offset) == ("capture", offset)


def test_frames_before_the_damage_are_given() -> None:
    reader = CaptureReader()
    frames = reader.feed(BEGUN + enhanced(b"abcd") + struct.pack("<III", 6, 8, 0))
    assert next(frames).data == b"abcd"
    with pytest.raises(DecodeError, match="a block of 8 bytes"):
        next(frames)


def test_interfaces_without_end_are_refused() -> None:
    data = section() + interface() * INTERFACES_MAX
    assert read_capture(data) == []
    with pytest.raises(DecodeError, match="more than 4096 interfaces"):
        read_capture(data + interface())


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: CaptureWriter([Interface("a" * 256)]).header(), "a text of 256 bytes"),
        (lambda: CaptureWriter([Interface("a", resolution=6)]).header(), "written in nanoseconds"),
        (lambda: CaptureWriter(PORTS[:1] * (INTERFACES_MAX + 1)), "4097 interfaces"),
        (lambda: CaptureWriter(PORTS[:1] * INTERFACES_MAX).add_interface(PORTS[0]), "more than 4096"),
        (lambda: CaptureWriter(PORTS).packets(2, 0, FRAMES), "interface 2 of 2"),
        (lambda: CaptureWriter(PORTS).statistics(-1, 0, received=0, dropped=0), "interface -1 of 2"),
        (lambda: CaptureWriter(PORTS).packets(0, 0, np.zeros((1, 9217), np.uint8)), "a frame of 9217 bytes"),
    ],
)
def test_misuse_of_the_writer(misuse: Callable[[], object], message: str) -> None:
    with pytest.raises(LocalMisuse, match=message):
        misuse()


def test_a_name_commands_no_terminal() -> None:
    writer = CaptureWriter((Interface("eth1\x1b]0;title\x07\r\n"),))
    [frame] = read_capture(writer.header() + bytes(writer.packets(0, 1, FRAMES[:1], Direction.INBOUND)))
    assert frame.interface.name == "eth1\ufffd]0;title\ufffd\ufffd\ufffd"
