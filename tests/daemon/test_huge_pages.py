"""Shared memory in huge pages, where the kernel gives them; in ordinary ones where it does not."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest

from inaproto.client import huge_pages
from inaproto.client.huge_pages import HUGE_BYTES, address, allocate, map_shared

SIZES = (mmap.PAGESIZE, HUGE_BYTES - mmap.PAGESIZE, HUGE_BYTES, 3 * HUGE_BYTES + 5 * mmap.PAGESIZE)


@pytest.fixture
def memfd() -> Iterator[int]:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("advice", [25, 1 << 20])
@pytest.mark.parametrize("nbytes", SIZES)
def test_all_of_it_is_there_whether_the_kernel_has_huge_pages_or_not(
    memfd: int, monkeypatch: pytest.MonkeyPatch, nbytes: int, advice: int
) -> None:
    monkeypatch.setattr(huge_pages, "_MADV_COLLAPSE", advice)
    os.ftruncate(memfd, nbytes)
    with map_shared(memfd, nbytes) as memory:
        allocate(memfd, memory, nbytes)
        assert os.fstat(memfd).st_blocks * 512 >= nbytes
        assert os.fstat(memfd).st_size == nbytes
        assert len(memory) == nbytes
        assert not np.frombuffer(memory, np.uint8).any()


@pytest.mark.parametrize("nbytes", SIZES)
def test_all_mappings_of_a_file_are_the_same_memory(memfd: int, nbytes: int) -> None:
    os.ftruncate(memfd, nbytes)
    with map_shared(memfd, nbytes) as one, map_shared(memfd, nbytes) as other:
        one[0] = one[nbytes - 1] = 7
        assert (other[0], other[nbytes - 1], len(other)) == (7, 7, nbytes)
        assert address(one) != address(other)
        assert address(one) % mmap.PAGESIZE == 0


def test_a_mapping_that_lies_elsewhere_has_ordinary_pages(memfd: int) -> None:
    os.ftruncate(memfd, 2 * HUGE_BYTES + mmap.PAGESIZE)
    with mmap.mmap(memfd, 0) as whole:
        offset = mmap.PAGESIZE if address(whole) % HUGE_BYTES == 0 else 0
    with mmap.mmap(memfd, 2 * HUGE_BYTES, offset=offset) as memory:
        allocate(memfd, memory, 2 * HUGE_BYTES)
        assert os.fstat(memfd).st_blocks * 512 >= 2 * HUGE_BYTES


def test_a_file_that_cannot_grow_is_told(memfd: int) -> None:
    with (
        mmap.mmap(-1, HUGE_BYTES) as memory,
        open("/dev/null", "r+b") as null,
        pytest.raises(OSError, match=r"."),
    ):
        allocate(null.fileno(), memory, HUGE_BYTES)
    with pytest.raises((OSError, ValueError)):
        map_shared(memfd, mmap.PAGESIZE)


def test_more_than_the_machine_has_is_refused_before_any_of_it_is_taken(
    memfd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 3 * HUGE_BYTES // mmap.PAGESIZE)
    os.ftruncate(memfd, 4 * HUGE_BYTES)
    with map_shared(memfd, 4 * HUGE_BYTES) as memory:
        with pytest.raises(OSError, match="Cannot allocate memory"):
            allocate(memfd, memory, 4 * HUGE_BYTES)
        assert os.fstat(memfd).st_blocks == 0
        allocate(memfd, memory, 3 * HUGE_BYTES)
