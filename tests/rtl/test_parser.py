"""The parser reads in every frame what the golden functions do (NetReduce section 4; inaproto.wire)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import pytest

pytest.importorskip("amaranth")

from amaranth.sim import Simulator

from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.roce import Opcode
from inaproto_hil.rtl.layout import SEEN
from inaproto_hil.rtl.parameters import HEAD_WORDS
from inaproto_hil.rtl.parser import INA_FIELDS, Parser
from tests.rtl import frames as drawn

HEAD_BYTES = 4 * HEAD_WORDS


def check(frames: Iterable[bytes]) -> Counter[str]:
    """Have the parser read all frames; returns for each field how often it held and was not zero."""
    parser = Parser()
    held: Counter[str] = Counter()
    where = {name: (SEEN[name].offset, (1 << SEEN[name].width) - 1) for name, _ in SEEN}

    async def bench(ctx: Any) -> None:
        for frame in frames:
            ctx.set(parser.head, int.from_bytes(drawn.aligned(frame)[:HEAD_BYTES], "little"))
            ctx.set(parser.frame_bytes, len(frame))
            bits = ctx.get(parser.seen.as_value())
            expected = drawn.golden(frame)
            got = {name: bits >> where[name][0] & where[name][1] for name in expected}
            assert got == expected, frame.hex()
            held.update(name for name, value in expected.items() if value)

    simulator = Simulator(parser)
    simulator.add_testbench(bench)
    simulator.run()
    return held


def test_random_frames_are_read_as_the_golden_functions_do() -> None:
    held = check(drawn.frames(1, 5000))
    assert set(held) == {name for name, _ in SEEN}
    least = {"roce": 600, "lenient": 900, "magic": 100, "ina_last": 30, "ina_result": 30, "contradicts": 20}
    assert all(held[name] >= count for name, count in least.items()), held
    assert held["lenient"] >= held["roce"] + 200
    assert held["magic"] >= held["ring_size"] + 50, "headers with the magic and a fault"


def test_every_opcode_payload_and_pad_around_the_sizes_that_matter() -> None:
    """Whether a payload has room for an INA header, and a datagram for its headers and pad."""
    check(_sizes(Random(2)))


def _sizes(rng: Random) -> Iterator[bytes]:
    for opcode in Opcode:
        for size in (0, 1, 2, 3, 4, *range(INA_HEADER_BYTES - 4, INA_HEADER_BYTES + 5)):
            payload = drawn.ina_header(rng).encode().ljust(size, b"\x05")[:size]
            frame = bytearray(drawn.packet(rng, opcode, payload).encode_frame())
            for pad in range(4):
                frame[43] = frame[43] & 0xCF | pad << 4
                yield bytes(frame)
                yield bytes(frame[:-1])
    frame = bytearray(drawn.packet(rng, Opcode.RC_SEND_ONLY, rng.randbytes(80)).encode_frame())
    for other in range(256):
        frame[42] = other
        yield bytes(frame)


def test_a_frame_cut_off_anywhere() -> None:
    check(_cut(Random(3)))


def _cut(rng: Random) -> Iterator[bytes]:
    """Also where the bytes that miss are zeros: those that the parser is given in their place."""
    only = drawn.packet(rng, Opcode.RC_WRITE_ONLY_IMM, drawn.ina_header(rng).encode()).encode_frame()
    tags = bytes.fromhex("8100000588a800068100a007")
    options = bytearray(only)
    options[14] = 0x4F
    longest = only[:12] + tags + options[12:34] + rng.randbytes(40) + only[34:]
    arp = bytes(11) + b"\0" + bytes.fromhex("08060001080006040001") + bytes(20)
    zeros = bytearray(longest)
    zeros[94:] = bytes(len(zeros) - 94)
    for frame in only, longest, arp, bytes(zeros), only[:12] + tags + only[12:]:
        for size in range(1, len(frame) + 1):
            yield frame[:size]


def test_every_field_of_an_ina_header_at_its_borders() -> None:
    check(_headers(Random(4)))


def _headers(rng: Random) -> Iterator[bytes]:
    for opcode in Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM:
        header = drawn.ina_header(rng).encode()
        frame = drawn.packet(rng, opcode, header + bytes(8)).encode_frame()
        begin = frame.index(header)
        for at in (4, 5, 6, 7):
            for value in range(256):
                yield frame[: begin + at] + bytes([value]) + frame[begin + at + 1 :]
        for at in range(INA_HEADER_BYTES):
            for bit in range(8):
                yield frame[: begin + at] + bytes([frame[begin + at] ^ 1 << bit]) + frame[begin + at + 1 :]
        for rank, size in (
            (0, 0),
            (0, 1),
            (1, 1),
            (255, 256),
            (256, 255),
            (0xFFFE, 0xFFFF),
            (0xFFFF, 0xFFFF),
        ):
            pair = rank.to_bytes(2, "big") + size.to_bytes(2, "big")
            yield frame[: begin + 24] + pair + frame[begin + 28 :]


def test_every_number_of_tags_and_options() -> None:
    check(_shifted(Random(5)))


def _shifted(rng: Random) -> Iterator[bytes]:
    """Header lengths that fit what is there or do not; frames that end with the destination QP, or before."""
    for tags in range(5):
        for words in range(11):
            plain = drawn.packet(rng, rng.choice(list(Opcode)), rng.randbytes(60)).encode_frame()
            for ihl in {5 + words, rng.randrange(16), rng.randrange(5)}:
                for ethertype in b"\x08\x00", b"\x08\x06":
                    head = (
                        plain[:12] + b"".join(b"\x81\x00" + rng.randbytes(2) for _ in range(tags)) + ethertype
                    )
                    ip = bytes([0x40 | ihl]) + plain[15:34] + rng.randbytes(4 * words)
                    frame = head + ip + plain[34:]
                    bth = 14 + 4 * (tags + words) + 20 + 8
                    yield from (frame, frame[: bth + 8], frame[: bth + 7])


def test_no_header_length_below_five_words() -> None:
    """Where the UDP port would be right for any header length: it then lies in the addresses."""
    check(_ports(Random(7)))


def _ports(rng: Random) -> Iterator[bytes]:
    for tags in range(4):
        for ihl in range(16):
            plain = drawn.packet(rng, Opcode.RC_SEND_ONLY, rng.randbytes(60)).encode_frame()
            words = b"".join(rng.randbytes(2) + b"\x12\xb7" for _ in range(12))  # addresses and options
            ip = bytes([0x40 | ihl]) + plain[15:26] + words
            yield plain[:12] + b"\x88\xa8\0\1" * tags + b"\x08\x00" + ip + plain[34:]


def test_the_longest_frames() -> None:
    rng = Random(6)
    frame = drawn.packet(rng, Opcode.RC_WRITE_MIDDLE, rng.randbytes(0xFFFE - 58)).encode_frame() + b"\0"
    assert len(frame) == 0xFFFF
    past = bytearray(frame)  # a datagram that ends where 16 bits do not reach
    past[16:18], past[38:40] = b"\xff\xff", (0xFFFF - 20).to_bytes(2, "big")
    check([frame, frame[:-1], frame[:-2], bytes(past)])


def test_fields_of_the_ina_header_are_those_of_the_layout() -> None:
    assert tuple(name for name, _, _ in INA_FIELDS) == drawn.INA_FIELDS
    assert all(SEEN[name].width == 8 * size for name, _, size in INA_FIELDS)
