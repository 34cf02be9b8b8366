"""How long the links of a host (:mod:`inaproto.core.host.link`) take to connect."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from inaproto.core.host.link import Link
from inaproto.ports import Nic


class Connecting:
    """The wait for the queue pairs of a link, which are not connected yet when ``connect`` returns."""

    def __init__(self, link: Link, nic: Nic) -> None:
        self.link = link
        self._nic = nic
        self._qpns: Sequence[int] = link.connecting
        self._scope = trio.CancelScope()

    async def wait(self) -> None:
        """Once: until those beside this host may send. Returns at once when the link is given back.

        Raises ``FabricError`` if one of them cannot be reached, ``PortClosed``.
        """
        with self._scope:
            for qpn in self._qpns:
                await self._nic.wait_connected(qpn)

    def end(self) -> None:
        self._scope.cancel()
