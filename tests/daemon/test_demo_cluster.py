"""The processes behind demo and benchmarks: started together, watched, ended by id."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inaproto_hil.rigs.cluster import Child, ClusterConfig, ClusterError, LocalCluster, stop_children

ENDED_WITHIN_S = 300.0


def test_daemons_are_ready_answer_and_end_on_sigterm() -> None:
    with LocalCluster(ClusterConfig(hosts=2)) as cluster:
        directory = cluster.directory
        assert cluster.switch_status()["pid"] == cluster.switch.pid
        assert [cluster.host_status(host)["name"] for host in (0, 1)] == ["h0", "h1"]
        assert all(daemon.cpu_s() > 0 for daemon in cluster.daemons)
        cluster.check()
        assert stop_children(cluster.daemons, timeout_s=ENDED_WITHIN_S) == []  # none needed SIGKILL
        assert [daemon.exit_status for daemon in cluster.daemons] == [0, 0, 0]
    assert not directory.exists()


def test_a_daemon_that_dies_is_named_with_its_log() -> None:
    with LocalCluster(ClusterConfig(hosts=2)) as cluster:
        victim = cluster.hosts[1]
        os.kill(victim.pid, signal.SIGKILL)
        victim.process.wait()
        with pytest.raises(
            ClusterError, match=r"h1 ended with status -9\n--- h1 .*\n(.*\n)*.*ready host name=h1"
        ):
            cluster.check()


def test_a_worker_that_fails_is_named_with_its_log() -> None:
    with LocalCluster(ClusterConfig(hosts=1)) as cluster:
        argv = [sys.executable, "-c", "import sys; sys.exit('out of luck')"]
        worker = cluster.start_worker("rank0", argv, sink=lambda child, line: None)
        worker.process.wait()
        with pytest.raises(ClusterError, match=r"rank0 ended with status 1\n--- rank0 .*\nout of luck\n"):
            cluster.check()


def test_logs_that_cannot_be_kept_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a disk that is full, where each line that a daemon prints would else be a traceback of a thread."""
    monkeypatch.setattr(LocalCluster, "_new_log", lambda *_: Path("/dev/full"))
    with pytest.raises(ClusterError) as failed, LocalCluster(ClusterConfig(hosts=1)):
        pass
    assert str(failed.value) == (
        "/dev/full: No space left on device; make room there, or name another directory"
    )


def test_who_fails_where_no_room_is_left_is_told_without_half_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(ClusterConfig(hosts=1)) as cluster:
        worker = cluster.start_worker("rank0", [sys.executable, "-c", "raise SystemExit(1)"], sink=ignored)
        worker.process.wait()
        room = os.statvfs(cluster.directory)
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*room[:4], 0, *room[5:])))
        with pytest.raises(ClusterError) as failed:
            cluster.check()
    told = f"rank0 ended with status 1; {cluster.directory}: No space left on device; make room there"
    assert str(failed.value).startswith(told)
    assert "\n" not in str(failed.value)


def ignored(child: Child, line: str | None) -> None:
    """A sink."""


KILLED = """
import sys
from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster
with LocalCluster(ClusterConfig(hosts=1)) as cluster:
    worker = cluster.start_worker("rank0", [sys.executable, "-c", "input()"], sink=lambda child, line: None)
    print(cluster.directory, *(child.pid for child in (*cluster.daemons, worker)), flush=True)
    sys.stdin.read()
"""


def test_the_processes_of_a_parent_that_is_killed_end() -> None:
    argv = [sys.executable, "-c", KILLED]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        directory, *pids = parent.stdout.readline().split()
        assert len(pids) == 3
        ends = [os.pidfd_open(int(pid)) for pid in pids]
        parent.kill()
    try:
        for end in ends:
            assert select.select([end], [], [], ENDED_WITHIN_S)[0], "a process of the cluster still runs"
    finally:
        for end in ends:
            os.close(end)
        left = [path.name for path in Path(directory).glob("*.sock")]
        shutil.rmtree(directory)
    assert left == []


def test_a_cluster_that_cannot_start_leaves_no_process_and_no_directory() -> None:
    cluster = LocalCluster(ClusterConfig(hosts=2, host_options=("--mtu", "1000")))
    with pytest.raises(ClusterError, match="mtu"), cluster:
        pass
    assert all(daemon.exit_status is not None for daemon in cluster.daemons)
    assert not cluster.directory.exists()
