"""A whole inaproto installation on this machine: switch daemons, their host daemons, and workers.

The demo, the benchmarks and the daemon tests start real processes through this one place. Rules:

- only processes that were started here are ended, by their process id: first SIGTERM, then, past a
  deadline, SIGKILL; workers first, the switches last;
- every wait has a deadline and says what it waited for, and a failure carries the ends of the logs;
- children live in their own process group, so that Ctrl-C reaches the parent alone and the
  parent shuts down in order; if it is killed they end by themselves;
- daemons and Python workers are forked by a server that has made their imports
  (:mod:`inaproto_hil.rigs.fork_server`); other programs are started by their command line, and
  end with the *thread* that started them, so that must not be one that ends earlier;
- one BLAS thread in each child: reproducible rounding, and no fight over the cores.

Sockets lie in a fresh, short temporary directory (a UNIX socket path has at most 107 bytes); logs
lie beside them, unless ``log_dir`` says where they are to be kept.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, Self

from inaproto.daemon.net.names import CONTROL_SOCKET
from inaproto.errors import DecodeError
from inaproto.launch.processes import WITH_PARENT
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import Error, Status, StatusReply, decode_message, encode_message
from inaproto_hil.rigs.fork_server import ONE_THREAD, ForkedProcess, command_of, fork_server

READY_TIMEOUT_S = 600.0
STATUS_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
ENDING_S = 10.0
LOG_TAIL_LINES = 20

LineSink = Callable[["Child", str | None], None]
"""Gets each stdout line of a child, and None at its end; called in a thread of that child."""


class ClusterError(Exception):
    """A process of the cluster failed; the message names it and shows the ends of the logs."""


class Child:
    """A process that we started, with its log file (stderr, and stdout lines no sink took)."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log_path: Path,
        sink: LineSink,
        environment: Mapping[str, str] | None = None,
        network: str = "",
    ) -> None:
        """``network``: path of its network namespace; empty: that of this process."""
        self.name = name
        self.log_path = log_path
        self.lost = ""
        """Why its lines cannot be kept; empty: they are."""
        self._sink = sink
        inherited = _inherited_environment()
        whole = {**inherited, **ONE_THREAD, **(environment or {})}
        command = command_of(argv, str(Path(sys.executable).with_name("inaproto")))
        self.process: subprocess.Popen[str] | ForkedProcess
        with log_path.open("ab") as log:
            if command is not None:
                self.process = fork_server(inherited).fork(
                    name, command, stderr=log, environment=whole, network=network
                )
            else:
                entered = [shutil.which("nsenter") or "nsenter", f"--net={network}", "--"] if network else []
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(WITH_PARENT), str(os.getpid()), *entered, *argv],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    errors="replace",
                    env=whole,
                    process_group=0,
                )
        self._reader = threading.Thread(target=self._read, name=f"stdout of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self.process.poll()

    def _read(self) -> None:
        stdout: IO[str] | None = self.process.stdout
        assert stdout is not None
        with stdout:
            for line in stdout:
                self._hand_on(line.rstrip("\n"))
        self._hand_on(None)

    def _hand_on(self, line: str | None) -> None:
        try:
            self._sink(self, line)
        except OSError as error:  # it goes on being read: a child that is not would stand
            self.lost = self.lost or f"{error.filename or self.log_path}: {error.strerror}"

    def log(self, line: str) -> None:
        """Append a line to this child's log; ``lost`` says if that cannot be."""
        try:
            with self.log_path.open("a") as log:
                log.write(line + "\n")
        except OSError as error:
            self.lost = self.lost or f"{self.log_path}: {error.strerror}"

    def send_line(self, line: str) -> None:
        """Write a line to the child's stdin. Raises ``ClusterError`` when it is gone."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise ClusterError(f"{self.name} has ended and takes no more commands") from error

    def release(self) -> None:
        """Close the pipes of a process that has ended."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self._reader.join(STOP_TIMEOUT_S)  # bounded: a grandchild may hold the other end

    def tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of its log."""
        text = self.log_path.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(text) if text else "(nothing)"

    def cpu_s(self) -> float:
        """User and system time of all its threads so far, seconds; nan once it has ended."""
        # The kernel's clock id of another process (man clock_getcpuclockid): ns, not 10 ms ticks.
        try:
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return float("nan")


def stop_children(children: Sequence[Child], *, timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
    """End these processes by id; returns the names of those that needed SIGKILL."""
    running = [child for child in children if child.exit_status is None]
    for child in running:
        child.process.terminate()
    deadline = time.monotonic() + timeout_s
    stubborn = []
    for child in running:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            stubborn.append(child.name)
            child.process.kill()
            child.process.wait()
    for child in children:
        child.release()
    return stubborn


class Cluster(ABC):
    """Use as a context manager: entering starts the daemons and waits until all are ready."""

    ready_timeout_s = READY_TIMEOUT_S

    def __init__(self, *, log_dir: Path | None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ina-"))
        self._logs = log_dir if log_dir is not None else self.directory
        self.switches: list[Child] = []
        self.hosts: list[Child] = []
        self.workers: list[Child] = []
        self._ready: dict[str, threading.Event] = {}
        self._ready_names: set[str] = set()

    def __enter__(self) -> Self:
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            self._start()
            self._wait_ready(self.daemons)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _start(self) -> None:
        """Fill ``switches`` and ``hosts``, without waiting until they are ready."""

    @property
    def daemons(self) -> list[Child]:
        return [*self.switches, *self.hosts]

    def host_socket(self, host: int) -> Path:
        """Where host ``host`` (0..hosts-1) listens for training processes."""
        return self.directory / f"h{host}.sock"

    def host_status(self, host: int) -> dict[str, Any]:
        """What ``inaproto status --json`` shows of host ``host`` (0..hosts-1)."""
        return self._status(self.hosts[host], f"host h{host}", self.host_socket(host))

    def _host(self, host: int, directory: Path, *options: str) -> Child:
        """Start a host daemon whose control session is with the switch of ``directory``."""
        name = f"h{host}"
        argv = [inaproto_command(), "host", "--dir", str(directory), "--name", name]
        argv += ["--listen", str(self.host_socket(host)), "--ip", f"10.0.{host >> 8}.{(host & 255) + 1}"]
        return self._daemon(name, [*argv, *options])

    def is_ready(self, daemon: Child) -> bool:
        """Whether it has said so; one that was killed and started again: again."""
        return daemon.name in self._ready_names

    def _start_switch_again(self, index: int, argv: Sequence[str]) -> None:
        """SIGKILL it, as a power cut would, and start another, which is not awaited; its log goes on."""
        killed = self.switches[index]
        killed.process.kill()
        killed.process.wait()
        killed.release()
        self._ready_names.discard(killed.name)
        self.switches[index] = self._daemon(killed.name, argv, append=True)

    def _wait_ready(self, daemons: Sequence[Child]) -> None:
        deadline = time.monotonic() + self.ready_timeout_s
        for daemon in daemons:
            if not self._ready[daemon.name].wait(max(0.0, deadline - time.monotonic())):
                raise self.failure(f"{daemon.name} was not ready within {self.ready_timeout_s:.0f} s")
            self._require_logs()
            if daemon.name not in self._ready_names:
                raise self.failure(
                    f"{daemon.name} ended with status {daemon.process.wait()} before it was ready"
                )

    def _daemon(self, name: str, argv: Sequence[str], *, append: bool = False) -> Child:
        self._ready[name] = threading.Event()
        log_path = self._logs / f"{name}.log" if append else self._new_log(name)
        return Child(name, argv, log_path=log_path, sink=self._daemon_line, network=self._network_of(name))

    def _network_of(self, name: str) -> str:
        """Path of a daemon's network namespace; empty: that of this process."""
        return ""

    def _daemon_line(self, child: Child, line: str | None) -> None:
        if line is not None:
            child.log(line)
            if not line.startswith("ready"):
                return
            self._ready_names.add(child.name)
        self._ready[child.name].set()

    def _new_log(self, name: str) -> Path:
        path = self._logs / f"{name}.log"
        path.unlink(missing_ok=True)
        return path

    def start_worker(
        self,
        name: str,
        argv: Sequence[str],
        *,
        sink: LineSink,
        environment: Mapping[str, str] | None = None,
        network: str = "",
    ) -> Child:
        """Start a process that uses the cluster; its lines go to ``sink``, its stderr to its log."""
        log = self._new_log(name)
        worker = Child(name, argv, log_path=log, sink=sink, environment=environment, network=network)
        self.workers.append(worker)
        return worker

    def check(self) -> None:
        """Raise when a daemon has ended, a worker has failed, or a log cannot be kept."""
        self._require_logs()
        for child in (*self.daemons, *self.workers):
            status = child.exit_status
            if status is not None and (child in self.daemons or status != 0):
                raise self.failure(f"{child.name} ended with status {status}")

    def _require_logs(self) -> None:
        for child in (*self.daemons, *self.workers):
            if child.lost:  # in one sentence: the ends of logs say nothing of it
                raise ClusterError(f"{child.lost}; make room there, or name another directory")

    def failure(self, message: str) -> ClusterError:
        """An error with the ends of all logs, those of children that have ended by themselves first.

        Where the logs have no room left it says that: then they lack their ends.
        """
        if os.statvfs(self._logs).f_bavail == 0:
            full = os.strerror(errno.ENOSPC)
            return ClusterError(
                f"{message}; {self._logs}: {full}; make room there, or name another directory"
            )
        children = sorted((*self.workers, *self.daemons), key=lambda child: child.exit_status is None)
        tails = [
            f"--- {child.name} (last lines of {child.log_path.name})\n{child.tail()}" for child in children
        ]
        return ClusterError("\n".join([message, *tails]))

    def _status(self, daemon: Child, whose: str, path: Path) -> dict[str, Any]:
        try:
            return ask_status(path)
        except (OSError, DecodeError, EOFError) as error:
            # Its sockets close a moment before its end can be seen, which says more than their errors.
            with suppress(subprocess.TimeoutExpired):
                daemon.process.wait(ENDING_S)
            self.check()
            raise self.failure(f"no status of {whose} at {path}: {error!r}") from error

    def close(self) -> None:
        """End everything that was started, workers first, and remove the temporary directory.

        Bounded in time, so a second Ctrl-C is ignored meanwhile: nothing is left running.
        """
        with _signals_ignored():
            for group in (self.workers, self.hosts, self.switches):
                stop_children(group)
            shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What is started. ``weather`` is passed to the switch, e.g. ``drop=0.01,reorder=0.01``; ``adapter`` is
    of the ports between hosts and switch."""

    hosts: int = 4
    weather: str = ""
    seed: int = 1
    switch_options: tuple[str, ...] = ()
    host_options: tuple[str, ...] = ()
    adapter: str = "shm"


class LocalCluster(Cluster):
    """One switch, and hosts at it."""

    def __init__(self, config: ClusterConfig, *, log_dir: Path | None = None) -> None:
        super().__init__(log_dir=log_dir)
        self.config = config

    @property
    def switch(self) -> Child:
        return self.switches[0]

    def _start(self) -> None:
        self.switches.append(self._daemon("switch", self._switch_argv()))
        for host in range(self.config.hosts):
            options = "--adapter", self.config.adapter, *self.config.host_options
            self.hosts.append(self._host(host, self.directory, *options))

    def kill_switch(self) -> None:
        """SIGKILL it, as a power cut would, and start another at once; its log goes on."""
        self._start_switch_again(0, self._switch_argv())
        self._wait_ready(self.switches)

    def _switch_argv(self) -> list[str]:
        config = self.config
        argv = [inaproto_command(), "switch", "--dir", str(self.directory), "--adapter", config.adapter]
        if config.weather:
            argv += ["--weather", config.weather, "--seed", str(config.seed)]
        return [*argv, *config.switch_options]

    def switch_status(self) -> dict[str, Any]:
        """What ``inaproto status --json`` shows of the switch."""
        return self._status(self.switch, "the switch", self.directory / CONTROL_SOCKET)


def ask_status(path: Path, *, timeout_s: float = STATUS_TIMEOUT_S) -> dict[str, Any]:
    """Ask the daemon at ``path`` for its status, in this process: cheap enough for once a second.

    Raises ``OSError`` (``TimeoutError`` too), ``EOFError`` or ``DecodeError``.
    """
    decoder = ControlDecoder()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(encode_message(Status(id=1)))
        while data := connection.recv(1 << 16):
            for message in map(decode_message, decoder.feed(data)):
                if isinstance(message, StatusReply):
                    return dict(message.body)
                if isinstance(message, Error):
                    raise EOFError(message.message)
    raise EOFError("it closed the connection without an answer")


def _inherited_environment() -> dict[str, str]:
    """Ours without ``INAPROTO_...``: what a cluster does is said by its configuration alone."""
    kept = ("INAPROTO_LOG_LEVEL",)
    return {
        name: value for name, value in os.environ.items() if not name.startswith("INAPROTO_") or name in kept
    }


def inaproto_command() -> str:
    """The ``inaproto`` command of the environment that this Python belongs to."""
    command = Path(sys.executable).with_name("inaproto")
    if not command.exists():
        raise ClusterError(
            f"{command} is not there: run this with the Python of an environment that has inaproto"
        )
    return str(command)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only that one may, and gets them
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise ``KeyboardInterrupt`` like Ctrl-C, so that clean-up runs for all three."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
