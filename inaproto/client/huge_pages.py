"""Mappings of shared memory in huge pages, where the kernel has some to give.

Whoever goes through a tensor of ordinary pages looks each of them up, in a virtual machine in two tables: of
the time of an all-reduce in memory that is a tenth and more. A memfd has huge pages if it is asked for them
(``MADV_COLLAPSE``, Linux 6.1), however ``/sys/kernel/mm/transparent_hugepage/shmem_enabled`` is set, and a
mapping uses them where its address is a multiple of their size. They are *transparent*: the kernel may split
them at any time, nothing has to be reserved, and touching one never fails where ordinary pages would not.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from typing import Final

import numpy as np

HUGE_BYTES: Final = 2 << 20
"""Size of a huge page of x86-64, and of aarch64 with pages of 4 KiB; elsewhere the kernel says no."""
_MADV_COLLAPSE: Final = 25
"""Not in Python's mmap."""


def map_shared(descriptor: int, nbytes: int, flags: int = mmap.MAP_SHARED) -> mmap.mmap:
    """Map ``nbytes`` of a file, to be read and written, at a multiple of ``HUGE_BYTES`` if that is possible.

    Raises ``OSError``, ``ValueError`` as ``mmap.mmap``.
    """
    memory = mmap.mmap(descriptor, nbytes, flags)
    past = address(memory) % HUGE_BYTES
    if nbytes < HUGE_BYTES or not past:
        return memory
    memory.close()
    filler = mmap.mmap(-1, past)  # the next mapping comes to lie beneath it, unless another thread maps, too
    try:
        return mmap.mmap(descriptor, nbytes, flags)
    finally:
        filler.close()


def private(nbytes: int) -> mmap.mmap:
    """Memory of this process alone, in huge pages if it is as large as one. Raises ``OSError``."""
    memory = mmap.mmap(-1, nbytes + -nbytes % HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def allocate(descriptor: int, memory: mmap.mmap, nbytes: int) -> None:
    """Give a new, empty memfd, mapped as ``memory``, its ``nbytes``: huge pages as far as there are any.

    Raises ``OSError`` if memory is short; at once for more than the machine has, which the kernel would look
    for until it has ended other processes.
    """
    if nbytes > os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    whole = nbytes // HUGE_BYTES * HUGE_BYTES
    if whole and address(memory) % HUGE_BYTES == 0:
        for offset in range(0, whole, HUGE_BYTES):  # the kernel looks for huge pages where it finds a page
            os.posix_fallocate(descriptor, offset, mmap.PAGESIZE)
        with contextlib.suppress(OSError):
            memory.madvise(_MADV_COLLAPSE, 0, whole)
    os.posix_fallocate(descriptor, 0, nbytes)


def address(memory: mmap.mmap) -> int:
    """Where it is."""
    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
