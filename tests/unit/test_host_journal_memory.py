"""Memory of a journal, private or in a memfd: one contract, and what others may have made of the memfd."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from inaproto.core.host.journal import Arena, Journal, JournalRefused, PrivateArena, read_journal
from inaproto.daemon.host.shared_arena import ARENA_BYTES_MAX, SharedArena
from tests.unit.journal_scenario import (
    TENSOR_BYTES,
)

HUGE = (1 << 64) - 1
WINDOW = 2
ARENAS: dict[str, Callable[[], Arena]] = {"private": PrivateArena, "shared": SharedArena}


@pytest.fixture(params=ARENAS)
def arena(request: pytest.FixtureRequest) -> Arena:
    return ARENAS[request.param]()


def test_an_arena_hands_out_zeroed_memory_that_is_found_again(arena: Arena) -> None:
    first, second = arena.allocate(100), arena.allocate(5000)
    assert first.at == 0
    assert second.at >= 100
    assert bytes(second.view[:5000]) == bytes(5000)
    second.view[4990:5000] = b"0123456789"
    assert bytes(arena.look(second.at + 4990, 10)) == b"0123456789"
    arena.look(second.at, 10)[:] = b"abcdefghij"
    assert bytes(second.view[:10]) == b"abcdefghij"
    assert bytes(arena.look(second.at, 0)) == b""


def test_what_lies_outside_is_refused(arena: Arena) -> None:
    area = arena.allocate(4096)
    end = area.at + 4096
    for at, nbytes in [
        (end - 1, 2),
        (end + 1, 0),
        (end, 1),
        (1 << 63, 8),
        (HUGE, 1),
        (0, 1 << 62),
        (0, end + 1),
    ]:
        with pytest.raises(JournalRefused):
            arena.look(at, nbytes)


def test_memory_that_was_given_back_is_not_used_again(arena: Arena) -> None:
    first, second = arena.allocate(4096), arena.allocate(4096)
    first.view[:4] = b"data"
    second.view[:4] = b"stay"
    first.free()
    third = arena.allocate(4096)
    assert third.at > second.at
    assert bytes(second.view[:4]) == b"stay"
    with contextlib.suppress(JournalRefused):
        assert bytes(arena.look(first.at, 4)) == bytes(4)


def test_a_view_outlives_the_memory_that_it_is_of(arena: Arena) -> None:
    area = arena.allocate(4096)
    view = area.view[:4]
    view[:] = b"data"
    area.free()
    assert bytes(view) == b"data"


# --- memory that others hold


def duplicate(arena: SharedArena) -> SharedArena:
    return SharedArena(os.dup(arena.descriptor))


def test_another_process_finds_the_same_memory() -> None:
    arena = SharedArena()
    arena.allocate(10).view[:4] = b"data"
    other = duplicate(arena)
    assert (other.file, other.nbytes) == (arena.file, mmap.PAGESIZE)
    assert bytes(other.look(0, 4)) == b"data"
    assert SharedArena().file != arena.file


def test_a_mapping_goes_with_its_view() -> None:
    arena = SharedArena()
    arena.allocate(10)
    before = mappings()
    for _ in range(100):
        bytes(arena.look(0, 10))
    assert mappings() == before
    view = arena.look(0, 10)
    assert mappings() == before + 1
    view[:4] = b"data"
    assert bytes(arena.look(0, 4)) == b"data"


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:inaproto-journal")


def test_no_page_is_left_of_what_was_given_back() -> None:
    arena = SharedArena()
    arena.allocate(4096).view[:1] = b"x"
    area = arena.allocate(1 << 20)
    area.view[:] = bytes(1 << 20)
    used = os.fstat(arena.descriptor).st_blocks
    area.free()
    assert os.fstat(arena.descriptor).st_blocks <= used - (1 << 20) // 512
    again = duplicate(arena)
    again.allocate(4096).view[:1] = b"y"
    again.keep_only(5)
    assert again.look(0, 1)[0] == ord("x")
    assert os.fstat(arena.descriptor).st_blocks == mmap.PAGESIZE // 512
    again.keep_only(1 << 41)  # of what is not there, too


def test_the_descriptor_goes_with_the_arena() -> None:
    before = len(os.listdir("/proc/self/fd"))
    arenas = [SharedArena() for _ in range(5)]
    del arenas
    with pytest.raises(JournalRefused):
        SharedArena(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
    assert len(os.listdir("/proc/self/fd")) == before


def memfd(seals: int = 0, flags: int = 0, nbytes: int = 0) -> int:
    descriptor = os.memfd_create("journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


FOREIGN: dict[str, Callable[[Path], int]] = {
    "a device": lambda _: os.open("/dev/zero", os.O_RDWR),
    "a file": lambda path: os.open(path / "file", os.O_RDWR | os.O_CREAT),
    "a pipe": lambda _: os.pipe()[0],
    "a memfd that may shrink": lambda _: memfd(),
    "one that cannot be written": lambda _: memfd(fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE),
    "one that cannot grow": lambda _: memfd(fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW),
    "one that cannot be sealed": lambda _: os.memfd_create("journal", os.MFD_CLOEXEC),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_another_descriptor_is_refused(what: str, tmp_path: Path) -> None:
    with pytest.raises(JournalRefused):
        SharedArena(FOREIGN[what](tmp_path))


def test_huge_pages_are_refused() -> None:
    try:
        descriptor = memfd(fcntl.F_SEAL_SHRINK, os.MFD_HUGETLB)
    except OSError:  # this kernel has none
        return
    with pytest.raises(JournalRefused):
        SharedArena(descriptor)


def test_one_that_can_only_be_read_is_refused() -> None:
    arena = SharedArena()
    Journal(arena, window_messages=WINDOW, tensor_bytes=TENSOR_BYTES)
    reading = os.open(f"/proc/self/fd/{arena.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    with pytest.raises(JournalRefused, match="cannot be mapped"):
        read_journal(SharedArena(reading), window_messages=WINDOW, tensor_bytes=TENSOR_BYTES)


def test_one_that_is_sealed_later_is_refused() -> None:
    descriptor = memfd(fcntl.F_SEAL_SHRINK, nbytes=4096)
    arena = SharedArena(descriptor)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    with pytest.raises(JournalRefused, match="cannot be mapped"):
        arena.look(0, 10)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    with pytest.raises(OSError):
        arena.allocate(4096)
    arena.keep_only(10)


def test_no_journal_shrinks() -> None:
    arena = SharedArena()
    arena.allocate(1 << 16)
    with pytest.raises(PermissionError):
        os.ftruncate(os.dup(arena.descriptor), 4096)


def test_a_file_without_end_has_no_room() -> None:
    descriptor = memfd(fcntl.F_SEAL_SHRINK, nbytes=1 << 62)
    arena = SharedArena(descriptor)
    with pytest.raises(OSError, match="no room"):
        arena.allocate(4096)
    with pytest.raises(JournalRefused):
        arena.look(0, 1 << 61)
    with pytest.raises(JournalRefused):
        arena.look(ARENA_BYTES_MAX, 1)
    with pytest.raises(JournalRefused):
        read_journal(arena, window_messages=WINDOW, tensor_bytes=TENSOR_BYTES)


@pytest.mark.parametrize("nbytes", [0, 8, 4096])
def test_an_empty_file_is_no_journal(nbytes: int) -> None:
    with pytest.raises(JournalRefused):
        read_journal(
            SharedArena(memfd(fcntl.F_SEAL_SHRINK, nbytes=nbytes)),
            window_messages=WINDOW,
            tensor_bytes=TENSOR_BYTES,
        )
