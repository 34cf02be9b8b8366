"""A script of ranks of which one fails, and ends after all that end because of it."""

from __future__ import annotations

from typing import Final

FAILS_FIRST: Final = """
import atexit, inaproto, os, sys, time
from pathlib import Path
import numpy as np
there, in_place = Path(sys.argv[1]), len(sys.argv) > 2
comm = inaproto.connect_blocking()
(there / f"rank{comm.rank}").write_text(str(os.getpid()))
def outlives_the_others():
    pids = [(there / f"rank{rank}").read_text() for rank in range(comm.size) if rank != 1]
    while any(Path("/proc", pid).exists() for pid in pids):
        time.sleep(0.01)
comm.barrier().wait(timeout=600)
try:
    with comm:
        if comm.rank == 1:
            atexit.register(outlives_the_others)
            sys.exit(7)
        comm.all_reduce(np.ones(10, np.float32), in_place=in_place).wait(timeout=600)
except inaproto.RankLost:
    sys.exit(5)
"""
"""Its first word is a directory, which is there, for its processes' numbers. With a second one its all-reduce
is in place."""
