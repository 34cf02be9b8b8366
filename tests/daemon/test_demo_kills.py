"""kill -9 in the middle of the demo's training: a switch may come back, whoever does not is named in time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.child_processes import processes_of, shared_memory, still_there
from tests.daemon.test_demo_run import DEMO, RUN_TIMEOUT_S, SMALL, run_demo


@pytest.mark.parametrize(
    ("victim", "named"),
    [
        (
            "rank1",
            r"rank 1 \(h1, pid \d+\) of job '\w+' is lost: process \d+ ended without leaving|rank1 ended",
        ),
        ("h1", r"h1 ended with status -9|DaemonUnreachable: the host daemon \S.*/h1\.sock"),
        ("switch", r"switch ended with status -9"),
    ],
)
def test_who_is_killed_and_does_not_come_back_is_named_and_nothing_is_left(
    tmp_path: Path, runtime_dir: Path, victim: str, named: str
) -> None:
    argv = [sys.executable, str(DEMO), *SMALL, "--epochs", "10000", "--out", str(tmp_path)]
    environment = {**os.environ, "TMPDIR": str(runtime_dir)}
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as demo:
        assert demo.stdout is not None
        try:
            for line in demo.stdout:
                if " step " in line:  # daemons and workers are all at work
                    break
            processes = processes_of(demo.pid)
            (directory,) = runtime_dir.glob("ina-*")
            os.kill(processes[victim], signal.SIGKILL)
            _, complaint = demo.communicate(timeout=RUN_TIMEOUT_S)
        finally:
            demo.kill()
    assert demo.returncode == 1
    assert re.search(named, complaint), complaint
    assert {"switch", "h0", "h1", "rank0", "rank1"} < set(processes)
    assert not still_there(processes)
    assert not directory.exists()
    assert not shared_memory()


def test_a_switch_that_is_killed_and_started_anew_costs_time_alone(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--epochs", "3", "--kill-switch-at", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"identical=yes .* switch_kills=1$", done.stdout)
