"""Adds up a number of each rank: ``inaproto run -n 2 -- python examples/hello.py``."""

import numpy as np

import inaproto

with inaproto.connect_blocking() as comm:  # who this rank is, the launcher says
    total = comm.all_reduce(np.array([comm.rank + 1.0])).wait()
    print(f"rank {comm.rank} of {comm.size}: {total[0]:g}")
