"""What the fork server forks are processes like those that were started by their command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inaproto_hil.rigs.cluster import Child, inaproto_command, stop_children
from inaproto_hil.rigs.fork_server import ForkedProcess, command_of

END_S = 600.0

PROBE = """
import json, os, random, sys
import numpy
print(json.dumps({
    "argv": sys.argv,
    "name": __name__,
    "pid": os.getpid(),
    "group": os.getpgid(0),
    "descriptors": [fd for fd in range(64) if os.path.exists(f"/proc/self/fd/{fd}")],
    "random": [random.random(), numpy.random.random()],
    "asked": os.environ.get("ASKED"),
    "hidden": "INAPROTO_DIR" in os.environ,
    "comm": open("/proc/self/comm").read().strip(),
}), flush=True)
print("to stderr", file=sys.stderr)
word = input()
sys.exit(int(word))
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., tuple[Child, list[str | None]]]:
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)

    def start(name: str, *words: str) -> tuple[Child, list[str | None]]:
        lines: list[str | None] = []
        child = Child(
            name,
            [sys.executable, str(probe), *words],
            log_path=tmp_path / f"{name}.log",
            sink=lambda _, line: lines.append(line),
            environment={"ASKED": "yes"},
        )
        return child, lines

    return start


def said(child: Child, lines: list[str | None], word: str) -> dict[str, Any]:
    child.send_line(word)
    assert child.process.wait(END_S) == int(word)
    child.release()
    assert lines[-1] is None  # the end of its output
    assert lines[0] is not None
    found: dict[str, Any] = json.loads(lines[0])
    return found


def test_each_has_all_of_its_own(
    start: Callable[..., tuple[Child, list[str | None]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INAPROTO_DIR", "/nowhere")
    started = [start(f"probe{number}", "--word") for number in range(2)]
    assert all(isinstance(child.process, ForkedProcess) for child, _ in started)
    found = [said(child, lines, str(7 + number)) for number, (child, lines) in enumerate(started)]
    for (child, _), one in zip(started, found, strict=True):
        assert one["pid"] == one["group"] == child.pid
        assert one["descriptors"] == [0, 1, 2]
        assert one["argv"][1:] == ["--word"]
        assert (one["name"], one["asked"], one["hidden"], one["comm"]) == (
            "__main__",
            "yes",
            False,
            child.name,
        )
        assert child.tail() == "to stderr"
        assert child.process.poll() == child.exit_status
    assert not {*found[0]["random"]} & {*found[1]["random"]}


def test_a_signal_is_an_exit_status_and_reaches_nobody_after_the_end(
    start: Callable[..., tuple[Child, list[str | None]]],
) -> None:
    child, _ = start("probe")
    assert child.exit_status is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.process.wait(0.01)
    child.process.send_signal(signal.SIGSTOP)
    assert child.exit_status is None
    child.process.send_signal(signal.SIGCONT)
    child.process.kill()
    assert child.process.wait(END_S) == -signal.SIGKILL
    child.process.kill()
    assert stop_children([child], timeout_s=END_S) == []


def test_a_daemon_that_is_told_nonsense_ends_as_its_command_does(tmp_path: Path) -> None:
    child = Child(
        "switch",
        [inaproto_command(), "switch", "--no-such-option"],
        log_path=tmp_path / "log",
        sink=lambda child, line: None,
    )
    assert child.process.wait(END_S) == 2
    child.release()
    assert "No such option" in child.tail()


def test_what_is_no_python_program_is_started_by_its_command_line(tmp_path: Path) -> None:
    child = Child("cat", ["/bin/cat"], log_path=tmp_path / "log", sink=lambda child, line: None)
    assert isinstance(child.process, subprocess.Popen)
    assert stop_children([child], timeout_s=END_S) == []
    assert command_of([sys.executable, "-c", "pass"], "inaproto") is None
    assert command_of([sys.executable, "-P", "-m", "a.b", "c"], "inaproto") == ["-m", "a.b", "c"]
    assert command_of(["/x/inaproto", "host", "--dir", "d"], "/x/inaproto") == ["host", "--dir", "d"]
    assert os.path.isabs(inaproto_command())
