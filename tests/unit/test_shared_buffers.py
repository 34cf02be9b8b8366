"""Memory that a training process hands over: whatever its owner does to it, all of it can be touched.

How a daemon answers what it does not take is in ``tests/daemon/test_host_bad_input.py``.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import pytest

from inaproto.daemon.host.shared_arena import SharedArena
from inaproto.daemon.net.shared_buffers import map_memory
from inaproto.errors import JobError

_MFD_NOEXEC_SEAL = 0x8
"""Not in Python's os; Linux 6.3."""


def memfd(nbytes: int, flags: int = 0) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


def memfd_not_for_programs(nbytes: int) -> int:
    """As all are there; on an older kernel, where none can be, an ordinary one."""
    try:
        return memfd(nbytes, _MFD_NOEXEC_SEAL)
    except OSError:
        return memfd(nbytes)


@pytest.mark.parametrize("nbytes", [1, mmap.PAGESIZE - 1, mmap.PAGESIZE + 1, (3 << 20) + 5])
def test_a_segment_that_ends_in_a_page_is_there_to_its_end_whatever_its_owner_does(nbytes: int) -> None:
    descriptor = memfd(nbytes)
    with map_memory(os.dup(descriptor), segment=0, nbytes=nbytes) as memory:
        for less in (0, nbytes - 1):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, less)
        os.pwrite(descriptor, b"\7", nbytes - 1)
        assert memory[nbytes - 1] == 7
        memory[nbytes - 1] = 8
        assert os.pread(descriptor, 2, nbytes - 1) == b"\x08"
    with pytest.raises(JobError, match=f"has {nbytes} bytes, the message says {nbytes + 1}"):
        map_memory(descriptor, segment=0, nbytes=nbytes + 1)


def test_memory_is_taken_where_the_machine_lets_no_memfd_hold_a_program() -> None:
    """``vm.memfd_noexec`` gives each memfd a seal that nobody has asked for."""
    nbytes = mmap.PAGESIZE
    descriptor = memfd_not_for_programs(nbytes)
    with map_memory(descriptor, segment=0, nbytes=nbytes) as memory:
        assert memory[:] == bytes(nbytes)
    assert SharedArena(memfd_not_for_programs(0)).nbytes == 0
