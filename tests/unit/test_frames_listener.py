"""Listening and connecting: any start order, and a clear word for every path that cannot work."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.errors import ConfigError, FabricError
from inaproto.ports import PortClosed, load_adapter
from inaproto_adapters.frames import ADAPTER, FrameListener, connect_frame_port, open_frame_listener
from inaproto_adapters.frames.listener import _cannot_listen
from tests.daemon.test_unix_sockets import unprivileged

FRAME = np.full((1, 62), 5, dtype=np.uint8)


def leave_stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.fspath(path))
        sock.listen()


async def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        await open_frame_listener(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


async def test_every_connection_is_a_port_of_its_own(runtime_dir: Path) -> None:
    path = runtime_dir / "ports.sock"
    listener = await open_frame_listener(path)
    ends = [(await connect_frame_port(path), await listener.accept()) for _ in range(3)]
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            for near, _ in ends:
                nursery.start_soon(near.run)
            for number, (near, _) in enumerate(ends):
                near.send_nowait(FRAME + np.uint8(number))
            for number, (_, far) in enumerate(ends):
                assert (await far.receive())[0][0, 0] == 5 + number
            await ends[0][0].aclose()
            ends[1][0].send_nowait(FRAME)
            assert (await ends[1][1].receive())[0].tobytes() == FRAME.tobytes()
            nursery.cancel_scope.cancel()
    for near, far in ends:
        await near.aclose()
        await far.aclose()
    await listener.aclose()


async def test_garbage_on_one_port_leaves_the_others_alone(runtime_dir: Path) -> None:
    path = runtime_dir / "ports.sock"
    listener = await open_frame_listener(path)
    good = await connect_frame_port(path)
    good_far = await listener.accept()
    with socket.socket(socket.AF_UNIX) as raw, trio.fail_after(600):
        raw.connect(os.fspath(path))
        bad_far = await listener.accept()
        raw.sendall(b"\xde\xad\xbe\xef" * 100)
        with pytest.raises(PortClosed, match=r"3735928559 bytes .length prefix de ad be ef"):
            await bad_far.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(good.run)
            good.send_nowait(FRAME)
            assert len(await good_far.receive()) == 1
            nursery.cancel_scope.cancel()
    for port in (good, good_far, bad_far):
        await port.aclose()
    await listener.aclose()


async def test_connector_may_start_first(runtime_dir: Path, autojump_clock: MockClock) -> None:
    path = runtime_dir / "later.sock"
    async with trio.open_nursery() as nursery:

        async def connect() -> None:
            port = await connect_frame_port(path, wait_ns=60_000_000_000)
            await port.aclose()

        nursery.start_soon(connect)
        await trio.sleep(30)
        listener = await open_frame_listener(path)
        await (await listener.accept()).aclose()
    await listener.aclose()


async def test_connector_gives_up_and_says_what_where_and_how_long(
    runtime_dir: Path, autojump_clock: MockClock
) -> None:
    path = runtime_dir / "nobody.sock"
    with pytest.raises(FabricError) as caught:
        await connect_frame_port(path, wait_ns=3_000_000_000)
    assert str(path) in str(caught.value)
    assert "3.0 s" in str(caught.value)
    assert "no such socket" in str(caught.value)
    assert caught.value.retryable
    leave_stale_socket(path)
    with pytest.raises(FabricError, match="nobody listens"):
        await connect_frame_port(path, wait_ns=1)


async def test_connecting_to_what_can_never_work_fails_at_once(runtime_dir: Path) -> None:
    plain = runtime_dir / "plain"
    plain.write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        await connect_frame_port(plain / "x.sock")
    with pytest.raises(ConfigError, match="107 at most"):
        await connect_frame_port(runtime_dir / ("x" * 120))


async def test_waiting_connector_can_be_cancelled(runtime_dir: Path) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: connect_frame_port(runtime_dir / "x.sock", wait_ns=10**15))
            await wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught


async def test_path_of_the_greatest_length_works(runtime_dir: Path) -> None:
    path = runtime_dir / ("p" * (107 - len(os.fsencode(runtime_dir)) - 1))
    assert len(os.fsencode(path)) == 107
    listener = await open_frame_listener(path)
    near = await connect_frame_port(path)
    await (await listener.accept()).aclose()
    await near.aclose()
    await listener.aclose()
    assert "108 bytes, 107 at most" in await refusal(path.with_name(path.name + "p"))


async def test_refused_paths_name_themselves_and_the_remedy(runtime_dir: Path) -> None:
    assert "mkdir -p" in await refusal(runtime_dir / "missing" / "x.sock")
    plain = runtime_dir / "plain"
    plain.write_text("kept")
    assert "not a socket" in await refusal(plain)
    assert plain.read_text() == "kept"
    assert "not a directory" in await refusal(plain / "x.sock")
    assert os.listdir(runtime_dir) == ["plain"]


async def test_directory_that_is_not_writable_is_refused(runtime_dir: Path) -> None:
    closed = runtime_dir / "closed"
    os.mkdir(closed, mode=0o555)
    os.chmod(runtime_dir, 0o755)
    with unprivileged():
        assert "cannot write" in await refusal(closed / "x.sock")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_directory_is_named(number: int) -> None:
    error = _cannot_listen(Path("/run/ina/ports.sock"), OSError(number, os.strerror(number)))
    assert "cannot listen at /run/ina/ports.sock: /run/ina is full" in str(error)
    assert "df -i /run/ina" in str(error)


async def test_socket_of_a_killed_process_is_replaced(runtime_dir: Path) -> None:
    path = runtime_dir / "ports.sock"
    leave_stale_socket(path)
    listener = await open_frame_listener(path)
    near = await connect_frame_port(path, wait_ns=1)
    await near.aclose()
    await listener.aclose()


async def test_leavings_of_a_killed_start_are_in_nobodys_way(runtime_dir: Path) -> None:
    leave_stale_socket(runtime_dir / f".ports.sock.{os.getpid()}")
    listener = await open_frame_listener(runtime_dir / "ports.sock")
    assert os.listdir(runtime_dir) == ["ports.sock"]
    await listener.aclose()


async def test_living_listener_is_not_replaced(runtime_dir: Path) -> None:
    path = runtime_dir / "ports.sock"
    listener = await open_frame_listener(path)
    assert "another process already does" in await refusal(path)
    near = await connect_frame_port(path, wait_ns=1)
    await near.aclose()
    await listener.aclose()


async def test_of_two_that_start_at_once_one_listens(runtime_dir: Path) -> None:
    path = runtime_dir / "ports.sock"
    leave_stale_socket(path)
    listeners: list[FrameListener] = []
    refused: list[str] = []

    async def start() -> None:
        try:
            listeners.append(await open_frame_listener(path))
        except ConfigError as error:
            refused.append(str(error))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(start)
    assert len(listeners) == 1
    assert len(refused) == 3
    assert os.listdir(runtime_dir) == ["ports.sock"]
    await listeners[0].aclose()


async def test_locked_directory_is_refused_in_bounded_time(
    runtime_dir: Path, autojump_clock: MockClock
) -> None:
    other = os.open(runtime_dir, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "has locked" in await refusal(runtime_dir / "ports.sock")
    finally:
        os.close(other)


async def test_closing_removes_only_the_own_socket(runtime_dir: Path) -> None:
    path = runtime_dir / "ports.sock"
    first = await open_frame_listener(path)
    path.unlink()
    second = await open_frame_listener(path)
    await first.aclose()
    assert path.exists()
    await second.aclose()
    assert not path.exists()
    await second.aclose()


async def test_closing_ends_a_waiting_accept(runtime_dir: Path) -> None:
    listener = await open_frame_listener(runtime_dir / "ports.sock")
    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            with pytest.raises(PortClosed, match=r"ports\.sock was closed"):
                await listener.accept()

        nursery.start_soon(accept)
        await wait_all_tasks_blocked()
        await listener.aclose()


async def test_adapter_listens_connects_and_makes_pairs(runtime_dir: Path) -> None:
    assert load_adapter("frames") is ADAPTER
    frames = ADAPTER.open(frame_bytes_max=2000)
    listener = await frames.listen(runtime_dir / "ports.sock")
    near = await frames.connect(runtime_dir / "ports.sock", wait_ns=1)
    far = await listener.accept()
    left, right = frames.pair()
    for port in (near, far, left, right):
        assert port.capabilities.frame_bytes_max == 2000
        await port.aclose()
    await listener.aclose()
