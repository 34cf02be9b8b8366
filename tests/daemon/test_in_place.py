"""All-reduces in place, added by the ranks of one host: the daemon's bytes, in the order of the calls."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

import inaproto
from inaproto.client import in_place, meeting_places
from inaproto.client.stage import exchange, handing_back
from inaproto.client.stage.access import MEMORY_VARIABLE
from inaproto.client.stage.gathering import Arrays
from inaproto.core import kernels
from inaproto.errors import ConfigError, JobError, LocalMisuse, OperationTimeout, RankLost, TensorMismatch
from tests.clusters.jobs import ALONE, PAIRS, close_all, daemon
from tests.clusters.memory import MemoryCluster, run_world
from tests.daemon.test_allreduce_end_to_end import draw, numpy_dtype

Comms = Sequence[inaproto.Communicator]
DTYPES = ["float32", "bfloat16", "float16", "float64", "int32", "int64"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch, runtime_dir: Path) -> None:
    """So few bytes that small arrays are several chunks; and a place to meet of this test's own."""
    monkeypatch.setattr(in_place, "CHUNK_BYTES_MAX", 4096)
    monkeypatch.setattr("tempfile.tempdir", str(runtime_dir))


async def on_all(comms: Comms, call: Callable[[int, inaproto.Communicator], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        for rank, comm in enumerate(comms):
            nursery.start_soon(call, rank, comm)


def inputs(dtype: str, count: int, ranks: int = 3) -> list[Any]:
    return [draw(numpy_dtype(dtype), (count,), (dtype, count, rank)) for rank in range(ranks)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_ranks_get_the_bytes_that_the_daemon_gives(dtype: str) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            for op, count in (("sum", 9001), ("max", 700), ("min", 4096), ("sum", 1), ("sum", 0)):
                mine = inputs(dtype, count)[rank]
                expected = (await comm.all_reduce(mine, op)).tobytes()
                result = await comm.all_reduce(mine, op, in_place=True)
                assert result is mine
                assert result.tobytes() == expected
            records = comm.statistics().recent
            assert [record.path for record in records] == ["local"] * 10
            assert comm.operations_done == 10

        await on_all(comms, one)
        await close_all(comms)

    run_world(f"in place/{dtype}", scenario, hosts=1)


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize("buffers", [(0, 1, 2), (1,)])
def test_registered_buffers_are_mapped_by_the_others_and_the_bytes_are_the_same(
    buffers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Sequence[Sequence[int]]] = []

    class Watched(Arrays):
        def __init__(self, *values: Any) -> None:
            super().__init__(*values)
            seen.append(self.seen)

    monkeypatch.setattr(exchange, "READ_BYTES_MIN", 1000)
    monkeypatch.setattr(exchange, "Arrays", Watched)

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            for dtype in DTYPES:
                mine = inputs(dtype, 9001)[rank]
                array = comm.buffer(mine.shape, mine.dtype) if rank in buffers else mine.copy()
                array[...] = mine
                expected = (await comm.all_reduce(mine)).tobytes()
                assert (await comm.all_reduce(array, in_place=True)).tobytes() == expected
                part = array[17:]  # of a buffer
                part[...] = mine[17:]
                assert (await comm.all_reduce(part, in_place=True)).tobytes() == expected[
                    17 * mine.itemsize :
                ]

        await on_all(comms, one)
        await close_all(comms)

    run_world(f"mapped/{buffers}", scenario, hosts=1)
    assert seen
    for places in seen:
        known = {rank for rank, of_rank in enumerate(places) if all(of_rank)}
        own = {rank for rank in range(3) if rank not in known}
        assert known <= set(buffers)
        assert len(own & set(buffers)) <= 1, "but for a rank's own"


def test_a_task_that_waits_for_another_operation_does_not_keep_ranks_from_adding() -> None:
    """Whoever waits first reads for all: what it does not wait for itself, the others have to."""

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            def call(array: Any) -> inaproto.Work:
                return comm.all_reduce(array, in_place=array is added)

            added = np.full(3000, rank, np.int64)
            if rank:
                await call(added)
                await call(np.full(10, rank, np.int64))
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(call(np.full(10, rank, np.int64)).wait)
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.start_soon(call(added).wait)
            assert (added == 3).all()

        with trio.fail_after(60):
            await on_all(comms, one)
        await close_all(comms)

    run_world("in place/beside another", scenario, hosts=1)


def test_who_waits_for_another_operation_adds_what_was_called_before_too() -> None:
    """The same calls in the same order, waited for in another one."""

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            added, copied = np.full(3000, rank, np.int64), np.full(10, rank, np.int64)
            if rank == 0:
                await comm.all_reduce(added, in_place=True)
                total = await comm.all_reduce(copied)
            else:
                first, second = comm.all_reduce(added, in_place=True), comm.all_reduce(copied)
                total = await second
                await first
            assert (added == 3).all()
            assert (total == 3).all()

        with trio.fail_after(60):
            await on_all(comms, one)
        await close_all(comms)

    run_world("in place/waited for late", scenario, hosts=1)


def test_a_rank_that_adds_is_told_of_those_that_do_not(caplog: pytest.LogCaptureFixture) -> None:
    """It may be a matter of time, or two scripts that differ: then all wait for each other."""

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            await comm.all_reduce(np.ones(5, np.int64), in_place=True)
            with pytest.raises(OperationTimeout):
                await comm.all_reduce(np.ones(3000, np.int64), in_place=rank == 1).wait(30)

        await on_all(comms, one)
        for comm in comms:
            comm.channel.close()

    run_world("in place/not all", scenario, hosts=1)
    (told,) = [record.message for record in caplog.records if "in_place alike" in record.message]
    assert told == (
        "rank 1 of job 'train' waits for the others in an all-reduce in place; the next of ranks 0, 2 is not "
        "in place, and waits for this rank: all ranks say in_place alike, and wait for what they call"
    )


def test_done_is_told_while_another_task_waits() -> None:
    """Who asks a work whether it is done takes the news from under those that wait, and tells them."""

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)
        ended: list[int] = []

        async def wait(rank: int, work: inaproto.Work) -> None:
            await work
            ended.append(rank)

        for in_place_too in (True, False):
            ended.clear()
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    works = [
                        comm.all_reduce(np.ones(3000, np.int64), in_place=in_place_too) for comm in comms
                    ]
                    nursery.start_soon(wait, 0, works[0])
                    await trio.testing.wait_all_tasks_blocked()
                    while not all([work.done for work in works]):  # noqa: ASYNC110, C419  each is asked, every time
                        await trio.sleep(0.001)
            assert ended == [0]
        await close_all(comms)

    run_world("in place/done", scenario, hosts=1)


def test_many_are_done_in_the_order_of_the_calls_whichever_is_waited_for_and_beside_others() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            arrays = [np.full(3000 + 7 * each, rank + each, np.int64) for each in range(6)]
            works = [comm.all_reduce(array, in_place=each != 3) for each, array in enumerate(arrays)]
            order = [5, 0, 3, 2, 1, 4] if rank else [3, 1, 5, 4, 0, 2]
            async with trio.open_nursery() as nursery:
                for each in order:
                    nursery.start_soon(works[each].wait)
            for each, work in enumerate(works):
                assert ((await work) == 3 * each + 3).all()
                assert work.done
            assert (arrays[3] == rank + 3).all(), "a private array that was not given up"

        await on_all(comms, one)
        await close_all(comms)

    run_world("in place/order", scenario, hosts=1)


@pytest.mark.parametrize(("places", "elastic"), [(PAIRS, False), (ALONE, True), ((0,), False)])
def test_elsewhere_the_daemons_add_and_the_result_is_in_place_as_well(
    places: tuple[int, ...], elastic: bool, runtime_dir: Path
) -> None:
    """Several hosts; jobs that go on without a lost rank; a rank that is alone."""

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", places, elastic=elastic)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            array = np.full(5000, rank, np.int32)
            assert (await comm.all_reduce(array, out=array, in_place=True)) is array
            assert (array == sum(range(len(places)))).all()

        await on_all(comms, one)
        await close_all(comms)

    run_world(f"in place/{places}/{elastic}", scenario, hosts=len(set(places)))
    assert not list(runtime_dir.iterdir()), "nobody met"


def test_misuse_is_refused_before_anything_is_called() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)
        array = np.ones(8, np.float32)
        with pytest.raises(LocalMisuse, match="give one of the two"):
            comms[0].all_reduce(array, out=np.ones(8, np.float32), in_place=True)
        array.flags.writeable = False
        with pytest.raises(LocalMisuse, match="read-only"):
            comms[0].all_reduce(array, in_place=True)
        await close_all(comms)

    run_world("in place/misuse", scenario, hosts=1)


def test_ranks_that_call_different_all_reduces_all_hear_so() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)
        errors: list[JobError] = []

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            with pytest.raises(JobError) as caught:
                await comm.all_reduce(np.ones(3000 + (rank == 1), np.float32), in_place=True)
            errors.append(caught.value)
            with pytest.raises(JobError):
                comm.all_reduce(np.ones(3, np.float32), in_place=True)

        await on_all(comms, one)
        assert any(isinstance(error, TensorMismatch) for error in errors)
        assert all("rank 1: sum of float32 (3001,)" in str(error) for error in errors)

    run_world("in place/mismatch", scenario, hosts=1)


def test_a_wait_in_vain_names_who_is_missing_and_the_all_reduce_goes_on() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)

        async def late(rank: int, comm: inaproto.Communicator) -> None:
            await comm.all_reduce(np.ones(5, np.int64), in_place=True)  # all have met
            work = comm.all_reduce(np.ones(3000, np.int64), in_place=True)
            if rank == 1:
                await trio.sleep(3)
            elif rank == 0:
                with pytest.raises(OperationTimeout, match=r"within 1 s; waits for rank 1$"):
                    await work.wait(1.0)
            assert ((await work) == 3).all()

        await on_all(comms, late)
        await close_all(comms)

    run_world("in place/late", scenario, hosts=1)


@pytest.mark.parametrize("how", ["leaves", "fails"])
def test_what_ends_a_rank_ends_the_waits_of_all(how: str) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)
        found: list[JobError] = []

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            await comm.all_reduce(np.ones(5, np.int64), in_place=True)
            work = comm.all_reduce(np.ones(3000, np.int64), in_place=True)
            if rank == 1:
                await trio.sleep(1)
                if how == "leaves":
                    await comm.aclose()
                else:
                    comm.channel.close()
                return
            with pytest.raises(RankLost) as caught:
                await work
            found.append(caught.value)

        await on_all(comms, one)
        assert len(found) == 2
        assert all("rank 1" in str(error) or "process" in str(error) for error in found)

    run_world(f"in place/{how}", scenario, hosts=1)


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_rank_that_leaves_before_the_ranks_have_met_is_named_at_once(leaver: int) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            if rank == leaver:
                await comm.all_reduce(np.ones(5, np.int64))
                await comm.aclose()
                return
            await comm.all_reduce(np.ones(5, np.int64))
            began = trio.current_time()
            with pytest.raises(RankLost, match=f"rank {leaver} of job 'train' has left"):
                await comm.all_reduce(np.ones(5, np.int64), in_place=True)
            assert trio.current_time() - began < in_place.WARN_S
            await comm.aclose()

        with trio.fail_after(60):
            await on_all(comms, one)

    run_world(f"in place/left before/{leaver}", scenario, hosts=1)


def test_ranks_that_have_no_directory_in_common_have_the_daemon_add(
    monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    """As in containers of which each has its own /tmp: what is seen of it is in status and statistics."""

    async def scenario(cluster: MemoryCluster) -> None:
        comms: list[inaproto.Communicator] = []

        async def connect(rank: int) -> None:
            comms.append(await cluster.connect("train", rank, size=3, host=0))

        async with trio.open_nursery() as nursery:
            for rank in range(3):
                directory = runtime_dir / str(rank // 2)
                directory.mkdir(exist_ok=True)
                monkeypatch.setattr(meeting_places, "directories", lambda _, it=directory: [it])
                nursery.start_soon(connect, rank)
                await trio.testing.wait_all_tasks_blocked()
        comms.sort(key=lambda comm: comm.rank)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            array = np.full(3000, rank, np.int64)
            assert await comm.all_reduce(array, in_place=True) is array
            assert (array == 3).all()
            apart = comm.statistics().apart
            assert "rank 2" in apart
            assert str(runtime_dir / "1") in apart

        with trio.fail_after(60):
            await on_all(comms, one)
        (ring,) = daemon(cluster, 0).status()["rings"]
        assert ring["adds_apart"] == comms[0].statistics().apart
        await close_all(comms)

    run_world("in place/nowhere in common", scenario, hosts=1)


@pytest.mark.usefixtures("compiled_kernels")
def test_who_hears_from_the_daemon_that_it_is_over_is_warned_of_one_that_may_write_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "READ_BYTES_MIN", 64)
    monkeypatch.setattr(handing_back, "WRITERS_S", 0.0)
    monkeypatch.setattr(handing_back, "_kept", kept := list[Any]())

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)
        array = np.ones(3000, np.int32)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            await comm.all_reduce(np.ones(5, np.int32), in_place=True)
            if rank == 1:
                return
            work = comm.all_reduce(array, in_place=True)
            if rank == 2:
                comm.channel.close()
                return
            stage = comm.in_place._stage
            assert stage is not None
            stage._layout.hands(np.frombuffer(stage._mapping, np.uint8))[1, 0] = 1 + rank
            with pytest.raises(RankLost, match=r"rank 1 \(.*\) was stopped while it wrote to this array"):
                await work

        await on_all(comms, one)
        assert len(kept) == 1
        assert np.may_share_memory(kept[0], array)
        await comms[1].aclose()

    run_world("in place/warned", scenario, hosts=1)


@pytest.mark.parametrize("memory", ["", "read", "copy", "no"])
def test_statistics_say_that_the_environment_lets_ranks_only_read_or_copy(
    monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, memory)

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            array = np.ones(300_001, np.int32)
            if memory == "no":
                with pytest.raises(ConfigError, match="is 'no'; it must be one of write, read, copy"):
                    comm.all_reduce(array, in_place=True)
                return
            assert ((await comm.all_reduce(array, in_place=True)) == 3).all()
            said = comm.statistics()
            ours = f"of the others: its {MEMORY_VARIABLE} forbids it"
            assert said.copies == (f"rank 0 may not read the memory {ours}" if memory == "copy" else "")
            if memory or kernels.active() is not None:
                assert said.reads == (
                    f"rank 0 may not write to the memory {ours}" if memory == "read" else ""
                )
            else:
                assert said.reads.endswith("its kernels are not compiled")

        await on_all(comms, one)
        await close_all(comms)

    run_world(f"in place/memory {memory}", scenario, hosts=1)


def test_a_wait_that_is_cancelled_is_taken_up_again() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", ALONE)

        async def one(rank: int, comm: inaproto.Communicator) -> None:
            work = comm.all_reduce(np.ones(9000, np.int64), in_place=True)
            if rank == 0:
                with trio.move_on_after(0.5):
                    await work
            elif rank == 1:
                await trio.sleep(1)
            assert ((await work) == 3).all()

        await on_all(comms, one)
        await close_all(comms)

    run_world("in place/cancelled", scenario, hosts=1)


def test_ranks_meet_in_a_directory_of_their_user_alone(runtime_dir: Path) -> None:
    found = meeting_places.private_directory(runtime_dir)
    assert (found.parent, found.stat().st_mode & 0o777) == (runtime_dir, 0o700)
    assert meeting_places.private_directory(runtime_dir) == found
    found.chmod(0o755)
    with pytest.raises(ConfigError, match="is not a directory of user"):
        meeting_places.private_directory(runtime_dir)
    found.rmdir()
    elsewhere = runtime_dir / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    os.symlink(elsewhere, found)
    with pytest.raises(ConfigError, match="is not a directory of user"):
        meeting_places.private_directory(runtime_dir)
