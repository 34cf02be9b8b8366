"""Directories in which a rank could meet the others of its host, to add up among themselves.

Ranks tell their host daemon of them when they join, and it chooses one that all have
(:mod:`inaproto.core.host.meeting_place`). A directory is named by its numbers in the kernel, so that it does
not matter by which path a rank reaches it, and by the user whose socket it would be: only ranks of one user
let each other in.

Invariant: nothing is made before the ranks do meet.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from inaproto.errors import ConfigError
from inaproto.units import UNIX_PATH_BYTES_MAX

NAME_CHARACTERS: Final = 24
"""The length of a socket's name, without what is behind its dot."""


def directories(socket: Path) -> list[Path]:
    """Where to look, the best first. ``socket`` is the host daemon's."""
    found = [Path("/tmp"), socket.parent]
    with contextlib.suppress(FileNotFoundError):  # no directory for temporary files can be used
        found.insert(0, Path(tempfile.gettempdir()))
    return found


def meeting_places(socket: Path) -> dict[str, Path]:
    """The directories that can be used, by what the host daemon is told of them."""
    found: dict[str, Path] = {}
    numbers = _user()
    for directory in directories(socket):
        with contextlib.suppress(OSError):
            where = os.stat(directory)
            path = directory.absolute()
            is_free = os.access(directory, os.W_OK | os.X_OK) and _fits(path)
            itself = f"{numbers}:{where.st_dev:x}:{where.st_ino:x}"
            if is_free and not any(each.split(" ")[0] == itself for each in found):
                found[f"{itself} {ascii(os.fspath(path))[1:-1]} (user {os.geteuid()})"] = path
    return found


def private_directory(parent: Path) -> Path:
    """A directory of this user alone, for the socket of a meeting. Raises ``ConfigError``."""
    user = os.geteuid()
    path = _private(parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise ConfigError(
            f"all_reduce in place: {path} is not a directory of user {user} alone; remove it, or set TMPDIR"
        )
    return path


def _private(parent: Path) -> Path:
    return parent / f"inaproto-ranks-{os.geteuid()}"


def _fits(parent: Path) -> bool:
    longest = _private(parent) / f"{'x' * NAME_CHARACTERS}.meet"
    return len(os.fsencode(longest)) <= UNIX_PATH_BYTES_MAX


def _user() -> str:
    """This user, and the namespace in which its number is that user's."""
    namespace = 0
    with contextlib.suppress(OSError):
        namespace = os.stat("/proc/self/ns/user").st_ino
    return f"{os.geteuid()}:{namespace:x}"
