"""Registered buffers of other ranks, mapped: what is mapped, and what is left to be read in another way."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import mmap
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from inaproto.client import huge_pages
from inaproto.client.memory import SharedMemory
from inaproto.client.stage import views
from inaproto.client.stage.layout import WORDS
from inaproto.client.stage.views import Home, Views

PAGE = mmap.PAGESIZE


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory()
    yield made
    made.close()


@pytest.fixture
def descriptor() -> Iterator[int]:
    """A memfd of two pages, sealed as a segment is."""
    made = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(made, 2 * PAGE)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    yield made
    os.close(made)


def at(home: Home | None, place: int, nbytes: int, *, of: Views | None = None) -> int:
    """Where rank 0 has what rank 1, of this very process, shows."""
    hands = np.zeros((2, WORDS), np.int64)
    Views(1, 2).show(hands, home)
    return (of or Views(0, 2)).at(hands, 1, os.getpid(), place, nbytes)


def test_a_buffer_is_mapped_once_and_a_private_array_never(memory: SharedMemory) -> None:
    region = memory.register(3 << 20)
    array = region.array((3 << 18,), np.dtype(np.float32))
    array[:] = np.arange(array.size)
    part, mine = array[1000:], Views(0, 2)
    found = at(memory.home(part), part.ctypes.data, part.nbytes, of=mine)
    assert found not in (0, part.ctypes.data), "another mapping of the same memory"
    seen = np.ctypeslib.as_array((ctypes.c_float * part.size).from_address(found))
    assert np.array_equal(seen, part)
    seen[0] = -1
    assert array[1000] == -1
    whole = at(memory.home(array), array.ctypes.data, array.nbytes, of=mine)
    assert found - whole == 4000
    assert memory.home(np.zeros(9)) is None
    assert at(None, part.ctypes.data, part.nbytes, of=mine) == 0
    mine.close()


def test_memory_that_arrays_pass_through_is_no_home(memory: SharedMemory) -> None:
    region = memory.allocate(100)
    assert memory.home(region.array((100,), np.dtype(np.uint8))) is None


def test_what_lies_outside_the_segment_is_not_mapped(descriptor: int) -> None:
    home = Home(descriptor, 1 << 30, 2 * PAGE)
    assert at(home, 1 << 30, 2 * PAGE)
    for place, nbytes in (((1 << 30) - 1, 2), (1 << 30, 2 * PAGE + 1), ((1 << 30) + 2 * PAGE, 1)):
        assert at(home, place, nbytes) == 0


def test_what_is_not_the_file_that_was_named_is_not_mapped(descriptor: int) -> None:
    home = Home(descriptor, 1 << 30, 2 * PAGE)
    assert at(replace(home, nbytes=2 * PAGE + 1), 1 << 30, PAGE) == 0, "the file is shorter"
    other = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(other, 2 * PAGE)
        assert at(replace(home, descriptor=other), 1 << 30, PAGE) == 0, "it could be made shorter"
        hands = np.zeros((2, WORDS), np.int64)
        Views(1, 2).show(hands, home)
        os.dup2(other, descriptor)
        assert Views(0, 2).at(hands, 1, os.getpid(), 1 << 30, PAGE) == 0, "another file has that descriptor"
    finally:
        os.close(other)
    Views(1, 2).show(hands, home)
    hands[1, 3] = 1 + 12_345
    assert Views(0, 2).at(hands, 1, os.getpid(), 1 << 30, PAGE) == 0, "no such descriptor"


def test_what_cannot_be_mapped_is_tried_once(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> mmap.mmap:
        tries.append(1)
        raise OSError

    tries: list[int] = []
    monkeypatch.setattr(huge_pages, "map_shared", refused)
    mine = Views(0, 2)
    for _ in range(2):
        assert at(Home(descriptor, 1 << 30, 2 * PAGE), 1 << 30, PAGE, of=mine) == 0
    assert len(tries) == 1


def test_no_more_segments_are_mapped_than_a_process_has_descriptors_for(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "VIEWS_MAX", 1)
    arrays = [memory.register(2 << 20).array((2 << 20,), np.dtype(np.uint8)) for _ in range(2)]
    mine = Views(0, 2)
    seen = [at(memory.home(array), array.ctypes.data, array.nbytes, of=mine) for array in arrays]
    assert [place != 0 for place in seen] == [True, False]


def test_a_segment_has_a_descriptor_until_its_communicator_is_closed(memory: SharedMemory) -> None:
    def is_open(descriptor: int) -> bool:
        return os.path.exists(f"/proc/self/fd/{descriptor}")

    segment = memory.register(2 << 20).segment
    assert is_open(segment.descriptor)
    memory.close()
    assert not is_open(segment.descriptor)
    memory.close()


def test_a_descriptor_goes_with_its_memory_where_nobody_closes() -> None:
    made = SharedMemory()
    descriptor = made.register(2 << 20).segment.descriptor
    assert os.path.exists(f"/proc/self/fd/{descriptor}")
    del made
    gc.collect()
    assert not os.path.exists(f"/proc/self/fd/{descriptor}")
