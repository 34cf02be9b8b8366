"""One rank of an inaproto job, whose host daemon is at a socket."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

import inaproto
from inaproto.errors import InaprotoError
from inaproto_hil.ranks.stepping import Floats, RankPlan, serve


class Daemons:
    """Private arrays, or one that is shared with the host daemon: ``Communicator.buffer``."""

    version = "inaproto"

    def __init__(self, plan: RankPlan, rank: int) -> None:
        self._timeout_s = plan.timeout_s
        self._is_buffer = bool(plan.extra["buffer"])
        self._communicator = inaproto.connect_blocking(
            plan.extra["job"],
            rank,
            size=plan.ranks,
            socket=plan.extra["sockets"][rank],
            timeout=plan.timeout_s,
        )

    def memory(self, elements: int) -> Floats:
        make = self._communicator.buffer if self._is_buffer else np.zeros
        self._array: Floats = make(elements, np.float32)
        return self._array

    def all_reduce(self, parts: Sequence[slice]) -> None:
        arrays = [self._array[part] for part in parts]
        works = [self._communicator.all_reduce(array, in_place=True) for array in arrays]
        for work in works:
            work.wait(self._timeout_s)

    def path(self) -> str:
        return self._communicator.statistics().recent[-1].path

    def close(self) -> None:
        self._communicator.close()


def main() -> None:
    rank, told = int(sys.argv[1]), RankPlan.decode(sys.argv[2])
    try:
        serve(told, rank, Daemons(told, rank))
    except InaprotoError as error:
        sys.exit(f"rank {rank}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
