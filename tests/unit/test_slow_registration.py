"""Memory that takes long to register: others have their turns, and may end whoever asked."""

from __future__ import annotations

import mmap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.daemon.host.local_rank import LocalRank
from inaproto.daemon.net.shared_buffers import SharedBuffer
from inaproto.errors import FabricError, JobError
from inaproto.ports import MemoryRegion, PortClosed
from inaproto.wire.messages.client import Join
from inaproto_adapters.verbs import memory
from inaproto_adapters.verbs.nic import VerbsConfig, VerbsNic
from inaproto_hil.bench.verbs.device import OWN, StubbedDevice

PARTS = 4


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubbedDevice]:
    monkeypatch.setattr(memory, "PART_BYTES", 1000)
    made = StubbedDevice(real=False)
    with made.installed():
        yield made


# ---- a device


async def test_others_have_a_turn_after_each_part(device: StubbedDevice) -> None:
    nic = VerbsNic(OWN, VerbsConfig())
    done: list[str] = []

    async def other() -> None:
        while True:
            done.append("other")
            await trio.lowlevel.checkpoint()

    register, begun = device.call, device.calls["reg_mr"]

    def call(name: str) -> None:
        done.append(name)
        register(name)

    device.call = call  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        region = await nic.register_memory_in_parts(memoryview(bytes(PARTS * 1000)))
        nursery.cancel_scope.cancel()
    assert device.calls["reg_mr"] - begun == PARTS
    turns = "".join(name[0] for name in done).strip("o")
    assert "rrr" not in turns, "each task has a turn in each round of the event loop, in any order"
    nic.deregister_memory(region)
    await nic.aclose()


async def test_who_is_cancelled_has_registered_nothing(device: StubbedDevice) -> None:
    nic = VerbsNic(OWN, VerbsConfig())
    begun = device.calls["reg_mr"]
    with trio.CancelScope() as scope:
        device.at_call["reg_mr"] = scope.cancel
        await nic.register_memory_in_parts(memoryview(bytes(PARTS * 1000)))
    assert scope.cancelled_caught
    assert device.calls["reg_mr"] - begun == device.calls["dereg_mr"] == 1


async def test_a_device_that_is_closed_meanwhile(device: StubbedDevice) -> None:
    nic = VerbsNic(OWN, VerbsConfig())
    async with trio.open_nursery() as nursery:
        device.at_call["reg_mr"] = lambda: nursery.start_soon(nic.aclose)
        with pytest.raises(PortClosed, match="was closed"):
            await nic.register_memory_in_parts(memoryview(bytes(PARTS * 1000)))
        device.at_call.clear()


# ---- a rank


class SlowNic:
    """It registers when it is let, or fails."""

    def __init__(self) -> None:
        self.asked: list[trio.Event] = []
        self.regions: list[MemoryRegion] = []
        self.error: Exception | None = None

    async def register_memory_in_parts(self, buffer: memoryview) -> MemoryRegion:
        self.asked.append(trio.Event())
        await self.asked[-1].wait()
        if self.error is not None:
            raise self.error
        self.regions.append(MemoryRegion(1 + len(self.asked), 4096, buffer.nbytes))
        return self.regions[-1]

    def deregister_memory(self, region: MemoryRegion) -> None:
        self.regions.remove(region)


class Sharing:
    def __init__(self) -> None:
        self.nic: Any = SlowNic()
        process: Any = SimpleNamespace()
        self.rank = LocalRank(Join(id=1, job="j", rank=0, size=2, key="", pid=1), process)
        self.rank.ring = self.ring = SimpleNamespace(nic=self.nic)
        mapped = mmap.mmap(-1, 5000)
        self.buffer = SharedBuffer(3, 5000, mapped, memoryview(mapped))
        self.ended: list[str] = []

    async def run(self) -> None:
        try:
            await self.rank.share(self.buffer)
        except JobError as error:
            self.ended.append(str(error))
        else:
            self.ended.append("shared")


@asynccontextmanager
async def sharing() -> AsyncIterator[Sharing]:
    """A segment that is being registered."""
    made = Sharing()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await wait_all_tasks_blocked()
        assert len(made.nic.asked) == 1
        yield made
        made.nic.asked[0].set()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_a_segment_is_there_when_it_is_registered() -> None:
    async with sharing() as made:
        assert made.rank.segments == {}
    assert made.ended == ["shared"]
    assert made.rank.segments == {3: made.buffer}
    assert (made.buffer.nic, [made.buffer.region]) == (made.nic, made.nic.regions)


def _end(made: Sharing) -> None:
    made.rank.end()


def _withdraw(made: Sharing) -> None:
    made.rank.ring = None


@pytest.mark.parametrize("end", [_end, _withdraw])
async def test_a_rank_that_ends_meanwhile_holds_nothing(end: Callable[[Sharing], None]) -> None:
    async with sharing() as made:
        end(made)
    assert made.ended == ["shared"]
    assert (made.rank.segments, made.nic.regions, made.buffer.is_closed) == ({}, [], True)


@pytest.mark.parametrize("closed", [False, True])
async def test_another_nic_meanwhile_gets_the_segment(closed: bool) -> None:
    async with sharing() as made:
        old: Any = made.nic
        new: Any = SlowNic()
        made.ring.nic = new
        if closed:
            old.error = PortClosed("its fabric has ended")
        old.asked[0].set()
        await wait_all_tasks_blocked()
        assert (old.regions, made.rank.segments) == ([], {})
        new.asked[0].set()
    assert made.rank.segments == {3: made.buffer}
    assert (made.buffer.nic, [made.buffer.region]) == (new, new.regions)


async def test_a_fabric_that_ends_meanwhile_leaves_the_segment_to_the_next() -> None:
    async with sharing() as made:
        made.nic.error = PortClosed("its fabric has ended")
    assert made.ended == ["shared"]
    assert made.rank.segments == {3: made.buffer}
    assert made.buffer.nic is None
    nic: Any = SimpleNamespace(register_memory=lambda view: MemoryRegion(9, 0, view.nbytes))
    made.rank.register(nic)
    assert made.buffer.region.key == 9


async def test_what_cannot_be_registered_ends_the_process_in_words() -> None:
    async with sharing() as made:
        made.nic.error = FabricError("register memory", "rxe0", "5000 bytes", "no memory", retryable=True)
    assert made.ended[0].startswith("segment 3 cannot be registered: register memory with rxe0 failed")
    assert (made.rank.segments, made.buffer.is_closed) == ({}, True)


async def test_a_segment_that_is_closed_meanwhile_is_given_back() -> None:
    async with sharing() as made:
        made.buffer.close()
    assert made.nic.regions == []
