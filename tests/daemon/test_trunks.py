"""Trunks and sessions between switch daemons: who may join, who is refused, and what passes."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.unix_sockets import listen_unix
from inaproto.daemon.settings.fabric_file import Place
from inaproto.daemon.switch.ports import PortBoard
from inaproto.daemon.switch.ring_records import install_message
from inaproto.daemon.switch.trunks import DEAD_S, DIAL_S, Trunks
from inaproto.ports import FramePort, PortClosed
from inaproto.units import Frames
from inaproto.wire.control_messages import (
    SWITCH_AWAY,
    SWITCH_UNKNOWN,
    Error,
    Hello,
    Message,
    Ping,
    Pong,
    Welcome,
)
from inaproto.wire.messages.switch import (
    InstallRefused,
    RingInstalled,
    SwitchAdmit,
    SwitchHello,
    SwitchOpened,
    SwitchWelcome,
)
from inaproto.wire.trunk_hello import TrunkHello
from inaproto_hil.rigs.running_fabric import RunningFabric, running_fabric
from tests.clusters.fabrics import spine_and_leaves
from tests.daemon.test_switch_ports import frame, received
from tests.unit.rendezvous_members import hello
from tests.unit.test_ring_records import PLAIN

MAC = bytes([2, 1, 0, 0, 0, 9])


async def answer(running: RunningFabric, name: str, message: Message) -> Message:
    stream = await running.stranger(name)
    await stream.send(message)
    return await stream.receive()


def switch_hello(running: RunningFabric, name: str, *, fabric: str | None = None) -> SwitchHello:
    digest = running.fabric.digest if fabric is None else fabric
    return SwitchHello(id=1, switch=name, boot_id="b", fabric=digest)


async def open_switches(running: RunningFabric) -> list[str]:
    switches = (await running.status("spine"))["fabric"]["switches"]
    return [switch["name"] for switch in switches if switch["is_open"]]


async def until_open(running: RunningFabric, *names: str) -> None:
    def are_open(status: dict[str, Any]) -> bool:
        return [switch["name"] for switch in status["fabric"]["switches"] if switch["is_open"]] == list(names)

    await running.until("spine", are_open)


def at(number: int, switch: str) -> Hello:
    plain = hello(number)
    return Hello(id=plain.id, host=plain.host, mac=plain.mac, ip=plain.ip, switch=switch)


async def test_frames_cross_the_trunks_both_ways(runtime_dir: Path) -> None:
    async with running_fabric(spine_and_leaves(runtime_dir)) as running:
        await running.trunks_up("spine", up=2)
        await running.trunks_up("leaf0", up=1)
        await running.trunks_up("leaf1", up=1)
        here = await running.plug(running.fabric.by_name["leaf0"].ports_path)
        there = await running.plug(running.fabric.by_name["leaf1"].ports_path)
        here.send_nowait(frame(0, None))
        await crossed(there, frame(0, None))
        there.send_nowait(frame(1, 0))
        await crossed(here, frame(1, 0))


async def crossed(port: FramePort, expected: Frames) -> list[bytes]:
    """Wait for a frame; what came up to then, announcements among it."""
    passed: list[bytes] = []
    while expected.tobytes() not in passed:
        passed += [one.tobytes() for one in await received(port, 1)]
    return passed


async def test_a_host_is_welcome_at_its_own_switch_only_while_that_is_open(runtime_dir: Path) -> None:
    async with running_fabric(spine_and_leaves(runtime_dir), start=False) as running:
        await running.start("spine")
        refused = await answer(running, "spine", at(0, "leaf1"))
        assert isinstance(refused, Error)
        assert (refused.code, refused.of) == (SWITCH_AWAY, hello(0).id)
        assert refused.message == "host 'h0' has to wait for its switch leaf1: it has not been here yet"
        await running.start("leaf1")
        await until_open(running, "spine", "leaf1")
        stream = await running.stranger("spine")
        await stream.send(at(0, "leaf1"))
        welcome = await stream.receive()
        assert isinstance(welcome, Welcome)
        assert welcome.port_path == str(runtime_dir / "leaf1" / "ports.sock")
        other = await answer(running, "spine", at(1, ""))
        assert isinstance(other, Welcome)
        assert other.port_path == str(runtime_dir / "ports.sock")
        await running.end("leaf1")
        lost = await stream.receive()
        assert isinstance(lost, Error)
        assert lost.code == SWITCH_AWAY
        assert lost.message.startswith("its switch leaf1 is gone: ")
        with pytest.raises(EndOfChannel):
            await stream.receive()
        assert (await running.status("spine"))["hosts"] == ["h1"]


async def test_hosts_that_can_never_be_welcome(runtime_dir: Path) -> None:
    async with running_fabric(spine_and_leaves(runtime_dir)) as running:
        unknown = await answer(running, "spine", at(0, "leaf7"))
        assert isinstance(unknown, Error)
        assert unknown.code == SWITCH_UNKNOWN
        assert "there is no switch 'leaf7' to be at (spine, leaf0, leaf1)" in unknown.message
        wrong = await answer(running, "leaf0", at(0, "leaf0"))
        assert isinstance(wrong, Error)
        assert wrong.code == SWITCH_UNKNOWN
        assert "its dir must be that of the root" in wrong.message
        taken = Hello(id=1, host="h0", mac=MAC, ip=running.fabric.address("leaf1").ip, switch="leaf0")
        own = await answer(running, "spine", taken)
        assert isinstance(own, Error)
        assert own.code == SWITCH_UNKNOWN
        assert "that of the virtual connections of leaf1" in own.message


async def test_switches_that_are_not_welcome(runtime_dir: Path) -> None:
    async with running_fabric(spine_and_leaves(runtime_dir)) as running:
        await until_open(running, "spine", "leaf0", "leaf1")
        for message, words in (
            (switch_hello(running, "leaf0", fabric="other"), "has another fabric file than spine, the root"),
            (switch_hello(running, "leaf7"), "'leaf7' is not below spine in the fabric"),
            (switch_hello(running, "spine"), "'spine' is not below spine in the fabric"),
            (switch_hello(running, "leaf0"), "another switch 'leaf0' is connected"),
        ):
            refused = await answer(running, "spine", message)
            assert isinstance(refused, Error)
            assert words in refused.message
        refused = await answer(running, "leaf1", switch_hello(running, "leaf0"))
        assert isinstance(refused, Error)
        assert "is not the root of its fabric" in refused.message
        assert await open_switches(running) == ["spine", "leaf0", "leaf1"]


async def test_a_switch_that_falls_silent_is_given_up(runtime_dir: Path, autojump_clock: MockClock) -> None:
    async with running_fabric(spine_and_leaves(runtime_dir), start=False) as running:
        await running.start("spine")
        stream = await running.stranger("spine")
        await stream.send(switch_hello(running, "leaf0"))
        assert isinstance(await stream.receive(), SwitchWelcome)
        assert isinstance(await stream.receive(), SwitchAdmit)
        await stream.send(SwitchOpened())
        await stream.send(Ping(id=5))
        assert await stream.receive() == Pong(id=5)
        assert await open_switches(running) == ["spine", "leaf0"]
        with pytest.raises(EndOfChannel):
            await stream.receive()
        status = await running.status("spine")
        assert status["fabric"]["switches"][1]["error"] == "nothing was heard of it for 10 s"
        assert status["fabric"]["counters"]["switches_lost"] == 1


async def test_a_leaf_with_another_fabric_file_stays_closed_and_says_so(runtime_dir: Path) -> None:
    async with running_fabric(spine_and_leaves(runtime_dir), start=False) as running:
        await running.start("spine")
        await running.start("leaf0", fabric=spine_and_leaves(runtime_dir, steers=["leaf1"]))
        await running.until("leaf0", lambda told: "another fabric file" in told["control"]["error"])
        port = await running.plug(running.fabric.by_name["leaf0"].ports_path)
        with pytest.raises(PortClosed):
            await port.receive()
        assert await open_switches(running) == ["spine"]


async def test_a_leaf_obeys_its_control_plane_until_that_falls_silent(
    runtime_dir: Path, autojump_clock: MockClock
) -> None:
    async with running_fabric(spine_and_leaves(runtime_dir), start=False) as running:
        bound = await listen_unix(runtime_dir / "control.sock", "test")
        await running.start("leaf0")
        root = ControlStream(await bound.accept())

        async def said() -> Message:
            while isinstance(message := await root.receive(), Ping):
                pass
            return message

        told = await said()
        assert isinstance(told, SwitchHello)
        assert (told.switch, told.fabric) == ("leaf0", running.fabric.digest)
        ring = install_message(PLAIN)
        await root.send(SwitchWelcome(boot_id="b7"))
        await root.send(ring)
        assert await said() == RingInstalled(ring_id=PLAIN.ring_id)
        await root.send(ring)
        refused = await said()
        assert refused == InstallRefused(ring_id=PLAIN.ring_id, reason="ring 7 is installed already")
        await root.send(replace(ring, flows=ring.flows[:1]))
        assert isinstance(await said(), InstallRefused)
        early = await running.plug(running.fabric.by_name["leaf0"].ports_path)
        with pytest.raises(PortClosed):
            await early.receive()
        await root.send(SwitchAdmit(id=3))
        assert await said() == SwitchOpened(id=3)
        status = await running.status("leaf0")
        assert list(status["accelerator"]["rings"]) == ["7"]
        assert (status["control"]["is_admitted"], status["control"]["control_boot"]) == (True, "b7")
        port = await running.plug(running.fabric.by_name["leaf0"].ports_path)
        with pytest.raises(PortClosed):
            await port.receive()
        status = await running.status("leaf0")
        assert status["control"]["error"] == "the control connection was silent for 10 s"
        assert not status["control"]["is_admitted"]
        assert status["accelerator"]["rings"] == {}
        root.close()
        bound.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"boot_id": "earlier"}, "is admitted by control plane earlier, this switch by"),
        ({"switch": "leaf1"}, "the far side is leaf1, which wants spine; leaf0 was expected"),
        ({"peer": "leaf1"}, "the far side is leaf0, which wants leaf1"),
    ],
)
async def test_a_trunk_opens_to_whom_the_same_control_plane_has_admitted(
    runtime_dir: Path, changes: dict[str, str], words: str
) -> None:
    async with running_fabric(spine_and_leaves(runtime_dir), start=False) as running:
        await running.start("spine")
        boot = (await running.status("spine"))["boot_id"]
        fields = {"switch": "leaf0", "peer": "spine", "boot_id": boot}
        right, wrong = (TrunkHello(mac=MAC, **(fields | other)) for other in ({}, changes))
        port = await running.plug(runtime_dir / "trunk-leaf0.sock")
        port.send_nowait(as_frames(wrong))
        answers = [TrunkHello.decode(one) for one in await until_closed(port)]
        names = [(one.switch, one.peer) for one in answers]
        assert names == ([] if "boot_id" in changes else [("spine", "leaf0")]), "nothing else may pass"
        (trunk, _) = (await running.status("spine"))["trunks"]
        assert not trunk["is_up"]
        assert words in trunk["error"]
        port = await running.plug(runtime_dir / "trunk-leaf0.sock")
        port.send_nowait(as_frames(right))
        (first, *_) = await received(port, 1)
        told = TrunkHello.decode(first.tobytes())
        assert (told.switch, told.peer, told.boot_id) == ("spine", "leaf0", boot)
        await running.trunks_up("spine", up=1)


async def until_closed(port: FramePort) -> list[bytes]:
    heard: list[bytes] = []
    try:
        while True:
            heard += [one.tobytes() for block in await port.receive() for one in block]
    except PortClosed:
        return heard


async def test_a_trunk_that_says_nothing_is_closed(runtime_dir: Path, autojump_clock: MockClock) -> None:
    async with running_fabric(spine_and_leaves(runtime_dir), start=False) as running:
        await running.start("spine")
        port = await running.plug(runtime_dir / "trunk-leaf0.sock")
        with pytest.raises(PortClosed):
            await port.receive()
        (trunk, _) = (await running.status("spine"))["trunks"]
        assert trunk["error"] == "leaf0 said nothing for 1 s"


async def test_a_dial_that_nobody_takes_is_given_up_and_named(
    runtime_dir: Path, autojump_clock: MockClock
) -> None:
    """As where the far side listens and its queue of connections is full."""
    place = Place(spine_and_leaves(runtime_dir), "leaf0")
    board = PortBoard(lambda event, now: (), lambda action: None, wrap_port=None, ports_max=8, trunks=1)
    trunks = Trunks(place, board, lambda: "boot", dict)
    dialled: list[Path] = []
    again = trio.Event()

    async def connect(path: Path) -> FramePort:
        if dialled:
            again.set()
        dialled.append(path)
        return await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trunks.dial, connect)
        with trio.fail_after(2 * DIAL_S):
            await again.wait()
        nursery.cancel_scope.cancel()
    (trunk,) = trunks.status()
    assert trunk["error"] == f"cannot connect to {place.entry.trunk}: nobody took the connection within 5 s"


async def test_a_trunk_on_which_nothing_comes_any_more_is_dropped(
    runtime_dir: Path, autojump_clock: MockClock
) -> None:
    """Its connection may stand: whatever carries it can be stuck."""
    async with running_fabric(spine_and_leaves(runtime_dir), start=False) as running:
        await running.start("spine")
        boot = (await running.status("spine"))["boot_id"]
        host = await running.plug(runtime_dir / "ports.sock")
        port = await running.plug(runtime_dir / "trunk-leaf0.sock")
        hello = as_frames(TrunkHello(mac=MAC, switch="leaf0", peer="spine", boot_id=boot))
        port.send_nowait(hello)
        await running.trunks_up("spine", up=1)
        up = trio.current_time()
        while trio.current_time() < up + 1.4 * DEAD_S:
            await received(port, 1)  # the far side lives, too
            port.send_nowait(hello)
        assert (await running.status("spine"))["trunks"][0]["is_up"]
        assert host.counters.frames_in == 0, "what is said on a trunk is for nobody else"
        with pytest.raises(PortClosed):
            await received(port, 1000)
        (trunk, _) = (await running.status("spine"))["trunks"]
        assert trunk["error"] == f"nothing came on it for {DEAD_S:g} s"


async def test_what_comes_right_after_the_hello_is_taken(runtime_dir: Path) -> None:
    async with running_fabric(spine_and_leaves(runtime_dir), start=False) as running:
        await running.start("spine")
        boot = (await running.status("spine"))["boot_id"]
        host = await running.plug(runtime_dir / "ports.sock")
        await running.until("spine", lambda told: len(told["ports"]) == 1)
        trunk = await running.plug(runtime_dir / "trunk-leaf0.sock")
        told = as_frames(TrunkHello(mac=MAC, switch="leaf0", peer="spine", boot_id=boot))
        trunk.send_nowait(np.concatenate([told, frame(3, None)]))
        await crossed(host, frame(3, None))


async def test_a_new_trunk_knows_at_once_who_is_behind_it(runtime_dir: Path) -> None:
    """A host that has long been silent is not flooded for, though its trunk was down."""
    async with running_fabric(spine_and_leaves(runtime_dir)) as running:
        await running.trunks_up("spine", up=2)
        await running.trunks_up("leaf0", up=1)
        host = await running.plug(running.fabric.by_name["leaf0"].ports_path)
        first, second = [await running.plug(runtime_dir / "ports.sock") for _ in range(2)]
        await running.until("spine", lambda told: len(told["ports"]) == 4)
        host.send_nowait(frame(7, None))
        for port in (first, second):
            await crossed(port, frame(7, None))
        rival = await running.plug(runtime_dir / "trunk-leaf0.sock")  # takes the trunk's place for a moment
        boot = (await running.status("spine"))["boot_id"]
        rival.send_nowait(as_frames(TrunkHello(mac=MAC, switch="leaf0", peer="spine", boot_id=boot)))
        await running.until("spine", lambda told: told["trunks"][0]["times_up"] == 3)
        await running.trunks_up("leaf0", up=1)
        first.send_nowait(frame(8, 7))
        await crossed(host, frame(8, 7))
        first.send_nowait(frame(8, None))
        passed = await crossed(second, frame(8, None))
        assert frame(8, 7).tobytes() not in passed, "it was flooded"


def as_frames(told: TrunkHello) -> Frames:
    return np.frombuffer(told.encode(), dtype=np.uint8).reshape(1, -1)


async def test_a_leaf_that_dials_the_socket_of_another_is_named_at_both_ends(
    runtime_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {"leaf1": runtime_dir / "trunk-leaf0.sock"}
    with caplog.at_level(logging.INFO):
        async with running_fabric(spine_and_leaves(runtime_dir, trunks=wrong), start=False) as running:
            await running.start("spine")
            await running.start("leaf0")
            await running.trunks_up("spine", up=1)
            await running.start("leaf1")
            of_leaf = "the far side is spine, which wants leaf0; spine was expected, wanting leaf1"
            of_root = "the far side is leaf1, which wants spine; leaf0 was expected, wanting spine"
            await running.until("leaf1", lambda told: told["trunks"][0]["error"] == of_leaf)
            await running.until(
                "spine", lambda told: told["fabric"]["switches"][2]["trunk"]["error"] == of_leaf
            )
            (trunk, _) = (await running.status("spine"))["trunks"]
            assert (trunk["is_up"], trunk["refused"]) == (True, of_root)
    said = [record.getMessage() for record in caplog.records]
    assert said.count(f"no trunk to spine, it is tried again: {of_leaf}") == 1
    assert said.count(f"the trunk between leaf1 and spine is down: {of_leaf}") == 1
    assert sum(of_root in text for text in said) == 1


async def test_a_switch_that_is_refused_is_named_at_the_root(
    runtime_dir: Path, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    """It tries again every second, and that is said once."""
    async with running_fabric(spine_and_leaves(runtime_dir), start=False) as running:
        await running.start("spine")
        other = spine_and_leaves(runtime_dir, steers=["leaf1"])
        await running.start("leaf0", fabric=other)
        began = trio.current_time()
        await trio.sleep(20)
        (refused,) = (await running.status("spine"))["fabric"]["refused"]
        assert refused["switch"] == "leaf0"
        assert "has another fabric file than spine, the root" in refused["reason"]
        assert refused["since_s"] < trio.current_time() - began
        assert sum("another fabric file" in record.getMessage() for record in caplog.records) == 2
        await running.end("leaf0")
        await running.start("leaf0")
        await until_open(running, "spine", "leaf0")
        assert (await running.status("spine"))["fabric"]["refused"] == []
        second = await answer(running, "spine", switch_hello(running, "leaf0"))
        assert isinstance(second, Error)
        (refused,) = (await running.status("spine"))["fabric"]["refused"]
        assert refused["reason"] == (
            "another switch 'leaf0' is connected; give each switch daemon its own --name"
        )
