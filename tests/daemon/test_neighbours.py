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

from inaproto.client.stage import handing_back, open_stage
from inaproto.client.stage import stage as stages
from inaproto.client.stage.access import MEMORY_VARIABLE
from inaproto.client.stage.barrier import Cause
from inaproto.client.stage.gathering import Arrays, Gathering
from inaproto.client.stage.layout import WORDS, Bytes
from inaproto.client.stage.neighbours import Neighbours
from inaproto.core import kernels
from inaproto.errors import ConfigError, JobError, RankLost
from inaproto.wire.ina_header import Dtype, Op
from tests.daemon.test_shm_stage import PAIR, at_once, pair

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


def test_an_environment_that_forbids_it(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "copy")
    assert add(runtime_dir / "s") == (
        f"rank 0 may not read the memory of the others: its {MEMORY_VARIABLE} forbids it"
    )
    monkeypatch.setenv(MEMORY_VARIABLE, "none")
    with pytest.raises(
        ConfigError, match=rf"{MEMORY_VARIABLE} is 'none'; it must be one of write, read, copy"
    ):
        open_stage(runtime_dir / "t", 0, plan=PAIR)


def beside(pid: int, address: int = 0, number: int = 0) -> Neighbours:
    """Rank 0, and as rank 1 process ``pid``, which shows ``number`` at ``address``."""
    words = np.zeros((2, WORDS), np.int64)
    words[:, 4] = os.getpid(), pid
    made = Neighbours(0, words, np.zeros((2, WORDS), np.int64))
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


needs_kernels = pytest.mark.usefixtures("compiled_kernels")


class Given:
    """Rank 0 adds rank 1's array to its own, which this process has, too."""

    def __init__(
        self,
        neighbours: Neighbours,
        address: int,
        array: Bytes,
        *,
        out: int = 0,
        seen: tuple[int, int] = (0, 0),
    ) -> None:
        """``out``: where rank 1 gets the sum; 0: nowhere. ``seen``: where its arrays are mapped here."""
        compiled = kernels.active()
        assert compiled is not None
        self.hands = np.zeros((2, WORDS), np.int64)
        rows, places = np.zeros((2, 64), np.uint8), [(0, 0), (address, out)]
        arrays = Arrays(0, array, array, rows, places, [(0, 0), seen])
        self.gathering = Gathering(
            neighbours, compiled, Dtype.I32, [1, 0], arrays, self.hands if out else None
        )
        self.add = self.gathering.add


@needs_kernels
def test_blocks_before_the_one_that_cannot_be_read_are_added() -> None:
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 2 * page) as memory:
        theirs = np.frombuffer(memory, np.int32)
        theirs[:] = 5
        address, ours = theirs.ctypes.data, np.ones(page // 2, np.int32)
        Given(beside(os.getpid()), address, ours.view(np.uint8)).add(32, 100)
        assert (ours[8:25] == 6).all()
        assert ours.sum() == ours.size + 17 * 5
        del theirs
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + page), page, 0) == 0
        ours[:] = 1
        with pytest.raises(JobError, match=r"rank 1 .* any more: Bad address; is that memory given back"):
            Given(beside(os.getpid()), address, ours.view(np.uint8)).add(0, 2 * page)
        assert (ours == np.where(np.arange(page // 2) < page // 4, 6, 1)).all()


@needs_kernels
def test_a_rank_that_ended_while_it_was_added_is_named() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    with pytest.raises(RankLost, match=rf"rank 1 \(process {child.pid}\) ended while rank 0 read its array"):
        Given(beside(child.pid), 0, np.zeros(64, np.uint8)).add(0, 64)


@needs_kernels
@pytest.mark.parametrize(
    ("number", "error"),
    [(77, ""), (0, "gave up while rank 0 wrote to its array"), (78, "ended while rank 0 read its array")],
)
def test_nothing_is_written_to_who_took_its_number_back_nor_to_a_stranger(number: int, error: str) -> None:
    shown, theirs, ours = np.array([77], np.int64), np.full(16, 5, np.int32), np.ones(16, np.int32)
    address = theirs.ctypes.data
    neighbours = beside(os.getpid(), shown.ctypes.data, 77)
    shown[0] = number
    given = Given(neighbours, address, ours.view(np.uint8), out=address)
    if not error:
        given.add(0, 64)
        assert (theirs == 6).all()
    else:
        with pytest.raises(RankLost, match=error):
            given.add(0, 64)
        assert (theirs == 5).all()
    assert (ours == 6).all()
    assert not given.hands.any()


@needs_kernels
def test_what_is_mapped_here_is_read_and_written_here() -> None:
    shown, theirs, ours = np.array([77], np.int64), np.full(80, 5, np.int32), np.ones(80, np.int32)
    neighbours, here = beside(os.getpid(), shown.ctypes.data, 77), theirs.ctypes.data
    Given(neighbours, 0, ours.view(np.uint8), out=1, seen=(here, here)).add(64, 256)  # nothing is at 0 and 1
    for array in (ours, theirs):
        assert (array[16:64] == 6).all()
    assert (np.delete(ours, np.s_[16:64]) == 1).all()
    assert (np.delete(theirs, np.s_[16:64]) == 5).all()
    shown[0] = 0
    with pytest.raises(RankLost, match="gave up"):
        Given(neighbours, 0, ours.view(np.uint8), out=1, seen=(here, here)).add(0, 64)
    assert (theirs[:16] == 5).all(), "not even where it is mapped"


@needs_kernels
def test_who_withdraws_is_written_to_no_more() -> None:
    words, hands = np.zeros((2, WORDS), np.int64), np.zeros((2, WORDS), np.int64)
    words[:, 4] = os.getpid()
    both = [Neighbours(rank, words, hands) for rank in range(2)]
    for action in (Neighbours.show, Neighbours.look, Neighbours.agree):
        for each in both:
            action(each)
    assert both[0].gives(Dtype.F32, Op.SUM) is kernels.active()
    assert both[0].gives(Dtype.F32, Op.MAX) is None
    assert both[0].gives(Dtype.F64, Op.SUM) is None
    theirs, ours = np.full(16, 5, np.int32), np.ones(16, np.int32)
    address = theirs.ctypes.data
    Given(both[0], address, ours.view(np.uint8), out=address).add(0, 64)
    assert (theirs == 6).all()
    both[1].withdraw()
    with pytest.raises(RankLost, match="gave up"):
        Given(both[0], address, ours.view(np.uint8), out=address).add(0, 64)
    assert (theirs == 6).all()


@needs_kernels
def test_all_write_or_nobody(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Neighbours._try_to_write
    assert add(runtime_dir / "given") == ""
    monkeypatch.setattr(Neighbours, "_try_to_write", lambda self: found(self) if self._rank else errno.EPERM)
    monkeypatch.setattr(Gathering, "add", reads_alone(Gathering.add))
    assert add(runtime_dir / "read") == ""


def reads_alone(add: Callable[[Gathering, int, int], None]) -> Callable[[Gathering, int, int], None]:
    def checked(self: Gathering, first: int, end: int) -> None:
        assert not self._words[1]
        add(self, first, end)

    return checked


def about_to_write(stage: stages.SharedMemoryStage, rank: int, whom: int | None) -> None:
    stage._layout.hands(np.frombuffer(stage._mapping, np.uint8))[rank, 0] = 0 if whom is None else 1 + whom


def test_who_gives_up_waits_for_those_who_write_to_it(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair(runtime_dir / "s")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        about_to_write(first, 1, 0 if len(waits) < 3 else None)

    monkeypatch.setattr("time.sleep", wait)
    monkeypatch.setattr(handing_back, "_kept", kept := list[Bytes]())
    about_to_write(first, 1, 0)
    first._exchange.given = np.zeros(8, np.uint8)
    first._fail(Cause([], JobError("x")))
    assert len(waits) == 3
    about_to_write(second, 0, 1)
    second._exchange.given = np.zeros(8, np.uint8)
    second._fail(Cause([], JobError("y")))  # the first one gave up, so it writes no more
    assert len(waits) == 3
    assert not kept
    first.close()
    second.close()


def test_an_array_to_which_a_stopped_rank_may_write_is_kept(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair(runtime_dir / "s")
    array = np.zeros(8, np.uint8)
    about_to_write(first, 1, 0)
    monkeypatch.setattr(handing_back, "WRITERS_S", 0.0)
    monkeypatch.setattr(handing_back, "_kept", kept := list[Bytes]())
    first._exchange.given = array
    first._fail(Cause([], JobError("x")))
    assert kept[0] is array
    first.close()
    second.close()
