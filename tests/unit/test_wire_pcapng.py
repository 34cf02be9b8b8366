"""Captures: the layout that we write, round trips, what others write, and everything that is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.files.capture_reader import BLOCK_BYTES_MAX, CaptureReader, read_capture
from inaproto.wire.files.pcapng import INTERFACES_MAX, CapturedFrame, CaptureWriter, Direction, Interface

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


def interface(options: bytes = b"", order: str = "<", snaplen: int = 0, linktype: int = 1) -> bytes:
    return block(1, struct.pack(order + "HHI", linktype, 0, snaplen) + options, order)


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


def test_the_layout_without_options_and_of_statistics() -> None:
    """No flags where the direction is unknown, no name where there is none; times in two words."""
    writer = CaptureWriter([Interface("", linktype=0xFF01, snaplen=0xFFFF_FFFC)])
    assert writer.header().endswith(interface(option(9, b"\x09") + bytes(4), "<", 0xFFFF_FFFC, 0xFF01))
    ticks = struct.pack("<II", 0x1234_5678, 0x9ABC_DEF0)
    one = block(6, struct.pack("<I", 0) + ticks + struct.pack("<II", 5, 5) + bytes(range(5)))
    when = 0x1234_5678_9ABC_DEF0
    assert writer.packets(0, when, FRAMES[:1, :5]).tobytes() == one
    counts = option(4, struct.pack("<Q", 1 << 63)) + option(5, struct.pack("<Q", 2)) + bytes(4)
    last = writer.statistics(0, when, received=1 << 63, dropped=2)
    assert last == block(5, struct.pack("<I", 0) + ticks + counts)


def test_who_wrote_it_is_in_the_section_unless_another_says_so() -> None:
    fixed = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
    assert CaptureWriter([]).header() == block(0x0A0D0D0A, fixed + option(4, b"inaproto") + bytes(4))


def test_a_long_batch_and_the_largest_frames_texts_and_losses() -> None:
    writer = CaptureWriter([Interface("n" * 255)])
    lost = (1 << 64) - 1
    data = writer.header() + writer.packets(0, 0, np.zeros((2000, 1), np.uint8)).tobytes()
    data += writer.packets(0, 0, np.zeros((2, 9216), np.uint8), dropped=lost).tobytes()
    got = read_capture(data)
    assert [len(frame.data) for frame in got] == [1] * 2000 + [9216] * 2
    assert [frame.dropped for frame in got] == [0] * 2000 + [lost, 0]
    assert got[0].interface.name == "n" * 255


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


@pytest.mark.parametrize("kept", [b"abcd", b"abcde"])
def test_simple_packet_blocks_have_no_time(kept: bytes) -> None:
    """With padding behind the frame, and without."""
    data = section() + interface(snaplen=len(kept)) + block(3, struct.pack("<I", 0xFFFF_FFFF) + kept)
    (frame,) = read_capture(data)
    port = Interface("", snaplen=len(kept), resolution=6)
    assert frame == CapturedFrame(1, port, None, Direction.UNKNOWN, kept, 0xFFFF_FFFF, 0, 48)


def test_what_others_say_of_interfaces_beside_what_is_asked() -> None:
    """A comment, the speed (8 bytes), one byte of an option of somebody's own; names are what they are."""
    options = option(1, b"a comment") + option(2, b"caf\xe9") + option(8, bytes(8)) + option(0x8001, b"\x03")
    options += bytes(4) + option(2, b"behind the end")
    reader = CaptureReader()
    begun = section() + interface(option(14, struct.pack("<q", 1)) + options, "<", 0xFFFF_FFFF, 0xFF01)
    assert list(reader.feed(begun)) == []
    assert reader.interfaces == [Interface("caf\ufffd", 0xFF01, 0xFFFF_FFFF, 6, 1)]


def test_what_others_say_of_frames_beside_what_is_asked() -> None:
    """A long comment, the packet's id (8 bytes) and its queue (4) are neither losses nor a direction."""
    lost = option(4, struct.pack("<Q", 1 << 63)) + option(2, struct.pack("<I", 2))
    options = option(1, bytes(40_000)) + lost + option(5, b"\1" * 8) + option(6, b"\1" * 4)
    (frame,) = read_capture(BEGUN + enhanced(b"abcde", options, ticks=0xFFFF_FFFF))
    port = Interface("", resolution=6)
    assert frame == CapturedFrame(
        1, port, 0xFFFF_FFFF * 1000, Direction.OUTBOUND, b"abcde", 5, 1 << 63, offset=48
    )


def test_what_others_say_in_statistics_beside_what_is_asked() -> None:
    """When the capture began (8 bytes) is no count; counts have all their 64 bits."""
    counts = option(5, struct.pack("<Q", 1 << 63)) + option(2, bytes(8)) + option(4, struct.pack("<Q", 3))
    reader = CaptureReader()
    assert list(reader.feed(BEGUN + block(5, bytes(12) + counts + option(6, bytes(8))))) == []
    assert (reader.received, reader.lost) == ({0: 3}, {0: 1 << 63})


def test_unknown_blocks_are_counted_by_type_and_may_be_as_large_as_any() -> None:
    reader = CaptureReader()
    largest = block(0x8000_0001, bytes(BLOCK_BYTES_MAX - 12))
    assert len(largest) == BLOCK_BYTES_MAX
    assert list(reader.feed(BEGUN + largest + block(0x8000_0001, b"") + block(2, b""))) == []
    reader.finish()
    assert reader.skipped == {0x8000_0001: 2, 2: 1}


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


def test_classic_pcap_says_no_direction_and_has_unsigned_words() -> None:
    """Times after 2038, and a record as large as any."""
    data = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 0xFFFF_FFFF, 1)
    data += struct.pack("<IIII", 0xFFFF_FFFF, 0, BLOCK_BYTES_MAX, 0xFFFF_FFFF) + bytes(BLOCK_BYTES_MAX)
    (frame,) = read_capture(data)
    assert frame[:4] == (1, Interface("", snaplen=0xFFFF_FFFF), 0xFFFF_FFFF * 10**9, Direction.UNKNOWN)
    assert frame[4:] == (bytes(BLOCK_BYTES_MAX), 0xFFFF_FFFF, 0, 24)


PCAP = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
BEGUN = section() + interface()


@pytest.mark.parametrize(
    ("data", "reason", "offset"),
    [
        (b"", "is empty", 0),
        (b"\x0a\x0d", "ends 2 bytes into a block", 0),
        (b"GIF8", "begins 47494638: neither pcapng nor pcap", 0),
        (section()[:8] + bytes(20), "byte-order magic 00000000", 8),
        (section(major=2), "pcapng version 2", 12),
        (section(major=0xFF01), "pcapng version 65281", 12),
        (block(0x0A0D0D0A, struct.pack("<II", 0x1A2B3C4D, 1)), "a block body of 8 bytes, needs 16", 8),
        (BEGUN + block(1, bytes(4)), "a block body of 4 bytes, needs 8", 56),
        (BEGUN + interface(struct.pack("<HH", 2, 1)), "option 2 of 1 bytes passes its block", 64),
        (BEGUN + struct.pack("<III", 6, 8, 0), "a block of 8 bytes", 52),
        (BEGUN + struct.pack("<III", 6, 0x8000_0000, 0), "a block of 2147483648 bytes", 52),
        (BEGUN + struct.pack("<III", 6, 14, 0), "a block of 14 bytes", 52),
        (BEGUN + struct.pack("<III", 9, BLOCK_BYTES_MAX + 4, 0), "a block of 1048580 bytes", 52),
        (BEGUN + struct.pack("<III", 9, 12, 16), "a block of 12 bytes says 16 at its end", 56),
        (BEGUN + struct.pack("<IIi", 9, 12, -1), "a block of 12 bytes says 4294967295 at its end", 56),
        (BEGUN + enhanced(b"abcde")[:-1], "ends 39 bytes into a block", 48),
        (section() + enhanced(b"a"), "interface 0 was not described", 36),
        (BEGUN + enhanced(b"a", index=0xFFFF_FFFF), "interface 4294967295 was not described", 56),
        (BEGUN + block(6, bytes(16)), "a block body of 16 bytes, needs 20", 56),
        (BEGUN + block(6, struct.pack("<5I", 0, 0, 0, 5, 9) + bytes(4)), "5 bytes of a frame of 9", 68),
        (BEGUN + block(6, struct.pack("<5I", 0, 0, 0, 4, 3) + bytes(4)), "4 bytes of a frame of 3", 68),
        (BEGUN + enhanced(b"abcd", struct.pack("<HHI", 2, 8, 0)), "option 2 of 8 bytes passes its block", 80),
        (BEGUN + block(3, struct.pack("<I", 5) + bytes(4)), "a frame of 5 bytes in a block too short", 56),
        (BEGUN + block(3, b""), "a block body of 0 bytes, needs 4", 56),
        (section() + block(3, bytes(4)), "interface 0 was not described", 36),
        (BEGUN + block(5, bytes(8)), "a block body of 8 bytes, needs 12", 56),
        (BEGUN + block(5, struct.pack("<III", 1, 0, 0)), "interface 1 was not described", 56),
        (BEGUN + block(5, struct.pack("<iII", -1, 0, 0)), "interface 4294967295 was not described", 56),
        (BEGUN + block(5, bytes(12) + struct.pack("<HH", 4, 8)), "option 4 of 8 bytes passes its block", 68),
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
    assert caught.value.reason.startswith(reason)
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
    with pytest.raises(DecodeError, match="more than 4096 interfaces") as caught:
        read_capture(data + interface())
    assert (caught.value.layer, caught.value.offset) == ("capture", len(data))


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
