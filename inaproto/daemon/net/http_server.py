"""HTTP by Hypercorn: what goes wrong in a connection ends that connection, and no daemon.

What Hypercorn's parsers of HTTP/2 and WebSockets raise for a client's odd bytes (a frame out of place, text
that is no ASCII, an upgrade with settings that are none) it lets reach the task that accepts connections:
whoever may connect could end the process by one request. It looks up its server of a connection by name in
the module that accepts, and finds this one there.
"""

from __future__ import annotations

import logging

from hypercorn.trio import run, serve
from hypercorn.trio.tcp_server import TCPServer

__all__ = ["serve"]

log = logging.getLogger("inaproto.http")


class Connection(TCPServer):
    """One client's."""

    async def run(self) -> None:
        """Until it is closed, or its client has said what is no HTTP."""
        try:
            await super().run()
        except* Exception as group:  # noqa: BLE001  whatever its parsers raise
            log.info("a connection is closed, whose client says what is no HTTP: %r", group.exceptions[0])


run.TCPServer = Connection  # type: ignore[attr-defined]
