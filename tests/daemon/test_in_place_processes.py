"""All-reduces in place between processes, one of which is killed or stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from types import MappingProxyType

import numpy as np
import pytest
from numpy.typing import NDArray

import inaproto
from inaproto.errors import JobError, LocalMisuse, OperationTimeout
from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster

TREE = Path(__file__).resolve().parents[2]
DEADLINE_S = 120
"""For a process to end: longer than a busy machine needs, so only a hang meets it."""
Process = subprocess.Popen[str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(ClusterConfig(hosts=1)) as running:
        yield running


@pytest.fixture
def started() -> Iterator[ExitStack]:
    """Processes end with the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """Of its own name: ranks of the test before may have left, and the daemon not have heard of it."""
    return re.sub(r"\W", "-", request.node.name)


def start(
    started: ExitStack,
    cluster: LocalCluster,
    job: str,
    ranks: range,
    size: int,
    environments: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
) -> list[Process]:
    """``environments``: what is another in that of a rank."""
    found = []
    for rank in ranks:
        command = [sys.executable, "-m", "tests.daemon.in_place_rank", job, str(rank), str(size)]
        process = subprocess.Popen(
            [*command, str(cluster.host_socket(0))],
            cwd=TREE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environments.get(rank, {})},
        )
        started.enter_context(process)
        started.callback(process.kill)
        found.append(process)
    return found


def until(process: Process, step: int) -> None:
    assert process.stdout is not None
    while (line := process.stdout.readline()) != f"step {step}\n":
        assert line.startswith("step "), line


def last_line(process: Process) -> str:
    out, _ = process.communicate(timeout=DEADLINE_S)
    return out.splitlines()[-1]


def reduce_for_ever(comm: inaproto.BlockingCommunicator, array: NDArray[np.int32]) -> None:
    while True:
        comm.all_reduce(array, in_place=True).wait(DEADLINE_S)


def started_in_vain(comm: inaproto.BlockingCommunicator, array: NDArray[np.int32]) -> inaproto.BlockingWork:
    """The first in which rank 1, which is stopped, takes no part: it may have given its part to some."""
    while True:
        work = comm.all_reduce(array, in_place=True)
        while True:
            try:
                work.wait(0.1)
                break
            except OperationTimeout as late:
                if str(late).endswith("did not end within 0.1 s; waits for rank 1"):
                    return work


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("killed", [0, 1])
def test_all_others_hear_at_once_of_one_that_is_killed_and_no_sum_is_wrong(
    cluster: LocalCluster, started: ExitStack, job: str, killed: int, size: int
) -> None:
    processes = start(started, cluster, job, range(size), size)
    until(processes[killed], 3)
    processes[killed].kill()
    for rank, process in enumerate(processes):
        if rank != killed:
            assert last_line(process).startswith("error RankLost "), rank


def test_one_that_is_stopped_is_named_and_all_go_on_when_it_does(
    cluster: LocalCluster, started: ExitStack, job: str
) -> None:
    (other,) = start(started, cluster, job, range(1, 2), 2)
    with inaproto.connect_blocking(job, 0, size=2, socket=cluster.host_socket(0)) as comm:
        array = np.zeros(3_000_000, np.int32)
        comm.all_reduce(array, in_place=True).wait(DEADLINE_S)
        until(other, 0)
        os.kill(other.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED)
        work = started_in_vain(comm, array)
        os.kill(other.pid, signal.SIGCONT)
        assert work.wait(DEADLINE_S) is array
        other.kill()
        with pytest.raises(JobError):
            reduce_for_ever(comm, array)
    other.wait(DEADLINE_S)


def test_a_child_of_a_fork_is_refused_and_its_parent_goes_on(
    cluster: LocalCluster, started: ExitStack, job: str
) -> None:
    (other,) = start(started, cluster, job, range(1, 2), 2)
    with inaproto.connect_blocking(job, 0, size=2, socket=cluster.host_socket(0)) as comm:
        array = np.zeros(3_000_000, np.int32)
        comm.all_reduce(array, in_place=True).wait(DEADLINE_S)
        child = os.fork()
        if not child:
            try:
                comm.all_reduce(array, in_place=True)
            except LocalMisuse:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        array[:] = 1
        assert (comm.all_reduce(array, in_place=True).wait(DEADLINE_S) == 3).all()
    assert last_line(other).startswith("error ")


def test_ranks_whose_temporary_directories_differ_meet_elsewhere(
    cluster: LocalCluster, started: ExitStack, job: str, runtime_dir: Path
) -> None:
    """Each looked in its own, for ten minutes."""
    environments = {}
    for rank in range(2):
        directory = runtime_dir / str(rank)
        directory.mkdir()
        environments[rank] = {"TMPDIR": str(directory)}
    for process in start(started, cluster, job, range(2), 2, environments):
        timer = Timer(DEADLINE_S, process.kill)
        started.callback(timer.cancel)
        timer.start()
        until(process, 1)
