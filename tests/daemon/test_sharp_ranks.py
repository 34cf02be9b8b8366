"""SHARP's adapter over the double of its library: places, operations, what is refused, what is left."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio

from inaproto.core.collective.events import Phase
from inaproto.errors import ConfigError, FabricError, LocalMisuse, Unsupported
from inaproto.units import MS
from inaproto.wire.ina_header import Dtype, Op
from inaproto_adapters.sharp import open_sharp
from inaproto_adapters.sharp.callbacks import announced
from inaproto_adapters.sharp.memory import page_aligned
from tests.daemon.sharp_ranks import ONE_TRY, RETRYING, Ranks, on_all
from tests.sharp_double import NEVER, NOTHING, Double


async def test_ranks_attach_sum_and_leave_nothing(sharp_double: Double) -> None:
    ranks = Ranks(sharp_double, 4)
    assert len(await ranks.attach()) == 4
    for _ in range(3):
        for result in await ranks.sum():
            assert np.array_equal(result, np.full(64, ranks.expected(), np.float32))
    await ranks.release()
    assert sharp_double.left() == NOTHING


async def test_operations_of_a_rank_are_under_way_together(sharp_double: Double) -> None:
    ranks = Ranks(sharp_double, 2)
    places = await ranks.attach()
    memory = [page_aligned(8 * 4096) for _ in places]
    keys = [await place.register(each) for place, each in zip(places, memory, strict=True)]
    for rank, each in enumerate(memory):
        np.frombuffer(each, np.int64)[:] = rank + 1

    async def many(rank: int) -> None:
        for _ in range(6):  # in one buffer, in order: 3, then twice as much each time
            await places[rank].all_reduce(keys[rank], keys[rank], 64, Dtype.I64, Op.SUM)

    assert await on_all(many, 2) == [None, None]
    assert {int(np.frombuffer(each, np.int64)[0]) for each in memory} == {3 * 2**5}
    await ranks.release()


async def test_memory_is_registered_once_and_never_overlaps(sharp_double: Double) -> None:
    ranks = Ranks(sharp_double, 1)
    (place,) = await ranks.attach()
    memory = page_aligned(8192)
    key = await place.register(memory)
    assert await place.register(memory) == key
    assert sharp_double.count("regions") == 1
    with pytest.raises(LocalMisuse, match="overlaps"):
        await place.register(memory[4096:])
    await place.unregister(key)
    assert sharp_double.count("regions") == 1
    await place.unregister(key)
    assert sharp_double.count("regions") == 0
    with pytest.raises(LocalMisuse):
        await place.all_reduce(key, key, 64, Dtype.F32, Op.SUM)
    await ranks.release()


async def test_what_cannot_be_meant_is_refused_and_nothing_is_changed(sharp_double: Double) -> None:
    ranks = Ranks(sharp_double, 1)
    (place,) = await ranks.attach()
    key = await place.register(page_aligned(4096))
    for nbytes, dtype in ((0, Dtype.F32), (6, Dtype.F32), (8192, Dtype.F32), (64, Dtype.BF16)):
        with pytest.raises(LocalMisuse):
            await place.all_reduce(key, key, nbytes, dtype, Op.SUM)
    await place.all_reduce(key, key, 64, Dtype.F32, Op.SUM)
    await ranks.release()


async def test_a_busy_tree_is_waited_for(sharp_double: Double) -> None:
    sharp_double.inject("init late", -11, rank=1, nth=1)
    sharp_double.inject("comm_init", -4, rank=0, nth=1)
    ranks = Ranks(sharp_double, 3, session=RETRYING)
    places = await ranks.attach()
    assert [its.counters["attempts"] for its in places] == [3, 3, 3]
    assert (await ranks.sum())[2][0] == 6
    await ranks.release()
    assert sharp_double.left() == NOTHING


async def test_no_place_where_the_switch_has_no_room_and_one_when_it_has(sharp_double: Double) -> None:
    """MINA section III-C: two jobs that share a switch conflict where that has one active tree."""
    sharp_double.place("a:1", [1, 5])
    sharp_double.place("b:1", [2, 5])
    first, second = Ranks(sharp_double, 2, devices="a:1"), Ranks(sharp_double, 2, devices="b:1")
    assert len(await first.attach()) == 2
    assert await second.attach() == []
    assert all("ENO_RESOURCE (-20)" in error for error in second.errors)
    await first.release()
    third = Ranks(sharp_double, 2, devices="b:1")
    assert len(await third.attach()) == 2
    await third.release()


async def test_two_jobs_swap_their_trees(sharp_double: Double) -> None:
    """MINA section IV-A: release comes strictly before acquire, so a swap does not deadlock."""
    sharp_double.place("a:1", [1])
    sharp_double.place("b:1", [2])
    jobs = [Ranks(sharp_double, 2, devices=name) for name in ("a:1", "b:1")]
    for job in jobs:
        assert len(await job.attach()) == 2
    sharp_double.place("a:1", [2])
    sharp_double.place("b:1", [1])
    moved = [Ranks(sharp_double, 2, devices=name, session=RETRYING) for name in ("a:1", "b:1")]
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:

            async def move(old: Ranks, new: Ranks) -> None:
                await old.release()
                await new.attach()

            for old, new in zip(jobs, moved, strict=True):
                nursery.start_soon(move, old, new)
    for job in moved:
        assert [result[0] for result in await job.sum()] == [3, 3]
        await job.release()
    assert sharp_double.left() == NOTHING


async def test_a_locked_tree_refuses_one_operation_on_all_ranks_alone(
    sharp_double: Double,
) -> None:
    sharp_double.set(lock_mode=1, foreign_lock=9)
    sharp_double.place("a:1", [9])
    ranks = Ranks(sharp_double, 3, devices="a:1")
    places = await ranks.attach()
    words = 1 << 13  # the streaming tree takes what is above 16 KiB
    for error in await ranks.sum(words):
        assert isinstance(error, FabricError)
        assert error.retryable
        assert "ELOCK_FAILED (-18)" in str(error)
    sharp_double.set(foreign_lock=0)
    assert [result[0] for result in await ranks.sum(words)] == [6, 6, 6]
    assert [its.counters["redone"] for its in places] == [1, 1, 1]
    await ranks.release()
    assert sharp_double.left() == NOTHING


async def test_an_operation_that_never_ends_is_the_end_of_the_context(sharp_double: Double) -> None:
    sharp_double.inject("complete", NEVER, rank=1)
    ranks = Ranks(sharp_double, 2, operation_ns=200 * MS)
    places = await ranks.attach()
    first, second = await ranks.sum()
    assert first[0] == 3  # it does not know that the other has nothing: ranks vote on operations above
    assert isinstance(second, FabricError)
    assert not second.retryable
    assert places[1].view().phase is Phase.DEAD
    with pytest.raises(FabricError, match="has not ended"):
        await places[1].all_reduce(1, 1, 64, Dtype.F32, Op.SUM)
    await ranks.release()
    assert sharp_double.count("regions") == 0


async def test_a_hundred_attachments_leave_nothing(sharp_double: Double, tmp_path: Path) -> None:
    def held() -> tuple[int, int, int, int, int]:
        gc.collect()
        own = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
        return (
            len(os.listdir("/proc/self/fd")),
            threading.active_count(),
            announced(),
            len(own),
            len(list(tmp_path.iterdir())),
        )

    async def cycle() -> None:
        ranks = Ranks(sharp_double, 2)
        assert len(await ranks.attach()) == 2
        assert [result[0] for result in await ranks.sum()] == [3, 3]
        await ranks.release()

    await cycle()  # what is made once for the process is made
    before = held()
    for _ in range(100):
        await cycle()
    assert held() == before
    assert sharp_double.left() == NOTHING


async def test_a_switch_that_lacks_what_is_offered_is_said_at_once(sharp_double: Double) -> None:
    sharp_double.set(preset=0)
    sharp = open_sharp(library=str(sharp_double.path), bfloat16=True)
    ranks = Ranks(sharp_double, 1)
    (place,) = await ranks.attach()  # without bfloat16
    await place.release()
    from tests.contract.collective_contract import Table

    with pytest.raises(FabricError, match="the switches lack BF16") as caught:
        await sharp.attach("job", 1, Table(1).seat(0))
    assert not caught.value.retryable
    await sharp.aclose()
    assert sharp_double.left() == NOTHING


def test_opening_without_the_library_or_with_a_wrong_option_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="HPC-X"):
        open_sharp(library=str(tmp_path / "libsharp_coll.so"))
    with pytest.raises(Unsupported, match=r"libc.*has no sharp_coll_default_config"):
        open_sharp("library=libc.so.6")
    with pytest.raises(ConfigError, match="aggregation"):
        open_sharp(aggregation=3)
    with pytest.raises(ConfigError, match="colour"):
        open_sharp(colour="red")
    for text in ("colour=red", "library", "devices=a;devices=b", "bfloat16=yes", "aggregation=much"):
        with pytest.raises(ConfigError, match="sharp: "):
            open_sharp(text)


def test_a_library_that_lacks_a_function_is_refused_when_it_is_opened(
    sharp_double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked up when it is first called, it would be missed in the middle of a job."""
    monkeypatch.setattr(type(sharp_double.library), "has", lambda self, name: not name.endswith("req_test"))
    with pytest.raises(Unsupported, match="has no sharp_coll_req_test"):
        open_sharp(library=str(sharp_double.path))


def test_options_can_be_one_text(sharp_double: Double) -> None:
    sharp = open_sharp(f"library={sharp_double.path};devices=mlx5_0:1,mlx5_1:1;bfloat16=1;aggregation=2")
    assert Dtype.BF16 in sharp.capabilities.dtypes


async def test_an_unwatched_job_goes_when_its_attach_is_cancelled(
    sharp_double: Double, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of three come: the first two are given up while they are inside the library."""
    ranks = Ranks(sharp_double, 3, session=replace(ONE_TRY, exchange_ns=30_000 * MS, call_ns=30_000 * MS))
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ranks.attach_one, 0)
            nursery.start_soon(ranks.attach_one, 1)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert sharp_double.left() == NOTHING
    assert "is lost" not in caplog.text  # the calls returned, for their callbacks were refused
