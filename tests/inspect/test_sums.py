"""The inspection's own reductions against those of the product and of the tests, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.plan.reduce import reduce_into
from inaproto.wire.ina_header import Dtype, Op
from inaproto_hil.inspect.sums import reduction
from tests.unit.exact_reference import exact


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("op", Op)
@given(st.data())
def test_any_bits_reduce_alike(dtype: Dtype, op: Op, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 5))
    nbytes = dtype.itemsize * data.draw(st.integers(1, 12))
    inputs = [data.draw(st.binary(min_size=nbytes, max_size=nbytes)) for _ in range(ranks)]
    out = np.empty(nbytes, np.uint8)
    reduce_into(dtype, op, [np.frombuffer(one, np.uint8) for one in inputs], out)
    assert reduction(dtype, op, inputs) == out.tobytes() == exact(dtype, op, inputs)


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("op", Op)
def test_many_random_bits_reduce_alike(dtype: Dtype, op: Op) -> None:
    inputs = [np.random.default_rng((dtype, op, rank)).bytes(80_000) for rank in range(3)]
    assert reduction(dtype, op, inputs) == exact(dtype, op, inputs)
