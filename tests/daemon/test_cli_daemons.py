"""The daemons as processes: ready lines, signals, exit statuses, killed predecessors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

COMMAND = str(Path(sys.executable).with_name("inaproto"))
DEADLINE_S = 600
"""For a process to start or end: longer than a busy machine needs, so only a hang meets it."""


class Daemon:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.ready_line = process.stdout.readline().strip()

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Exit status and log."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, log


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("INAPROTO_")}


@contextmanager
def daemon(*arguments: str) -> Iterator[Daemon]:
    process = subprocess.Popen(
        [COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        yield Daemon(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=DEADLINE_S)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment(),
        check=False,
    )


def status(*arguments: str) -> dict[str, Any]:
    done = run("status", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_switch_in_order(runtime_dir: Path, number: signal.Signals) -> None:
    with daemon("switch", "--dir", str(runtime_dir)) as switch:
        assert switch.ready_line.startswith(f"ready switch dir={runtime_dir} ")
        code, log = switch.end(number)
    assert code == 0
    assert f"stopping ({number.name})" in log
    assert "Traceback" not in log
    assert list(runtime_dir.iterdir()) == []


def test_a_host_waits_for_its_switch_and_both_tell_their_status(runtime_dir: Path) -> None:
    sw = str(runtime_dir)
    with daemon("host", "--dir", sw, "--name", "h0", "--ip", "10.0.0.1") as host:
        assert host.ready_line == f"ready host name=h0 listen={runtime_dir}/h0.sock"
        waits = run("status", "--json", "--socket", f"{sw}/h0.sock")
        assert waits.returncode == 3, "it answers, and has no switch"
        assert f"inaproto status: host h0 has no switch: cannot connect to {sw}/control.sock" in waits.stderr
        alone = json.loads(waits.stdout)
        assert [f"inaproto status: {text}" for text in alone["missing"]] == waits.stderr.splitlines()
        assert alone["switch"] is None
        assert alone["hosts"][0]["switch"]["connected"] is False
        with daemon("switch", "--dir", sw, "--weather", "drop=0.5") as switch:
            while run("status", "--socket", f"{sw}/h0.sock").returncode:
                pass  # its switch has only just begun to listen
            found = status("--dir", sw)
            while not found["switch"]["hosts"] or not found["switch"]["ports"]:
                found = status("--dir", sw)
            assert found["switch"]["hosts"] == ["h0"]
            assert found["switch"]["weather"] == "drop=0.5,delay=1ms"
            assert [told["name"] for told in found["hosts"]] == ["h0"]
            assert found["problems"] == []
            table = run("status", "--dir", sw)
            assert table.returncode == 0
            assert f"switch in {sw}" in table.stdout
            assert "host h0 (10.0.0.1)" in table.stdout
            assert switch.end(signal.SIGTERM)[0] == 0
        code, log = host.end(signal.SIGTERM)
    assert code == 0
    assert "Traceback" not in log
    assert list(runtime_dir.iterdir()) == []


def test_a_killed_switch_is_replaced_and_a_living_one_is_not(runtime_dir: Path) -> None:
    sw = str(runtime_dir)
    with daemon("switch", "--dir", sw) as first:
        refused = run("switch", "--dir", sw)
        assert refused.returncode == 2
        assert refused.stderr.startswith("inaproto: control socket of the switch: another daemon is already")
        assert "Traceback" not in refused.stderr
        first.end(signal.SIGKILL)
    assert sorted(path.name for path in runtime_dir.iterdir()) == ["control.sock", "ports.sock"]
    stale = run("status", "--dir", sw)
    assert stale.returncode == 1
    assert "nobody listens there" in stale.stderr
    (runtime_dir / "models.toml").touch()
    assert "it is no socket" in run("status", "--socket", str(runtime_dir / "models.toml")).stderr
    with daemon("switch", "--dir", sw) as second:
        assert status("--dir", sw)["switch"]["pid"] == second.process.pid
        assert second.end(signal.SIGTERM)[0] == 0


def test_two_hosts_of_one_name_are_told_apart(runtime_dir: Path) -> None:
    sw = str(runtime_dir)
    first = ("host", "--dir", sw, "--name", "h0", "--ip", "10.0.0.1")
    second = ("host", "--dir", sw, "--name", "h0", "--ip", "10.0.0.2", "--listen", f"{sw}/other.sock")
    with daemon("switch", "--dir", sw), daemon(*first):
        while status("--dir", sw)["switch"]["hosts"] != ["h0"]:
            pass
        refused = run(*second)
    assert refused.returncode == 2
    assert "its name 'h0' is that of host 'h0', which is connected" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_log_of_json_is_json_to_the_last_line(runtime_dir: Path) -> None:
    with daemon("switch", "--dir", str(runtime_dir), "--log-format", "json") as switch:
        code, log = switch.end(signal.SIGTERM)
    assert code == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"stopping (SIGTERM)"} < {line["message"] for line in lines}
    for line in lines:
        assert line.keys() == {"time", "level", "logger", "message", "fields"}
    wrong = run("switch", "--dir", str(runtime_dir), "--log-format", "xml")
    assert wrong.returncode == 2
    assert "log_format (flag --log-format): 'xml' is not allowed" in wrong.stderr
