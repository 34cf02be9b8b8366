"""One rank of an MPI, started by its ``mpirun``, which says which rank it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from inaproto_hil.ranks.stepping import Floats, RankPlan, serve


class Mpi:
    """Arrays of numpy, in place."""

    version = MPI.Get_library_version().split(",")[0]

    def memory(self, elements: int) -> Floats:
        self._array: Floats = np.zeros(elements, np.float32)
        return self._array

    def all_reduce(self, parts: Sequence[slice]) -> None:
        world: Any = MPI.COMM_WORLD
        if len(parts) == 1:
            world.Allreduce(MPI.IN_PLACE, self._array[parts[0]])
            return
        MPI.Request.Waitall([world.Iallreduce(MPI.IN_PLACE, self._array[part]) for part in parts])

    def path(self) -> str:
        return ""

    def close(self) -> None:
        MPI.COMM_WORLD.Barrier()


if __name__ == "__main__":
    serve(RankPlan.decode(sys.argv[1]), MPI.COMM_WORLD.Get_rank(), Mpi())
