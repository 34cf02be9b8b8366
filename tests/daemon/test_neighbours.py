"""Ranks that read each other's memory: only where all may, and what is said of one that is gone."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inaproto.client.stage.layout import WORDS, Bytes
from inaproto.client.stage.neighbours import Neighbours
from inaproto.errors import JobError, RankLost
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
