"""Descriptors that others send are closed at once, whatever their owner has set."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from inaproto.client.foreign_descriptors import discard
from inaproto.daemon.switch.capture_desk import CaptureRefused, stream_socket

LINGER_S = 600


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def lingering(stack: ExitStack) -> int:
    """The last descriptor of a connection whose close waits for its peer, which reads nothing."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    mine = socket.create_connection(listener.getsockname())
    peer, _ = listener.accept()
    stack.enter_context(peer)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    mine.setblocking(False)
    try:
        while True:
            mine.send(bytes(1 << 16))
    except BlockingIOError:
        return mine.detach()


def test_a_socket_that_would_wait_for_its_peer_is_closed(stack: ExitStack) -> None:
    """A close that lingers would take ten minutes, and nothing else of the process would run."""
    descriptor = lingering(stack)
    discard(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_what_is_no_socket_is_closed() -> None:
    descriptor, other = os.pipe()
    os.close(other)
    discard(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_capture_that_is_refused_waits_for_nobody(stack: ExitStack) -> None:
    descriptors = [lingering(stack), lingering(stack)]
    with pytest.raises(CaptureRefused):
        stream_socket(descriptors)
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
