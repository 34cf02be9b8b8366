"""One rank of a shared-memory stage as a process: ``python -m tests.daemon.shm_rank PATH RANK LISTS STOPS``.

Lines of JSON on standard output: digests of the results of three all-reduces; how the first of those that
follow fails; what is left open after the stage is closed. With ``STOPS``, that rank stops itself (SIGSTOP) in
between, and the others do not wait for long.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from inaproto.client.stage import open_stage
from inaproto.client.stage.stage import SharedMemoryStage
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import JobError

ELEMENTS = 300_001
CALLS = 3
WAIT_S = 600.0


def tensor(rank: int, call: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng([rank, call]).standard_normal(ELEMENTS, np.float32)


def still_open() -> list[str]:
    """Descriptors, and mappings of a memfd."""
    found = [f"{each}: {os.readlink(each)}" for each in Path("/proc/self/fd").iterdir() if each.exists()]
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sorted(found) + [line for line in maps if "memfd" in line]


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def reduce_until_it_fails(stage: SharedMemoryStage) -> None:
    values = tensor(stage.rank, 0)
    out = np.empty_like(values)
    while True:
        try:
            stage.all_reduce(values, out)
        except JobError as error:
            say(error=type(error).__name__, message=str(error))
            return


def main(path: str, rank: str, lists: str, stops: str) -> None:
    before = still_open()
    with open_stage(
        path, int(rank), plan=ReductionPlan.from_lists(json.loads(lists)), timeout=WAIT_S
    ) as stage:
        results = [stage.all_reduce(tensor(stage.rank, call)) for call in range(CALLS)]
        say(digests=[hashlib.sha256(result.tobytes()).hexdigest() for result in results])
        if stops:
            stage.timeout = 0.3
        if stops == rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        reduce_until_it_fails(stage)
    say(left=[each for each in still_open() if each not in before])


if __name__ == "__main__":
    main(*sys.argv[1:])
