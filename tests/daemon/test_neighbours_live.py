"""Processes that use each other's memory, one of which is stopped or killed there; nothing hangs on time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from inaproto.client.stage.access import MEMORY_VARIABLE
from inaproto.core.plan.reduction_plan import ReductionPlan

TREE = Path(__file__).resolve().parents[2]
needs_kernels = pytest.mark.usefixtures("compiled_kernels")

WRITES_TO_0 = "1 write 0\n2 read 0"
"""And rank 2 stops before it has come to the barrier: one that has come and ends is not missing there."""


class Rank:
    def __init__(self, process: subprocess.Popen[str], rank: int) -> None:
        self.process = process
        self.name = f"rank {rank} (process {process.pid})"

    def says(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.name
        said = json.loads(line)
        assert isinstance(said, dict)
        return said

    def error(self) -> str:
        said = self.says()
        if said == {"waits": True}:
            said = self.says()
        assert said.get("error") == "RankLost", said
        return str(said["message"])

    def ends(self) -> dict[str, Any]:
        """What became of its array after its error."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        said = self.says()
        assert self.process.wait() == 0
        return said

    def is_stopped(self) -> None:
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def goes_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def killed(self) -> None:
        self.process.kill()
        self.process.wait()


Start = Callable[..., list[Rank]]


@pytest.fixture
def start(runtime_dir: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(
            lists: list[Any], stops: str = "", *per_rank: dict[str, str], **environment: str
        ) -> list[Rank]:
            found = []
            for rank in range(ReductionPlan.from_lists(lists).size):
                own = per_rank[rank] if per_rank else {}
                command = [sys.executable, "-m", "tests.daemon.neighbour_rank", str(runtime_dir / "s")]
                process = subprocess.Popen(
                    [*command, str(rank), json.dumps(lists), stops],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=TREE,
                    env=os.environ | environment | own,
                )
                stack.enter_context(process)
                stack.callback(process.kill)
                found.append(Rank(process, rank))
            return found

        yield started


@pytest.mark.parametrize("lists", [[[1, 0], 2], [0, 1, 2]])
def test_a_slow_rank_names_who_was_killed_and_not_who_left_because_of_it(
    start: Start, lists: list[Any]
) -> None:
    ranks = start(lists, "1 read 0\n2 read 0")
    for rank in ranks[1:]:
        rank.is_stopped()
    ranks[1].killed()
    assert f"{ranks[1].name} ended" in ranks[0].error()
    ranks[0].ends()
    ranks[2].goes_on()
    assert f"{ranks[1].name} ended" in ranks[2].error()


@needs_kernels
def test_who_gives_up_waits_for_a_rank_that_is_stopped_in_a_write_to_it(start: Start) -> None:
    ranks = start([0, 1, 2], WRITES_TO_0)
    for rank in ranks[1:]:
        rank.is_stopped()
    ranks[2].killed()
    assert ranks[0].says() == {"waits": True}
    ranks[1].goes_on()
    for rank in ranks[:2]:
        assert f"{ranks[2].name} ended" in rank.error()
        assert rank.ends() == {"since": 0, "kept": 0}


@needs_kernels
def test_an_array_to_which_a_stopped_rank_may_write_is_kept_and_its_owner_warned(start: Start) -> None:
    ranks = start([0, 1, 2], WRITES_TO_0, WAITS="no")
    for rank in ranks[1:]:
        rank.is_stopped()
    ranks[2].killed()
    error = ranks[0].error()
    assert f"{ranks[2].name} ended" in error
    assert f"{ranks[1].name} was stopped while it wrote to this array, and may still do so" in error
    ranks[1].goes_on()
    assert f"{ranks[2].name} ended" in ranks[1].error()
    told = ranks[0].ends()
    assert told["since"] > 0
    assert told["kept"] == 1


@needs_kernels
@pytest.mark.parametrize("where", ["write", "half"])
def test_nobody_waits_for_a_rank_that_was_killed_in_a_write(start: Start, where: str) -> None:
    ranks = start([0, 1, 2], f"1 {where} 0")
    ranks[1].is_stopped()
    ranks[1].killed()
    for rank in (ranks[0], ranks[2]):
        # One of the two may hear of the end by the other, a moment before it shows, and wait until then.
        assert f"{ranks[1].name} ended" in rank.error()
        assert rank.ends() == {"since": 0, "kept": 0}, "not kept, as after a wait in vain"


@needs_kernels
def test_a_rank_that_is_stopped_before_it_writes_to_one_that_ends_meanwhile_names_it(start: Start) -> None:
    ranks = start([0, 1, 2], "1 write 0\n0 read 2")
    for rank in ranks[:2]:
        rank.is_stopped()
    ranks[0].killed()
    assert f"{ranks[0].name} ended" in ranks[2].error(), "nor does rank 2 wait for who writes to another"
    ranks[1].goes_on()
    assert f"{ranks[0].name} ended" in ranks[1].error()


@needs_kernels
@pytest.mark.parametrize("of", [[0], [1], [0, 1]])
def test_ranks_write_to_each_other_only_if_the_environment_of_all_allows_it(
    start: Start, of: list[int]
) -> None:
    """A rank that would stop where it writes does not: nobody writes."""
    own = [{MEMORY_VARIABLE: "read"} if rank in of else {} for rank in range(2)]
    why = f"rank {of[0]} may not write to the memory of the others: its {MEMORY_VARIABLE} forbids it"
    for rank in start([0, 1], "1 write 0", *own):
        assert rank.says() == {"sums": [1], "reads": why}
