"""A rank that stops where it uses the memory of others, as a process of its own.

``python -m tests.daemon.neighbour_rank PATH RANK LISTS STOPS``. ``STOPS`` are lines such as ``3 read 0``:
rank 3 stops itself (SIGSTOP), once, before it reads of rank 0. "write" is behind the look whether it may,
"half" in the middle of that write.

Lines of JSON on standard output: that the rank waits for one that may write to it; how its all-reduce
failed, or its sums; and, when it has read a line, how many elements of its array were written to since, all
of which it has set to 7, and whether the array is kept. With ``WAITS=no`` in the environment it does not
wait.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from json import loads
from typing import Any

import numpy as np

from inaproto.client.stage import handing_back, open_stage
from inaproto.client.stage.layout import Bytes
from inaproto.client.stage.neighbours import Neighbours, address_of_call
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import JobError
from tests.daemon.shm_rank import ELEMENTS, WAIT_S, say

Move = Callable[[int, Any, int, Any, int, int], int]


class Part(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


MOVE = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t,
    ctypes.c_int,
    *(ctypes.POINTER(Part), ctypes.c_ulong) * 2,
    ctypes.c_ulong,
    use_errno=True,
)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class Stops:
    """In place of the call that moves memory of ``pid``: stops before it is first made, or in its middle."""

    def __init__(self, call: Any, what: str, pids: list[int], whom: int) -> None:
        self._make = MOVE(address_of_call(call))
        self._what, self._pids, self._whom = what, pids, whom
        self.call = MOVE(self._moved)

    def _moved(self, pid: int, near: Any, _: int, far: Any, __: int, flags: int) -> int:
        if self._what and pid == self._pids[self._whom] and near[0].nbytes > 8:  # 8: a look whether it may
            what, self._what = self._what, ""
            if what == "half":
                half = [Part(part[0].base, part[0].nbytes // 2) for part in (near, far)]
                self._make(pid, half[0], 1, half[1], 1, flags)
            stop()
        return int(self._make(pid, near, 1, far, 1, flags))


def stop_in_the_kernel(what: str, whom: int) -> None:
    """The compiled one."""
    found = Neighbours.words
    made: list[Stops] = []

    def words(self: Neighbours) -> Any:
        calls, tables = found(self)
        which = what != "read"
        call = (self._read, self._write)[which]
        made.append(made[0] if made else Stops(call, what, self._pids, whom))
        calls[which] = address_of_call(made[0].call)
        return calls, tables

    Neighbours.words = words  # type: ignore[method-assign]


def stop_in_python(whom: int) -> None:
    """Where no kernel adds what is read."""
    found = Neighbours.read
    left = [whom]

    def read(self: Neighbours, rank: int, address: int, out: Bytes) -> None:
        if rank in left:
            left.remove(rank)
            stop()
        found(self, rank, address, out)

    Neighbours.read = read  # type: ignore[method-assign]


def tell_of_waits() -> None:
    sleep = time.sleep

    def told(_: object) -> None:
        time.sleep = sleep
        say(waits=True)

    time.sleep = told


def main(path: str, number: str, lists: str, stops: str) -> None:
    rank = int(number)
    for who, what, whom in map(str.split, stops.splitlines()):
        if int(who) == rank:
            stop_in_the_kernel(what, int(whom))
            if what == "read":
                stop_in_python(int(whom))
    handing_back.WRITERS_S = 0.0 if os.environ.get("WAITS") == "no" else WAIT_S  # type: ignore[misc]
    tell_of_waits()
    array = np.full(ELEMENTS, rank, np.int32)
    with open_stage(path, rank, plan=ReductionPlan.from_lists(loads(lists)), timeout=WAIT_S) as stage:
        try:
            stage.all_reduce(array, array)
        except JobError as error:
            array[:] = 7
            say(error=type(error).__name__, message=str(error), reads=stage.reads)
        else:
            say(sums=np.unique(array).tolist(), reads=stage.reads)
    sys.stdin.readline()
    say(since=int((array != 7).sum()), kept=len(handing_back._kept))


if __name__ == "__main__":
    main(*sys.argv[1:])
