"""Registered buffers of the other ranks, mapped here: read and written without a system call.

A rank whose array lies in one of its shared segments (``Communicator.buffer``) says before each all-reduce
which one that is: a descriptor of its process, the number of the file, where its process has it. Others open
that descriptor by ``/proc`` once, and keep the mapping until the stage ends. An array that is not mapped, for
whatever reason, is read and written as any other (:mod:`inaproto.client.stage.neighbours`); which way that is
each rank decides for itself, and the bytes are the same.

Invariants: what is mapped is sealed against shrinking and as long as its owner says, so no access to it is
SIGBUS. A mapping is of that file or there is none: a stranger whose process has the number of a rank that
ended has no such file.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import Final

from inaproto.client import huge_pages
from inaproto.client.stage.layout import Words

_HOME: Final = slice(3, 7)
"""Words of :meth:`Layout.hands`: 1 + the descriptor, or 0; the number of the file; address; bytes."""
VIEWS_MAX: Final = 128
"""Segments that one rank has mapped of all others: each takes a descriptor, of often 1024."""


@dataclass(frozen=True, slots=True)
class Home:
    """A shared segment of this process: its descriptor, where it is mapped, and its length in bytes."""

    descriptor: int
    address: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    memory: mmap.mmap
    address: int


class Views:
    """What rank ``rank`` has mapped of others."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank = rank
        self._views: list[dict[int, _View | None]] = [{} for _ in range(ranks)]
        """What is mapped, by rank and by the number of the file; None: it cannot be."""

    def show(self, hands: Words, home: Home | None) -> None:
        """Say where the array of this rank's next all-reduce lies, before the barrier of that call."""
        words = 0, 0, 0, 0
        if home is not None:
            words = 1 + home.descriptor, os.fstat(home.descriptor).st_ino, home.address, home.nbytes
        hands[self._rank, _HOME] = words

    def at(self, hands: Words, rank: int, pid: int, place: int, nbytes: int) -> int:
        """Where ``nbytes`` at ``place`` of the process of ``rank`` are in this one; 0: nowhere."""
        descriptor, file, start, length = hands[rank, _HOME].tolist()
        if not descriptor or not start <= place <= place + nbytes <= start + length:
            return 0
        known = self._views[rank]
        if file not in known:
            if sum(map(len, self._views)) >= VIEWS_MAX:
                return 0
            known[file] = _mapped(pid, descriptor - 1, file, length)
        view = known[file]
        return 0 if view is None else view.address + place - start

    def close(self) -> None:
        """Let go of all mappings; nobody works with one."""
        for known in self._views:
            known.clear()


def _mapped(pid: int, descriptor: int, file: int, nbytes: int) -> _View | None:
    try:
        opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no /proc, or a user that may not
        return None
    try:
        found = os.fstat(opened)
        if found.st_ino != file or found.st_size < nbytes:
            return None
        if not fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            return None
        memory = huge_pages.map_shared(opened, nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    except (OSError, ValueError):
        return None
    finally:
        os.close(opened)
    return _View(memory, huge_pages.address(memory))
