"""Ports of a switch that are left alone for a while, and then looked at together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.core.switch.accelerator import Action, Event, FramesArrived, RoundArrived
from inaproto.core.switch.moderation import Moderation
from inaproto.daemon.shell import REST_LATE_S, RESTLESS_S
from inaproto.daemon.switch.ports import PortBoard
from inaproto.ports import FramePortCapabilities, PortClosed, PortCounters
from inaproto.units import MS, Frames, Instant, PortId

REST_S = 0.005


class HeldPort:
    """Frames that come are held until they are asked for."""

    def __init__(self, name: str) -> None:
        self.capabilities = FramePortCapabilities(name, 1500, lossless=False)
        self.counters = PortCounters()
        self._held: list[Frames] = []
        self._news = trio.Event()
        self._closed = ""
        self.waits = 0

    def come(self, *tags: int) -> None:
        self._held += [np.full((1, 64), tag, np.uint8) for tag in tags]
        self._news.set()

    def close(self, reason: str) -> None:
        self._closed = reason
        self._news.set()

    def take_nowait(self) -> list[Frames]:
        if self._closed:
            raise PortClosed(self._closed)
        held, self._held = self._held, []
        self._news = trio.Event()
        return held

    async def receive(self) -> list[Frames]:
        self.waits += 1
        await trio.lowlevel.checkpoint()
        while not self._held and not self._closed:
            await self._news.wait()
        return self.take_nowait()

    def send_nowait(self, frames: Frames) -> int:
        return len(frames)

    async def run(self) -> None:
        await trio.sleep_forever()

    async def aclose(self) -> None:
        self.close("closed on this side")
        await trio.lowlevel.checkpoint()


class Scripted(Moderation):
    """Rests as often as it is told."""

    def __init__(self) -> None:
        super().__init__({})
        self.rests = 0
        self.bytes: dict[PortId, int] = {}

    def came(self, port: PortId, nbytes: int) -> None:
        self.bytes[port] = self.bytes.get(port, 0) + nbytes

    def rest_ns(self, now: Instant) -> int:
        self.rests -= 1
        return 5 * MS if self.rests >= 0 else 0


class Switch:
    def __init__(self, clock: MockClock, nursery: trio.Nursery) -> None:
        self.clock = clock
        self.seen: list[tuple[int, int]] = []
        """Port and tag of what was taken in."""
        self.steps = 0
        self.moderation = Scripted()
        self.board = PortBoard(
            self._step, lambda _: None, wrap_port=None, ports_max=8, links=3, moderation=self.moderation
        )
        self.ports = [HeldPort(f"held:{i}") for i in range(3)]
        self.ended: dict[int, str] = {}
        for i in range(3):
            nursery.start_soon(self._serve, i)

    async def _serve(self, i: int) -> None:
        self.ended[i] = await self.board.serve(PortId(i), self.ports[i], f"held:{i}")

    def _step(self, event: Event, now: Instant) -> list[Action]:
        arrivals = event.arrivals if isinstance(event, RoundArrived) else [event]
        self.steps += 1
        for arrived in arrivals:
            if isinstance(arrived, FramesArrived):
                self.seen += [(int(arrived.port), int(block[0, 0])) for block in arrived.blocks]
        return []

    async def pass_time(self, seconds: float) -> None:
        await wait_all_tasks_blocked()
        self.clock.jump(seconds)
        await wait_all_tasks_blocked()

    async def rest(self) -> None:
        """All three ports wait for one rest, which one more follows."""
        await wait_all_tasks_blocked()
        self.moderation.rests = 4
        for i, port in enumerate(self.ports):
            port.come(i)
        await wait_all_tasks_blocked()
        assert sorted(self.seen) == [(0, 0), (1, 1), (2, 2)]
        self.moderation.rests = 1
        self.seen.clear()


@asynccontextmanager
async def switch(clock: MockClock) -> AsyncIterator[Switch]:
    async with trio.open_nursery() as nursery:
        yield Switch(clock, nursery)
        nursery.cancel_scope.cancel()


async def test_what_comes_in_a_rest_is_taken_in_together_at_its_end(mock_clock: MockClock) -> None:
    async with switch(mock_clock) as at:
        await at.rest()
        at.ports[2].come(7, 8)
        at.ports[0].come(9)
        await at.pass_time(REST_S * 0.99)
        assert at.seen == []
        waits, steps = [port.waits for port in at.ports], at.steps
        await at.pass_time(REST_S * 0.02)
        assert sorted(at.seen) == [(0, 9), (2, 7), (2, 8)]
        assert at.steps == steps + 1
        assert [port.waits for port in at.ports] == waits, "nobody waits between two rests"
        assert at.moderation.bytes == {0: 128, 1: 64, 2: 192}
        at.ports[1].come(5)
        await at.pass_time(REST_S * 1.01)
        assert at.seen[3:] == [(1, 5)]
        assert [port.waits for port in at.ports] == [count + 1 for count in waits], "the rests are over"
        at.ports[0].come(6)
        await wait_all_tasks_blocked()
        assert at.seen[4:] == [(0, 6)]


async def test_a_port_that_ends_in_a_rest_keeps_no_other_one_waiting(mock_clock: MockClock) -> None:
    async with switch(mock_clock) as at:
        await at.rest()
        at.ports[1].close("it is gone")
        at.ports[0].come(3)
        at.ports[2].come(4)
        at.moderation.rests = 0
        await at.pass_time(REST_S * 1.01)
        assert at.ended == {1: "it is gone"}
        assert sorted(at.seen) == [(0, 3), (2, 4)]


async def test_who_rests_for_all_may_be_dropped(mock_clock: MockClock) -> None:
    for dropped in range(3):
        async with switch(mock_clock) as at:
            await at.rest()
            at.moderation.rests = 0
            at.board.drop(PortId(dropped))
            for i, port in enumerate(at.ports):
                port.come(10 + i)
            await at.pass_time(REST_S * 1.01)
            assert sorted(at.seen) == [(i, 10 + i) for i in range(3) if i != dropped]


async def test_no_rest_follows_one_from_which_the_process_came_back_late(mock_clock: MockClock) -> None:
    async with switch(mock_clock) as at:
        await at.rest()
        at.moderation.rests = 1000
        await at.pass_time(REST_S + 1.01 * REST_LATE_S)
        at.ports[0].come(1)
        await wait_all_tasks_blocked()
        assert at.seen == [(0, 1)]
        await at.pass_time(RESTLESS_S)
        at.ports[0].come(2)
        at.ports[1].come(3)
        await wait_all_tasks_blocked()
        at.ports[0].come(4)
        await wait_all_tasks_blocked()
        assert (0, 4) not in at.seen
        await at.pass_time(REST_S * 1.01)
        assert (0, 4) in at.seen
