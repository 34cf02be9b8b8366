"""Who listens takes what comes, one after the other, and outlives a shortage of descriptors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from inaproto.errors import FabricError
from inaproto.ports import ByteStream, PortClosed, StreamListener

ACCEPT_RETRY_S: Final = 0.1


async def take_each(
    listener: StreamListener, take: Callable[[ByteStream], object], log: logging.Logger, what: str
) -> None:
    """Until ``listener`` is closed. ``take`` starts a task for a connection, or closes it."""
    while True:
        try:
            connection = await listener.accept()
        except PortClosed:
            return
        except FabricError as error:
            log.warning("no new %s: %s", what, error)
            await trio.sleep(ACCEPT_RETRY_S)
        else:
            take(connection)
