"""The memory of a journal (:mod:`inaproto.core.host.journal`) in a memfd, which training processes hold, too.

Invariants: its file never shrinks under anybody (a seal); memory that was given back is empty, and its place
in the file is not used again, as a NIC may still hold a view of it; the descriptor is open as long as the
arena.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from typing import Final

from inaproto.core.host.journal import JournalRefused
from inaproto.daemon.net.shared_buffers import F_SEAL_EXEC

ARENA_BYTES_MAX: Final = 1 << 40
_SEALS: Final = fcntl.F_SEAL_SHRINK


class SharedArea:
    """Some pages of the file, mapped."""

    def __init__(self, arena: SharedArena, at: int, nbytes: int) -> None:
        self.at = at
        self._arena = arena
        self._memory = mmap.mmap(arena.descriptor, nbytes, offset=at)
        self._nbytes = nbytes
        self.view = memoryview(self._memory)

    def free(self) -> None:
        """Give the pages back, but for those that somebody holds a view of."""
        try:
            self.view.release()
            self._memory.close()
        except BufferError:  # they end with that view, and the file
            return
        self._arena.empty(self.at, self._nbytes)


class SharedArena:
    """One of a host in a job. Raises ``OSError`` if memory or descriptors are short."""

    def __init__(self, descriptor: int | None = None) -> None:
        """``descriptor``: of another's, which is this one's from now on. Raises ``JournalRefused``."""
        if descriptor is None:
            self.descriptor = os.memfd_create("inaproto-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            return
        self.descriptor = descriptor
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        except OSError:
            raise JournalRefused("its descriptor is not a memfd") from None
        if seals & ~F_SEAL_EXEC != _SEALS or os.fstatvfs(descriptor).f_bsize != mmap.PAGESIZE:
            raise JournalRefused(f"its memfd has the seals {seals:#x}, or other pages than ordinary ones")

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.descriptor)

    @property
    def file(self) -> tuple[int, int]:
        """Which file it is, whatever descriptor it is known by."""
        found = os.fstat(self.descriptor)
        return found.st_dev, found.st_ino

    @property
    def nbytes(self) -> int:
        return os.fstat(self.descriptor).st_size

    def allocate(self, nbytes: int) -> SharedArea:
        """Pages at the end of the file."""
        at, nbytes = self.nbytes, nbytes + -nbytes % mmap.PAGESIZE
        if at % mmap.PAGESIZE or at + nbytes > ARENA_BYTES_MAX:
            raise OSError(f"the journal's memory has {at} bytes, and no room for {nbytes}")
        os.ftruncate(self.descriptor, at + nbytes)
        return SharedArea(self, at, nbytes)

    def look(self, at: int, nbytes: int) -> memoryview:
        """A mapping that lasts as long as its view."""
        if at + nbytes > min(self.nbytes, ARENA_BYTES_MAX):
            raise JournalRefused(f"bytes {at} to {at + nbytes} are behind its end")
        if not nbytes:
            return memoryview(b"")
        first = at - at % mmap.PAGESIZE
        try:
            memory = mmap.mmap(self.descriptor, at + nbytes - first, offset=first)
        except OSError as error:  # it cannot be written to, say
            raise JournalRefused(f"its memory cannot be mapped: {error.strerror}") from None
        return memoryview(memory)[at - first : at - first + nbytes]

    def empty(self, at: int, nbytes: int) -> None:
        """Nobody uses these pages any more: the kernel has them back."""
        with (
            contextlib.suppress(OSError, ValueError),
            mmap.mmap(self.descriptor, nbytes, offset=at) as memory,
        ):
            memory.madvise(mmap.MADV_REMOVE)

    def keep_only(self, nbytes: int) -> None:
        """Of what was allocated before this daemon nothing is needed behind the first ``nbytes``."""
        first = nbytes + -nbytes % mmap.PAGESIZE
        if first < self.nbytes:
            self.empty(first, self.nbytes - first)
