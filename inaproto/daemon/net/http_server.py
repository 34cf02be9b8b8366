"""HTTP by Hypercorn: what goes wrong in a connection ends that connection, and no daemon.

What Hypercorn's parsers of HTTP/2 and WebSockets raise for a client's odd bytes (a frame out of place, text
that is no ASCII, an upgrade with settings that are none) it lets reach the task that accepts connections:
whoever may connect could end the process by one request. It looks up its server of a connection by name in
the module that accepts, and finds this one there, for a configuration of ours: a program around ours may
have servers by Hypercorn, too.

Each server has a bound of connections at a time: whoever may connect could else take all descriptors that the
process may have, which its own peers need. One more is closed before anything is read of it.
"""

from __future__ import annotations

import logging
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import run, serve
from hypercorn.trio.tcp_server import TCPServer

__all__ = ["HttpConfig", "serve"]

log = logging.getLogger("inaproto.http")


class HttpConfig(Config):
    """How one server is to be, and how many connections it has now."""

    connections_max: int = 256
    connections: int = 0
    """Now."""
    is_full: bool = False
    """The log has a line of it."""


class Connection(TCPServer):
    """One client's."""

    config: HttpConfig

    async def run(self) -> None:
        """Until it is closed, or its client has said what is no HTTP."""
        server = self.config
        if server.connections >= server.connections_max:
            if not server.is_full:
                log.warning("connections are refused: there are %d already, the limit", server.connections)
            server.is_full = True
            await trio.aclose_forcefully(self.stream)
            return
        server.connections += 1
        try:
            await super().run()
        except* Exception as group:  # noqa: BLE001  whatever its parsers raise
            log.info("a connection is closed, whose client says what is no HTTP: %r", group.exceptions[0])
        finally:
            server.connections -= 1
            server.is_full = False

    async def _read_data(self) -> None:
        """Until its client says no more: what would close it when it is idle need not wait for that then.

        Hypercorn has it wait, and would keep the descriptor of who is gone as long as that of who is idle.
        """
        await super()._read_data()
        await self.idle_task.stop()


def _connection(app: Any, config: Config, *rest: Any) -> TCPServer:
    return (Connection if isinstance(config, HttpConfig) else TCPServer)(app, config, *rest)


run.TCPServer = _connection  # type: ignore[attr-defined,assignment]
