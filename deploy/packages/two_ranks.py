"""One of two ranks that add up, and compare with the sum that they know: RANK SOCKET."""

import sys

import numpy as np

import inaproto

ELEMENTS = 100_000

rank = int(sys.argv[1])
own = np.arange(ELEMENTS, dtype=np.float32) * (rank + 1)
with inaproto.connect_blocking(
    "package", rank=rank, size=2, key="of-the-test", socket=sys.argv[2], timeout=60
) as comm:
    total = comm.all_reduce(own).wait(timeout=60)
expected = np.arange(ELEMENTS, dtype=np.float32) * np.float32(3)
if not np.array_equal(total, expected):
    sys.exit(f"rank {rank}: the sum is wrong in {np.count_nonzero(total != expected)} elements")
print(f"{ELEMENTS} elements, the last is {total[-1]:.0f}")
