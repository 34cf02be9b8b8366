"""Ports of the switch daemon: bridging, strangers with garbage, weather, counters."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.daemon.observe.status import ask
from inaproto.daemon.switch.blame_log import BLAME_LOG_S, BLAME_RULES_MAX, BlameLog
from inaproto.errors import Blame
from inaproto.faults.weather import Weather
from inaproto.ports import FramePort, PortClosed, load_adapter
from inaproto.units import Frames
from tests.clusters.switch import Running, running_switch
from tests.unit.test_softnic_edge import pause

BROADCAST = b"\xff" * 6


def frame(source: int, destination: int | None, *, count: int = 1, length: int = 60) -> Frames:
    """Frames of an experimental EtherType between hosts of these numbers; None is broadcast."""
    one = np.zeros(length, dtype=np.uint8)
    to = BROADCAST if destination is None else bytes([2, 0, 0, 0, 0, destination])
    one[:14] = np.frombuffer(to + bytes([2, 0, 0, 0, 0, source]) + b"\x88\xb5", dtype=np.uint8)
    return np.tile(one, (count, 1))


async def plug(switch: Running, nursery: trio.Nursery) -> FramePort:
    port: FramePort = await load_adapter("frames").open().connect(switch.settings.ports_path)
    nursery.start_soon(port.run)
    return port


async def status(switch: Running) -> dict[str, Any]:
    return await ask(switch.settings.control_path)


async def ports_up(switch: Running, count: int) -> None:
    """Wait until the switch has taken its connections: frames sent before would be flooded to fewer ports."""
    while len((await status(switch))["ports"]) != count:
        await wait_all_tasks_blocked()


async def received(port: FramePort, count: int) -> Frames:
    blocks: list[Frames] = []
    while sum(len(block) for block in blocks) < count:
        blocks += [block.copy() for block in await port.receive()]
    return np.concatenate(blocks)


async def test_unknown_addresses_are_flooded_and_known_ones_are_not(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch, trio.open_nursery() as nursery:
        ports = [await plug(switch, nursery) for _ in range(3)]
        await ports_up(switch, 3)
        ports[0].send_nowait(frame(0, 1))
        for port in ports[1:]:
            assert (await received(port, 1) == frame(0, 1)).all()
        ports[1].send_nowait(frame(1, 0, count=50))
        assert (await received(ports[0], 50) == frame(1, 0, count=50)).all()
        ports[2].send_nowait(frame(2, None))
        # What port 1 gets next is the broadcast: the unicast frames went to port 0 alone.
        assert (await received(ports[1], 1) == frame(2, None)).all()
        totals = (await status(switch))["totals"]
        assert (totals["frames_in"], totals["frames_lost"]) == (52, 0)
        for port in ports:
            await port.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("records", [False, True])
async def test_a_port_is_silent_while_its_far_end_asks_for_that(
    runtime_dir: Path, mock_clock: MockClock, *, records: bool
) -> None:
    """No clock goes by itself here: what is held back is, until it is moved."""
    capture: dict[str, Any] = {"capture": runtime_dir / "all.pcapng"} if records else {}
    async with running_switch(runtime_dir, **capture) as switch, trio.open_nursery() as nursery:
        ports = [await plug(switch, nursery) for _ in range(3)]
        await ports_up(switch, 3)
        ports[0].send_nowait(pause(1000))
        while not (await status(switch))["ports"][0]["pauses"]:
            await wait_all_tasks_blocked()
        ports[1].send_nowait(frame(1, None))
        assert (await received(ports[2], 1) == frame(1, None)).all()
        mock_clock.jump(50e-6)
        ports[1].send_nowait(frame(1, 0))
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_idle, scope)
            await ports[0].receive()
        assert scope.cancelled_caught, "nothing comes"
        mock_clock.jump(10e-6)
        got = await received(ports[0], 2)
        assert (got == np.concatenate([frame(1, None), frame(1, 0)])).all()
        told = (await status(switch))["ports"][0]
        assert (told["pauses"], told["drops"]) == (1, {})
        assert 0.05 <= told["paused_ms"] <= 0.07
        for port in ports:
            await port.aclose()
        nursery.cancel_scope.cancel()


async def _cancel_when_idle(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x7f\xff\xff\xff", "frame"),
        (b"\x00\x00", "closed"),
        (b"\x00\x00\x00\x40abc", "closed"),
        (b"\x00\x00\x00\x05abcde", ""),
    ],
)
async def test_garbage_on_a_port_ends_at_most_that_port(
    runtime_dir: Path, data: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "inaproto.switch")
    async with running_switch(runtime_dir) as switch, trio.open_nursery() as nursery:
        ports = [await plug(switch, nursery) for _ in range(2)]
        await ports_up(switch, 2)
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(str(switch.settings.ports_path))
        raw.send(data)
        raw.shutdown(socket.SHUT_WR)
        await wait_all_tasks_blocked()
        raw.close()
        await ports_up(switch, 2)
        [down] = [record.getMessage() for record in caplog.records if "port-2 down" in record.getMessage()]
        assert words in down
        ports[0].send_nowait(frame(0, None, count=10))
        assert len(await received(ports[1], 10)) == 10
        for port in ports:
            await port.aclose()
        nursery.cancel_scope.cancel()


async def test_totals_outlive_their_ports(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch, trio.open_nursery() as nursery:
        ports = [await plug(switch, nursery) for _ in range(2)]
        await ports_up(switch, 2)
        ports[0].send_nowait(frame(0, None, count=10))
        await received(ports[1], 10)
        for port in ports:
            await port.aclose()
        await ports_up(switch, 0)
        totals = (await status(switch))["totals"]
        assert (totals["frames_in"], totals["frames_out"], totals["ports_seen"]) == (10, 10, 2)
        assert totals["bytes_in"] == 600
        nursery.cancel_scope.cancel()


async def test_weather_is_counted_as_lost_frames(runtime_dir: Path) -> None:
    weather = Weather(drop=1.0)

    def wrap(port: FramePort, name: str) -> FramePort:
        wrapped: FramePort = load_adapter("weather").open(port, weather, seed=1, name=name)
        return wrapped

    async with running_switch(runtime_dir, wrap_port=wrap) as switch, trio.open_nursery() as nursery:
        port = await plug(switch, nursery)
        await ports_up(switch, 1)
        port.send_nowait(frame(0, None, count=10))
        while (await status(switch))["totals"]["frames_in"] < 10:
            await wait_all_tasks_blocked()
        told = await status(switch)
        assert told["totals"]["frames_lost"] == 10
        assert told["ports"][0]["weather"]["dropped"] == 10
        assert told["accelerator"]["counters"]["bridged"] == 0
        await port.aclose()
        nursery.cancel_scope.cancel()


async def test_ports_beyond_the_limit_are_closed(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir, ports_max=1) as switch, trio.open_nursery() as nursery:
        first = await plug(switch, nursery)
        await ports_up(switch, 1)
        second = await plug(switch, nursery)
        with pytest.raises(PortClosed):
            await second.receive()
        await ports_up(switch, 1)
        for port in (first, second):
            await port.aclose()
        nursery.cancel_scope.cancel()


async def test_stopping_ends_the_ports(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch, trio.open_nursery() as nursery:
        port = await plug(switch, nursery)
        await ports_up(switch, 1)
        switch.stop.set()
        with pytest.raises(PortClosed):
            await port.receive()
        await switch.ended.wait()
        nursery.cancel_scope.cancel()


async def test_blames_are_counted_always_and_logged_now_and_then(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    blames = BlameLog()
    for _ in range(5):
        blames.add(Blame("10.0.0.1 to queue pair 3", "wrong key", "ring 1, rank 0"))
    blames.add(Blame("10.0.0.1 to queue pair 3", "wrong rank", "ring 1"))
    assert len(caplog.records) == 2
    await trio.sleep(BLAME_LOG_S)
    blames.add(Blame("10.0.0.1 to queue pair 3", "wrong key", "ring 1, rank 0"))
    assert blames.counts() == {"wrong key": 6, "wrong rank": 1}
    assert caplog.messages[-1].endswith("wrong key: ring 1, rank 0 (and 4 more like it)")


async def test_rules_of_blames_are_bounded() -> None:
    blames = BlameLog()
    for number in range(BLAME_RULES_MAX + 5):
        blames.add(Blame("peer", f"rule {number}", "evidence"))
    assert len(blames.counts()) == BLAME_RULES_MAX + 1
    assert blames.counts()["others"] == 5
