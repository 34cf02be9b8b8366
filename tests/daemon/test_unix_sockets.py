"""Sockets of the daemons: one owner per path, stale ones replaced, clear words for unusable places."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from inaproto.daemon.net.unix_sockets import (
    BoundSocket,
    _remedy,
    connect_unix,
    listen_unix,
    make_run_directory,
)
from inaproto.errors import ConfigError


@contextmanager
def unprivileged() -> Iterator[None]:
    """Without root's right to write everywhere, where the tests run as root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


async def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        await listen_unix(path, "control socket")
    assert str(caught.value).startswith("control socket: ")
    return str(caught.value)


async def test_listens_and_leaves_nothing_behind(runtime_dir: Path) -> None:
    path = runtime_dir / "c.sock"
    bound = await listen_unix(path, "control socket")
    with await connect_unix(path, "control socket"):
        accepted, _ = bound.sock.accept()
        accepted.close()
    bound.close()
    bound.close()
    assert os.listdir(runtime_dir) == []
    with pytest.raises(FileNotFoundError):
        await connect_unix(path, "control socket")


async def test_the_socket_of_a_killed_daemon_is_replaced(runtime_dir: Path) -> None:
    path = runtime_dir / "c.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(os.fspath(path))
        stale.listen()
    bound = await listen_unix(path, "control socket")
    (await connect_unix(path, "control socket")).close()
    bound.close()


async def test_the_socket_of_a_living_daemon_is_not(runtime_dir: Path) -> None:
    path = runtime_dir / "c.sock"
    bound = await listen_unix(path, "control socket")
    assert f"another daemon is already listening at {path}" in await refusal(path)
    assert path.exists()
    bound.close()


async def test_a_socket_that_somebody_took_over_is_left_alone(runtime_dir: Path) -> None:
    path = runtime_dir / "c.sock"
    first = await listen_unix(path, "control socket")
    path.unlink()
    second = await listen_unix(path, "control socket")
    first.close()
    assert path.exists()
    second.close()


async def test_places_where_no_socket_can_be(runtime_dir: Path) -> None:
    (runtime_dir / "file").write_text("")
    assert "exists and is not a socket" in await refusal(runtime_dir / "file")
    assert "does not exist; make it first" in await refusal(runtime_dir / "missing" / "c.sock")
    assert "UNIX sockets allow 107" in await refusal(runtime_dir / ("x" * 110))
    os.chmod(runtime_dir, 0o555)
    with unprivileged():
        text = await refusal(runtime_dir / "c.sock")
    os.chmod(runtime_dir, 0o700)
    assert "Permission denied; make" in text
    assert "writable for user" in text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_directory_is_named(number: int) -> None:
    text = _remedy(OSError(number, os.strerror(number)), Path("/run/ina"))
    assert "free space or files in /run/ina" in text


async def test_a_directory_that_another_program_locks(runtime_dir: Path, autojump_clock: MockClock) -> None:
    holder = os.open(runtime_dir, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert "has been locked by another program for 2 s" in await refusal(runtime_dir / "c.sock")
    os.close(holder)


async def test_of_two_that_start_at_once_one_wins(runtime_dir: Path) -> None:
    path = runtime_dir / "c.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(os.fspath(path))
    listening: list[BoundSocket] = []
    refused: list[str] = []

    async def start() -> None:
        try:
            listening.append(await listen_unix(path, "control socket"))
        except ConfigError as error:
            refused.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        nursery.start_soon(start)
    assert (len(listening), len(refused)) == (1, 1)
    listening[0].close()


def test_run_directory_is_private_and_made_once(runtime_dir: Path) -> None:
    directory = runtime_dir / "run"
    make_run_directory(directory, "switch")
    make_run_directory(directory, "switch")
    assert directory.stat().st_mode & 0o777 == 0o700


def test_run_directories_that_cannot_be(runtime_dir: Path) -> None:
    (runtime_dir / "file").write_text("")
    with pytest.raises(ConfigError, match="is not a directory"):
        make_run_directory(runtime_dir / "file", "switch")
    with pytest.raises(ConfigError, match="does not exist; make it first"):
        make_run_directory(runtime_dir / "a" / "b", "switch")
    (runtime_dir / "mine").mkdir()
    runtime_dir.chmod(0o555)
    with unprivileged(), pytest.raises(ConfigError, match=r"Permission denied; make .* writable"):
        make_run_directory(runtime_dir / "theirs", "switch")
    runtime_dir.chmod(0o700)


def test_a_run_directory_of_somebody_else_is_refused(runtime_dir: Path) -> None:
    user = os.geteuid()
    theirs = runtime_dir / "theirs"
    theirs.mkdir()
    if user == 0:  # as anybody but root, one can neither give a directory away nor become another user
        os.chown(theirs, 12345, 12345)
        runtime_dir.chmod(0o755)
        with unprivileged(), pytest.raises(ConfigError, match="belongs to user 12345"):
            make_run_directory(theirs, "switch")
        with pytest.raises(ConfigError, match="belongs to user 12345, not to 0"):
            make_run_directory(theirs, "switch")
        os.chown(theirs, 0, 0)
    make_run_directory(theirs, "switch")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_run_directory_that_everybody_may_write_is_refused(runtime_dir: Path, mode: int) -> None:
    open_to_all = runtime_dir / "open"
    open_to_all.mkdir()
    open_to_all.chmod(mode)
    with pytest.raises(ConfigError, match=r"everybody may write in .*open; chmod o-w it"):
        make_run_directory(open_to_all, "switch")
    open_to_all.chmod(0o770)
    make_run_directory(open_to_all, "switch")
