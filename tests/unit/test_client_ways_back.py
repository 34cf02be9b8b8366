"""Ways to a daemon's successor: by several sockets, while a rank still joins, in Trio, in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock

import inaproto
from inaproto.client.blocking_communicator import connect_blocking
from inaproto.client.unix_stream import dial_unix
from inaproto.client.watcher import WATCHER
from inaproto.daemon.net.control_stream import ControlStream
from inaproto.errors import DaemonUnreachable
from inaproto.ports import ByteStream
from inaproto.wire.control_messages import Status, StatusReply
from inaproto.wire.messages.client import (
    AllReduce,
    Buffer,
    Done,
    Join,
    Joined,
    Leave,
    Ok,
    Rejoin,
)
from inaproto_adapters.memory import MemoryNetwork
from tests.unit.fake_host import DEADLINE_S, Host, in_thread, leave, ones, until


@pytest.fixture
def path(runtime_dir: Path) -> Iterator[Path]:
    yield runtime_dir / "h0.sock"
    until(lambda: not WATCHER.is_running)  # with the last channel it ends


# --- several sockets


def test_of_parallel_rings_the_one_returns_whose_daemon_is_gone(path: Path) -> None:
    paths = [path, path.with_name("h1.sock")]
    hosts = [Host(each) for each in paths]
    connecting = in_thread(connect_blocking, "j", 0, size=2, socket=paths, timeout=DEADLINE_S)
    here = [host.join()[1] for host in hosts]
    for connection in here:
        connection.say(StatusReply(id=connection.take(Status).id, body={"rings": []}))
    comm = connecting.result(DEADLINE_S)
    work = comm.all_reduce(np.arange(64, dtype=np.float32))
    for connection in here:
        connection.take(Buffer)
    here[1].end(1)
    hosts[0] = hosts[0].followed()
    here[0] = hosts[0].accept()
    rejoin, again = here[0].rejoined(1, 1)
    assert rejoin.job == "j#0/2"
    here[0].say(Ok(id=rejoin.id), *[here[0].sum(each) for each in again])
    assert work.wait(DEADLINE_S).tolist() == [2 * each for each in range(64)]
    assert comm.returns == 1
    closing = in_thread(comm.close)
    for connection in here:
        connection.say(Ok(id=connection.take(Leave).id))
    closing.result(DEADLINE_S)
    for host in hosts:
        host.kill()


# --- before all have joined


def test_who_still_joins_joins_again(path: Path) -> None:
    host = Host(path)
    connecting = in_thread(connect_blocking, "j", 0, size=2, key="k", socket=path, timeout=DEADLINE_S)
    first = host.accept().take(Join)
    host = host.followed()
    connection = host.accept()
    again = connection.take(Join)
    assert again.life == first.life != ""
    host.say_joined(connection, again)
    comm = connecting.result(DEADLINE_S)
    leave(connection, comm)
    host.kill()


def test_who_joins_in_vain_says_that_the_daemon_is_gone(path: Path) -> None:
    host = Host(path)
    connecting = in_thread(connect_blocking, "j", 0, size=2, socket=path, timeout=0.5)
    host.accept().take(Join)
    host.kill()
    with pytest.raises(DaemonUnreachable, match=r"h0\.sock is gone, and none has followed it within 0\.5 s"):
        connecting.result(DEADLINE_S)


async def test_who_still_joins_in_trio_joins_again(path: Path) -> None:
    host = Host(path)

    def play() -> None:
        host.accept().take(Join)
        successor = host.followed()
        _, connection = successor.join()
        connection.say(Ok(id=connection.take(Leave).id))
        connection.wait_closed()
        successor.kill()

    async def rank() -> None:
        comm = await inaproto.connect("j", 0, size=2, socket=path, timeout=DEADLINE_S)
        await comm.aclose()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rank)
            await trio.to_thread.run_sync(play)


# --- in memory, where no thread can wait for a descriptor


class MemoryHost:
    """As :class:`tests.unit.fake_host.Host`, for one rank."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.node = network.node("h0")

    async def accept(self) -> ControlStream:
        self.node = self.network.node("h0")
        listener = await self.node.listen(Path("/h0.sock"), "the host daemon")
        return ControlStream(await listener.accept())

    async def join(self) -> ControlStream:
        stream = await self.accept()
        join = await stream.receive()
        assert isinstance(join, Join)
        journal = os.memfd_create("journal")
        said = Joined(id=join.id, ring_id=3, rank=0, size=2, named=True, successor_ms=5000)
        await stream.send(said, descriptors=[journal])
        os.close(journal)
        return stream


async def test_in_memory_whoever_waits_looks_for_the_successor(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    host = MemoryHost(network)
    results: list[list[float]] = []

    async def rank() -> None:
        dial = network.node("rank").dial
        comm = await inaproto.connect("j", 0, size=2, socket="/h0.sock", dial=dial, timeout=DEADLINE_S)
        results.append((await comm.all_reduce(ones())).tolist())
        assert comm.returns == 1
        host.node.crash()
        began = trio.current_time()
        with pytest.raises(DaemonUnreachable, match=r"no successor there has taken this rank on within 5 s"):
            await comm.all_reduce(ones())
        assert 5 <= trio.current_time() - began < 5.1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(rank)
        stream = await host.join()
        assert isinstance(await stream.receive(), Buffer)
        assert isinstance(await stream.receive(), AllReduce)
        host.node.crash()
        await trio.sleep(1)
        stream = await host.accept()
        rejoin = await stream.receive()
        assert isinstance(rejoin, Rejoin)
        journal = stream.take_descriptor()
        assert journal is not None
        os.close(journal)
        assert isinstance(await stream.receive(), Buffer)
        assert isinstance(await stream.receive(), AllReduce)
        assert trio.current_time() < 1.1
        assert not WATCHER.is_running
        await stream.send(Ok(id=rejoin.id))
        await stream.send(Done(op_index=0, path="switch", ns=7))
    assert results == [[1] * 3]


def test_of_parallel_rings_those_join_again_whose_daemons_go(path: Path) -> None:
    paths = [path, path.with_name("h1.sock")]
    hosts = [Host(each) for each in paths]
    connecting = in_thread(connect_blocking, "j", 0, size=2, socket=paths, timeout=DEADLINE_S)
    first, second = hosts[0].accept(), hosts[1].accept()
    joins = [first.take(Join), second.take(Join)]
    hosts[0].say_joined(first, joins[0])
    hosts[1] = hosts[1].followed()
    second = hosts[1].accept()
    assert second.take(Join).job == joins[1].job == "j#1/2"
    hosts[1].say_joined(second, joins[1])
    for connection in (first, second):
        connection.say(StatusReply(id=connection.take(Status).id, body={"rings": []}))
    comm = connecting.result(DEADLINE_S)
    closing = in_thread(comm.close)
    for connection in (first, second):
        connection.say(Ok(id=connection.take(Leave).id))
    closing.result(DEADLINE_S)
    for host in hosts:
        host.kill()


async def test_tasks_that_wait_for_the_successor_are_not_woken_meanwhile(path: Path) -> None:
    host = Host(path)
    rounds: list[int] = []
    tries = 0

    def dial(to: Path) -> ByteStream:
        nonlocal tries
        tries += 1
        return dial_unix(to)

    def play() -> None:
        _, connection = host.join()
        connection.take(Buffer)
        for _ in range(3):
            connection.take(AllReduce)
        before = tries
        host.kill()
        until(lambda: tries > before + 10)
        successor = Host(path)
        back = successor.accept()
        rejoin, again = back.rejoined(1, 3)
        back.say(Ok(id=rejoin.id), *[back.sum(each) for each in again])
        back.say(Ok(id=back.take(Leave).id))
        back.wait_closed()
        successor.kill()

    async def rank() -> None:
        comm = await inaproto.connect("j", 0, size=2, socket=path, timeout=DEADLINE_S, dial=dial)
        pump = comm.channel.pump

        def count() -> None:
            rounds.append(tries)
            pump()

        comm.channel.pump = count  # type: ignore[method-assign]
        works = [comm.all_reduce(ones(each)) for each in range(3)]
        async with trio.open_nursery() as nursery:
            for work in works:
                nursery.start_soon(work.wait)
        assert [(await work).tolist() for work in works] == [[0] * 3, [2] * 3, [4] * 3]
        await comm.aclose()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rank)
            await trio.to_thread.run_sync(play)
    assert len(rounds) < 40, "three tasks, a few rounds for what happens once each"
