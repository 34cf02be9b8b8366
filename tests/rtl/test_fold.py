"""The lanes of the RTL against the software's reductions, bit for bit. Millions of operands:
``inaproto_hil.rtl.checks.lanes``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

pytest.importorskip("amaranth")

from amaranth.sim import Simulator

from inaproto.wire.ina_header import Dtype, Op
from inaproto_hil.rtl.checks.lanes import Elements, expected, operands, specials
from inaproto_hil.rtl.fold import DTYPES, Fold


@dataclass
class Beat:
    dtype: Dtype
    op: Op
    members: int
    inputs: list[bytes]

    @property
    def result(self) -> bytes:
        rows = [np.frombuffer(x, f"u{self.dtype.itemsize}") for x in self.inputs[: self.members]]
        return expected(self.dtype, self.op, rows).tobytes()


def cut(dtype: Dtype, op: Op, members: int, words: int, drawn: Elements) -> list[Beat]:
    """Beats of ``drawn[child, element]``, all but what is left in the end."""
    size = 4 * words
    rows = [x.tobytes() for x in np.ascontiguousarray(drawn)]
    ends = range(size, len(rows[0]) + 1, size)
    return [Beat(dtype, op, members, [x[end - size : end] for x in rows]) for end in ends]


def check(fold: Fold, beats: list[Beat], enabled: float = 1.0) -> None:
    """Every result is right and comes after ``latency`` of the cycles with ``en``, the share ``enabled`` of
    all; in the others noise is at the inputs."""
    rng = np.random.default_rng(1)
    wrong: list[str] = []

    async def bench(ctx: Any) -> None:
        for cycle in range(len(beats) + fold.latency):
            while rng.random() >= enabled:
                before = ctx.get(fold.output)
                ctx.set(fold.en, 0)
                ctx.set(fold.inputs[0], int(rng.integers(1 << 32)))
                ctx.set(fold.dtype, int(rng.integers(4)))
                ctx.set(fold.members, 1)
                await ctx.tick()
                assert ctx.get(fold.output) == before
            ctx.set(fold.en, 1)
            if cycle < len(beats):
                beat = beats[cycle]
                ctx.set(fold.dtype, beat.dtype)
                ctx.set(fold.op, beat.op)
                ctx.set(fold.members, beat.members)
                for port, row in zip(fold.inputs, beat.inputs, strict=True):
                    ctx.set(port, int.from_bytes(row, "little"))
            if cycle >= fold.latency:
                beat = beats[cycle - fold.latency]
                got = ctx.get(fold.output).to_bytes(len(beat.result), "little")
                if got != beat.result:
                    wrong.append(f"{beat}: {got.hex()}, not {beat.result.hex()}")
            await ctx.tick()

    simulator = Simulator(fold)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_special_values_with_one_another(dtype: Dtype) -> None:
    values = specials(dtype)
    pairs = np.array(list(product(values, values))).T
    check(Fold(2, 2), [beat for op in Op for beat in cut(dtype, op, 2, 2, pairs)])


@pytest.mark.parametrize(("words", "children"), [(1, 2), (2, 4), (1, 5)])
def test_types_operations_and_members_mixed_and_the_pipeline_stopped_now_and_then(
    words: int, children: int
) -> None:
    rng = np.random.default_rng(words)
    beats: list[Beat] = []
    for dtype, op, members in product(DTYPES, Op, range(1, children + 1)):
        drawn = operands(rng, dtype, children, 6 * 4 * words // dtype.itemsize)
        beats += cut(dtype, op, members, words, drawn)
    check(Fold(words, children), [beats[x] for x in rng.permutation(len(beats))], enabled=0.7)


def test_absent_children_are_not_added_as_zeros() -> None:
    minus_zero = np.full((4, 2), 0x8000_0000, np.uint32)
    minus_zero[1:] = 0
    beats = cut(Dtype.F32, Op.SUM, 1, 2, minus_zero)
    assert beats[0].result == bytes.fromhex("00000080" * 2)
    check(Fold(2, 4), beats)
