"""Memory for links, made ready beforehand: part by part, and as large as the last that was asked for."""

from __future__ import annotations

import mmap
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.core.host.link import memory_bytes
from inaproto.daemon.host import link_memory
from inaproto.daemon.host.link_memory import LinkMemory
from inaproto.daemon.host.ring_settings import link_bytes
from inaproto.daemon.settings.config import HostSettings
from inaproto.wire.ina_header import INA_HEADER_BYTES

PAGE = mmap.PAGESIZE
PARTS = 5


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_memory, "PART_BYTES", 2 * PAGE)


async def test_what_is_expected_is_made_ready_and_others_have_turns_meanwhile() -> None:
    memory, turns = LinkMemory(2 * PARTS * PAGE - 7), 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.run)
        while not memory.ready_bytes:
            await trio.lowlevel.checkpoint()
            turns += 1
        assert turns >= PARTS
        nursery.cancel_scope.cancel()
    assert memory.ready_bytes == 2 * PARTS * PAGE - 7


async def test_who_asks_gets_what_is_ready_and_another_is_made() -> None:
    memory = LinkMemory(3 * PAGE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.run)
        await wait_all_tasks_blocked()
        with memory.allocate(3 * PAGE) as first:
            assert memory.ready_bytes == 0
            assert bytes(first) == bytes(3 * PAGE)
            first[:4] = b"used"
            await wait_all_tasks_blocked()
            assert memory.ready_bytes == 3 * PAGE
            with memory.allocate(3 * PAGE) as second:
                assert bytes(second) == bytes(3 * PAGE)
        nursery.cancel_scope.cancel()


async def test_the_next_piece_is_as_large_as_the_last_that_was_asked_for() -> None:
    memory = LinkMemory()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.run)
        await wait_all_tasks_blocked()
        assert memory.ready_bytes == 0, "nobody knows of any size"
        for nbytes in (5 * PAGE, PAGE):
            with memory.allocate(nbytes) as given:
                assert given.nbytes == nbytes
            await wait_all_tasks_blocked()
            assert memory.ready_bytes == nbytes
        nursery.cancel_scope.cancel()


async def test_what_is_asked_for_while_another_is_made_ready_counts() -> None:
    memory = LinkMemory(2 * PARTS * PAGE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.run)
        await trio.lowlevel.checkpoint()
        memory.allocate(PAGE).release()
        await wait_all_tasks_blocked()
        assert memory.ready_bytes == PAGE
        nursery.cancel_scope.cancel()


async def test_where_memory_is_short_none_is_ready_and_who_asks_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def short(*given: Any) -> mmap.mmap:
        raise OSError("no memory")

    memory = LinkMemory(PAGE)
    async with trio.open_nursery() as nursery:
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", short)
            nursery.start_soon(memory.run)
            await wait_all_tasks_blocked()
            with pytest.raises(OSError, match="no memory"):
                memory.allocate(PAGE)
        await wait_all_tasks_blocked()
        assert memory.ready_bytes == 0
        memory.allocate(PAGE).release()
        await wait_all_tasks_blocked()
        assert memory.ready_bytes == PAGE
        nursery.cancel_scope.cancel()


def test_a_link_takes_staging_slots_and_headers() -> None:
    settings = HostSettings(name="h0", ip="10.0.0.1", mtu=1024, message_packets=3, window_messages=4)
    assert link_bytes(settings) == 8 * (3 * 1024 + INA_HEADER_BYTES)
    assert memory_bytes(slots=2, slot_bytes=100, areas=3) == 200 + 6 * INA_HEADER_BYTES
