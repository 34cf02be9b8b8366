"""kill -9 in the middle of the demo's training: a switch may come back, whoever does not is named in time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.daemon.test_demo_run import DEMO, RUN_TIMEOUT_S, SMALL, run_demo

NAMED_WITHIN_S = 10.0
"""Between the kill and the end of the whole demo, all processes stopped."""


def children_of(pid: int) -> dict[str, int]:
    """Process ids by what they are: ``switch``, ``h0``, ``rank1``, ..."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        argv = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        if "switch" in argv:
            name = "switch"
        elif "host" in argv:
            name = argv[argv.index("--name") + 1]
        else:
            name = next(word.replace("--rank=", "rank") for word in argv if word.startswith("--rank="))
        found[name] = int(child)
    return found


def socket_directory(pid: int) -> Path:
    argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return Path(argv[argv.index("--dir") + 1])


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
    tmp_path: Path, victim: str, named: str
) -> None:
    argv = [sys.executable, str(DEMO), *SMALL, "--epochs", "10000", "--out", str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        try:
            for line in demo.stdout:
                if " step " in line:  # daemons and workers are all at work
                    break
            children = children_of(demo.pid)
            directory = socket_directory(children["switch"])
            assert directory.is_dir()
            killed = time.monotonic()
            os.kill(children[victim], signal.SIGKILL)
            _, complaint = demo.communicate(timeout=RUN_TIMEOUT_S)
        finally:
            demo.kill()
    assert time.monotonic() - killed < NAMED_WITHIN_S
    assert demo.returncode == 1
    assert re.search(named, complaint), complaint
    assert len(children) == 1 + 2 + 2
    assert not [child for child in children.values() if Path(f"/proc/{child}").exists()]
    assert not directory.exists()
    assert not list(Path("/dev/shm").glob("*inaproto*"))


def test_a_switch_that_is_killed_and_started_anew_costs_time_alone(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--epochs", "3", "--kill-switch-at", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"identical=yes .* switch_kills=1$", done.stdout)
