"""Broadcast, all-gather, reduce-scatter, reduce, barrier, averages and lists, by every path: numpy's bytes.

What is only moved keeps its bits: of -0.0, of NaNs with a payload, of any type of a fixed size. What is added
has the bits of an all-reduce, which have tests of their own. docs/protocol.md 11.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import trio

import inaproto
from inaproto.client import in_place, passage
from inaproto.client.arrays import divide
from inaproto.errors import JobError, LocalMisuse, OperationTimeout, TensorMismatch
from tests.clusters.jobs import PAIRS, close_all
from tests.clusters.memory import MemoryCluster, run_world
from tests.unit.test_collectives import MOVED, SUMMED, any_bits, numbers

Comms = Sequence[inaproto.Communicator]
PATHS = {
    "switch": ("auto", (0, 1, 2)),
    "two of each host": ("auto", PAIRS),
    "chain": ("chain", (0, 1, 2)),
    "overlay": ("overlay", (0, 1, 2)),
    "ring": ("ring", (0, 1, 2)),
    "one host": ("auto", (0, 0, 0)),
}
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (3, 2), (611,))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, runtime_dir: Path) -> None:
    """Arrays of a kilobyte come in parts and in chunks; ranks of one host meet at a place of this test."""
    monkeypatch.setattr(in_place, "CHUNK_BYTES_MAX", 4096)
    monkeypatch.setattr(passage, "BYTES_MIN", 300)
    monkeypatch.setattr(passage, "FIRST_BYTES", 200)
    monkeypatch.setattr("tempfile.tempdir", str(runtime_dir))


async def on_all(comms: Comms, call: Callable[[int, inaproto.Communicator], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        for rank, comm in enumerate(comms):
            nursery.start_soon(call, rank, comm)


def on_path(path: str, seed: str, check: Callable[[int, inaproto.Communicator], Awaitable[None]]) -> None:
    """``check`` as every rank of a job on ``path``, each of whose operations went by it."""
    asked, places = PATHS[path]

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", places, path=asked)
        await on_all(comms, check)
        went = {record.path for record in comms[0].statistics().recent}
        expected = {"auto": "switch" if len(set(places)) > 1 else "local"}.get(asked, asked)
        assert went == {expected}
        await close_all(comms)

    run_world(f"collectives/{path}/{seed}", scenario, hosts=len(set(places)))


@pytest.mark.parametrize("path", PATHS)
def test_what_is_moved_keeps_its_bits(path: str) -> None:
    async def one(rank: int, comm: inaproto.Communicator) -> None:
        draw = random.Random(path)
        for dtype in MOVED:
            shape, root = draw.choice(SHAPES), draw.randrange(comm.size)
            arrays = [any_bits(dtype, shape, (path, each)) for each in range(comm.size)]
            given, mine = arrays[rank].copy(), arrays[rank]
            found = await comm.broadcast(mine, root)
            assert found.tobytes() == arrays[root].tobytes()
            assert mine.tobytes() == given.tobytes(), "it was not called in place"
            assert await comm.broadcast(given, root=root, in_place=True) is given
            assert given.tobytes() == arrays[root].tobytes()
            rows = await comm.all_gather(mine)
            assert (rows.dtype, rows.shape) == (mine.dtype, (comm.size, *shape))
            assert rows.tobytes() == b"".join(array.tobytes() for array in arrays)

    on_path(path, "moved", one)


@pytest.mark.parametrize("path", PATHS)
def test_negative_zeros_and_nans_arrive_as_they_are(path: str) -> None:
    special = np.array([0x80000000, 0x7FC12345, 0xFFC00001, 0x7F800001, 1], np.uint32).view(np.float32)

    async def one(rank: int, comm: inaproto.Communicator) -> None:
        buffer = comm.buffer(5, np.float32)
        for root in range(comm.size):
            buffer[:] = special if rank == root else np.float32(rank)
            assert (await comm.broadcast(buffer, root)).tobytes() == special.tobytes()
            assert await comm.broadcast(buffer, root, in_place=True) is buffer
            assert buffer.tobytes() == special.tobytes()
        assert (await comm.all_gather(special)).tobytes() == special.tobytes() * comm.size

    on_path(path, "special", one)


@pytest.mark.parametrize("path", PATHS)
def test_what_is_added_has_the_bits_of_an_all_reduce(path: str) -> None:
    async def one(rank: int, comm: inaproto.Communicator) -> None:
        draw = random.Random(path)
        for dtype in SUMMED:
            shape, root = draw.choice(SHAPES), draw.randrange(comm.size)
            array = numbers(dtype, (comm.size, *shape), (path, rank))
            for op in ("sum", "max", "min", "avg"):
                if op == "avg" and array.dtype.kind == "i":
                    continue
                whole = await comm.all_reduce(array, "sum" if op == "avg" else op)
                if op == "avg":
                    divide(whole, comm.size)
                    assert (await comm.all_reduce(array, "avg")).tobytes() == whole.tobytes()
                if path == "ring" and array.dtype.kind != "i" and op in ("sum", "avg"):
                    continue  # each message begins at another host: other bits of float sums
                mine = await comm.reduce_scatter(array, op)
                assert (mine.shape, mine.tobytes()) == (shape, whole[rank].tobytes())
                reduced = await comm.reduce(array, op, root)
                assert (None if reduced is None else reduced.tobytes()) == (
                    whole.tobytes() if rank == root else None
                )
                places = array.copy()
                assert await comm.all_reduce(places, op, in_place=True) is places
                assert places.tobytes() == whole.tobytes()

    on_path(path, "added", one)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("in_place", [False, True])
def test_lists_are_fused(path: str, in_place: bool) -> None:
    kinds = ("i4", ml_dtypes.bfloat16, "i4", "f8", ml_dtypes.bfloat16)

    async def one(rank: int, comm: inaproto.Communicator) -> None:
        lists = [
            [np.full((3, 50 * n), each + n, kind) for n, kind in enumerate(kinds)]
            for each in range(comm.size)
        ]
        called = comm.operations_done
        results = await comm.all_reduce(lists[rank], in_place=in_place)
        assert comm.operations_done == called + 3, "an operation for each type"
        for number, (result, mine) in enumerate(zip(results, lists[rank], strict=True)):
            assert (result is mine) == in_place
            total = sum(each + number for each in range(comm.size))
            assert result.tobytes() == np.full((3, 50 * number), total, kinds[number]).tobytes()

    on_path(path, f"lists/{in_place}", one)


@pytest.mark.parametrize("path", PATHS)
def test_nobody_passes_a_barrier_before_all_have_come(path: str) -> None:
    came: list[int] = []

    async def one(rank: int, comm: inaproto.Communicator) -> None:
        await trio.sleep(rank)
        came.append(rank)
        assert await comm.barrier() is None
        assert sorted(came) == list(range(comm.size))

    on_path(path, "barrier", one)


# --- calls that differ


DIFFERENT: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "broadcast of float32 (6,) from rank 0; broadcast of float32 (6,) from rank 1": (
        lambda comm, array: comm.broadcast(array, 0),
        lambda comm, array: comm.broadcast(array, 1),
    ),
    "broadcast of float32 (6,) from rank 0; sum of int32 (6,)": (
        lambda comm, array: comm.broadcast(array, 0),
        lambda comm, array: comm.all_reduce(array.view(np.int32)),
    ),
    "sum of float32 (6,); avg of float32 (6,)": (
        lambda comm, array: comm.all_reduce(array),
        lambda comm, array: comm.all_reduce(array, "avg"),
    ),
    "all_gather of float32 (3,); broadcast of float32 (6,) from rank 0": (
        lambda comm, array: comm.all_gather(array[:3]),
        lambda comm, array: comm.broadcast(array, 0),
    ),
    "sum of a list of 1 float32: (6,); sum of float32 (6,)": (
        lambda comm, array: comm.all_reduce([array]),
        lambda comm, array: comm.all_reduce(array),
    ),
    "barrier; sum of int32 (1,)": (
        lambda comm, array: comm.barrier(),
        lambda comm, array: comm.all_reduce(np.zeros(1, np.int32)),
    ),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("calls", DIFFERENT)
def test_ranks_that_call_different_collectives_are_told(path: str, calls: str) -> None:
    """All ranks read what each of them has called, on every path (docs/protocol.md 12.6)."""
    first, others = DIFFERENT[calls]
    asked, places = PATHS[path]

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", places, path=asked)
        errors: list[JobError] = []

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            with pytest.raises(JobError) as caught:
                await (others if rank else first)(comm, np.ones(6, np.float32))
            errors.append(caught.value)

        await on_all(comms, one)
        told = [str(error) for error in errors if isinstance(error, TensorMismatch)]
        assert len(told) == len(places)
        for name in calls.split("; "):
            assert all(name in text for text in told), (name, told)

    run_world(f"collectives differ/{path}/{calls}", scenario, hosts=len(set(places)))


def test_ranks_of_one_host_that_call_different_collectives_in_place_are_told() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", (0, 0))

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            array = np.ones(6, np.int32)
            with pytest.raises(TensorMismatch, match="broadcast"):
                await (
                    comm.all_reduce(array, in_place=True) if rank else comm.broadcast(array, in_place=True)
                )

        await on_all(comms, one)

    run_world("collectives differ in place", scenario, hosts=1)


# --- groups


def test_groups_are_jobs_of_their_own() -> None:
    """Two groups at once, beside the job; ranks in another order; one rank in none. They keep the path."""

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", (0, 1, 0, 1, 2), path="chain", elastic=True)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            part = await comm.split([0, 1, 0, 1, None][rank], -rank)
            same = await comm.group([3, 0, 4])
            if part is None:
                assert rank == 4
            else:
                assert (part.rank, part.size) == ([1, 1, 0, 0][rank], 2)
                assert part.job.startswith("train.g0.")
                assert part.channel.who.wishes == comm.channel.who.wishes
                assert (await part.all_gather(rank)).tolist() == [[2, 0], [3, 1]][rank % 2]
                assert part.channel.who.key != comm.channel.who.key
            if same is not None:
                assert (await same.all_gather(rank)).tolist() == [3, 0, 4]
                await same.aclose()
            assert (await comm.all_reduce(1)).tolist() == 5
            if part is not None:
                await part.aclose()

        await on_all(comms, one)
        await close_all(comms)

    run_world("groups", scenario, hosts=3)


def test_a_group_on_parallel_rings() -> None:
    from tests.clusters.parallel import connect_machines

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await connect_machines(cluster, (0, 0, 1, 1), 2)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            part = await comm.split(rank % 2)
            assert part is not None
            assert (await part.all_reduce(np.full(500, rank, np.int32))).tolist() == [
                2 + 2 * (rank % 2)
            ] * 500
            await part.aclose()

        await on_all(comms, one)
        await close_all(comms)

    run_world("groups on rings", scenario, hosts=4)


CALLS: dict[str, Callable[..., inaproto.Work]] = {
    "all_reduce": lambda comm, **more: comm.all_reduce(np.ones(3, np.int64), **more),
    "broadcast": lambda comm, **more: comm.broadcast(np.ones(3), 1, **more),
    "all_gather": lambda comm, **more: comm.all_gather(7.5, **more),
    "reduce_scatter": lambda comm, **more: comm.reduce_scatter(np.ones((2, 3), np.int32), **more),
    "reduce": lambda comm, **more: comm.reduce(np.ones(3, np.int32), "max", 1, **more),
    "barrier": lambda comm, **more: comm.barrier(**more),
}


@pytest.mark.parametrize("places", [(0, 1), (0, 0)])
def test_each_call_has_a_deadline_of_its_own_and_the_operation_goes_on(places: tuple[int, ...]) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", places)
        for name, call in CALLS.items():
            with pytest.raises(LocalMisuse, match=f"^{name}: timeout is -1; it must be seconds"):
                call(comms[0], timeout=-1)
            work, asked, patient = call(comms[0], timeout=0.5), call(comms[0], timeout=0.5), call(comms[0])
            assert (asked.done, patient.done) == (False, False)
            with pytest.raises(OperationTimeout, match=r"within 0\.5 s"):
                await work
            assert asked.done, "its time is over, too"
            with pytest.raises(OperationTimeout, match=r"within 0\.5 s"):
                await asked
            assert [each.done for each in (work, asked, patient)] == [True, True, False]
            others = [call(comms[1], timeout=60) for _ in range(3)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(patient.wait)
                for other in others:
                    nursery.start_soon(other.wait)
            with pytest.raises(OperationTimeout, match=r"within 0\.5 s"):
                await work
        await close_all(comms)

    run_world(f"collectives/deadlines/{places}", scenario, hosts=len(set(places)))
