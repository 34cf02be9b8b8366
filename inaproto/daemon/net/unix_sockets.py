"""UNIX sockets of the daemons: where they lie, how they are taken over, how they are left.

Invariants: one daemon per path, the second is told so; a socket left by a killed daemon is replaced;
a daemon removes only the socket that it made itself. Two daemons that start at once are kept apart by
a lock on the directory, held only while the path is probed and bound.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from inaproto.client.unix_stream import UnixStream, dial_unix
from inaproto.errors import ConfigError, FabricError
from inaproto.ports import PortClosed
from inaproto.units import UNIX_PATH_BYTES_MAX

BACKLOG: Final = 4096
"""Connections that wait to be accepted; the kernel may keep fewer (net.core.somaxconn)."""
"""Connections that wait to be taken: after a restart all agents come at once."""
_LOCK_WAIT_S = 2.0
_LOCK_RETRY_S = 0.01


@dataclass(slots=True)
class BoundSocket:
    """A listening socket and the file that it made: :class:`inaproto.ports.StreamListener`."""

    sock: socket.socket
    path: Path
    device: int
    inode: int

    async def accept(self) -> UnixStream:
        """The next connection. Raises ``PortClosed`` when the listener is closed, and a retryable
        ``FabricError`` when the process has no descriptor left for it."""
        await trio.lowlevel.checkpoint()
        while self.sock.fileno() >= 0:
            try:
                return UnixStream(self.sock.accept()[0])
            except BlockingIOError:
                try:
                    await trio.lowlevel.wait_readable(self.sock)
                except trio.ClosedResourceError:
                    break
            except ConnectionAbortedError:
                continue  # that one gave up while it waited
            except OSError as error:
                where = f"listening at {self.path}"
                raise FabricError(
                    "accept", "a new peer", where, f"{error.strerror}", retryable=True
                ) from None
        raise PortClosed(f"the listener at {self.path} was closed")

    def close(self) -> None:
        """Stop listening and remove the path, unless somebody else took it over.

        A task that waits for a connection is woken with ``trio.ClosedResourceError``.
        """
        if self.sock.fileno() < 0:
            return
        trio.lowlevel.notify_closing(self.sock)
        self.sock.close()
        try:
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                self.path.unlink()
        except OSError:
            pass  # already gone, or its directory is: either way it is no longer ours


def require_path_fits(path: Path, what: str) -> None:
    """Raises ``ConfigError`` when ``path`` is too long for a UNIX socket."""
    size = len(os.fsencode(path))
    if size > UNIX_PATH_BYTES_MAX:
        raise ConfigError(
            f"{what}: the socket path {path} is {size} bytes long, UNIX sockets allow {UNIX_PATH_BYTES_MAX}; "
            "choose a shorter directory, for example --dir /tmp/ina"
        )


def make_run_directory(directory: Path, what: str) -> None:
    """Make the directory of a daemon's sockets (0700) when it is missing.

    Raises ``ConfigError`` when it cannot be made or is not usable. Its parent must exist: a mistyped
    path is an error rather than a new tree. A directory of another user, or one that everybody may write,
    is refused, by root too: under ``/tmp`` anybody could have made it, to be taken for the switch.
    """
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"{what}: {directory} is not a directory; name another one") from None
    except FileNotFoundError:
        raise ConfigError(
            f"{what}: {directory.parent} does not exist; make it first (mkdir -p) or name another"
        ) from None
    except OSError as error:
        raise ConfigError(f"{what}: cannot make {directory}: {_remedy(error, directory.parent)}") from None
    found, user = directory.stat(), os.geteuid()
    if found.st_uid not in (0, user):
        owner = found.st_uid
        raise ConfigError(f"{what}: {directory} belongs to user {owner}, not to {user}; choose another one")
    if found.st_mode & stat.S_IWOTH:
        raise ConfigError(f"{what}: everybody may write in {directory}; chmod o-w it, or choose another one")


async def listen_unix(path: Path, what: str) -> BoundSocket:
    """Bind and listen at ``path``, replacing the socket of a daemon that was killed.

    ``what`` names the socket in messages ("control socket"). Raises ``ConfigError`` that names the path
    and the remedy when it is in use, too long, or cannot be made.
    """
    require_path_fits(path, what)
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ConfigError(f"{what}: the directory {path.parent} does not exist; make it first") from None
    except OSError as error:
        raise ConfigError(f"{what}: cannot open {path.parent}: {_remedy(error, path.parent)}") from None
    try:
        await _lock_directory(directory, path, what)
        _remove_stale(path, what)
        return _bind(path, what)
    finally:
        os.close(directory)


async def _lock_directory(directory: int, path: Path, what: str) -> None:
    with trio.move_on_after(_LOCK_WAIT_S):
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                await trio.sleep(_LOCK_RETRY_S)
    raise ConfigError(
        f"{what}: {path.parent} has been locked by another program for {_LOCK_WAIT_S:g} s; "
        "choose another directory or end that program"
    )


def _remove_stale(path: Path, what: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{what}: cannot look at {path}: {_remedy(error, path.parent)}") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{what}: {path} exists and is not a socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:  # EAGAIN: somebody listens, with a full backlog
                raise ConfigError(f"{what}: cannot probe {path}: {error.strerror}") from None
    raise ConfigError(
        f"{what}: another daemon is already listening at {path}; stop it or choose another directory"
    )


def _bind(path: Path, what: str) -> BoundSocket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        sock.bind(os.fspath(path))
        found = os.lstat(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"{what}: cannot make {path}: {_remedy(error, path.parent)}") from None
    return BoundSocket(sock, path, found.st_dev, found.st_ino)


def _remedy(error: OSError, directory: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}; free space or files in {directory} (df {directory}; df -i {directory})"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"{error.strerror}; make {directory} writable for user {os.geteuid()} or choose another directory"
        )
    return f"{error.strerror or error}"


async def connect_unix(path: Path, what: str) -> socket.socket:
    """A connected non-blocking socket.

    Raises ``ConfigError`` for a path too long, else the ``OSError`` of the attempt: the caller knows
    whether to try again and what to say.
    """
    require_path_fits(path, what)
    await trio.lowlevel.checkpoint()
    return dial_unix(path).detach()


class UnixNetwork:
    """:class:`inaproto.ports.StreamNetwork` over UNIX sockets."""

    async def listen(self, path: Path, what: str) -> BoundSocket:
        return await listen_unix(path, what)

    async def prepare(self, directory: Path, what: str) -> None:
        make_run_directory(directory, what)

    def dial(self, path: Path) -> UnixStream:
        return dial_unix(path)


UNIX = UnixNetwork()
