"""Reductions bit for bit, judged by other formulas (``exact_reference``) and by hand-made cases."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inaproto.core.plan.reduce import reduce_into
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op
from tests.unit.exact_reference import HALF, NUMPY, QUIET_NAN, exact

FLOATS = tuple(QUIET_NAN)
PAIRS = list(itertools.product(Dtype, Op))
IDS = [f"{dtype.name}-{op.name}" for dtype, op in PAIRS]

SPECIAL = {
    # +0 -0 1, denormals, least normal, greatest, infinities, NaN of several signs and payloads
    Dtype.F32: (
        *(0, 0x8000_0000, 0x3F80_0000, 1, 0x007F_FFFF, 0x8000_0001, 0x0080_0000, 0x7F7F_FFFF),
        *(0xFF7F_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0xFFC0_0001, 0x7F80_0001, 0xFFFF_FFFF),
    ),
    Dtype.F64: (
        *(0, 1 << 63, 0x3FF << 52, 1, (1 << 52) - 1, (1 << 63) + 1, 1 << 52, 0x7FEF_FFFF_FFFF_FFFF),
        *(
            0xFFEF_FFFF_FFFF_FFFF,
            0x7FF << 52,
            0xFFF << 52,
            0x7FF8 << 48,
            (0xFFF8 << 48) + 1,
            (0x7FF << 52) + 1,
        ),
    ),
    Dtype.F16: (
        *(0, 0x8000, 0x3C00, 1, 0x03FF, 0x8001, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00),
        *(0x7E00, 0xFE01, 0x7C01, 0xFFFF),
    ),
    Dtype.BF16: (
        *(0, 0x8000, 0x3F80, 1, 0x007F, 0x8001, 0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80),
        *(0x7FC0, 0xFFC1, 0x7F81, 0xFFFF),
    ),
}


def reduced(dtype: Dtype, op: Op, inputs: Sequence[bytes]) -> bytes:
    rows = [np.frombuffer(data, np.uint8)[None] for data in inputs]
    out = np.full_like(rows[0], 0xA5)
    reduce_into(dtype, op, rows, out)
    return out.tobytes()


def packed(dtype: Dtype, values: Sequence[Any]) -> bytes:
    return np.array(values, NUMPY[dtype]).tobytes()


def bits(dtype: Dtype, words: Sequence[int]) -> bytes:
    return b"".join(word.to_bytes(dtype.itemsize, "little") for word in words)


@pytest.mark.parametrize(("dtype", "op"), PAIRS, ids=IDS)
@settings(max_examples=60)
@given(data=st.data())
def test_any_bytes_reduce_as_the_reference_says(dtype: Dtype, op: Op, data: st.DataObject) -> None:
    elements = data.draw(st.integers(1, 40))
    ranks = data.draw(st.integers(1, 6))
    size = elements * dtype.itemsize
    inputs = data.draw(st.lists(st.binary(min_size=size, max_size=size), min_size=ranks, max_size=ranks))
    assert reduced(dtype, op, inputs) == exact(dtype, op, inputs)


@pytest.mark.parametrize(("dtype", "op"), PAIRS, ids=IDS)
def test_whole_packets_of_random_bits_and_of_numbers(dtype: Dtype, op: Op) -> None:
    rng = np.random.default_rng(5)
    for ranks in (2, 3, 8):
        raw = [rng.bytes(4096) for _ in range(ranks)]
        assert reduced(dtype, op, raw) == exact(dtype, op, raw)
        numbers = [(rng.standard_normal(512) * 100).astype(NUMPY[dtype]).tobytes() for _ in range(ranks)]
        assert reduced(dtype, op, numbers) == exact(dtype, op, numbers)


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_pair_and_triple_of_special_values(dtype: Dtype, op: Op) -> None:
    for ranks in (2, 3):
        columns = list(itertools.product(SPECIAL[dtype], repeat=ranks))
        inputs = [bits(dtype, [column[rank] for column in columns]) for rank in range(ranks)]
        assert reduced(dtype, op, inputs) == exact(dtype, op, inputs)


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("elements", [1, 3, 7, 8, 16, 33])
def test_any_nan_gives_the_canonical_one_and_touches_no_neighbour(
    dtype: Dtype, op: Op, elements: int
) -> None:
    negative_payload = SPECIAL[dtype][12]
    one = SPECIAL[dtype][2]
    for at in range(elements):
        mine = [one] * elements
        mine[at] = negative_payload
        got = reduced(dtype, op, [bits(dtype, [one] * elements), bits(dtype, mine)])
        size = dtype.itemsize
        assert got[at * size : (at + 1) * size] == QUIET_NAN[dtype]
        assert got.count(QUIET_NAN[dtype]) == 1 or size == 2  # two bytes may also match across elements


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinities(dtype: Dtype) -> None:
    inf, minus = SPECIAL[dtype][9], SPECIAL[dtype][10]
    one = SPECIAL[dtype][2]
    left, right = bits(dtype, [inf, minus, inf, one]), bits(dtype, [one, one, minus, inf])
    assert reduced(dtype, Op.SUM, [left, right]) == bits(dtype, [inf, minus]) + QUIET_NAN[dtype] + bits(
        dtype, [inf]
    )
    assert reduced(dtype, Op.MAX, [left, right]) == bits(dtype, [inf, one, inf, inf])
    assert reduced(dtype, Op.MIN, [left, right]) == bits(dtype, [one, minus, minus, one])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("elements", [1, 5, 64])
def test_signed_zeros_do_not_depend_on_rank_order_or_vector_lanes(dtype: Dtype, elements: int) -> None:
    plus, minus = bits(dtype, [SPECIAL[dtype][0]] * elements), bits(dtype, [SPECIAL[dtype][1]] * elements)
    for inputs in ([plus, minus], [minus, plus], [minus, plus, minus]):
        assert reduced(dtype, Op.MAX, inputs) == plus
        assert reduced(dtype, Op.MIN, inputs) == minus
        assert reduced(dtype, Op.SUM, inputs) == plus
    for op in Op:
        assert reduced(dtype, op, [minus, minus]) == minus


@pytest.mark.parametrize("dtype", FLOATS)
def test_denormals_are_not_flushed(dtype: Dtype) -> None:
    least, greatest, normal = (bits(dtype, [SPECIAL[dtype][index]]) for index in (3, 4, 6))
    assert reduced(dtype, Op.SUM, [least, greatest]) == normal
    assert reduced(dtype, Op.SUM, [least, least]) == bits(dtype, [2])


@pytest.mark.parametrize("dtype", [Dtype.I32, Dtype.I64])
def test_integers_wrap_and_compare_signed(dtype: Dtype) -> None:
    width = 8 * dtype.itemsize
    top, bottom = (1 << width - 1) - 1, -(1 << width - 1)
    left, right = packed(dtype, [top, bottom, -1, top]), packed(dtype, [1, -1, 1, bottom])
    assert reduced(dtype, Op.SUM, [left, right]) == packed(dtype, [bottom, top, 0, -1])
    assert reduced(dtype, Op.MAX, [left, right]) == packed(dtype, [top, -1, 1, top])
    assert reduced(dtype, Op.MIN, [left, right]) == packed(dtype, [1, bottom, -1, bottom])


@pytest.mark.parametrize("dtype", HALF)
def test_half_sums_are_rounded_once(dtype: Dtype) -> None:
    """1 + u + u with u half of one's last place: each single step would round back to 1."""
    half_place = {Dtype.F16: 2.0**-11, Dtype.BF16: 2.0**-8}[dtype]
    inputs = [packed(dtype, [value]) for value in (1.0, half_place, half_place)]
    assert reduced(dtype, Op.SUM, inputs) == packed(dtype, [1.0 + 2 * half_place])
    stepwise = np.frombuffer(inputs[0], NUMPY[dtype])
    for operand in inputs[1:]:
        stepwise = stepwise + np.frombuffer(operand, NUMPY[dtype])
    assert stepwise.tobytes() == packed(dtype, [1.0])


@pytest.mark.parametrize("dtype", HALF)
def test_half_sums_round_ties_to_even(dtype: Dtype) -> None:
    place = {Dtype.F16: 2.0**-10, Dtype.BF16: 2.0**-7}[dtype]
    odd, even = 1.0 + place, 1.0
    tie = place / 2
    assert reduced(dtype, Op.SUM, [packed(dtype, [odd]), packed(dtype, [tie])]) == packed(
        dtype, [1 + 2 * place]
    )
    assert reduced(dtype, Op.SUM, [packed(dtype, [even]), packed(dtype, [tie])]) == packed(dtype, [1.0])


def test_bfloat16_rounds_as_ml_dtypes_does() -> None:
    """Sums with all kinds of lower halves: ties, just below, just above, carries into the exponent."""
    rng = np.random.default_rng(11)
    words = rng.integers(0, 1 << 16, 200_000, np.uint16)
    near = words - rng.integers(0, 16 << 7, 200_000, np.uint16)  # exponents alike, so low bits survive
    inputs = [words.tobytes(), near.tobytes()]
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add(*(np.frombuffer(data, NUMPY[Dtype.BF16]).astype(np.float32) for data in inputs))
    low = sums.view(np.uint32) & 0xFFFF
    assert (low == 0x8000).any()
    assert (low > 0x8000).any()
    assert reduced(Dtype.BF16, Op.SUM, inputs) == exact(Dtype.BF16, Op.SUM, inputs)


def test_sums_run_from_left_to_right() -> None:
    values = [1e8, 1.0, -1e8]
    for order in itertools.permutations(values):
        inputs = [packed(Dtype.F32, [value]) for value in order]
        first, second, third = (np.float32(value) for value in order)
        assert reduced(Dtype.F32, Op.SUM, inputs) == packed(Dtype.F32, [(first + second) + third])


@pytest.mark.parametrize(("dtype", "op"), PAIRS, ids=IDS)
def test_strided_rows(dtype: Dtype, op: Op) -> None:
    """Rows of a payload buffer or receive buffer: contiguous elements, gaps between the rows."""
    rng = np.random.default_rng(3)
    wide = rng.integers(0, 256, (3, 6, 96), np.uint8)
    inputs = list(wide[:, ::2, 16:80])
    target = np.zeros((6, 128), np.uint8)
    reduce_into(dtype, op, inputs, target[::2, 32:96])
    assert target[::2, 32:96].tobytes() == exact(dtype, op, [rows.tobytes() for rows in inputs])
    assert not target[1::2].any()
    assert not target[:, :32].any()
    assert not target[:, 96:].any()


@pytest.mark.parametrize(("dtype", "op"), PAIRS, ids=IDS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_output_may_be_the_first_input(dtype: Dtype, op: Op, ranks: int) -> None:
    rng = np.random.default_rng(4)
    rows = [rng.integers(0, 256, (5, 64), np.uint8) for _ in range(ranks)]
    expected = exact(dtype, op, [row.tobytes() for row in rows])
    kept = [row.copy() for row in rows[1:]]
    reduce_into(dtype, op, rows, rows[0])
    assert rows[0].tobytes() == expected
    assert all((row == copy).all() for row, copy in zip(rows[1:], kept, strict=True))


@pytest.mark.parametrize(("dtype", "op"), PAIRS, ids=IDS)
def test_inputs_are_not_written(dtype: Dtype, op: Op) -> None:
    rng = np.random.default_rng(6)
    rows = [rng.integers(0, 256, (5, 64), np.uint8) for _ in range(3)]
    for row in rows:
        row.flags.writeable = False
    reduce_into(dtype, op, rows, np.empty_like(rows[0]))


@pytest.mark.parametrize("dtype", Dtype)
def test_no_rows_are_nothing_to_do(dtype: Dtype) -> None:
    for op in Op:
        nothing = np.empty((0, 64), np.uint8)
        reduce_into(dtype, op, [nothing, nothing], np.empty((0, 64), np.uint8))


def test_misuse_is_refused_before_anything_is_written() -> None:
    out = np.full((2, 8), 7, np.uint8)
    with pytest.raises(LocalMisuse, match="at least one input"):
        reduce_into(Dtype.F32, Op.SUM, [], out)
    with pytest.raises(LocalMisuse, match="shape"):
        reduce_into(Dtype.F32, Op.SUM, [np.zeros((2, 8), np.uint8), np.zeros((2, 16), np.uint8)], out)
    assert (out == 7).all()
