"""The ICRC blocks against zlib: many random packets, sealed and checked at several widths of the bus.

Both blocks watch one stream of frames, compiled by CXXRTL: of every packet first one with a random number for
an ICRC, to be sealed, then one that passes, as it should be or damaged. What must come out, and which are
right, is told by the definition of the ICRC (InfiniBand annex A17), here in a few lines on ``zlib.crc32``.

``python -m inaproto_hil.rtl.checks.icrc --packets 10000``
"""

from __future__ import annotations

import ctypes
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import click
import numpy as np
from amaranth.hdl import Cat, Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from numpy.typing import NDArray

from inaproto.wire.ethernet import EthernetHeader
from inaproto.wire.ipv4 import Ipv4Header
from inaproto.wire.roce import Bth, Imm, Opcode, Reth, RocePacket
from inaproto.wire.udp import UdpHeader
from inaproto_hil.rtl.icrc import IcrcCheck, IcrcSeal
from inaproto_hil.rtl.layout import Beat
from inaproto_hil.rtl.simulate.build import build

WIDTHS: Final = (2, 4, 16)
PAYLOAD_WORDS_MAX: Final = 272
"""Of 1,024 bytes and an INA header."""
GAPS: Final = 0.1
"""Share of cycles without a beat."""

_WITH_RETH: Final = (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM)
_WITH_IMM: Final = (Opcode.RC_WRITE_LAST_IMM, Opcode.RC_WRITE_ONLY_IMM)
_WRITES: Final = tuple(opcode for opcode in Opcode if "WRITE" in opcode.name)
_EXAMPLES: Final = 10
_LOOP: Final = """
#include "design.h"

RTL_EXPORT void run(size_t cycles, const uint32_t *given, uint32_t *got) {
    Design design;
    uint32_t *in = nullptr, *out = nullptr;
    size_t in_words = 0, out_words = 0;
    for (const Port &port : ports_of(design)) {
        if (!strcmp(port.name, "given")) in = port.words, in_words = (port.bits + 31) / 32;
        if (!strcmp(port.name, "got")) out = port.words, out_words = (port.bits + 31) / 32;
    }
    for (size_t cycle = 0; cycle < cycles; cycle++) {
        memcpy(in, given + cycle * in_words, 4 * in_words);
        settle(design);
        memcpy(got + cycle * out_words, out, 4 * out_words);
        edge(design);
    }
}
"""


class Case(NamedTuple):
    """A frame for both blocks."""

    frame: bytes
    seal: bool
    sealed: bytes
    """What has to come out."""
    right: bool
    """Whether ``frame`` carries the right ICRC."""


def draw_packet(random: Random, opcode: Opcode | None = None, payload_words: int | None = None) -> bytes:
    """A sealed write packet with any opcode, any payload of whole words, and anything in all other fields."""
    if opcode is None:
        opcode = random.choice(_WRITES)
    if payload_words is None:
        payload_words = min(int(random.expovariate(1 / 40)), PAYLOAD_WORDS_MAX)
    reth = Reth(va=random.getrandbits(64), rkey=random.getrandbits(32), dma_length=random.getrandbits(32))
    return RocePacket(
        eth=EthernetHeader(dst=random.randbytes(6), src=random.randbytes(6)),
        ip=Ipv4Header(
            src=random.randbytes(4),
            dst=random.randbytes(4),
            total_length=0,
            identification=random.getrandbits(16),
            ttl=random.getrandbits(8),
            tos=random.getrandbits(8),
        ),
        udp=UdpHeader(src_port=0xC000 | random.getrandbits(14), length=0, checksum=random.getrandbits(16)),
        bth=Bth(
            opcode=opcode,
            dest_qp=random.getrandbits(24),
            psn=random.getrandbits(24),
            ack_request=random.random() < 0.5,
            pkey=random.getrandbits(16),
            congestion=random.getrandbits(8),
        ),
        reth=reth if opcode in _WITH_RETH else None,
        imm=Imm(random.getrandbits(32)) if opcode in _WITH_IMM else None,
        payload=random.randbytes(4 * payload_words),
    ).encode_frame()


def damaged(random: Random, frame: bytes) -> bytes:
    """The frame with a bit or a few flipped, a lost end, other lengths, or a part of it only."""
    kind = random.randrange(6)
    if kind < 3:
        changed = bytearray(frame)
        for _ in range(random.choice((1, 1, 2, 5))):
            changed[random.randrange(14, 60 if kind else len(frame))] ^= 1 << random.randrange(8)
        return bytes(changed)
    if kind == 3:
        length = int.from_bytes(frame[16:18], "big") + random.choice((-40, -4, -2, -1, 1, 2, 4, 8))
        return frame[:16] + (length & 0xFFFF).to_bytes(2, "big") + frame[18:]
    return frame[: random.randint(1, len(frame)) if kind == 4 else max(1, len(frame) - random.randint(1, 8))]


def definition(frame: bytes) -> int | None:
    """The ICRC that the frame's datagram should end with; None where there cannot be one at whole words."""
    length = int.from_bytes(frame[16:18], "big") if len(frame) >= 18 else 0
    if length < 44 or length % 4 or 14 + length > len(frame):
        return None
    counted = bytearray(b"\xff" * 8 + frame[14 : 10 + length])
    for offset in (1, 8, 10, 11, 26, 27, 32):
        counted[8 + offset] = 0xFF
    return zlib.crc32(counted)


def is_right(frame: bytes) -> bool:
    """Whether the word at the end of the frame's datagram is what the definition wants there."""
    end = 14 + int.from_bytes(frame[16:18], "big")
    return definition(frame) == int.from_bytes(frame[end - 4 : end], "little")


def cases(packets: int, seed: int = 0, icrc_of: Callable[[bytes], int | None] = definition) -> Iterator[Case]:
    """Two frames for each packet. ``icrc_of`` tells which ICRC a packet that is not damaged should have."""
    random = Random(seed)
    for _ in range(packets):
        frame = draw_packet(random)
        icrc = icrc_of(frame)
        assert icrc is not None, "a packet without an ICRC was drawn"
        sealed = frame[:-4] + icrc.to_bytes(4, "little")
        unsealed = frame[:-4] + random.randbytes(4)
        yield Case(unsealed, True, sealed, unsealed == sealed)
        kind = random.random()
        if kind < 0.5:
            yield Case(sealed, False, sealed, True)
        elif kind < 0.7:
            padded = sealed + random.randbytes(random.choice((1, 2, 3, 4, random.randrange(80))))
            yield Case(padded, False, padded, True)
        else:
            passing = damaged(random, sealed)
            yield Case(passing, False, passing, is_right(passing))


class _Bench(wiring.Component):
    """Both blocks behind one number in and one number out, so that the loop in C++ need not know them."""

    def __init__(self, words: int) -> None:
        self.words = words
        self.seal = IcrcSeal(words)
        self.check = IcrcCheck(words)
        self.given_layout = data.StructLayout({"beat": Beat(words), "valid": 1, "seal": 1})
        super().__init__({"given": In(self.given_layout), "got": Out(Beat(words).size + 3)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.seal = seal = self.seal
        m.submodules.check = check = self.check
        m.d.comb += [
            seal.en.eq(1),
            seal.valid.eq(self.given.valid),
            seal.beat.eq(self.given.beat),
            seal.seal.eq(self.given.seal),
            check.valid.eq(self.given.valid),
            check.beat.eq(self.given.beat),
            self.got.eq(Cat(seal.out, seal.out_valid, check.done, check.ok)),
        ]
        return m


class CompiledBench:
    """Both blocks for a bus of so many words, as a function in C++.

    Raises ``Unsupported`` where there is no C++ compiler.
    """

    def __init__(self, words: int) -> None:
        self.words = words
        bench = _Bench(words)
        self.latency = max(bench.seal.latency, bench.check.latency)
        with TemporaryDirectory() as directory:
            loop = Path(directory) / "loop.cc"
            loop.write_text(_LOOP)
            library = build(bench, name="icrc_bench", sources=[loop])
        self._run = ctypes.CDLL(str(library)).run
        self._run.restype = None

    def __call__(
        self, frames: Sequence[bytes], seals: Sequence[bool], seed: int = 0
    ) -> tuple[list[bytes], list[bool]]:
        """(What came out as frames, what the check said of each), with gaps between beats at random."""
        given = self._rows(frames, seals, seed)
        got = np.zeros((len(given), self.words + 1), np.uint32)
        self._run(
            ctypes.c_size_t(len(given)), ctypes.c_void_p(given.ctypes.data), ctypes.c_void_p(got.ctypes.data)
        )
        control, size_bits = got[:, -1], (4 * self.words).bit_length()
        sizes = control & ((1 << size_bits) - 1)
        first, last, valid, done, ok = (
            (control >> (size_bits + bit) & 1).astype(np.bool_) for bit in range(5)
        )
        out, size, first, last = got[valid, :-1], sizes[valid], first[valid], last[valid]
        begins, ends = np.flatnonzero(first), np.flatnonzero(last)
        if len(begins) != len(ends):
            raise AssertionError(f"{len(begins)} first beats came out, and {len(ends)} last ones")
        sealed = [
            out[begin : end + 1].tobytes()[2 : 4 * self.words * (end - begin) + size[end]]
            for begin, end in zip(begins, ends, strict=True)
        ]
        return sealed, ok[done].tolist()

    def _rows(self, frames: Sequence[bytes], seals: Sequence[bool], seed: int) -> NDArray[np.uint32]:
        """The words of ``given`` in each cycle: those of the bus, then one with all else."""
        width = 4 * self.words
        lengths = np.array([2 + len(frame) for frame in frames])
        beats = -(-lengths // width)
        ends = np.cumsum(beats) - 1
        bus = b"".join(
            (b"\0\0" + frame).ljust(width * n, b"\0") for frame, n in zip(frames, beats, strict=True)
        )
        size = np.full(ends[-1] + 1, width)
        size[ends] = lengths - width * (beats - 1)
        first, last = np.zeros_like(size), np.zeros_like(size)
        first[ends - beats + 1] = 1
        last[ends] = 1
        seal = np.repeat(np.array(seals, np.int64), beats)
        size_bits = width.bit_length()
        control = (
            size | first << size_bits | last << size_bits + 1 | 1 << size_bits + 2 | seal << size_bits + 3
        )

        rng = np.random.default_rng(seed)
        cycles = np.cumsum(rng.geometric(1 - GAPS, len(size))) - 1
        # What stands on the bus without ``valid`` means nothing.
        rows = rng.integers(0, 1 << 32, (cycles[-1] + 1 + self.latency, self.words + 1), np.uint32)
        rows[:, -1] &= (1 << size_bits + 4) - 1 - (1 << size_bits + 2)
        rows[cycles, :-1] = np.frombuffer(bus, "<u4").reshape(-1, self.words)
        rows[cycles, -1] = control
        return rows


def compare(bench: CompiledBench, drawn: Sequence[Case], seed: int = 0) -> list[str]:
    """What is not as it has to be, a line each."""
    outs, rights = bench([case.frame for case in drawn], [case.seal for case in drawn], seed)
    if not len(outs) == len(rights) == len(drawn):
        return [f"of {len(drawn)} frames, {len(outs)} came out, and {len(rights)} were judged"]
    wrong = []
    for case, out, right in zip(drawn, outs, rights, strict=True):
        if out != case.sealed:
            wrong.append(f"{case.frame.hex()} came out as {out.hex()}, not as {case.sealed.hex()}")
        if right != case.right:
            wrong.append(f"{case.frame.hex()} is {'right' if right else 'wrong'} to the check")
    return wrong


def check_icrc(packets: int, widths: Sequence[int] = WIDTHS, seed: int = 0) -> dict[str, Any]:
    """Seals and checks ``packets`` packets at each width. ``mismatches`` of the result has to be 0."""
    drawn = list(cases(packets, seed))
    report: dict[str, Any] = {
        "packets": packets,
        "frames": len(drawn),
        "right": sum(case.right for case in drawn),
        "mismatches": 0,
        "widths": [],
        "examples": [],
    }
    for words in widths:
        started = time.perf_counter()
        bench = CompiledBench(words)
        built = time.perf_counter()
        wrong = compare(bench, drawn, seed)
        run_s = time.perf_counter() - built
        report["widths"].append(
            {"words": words, "mismatches": len(wrong), "build_s": built - started, "run_s": run_s}
        )
        report["mismatches"] += len(wrong)
        report["examples"] += [f"{words} words: {line}" for line in wrong[:_EXAMPLES]]
    return report


@click.command()
@click.option("--packets", default=10_000, show_default=True, type=click.IntRange(1), help="At each width.")
@click.option("--seed", default=0, show_default=True)
def main(packets: int, seed: int) -> None:
    """Compares the ICRC blocks with zlib; 1 if they differ."""
    report = check_icrc(packets, seed=seed)
    for row in report["widths"]:
        click.echo(
            f"{row['words']:>2} words: {row['mismatches']} of {report['frames']:,} frames differ; "
            f"{row['build_s']:.0f} s to build, {row['run_s']:.1f} s to run"
        )
    for example in report["examples"]:
        click.echo(example)
    click.echo(f"{report['mismatches']} differ; {report['right']:,} of {report['frames']:,} ICRCs were right")
    sys.exit(report["mismatches"] > 0)


if __name__ == "__main__":
    main()
