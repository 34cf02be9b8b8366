"""The shared-memory stage between processes: results, and what the others learn when one is killed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.wire.ina_header import Dtype, Op
from tests.child_processes import shared_memory
from tests.daemon.shm_rank import CALLS, WAIT_S, tensor

TREE = Path(__file__).resolve().parents[2]
DEADLINE_S = 250
"""For a process to start or end: longer than a busy machine needs, so only a hang meets it."""


class Process:
    def __init__(self, path: Path, rank: int, lists: object, stops: str) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.daemon.shm_rank",
            str(path),
            str(rank),
            json.dumps(lists),
            stops,
        ]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TREE
        )
        self.name = f"rank {rank} (process {self.process.pid})"

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found = self.process.stdout.readline()
        assert found, self.process.communicate()[1]
        said = json.loads(found)
        assert isinstance(said, dict)
        return said

    def end(self) -> tuple[int, str]:
        """Exit status and what is on standard error."""
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors


@contextmanager
def processes(path: Path, lists: list[Any], stops: str = "") -> Iterator[list[Process]]:
    size = ReductionPlan.from_lists(lists).size
    started = [Process(path, rank, lists, stops) for rank in range(size)]
    try:
        yield started
    finally:
        for each in started:
            each.process.kill()
            each.process.communicate(timeout=DEADLINE_S)


def digests(plan: ReductionPlan) -> list[str]:
    found = []
    for call in range(CALLS):
        inputs = [tensor(rank, call).view(np.uint8) for rank in range(plan.size)]
        found.append(hashlib.sha256(plan.reduce(inputs, Dtype.F32, Op.SUM).tobytes()).hexdigest())
    return found


@pytest.mark.parametrize(("lists", "killed"), [([[2, 0], 1, [3]], 2), ([1, 0], 0)])
def test_one_result_and_who_was_killed(runtime_dir: Path, lists: list[Any], killed: int) -> None:
    """In the middle of a call, and told at once: the others' own deadline is far away. Nothing is left."""
    assert WAIT_S > 2 * DEADLINE_S
    expected = digests(ReductionPlan.from_lists(lists))
    with processes(runtime_dir / "s", lists) as ranks:
        for each in ranks:
            assert each.line() == {"digests": expected}
        ranks[killed].process.send_signal(signal.SIGKILL)
        for rank, each in enumerate(ranks):
            if rank != killed:
                said = each.line()
                assert said["error"] == "RankLost"
                assert f"{ranks[killed].name} ended" in said["message"]
                assert each.line() == {"left": []}
                assert each.end() == (0, "")
    assert os.listdir(runtime_dir) == []
    assert shared_memory() == []


def test_who_has_stopped_is_named(runtime_dir: Path) -> None:
    """A process that is there but does nothing; it learns that the others have given it up."""
    with processes(runtime_dir / "s", [0, 1], stops="1") as ranks:
        for each in ranks:
            assert "digests" in each.line()
        said = ranks[0].line()
        assert said["error"] == "OperationTimeout"
        assert ranks[1].name in said["message"]
        assert ranks[0].line() == {"left": []}
        os.waitid(os.P_PID, ranks[1].process.pid, os.WSTOPPED)  # who is not stopped yet would never go on
        ranks[1].process.send_signal(signal.SIGCONT)
        said = ranks[1].line()
        assert said["error"] == "RankLost"
        assert f"{ranks[0].name} gave up waiting for {ranks[1].name}" in said["message"]
        assert ranks[1].line() == {"left": []}
