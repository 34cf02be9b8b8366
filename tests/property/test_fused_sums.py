"""Sums to several places in one pass, compiled, and reduce_into with copies: the same bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core.host.local_reduction import Slice, SlicedReduction
from inaproto.core.host.operations import Operation
from inaproto.core.kernels.copies import copy_past_caches
from inaproto.core.plan.reduce import reduce_into
from inaproto.core.plan.reduce_to_all import fused, reduce_to_all
from inaproto.errors import LocalMisuse
from inaproto.units import OpIndex
from inaproto.wire.ina_header import Dtype, Op
from tests.seeds import seeds

SPECIAL_16 = (
    0,
    0x8000,
    1,
    0x8001,
    0x03FF,
    0x7BFF,
    0x7C00,
    0xFC00,
    0x7E00,
    0x7C01,
    0xFFFF,
    0x7F80,
    0xFF80,
    0x7FC0,
)
"""Bits of float16 and bfloat16, also as upper halves of float32."""
FUSED = (Dtype.F32, Dtype.I32, Dtype.F16, Dtype.BF16)
Bytes = NDArray[np.uint8]


def numbers(rng: np.random.Generator, dtype: Dtype, elements: int) -> Bytes:
    """Zeros, subnormals, the largest, infinities and NaNs of all kinds among ordinary ones."""
    halves = rng.integers(0, 1 << 16, (elements, dtype.itemsize // 2), np.uint16)
    special = rng.choice(np.array(SPECIAL_16, np.uint16), elements)
    upper = halves[:, -1]
    upper[...] = np.where(rng.random(elements) < 0.5, special, upper)
    return halves.reshape(-1).view(np.uint8)


def misaligned(values: Bytes, by: int) -> Bytes:
    memory: Bytes = np.zeros(values.size + by, np.uint8)
    memory[by:] = values
    return memory[by:]


@pytest.mark.parametrize("name", ["compiled", "numpy"])
@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("seed", seeds(6))
def test_all_places_get_what_reduce_into_gives(
    use_kernels: Callable[[str], None], name: str, dtype: Dtype, seed: int
) -> None:
    use_kernels(name)
    rng = np.random.default_rng([seed, dtype])
    for inputs in (1, 2, 3, 8, 9, 17):
        for elements in (0, 1, 7, 15, 16, 17, 33, 1024, 1031, 2500):
            parts = [
                misaligned(numbers(rng, dtype, elements), int(rng.integers(0, 3)) * 8) for _ in range(inputs)
            ]
            for op in Op:
                expected = np.empty_like(parts[0])
                reduce_into(dtype, op, parts, expected)
                apart = [np.empty_like(expected) for _ in range(3)]
                reduce_to_all(dtype, op, parts, apart)
                assert {out.tobytes() for out in apart} == {expected.tobytes()}, (inputs, elements, op)
                mine, own = [part.copy() for part in parts], np.empty_like(expected)
                reduce_to_all(dtype, op, mine, [own, mine[-1]])
                assert own.tobytes() == mine[-1].tobytes() == expected.tobytes()
                assert all((now == before).all() for now, before in zip(mine[:-1], parts, strict=False))
                everywhere = [part.copy() for part in parts]
                reduce_to_all(dtype, op, everywhere, everywhere)
                assert {out.tobytes() for out in everywhere} == {expected.tobytes()}


def test_kernels_add_the_types_of_training(use_kernels: Callable[[str], None]) -> None:
    use_kernels("compiled")
    assert [
        dtype for dtype in Dtype if dtype in FUSED and dtype is not Dtype.F16 and fused(dtype, Op.SUM)
    ] == [
        Dtype.F32,
        Dtype.I32,
        Dtype.BF16,
    ]
    assert not any(fused(dtype, op) for dtype in Dtype for op in (Op.MAX, Op.MIN))
    use_kernels("numpy")
    assert not any(fused(dtype, Op.SUM) for dtype in Dtype)


@pytest.mark.parametrize("name", ["compiled", "numpy"])
def test_lengths_that_differ_are_refused(use_kernels: Callable[[str], None], name: str) -> None:
    use_kernels(name)
    one, two = np.zeros(4, np.uint8), np.zeros(8, np.uint8)
    for inputs, outs in (([], [one]), ([one], []), ([one, two], [one]), ([one], [one, two])):
        with pytest.raises(LocalMisuse, match="at least one input and one output"):
            reduce_to_all(Dtype.I32, Op.SUM, inputs, outs)


@pytest.mark.parametrize("name", ["compiled", "numpy"])
@pytest.mark.parametrize("size", [0, 1, 31, 32, 63, 64, 100, 4096, 5001])
def test_a_copy_past_the_caches_is_a_copy_and_writes_nothing_else(
    use_kernels: Callable[[str], None], name: str, size: int
) -> None:
    use_kernels(name)
    for at in (0, 1, 8, 31, 32):
        source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        memory = np.full(size + 80, 7, np.uint8)
        copy_past_caches(source, memory[at : at + size])
        assert (memory[at : at + size] == source).all()
        assert (memory[:at] == 7).all()
        assert (memory[at + size :] == 7).all()


class Tensors:
    def __init__(self, parts: list[bytearray]) -> None:
        self.parts = parts

    def views(self, op_index: int, offset: int, nbytes: int) -> list[memoryview]:
        return [memoryview(part)[offset : offset + nbytes] for part in self.parts]


@pytest.mark.parametrize("dtype", FUSED)
def test_a_slice_is_added_alike_with_kernels_and_without(
    use_kernels: Callable[[str], None], dtype: Dtype
) -> None:
    rng = np.random.default_rng(dtype)
    parts = [numbers(rng, dtype, 3000).tobytes() for _ in range(3)]
    found = []
    for name in ("compiled", "numpy"):
        use_kernels(name)
        tensors = Tensors([bytearray(part) for part in parts])
        total = SlicedReduction(Operation(OpIndex(1), dtype, Op.SUM, len(parts[0]), 0), 3, slice_bytes=8192)
        while (taken := total.take(tensors)) is not None:
            _all_of(taken)
        found.append([bytes(part) for part in tensors.parts])
    assert found[0] == found[1]
    assert len(set(found[0])) == 1


def _all_of(part: Slice) -> None:
    while part.block():
        pass
