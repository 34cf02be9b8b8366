"""What the ranks of one host add among themselves: exactly, in rank order, a bounded part at a time."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.core.host.local_reduction import TURN_BYTES, SlicedReduction, reduce_parts
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


def sliced(dtype: Dtype, op: Op, ranks: int, elements: int, turn_bytes: int) -> SlicedReduction:
    operation = Operation(OpIndex(7), dtype, op, elements * dtype.itemsize, 0)
    return SlicedReduction(operation, ranks, turn_bytes=turn_bytes)


@pytest.mark.parametrize("op", list(Op))
@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize(("ranks", "elements"), [(2, 1), (2, 64), (3, 65), (5, 100)])
def test_all_tensors_get_the_reduction_in_rank_order(dtype: Dtype, op: Op, ranks: int, elements: int) -> None:
    tensors = HostTensors(dtype, ranks, elements)
    expected = exact(dtype, op, [bytes(tensor) for tensor in tensors.of])
    total = sliced(dtype, op, ranks, elements, turn_bytes=50 * ranks)
    while not total.is_done:
        total.turn(tensors)
    assert [bytes(tensor) for tensor in tensors.of] == [expected] * ranks
    assert len(tensors.asked) == -(-elements * dtype.itemsize // 48)


def test_between_turns_a_tensor_is_result_up_to_the_offset_and_input_behind_it() -> None:
    tensors = HostTensors(Dtype.F16, 3, 100)
    before = [bytes(tensor) for tensor in tensors.of]
    expected = exact(Dtype.F16, Op.SUM, before)
    total = sliced(Dtype.F16, Op.SUM, 3, 100, turn_bytes=120)
    for turn in range(1, 6):
        total.turn(tensors)
        assert total.offset == min(40 * turn, 200)
        for tensor, old in zip(tensors.of, before, strict=True):
            assert bytes(tensor) == expected[: total.offset] + old[total.offset :]
    assert total.is_done


@pytest.mark.parametrize("ranks", [2, 7, 64])
def test_a_turn_reads_no_more_than_its_limit_whatever_the_number_of_ranks(ranks: int) -> None:
    tensors = HostTensors(Dtype.I32, ranks, TURN_BYTES // 4 // ranks * 2)
    total = SlicedReduction(Operation(OpIndex(7), Dtype.I32, Op.MAX, len(tensors.of[0]), 0), ranks)
    while not total.is_done:
        total.turn(tensors)
    assert max(tensors.asked) <= TURN_BYTES
    assert min(tensors.asked[:2]) > TURN_BYTES // 2, "and not much less"


def test_an_empty_tensor_is_done_before_its_first_turn() -> None:
    assert sliced(Dtype.F32, Op.SUM, 2, 0, turn_bytes=64).is_done


def test_a_part_alone_is_taken_as_it_is() -> None:
    """Even a NaN with a payload: nobody adds to it."""
    part = bytes.fromhex("0100c07f")
    out = bytearray(4)
    reduce_parts(Dtype.F32, Op.SUM, [memoryview(part)], memoryview(out))
    assert bytes(out) == part


def test_misuse_is_refused() -> None:
    with pytest.raises(LocalMisuse, match="turns of 23 bytes hold no element of each of 3 ranks"):
        sliced(Dtype.F64, Op.SUM, 3, 1, turn_bytes=23)
    sliced(Dtype.F64, Op.SUM, 3, 1, turn_bytes=24)
    for parts in ([], [b"1234"], [b"12345678", b"1234"]):
        with pytest.raises(LocalMisuse):
            reduce_parts(Dtype.F32, Op.SUM, [memoryview(part) for part in parts], memoryview(bytearray(8)))
