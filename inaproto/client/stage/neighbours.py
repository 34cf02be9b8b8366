"""The memory of the other ranks' processes, read and written where it is (CMA, cross memory attach).

What a rank reads from its neighbour's own array need not be copied into shared memory first, nor what it has
for it (process_vm_readv, process_vm_writev). The kernel allows it between processes of one user, unless Yama
forbids it (``kernel.yama.ptrace_scope`` above 0) or a container's filter does. So ranks try when they meet:
each shows where in its memory a number lies, and which; all others read it. Where one of them cannot, nobody
reads, and the reason is said.

What was read from a stranger, whose process has the number of one that ended, is lost with the call: the rank
that has ended does not come to the next barrier. What was written would stay. So ranks write to each other
only where all have the compiled kernel, which looks before each block whether the number that was shown is
still where it was: a stranger has another one, 64 bits at random. A rank that leaves a call before its end
takes its number back, and returns when nobody is about to write to it (:meth:`Neighbours.withdraw`).

Between look and write are two system calls of one thread and nothing else. What is left is a rank that is
stopped just there, while the other one ends, is reaped, and its process id is given anew, to a process of
the same user that has memory at the same address.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inaproto.client.stage.access import IS_BOUND, NO_KERNELS, rank_memory, why_rank_may_not
from inaproto.client.stage.layout import Bytes, Words
from inaproto.client.stage.views import Views
from inaproto.core.kernels import Compiled, active
from inaproto.core.kernels.compiled import address_of
from inaproto.core.plan.reduce_to_all import SUMS, fused
from inaproto.errors import JobError, RankLost
from inaproto.wire.ina_header import Dtype, Op

_PID: Final = 4
_ADDRESS: Final = 5
_NUMBER: Final = 6
_VERDICT: Final = 7
"""0: all others were read; else why not, as a number of :mod:`errno` or :mod:`access`."""

_WRITING: Final = 0
"""1 + whom the rank may be about to write to, or 0: a word of :meth:`Layout.hands`, as is the next."""
_SUMS: Final = 1
"""A bit for each type of elements whose sums the rank can write to all others; see ``SUMS``."""
_WHY: Final = 2
"""Why it can write none of them, as ``_VERDICT``."""


class _Part(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class Neighbours:
    """The processes of all ranks, for rank ``rank``.

    ``words`` are the control words of all, ``hands`` those of :meth:`Layout.hands`.
    """

    def __init__(self, rank: int, words: Words, hands: Words) -> None:
        self._rank = rank
        self._words = words
        self._hands = hands
        self._kernels = active()
        self._number: NDArray[np.int64] = np.frombuffer(os.urandom(8) + bytes(8), np.int64).copy()
        """And a word that others write, to see whether they may."""
        library = ctypes.CDLL(None, use_errno=True)
        self._read, self._write = (
            getattr(library, name, None) for name in ("process_vm_readv", "process_vm_writev")
        )
        for call in (self._read, self._write):
            if call is not None:
                part = ctypes.POINTER(_Part)
                count = ctypes.c_ulong
                call.argtypes = (ctypes.c_int, part, count, part, count, count)
                call.restype = ctypes.c_ssize_t
        self._pids: list[int] = []
        self._shown = np.zeros((0, 2), np.int64)
        self._sums = 0
        self._access = rank_memory(os.environ)
        self.views = Views(rank, len(words))
        self.lost: int | None = None
        """The rank whose memory could not be used, once there is one."""

    def show(self) -> None:
        """Say where this rank's number is."""
        number = self._number
        self._words[self._rank, [_ADDRESS, _NUMBER]] = number.ctypes.data, number[0]

    def look(self) -> None:
        """Read those of all others, which have shown them, and say what came of it."""
        self._pids = self._words[:, _PID].tolist()
        self._shown = self._words[:, [_ADDRESS, _NUMBER]].copy()
        self._words[self._rank, _VERDICT] = self._try_all()
        why = self._try_to_write()
        self._hands[self._rank, [_WHY, _SUMS]] = why, 0 if why else _sums()

    def why_not(self) -> str:
        """Why memory is not read where it is; empty if it is. Of all ranks the same, when all have looked."""
        for rank, verdict in enumerate(self._words[:, _VERDICT].tolist()):
            if verdict:
                return why_rank_may_not(rank, "read", verdict)
        return ""

    def why_only_read(self) -> str:
        """Why sums are read of others, and not written to them; empty if they are. As :meth:`why_not`."""
        for rank, why in enumerate(self._hands[:, _WHY].tolist()):
            if why:
                return why_rank_may_not(rank, "write to", why)
        return ""

    def agree(self) -> None:
        """What all can write, when all have looked."""
        self._sums = int(np.bitwise_and.reduce(self._hands[:, _SUMS]))

    def gives(self, dtype: Dtype, op: Op) -> Compiled | None:
        """The kernels, if the ranks write sums to each other. Of all ranks the same, when all agree."""
        if op is not Op.SUM or not self._sums >> SUMS.get(dtype, 0) & 1:
            return None
        return self._kernels

    def forget(self) -> None:
        """Let go of the mapping."""
        self._words = np.zeros((0, self._words.shape[1]), np.int64)
        self._hands = np.zeros((0, self._hands.shape[1]), np.int64)

    def withdraw(self) -> None:
        """Nobody may write to this rank any more. One that is about to says so (:func:`writers`)."""
        self._number[0] = 0
        if self._kernels is not None:
            self._kernels.fence()

    def read(self, rank: int, address: int, out: Bytes) -> None:
        """Fill ``out`` from ``address`` on of the memory of ``rank``. Raises ``RankLost``, ``JobError``."""
        fault = self._fault(rank, address, out)
        if fault:
            raise self.loss(rank, fault)

    def seen(self, hands: Words, places: Sequence[Sequence[int]], nbytes: int) -> list[list[int]]:
        """Where the arrays of ``nbytes`` at ``places`` of all ranks are in this process; 0: nowhere."""
        return [
            [0 if rank == self._rank else self.views.at(hands, rank, pid, place, nbytes) for place in of_rank]
            for rank, (pid, of_rank) in enumerate(zip(self._pids, places, strict=True))
        ]

    def words(self) -> tuple[list[int], list[NDArray[np.int64]]]:
        """For the kernel: the functions that read and write, and tables by rank: process ids, addresses of
        numbers, and numbers."""
        calls = [0 if call is None else address_of_call(call) for call in (self._read, self._write)]
        return calls, [np.array(self._pids, np.int64), self._shown[:, 0].copy(), self._shown[:, 1].copy()]

    def loss(self, rank: int, fault: int) -> JobError:
        """What to raise of a rank that could not be read or written to, if no more is known of it."""
        self.lost = rank
        name = f"rank {rank} (process {self._pids[rank]})"
        if fault == errno.ESRCH:
            return RankLost(f"{name} ended while rank {self._rank} read its array")
        if fault == errno.ECANCELED:
            return RankLost(f"{name} gave up while rank {self._rank} wrote to its array")
        return JobError(
            f"rank {self._rank} cannot use the array of {name} any more: {os.strerror(fault)}; is that "
            "memory given back, or has the process changed its user?"
        )

    def _try_all(self) -> int:
        if self._access == "copy":
            return IS_BOUND
        found = np.zeros(1, np.int64)
        for rank, (address, number) in enumerate(self._shown.tolist()):
            if rank != self._rank:
                fault = self._fault(rank, address, found.view(np.uint8))
                if fault or found[0] != number:  # another process has that number here
                    return fault or errno.ESRCH
        return 0

    def _try_to_write(self) -> int:
        """Why this rank may not write to all others; 0 if it may."""
        if self._access != "write" or self._kernels is None:
            return NO_KERNELS if self._access == "write" else IS_BOUND
        if self._write is None or self._words[self._rank, _VERDICT]:
            return int(self._words[self._rank, _VERDICT]) or errno.ENOSYS
        for rank, (address, _) in enumerate(self._shown.tolist()):
            here, there = _Part(address_of(self._number.view(np.uint8)), 8), _Part(address + 8, 8)
            if rank != self._rank and self._write(self._pids[rank], here, 1, there, 1, 0) != 8:
                return ctypes.get_errno()
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


def _sums() -> int:
    """A bit for each type whose sums the kernels can write."""
    return sum(1 << number for dtype, number in SUMS.items() if fused(dtype, Op.SUM) is not None)


def address_of_call(call: Any) -> int:
    """Where a function of a library is."""
    return ctypes.cast(call, ctypes.c_void_p).value or 0


def writers(hands: Words, rank: int) -> list[int]:
    """Who may be about to write to ``rank``."""
    return [other for other, whom in enumerate(hands[:, _WRITING].tolist()) if whom == 1 + rank]
