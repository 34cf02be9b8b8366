"""What a durable shard does with files: few calls, each one step of what a crash may interrupt."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from inaproto.errors import ConfigError

WRITEV_PARTS_MAX = 512


class Files:
    """Files of one directory, which is locked as long as this is open. Every call may raise ``OSError``."""

    def __init__(self, directory: Path) -> None:
        """Raises ``ConfigError``, also where another process has it."""
        self.directory = directory
        try:
            _make_durably(directory)
            self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"store: cannot use {directory}: {error.strerror}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise ConfigError(
                f"store: another process uses {directory}; end that one, or choose another directory"
            ) from None

    def names(self) -> list[str]:
        return sorted(os.listdir(self._fd))

    def read(self, name: str) -> memoryview:
        """Contents of a file that is not written as long as this is used."""
        path = self.directory / name
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))

    def open(self, name: str, end: int) -> int:
        """A descriptor to append at byte ``end``, where the file ends from now on."""
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=self._fd)
        os.ftruncate(fd, end)
        os.lseek(fd, end, os.SEEK_SET)
        return fd

    def append(self, fd: int, parts: Sequence[memoryview]) -> None:
        left = [part for part in parts if part.nbytes]
        while left:
            written = os.writev(fd, left[:WRITEV_PARTS_MAX])
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if written:
                left[0] = left[0][written:]

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_names(self) -> None:
        os.fsync(self._fd)

    def rename(self, name: str, to: str) -> None:
        os.rename(name, to, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._fd)

    def close(self) -> None:
        """Close it, and let others have the directory."""
        os.close(self._fd)


def _make_durably(directory: Path) -> None:
    """So that a power cut does not take the directory away, with all that was made durable in it."""
    directory = directory.absolute()
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in missing:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
