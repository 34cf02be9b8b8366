"""How collectives become all-reduces (docs/protocol.md 11), by brute force: every rank and byte, no network.

In the place of the network, a reduction plan adds the vectors of all ranks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inaproto.client import collectives
from inaproto.client.arrays import as_array, divide, wire_dtype
from inaproto.client.collectives import CALL_CHARACTERS_MAX, Collective
from inaproto.client.pieces import Pieces, as_bytes
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op, signature
from tests.unit.one_rank import DEADLINE_S, Rank

Array = NDArray[Any]
MOVED: tuple[Any, ...] = (
    "?", "i1", "u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", ">f4",
    "S3", "U2", "M8[ns]", "V5",
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4,
    np.dtype([("a", "u1"), ("b", "f8")]),
)  # fmt: skip
SUMMED: tuple[Any, ...] = ("f4", "f8", "f2", ml_dtypes.bfloat16, "i4", "i8")
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (3,), (2, 0), (5, 1, 2), (17,))


def any_bits(dtype: Any, shape: tuple[int, ...], seed: object) -> Array:
    """Any bytes at all: -0.0, denormals, infinities and NaNs with payloads are among them."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape)) * kind.itemsize
    data = np.frombuffer(random.Random(repr(seed)).randbytes(count), np.uint8).copy()
    array: Array = data.view(kind).reshape(shape) if count else np.empty(shape, kind)
    return array


def numbers(dtype: Any, shape: tuple[int, ...], seed: object) -> Array:
    draw = np.random.default_rng(list(repr(seed).encode()))
    return np.asarray(draw.integers(-9, 10, shape) / 4).astype(dtype)


def perform(calls: Sequence[Collective], seed: int = 0) -> list[Any]:
    """What each rank gets. A host copies parts of any length; vectors are reduced by a plan of all ranks."""
    draw = random.Random(seed)
    assert len({tuple((r.call, r.dtype, r.op, r.shape) for r in call.reductions) for call in calls}) == 1
    for number, first in enumerate(calls[0].reductions):
        vectors = []
        for call in calls:
            sources, vector = call.reductions[number].sources, np.empty(first.nbytes, np.uint8)
            assert sources.nbytes == call.reductions[number].results.nbytes == first.nbytes
            for begin, end in parts(draw, first.nbytes):
                sources.read(begin, end, vector[begin:end])
            vectors.append(vector)
        plan = ReductionPlan.flat(len(calls))
        total = plan.reduce(vectors, first.dtype, first.op) if first.nbytes else np.empty(0, np.uint8)
        result = np.frombuffer(bytes(total), np.uint8)
        for call in calls:
            for begin, end in parts(draw, first.nbytes):
                call.reductions[number].results.write(begin, end, result[begin:end])
    return [call.end() for call in calls]


def parts(draw: random.Random, nbytes: int) -> list[tuple[int, int]]:
    cuts = sorted({0, nbytes, *(draw.randint(0, nbytes) for _ in range(3))})
    return list(pairwise(cuts))


# --- pieces


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=6), st.data())
def test_pieces_are_one_vector(lengths: list[tuple[bool, int]], data: st.DataObject) -> None:
    arrays = [any_bits("u1", (count,), (number, count)) for number, (_, count) in enumerate(lengths)]
    pieces = Pieces([a if has else len(a) for a, (has, _) in zip(arrays, lengths, strict=True)])
    filled = [a if has else np.zeros_like(a) for a, (has, _) in zip(arrays, lengths, strict=True)]
    whole = np.concatenate([np.empty(0, np.uint8), *filled])
    assert pieces.nbytes == whole.size
    first = data.draw(st.integers(0, whole.size))
    end = data.draw(st.integers(first, whole.size))
    into = np.full(end - first, 0xEE, np.uint8)
    pieces.read(first, end, into)
    assert into.tobytes() == whole[first:end].tobytes()
    new = any_bits("u1", (end - first,), "new")
    kept = [a.copy() for a in arrays]
    pieces.write(first, end, new)
    at = 0
    for array, old, (has, count) in zip(arrays, kept, lengths, strict=True):
        for byte in range(count):
            is_written = has and first <= at + byte < end
            assert array[byte] == (new[at + byte - first] if is_written else old[byte])
        at += count


# --- what is moved


@pytest.mark.parametrize("dtype", MOVED, ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_moved_bytes_are_those_that_were_given(dtype: Any, size: int) -> None:
    for shape in SHAPES:
        arrays = [any_bits(dtype, shape, (size, rank)) for rank in range(size)]
        for root in {0, size - 1}:
            calls = [
                collectives.broadcast(arrays[rank], root, None, False, rank, size) for rank in range(size)
            ]
            for result in perform(calls, root):
                assert (result.dtype, result.shape) == (arrays[0].dtype, shape)
                assert result.tobytes() == arrays[root].tobytes()
        calls = [collectives.all_gather(arrays[rank], None, rank, size) for rank in range(size)]
        for result in perform(calls):
            assert (result.dtype, result.shape) == (arrays[0].dtype, (size, *shape))
            assert result.tobytes() == b"".join(array.tobytes() for array in arrays)


def test_a_broadcast_in_place_replaces_what_others_had_and_leaves_the_root_alone() -> None:
    arrays = [any_bits("f4", (9,), rank) for rank in range(3)]
    expected = arrays[1].tobytes()
    results = perform([collectives.broadcast(arrays[rank], 1, None, True, rank, 3) for rank in range(3)])
    assert all(result is array for result, array in zip(results, arrays, strict=True))
    assert {array.tobytes() for array in arrays} == {expected}


def test_a_list_is_broadcast_as_one_vector() -> None:
    lists = [[any_bits(dtype, (3,), (rank, dtype)) for dtype in ("?", "f4", "S3")] for rank in range(2)]
    calls = [collectives.broadcast(lists[rank], 0, None, False, rank, 2) for rank in range(2)]
    assert [len(call.reductions) for call in calls] == [1, 1]
    for results in perform(calls):
        assert [result.tobytes() for result in results] == [array.tobytes() for array in lists[0]]


def test_a_barrier_is_one_word_and_no_result() -> None:
    calls = [collectives.barrier() for _ in range(3)]
    assert calls[0].reductions[0].shape == (1,)
    assert perform(calls) == [None] * 3


# --- what is added


@pytest.mark.parametrize("dtype", SUMMED, ids=str)
@pytest.mark.parametrize("op", ["sum", "max", "min", "avg"])
def test_every_sum_has_the_bits_of_an_all_reduce(dtype: Any, op: str) -> None:
    if op == "avg" and np.dtype(dtype).kind == "i":
        return
    size = 3
    for shape in SHAPES:
        arrays = [numbers(dtype, (size, *shape), (op, rank)) for rank in range(size)]
        code, reduction = wire_dtype(np.dtype(dtype)), Op[op.upper()] if op != "avg" else Op.SUM
        plan = ReductionPlan.flat(size)
        data = plan.reduce([as_bytes(a) for a in arrays], code, reduction) if arrays[0].size else b""
        expected = np.frombuffer(bytes(data), dtype).reshape(size, *shape).copy()
        if op == "avg":
            divide(expected, size)
        ranks = range(size)
        for result in perform([collectives.all_reduce(arrays[r], op, None, False, size) for r in ranks]):
            assert result.tobytes() == expected.tobytes()
        for results in perform([collectives.all_reduce([arrays[r]], op, None, False, size) for r in ranks]):
            assert [result.tobytes() for result in results] == [expected.tobytes()]
        scattered = perform([collectives.reduce_scatter(arrays[r], op, None, r, size) for r in ranks])
        for rank, result in enumerate(scattered):
            assert result.shape == shape
            assert result.tobytes() == expected[rank].tobytes()
        none, reduced, also_none = perform(
            [collectives.reduce(arrays[r], op, 1, None, r, size) for r in ranks]
        )
        assert (none, also_none) == (None, None)
        assert reduced.tobytes() == expected.tobytes()


def test_a_list_of_several_types_is_an_operation_for_each_in_the_order_of_the_list() -> None:
    kinds = ("i4", "f4", "i4", "f8", "f4")
    lists = [[numbers(kind, (2, n), (rank, n)) for n, kind in enumerate(kinds)] for rank in range(2)]
    calls = [collectives.all_reduce(lists[rank], "sum", None, False, 2) for rank in range(2)]
    assert [reduction.dtype for reduction in calls[0].reductions] == [Dtype.I32, Dtype.F32, Dtype.F64]
    expected = [(a + b).tobytes() for a, b in zip(*lists, strict=True)]
    for results in perform(calls):
        assert [result.tobytes() for result in results] == expected


def test_a_list_of_several_types_is_averaged_array_by_array() -> None:
    lists = [[numbers(kind, (3,), (rank, kind)) for kind in ("f4", "f8", "f4")] for rank in range(2)]
    expected = [((a + b) / 2).tobytes() for a, b in zip(*lists, strict=True)]
    for results in perform([collectives.all_reduce(lists[rank], "avg", None, False, 2) for rank in range(2)]):
        assert [result.tobytes() for result in results] == expected


@pytest.mark.parametrize("in_place", [False, True])
def test_results_go_where_they_were_asked_for(in_place: bool) -> None:
    lists = [[numbers("f4", (3,), rank), numbers("f8", (2,), rank)] for rank in range(2)]
    given = [[array.copy() for array in arrays] for arrays in lists]
    outs = None if in_place else [[np.empty_like(array) for array in arrays] for arrays in lists]
    calls = [
        collectives.all_reduce(lists[rank], "sum", None if outs is None else outs[rank], in_place, 2)
        for rank in range(2)
    ]
    for rank, results in enumerate(perform(calls)):
        asked = lists[rank] if outs is None else outs[rank]
        for number, result in enumerate(results):
            assert result is asked[number]
            assert result.tobytes() == (given[0][number] + given[1][number]).tobytes()
            assert in_place or lists[rank][number].tobytes() == given[rank][number].tobytes()


# --- averages


def test_an_average_is_rounded_once() -> None:
    """Every float16, by numbers of ranks that float16 has and lacks, against the exact quotient."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    for by in (1, 2, 3, 7, 2049, 65535):
        found = every.copy()
        divide(found, by)
        expected = (every.astype(np.float64) / by).astype(np.float16)  # 53 digits: no second rounding shows
        assert found.tobytes() == expected.tobytes()
    ends = np.array([np.inf, -np.inf, np.nan], np.float16)
    divide(ends, 3)
    assert ends.tobytes() == np.array([np.inf, -np.inf, np.nan], np.float16).tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8", ml_dtypes.bfloat16], ids=str)
def test_averages_of_other_floats(dtype: Any) -> None:
    draw = np.random.default_rng(5)
    values = (draw.standard_normal(3000) * 1e3).astype(dtype)
    for by in (3, 60_000):
        found = values.copy()
        divide(found, by)
        quotients = [float(Fraction(float(value)) / by) for value in values]  # rounded to nearest, even
        assert found.tobytes() == np.array(quotients).astype(dtype).tobytes()


# --- what tells calls apart


def test_every_two_calls_have_different_digests() -> None:
    """Of one shape and of its bytes, and each root: a rank that calls another collective is found out."""
    array, bits = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int32)
    calls: list[Collective] = [collectives.barrier()]
    for a in (array, bits):
        calls.append(collectives.all_gather(a[0], None, 0, 2))
        for root in range(2):
            calls.append(collectives.broadcast(a, root, None, False, 0, 2))
            calls.append(collectives.broadcast([a], root, None, False, 0, 2))
            calls += [collectives.reduce(a, op, root, None, 1 - root, 2) for op in ("sum", "max", "min")]
        for op in ("sum", "max", "min"):
            calls.append(collectives.all_reduce(a, op, None, False, 2))
            calls.append(collectives.all_reduce([a], op, None, False, 2))
            calls.append(collectives.reduce_scatter(a, op, None, 0, 2))
    calls.append(collectives.all_reduce(array, "avg", None, False, 2))
    calls.append(collectives.all_reduce([array[0], array[1]], "avg", None, False, 2))
    calls.append(collectives.reduce_scatter(array, "avg", None, 0, 2))
    calls.append(collectives.reduce(array, "avg", 0, None, 1, 2))
    for one, other in combinations([call.reductions[0] for call in calls], 2):
        digests = [signature(r.dtype, r.op, r.shape, r.call) for r in (one, other)]
        assert digests[0] != digests[1], (one.call, other.call)


def test_a_daemon_that_knows_no_names_of_calls_is_asked_for_all_reduces_alone() -> None:
    """docs/protocol.md 11: of an older release, it would take any other collective for one."""
    array = np.ones(2, np.float32)
    rank = Rank(named=False)
    calls: list[Callable[[], object]] = [
        lambda: rank.comm.broadcast(array),
        lambda: rank.comm.all_reduce(array, "avg"),
        lambda: rank.comm.all_reduce([array]),
        rank.comm.barrier,
    ]
    try:
        for call in calls:
            refusal = ""
            try:
                call()
            except LocalMisuse as error:
                refusal = str(error)
            assert "of an older release, which carries all-reduces of one array" in refusal
        assert rank.comm.all_reduce(array).wait(DEADLINE_S).tolist() == [1, 1]
        assert rank.peer.asked == [0]
    finally:
        rank.close()


def test_an_all_reduce_of_one_array_is_on_the_wire_what_it_always_was() -> None:
    call = collectives.all_reduce(np.zeros((2, 3), np.float32), "max", None, False, 2)
    (reduction,) = call.reductions
    assert (reduction.dtype, reduction.op, reduction.shape, reduction.call) == (Dtype.F32, Op.MAX, (2, 3), "")


def test_words_are_short_ascii_and_tell_long_lists_apart() -> None:
    arrays = [np.zeros((number,), np.float32) for number in range(200)]
    first = collectives.all_reduce(arrays, "sum", None, False, 2).reductions[0].call
    other = collectives.all_reduce([*arrays[:-1], arrays[1]], "sum", None, False, 2).reductions[0].call
    assert first != other
    assert len(first) <= CALL_CHARACTERS_MAX
    named = np.zeros(2, [("größe", "f4")])
    assert collectives.broadcast(named, 0, None, False, 0, 2).reductions[0].call.isascii()


# --- what is refused, and with which words


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: collectives.all_reduce([1.0, 2.0], "sum", None, False, 2), "of numbers make an array"),
        (lambda: collectives.all_reduce([], "sum", None, False, 2), "at least one"),
        (lambda: collectives.all_reduce([np.ones(2)], "sum", [], False, 2), "out is a list of as many"),
        (lambda: collectives.all_reduce(np.ones(2), "mean", None, False, 2), "one of sum, max, min, avg"),
        (lambda: collectives.all_reduce(np.ones(2, "i4"), "avg", None, False, 2), "take the sum"),
        (
            lambda: collectives.all_reduce(np.ones(2, "u1"), "sum", None, False, 2),
            "convert to one of float32",
        ),
        (lambda: collectives.all_reduce(np.ones(2, ">f4"), "sum", None, False, 2), r"astype\('float32'\)"),
        (lambda: collectives.all_reduce("text", "sum", None, False, 2), "is a str, not an array"),
        (lambda: collectives.all_reduce(np.ones(2), "sum", np.ones(3), False, 2), "the result is float64"),
        (lambda: collectives.all_reduce(np.ones(2), "sum", np.ones(2), True, 2), "give one of the two"),
        (lambda: collectives.all_reduce(1.0, "sum", None, True, 2), "not memory that numpy can write to"),
        (lambda: collectives.broadcast(np.array([None]), 0, None, False, 0, 2), "no fixed size"),
        (lambda: collectives.broadcast(np.ones((3, 3)).T[1:], 0, None, False, 0, 2), "ascontiguousarray"),
        (lambda: collectives.broadcast(np.ones(2), 2, None, False, 0, 2), "root is 2; ranks of a job of 2"),
        (lambda: collectives.broadcast(np.ones(2), True, None, False, 0, 2), "root is True"),
        (lambda: collectives.reduce(np.ones(2), "sum", 0, np.ones(2), 1, 2), "out is for rank 0"),
        (lambda: collectives.reduce_scatter(np.ones(3), "sum", None, 0, 2), "a row for each rank"),
        (lambda: collectives.reduce_scatter(np.float32(1), "sum", None, 0, 2), "a row for each rank"),
        (lambda: collectives.all_gather(np.ones(3), np.ones((3, 2)), 0, 2), "the result is float64"),
    ],
)
def test_misuse_is_refused_in_words(call: Callable[[], object], words: str) -> None:
    with pytest.raises(LocalMisuse, match=words):
        call()


def test_a_read_only_array_is_not_reduced_in_place() -> None:
    array = np.ones(2)
    array.flags.writeable = False
    with pytest.raises(LocalMisuse, match="in_place: array is read-only"):
        collectives.all_reduce(array, "sum", None, True, 2)
    with pytest.raises(LocalMisuse, match="out is read-only"):
        collectives.all_gather(1.0, array, 0, 2)


# --- what is an array


class Tensor:
    """Something of another library, on the CPU or elsewhere."""

    def __init__(self, array: Array, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


class Own(np.ndarray[Any, Any]):
    """Of somebody's own."""


class Arrayish:
    def __init__(self, array: Array) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self.array.copy()


def test_arrays_of_other_libraries_are_taken_by_dlpack_and_by_array() -> None:
    array = numbers("f4", (3, 2), 1)
    for other in (
        Tensor(array),
        Arrayish(array),
        array.tolist()[0][0],
        np.float16(2),
        True,
        array.view(np.matrix),
    ):
        found = as_array(other, "array")
        assert type(found) is np.ndarray
        assert (found == np.asarray(array if isinstance(other, Tensor | Arrayish | Own) else other)).all()
    shared = as_array(Tensor(array), "array", shared=True)
    shared[0, 0] = 77
    assert array[0, 0] == 77
    with pytest.raises(LocalMisuse, match="memory of another device"):
        as_array(Tensor(array, device=2), "array")
    with pytest.raises(LocalMisuse, match="not memory that numpy can write to"):
        as_array(Arrayish(array), "array", shared=True)
    with pytest.raises(LocalMisuse, match=r"numpy.array\(array, dtype=...\)"):
        as_array([1.0], "array")
