"""Start processes through a fork server (:mod:`inaproto_hil.rigs.forking`), which has done their imports.

A daemon imports for most of a CPU second before it does anything; forked it starts in some ten milliseconds.
There is one server for each process that asks, begun when it first asks, ended with it.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import IO, Final

from inaproto_hil.rigs.forking import ENDED, STARTED, Request

SERVER: Final = "inaproto_hil.rigs.forking"
END_S: Final = 10.0
LOOK_S: Final = 1.0
ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Reproducible rounding, and no fight over the cores."""


class ForkServerLost(Exception):
    """The fork server ended; its last words are on this process's standard error."""


class ForkedProcess:
    """What of ``subprocess.Popen`` its users need; the process is the server's child, not ours.

    It is signalled by its descriptor, so never another one that got its process id.
    """

    def __init__(self, pid: int, pidfd: int, told: socket.socket, stdin: IO[str], stdout: IO[str]) -> None:
        self.pid = pid
        self.stdin: IO[str] | None = stdin
        self.stdout: IO[str] | None = stdout
        self.returncode: int | None = None
        self.cpu_s = 0.0
        """User and system time, known when it has ended."""
        self._pidfd = pidfd
        self._told = told
        self._guard = threading.Lock()

    def poll(self) -> int | None:
        self._look(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises ``subprocess.TimeoutExpired``."""
        deadline = inf if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = deadline - time.monotonic()
            if left < 0.0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            # Bounded: another thread may see the end, and close what this one would wait for.
            self._look(min(left, LOOK_S))
        return self.returncode

    def _look(self, timeout_s: float) -> None:
        """Not under the lock: one thread may wait while another signals."""
        if self.returncode is None:
            poller = select.poll()
            with suppress(ValueError):  # another thread has seen the end meanwhile
                poller.register(self._told, select.POLLIN)
                if poller.poll(timeout_s * 1e3):
                    self._ended()

    def _ended(self) -> None:
        with self._guard:
            if self.returncode is not None:
                return
            with suppress(ConnectionResetError):
                if packet := self._told.recv(ENDED.size):  # one thread is here, and something is there
                    status, self.cpu_s = ENDED.unpack(packet)
                    self._close(os.waitstatus_to_exitcode(status))
                    return
            self._close(-signal.SIGTERM)  # which it gets when the server ends

    def _close(self, code: int) -> None:
        self._told.close()
        os.close(self._pidfd)
        self.returncode = code
        _ended.append(self.cpu_s)

    def send_signal(self, number: int) -> None:
        """Harmless once it has ended."""
        with self._guard:
            if self.returncode is None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The server of one process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-m", SERVER, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**environment, **ONE_THREAD},
                process_group=0,
            )

    @property
    def is_lost(self) -> bool:
        return self._server.poll() is not None

    def fork(
        self,
        name: str,
        command: Sequence[str],
        *,
        stderr: IO[bytes],
        environment: Mapping[str, str],
        network: str = "",
    ) -> ForkedProcess:
        """Start a process with pipes to its standard input and from its output.

        ``network``: path of its network namespace.
        """
        request = Request(name, command, environment, os.getcwd(), network)
        told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdin, to_child = os.pipe()
        from_child, stdout = os.pipe()
        try:
            with theirs:
                files = [stdin, stdout, stderr.fileno(), theirs.fileno()]
                socket.send_fds(self._requests, [request.encode()], files)
            answer, descriptors, _, _ = socket.recv_fds(told, STARTED.size, 1)
            if not answer:
                raise ConnectionResetError
        except (BrokenPipeError, ConnectionResetError):
            told.close()
            os.close(to_child)
            os.close(from_child)
            raise ForkServerLost(f"the fork server ended before it started {name}") from None
        finally:
            os.close(stdin)
            os.close(stdout)
        (pid,) = STARTED.unpack(answer)
        return ForkedProcess(
            pid,
            descriptors[0],
            told,
            os.fdopen(to_child, "w", errors="replace"),
            os.fdopen(from_child, errors="replace"),
        )

    def close(self) -> None:
        """End it; what still runs gets SIGTERM."""
        self._requests.close()
        try:
            self._server.wait(END_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()


_guard: Final = threading.Lock()
_servers: Final[dict[int, ForkServer]] = {}
"""Servers by the process that asks: one that was forked from it has one of its own."""
_ended: Final[list[float]] = []
"""CPU seconds of each forked process that was seen to end."""


def fork_server(environment: Mapping[str, str]) -> ForkServer:
    """The server of this process, begun with this environment if it does not run."""
    with _guard:
        server = _servers.get(os.getpid())
        if server is None or server.is_lost:
            if server is None:
                _servers.clear()
                atexit.register(_close, os.getpid())
            server = _servers[os.getpid()] = ForkServer(environment)
        return server


def ended_cpu_s() -> float:
    """What forked processes of which this one has seen the end have used: they are not its own children."""
    return sum(_ended)


def command_of(argv: Sequence[str], inaproto: str) -> Sequence[str] | None:
    """What a fork server runs in the place of ``argv``; None for what only ``exec`` can start.

    ``inaproto``: the path of that command.
    """
    program, *words = argv
    if program == inaproto:
        return words
    if program == sys.executable and words:
        if words[0] == "-P":
            words = words[1:]
        if words[0] == "-m" or words[0].endswith(".py"):
            return words
    return None


def _close(pid: int) -> None:
    if pid == os.getpid():
        _servers[pid].close()
