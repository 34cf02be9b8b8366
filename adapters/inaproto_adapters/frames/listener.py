"""Where frame ports meet: a listening UNIX socket, and the connector that waits for it.

Invariants:

* A path that exists can be connected to: the socket is bound and listening under a temporary name
  before it is renamed. QEMU does not retry, so whoever waits for the path to appear may start it then.
* One listener per path. The socket of a killed process is replaced, that of a living one is not; a
  lock on the directory keeps apart two that start at once. A listener removes only its own socket.
* Start order does not matter: ``connect_frame_port`` tries until its time is up, then says what was
  missing, where, and how long it waited.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import trio

from inaproto.errors import ConfigError, FabricError
from inaproto.ports import PortClosed
from inaproto.units import MS, UNIX_PATH_BYTES_MAX, S
from inaproto_adapters.frames.port import FramesConfig, StreamFramePort

P = TypeVar("P")
_BACKLOG: Final = 128
_LOCK_WAIT_NS: Final = 2 * S
_RETRY_FIRST_NS: Final = 10 * MS
_RETRY_LAST_NS: Final = 250 * MS
_NOT_YET: Final = {
    errno.ENOENT: "there is no such socket",
    errno.ECONNREFUSED: "nobody listens on that socket",
    errno.EAGAIN: "its listener has not accepted the connections before this one",
}


class SocketListener(Generic[P]):
    """A listening socket; every accepted connection is one port."""

    def __init__(self, sock: socket.socket, path: Path, open_port: Callable[[socket.socket, str], P]) -> None:
        self.path = path
        self._open_port = open_port
        self._sock = sock
        self._made = _identity(path)
        self._accepted = 0
        self._closed = False

    async def accept(self) -> P:
        """The next connection. Raises ``PortClosed`` when the listener is closed, and a retryable
        ``FabricError`` when the process has no descriptor left for it."""
        await trio.lowlevel.checkpoint()
        while not self._closed:
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                try:
                    await trio.lowlevel.wait_readable(self._sock)
                except trio.ClosedResourceError:
                    break
            except ConnectionAbortedError:
                continue  # that one gave up while it waited
            except OSError as error:
                raise FabricError(
                    "accept", "a new peer", f"listening at {self.path}", f"{error.strerror}", retryable=True
                ) from None
            else:
                self._accepted += 1
                return self._open_port(sock, f"{self.path.name}#{self._accepted}")
        raise PortClosed(f"the listener at {self.path} was closed")

    async def aclose(self) -> None:
        """Stop listening and remove the socket; accepted ports go on."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
            if _identity(self.path) == self._made:
                # Its directory may be gone or read-only by now; a stale socket is replaced at the next start.
                with contextlib.suppress(OSError):
                    self.path.unlink()
        await trio.lowlevel.checkpoint()


FrameListener = SocketListener[StreamFramePort]


async def open_frame_listener(path: str | Path, config: FramesConfig | None = None) -> FrameListener:
    """Listen at ``path`` for frame ports; see :func:`listen_at`."""
    return await listen_at(path, lambda sock, name: StreamFramePort(sock, config, name=name))


async def listen_at(path: str | Path, open_port: Callable[[socket.socket, str], P]) -> SocketListener[P]:
    """Listen at ``path``; ``open_port`` makes a port of a connection, and has a name for it.

    Raises ``ConfigError``, which names the path and the remedy, for a path that is too long, in use, not
    a socket, or in a directory that is missing, full or not writable.
    """
    path = Path(path)
    _require_fitting(path)
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot_listen(path, error) from None
    try:
        await _lock(directory, path)
        _require_free(path)
        return SocketListener(_bind(path, directory), path, open_port)
    finally:
        os.close(directory)


async def _lock(directory: int, path: Path) -> None:
    with trio.move_on_after(_LOCK_WAIT_NS / S):
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                await trio.sleep(_RETRY_FIRST_NS / S)
            except OSError as error:
                raise _cannot_listen(path, error) from None
    raise ConfigError(
        f"cannot listen at {path}: another program has locked {path.parent} for {_LOCK_WAIT_NS // S} s; "
        "end it or choose another directory"
    )


def _bind(path: Path, directory: int) -> socket.socket:
    # Through the descriptor, so that the temporary name, which is longer, fits as well.
    temporary = f".{path.name[:32]}.{os.getpid()}"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        _unlink(temporary, directory)  # left by a process of this number that was killed here
        sock.bind(f"/proc/self/fd/{directory}/{temporary}")
        sock.listen(_BACKLOG)
        os.rename(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        sock.close()
        _unlink(temporary, directory)
        raise _cannot_listen(path, error) from None
    return sock


def _unlink(name: str, directory: int) -> None:
    # It is not there, or nothing can be done in this directory: then the bind says so.
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)


def _require_fitting(path: Path) -> None:
    nbytes = len(os.fsencode(path))
    if nbytes > UNIX_PATH_BYTES_MAX:
        raise ConfigError(
            f"the socket path {path} has {nbytes} bytes, {UNIX_PATH_BYTES_MAX} at most are possible; "
            "choose a shorter directory"
        )


def _require_free(path: Path) -> None:
    """Raises ``ConfigError`` unless a socket may be made at ``path``; a stale one is in nobody's way."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot_listen(path, error) from None
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(
            f"cannot listen at {path}: it exists and is not a socket; remove it or choose another path"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        error_number = probe.connect_ex(os.fspath(path))
    if error_number in (errno.ECONNREFUSED, errno.ENOENT):
        return
    if error_number in (0, errno.EAGAIN):
        raise ConfigError(
            f"cannot listen at {path}: another process already does; stop it or choose another path"
        )
    raise _cannot_listen(path, OSError(error_number, os.strerror(error_number)))


def _cannot_listen(path: Path, error: OSError) -> ConfigError:
    directory = path.parent
    match error.errno:
        case errno.ENOENT:
            remedy = f"the directory {directory} does not exist; make it first (mkdir -p {directory})"
        case errno.ENOTDIR:
            remedy = f"{directory} is not a directory; choose another path"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            remedy = (
                f"user {os.geteuid()} cannot write in {directory}; change its mode or choose another path"
            )
        case errno.ENOSPC | errno.EDQUOT:
            remedy = f"{directory} is full (df {directory}, df -i {directory}); free space or choose another"
        case _:
            remedy = f"{error.strerror or error}; choose another path"
    return ConfigError(f"cannot listen at {path}: {remedy}")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


async def connect_frame_port(
    path: str | Path, config: FramesConfig | None = None, *, wait_ns: int = 10 * S, name: str = ""
) -> StreamFramePort:
    """Connect to the listener at ``path``; see :func:`connect_to`."""
    sock = await connect_to(path, wait_ns=wait_ns)
    return StreamFramePort(sock, config, name=name or Path(path).name)


async def connect_to(path: str | Path, *, wait_ns: int) -> socket.socket:
    """A connection to the listener at ``path``, which may start up to ``wait_ns`` later.

    Raises ``ConfigError`` for a path that can never work, a retryable ``FabricError`` when nobody
    listened there in time.
    """
    path = Path(path)
    _require_fitting(path)
    began = trio.current_time()
    pause_ns = _RETRY_FIRST_NS
    while True:
        await trio.lowlevel.checkpoint()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        error_number = sock.connect_ex(os.fspath(path))
        if error_number == 0:
            return sock
        sock.close()
        if error_number not in _NOT_YET:
            raise ConfigError(
                f"cannot connect to {path}: {os.strerror(error_number)}; check the path and its permissions"
            )
        waited_ns = round((trio.current_time() - began) * S)
        if waited_ns >= wait_ns:
            raise FabricError(
                "connect",
                f"the switch port at {path}",
                f"waiting {waited_ns / S:.1f} s for a listener",
                f"{_NOT_YET[error_number]}; start the switch that listens there, or correct the path",
                retryable=True,
            )
        await trio.sleep(min(pause_ns, wait_ns - waited_ns) / S)
        pause_ns = min(2 * pause_ns, _RETRY_LAST_NS)
