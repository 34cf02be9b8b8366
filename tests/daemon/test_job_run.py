"""``inaproto job submit NAME -- COMMAND``: real daemons, and processes where the controller placed them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.failing_ranks import FAILS_FIRST
from tests.daemon.test_cli_daemons import COMMAND, DEADLINE_S, daemon, environment, run

CLUSTER = {
    "hosts": ["h0", "h1"],
    "switches": [{"name": "leaf", "jobs": 1}],
    "links": [{"between": ["h0", "leaf"]}, {"between": ["h1", "leaf"]}],
}
SUMS = """
import os, numpy as np, inaproto
with inaproto.connect_blocking() as comm:
    total = comm.all_reduce(np.full(4, comm.rank + 1, np.int32)).wait()
    print(total.tolist(), os.environ["MASTER_ADDR"], os.environ["INAPROTO_HOST_SOCKET"], flush=True)
"""
RUNS_ON = """
import time, numpy as np, inaproto
with inaproto.connect_blocking() as comm:
    print("up", flush=True)
    while True:
        comm.all_reduce(np.ones(4, np.int32)).wait()
        time.sleep(0.05)
"""
SURVIVES = """
import os, signal, numpy as np, inaproto
comm = inaproto.connect_blocking(elastic=True)
dies, began, step = comm.rank >= 2, 0, 0
while step < 10:
    try:
        if dies and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        total = comm.all_reduce(np.ones(4, np.int32)).wait(timeout=600)
    except inaproto.RankLost:
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        comm = comm.shrink(timeout=600)
        step = began = began + comm.agreed_operations
        continue
    step += 1
comm.close()
print("through", total[0], flush=True)
"""
SSH = """#!/bin/sh
# As ssh does: a host, and a line for a shell of another session, which has an environment of its own.
echo "to $1" >&2
shift
export INAPROTO_DIR={directory}
exec setsid -w sh -c "$*"
"""

STARTED: list[subprocess.Popen[str]] = []
"""To be ended, whatever a test comes to."""


@pytest.fixture(scope="module")
def machine() -> Iterator[Path]:
    """A directory with a controller, a switch and two hosts, ``else`` without any, and scripts."""
    with tempfile.TemporaryDirectory(prefix="ina-", dir="/tmp") as name, ExitStack() as stack:
        top = Path(name)
        directory, door = str(top / "d"), str(top / "d" / "controller-agents.sock")
        (top / "cluster.json").write_text(json.dumps(CLUSTER))
        for file, text in (
            ("sums.py", SUMS),
            ("on.py", RUNS_ON),
            ("survives.py", SURVIVES),
            ("bad.py", "raise SystemExit(7)"),
            ("first.py", FAILS_FIRST),
        ):
            (top / file).write_text(text)
        (top / "ssh").write_text(SSH.format(directory=directory))
        (top / "ssh").chmod(0o755)
        (top / "else").mkdir()
        for words in (
            ("controller", "--cluster", str(top / "cluster.json"), "--report-ms", "50"),
            ("switch", "--name", "leaf", "--controller", door),
            *(("host", "--name", f"h{n}", "--ip", f"10.0.0.{n + 1}", "--controller", door) for n in range(2)),
        ):
            started = stack.enter_context(daemon(words[0], "--dir", directory, *words[1:]))
            assert started.ready_line.startswith("ready "), words
        yield top
        for process in STARTED:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=DEADLINE_S)


def submitted(top: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [COMMAND, "job", "submit", *words],
        cwd=top,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment() | variables,
        start_new_session=True,
    )
    STARTED.append(process)
    return process


def done(process: subprocess.Popen[str]) -> tuple[int, str]:
    told, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, told


def job(top: Path, name: str) -> dict[str, Any]:
    """As the controller has it; without a state before it is submitted."""
    shown = run("job", "show", "--dir", str(top / "d"), "--json", name)
    found: dict[str, Any] = json.loads(shown.stdout) if shown.returncode == 0 else {"state": ""}
    return found


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes(word: str) -> list[int]:
    """Those that have ``word`` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_ranks_run_at_the_hosts_of_this_machine_that_it_was_placed_on(machine: Path) -> None:
    words = ("--dir", "d", "here", "--hosts", "2", "--ranks-per-host", "2", "--", "python", "sums.py")
    code, told = done(submitted(machine, *words))
    assert code == 0, told
    hosts = job(machine, "here")["hosts"]
    for rank in range(4):
        socket = machine / "d" / f"{hosts[rank // 2]}.sock"
        assert f"[{rank}] [10, 10, 10, 10] 127.0.0.1 {socket}" in told
    assert "inaproto job: here: placed on " in told
    assert job(machine, "here")["state"] == "ended"


def test_an_elastic_job_goes_on_when_it_loses_all_of_a_host(machine: Path) -> None:
    """Its launcher there ends badly, and its seat has failed."""
    words = ("--dir", "d", "--elastic", "less", "--hosts", "2", "--ranks-per-host", "2")
    code, told = done(submitted(machine, *words, "--", "python", "survives.py"))
    assert code == 0, told
    assert told.count("through 2") == 2, told
    assert "the launcher on h1 ended with exit status 137; the others go on" in told, told
    over = job(machine, "less")
    assert over["state"] == "ended"
    assert over["why"].startswith("host h1: rank ")
    assert over["why"].endswith("; the others went on to the end")


def test_who_ends_badly_gives_its_status_and_leaves_no_job(machine: Path) -> None:
    """It has not even connected: its hosts would wait for it for ever."""
    code, told = done(submitted(machine, "--dir", "d", "bad", "--hosts", "2", "--", "python", "bad.py"))
    assert code == 7, told
    assert "the launcher on h" in told
    assert job(machine, "bad")["state"] == "cancelled"


def test_the_launcher_is_named_whose_rank_failed_first(machine: Path) -> None:
    """The rank on the other host has ended by then, because of it, and with another status."""
    (machine / "pids").mkdir()
    words = ("--dir", "d", "first", "--hosts", "2", "--", "python", "first.py", str(machine / "pids"))
    code, told = done(submitted(machine, *words))
    host = job(machine, "first")["hosts"][1]
    assert f"the launcher on {host} ended with exit status 7" in told, told
    assert "rank 0 ended with exit status 5 (the job had failed: RankLost: rank 1 " in told
    assert code == 7


def test_other_machines_are_reached_by_a_command_and_end_with_it(machine: Path) -> None:
    far = {"INAPROTO_DIR": str(machine / "else")}
    door = ("--controller", "d/controller.sock")
    by_ssh = ("--hosts", "2", "--via", "./ssh {host}")
    code, told = done(submitted(machine, *door, "far", *by_ssh, "--", "python", "sums.py", **far))
    assert code == 0, told
    assert {"to h0", "to h1"} <= set(told.splitlines())
    assert told.count("[3, 3, 3, 3]") == 2
    code, told = done(submitted(machine, *door, "lost", "--hosts", "2", "--", "python", "sums.py", **far))
    assert (code, "say how that machine is reached, such as --via 'ssh {host}'" in told) == (2, True), told
    assert job(machine, "lost")["state"] == "cancelled", "nobody else is held up"
    for number in (signal.SIGINT, signal.SIGKILL):
        name = f"ends-{number.name}"
        process = submitted(machine, *door, name, *by_ssh, "--", "python", "on.py", name, **far)
        until(lambda name=name: job(machine, name)["state"] == "running")  # type: ignore[misc]
        os.kill(process.pid, number)
        process.wait(DEADLINE_S)
        until(lambda name=name: not processes(name))  # type: ignore[misc]
        assert process.returncode == (130 if number == signal.SIGINT else -number)
        until(lambda name=name: job(machine, name)["state"] in ("failed", "cancelled"))  # type: ignore[misc]


def test_a_job_that_nobody_waits_for_any_more_is_not_placed(machine: Path) -> None:
    """A scheduler, or ``timeout``, ends the command while the job is in the queue."""
    door = ("--dir", str(machine / "d"))
    assert run("job", "submit", *door, "holds", "--hosts", "2").returncode == 0
    process = submitted(machine, "--dir", "d", "given-up", "--hosts", "2", "--", "python", "sums.py")
    assert process.stdout is not None
    assert any("given-up: queued" in line for line in process.stdout)
    os.kill(process.pid, signal.SIGTERM)
    code, told = done(process)
    assert (code, job(machine, "given-up")["state"]) == (128 + signal.SIGTERM, "cancelled"), told
    assert run("job", "cancel", *door, "holds").returncode == 0


def test_a_job_that_is_cancelled_ends_its_processes_and_one_that_runs_is_not_run_twice(machine: Path) -> None:
    secret = "s" * 40
    words = ("--dir", "d", "--submission", secret, "twice", "--hosts", "2", "--", "python", "on.py")
    first = submitted(machine, *words)
    until(lambda: job(machine, "twice")["state"] == "running")
    code, told = done(submitted(machine, *words))
    assert (code, "was submitted before, and is running; it is left alone" in told) == (2, True), told
    assert job(machine, "twice")["state"] == "running"
    assert run("job", "cancel", "--dir", str(machine / "d"), "twice").returncode == 0
    code, told = done(first)
    assert code not in (0, None), told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--via", "ssh {host}"), "are for a command"),
        (("--json", "--", "python"), "--json, --slurm: are for a submission without a command"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_submitted(words: tuple[str, ...], said: str) -> None:
    found = run("job", "submit", "--dir", "/nowhere", "x", "--hosts", "1", *words)
    assert (found.returncode, said in found.stderr) == (2, True), found.stderr
