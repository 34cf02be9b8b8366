"""How the ranks of a shared-memory stage meet, and what refuses them; several ranks in this process."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.client.stage import (
    RANKS_MAX,
    SharedMemoryStage,
    TrioSharedMemoryStage,
    open_stage,
    open_trio_stage,
)
from inaproto.client.stage.layout import Layout
from inaproto.client.stage.meeting import Share, Terms, _map, hosting, joining
from inaproto.client.stage.waits import Steps
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import ConfigError, JobError, JoinRefused, LocalMisuse, OperationTimeout, RankLost
from tests.daemon.test_shm_barrier import Clock

PAIR = ReductionPlan.flat(2)
CHUNK_BYTES = 4096


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What each gives or raises, all at the same time."""
    with ThreadPoolExecutor(len(works)) as threads:
        begun = [threads.submit(work) for work in works]
        return [each.exception() or each.result() for each in begun]


def goes_on(steps: Steps[Share]) -> bool:
    """One step further; False at the end."""
    return next(steps, None) is not None


def share_of(steps: Steps[Share]) -> Share:
    """What it gives in the end, which must be near."""
    try:
        for _ in range(10):
            next(steps)
    except StopIteration as stop:
        share: Share = stop.value
        return share
    raise AssertionError("it still waits")


def pair(path: Path) -> tuple[SharedMemoryStage, SharedMemoryStage]:
    opening = partial(open_stage, path, plan=PAIR, chunk_bytes=CHUNK_BYTES)
    first, second = at_once(partial(opening, 0), partial(opening, 1))
    assert isinstance(first, SharedMemoryStage)
    assert isinstance(second, SharedMemoryStage)
    return first, second


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_slices_in_and_out(runtime_dir: Path) -> None:
    """What a ring of local rank i works on: a part in memory of its own, in the middle."""
    stages = pair(runtime_dir / "s")
    tensors = [np.arange(5001, dtype=np.float32) * (rank + 1) for rank in range(2)]
    parts = at_once(*(partial(stage.reduce_scatter, tensors[stage.rank]) for stage in stages))
    for stage, part in zip(stages, parts, strict=True):
        first, end = stage.slice_bounds(5001)
        assert np.array_equal(part, np.arange(first, end, dtype=np.float32) * 3)
    outs = [np.empty((3, 1667), np.float32) for _ in stages]
    at_once(*(partial(stage.all_gather, parts[stage.rank] * 2, outs[stage.rank]) for stage in stages))
    assert all(np.array_equal(out.reshape(-1), np.arange(5001, dtype=np.float32) * 6) for out in outs)
    in_place = [np.zeros(9, np.int64) for _ in stages]
    for stage in stages:
        in_place[stage.rank][slice(*stage.slice_bounds(9))] = stage.rank + 1
    at_once(
        *(
            partial(stage.all_gather, own[slice(*stage.slice_bounds(9))], own)
            for stage, own in zip(stages, in_place, strict=True)
        )
    )
    assert [own.tolist() for own in in_place] == [[1, 1, 1, 1, 2, 2, 2, 2, 2]] * 2
    with pytest.raises(LocalMisuse, match="rank 0's slice of 9 int64 has 4 elements; part has 5 int64"):
        stages[0].all_gather(in_place[0][4:], in_place[0])
    with pytest.raises(LocalMisuse, match="would overwrite"):
        stages[0].reduce_scatter(in_place[0], in_place[0][:4])
    for stage in stages:
        stage.close()


def test_nothing_stays_open(runtime_dir: Path) -> None:
    before = descriptors()
    stages: tuple[SharedMemoryStage, ...] = ()
    for _ in range(3):
        stages = pair(runtime_dir / "s")
        assert os.listdir(runtime_dir) == []
        at_once(*(partial(stage.all_reduce, np.ones(5000, np.float16)) for stage in stages))
        stages[1].close()
        stages[1].close()
        with pytest.raises(RankLost, match=r"rank 1 \(process \d+\) closed its stage") as kept:
            stages[0].all_reduce(np.ones(3, np.float16))
        stages[0].close()
        assert descriptors() == before
        assert kept.value.__traceback__ is not None
    with pytest.raises(JobError, match="was closed"):
        stages[1].all_reduce(np.ones(3, np.float16))


def test_rank_0_names_who_does_not_come(runtime_dir: Path) -> None:
    before = descriptors()
    path, clock = runtime_dir / "s", Clock()
    terms = Terms(ReductionPlan.flat(4), Layout(4))
    guest = joining(path, 2, terms, 30, clock)
    host = hosting(path, terms, 5, clock)
    for _ in range(3):
        assert goes_on(guest)  # there is no rank 0 yet, and that is no error
    assert goes_on(host)
    assert goes_on(guest)
    assert all(goes_on(host) for _ in range(5))
    clock.now = 5
    with pytest.raises(OperationTimeout, match="ranks 1, 3 of 4 did not come within 5 s"):
        goes_on(host)
    with pytest.raises(JoinRefused, match="rank 2: ranks 1, 3 of 4 did not come"):
        goes_on(guest)
    assert os.listdir(runtime_dir) == []
    late = joining(path, 3, terms, 5, clock)
    assert goes_on(late)
    clock.now = 10
    with pytest.raises(OperationTimeout, match="rank 3: rank 0 did not open"):
        goes_on(late)
    assert descriptors() == before


def test_a_guest_is_told_that_rank_0_ended(runtime_dir: Path) -> None:
    path, clock = runtime_dir / "s", Clock()
    terms = Terms(PAIR, Layout(2))
    host, guest = hosting(path, terms, 5, clock), joining(path, 1, terms, 5, clock)
    assert goes_on(host)
    assert goes_on(guest)
    host.close()
    with pytest.raises(RankLost, match="rank 1: rank 0 ended before all ranks had come"):
        goes_on(guest)


@pytest.mark.parametrize(
    ("plan", "chunk_bytes", "reason"),
    [
        (ReductionPlan((1, 0)), CHUNK_BYTES, r"another reduction plan than rank 0, whose plan is \[0, 1\]"),
        (ReductionPlan.flat(3), CHUNK_BYTES, "rank 1 of 3; rank 0 expects ranks 1 to 1"),
        (PAIR, 8192, "chunks of 8192 bytes, rank 0 of 4096"),
    ],
)
def test_ranks_that_expect_something_else_are_refused(
    runtime_dir: Path, plan: ReductionPlan, chunk_bytes: int, reason: str
) -> None:
    path, clock = runtime_dir / "s", Clock()
    host = hosting(path, Terms(PAIR, Layout(2, CHUNK_BYTES)), 5, clock)
    guest = joining(path, 1, Terms(plan, Layout(plan.size, chunk_bytes)), 5, clock)
    assert goes_on(host)
    assert goes_on(guest)
    assert all(goes_on(host) for _ in range(5))
    with pytest.raises(JoinRefused, match=reason):
        goes_on(guest)
    host.close()


def test_strangers_do_not_disturb_the_meeting(runtime_dir: Path) -> None:
    """Noise, silence, and a rank that ends before all have come; the one started anew is let in."""
    before = descriptors()
    path, clock = runtime_dir / "s", Clock()
    terms = Terms(ReductionPlan.flat(3), Layout(3, CHUNK_BYTES))
    host = hosting(path, terms, 5, clock)
    assert goes_on(host)
    hello = terms.hello(1)
    strangers = []
    for noise in (b"noise", hello[:-1], b"x" * len(hello), terms.hello(0), None):
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stranger.connect(os.fspath(path))
        if noise is not None:
            stranger.send(noise)
        strangers.append(stranger)
        assert all(goes_on(host) for _ in range(3))
    answers = [stranger.recv(4096) for stranger in strangers[:-1]]
    assert b"no greeting" in answers[0]
    assert b"no greeting" in answers[1]
    assert b"no greeting" in answers[2]
    assert b"it calls itself rank 0 of 3" in answers[3]
    first, second = joining(path, 1, terms, 5, clock), joining(path, 1, terms, 5, clock)
    for guest in (first, second):
        assert goes_on(guest)
        assert all(goes_on(host) for _ in range(3))
    with pytest.raises(JoinRefused, match="rank 1 has come already"):
        goes_on(second)
    first.close()
    assert all(goes_on(host) for _ in range(3))
    guests = [joining(path, rank, terms, 5, clock) for rank in (2, 1)]
    assert all(goes_on(guest) for guest in guests)
    shares = [share_of(each) for each in (host, *guests)]
    assert os.listdir(runtime_dir) == []
    shares[0].memory[:5] = b"hello"
    for share in shares:
        assert share.memory[:5] == b"hello"
        share.memory.close()
        share.descriptors.close()
    for stranger in strangers:
        stranger.close()
    assert descriptors() == before


def test_a_socket_that_a_killed_rank_left_is_replaced(runtime_dir: Path) -> None:
    path = runtime_dir / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(os.fspath(path))
    for stage in pair(path):
        stage.close()
    assert os.listdir(runtime_dir) == []


def test_paths_that_cannot_be_used(runtime_dir: Path) -> None:
    path = runtime_dir / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(os.fspath(path))
        other.listen()
        with pytest.raises(ConfigError, match="another rank 0 already listens"):
            open_stage(path, 0, plan=PAIR)
    (runtime_dir / "file").touch()
    for bad, reason in (
        (runtime_dir / "file", "is not a socket"),
        (runtime_dir / "none" / "s", "No such file"),
        (runtime_dir / ("s" * 120), "bytes long"),
    ):
        with pytest.raises(ConfigError, match=reason):
            open_stage(bad, 0, plan=PAIR)


def test_arguments_that_make_no_stage(runtime_dir: Path) -> None:
    opening = partial(open_stage, runtime_dir / "s")
    with pytest.raises(LocalMisuse, match=f"1 to {RANKS_MAX} are possible"):
        opening(0, plan=ReductionPlan.flat(RANKS_MAX + 1))
    with pytest.raises(LocalMisuse, match="a cache line for each rank"):
        opening(0, plan=PAIR, chunk_bytes=127)
    with pytest.raises(LocalMisuse, match="rank 2 of a shared-memory stage"):
        opening(2, plan=PAIR)
    with pytest.raises(LocalMisuse, match="a timeout of 0 s"):
        opening(0, plan=PAIR, timeout=0)


def test_memory_that_could_be_taken_away_is_not_mapped() -> None:
    for seals, nbytes in ((0, mmap.PAGESIZE), (fcntl.F_SEAL_SHRINK, mmap.PAGESIZE - 1)):
        memfd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.truncate(memfd, nbytes)
        fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, seals)
        with pytest.raises(JobError, match="be sealed against shrinking"):
            _map(memfd, mmap.PAGESIZE)
        os.close(memfd)
    reading, writing = os.pipe()
    with pytest.raises(JobError, match="no memfd"):
        _map(reading, mmap.PAGESIZE)
    os.close(reading)
    os.close(writing)


def test_a_stage_does_not_survive_fork(runtime_dir: Path) -> None:
    first, second = pair(runtime_dir / "s")
    child = os.fork()
    if child == 0:
        try:
            first.all_reduce(np.ones(1, np.float32))
        except LocalMisuse:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    second.close()
    first.close()


async def test_a_cancelled_call_ends_the_stage_for_all(runtime_dir: Path) -> None:
    before = descriptors()
    stages: dict[int, TrioSharedMemoryStage] = {}

    async def enter(rank: int) -> None:
        stages[rank] = await open_trio_stage(runtime_dir / "s", rank, plan=PAIR, chunk_bytes=CHUNK_BYTES)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(enter, 0)
        nursery.start_soon(enter, 1)
    ones = np.ones(3, np.float32)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stages[0].all_reduce, ones)
        await wait_all_tasks_blocked()
        with pytest.raises(LocalMisuse, match="has not ended"):
            await stages[0].all_reduce(ones)
        with pytest.raises(LocalMisuse, match="cancel it"):
            stages[0].close()
        nursery.cancel_scope.cancel()
    with pytest.raises(JobError, match="given up in the middle"):
        await stages[0].all_reduce(ones)
    with pytest.raises(RankLost, match=r"rank 0 \(process \d+\) gave up in the middle of its call"):
        await stages[1].all_reduce(ones)
    for stage in stages.values():
        stage.close()
    assert len(descriptors()) == len(before)
