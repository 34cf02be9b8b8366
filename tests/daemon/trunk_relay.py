"""A relay on a trunk between two switches, which a test can cut: bytes as they come, both ways."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import trio

from inaproto.daemon.net.unix_sockets import connect_unix, listen_unix

CHUNK_BYTES = 1 << 16


class TrunkRelay:
    """Listens at ``path`` and passes on to ``target``; cut, it closes what it has and takes nothing."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self.joined = 0
        """Connections that found a target."""
        self._target = target
        self._is_cut = False
        self._scopes: list[trio.CancelScope] = []

    def cut(self) -> None:
        self._is_cut = True
        scopes, self._scopes = self._scopes, []
        for scope in scopes:
            scope.cancel()

    def heal(self) -> None:
        self._is_cut = False

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        bound = await listen_unix(self.path, "trunk relay")
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound.sock))
        task_status.started()
        await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, below: trio.SocketStream) -> None:
        if self._is_cut:
            await below.aclose()
            return
        with trio.CancelScope() as scope, suppress(trio.BrokenResourceError, OSError):
            self._scopes.append(scope)
            sock = trio.socket.from_stdlib_socket(await connect_unix(self._target, "trunk relay"))
            async with below, trio.SocketStream(sock) as above, trio.open_nursery() as nursery:
                self.joined += 1
                nursery.start_soon(_pass_on, below, above, nursery.cancel_scope)
                nursery.start_soon(_pass_on, above, below, nursery.cancel_scope)
        await trio.aclose_forcefully(below)


async def _pass_on(source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while data := await source.receive_some(CHUNK_BYTES):
            await sink.send_all(data)
    scope.cancel()
