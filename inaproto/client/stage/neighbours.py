"""The memory of the other ranks' processes, read where it is (CMA, cross memory attach: process_vm_readv).

What a rank reads from its neighbour's own array need not be copied into shared memory first. The kernel
allows it between processes of one user, unless Yama forbids it (``kernel.yama.ptrace_scope`` above 0) or a
container's filter does. So ranks try when they meet: each shows where in its memory a number lies, and which;
all others read it. Where one of them cannot, nobody reads, and the reason is said.

Only reading: a process id may name another process by the time it is used. What was read from a stranger is
lost with the call, for the rank that has ended does not come to the next barrier; what was written would
stay.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.client.stage.layout import Bytes, Words
from inaproto.core.kernels import Compiled
from inaproto.core.kernels.compiled import address_of
from inaproto.core.plan.reduce_to_all import SUMS
from inaproto.errors import JobError, RankLost
from inaproto.wire.ina_header import Dtype

_PID: Final = 4
_ADDRESS: Final = 5
_NUMBER: Final = 6
_VERDICT: Final = 7
"""0: all others were read; else why not, as a number of :mod:`errno`."""


class _Part(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class Neighbours:
    """The processes of all ranks, for rank ``rank``; ``words`` are the control words of all."""

    def __init__(self, rank: int, words: Words) -> None:
        self._rank = rank
        self._words = words
        self._number: NDArray[np.int64] = np.frombuffer(os.urandom(8), np.int64).copy()
        self._read = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
        if self._read is not None:
            part = ctypes.POINTER(_Part)
            count = ctypes.c_ulong
            self._read.argtypes = (ctypes.c_int, part, count, part, count, count)
            self._read.restype = ctypes.c_ssize_t
        self._pids: list[int] = []

    def show(self) -> None:
        """Say where this rank's number is."""
        number = self._number
        self._words[self._rank, [_ADDRESS, _NUMBER]] = number.ctypes.data, number[0]

    def look(self) -> None:
        """Read those of all others, which have shown them, and say what came of it."""
        self._pids = self._words[:, _PID].tolist()
        self._words[self._rank, _VERDICT] = self._try_all()

    def why_not(self) -> str:
        """Why memory is not read where it is; empty if it is. Of all ranks the same, when all have looked."""
        for rank, verdict in enumerate(self._words[:, _VERDICT].tolist()):
            if verdict:
                return f"rank {rank} may not read the memory of the others: {os.strerror(verdict)}"
        return ""

    def forget(self) -> None:
        """Let go of the mapping."""
        self._words = np.zeros((0, self._words.shape[1]), np.int64)

    def read(self, rank: int, address: int, out: Bytes) -> None:
        """Fill ``out`` from ``address`` on of the memory of ``rank``. Raises ``RankLost``, ``JobError``."""
        fault = self._fault(rank, address, out)
        if fault:
            raise self.loss(rank, fault)

    @property
    def reads_by(self) -> int:
        """The address of the function that reads: ``process_vm_readv``."""
        assert self._read is not None
        return ctypes.cast(self._read, ctypes.c_void_p).value or 0

    @property
    def processes(self) -> NDArray[np.int64]:
        """Process ids by rank."""
        return np.array(self._pids, np.int64)

    def loss(self, rank: int, fault: int) -> JobError:
        """What to raise of a rank that could not be read."""
        name = f"rank {rank} (process {self._pids[rank]})"
        if fault == errno.ESRCH:
            return RankLost(f"{name} ended while rank {self._rank} read its array")
        return JobError(
            f"rank {self._rank} cannot read the array of {name} any more: {os.strerror(fault)}; is that "
            "memory given back, or has the process changed its user?"
        )

    def _try_all(self) -> int:
        shown = self._words[:, [_ADDRESS, _NUMBER]].tolist()
        found = np.zeros(1, np.int64)
        for rank, (address, number) in enumerate(shown):
            if rank != self._rank:
                fault = self._fault(rank, address, found.view(np.uint8))
                if fault or found[0] != number:  # another process has that number here
                    return fault or errno.ESRCH
        return 0

    def _fault(self, rank: int, address: int, out: Bytes) -> int:
        """What went wrong, as a number of :mod:`errno`, or 0."""
        if self._read is None:
            return errno.ENOSYS
        if not out.size:
            return 0
        here, there = _Part(address_of(out), out.size), _Part(address, out.size)
        count = self._read(self._pids[rank], ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if count == out.size:
            return 0
        return ctypes.get_errno() if count < 0 else errno.EFAULT


class Gathering:
    """Sums of the arrays of all ranks where they are, in one call of the compiled kernel for many blocks.

    Ranks are added in ``order``. ``places`` are the addresses of their arrays: ``source`` is that of
    ``rank``, ``out`` where its sums go, which may be the same. ``rows`` is memory for a block of each: uint8
    ``(ranks, block)``.
    """

    def __init__(
        self,
        neighbours: Neighbours,
        kernels: Compiled,
        rank: int,
        dtype: Dtype,
        order: Sequence[int],
        places: Sequence[int],
        arrays: tuple[Bytes, Bytes, Bytes],
    ) -> None:
        """``arrays``: ``source``, ``out`` and ``rows``."""
        source, out, rows = self._arrays = arrays
        self._neighbours = neighbours
        self._kernels = kernels
        self._tables = np.array(order, np.int64), neighbours.processes, np.array(places, np.uint64)
        self._words = np.array(
            [
                *(neighbours.reads_by, len(order), rank, SUMS[dtype]),
                *(int(table.ctypes.data) for table in self._tables),
                *(address_of(rows), rows.shape[1], address_of(source), address_of(out)),
            ],
            np.int64,
        )
        self._fault = np.zeros(1, np.int64)
        self._at = int(self._words.ctypes.data), int(self._fault.ctypes.data)

    def add(self, first: int, end: int) -> None:
        """Sum bytes ``first`` to ``end``. Raises as :meth:`Neighbours.read`."""
        words, fault = self._at
        rank = self._kernels.gather(words, first, end, fault)
        if rank >= 0:
            raise self._neighbours.loss(rank, int(self._fault[0]))
