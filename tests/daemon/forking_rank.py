"""A training process that takes part in some all-reduces, then in none, perhaps with a child that stays.

``python -m tests.daemon.forking_rank JOB RANK SIZE SOCKET OPERATIONS IN_PLACE FORKS``: says ``ready`` and the
process id of its child, 0 if it has none, and then does nothing.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

import inaproto


def train(job: str, rank: int, size: int, socket: str, operations: int, in_place: bool, forks: bool) -> None:
    comm = inaproto.connect_blocking(job, rank, size=size, socket=socket)
    for step in range(operations):
        comm.all_reduce(np.full(100, rank + step, np.int64), in_place=in_place).wait()
    child = os.fork() if forks else 0
    if child or not forks:
        print("ready", child, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    train(
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        sys.argv[4],
        int(sys.argv[5]),
        *(s == "1" for s in sys.argv[6:]),
    )
