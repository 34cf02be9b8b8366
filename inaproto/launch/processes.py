"""Processes of a launcher: each in a session of its own, and none that outlives it."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from inaproto.errors import ConfigError, FabricError
from inaproto.launch.plan import RUN_VARIABLE

WITH_PARENT: Final = Path(__file__).with_name("with_parent.py")
_KEEPER: Final = Path(__file__).with_name("keeper.py")


def script_of(file: Path, *arguments: str) -> list[str]:
    """The command line of a script that needs no package."""
    return [sys.executable, "-I", "-S", str(file), *arguments]


class Process:
    """A process that was started, and is the first of its group. It gets SIGTERM when this one ends.

    To be made in the main thread: the kernel takes the end of the thread that made it for that of the parent.
    Descriptors as :class:`subprocess.Popen` takes them.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self.name, self.command, self.environment = name, list(command), environment
        try:
            self._popen = subprocess.Popen(
                script_of(WITH_PARENT, str(os.getpid()), *command),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            raise FabricError(
                "start", name, "forking", error.strerror or str(error), retryable=True
            ) from None
        self._pidfd = os.pidfd_open(self._popen.pid)
        self.code: int | None = None
        """Exit status when it has ended; negative: the signal that ended it."""

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def stdout(self) -> int:
        """The end of the pipe to read from."""
        assert self._popen.stdout is not None
        return self._popen.stdout.fileno()

    @property
    def stderr(self) -> int:
        """The end of the pipe to read from."""
        assert self._popen.stderr is not None
        return self._popen.stderr.fileno()

    def close_pipe(self, descriptor: int) -> None:
        for stream in (self._popen.stdout, self._popen.stderr):
            if stream is not None and not stream.closed and stream.fileno() == descriptor:
                stream.close()

    async def wait(self) -> int:
        """Its exit status, when it has ended."""
        while self.code is None:
            await trio.lowlevel.wait_readable(self._pidfd)
            self.reap()
        return self.code

    def fileno(self) -> int:
        """It can be read from when it has ended."""
        return self._pidfd

    def reap(self) -> int:
        """The exit status of one that has ended."""
        if self.code is None:
            self.code = self._popen.wait()
        return self.code

    def send(self, number: int) -> None:
        """To it and all of its group, if it runs."""
        if self.code is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, number)

    def close(self) -> None:
        """Give back its descriptors; it has ended."""
        os.close(self._pidfd)
        for stream in (self._popen.stdout, self._popen.stderr):
            if stream is not None:
                stream.close()

    async def end(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL when the grace is over."""
        self.send(signal.SIGTERM)
        with trio.move_on_after(grace_s):
            await self.wait()
        if self.code is None:
            self.send(signal.SIGKILL)
            await self.wait()


class Ends:
    """The ends of some processes, in the order in which they came, also where several are found at one look.

    Epoll keeps that order: what becomes ready goes to the end of the kernel's list.
    """

    def __init__(self, processes: Mapping[int, Process]) -> None:
        """By any numbers."""
        self._processes = {process.fileno(): (number, process) for number, process in processes.items()}
        self._epoll = select.epoll()
        for descriptor in self._processes:
            self._epoll.register(descriptor, select.EPOLLIN)

    async def next(self) -> list[tuple[int, int]]:
        """The numbers of those that have ended since it was asked last, with their codes; one at least."""
        await trio.lowlevel.wait_readable(self._epoll.fileno())
        return self.now()

    def now(self) -> list[tuple[int, int]]:
        """The same, perhaps none."""
        found = []
        for descriptor, _ in self._epoll.poll(0):
            self._epoll.unregister(descriptor)
            number, process = self._processes.pop(descriptor)
            found.append((number, process.reap()))
        return found

    def __bool__(self) -> bool:
        """Some have not ended."""
        return bool(self._processes)

    def close(self) -> None:
        self._epoll.close()


class Keeper:
    """The process that ends the others if this one is killed (:mod:`inaproto.launch.keeper`)."""

    def __init__(self, directory: Path) -> None:
        self.run = secrets.token_hex(8)
        self.mark = f"{RUN_VARIABLE}={self.run}"
        """What processes of this start have in their environment."""
        self._directory = directory
        reads, self._writes = os.pipe()
        self._popen = subprocess.Popen(
            script_of(_KEEPER, self.mark, str(directory)),
            stdin=reads,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reads)

    def dismiss(self) -> None:
        """Nothing is left to be ended."""
        with suppress(BrokenPipeError):
            os.write(self._writes, b".")
        os.close(self._writes)
        self._popen.wait()


def require_pidfd() -> None:
    """Raises ``ConfigError`` where processes cannot be waited for as is done here."""
    if not hasattr(os, "pidfd_open"):
        raise ConfigError("inaproto run: needs Linux 5.3 or later, and a Python that was built there")
