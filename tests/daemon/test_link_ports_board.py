"""Links of the switch as its board of ports sees them, with links in memory: no interface is needed."""

from __future__ import annotations

import numpy as np
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.core.switch.accelerator import Action, Event, ForLink, FramesArrived, PortDown, PortUp
from inaproto.core.switch.port_pauses import Silences
from inaproto.daemon.switch.link_ports import LinkPorts
from inaproto.daemon.switch.ports import PortBoard
from inaproto.errors import FabricError
from inaproto.ports import FramePort
from inaproto.units import Instant, PortId
from inaproto_adapters.frames import StreamFramePort, open_frame_pair
from tests.unit.switched_ring import block
from tests.unit.test_softnic_edge import pause


class PlugLink:
    """Usable while a plug is in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._plugged = trio.Event()
        self.far: StreamFramePort | None = None
        self.attempts = 0

    def plug(self) -> None:
        self._plugged.set()

    async def unplug(self) -> None:
        self._plugged = trio.Event()
        await self.close_far()

    async def close_far(self) -> None:
        if self.far is not None:
            await self.far.aclose()

    def require(self) -> None: ...

    def require_stranger(self, mac: bytes, ip: bytes) -> None: ...

    async def attach(self) -> FramePort:
        await trio.lowlevel.checkpoint()
        self.attempts += 1
        if not self._plugged.is_set():
            raise FabricError(
                "attach", self.name, "opening its port", "nothing is plugged in", retryable=True
            )
        await self.close_far()
        near, self.far = open_frame_pair()
        return near

    async def wait_usable(self) -> None:
        await self._plugged.wait()


async def test_links_come_and_go_under_their_own_numbers(autojump_clock: MockClock) -> None:
    events: list[Event] = []

    def step(event: Event, now: Instant) -> list[Action]:
        events.append(event)
        return []

    board = PortBoard(step, lambda action: None, wrap_port=None, ports_max=8, links=2)
    links = [PlugLink("plug:a"), PlugLink("plug:b")]
    ports = LinkPorts(links, board)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ports.serve)
        await wait_all_tasks_blocked()
        assert [(told["port"], told["error"]) for told in ports.status()] == [
            (0, "nothing is plugged in"),
            (1, "nothing is plugged in"),
        ]
        links[1].plug()
        await trio.sleep(1)
        assert [told["is_attached"] for told in ports.status()] == [False, True]
        assert [told["name"] for told in board.status()] == ["plug:b"]
        assert links[0].attempts == 1, "a link that cannot be used is waited for, not asked again and again"
        await links[1].unplug()
        links[0].plug()
        await trio.sleep(1)
        first, second = ports.status()
        assert (first["is_attached"], first["times_up"], first["error"]) == (True, 1, "")
        assert (second["is_attached"], second["times_up"]) == (False, 1)
        assert second["error"] != ""
        links[1].plug()
        await trio.sleep(1)
        assert [told["times_up"] for told in ports.status()] == [1, 2]
        nursery.cancel_scope.cancel()
    for link in links:
        await link.close_far()
    zero, one = PortId(0), PortId(1)
    assert events[:4] == [PortUp(one), PortDown(one), PortUp(zero), PortUp(one)]
    assert sorted(event.port for event in events[4:] if isinstance(event, PortDown)) == [zero, one]


async def test_links_of_a_switch_that_is_not_admitted_wait(autojump_clock: MockClock) -> None:
    board = PortBoard(
        lambda event, now: [], lambda action: None, wrap_port=None, ports_max=8, trunks=2, links=1
    )
    link = PlugLink("plug:a")
    link.plug()
    ports = LinkPorts([link], board)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ports.serve)
        await trio.sleep(5)
        assert link.attempts == 0
        board.is_open = True
        await trio.sleep(5)
        (told,) = ports.status()
        assert (told["port"], told["is_attached"]) == (3, True), "after the numbers of the trunks"
        board.close()
        await trio.sleep(5)
        assert ports.status()[0]["is_attached"] is False
        board.is_open = True
        await trio.sleep(5)
        assert ports.status()[0]["times_up"] == 2
        nursery.cancel_scope.cancel()
    await link.close_far()


async def told_of_pauses() -> list[tuple[int, Silences, int]]:
    """What others hear of the second of two links, after those of two trunks."""
    told: list[tuple[int, Silences, int]] = []

    def step(event: Event, now: Instant) -> list[Action]:
        if not isinstance(event, FramesArrived):
            return []
        return [ForLink(event.port, frames) for frames in event.blocks]

    board = PortBoard(
        step,
        lambda action: None,
        wrap_port=None,
        ports_max=8,
        trunks=2,
        links=2,
        tell_silence=lambda link, silences, frames: told.append((link, silences, frames)),
    )
    board.is_open = True
    links = [PlugLink("plug:a"), PlugLink("plug:b")]
    links[1].plug()
    ports = LinkPorts(links, board)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ports.serve)
        await trio.sleep(1)
        far = links[1].far
        assert far is not None
        nursery.start_soon(far.run)
        far.send_nowait(np.concatenate([pause(100, 3), pause(100, 3)]))
        far.send_nowait(block(bytes.fromhex("0180c200000e") + bytes(54)))
        await trio.sleep(1)
        (port,) = board.status()
        assert port["pauses"] == 2
        board.be_silent(PortId(3), {3: 5120}, 1)  # a link that is down
        nursery.cancel_scope.cancel()
    await links[1].close_far()
    return told


def test_who_has_a_port_there_too_is_told_of_a_pause() -> None:
    told = trio.run(told_of_pauses, clock=MockClock(autojump_threshold=0))
    assert told == [(1, {3: 5120}, 2)], "and of nothing else"
