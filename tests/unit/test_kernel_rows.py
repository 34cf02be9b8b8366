"""CRCs of rows, and of rows that are copied: the kernel does what its twin and ``zlib`` do."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest

from inaproto.core.kernels import active
from inaproto.core.kernels.rows import Rows, rows_by

SHAPES = [(1, 1), (3, 0), (2, 15), (5, 16), (4, 17), (7, 64), (168, 1024), (9, 1021), (4, 4096)]


@pytest.fixture(params=["numpy", "compiled"])
def rows(request: pytest.FixtureRequest, use_kernels: Callable[[str], None]) -> Rows:
    use_kernels(request.param)
    return rows_by(active())


@pytest.mark.parametrize(("n", "nbytes"), SHAPES)
@pytest.mark.parametrize(("before", "behind"), [(0, 0), (54, 4), (3, 2)])
def test_rows_with_and_without_gaps(rows: Rows, n: int, nbytes: int, before: int, behind: int) -> None:
    noise = np.random.default_rng(n + nbytes).integers(0, 256, (n, before + nbytes + behind), dtype=np.uint8)
    source = noise[:, before : before + nbytes]
    expected = [zlib.crc32(row.tobytes()) for row in source]
    assert rows.crc(source).tolist() == expected
    target = np.full((n, nbytes + 7), 0xEE, np.uint8)
    assert rows.copy(source, target[:, 4 : 4 + nbytes]).tolist() == expected
    assert (target[:, 4 : 4 + nbytes] == source).all()
    assert (target[:, :4] == 0xEE).all()
    assert (target[:, 4 + nbytes :] == 0xEE).all()


def test_rows_that_may_only_be_read(rows: Rows) -> None:
    source = np.frombuffer(bytes(range(200)), np.uint8).reshape(2, 100)
    assert rows.crc(source).tolist() == [zlib.crc32(bytes(range(100))), zlib.crc32(bytes(range(100, 200)))]


def test_no_rows(rows: Rows) -> None:
    assert rows.crc(np.empty((0, 64), np.uint8)).tolist() == []
