"""TCP of daemons: how much the kernel keeps."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from inaproto.daemon.models.channels.message_channel import StreamChannel
from inaproto.daemon.models.channels.pacing import Paces
from inaproto.daemon.net.tcp_stream import TcpStream

RATE = 1_600_000
"""Bytes/s; 16 KB in the time that a channel may hold."""


@pytest.fixture
def ends() -> Iterator[tuple[TcpStream, TcpStream]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = TcpStream(socket.create_connection(listener.getsockname()))
        far = TcpStream(listener.accept()[0])
    yield near, far
    near.close()
    far.close()


def swallowed(stream: TcpStream) -> int:
    """Bytes that it takes though nobody reads; at most 16 MiB."""
    data, taken = memoryview(bytes(64 << 10)), 0
    while taken < 16 << 20:
        try:
            taken += stream.send_nowait(data)
        except BlockingIOError:
            break
    return taken


def test_a_channel_that_may_have_to_make_way_keeps_little_in_the_kernel(
    ends: tuple[TcpStream, TcpStream],
) -> None:
    """Of a megabyte that is there already a lower rate would change nothing."""
    paces = Paces.of(RATE, [3, 9])
    for end in ends:
        StreamChannel(end, "test").pace(paces, 3)
    assert swallowed(ends[0]) <= 256 << 10


def test_the_most_important_channel_keeps_what_the_kernel_thinks_best(
    ends: tuple[TcpStream, TcpStream],
) -> None:
    paces = Paces.of(RATE, [3, 9])
    for end in ends:
        StreamChannel(end, "test").pace(paces, 9)
    assert swallowed(ends[0]) > 256 << 10
