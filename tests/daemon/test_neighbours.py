"""Ranks that read each other's memory: only where all may, and what is said of one that is gone."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inaproto.client.stage.layout import WORDS, Bytes
from inaproto.client.stage.neighbours import Gathering, Neighbours
from inaproto.core import kernels
from inaproto.errors import JobError, RankLost
from inaproto.wire.ina_header import Dtype
from tests.daemon.test_shm_stage import at_once, pair

LARGE = 300_001
"""Elements of float32: more than a mebibyte."""
Fault = Callable[[Neighbours, int, int, Bytes], int]


def refused(read: Fault, *, at: int) -> Fault:
    """As the kernel answers rank ``at``."""

    def fault(self: Neighbours, rank: int, address: int, out: Bytes) -> int:
        return errno.EPERM if self._rank == at else read(self, rank, address, out)

    return fault


def add(path: Path) -> str:
    """All ranks have the sum. Why it was copied."""
    stages = pair(path)
    tensors = [np.arange(LARGE, dtype=np.float32) * (stage.rank + 1) for stage in stages]
    at_once(
        *(lambda stage=stage: stage.all_reduce(tensors[stage.rank], tensors[stage.rank]) for stage in stages)
    )
    for stage, tensor in zip(stages, tensors, strict=True):
        assert np.array_equal(tensor, np.arange(LARGE, dtype=np.float32) * 3)
        stage.close()
    assert stages[0].copies == stages[1].copies
    return stages[0].copies


def test_all_read_or_nobody(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert add(runtime_dir / "read") == ""
    monkeypatch.setattr(Neighbours, "_fault", refused(Neighbours._fault, at=1))
    assert (
        add(runtime_dir / "copied") == "rank 1 may not read the memory of the others: Operation not permitted"
    )


def test_a_system_without_it(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    assert add(runtime_dir / "s").endswith("Function not implemented")


def beside(pid: int, address: int = 0, number: int = 0) -> Neighbours:
    """Rank 0, and as rank 1 process ``pid``, which shows ``number`` at ``address``."""
    words = np.zeros((2, WORDS), np.int64)
    words[:, 4] = os.getpid(), pid
    made = Neighbours(0, words)
    made.show()
    words[1, 5:7] = address, number
    made.look()
    return made


def test_another_process_of_that_number_is_found() -> None:
    shown = np.array([77], np.int64)
    address = shown.ctypes.data
    assert beside(os.getpid(), address, 77).why_not() == ""
    assert beside(os.getpid(), address, 78).why_not().endswith("No such process")


def test_what_cannot_be_read_any_more() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    out = np.zeros(8, np.uint8)
    with pytest.raises(RankLost, match=rf"rank 1 \(process {child.pid}\) ended while rank 0 read its array"):
        beside(child.pid).read(1, 0, out)
    with pytest.raises(JobError, match="Bad address; is that memory given back"):
        beside(os.getpid()).read(1, 0, out)
    shown = ctypes.create_string_buffer(b"12345678")
    beside(os.getpid()).read(1, ctypes.addressof(shown), out)
    assert out.tobytes() == b"12345678"


def gathering(other: Neighbours, address: int, array: Bytes, block: int = 64) -> Gathering:
    """Of rank 0, whose array gets the sum; rank 1's is at ``address``."""
    compiled = kernels.active()
    assert compiled is not None
    arrays = array, array, np.zeros((2, block), np.uint8)
    return Gathering(other, compiled, 0, Dtype.I32, [1, 0], [0, address], arrays)


@pytest.mark.skipif(kernels.active() is None, reason="no compiled kernels")
def test_blocks_before_the_one_that_cannot_be_read_are_added() -> None:
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 2 * page) as memory:
        theirs = np.frombuffer(memory, np.int32)
        theirs[:] = 5
        address, pages = theirs.ctypes.data, np.ones(page // 2, np.int32)
        ours = pages.view(np.uint8)
        gathering(beside(os.getpid()), address, ours).add(32, 100)
        assert (pages[8:25] == 6).all()
        assert pages.sum() == pages.size + 17 * 5
        del theirs
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + page), page, 0) == 0
        pages[:] = 1
        with pytest.raises(JobError, match=r"rank 1 .* any more: Bad address; is that memory given back"):
            gathering(beside(os.getpid()), address, ours).add(0, 2 * page)
        assert (pages == np.where(np.arange(page // 2) < page // 4, 6, 1)).all()


@pytest.mark.skipif(kernels.active() is None, reason="no compiled kernels")
def test_a_rank_that_ended_while_it_was_added_is_named() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    with pytest.raises(RankLost, match=rf"rank 1 \(process {child.pid}\) ended while rank 0 read its array"):
        gathering(beside(child.pid), 0, np.zeros(64, np.uint8)).add(0, 64)
