"""A training process that reduces in place: ``python -m tests.daemon.in_place_rank JOB RANK SIZE SOCKET``.

Says ``step N`` after each all-reduce, and in the end which error ended them.
"""

from __future__ import annotations

import sys

import numpy as np

import inaproto

ELEMENTS = 3_000_000
"""Several chunks."""


def train(job: str, rank: int, size: int, socket: str) -> None:
    comm = inaproto.connect_blocking(job, rank, size=size, socket=socket)
    # Each second rank has a registered buffer, which the others map; the rest is read where it is.
    array = comm.buffer(ELEMENTS, np.int32) if rank % 2 else np.empty(ELEMENTS, np.int32)
    step = 0
    try:
        while True:
            array[:] = rank + step
            comm.all_reduce(array, in_place=True).wait()
            assert (array == size * step + size * (size - 1) // 2).all()
            print("step", step, flush=True)
            step += 1
    except inaproto.JobError as error:
        left = array.copy()
        assert (array == left).all(), "written to after the error"
        print("error", type(error).__name__, error, flush=True)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
