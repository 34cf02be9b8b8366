"""The switch's control socket, as the guest sees it: a UNIX socket there, TCP between, the real one outside.

The guest cannot connect to a UNIX socket of the machine; its user network reaches the machine's loopback.

    python -m inaproto_hil.softroce.relay PATH HOST PORT        is the end in the guest, until it is ended
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

_CHUNK_BYTES = 1 << 16


async def serve_unix(
    path: Path, host: str, port: int, *, task_status: trio.TaskStatus[list[trio.SocketListener]]
) -> None:
    """In the guest: what connects to ``path`` is connected to the relay outside."""
    listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listening.bind(str(path))
    listening.listen(128)
    await trio.serve_listeners(
        partial(_joined, dial=partial(trio.open_tcp_stream, host, port)),
        [trio.SocketListener(listening)],
        task_status=task_status,
    )


async def serve_tcp(path: Path, *, task_status: trio.TaskStatus[int]) -> None:
    """Outside: what connects to the port that is told, on loopback, is connected to ``path``."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        dial = partial(trio.open_unix_socket, path)
        await nursery.start(partial(trio.serve_listeners, partial(_joined, dial=dial), listeners))
        task_status.started(port)


async def _joined(near: trio.SocketStream, *, dial: Callable[[], Awaitable[trio.SocketStream]]) -> None:
    async with near:
        try:
            far = await dial()
        except OSError:
            return  # the near side sees its connection end, as if nobody had listened
        async with far, trio.open_nursery() as nursery:
            nursery.start_soon(_copy, near, far, nursery.cancel_scope)
            nursery.start_soon(_copy, far, near, nursery.cancel_scope)


async def _copy(source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
    try:
        while data := await source.receive_some(_CHUNK_BYTES):
            await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    scope.cancel()


async def main(path: Path, host: str, port: int) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_unix, path, host, port)
        print("ready", flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
