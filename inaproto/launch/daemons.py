"""The daemons of a start: those that run already, or a switch and host daemons brought up for it.

They are started by the command line that a user would give. Their logs lie in a directory of the
start's own, and the end of one is shown when its daemon fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from inaproto.client.joining import SOCKET_VARIABLE, trusted_run_directory
from inaproto.client.run_directory import SERVER_SOCKETS
from inaproto.client.variables import PREFIX
from inaproto.daemon.net.names import CONTROL_SOCKET, gives_no_status
from inaproto.daemon.observe.status import StatusRefused, ask
from inaproto.errors import ConfigError, FabricError, InaprotoError
from inaproto.launch.plan import RUN_VARIABLE
from inaproto.launch.processes import Process

READY_S: Final = 120.0
END_S: Final = 10.0
RESTARTS_MAX: Final = 5
"""Of one daemon, in one run."""
LOG_LINES: Final = 12
_KEPT: Final = ("INAPROTO_KERNELS", "INAPROTO_PYVERBS", "INAPROTO_TRACING")
"""Variables of ours that daemons get which are brought up: others may speak of other daemons."""


class DaemonFailed(InaprotoError):
    """A daemon that was brought up does not come up; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which daemons a start is to have."""

    directory: Path | None = None
    """Of their sockets, if it was named."""
    hosts: int | None = None
    """Host daemons to be brought up, if a number was named."""
    adapter: str = "shm"
    """By which frames go from one to another that is brought up."""
    config: Path | None = None
    """Configuration file of those that are brought up."""
    name: str = ""
    """Of the one host daemon that the ranks are to use; empty: all that are there."""
    may_start: bool = True
    """Whether any may be: ranks on other machines would not meet them."""


@dataclass(slots=True)
class Daemons:
    sockets: list[str]
    """For training processes, one for each host daemon."""
    names: list[str]
    """Empty where the environment names a socket, and nobody was asked."""
    directory: Path | None
    """Where they have their sockets, if that is known."""
    started: list[Process] = field(default_factory=list)
    """Those that were brought up, the switch first."""

    def description(self) -> str:
        """In words."""
        if not self.names:
            return f"the host daemon at {self.sockets[0]}"
        where = f" in {self.directory}" if self.directory else ""
        if not self.started:
            return f"{_hosts(self.names)}{where}, which {'run' if len(self.names) > 1 else 'runs'} already"
        return f"a switch and {_hosts(self.names)}{where}, for this run alone"

    def status_sockets(self) -> list[Path]:
        """Where they are asked for their status."""
        named = [Path(path) for socket in self.sockets for path in socket.split(os.pathsep) if path]
        found = [path for path in named if not path.is_dir()]
        if self.directory is not None:
            found.append(self.directory / CONTROL_SOCKET)
        return found


def _hosts(names: Sequence[str]) -> str:
    if len(names) > 4:
        return f"{len(names)} host daemons"
    return f"host daemon{'s' if len(names) > 1 else ''} {', '.join(names)}"


async def running_hosts(directory: Path) -> tuple[list[tuple[str, Path]], bool]:
    """The host daemons that answer in ``directory``, by name, with their sockets; whether a switch does."""
    answers: dict[Path, dict[str, Any]] = {}

    async def ask_one(path: Path) -> None:
        try:
            answers[path] = await ask(path)
        except (StatusRefused, ConfigError):
            return  # a socket that a killed daemon left

    async with trio.open_nursery() as nursery:
        for path in _sockets(directory):
            nursery.start_soon(ask_one, path)
    hosts = [(str(answer["name"]), path) for path, answer in answers.items() if answer.get("role") == "host"]
    has_switch = any(answer.get("role") == "switch" for answer in answers.values())
    return sorted(hosts, key=lambda host: _natural(host[0])), has_switch


def _sockets(directory: Path) -> list[Path]:
    """Those in it that may be a host daemon's or a switch's; none where there is no such directory."""
    return sorted(
        path
        for path in directory.glob("*.sock")
        if not gives_no_status(path.name) and not path.name.startswith(SERVER_SOCKETS)
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """So that h10 comes after h9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


async def find_daemons(wanted: Wanted, environment: Mapping[str, str], private: Path) -> Daemons | Path:
    """Daemons that run already, or the directory in which some are to be brought up.

    Raises ``ConfigError``.
    """
    socket = environment.get(SOCKET_VARIABLE, "")
    if wanted.directory is None and socket and not wanted.name:
        if wanted.hosts is not None:
            raise ConfigError(f"--daemons: {SOCKET_VARIABLE} names a host daemon that runs already: {socket}")
        return Daemons([socket], [], None)
    directory = wanted.directory
    if directory is None and wanted.hosts is None:
        directory = trusted_run_directory(environment)
    hosts: list[tuple[str, Path]] = []
    if directory is not None:
        hosts, _ = await running_hosts(directory)
    if wanted.name:
        there = ", ".join(name for name, _ in hosts) or "none"
        hosts = [host for host in hosts if host[0] == wanted.name]
        if not hosts:
            raise ConfigError(
                f"--host: no host daemon {wanted.name} answers in {directory} of this machine; there are: "
                f"{there}"
            )
    if hosts and wanted.hosts is not None:
        raise ConfigError(
            f"--daemons: in {directory} runs {_hosts([name for name, _ in hosts])} already; leave it out, "
            "or name an empty directory"
        )
    if hosts:
        return Daemons([str(path) for _, path in hosts], [name for name, _ in hosts], directory)
    if not wanted.may_start:
        raise ConfigError(
            "--hosts: no host daemon runs here, and one of this run alone would not meet those of the other "
            f"machines; start it (inaproto host --help), and name its socket by {SOCKET_VARIABLE} or its "
            "directory by --dir"
        )
    return wanted.directory if wanted.directory is not None else private


Adopt = Callable[[Process], None]
"""Is told of each process as it is started."""


async def bring_up(
    directory: Path, wanted: Wanted, environment: Mapping[str, str], run: str, logs: Path, adopt: Adopt
) -> Daemons:
    """A switch, where none answers, and host daemons; ready when this returns. Raises ``DaemonFailed``."""
    usual = {name: text for name, text in environment.items() if not name.startswith(PREFIX) or name in _KEPT}
    usual[RUN_VARIABLE] = run
    count = wanted.hosts or 1
    names = [f"h{index}" for index in range(count)]
    _, has_switch = await running_hosts(directory)
    commands = [] if has_switch else [switch_command(directory, wanted)]
    for index, name in enumerate(names):
        ip = f"10.0.{(index + 1) >> 8}.{(index + 1) & 255}"
        commands.append(["host", "--name", name, "--ip", ip, *_common(directory, wanted)])
    started = [start_daemon(command, usual, logs) for command in commands]
    for process in started:
        adopt(process)
    async with trio.open_nursery() as nursery:
        for process in started:
            nursery.start_soon(wait_ready, process, logs)
    return Daemons([str(directory / f"{name}.sock") for name in names], names, directory, started)


def switch_command(directory: Path, wanted: Wanted) -> list[str]:
    return ["switch", *_common(directory, wanted)]


def _common(directory: Path, wanted: Wanted) -> list[str]:
    config = [] if wanted.config is None else ["--config", str(wanted.config)]
    return ["--dir", str(directory), "--adapter", wanted.adapter, *config]


def start_daemon(command: Sequence[str], environment: Mapping[str, str], logs: Path) -> Process:
    name = command[command.index("--name") + 1] if "--name" in command else command[0]
    return _start(name, [sys.executable, "-m", "inaproto", *command], environment, logs)


def start_again(ended: Process, logs: Path) -> Process:
    """The daemon that has ended; its log goes on."""
    return _start(ended.name, ended.command, ended.environment, logs)


def _start(name: str, command: Sequence[str], environment: Mapping[str, str], logs: Path) -> Process:
    with (logs / f"{name}.log").open("ab") as log:
        return Process(
            name,
            command,
            environment,
            stdout=subprocess.PIPE,
            stderr=log.fileno(),
        )


async def wait_ready(process: Process, logs: Path) -> None:
    """Until it says so. Raises ``DaemonFailed``."""
    os.set_blocking(process.stdout, False)
    said = b""
    with trio.move_on_after(READY_S) as limit:
        while b"\n" not in said:
            await trio.lowlevel.wait_readable(process.stdout)
            data = os.read(process.stdout, 4096)
            if not data:
                break
            said += data
    if said.startswith(b"ready "):
        return
    why = f"was not ready within {READY_S:g} s" if limit.cancelled_caught else "ended before it was ready"
    raise DaemonFailed(f"{process.name} {why}{log_tail(process.name, logs)}")


def log_tail(name: str, logs: Path) -> str:
    """The last lines of its log, to be put behind a sentence."""
    try:
        lines = (logs / f"{name}.log").read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return ""
    return "".join(f"\n  {line}" for line in lines) if lines else ""


async def statuses(daemons: Daemons) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What host daemons and switches say now; those that do not answer are left out."""
    found: list[dict[str, Any]] = []

    async def ask_one(path: Path) -> None:
        try:
            found.append(await ask(path))
        except (StatusRefused, ConfigError, FabricError, OSError):
            return

    async with trio.open_nursery() as nursery:
        for path in daemons.status_sockets():
            nursery.start_soon(ask_one, path)
    return (
        [answer for answer in found if answer.get("role") == "host"],
        [answer for answer in found if answer.get("role") == "switch"],
    )
