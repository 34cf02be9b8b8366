"""SHARP's adapter over its double with a process for each rank, which reach each other by UNIX sockets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from tests.sharp_double import Double

END_S: Final = 600.0
TREE: Final = Path(__file__).resolve().parents[2]


class Processes:
    """The ranks of a job, and what each has said."""

    def __init__(self, size: int) -> None:
        self.processes: list[trio.Process] = []
        self.said: list[list[dict[str, Any]]] = [[] for _ in range(size)]
        self._changed = trio.Event()

    async def read(self, rank: int) -> None:
        stream = self.processes[rank].stdout
        assert stream is not None
        rest = b""
        async for data in stream:
            *lines, rest = (rest + bytes(data)).split(b"\n")
            self.said[rank] += [json.loads(line) for line in lines]
            self._changed.set()

    async def wait_said(self, key: str) -> None:
        """Until each rank has said that."""
        while not all(any(key in line for line in lines) for lines in self.said):
            self._changed = trio.Event()
            await self._changed.wait()


@asynccontextmanager
async def started(
    double: Double, folder: Path, name: str, size: int, devices: str, operations: int
) -> AsyncIterator[Processes]:
    path = folder / f"{name}.sock"
    its = Processes(size)
    with trio.fail_after(END_S):
        async with trio.open_nursery() as nursery:
            try:
                for rank in range(size):
                    words = (double.path, path, rank, size, devices, operations)
                    command = [sys.executable, "-m", "tests.daemon.sharp_rank", *map(str, words)]
                    its.processes.append(
                        await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=TREE)
                    )
                    nursery.start_soon(its.read, rank)
                yield its
            finally:
                for process in its.processes:
                    if process.returncode is None:
                        process.kill()
                    with trio.CancelScope(shield=True):
                        await process.wait()
                nursery.cancel_scope.cancel()


async def test_processes_attach_sum_and_leave(sharp_double: Double, runtime_dir: Path) -> None:
    async with started(sharp_double, runtime_dir, "job", 3, "", 2) as ranks:
        await ranks.wait_said("released")
        for process in ranks.processes:
            assert await process.wait() == 0
    results = [[line["result"] for line in lines if "result" in line] for lines in ranks.said]
    assert results == [[[6, 6], [9, 9]]] * 3
    assert sharp_double.count("jobs") == 0


async def test_a_job_whose_process_was_killed_keeps_its_tree_for_an_interval(
    sharp_double: Double, runtime_dir: Path
) -> None:
    """Until the manager has found out, a job on the same switch is refused, and tries again."""
    sharp_double.place("a:1", [7])
    sharp_double.place("b:1", [7])
    sharp_double.set(cleanup_ms=300)
    async with started(sharp_double, runtime_dir, "first", 2, "a:1", -1) as first:
        await first.wait_said("attached")
        for process in first.processes:
            process.kill()
            await process.wait()
    assert sharp_double.count("jobs") == 1
    async with started(sharp_double, runtime_dir, "second", 2, "b:1", 1) as second:
        await second.wait_said("released")
    assert [line["result"] for lines in second.said for line in lines if "result" in line] == [[3, 3]] * 2
    assert sharp_double.count("sharp_coll_init") > 4  # it was refused at first
    assert sharp_double.count("jobs") == 0
