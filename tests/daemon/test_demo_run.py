"""``make demo`` in small: two ranks, one epoch, over the bad wire, with real daemons and workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.child_processes import processes_of, still_there

DEMO = Path(__file__).parents[2] / "examples" / "digits" / "demo.py"
SMALL = ("--ranks", "2", "--epochs", "1", "--batch", "64")
RUN_TIMEOUT_S = 600
LAST_LINE = re.compile(
    r"demo: identical=(?P<identical>yes|no) accuracy=(?P<accuracy>\d\.\d\d) allreduces=(?P<allreduces>\d+) "
    r"frames_lost=(?P<frames_lost>\d+) retransmits=(?P<retransmits>\d+)"
)


def run_demo(out: Path, *options: str, seed: str = "1") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), *SMALL, *options, "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
        env={**os.environ, "INAPROTO_SEED": seed},
    )


def test_a_lossy_run_ends_with_the_weights_of_one_process(tmp_path: Path) -> None:
    done = run_demo(tmp_path, seed="7")
    assert done.returncode == 0, done.stdout + done.stderr
    found = LAST_LINE.fullmatch(done.stdout.splitlines()[-1])
    assert found is not None, done.stdout
    assert found["identical"] == "yes"
    assert int(found["allreduces"]) == 1438 // 64
    assert int(found["frames_lost"]) > 0
    assert int(found["retransmits"]) > 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["config"]["seed"] == 7
    assert len(set(summary["weights_sha256"].values())) == 1
    assert summary["accuracy"] == summary["reference_accuracy"]
    assert sum(summary["retransmits_by_host"].values()) == summary["retransmits"]
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_refused_setting_fails_the_demo_and_is_named(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--weather", "drop=2")
    assert done.returncode == 1
    assert "switch ended with status" in done.stderr
    assert "weather" in done.stderr
    assert "drop" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    argv = [sys.executable, str(DEMO), *SMALL, "--epochs", "10000", "--out", str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        try:
            for line in demo.stdout:
                if " step " in line:  # daemons and workers are all at work
                    break
            processes = processes_of(demo.pid)
            demo.send_signal(number)
            _, complaint = demo.communicate(timeout=RUN_TIMEOUT_S)
        finally:
            demo.kill()
    assert demo.returncode == 130, complaint
    assert "interrupted" in complaint
    assert {"switch", "h0", "h1", "rank0", "rank1"} < set(processes)
    assert not still_there(processes)
