"""Odd HTTP ends the connection by which it comes, and nothing else."""

from __future__ import annotations

import struct
from typing import Final

import pytest
import trio

from inaproto.daemon.net import http_server, metrics_server
from inaproto.daemon.net.metrics_server import serve_metrics
from inaproto_controller.service import daemon

UPGRADE: Final = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: "
H2: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4\0" + bytes(4)
"""The preface, and settings that say nothing."""
PRIORITIES: Final = b"".join(
    b"\0\0\5\2\0" + struct.pack(">IIB", stream, 0, 15) for stream in range(3, 3003, 2)
)


def headers(*fields: tuple[bytes, bytes]) -> bytes:
    """A frame of them, none of which is indexed."""
    block = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields
    )
    return struct.pack(">I", len(block))[1:] + b"\1\5" + struct.pack(">I", 1) + block


GET: Final = ((b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"x"))
ODD: Final = {
    "settings that are no base64": UPGRADE + b"h2c\r\nHTTP2-Settings: !!!!a\r\n\r\n",
    "settings that cannot be": UPGRADE + b"h2c\r\nHTTP2-Settings: AAL_____\r\n\r\n",
    "a WebSocket in bytes": UPGRADE
    + b"websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    + b"Sec-WebSocket-Extensions: \xff\r\nSec-WebSocket-Protocol: \xff\r\n\r\n",
    "a path in bytes": H2 + headers(*GET, (b":path", b"/\xff\xfe")),
    "a method in bytes": H2 + headers((b":method", b"G\xff"), *GET[1:], (b":path", b"/")),
    "no path": H2 + headers((b":method", b"CONNECT"), (b":authority", b"x")),
    "many priorities": H2 + PRIORITIES,
}


@pytest.mark.parametrize("odd", ODD)
async def test_a_daemon_outlives_it(odd: str) -> None:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve_metrics, "127.0.0.1:0", lambda status: [], dict)
        port = int(url.removesuffix("/metrics").rpartition(":")[2])
        with trio.fail_after(600):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(ODD[odd])
                try:
                    while await stream.receive_some():
                        pass
                except trio.BrokenResourceError:
                    pass
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answer = b"".join([part async for part in stream])
        assert answer.startswith(b"HTTP/1.1 200")
        nursery.cancel_scope.cancel()


def test_controller_and_metrics_are_served_so() -> None:
    assert vars(metrics_server)["serve"] is vars(daemon)["serve"] is http_server.serve


async def test_who_asks_for_a_format_that_is_none_gets_the_usual_one() -> None:
    odd = b"application/openmetrics-text;version=\xff;escaping=;;q"
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve_metrics, "127.0.0.1:0", lambda status: [], dict)
        port = int(url.removesuffix("/metrics").rpartition(":")[2])
        with trio.fail_after(600):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                head = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: "
                await stream.send_all(head + odd + b"\r\n\r\n")
                answer = b"".join([part async for part in stream])
        assert answer.startswith(b"HTTP/1.1 200")
        nursery.cancel_scope.cancel()


async def asked(port: int) -> tuple[trio.SocketStream, bool]:
    """A connection, and whether it has had an answer."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    try:
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        return stream, (await stream.receive_some()).startswith(b"HTTP/1.1 200")
    except trio.BrokenResourceError:
        return stream, False


async def test_connections_at_a_time_are_limited_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "CONNECTIONS_MAX", 3)
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve_metrics, "127.0.0.1:0", lambda status: [], dict)
        port = int(url.removesuffix("/metrics").rpartition(":")[2])
        with trio.fail_after(600):
            for _ in range(2):
                held: list[trio.SocketStream] = []
                while len(held) < 3:  # the server may have yet to see that those before are gone
                    stream, is_answered = await asked(port)
                    if is_answered:
                        held.append(stream)
                    else:
                        await stream.aclose()
                for _ in range(4):
                    stream, is_answered = await asked(port)
                    assert not is_answered
                    await stream.aclose()
                for stream in held:
                    await stream.aclose()
        nursery.cancel_scope.cancel()
