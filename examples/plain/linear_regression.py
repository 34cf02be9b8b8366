"""Fit a line by gradient descent, on as many processes as the launcher starts: numpy, and no word of a rank.

    inaproto run -n 4 -- python examples/plain/linear_regression.py

Each process has its own part of the data. A step adds the gradients of all; so all have the same weights,
to the last bit. ``mpirun -n 4 python ...`` and ``torchrun --nproc-per-node 4 ...`` start it as well, where a
host daemon runs (docs/launching.md).
"""

from __future__ import annotations

import argparse

import numpy as np

import inaproto

FEATURES = 1000
ROWS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit a line, on several processes.")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rate", type=float, default=0.1)
    options = parser.parse_args()
    with inaproto.connect_blocking() as comm:
        truth = np.random.default_rng(0).normal(size=FEATURES).astype(np.float32)
        own = np.random.default_rng(1 + comm.rank)
        inputs = own.normal(size=(ROWS, FEATURES)).astype(np.float32)
        targets = inputs @ truth
        weights = np.zeros(FEATURES, np.float32)
        for step in range(options.steps):
            error = inputs @ weights - targets
            gradient = comm.all_reduce(inputs.T @ error / ROWS).wait() / comm.size
            weights -= options.rate * gradient
            if step % 10 == 9 and comm.rank == 0:
                print(f"step {step + 1}: loss {float(error @ error) / ROWS:.4g}")
        # The largest and the smallest of all ranks are alike only if all are.
        apart = comm.all_reduce(weights, "max").wait() - comm.all_reduce(weights, "min").wait()
        verdict = "DIFFER" if apart.any() else "equal"
        print(f"rank {comm.rank} of {comm.size}: weights {verdict} on all ranks")


if __name__ == "__main__":
    main()
