"""A training process that goes on without ranks that are lost: a step is one all-reduce of known numbers.

Arguments: rank, size, steps, host socket. Says ``step N`` while it goes, and in the end what it has come to:
its last communicator, from which step on it had how many ranks, and its weights.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from numpy.typing import NDArray

import inaproto

ELEMENTS = 3000


def gradient(step: int, rank: int) -> NDArray[np.int64]:
    return np.arange(ELEMENTS, dtype=np.int64) * (step + 1) + rank * step


def train(rank: int, size: int, steps: int, socket: str) -> None:
    comm = inaproto.connect_blocking("train", rank, size=size, socket=socket, elastic=True)
    weights = np.zeros(ELEMENTS, np.int64)
    kept = {0: weights}
    began = step = 0
    history = [(0, size)]
    while step < steps:
        try:
            weights = weights + comm.all_reduce(gradient(step, comm.rank)).wait()
        except inaproto.RankLost as lost:
            print("lost", lost.operations_done, flush=True)
            comm = comm.shrink()
            step = began = began + comm.agreed_operations
            weights = kept[step]
            history.append((step, comm.size))
            continue
        step += 1
        kept = {step - 1: kept[step - 1], step: weights}
        print("step", step, flush=True)
    print("end", json.dumps([comm.job, comm.rank, history, weights.tolist()]), flush=True)
    comm.close()


if __name__ == "__main__":
    train(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
