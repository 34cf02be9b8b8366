"""Ports that are left alone for a while, and then looked at together (interrupt moderation).

The task of the port after whose frames the accelerator may rest (:mod:`inaproto.core.switch.moderation`)
serves all ports in rounds, until there is no rest any more; tasks of other ports that would wait for frames
wait for the end of that. So a round costs one wake-up, however many ports there are, and what came at all of
them is one step: results that the ports of several ranks make whole leave once.

Invariants: a port is asked by one task at a time; a task that ends, by whatever, leaves no other one waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from inaproto.core.switch.events import FramesArrived
from inaproto.core.switch.moderation import Moderation
from inaproto.daemon.shell import Rest, current_instant
from inaproto.ports import PortClosed, TakesNow
from inaproto.units import Frames, PortId, S


class Rounds:
    """``arrived`` is told what came at ports, and passes it on at once."""

    def __init__(self, moderation: Moderation, arrived: Callable[[Sequence[FramesArrived]], None]) -> None:
        self._moderation = moderation
        self._arrived = arrived
        self._rest = Rest()
        self._is_led = False
        self._members: dict[TakesNow, PortId] = {}
        """Ports that nobody waits at."""
        self._over = trio.lowlevel.ParkingLot()

    def came(self, port_id: PortId, blocks: Sequence[Frames]) -> None:
        """Count what came at a port."""
        nbytes = 0
        for block in blocks:  # no generator: each wake-up of the switch comes here
            nbytes += block.size
        self._moderation.came(port_id, nbytes)

    async def join(self, port_id: PortId, port: TakesNow) -> None:
        """Return when the port's task may wait for frames, without a checkpoint if that is now."""
        if not self._is_led and not self._rest_ns():
            return
        self._members[port] = port_id
        try:
            if self._is_led:
                await self._over.park()
            else:
                await self._lead()
        finally:
            del self._members[port]

    def _rest_ns(self) -> int:
        return self._moderation.rest_ns(current_instant())

    async def _lead(self) -> None:
        self._is_led = True
        try:
            # A rest is counted from the begin of a round: what the round itself takes is part of it.
            began = trio.current_time()
            while (rest_ns := self._rest_ns()) and await self._rest.until(began + rest_ns / S):
                began = trio.current_time()
                self._round()
        finally:
            self._rest.close()
            self._is_led = False
            self._over.unpark_all()

    def _round(self) -> None:
        arrivals: list[FramesArrived] = []
        for port, port_id in list(self._members.items()):
            try:
                blocks = port.take_nowait()
            except PortClosed:  # its own task hears why, when it asks
                continue
            if blocks:
                self.came(port_id, blocks)
                arrivals.append(FramesArrived(port_id, blocks))
        if arrivals:
            self._arrived(arrivals)
