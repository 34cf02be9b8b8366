"""One contract for control connections, over UNIX sockets, in memory and by TLS, and for where they meet."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.ca.identity import Role
from inaproto.client.unix_stream import UnixStream
from inaproto.daemon.net.tls import Credentials, identity_of
from inaproto.daemon.net.tls_stream import TlsStream
from inaproto.daemon.net.unix_sockets import UnixNetwork, connect_unix, listen_unix
from inaproto.errors import ConfigError
from inaproto.ports import ByteStream, PortClosed, StreamNetwork
from inaproto_adapters.memory import MemoryNetwork, StreamTiming, open_stream_pair
from tests.clusters.secure import Deployment

Pair = tuple[ByteStream, ByteStream]
DEADLINE_S = 600


def _unix_pair() -> Pair:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return UnixStream(ours), UnixStream(theirs)


def _memory_pair() -> Pair:
    return open_stream_pair(StreamTiming(bytes_max=4096))


@pytest.fixture
def tls_pair(tmp_path: Path) -> Callable[[], Pair]:
    """Both ends of TLS over UNIX sockets, after their handshake."""
    deployment = Deployment(tmp_path)
    credentials = Credentials(deployment.issue(Role.SWITCH, "spine"))

    def make() -> Pair:
        bios = [(ssl.MemoryBIO(), ssl.MemoryBIO()) for _ in range(2)]
        contexts = (credentials.client(), credentials.server())
        ends = [
            context.wrap_bio(*bio, server_side=bool(side))
            for side, (context, bio) in enumerate(zip(contexts, bios, strict=True))
        ]
        for _ in range(3):
            for side in range(2):
                with suppress(ssl.SSLWantReadError):
                    ends[side].do_handshake()
                bios[1 - side][0].write(bios[side][1].read())
        ours, theirs = (
            TlsStream(below, end, *bio, identity_of(end, ""))
            for below, end, bio in zip(_unix_pair(), ends, bios, strict=True)
        )
        return ours, theirs

    return make


@pytest.fixture(params=["unix", "memory", "tls"])
def any_pair(request: pytest.FixtureRequest) -> Callable[[], Pair]:
    if request.param == "tls":
        made: Callable[[], Pair] = request.getfixturevalue("tls_pair")
        return made
    return {"unix": _unix_pair, "memory": _memory_pair}[request.param]


@pytest.fixture(params=[_unix_pair, _memory_pair], ids=["unix", "memory"])
def open_pair(request: pytest.FixtureRequest) -> Callable[[], Pair]:
    made: Callable[[], Pair] = request.param
    return made


async def receive(stream: ByteStream) -> tuple[bytes, list[int]]:
    with trio.fail_after(DEADLINE_S):
        while True:
            try:
                data, descriptors = stream.receive_nowait()
                return data, list(descriptors)
            except BlockingIOError:
                await stream.wait_receivable()


def _fill(stream: ByteStream, nbytes: int = 1000) -> int:
    """Send ``nbytes`` at a time until it would block; how many bytes were taken."""
    sent = 0
    while True:
        try:
            sent += stream.send_nowait(memoryview(bytes(nbytes)))
        except BlockingIOError:
            return sent


async def test_bytes_arrive_in_order_both_ways(any_pair: Callable[[], Pair]) -> None:
    ours, theirs = any_pair()
    for stream, other in ((ours, theirs), (theirs, ours)):
        assert stream.send_nowait(memoryview(b"first ")) == 6
        assert stream.send_nowait(memoryview(b"second")) == 6
        got = b""
        while len(got) < 12:
            got += (await receive(other))[0]
        assert got == b"first second"
        with pytest.raises(BlockingIOError):
            other.receive_nowait()
    for stream in (ours, ours, theirs):
        stream.close()


async def test_a_full_stream_blocks_until_it_is_read(any_pair: Callable[[], Pair]) -> None:
    ours, theirs = any_pair()
    sent = _fill(ours)
    assert sent > 0
    woken = trio.Event()

    async def wait() -> None:
        await ours.wait_sendable()
        woken.set()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert not woken.is_set()
            while sent:
                sent -= len((await receive(theirs))[0])
    ours.close()
    theirs.close()


async def test_the_end_comes_behind_the_last_byte(any_pair: Callable[[], Pair]) -> None:
    ours, theirs = any_pair()
    assert not theirs.peer_is_gone()
    ours.send_nowait(memoryview(b"last words"))
    ours.close()
    assert theirs.peer_is_gone()
    assert await receive(theirs) == (b"last words", [])
    for _ in range(2):
        assert await receive(theirs) == (b"", [])
    with pytest.raises(BrokenPipeError):
        theirs.send_nowait(memoryview(b"?"))
    theirs.close()


async def test_closing_wakes_who_waits_and_ends_use(any_pair: Callable[[], Pair]) -> None:
    ours, theirs = any_pair()

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await ours.wait_receivable()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            ours.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        ours.receive_nowait()
    with pytest.raises(OSError, match="Bad file descriptor"):
        ours.send_nowait(memoryview(b"?"))
    theirs.close()


async def test_a_tls_peer_that_sends_without_end_leaves_others_their_turn(
    tls_pair: Callable[[], Pair],
) -> None:
    """Who reads waits now and then, even where there is always more; what is left then wakes it at once."""
    ours, theirs = tls_pair()
    sent = _fill(ours, 16_000)  # small ones take more of the kernel's memory than of its bytes
    got = waits = 0
    with trio.fail_after(DEADLINE_S):
        while got < sent:
            try:
                got += len(theirs.receive_nowait()[0])
            except BlockingIOError:
                waits += 1
                await theirs.wait_receivable()
    assert waits > 0
    ours.close()
    theirs.close()


async def test_descriptors_are_duplicates_and_come_with_the_first_byte(
    open_pair: Callable[[], Pair],
) -> None:
    ours, theirs = open_pair()
    with tempfile.TemporaryFile() as file:
        ours.send_nowait(memoryview(b"with a file"), (file.fileno(),))
        data, [descriptor] = await receive(theirs)
        assert data[:1] == b"w"
        assert descriptor != file.fileno()
        assert os.fstat(descriptor) == os.fstat(file.fileno())
        os.close(descriptor)
    ours.close()
    theirs.close()


async def test_descriptors_that_nobody_received_are_closed(open_pair: Callable[[], Pair]) -> None:
    reading, writing = os.pipe()
    ours, theirs = open_pair()
    ours.send_nowait(memoryview(b"with the write end"), (writing,))
    os.close(writing)
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):
        os.read(reading, 1)  # the duplicate under way keeps the pipe open
    ours.close()
    theirs.close()
    assert os.read(reading, 1) == b""
    os.close(reading)


# --- where they meet


@pytest.fixture(params=["unix", "memory"])
def network(request: pytest.FixtureRequest, runtime_dir: Path) -> Iterator[tuple[StreamNetwork, Path]]:
    if request.param == "unix":
        yield UnixNetwork(), runtime_dir / "meet.sock"
    else:
        yield MemoryNetwork(seed=1).node("one"), Path("/memory/meet.sock")


async def test_diallers_meet_the_listener_of_a_path(network: tuple[StreamNetwork, Path]) -> None:
    net, path = network
    with pytest.raises(FileNotFoundError):
        net.dial(path)
    listener = await net.listen(path, "test")
    ours = net.dial(path)
    with trio.fail_after(DEADLINE_S):
        theirs = await listener.accept()
    ours.send_nowait(memoryview(b"hello"))
    assert await receive(theirs) == (b"hello", [])
    assert theirs.peer_pid() > 0

    async def wait() -> None:
        with pytest.raises(PortClosed, match="was closed"):
            await listener.accept()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            listener.close()
    with pytest.raises(FileNotFoundError):
        net.dial(path)
    theirs.send_nowait(memoryview(b"goes on"))
    assert await receive(ours) == (b"goes on", [])
    for stream in (ours, theirs):
        stream.close()
    again = await net.listen(path, "test")
    with pytest.raises(ConfigError, match="already listening"):
        await net.listen(path, "test")
    again.close()


async def test_a_path_of_the_dead_refuses_until_somebody_listens_again() -> None:
    world = MemoryNetwork(seed=1)
    dead, living, path = world.node("dead"), world.node("living"), Path("/memory/meet.sock")
    listener = await dead.listen(path, "test")
    ours = living.dial(path)
    theirs = await listener.accept()
    dead.crash()
    assert await receive(ours) == (b"", [])
    with pytest.raises(OSError, match="Bad file descriptor"):
        theirs.send_nowait(memoryview(b"?"))
    with pytest.raises(ConnectionRefusedError):
        living.dial(path)
    (await world.node("dead").listen(path, "test")).close()
    ours.close()
    assert not world.open_ends


async def test_a_full_backlog_is_an_error_not_a_connection(runtime_dir: Path) -> None:
    path = runtime_dir / "full.sock"
    bound = await listen_unix(path, "test")
    made: list[socket.socket] = []
    try:
        while len(made) < 10_000:
            made.append(await connect_unix(path, "test"))
    except BlockingIOError:
        pass
    assert 0 < len(made) < 10_000
    for sock in made:
        assert sock.getpeername() == str(path)
        sock.close()
    bound.close()
