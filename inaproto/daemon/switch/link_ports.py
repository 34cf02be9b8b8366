"""Ports of the switch on network interfaces: attached while their interface can be used, for as long as the
switch runs.

Invariants: an interface that goes down, is removed, or cannot be attached takes nothing else with it, and is
attached again when it is back; why it is not attached now is in the status and, once each time it changes, in
the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import trio

from inaproto.daemon.switch.ports import PortBoard
from inaproto.errors import FabricError
from inaproto.ports import Link
from inaproto.units import PortId

log = logging.getLogger("inaproto.switch")

RETRY_S: Final = 0.5
"""Pause between attempts: an interface that seems usable and is not must not keep the switch busy."""


class LinkPorts:
    """``links`` have the numbers from ``board.first_link`` on."""

    def __init__(self, links: Sequence[Link], board: PortBoard) -> None:
        self._board = board
        self._links = [_State(link, PortId(board.first_link + i)) for i, link in enumerate(links)]

    async def serve(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for state in self._links:
                nursery.start_soon(self._keep, state)

    async def _keep(self, state: _State) -> None:
        while True:
            if self._board.is_open:
                try:
                    port = await state.link.attach()
                except FabricError as error:
                    state.away(error.cause)
                else:
                    state.attached()
                    state.away(await self._board.serve(state.port_id, port, state.link.name))
                await state.link.wait_usable()
            await trio.sleep(RETRY_S)

    def status(self) -> list[dict[str, Any]]:
        """One record for each, up or down."""
        return [state.status() for state in self._links]


class _State:
    def __init__(self, link: Link, port_id: PortId) -> None:
        self.link = link
        self.port_id = port_id
        self._is_attached = False
        self._since = trio.current_time()
        self._times_up = 0
        self._error = "not tried yet"

    def attached(self) -> None:
        self._is_attached = True
        self._since = trio.current_time()
        self._times_up += 1
        self._error = ""

    def away(self, reason: str) -> None:
        if self._is_attached:
            self._since = trio.current_time()
        elif reason != self._error:
            log.warning("%s cannot be used, and is waited for: %s", self.link.name, reason)
        self._is_attached = False
        self._error = reason

    def status(self) -> dict[str, Any]:
        return {
            "link": self.link.name,
            "port": int(self.port_id),
            "is_attached": self._is_attached,
            "since_s": round(trio.current_time() - self._since, 3),
            "times_up": self._times_up,
            "error": self._error,
        }
