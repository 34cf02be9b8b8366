"""Ranks that call different collectives: all of them are told, at once, who called what.

In place among the ranks of a host, through one host daemon, and through several by each path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.errors import JobError
from tests.clusters.jobs import ALONE, PAIRS
from tests.clusters.memory import MemoryCluster, run_world

Call = Callable[[inaproto.Communicator], Any]
SOON_S = 5.0
"""Of virtual time: what waits for a stall or a timeout takes longer."""

CALLS: dict[str, tuple[Call, Call, tuple[str, str]]] = {
    "sum, average": (
        lambda comm: comm.all_reduce(np.ones(5, np.float32)),
        lambda comm: comm.all_reduce(np.ones(5, np.float32), "avg"),
        ("sum of float32 (5,)", "avg of float32 (5,)"),
    ),
    "sum, maximum": (
        lambda comm: comm.all_reduce(np.ones(5, np.float32)),
        lambda comm: comm.all_reduce(np.ones(5, np.float32), "max"),
        ("sum of float32 (5,)", "max of float32 (5,)"),
    ),
    "full, empty": (
        lambda comm: comm.all_reduce(np.ones(5, np.float32)),
        lambda comm: comm.all_reduce(np.ones(0, np.float32)),
        ("sum of float32 (5,)", "sum of float32 (0,)"),
    ),
    "several messages, empty": (
        lambda comm: comm.all_reduce(np.ones(5000, np.float32)),
        lambda comm: comm.all_reduce(np.ones(0, np.float32)),
        ("sum of float32 (5000,)", "sum of float32 (0,)"),
    ),
    "several messages, one": (
        lambda comm: comm.all_reduce(np.ones(5000, np.float32)),
        lambda comm: comm.all_reduce(np.ones(5, np.float32)),
        ("sum of float32 (5000,)", "sum of float32 (5,)"),
    ),
    "as many bytes of another type": (
        lambda comm: comm.all_reduce(np.ones(5, np.float32)),
        lambda comm: comm.all_reduce(np.ones(5, np.int32)),
        ("sum of float32 (5,)", "sum of int32 (5,)"),
    ),
    "as many bytes of another shape": (
        lambda comm: comm.all_reduce(np.ones((2, 3), np.float32)),
        lambda comm: comm.all_reduce(np.ones((3, 2), np.float32)),
        ("sum of float32 (2, 3)", "sum of float32 (3, 2)"),
    ),
    "another root": (
        lambda comm: comm.broadcast(np.ones(5, np.float32), 0),
        lambda comm: comm.broadcast(np.ones(5, np.float32), 1),
        ("broadcast of float32 (5,) from rank 0", "broadcast of float32 (5,) from rank 1"),
    ),
    "another root to reduce to": (
        lambda comm: comm.reduce(np.ones(5, np.float32), root=0),
        lambda comm: comm.reduce(np.ones(5, np.float32), root=1),
        ("reduce (sum) of float32 (5,) to rank 0", "reduce (sum) of float32 (5,) to rank 1"),
    ),
    "a list, its sum in one array": (
        lambda comm: comm.all_reduce([np.ones(5, np.float32), np.ones(3, np.float32)]),
        lambda comm: comm.all_reduce(np.ones(8, np.float32)),
        ("sum of a list of 2 float32: (5,), (3,)", "sum of float32 (8,)"),
    ),
    "a list in another order": (
        lambda comm: comm.all_reduce([np.ones(5, np.float32), np.ones(3, np.float32)]),
        lambda comm: comm.all_reduce([np.ones(3, np.float32), np.ones(5, np.float32)]),
        ("list of 2 float32: (5,), (3,)", "list of 2 float32: (3,), (5,)"),
    ),
    "a barrier, a sum": (
        lambda comm: comm.barrier(),
        lambda comm: comm.all_reduce(np.ones(1, np.int32)),
        ("barrier", "sum of int32 (1,)"),
    ),
    "a gathering, a broadcast": (
        lambda comm: comm.all_gather(np.ones(4, np.float32)),
        lambda comm: comm.broadcast(np.ones((comm.size, 4), np.float32)),
        ("all_gather of float32 (4,)", "broadcast of float32"),
    ),
    "other orders": (
        lambda comm: two(comm, 3, 4),
        lambda comm: two(comm, 4, 3),
        ("sum of float32 (3,)", "sum of float32 (4,)"),
    ),
    "a group, a split": (
        lambda comm: comm.group(range(comm.size)),
        lambda comm: comm.split(0),
        ("group of", "split of"),
    ),
}
IN_PLACE: dict[str, tuple[Call, Call, tuple[str, str]]] = {
    "sum, average": (
        lambda comm: comm.all_reduce(np.ones(5, np.float32), in_place=True),
        lambda comm: comm.all_reduce(np.ones(5, np.float32), "avg", in_place=True),
        ("sum of float32 (5,)", "avg of float32 (5,)"),
    ),
    "sum, maximum": (
        lambda comm: comm.all_reduce(np.ones(5, np.float32), in_place=True),
        lambda comm: comm.all_reduce(np.ones(5, np.float32), "max", in_place=True),
        ("sum of float32 (5,)", "max of float32 (5,)"),
    ),
    "full, empty": (
        lambda comm: comm.all_reduce(np.ones(5, np.float32), in_place=True),
        lambda comm: comm.all_reduce(np.ones(0, np.float32), in_place=True),
        ("sum of float32 (5,)", "sum of float32 (0,)"),
    ),
    "as many bytes of another type": (
        lambda comm: comm.all_reduce(np.ones(5, np.float32), in_place=True),
        lambda comm: comm.all_reduce(np.ones(5, np.int32), in_place=True),
        ("sum of float32 (5,)", "sum of int32 (5,)"),
    ),
    "as many bytes of another shape": (
        lambda comm: comm.all_reduce(np.ones((2, 3), np.float32), in_place=True),
        lambda comm: comm.all_reduce(np.ones((3, 2), np.float32), in_place=True),
        ("sum of float32 (2, 3)", "sum of float32 (3, 2)"),
    ),
    "another root": (
        lambda comm: comm.broadcast(np.ones(5, np.float32), 0, in_place=True),
        lambda comm: comm.broadcast(np.ones(5, np.float32), 1, in_place=True),
        ("broadcast of float32 (5,) from rank 0", "broadcast of float32 (5,) from rank 1"),
    ),
    "a list, another": (
        lambda comm: comm.all_reduce([np.ones(5, np.float32), np.ones(3, np.float32)], in_place=True),
        lambda comm: comm.all_reduce([np.ones(4, np.float32), np.ones(4, np.float32)], in_place=True),
        ("sum of a list of 2 float32: (5,), (3,)", "sum of a list of 2 float32: (4,), (4,)"),
    ),
}


async def two(comm: inaproto.Communicator, *lengths: int) -> None:
    for work in [comm.all_reduce(np.ones(length, np.float32)) for length in lengths]:
        await work


@pytest.fixture(autouse=True)
def place_of_its_own(monkeypatch: pytest.MonkeyPatch, runtime_dir: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(runtime_dir))


def differ(
    name: str, places: tuple[int, ...], most: Call, odd: Call, words: tuple[str, str], path: str = "auto"
) -> None:
    """Rank 1 calls what the others do not."""
    found: dict[int, str] = {}

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", places, path=path)
        await comms_do(comms, lambda comm: comm.all_reduce(np.ones(3, np.float32)))
        began = trio.current_time()

        async def one(comm: inaproto.Communicator) -> None:
            with pytest.raises(JobError) as caught:
                await (odd if comm.rank == 1 else most)(comm)
            found[comm.rank] = f"{type(caught.value).__name__}: {caught.value}"

        await comms_do(comms, one)
        assert trio.current_time() - began < SOON_S

    run_world(f"differ/{name}/{places}/{path}", scenario, hosts=max(places) + 1)
    assert sorted(found) == list(range(len(places)))
    for told in found.values():
        assert "TensorMismatch: " in told, told
        assert words[0] in told, told
        assert words[1] in told, told
        assert "rank 1 " in told or "rank 1:" in told, told


async def comms_do(comms: list[inaproto.Communicator], call: Call) -> None:
    async def one(comm: inaproto.Communicator) -> None:
        await call(comm)

    with trio.fail_after(1000):
        async with trio.open_nursery() as nursery:
            for comm in comms:
                nursery.start_soon(one, comm)


@pytest.mark.parametrize("places", [ALONE, PAIRS, (0, 1, 2)], ids=["one host", "two of two", "three"])
@pytest.mark.parametrize("name", CALLS)
def test_all_ranks_are_told_who_called_what(name: str, places: tuple[int, ...]) -> None:
    differ(name, places, *CALLS[name])


@pytest.mark.parametrize("path", ["chain", "overlay", "ring", "shared"])
@pytest.mark.parametrize("name", CALLS)
def test_by_each_path_of_the_hosts(name: str, path: str) -> None:
    differ(name, PAIRS, *CALLS[name], path=path)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_among_the_ranks_of_a_host(name: str) -> None:
    differ(f"in place/{name}", ALONE, *IN_PLACE[name])
