"""Every collective with real daemons, by every path, against numpy (docs/protocol.md 11).

What is only moved is any bits, -0.0 and NaNs among them. What is added are small integers, as numbers of each
type: their sums are exact in any order, so numpy's are the only right ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest

import inaproto
from inaproto.wire.control_messages import PathAsked
from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster
from tests.daemon.test_threads import DEADLINE_S, connect_all, on_threads
from tests.unit.test_collectives import MOVED, SUMMED, any_bits, numbers

PATHS: dict[str, tuple[PathAsked, tuple[int, ...]]] = {
    "switch": ("auto", (0, 1, 2)),
    "switch, two of a host": ("auto", (0, 0, 1)),
    "chain": ("chain", (0, 1, 2)),
    "overlay": ("overlay", (0, 1, 2)),
    "ring": ("ring", (0, 1, 2)),
    "local": ("auto", (0, 0, 0)),
}
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (3, 2), (70_001,))
"""Nothing, less than a packet, several messages."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(ClusterConfig(hosts=3)) as running:
        yield running


def moves(comm: inaproto.BlockingCommunicator, path: str, *, in_place: bool) -> None:
    rank, size = comm.rank, comm.size
    for number, dtype in enumerate(MOVED):
        shape, root = SHAPES[number % len(SHAPES)], number % size
        arrays = [any_bits(dtype, shape, (path, each)) for each in range(size)]
        mine = arrays[rank].copy()
        works = comm.broadcast(mine, root, in_place=in_place), comm.all_gather(arrays[rank])
        sent, rows = (work.wait(DEADLINE_S) for work in works)
        assert sent.tobytes() == arrays[root].tobytes()
        assert mine.tobytes() == arrays[root if in_place else rank].tobytes()
        assert (rows.dtype, rows.shape) == (mine.dtype, (size, *shape))
        assert rows.tobytes() == b"".join(array.tobytes() for array in arrays)


def adds(comm: inaproto.BlockingCommunicator, path: str, *, in_place: bool) -> None:
    rank, size = comm.rank, comm.size
    for number, dtype in enumerate(SUMMED):
        shape, root = SHAPES[2 + number % 2], number % size
        arrays = [numbers(dtype, (size, *shape), (path, each)) for each in range(size)]
        exact = np.array([array.astype(np.float64) for array in arrays])
        kind = arrays[0].dtype
        expected = {"sum": exact.sum(0), "max": exact.max(0), "min": exact.min(0)}
        if kind.kind != "i":
            wide = np.float64 if kind == np.float64 else np.float32
            expected["avg"] = expected["sum"].astype(wide) / wide(size)
        for op, values in expected.items():
            right, mine = values.astype(kind), arrays[rank].copy()
            works = (
                comm.all_reduce(mine, op, in_place=in_place),
                comm.reduce_scatter(arrays[rank], op),
                comm.reduce(arrays[rank], op, root),
            )
            whole, row, reduced = (work.wait(DEADLINE_S) for work in works)
            assert whole.dtype == row.dtype == kind
            assert (whole is mine) == in_place
            # Compared as values: sums of 0 and -0 have the sign that the order of the ranks gives them.
            assert np.array_equal(whole, right)
            assert np.array_equal(row, right[rank])
            assert np.array_equal(reduced, right) if rank == root else reduced is None


def stops(comm: inaproto.BlockingCommunicator, came: list[int]) -> None:
    """Nobody passes a barrier before all have come to it."""
    for turn in range(1, 6):
        came[comm.rank] = turn
        assert comm.barrier().wait(DEADLINE_S) is None
        assert min(came) >= turn


@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in place"])
@pytest.mark.parametrize("path", PATHS)
def test_collectives_are_numpys(cluster: LocalCluster, path: str, in_place: bool) -> None:
    asked, places = PATHS[path]
    job = re.sub(r"\W+", "-", f"{path} {in_place}")
    with ExitStack() as stack:
        comms = connect_all(cluster, stack, job, places, asked)
        came = [0] * len(comms)
        on_threads(*(partial(moves, comm, path, in_place=in_place) for comm in comms))
        on_threads(*(partial(adds, comm, path, in_place=in_place) for comm in comms))
        on_threads(*(partial(stops, comm, came) for comm in comms))
        went = {record.path for record in comms[0].statistics().recent}
        way = "local" if path == "local" else "switch" if asked == "auto" else asked
        assert went == {way}, "by another path than was meant"
