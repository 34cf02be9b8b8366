"""Slices of sums of one host, added in threads: all of them, in turn, and nothing behind the end of a job."""

from __future__ import annotations

import threading
from typing import Any, Self

import pytest
import trio

from inaproto.daemon.host.adding import AT_ONCE_BYTES, Adders, Adding, UnderWay
from inaproto.errors import LocalMisuse


class Part:
    """A slice of ``blocks`` blocks; the one of number ``stops_at`` waits until it may go on."""

    ranks = 2

    def __init__(self, blocks: int = 3, *, nbytes: int = AT_ONCE_BYTES, stops_at: int = -1) -> None:
        self.left, self.nbytes, self.stops_at = blocks, nbytes, stops_at
        self.threads: set[int] = set()
        self.stopped, self.may_go_on = threading.Event(), threading.Event()

    def block(self) -> bool:
        self.threads.add(threading.get_ident())
        if self.left == self.stops_at:
            self.stopped.set()
            assert self.may_go_on.wait(20)
        self.left -= 1
        return self.left > 0


class Broken(Part):
    def block(self) -> bool:
        raise LocalMisuse("no such element type")


class Job:
    def __init__(self, *parts: Part) -> None:
        self.parts: list[Any] = list(parts)
        self.ended: list[Adding] = []
        self.under_way = UnderWay()
        self.has_all = trio.Event()

    def begin_slice(self) -> Adding | None:
        return self.under_way.begin(self.parts.pop(0) if self.parts else None)

    def end_slice(self, adding: Adding) -> None:
        assert self.under_way.end(adding)
        self.ended.append(adding)
        if not self.parts:
            self.has_all.set()


class Running:
    """Adders that run for ``jobs``."""

    def __init__(self, *jobs: Job, threads: bool = True) -> None:
        self.jobs = list(jobs)
        self.idle = 0
        self.adders = Adders(lambda: self.jobs, self._is_idle, threads=threads)

    def _is_idle(self) -> None:
        self.idle += 1

    async def __aenter__(self) -> Self:
        self._manager = trio.open_nursery()
        self.nursery = await self._manager.__aenter__()
        self.nursery.start_soon(self.adders.run)
        return self

    async def __aexit__(self, *how: Any) -> None:
        self.nursery.cancel_scope.cancel()
        await self._manager.__aexit__(*how)


async def test_all_slices_of_all_jobs_are_added_also_those_that_come_later() -> None:
    parts = [[Part() for _ in range(5)] for _ in range(3)]
    jobs = [Job(*each) for each in parts]
    with trio.fail_after(600):
        async with Running(*jobs) as running:
            for job in jobs:
                await job.has_all.wait()
            late = Part()
            jobs[1].parts.append(late)
            jobs[1].has_all = trio.Event()
            running.adders.look()
            await jobs[1].has_all.wait()
    assert all(part.left == 0 for part in [*(part for each in parts for part in each), late])
    assert threading.get_ident() not in late.threads
    assert running.idle > 0


async def test_few_bytes_are_added_by_the_loop_itself() -> None:
    part = Part(nbytes=AT_ONCE_BYTES // 2)
    job = Job(part)
    with trio.fail_after(600):
        async with Running(job):
            await job.has_all.wait()
    assert part.threads == {threading.get_ident()}


async def test_without_threads_the_loop_adds_all_however_long() -> None:
    parts = [Part(nbytes=AT_ONCE_BYTES * 64) for _ in range(3)]
    job = Job(*parts)
    with trio.fail_after(600):
        async with Running(job, threads=False):
            await job.has_all.wait()
    assert all(part.left == 0 and part.threads == {threading.get_ident()} for part in parts)


async def test_a_fault_is_told_and_others_go_on() -> None:
    job = Job(Broken(), Part())
    with trio.fail_after(600):
        async with Running(job):
            while len(job.ended) < 2:
                await trio.lowlevel.checkpoint()
    assert sorted(str(each.fault) for each in job.ended) == ["None", "no such element type"]


async def test_a_job_that_ends_waits_for_a_block_and_nothing_follows_it() -> None:
    part = Part(blocks=3, stops_at=2)
    adding = UnderWay().begin(part)  # type: ignore[arg-type]
    assert adding is not None
    thread = threading.Thread(target=adding.run)
    thread.start()
    assert part.stopped.wait(20)
    ends = threading.Thread(target=adding.give_up)
    ends.start()
    ends.join(0.05)
    assert ends.is_alive(), "the block under way has not ended"
    part.may_go_on.set()
    ends.join(20)
    assert part.left == 1
    thread.join(20)
    assert part.left == 1


def test_what_was_given_up_does_not_count_when_it_ends() -> None:
    under_way = UnderWay()
    assert under_way.begin(None) is None
    adding = under_way.begin(Part())  # type: ignore[arg-type]
    assert adding is not None
    under_way.give_up()
    assert not under_way.end(adding)
    assert adding.run().part.left == 3  # type: ignore[attr-defined]


async def test_a_slice_that_a_thread_has_is_waited_for_when_adders_are_stopped() -> None:
    part = Part(stops_at=3)
    job = Job(part, Part())
    with trio.fail_after(600):
        async with Running(job) as running:
            await trio.to_thread.run_sync(part.stopped.wait)
            running.nursery.cancel_scope.cancel()
            part.may_go_on.set()
    assert part.left == 0
    assert any(adding.part is part for adding in job.ended)  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("cpus", [1, 2, 64])
async def test_as_many_adders_as_cpus_within_reason(cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cpus)))
    parts = [Part(stops_at=3) for _ in range(12)]
    job = Job(*parts)
    with trio.fail_after(600):
        async with Running(job):
            for part in parts[: min(cpus, 8)]:
                await trio.to_thread.run_sync(part.stopped.wait)
            await trio.testing.wait_all_tasks_blocked()
            assert sum(part.stopped.is_set() for part in parts) == min(cpus, 8)
            for part in parts:
                part.may_go_on.set()
            await job.has_all.wait()
