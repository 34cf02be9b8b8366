"""What a daemon says to systemd: when it can be used, that it lives, that it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from inaproto.daemon.observe.service_manager import ALIVE, READY, STOPPING, tell, watchdog_period_s

BOUND_S: Final = 120.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(BOUND_S)
        yield channel


def heard_until(manager: socket.socket, wanted: str) -> list[str]:
    heard: list[str] = []
    while wanted not in heard:
        heard += manager.recv(4096).decode().splitlines()
    return heard


def test_a_daemon_is_ready_gives_signs_of_life_and_says_that_it_stops(
    tmp_path: Path, manager: socket.socket
) -> None:
    told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    command = [
        sys.executable,
        "-m",
        "inaproto",
        "host",
        "--dir",
        str(tmp_path),
        "--name",
        "h0",
        "--ip",
        "10.0.0.1",
    ]
    with subprocess.Popen(command, env=os.environ | told, stdout=subprocess.PIPE, text=True) as daemon:
        try:
            # Though no switch is there: a unit that waits for another machine would fail to start.
            heard = heard_until(manager, READY)
            assert daemon.stdout is not None
            line = daemon.stdout.readline().strip()
            assert line.startswith("ready host name=h0")
            if f"STATUS={line}" not in heard:
                heard_until(manager, f"STATUS={line}")
            for _ in range(3):
                heard_until(manager, ALIVE)
            daemon.send_signal(signal.SIGTERM)
            heard_until(manager, STOPPING)
            assert daemon.wait(BOUND_S) == 0
        finally:
            daemon.kill()


def test_an_abstract_address_is_understood() -> None:
    name = f"inaproto-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(BOUND_S)
        tell(READY, environment={"NOTIFY_SOCKET": f"@{name}"})
        assert manager.recv(100) == READY.encode()


def test_what_was_meant_for_another_process_is_left_alone(tmp_path: Path, manager: socket.socket) -> None:
    inherited = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "SYSTEMD_EXEC_PID": "1",
        "WATCHDOG_USEC": "1000000",
        "WATCHDOG_PID": "1",
    }
    tell("not this", environment=inherited)
    assert watchdog_period_s(inherited) is None
    own = inherited | {"SYSTEMD_EXEC_PID": str(os.getpid()), "WATCHDOG_PID": str(os.getpid())}
    tell("this", environment=own)
    assert manager.recv(100) == b"this"
    assert watchdog_period_s(own) == 1.0


@pytest.mark.parametrize("period", ["", "0", "soon", "-1"])
def test_a_period_that_is_none(period: str) -> None:
    assert watchdog_period_s({"WATCHDOG_USEC": period}) is None


def test_a_manager_that_is_gone_ends_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tell(READY, environment={"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert "does not listen" in caplog.text
    tell(READY, environment={})
    tell(READY, environment={"NOTIFY_SOCKET": "vsock:2:1234"})
