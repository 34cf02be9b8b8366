"""What the ranks of one host add among themselves: exactly, in rank order, a bounded part at a time."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.core.host import local_reduction
from inaproto.core.host.local_reduction import SLICE_BYTES, Slice, SlicedReduction, reduce_parts
from inaproto.core.host.operations import Operation
from inaproto.errors import LocalMisuse
from inaproto.units import OpIndex
from inaproto.wire.ina_header import Dtype, Op
from tests.unit.exact_reference import NUMPY, exact


class HostTensors:
    """Of one operation; it counts the bytes that it is asked for."""

    def __init__(self, dtype: Dtype, ranks: int, elements: int) -> None:
        numbers = np.random.default_rng([dtype, ranks, elements])
        self.of = [
            bytearray(np.asarray(numbers.standard_normal(elements) * 1000).astype(NUMPY[dtype]).tobytes())
            for _ in range(ranks)
        ]
        self.asked: list[int] = []

    def views(self, op_index: int, offset: int, nbytes: int) -> list[memoryview]:
        assert op_index == 7
        self.asked.append(nbytes * len(self.of))
        return [memoryview(tensor)[offset : offset + nbytes] for tensor in self.of]


def sliced(dtype: Dtype, op: Op, ranks: int, elements: int, slice_bytes: int) -> SlicedReduction:
    operation = Operation(OpIndex(7), dtype, op, elements * dtype.itemsize, 0)
    return SlicedReduction(operation, ranks, slice_bytes=slice_bytes)


def add(part: Slice | None) -> None:
    assert part is not None
    while part.block():
        pass
    part.of.added(part)


def slices(total: SlicedReduction, tensors: HostTensors) -> list[Slice]:
    """All that are handed out."""
    return list(iter(lambda: total.take(tensors), None))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_reduction, "BLOCK_BYTES", 24)


@pytest.mark.parametrize("op", list(Op))
@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize(("ranks", "elements"), [(2, 1), (2, 64), (3, 65), (5, 100), (64, 70)])
@pytest.mark.usefixtures("small_blocks")
def test_all_tensors_get_the_reduction_in_rank_order_whoever_adds_first(
    dtype: Dtype, op: Op, ranks: int, elements: int
) -> None:
    tensors = HostTensors(dtype, ranks, elements)
    expected = exact(dtype, op, [bytes(tensor) for tensor in tensors.of])
    total = sliced(dtype, op, ranks, elements, slice_bytes=64 * ranks)
    for part in reversed(slices(total, tensors)):
        assert not total.is_done
        add(part)
    assert [bytes(tensor) for tensor in tensors.of] == [expected] * ranks
    assert total.is_done


@pytest.mark.usefixtures("small_blocks")
def test_slices_that_are_added_block_by_block_at_the_same_time_do_not_meet() -> None:
    tensors = HostTensors(Dtype.F16, 3, 250)
    before = [bytes(tensor) for tensor in tensors.of]
    expected = exact(Dtype.F16, Op.SUM, before)
    total = sliced(Dtype.F16, Op.SUM, 3, 250, slice_bytes=192)
    parts = slices(total, tensors)
    assert [(part.offset, part.nbytes, part.ranks) for part in parts] == [
        (at, min(64, 500 - at), 3) for at in range(0, 500, 64)
    ]
    for part in parts[::2]:
        add(part)
    for tensor, old in zip(tensors.of, before, strict=True):
        for at in range(0, 500, 128):
            assert bytes(tensor[at : at + 64]) == expected[at : at + 64]
            assert bytes(tensor[at + 64 : at + 128]) == old[at + 64 : at + 128]
    odd = parts[1::2]
    while odd:
        odd = [part for part in odd if part.block() or part.of.added(part)]  # type: ignore[func-returns-value]
    assert [bytes(tensor) for tensor in tensors.of] == [expected] * 3
    assert total.is_done


@pytest.mark.parametrize("ranks", [2, 7, 64])
def test_a_slice_reads_no_more_than_its_limit_whatever_the_number_of_ranks(ranks: int) -> None:
    tensors = HostTensors(Dtype.I32, ranks, 20 * SLICE_BYTES // 4 // ranks // 64)
    total = sliced(Dtype.I32, Op.MAX, ranks, len(tensors.of[0]) // 4, slice_bytes=SLICE_BYTES // 64)
    slices(total, tensors)
    assert max(tensors.asked) <= SLICE_BYTES // 64 + 8 * ranks
    assert min(tensors.asked[:2]) > SLICE_BYTES // 128, "and not much less"


class Nowhere:
    """Tensors that nobody reads."""

    def views(self, op_index: int, offset: int, nbytes: int) -> list[memoryview]:
        return [memoryview(bytes(nbytes))] * 2


@pytest.mark.parametrize(
    ("mib", "slices_of_mib"),
    [(1, [1]), (2, [1, 1]), (4, [2, 2]), (16, [8, 8]), (100, [8] * 12 + [4])],
)
def test_an_all_reduce_is_cut_so_that_several_can_add_it_and_no_slice_is_tiny(
    mib: int, slices_of_mib: list[int]
) -> None:
    """Of two ranks."""
    total = SlicedReduction(Operation(OpIndex(7), Dtype.I32, Op.MAX, mib << 20, 0), 2)
    found = list(iter(lambda: total.take(Nowhere()), None))
    assert [part.nbytes >> 20 for part in found] == slices_of_mib


def test_an_empty_tensor_is_done_before_its_first_slice() -> None:
    total = sliced(Dtype.F32, Op.SUM, 2, 0, slice_bytes=256)
    assert total.is_done
    assert total.take(HostTensors(Dtype.F32, 2, 0)) is None


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("op", list(Op))
def test_parts_are_reduced_in_order_also_into_the_first_of_them(dtype: Dtype, op: Op) -> None:
    parts = [memoryview(tensor) for tensor in HostTensors(dtype, 4, 50).of]
    expected = exact(dtype, op, [bytes(part) for part in parts])
    out = bytearray(50 * dtype.itemsize)
    reduce_parts(dtype, op, parts, memoryview(out))
    assert bytes(out) == expected
    reduce_parts(dtype, op, parts, parts[0])
    assert bytes(parts[0]) == expected


def test_a_part_alone_is_taken_as_it_is() -> None:
    """Even a NaN with a payload: nobody adds to it."""
    part = bytes.fromhex("0100c07f")
    out = bytearray(4)
    reduce_parts(Dtype.F32, Op.SUM, [memoryview(part)], memoryview(out))
    assert bytes(out) == part


def test_misuse_is_refused() -> None:
    with pytest.raises(LocalMisuse, match="slices of 191 bytes hold too few elements of each of 3 ranks"):
        sliced(Dtype.F64, Op.SUM, 3, 1, slice_bytes=191)
    sliced(Dtype.F64, Op.SUM, 3, 1, slice_bytes=192)
    for parts in ([], [b"1234"], [b"12345678", b"1234"]):
        with pytest.raises(LocalMisuse):
            reduce_parts(Dtype.F32, Op.SUM, [memoryview(part) for part in parts], memoryview(bytearray(8)))


def test_a_rank_that_is_alone_keeps_every_bit_of_its_tensor() -> None:
    """NaNs, too, which a sum would make canonical."""
    tensors = HostTensors(Dtype.F32, 1, 8)
    tensors.of[0][:8] = bytes.fromhex("0100c0ff0100a07f")
    before = bytes(tensors.of[0])
    total = sliced(Dtype.F32, Op.SUM, 1, 8, slice_bytes=1024)
    add(total.take(tensors))
    assert bytes(tensors.of[0]) == before
    assert total.is_done
