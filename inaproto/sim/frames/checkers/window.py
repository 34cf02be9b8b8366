"""The window is never passed: at most N messages of a host are sent without their result (NetReduce 3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.kernel.violated import Violated

if TYPE_CHECKING:
    from inaproto.sim.frames.host.ring import HostRing
    from inaproto.sim.frames.world import World


class WindowKept(Checker):
    name = "window never passed"

    def begin(self, world: World) -> None:
        self._world = world
        self._in_flight: dict[tuple[HostRing, int], int] = {}

    def posted(self, ring: HostRing, msg_id: int) -> None:
        if ring.adds_itself and msg_id & 1:
            return  # a result that is passed on; the accumulators before it were the contribution
        key = ring, ring.acts_on
        in_flight = self._in_flight[key] = self._in_flight.get(key, 0) + 1
        if in_flight > ring.job.window_messages:
            raise Violated(
                self.name,
                f"{ring} posted message {msg_id} as number {in_flight} of {ring.job.window_messages}",
            )
        if in_flight == ring.job.window_messages:
            self._world.mark("a window was full")

    def received(self, ring: HostRing, msg_id: int) -> None:
        if ring.adds_itself and not msg_id & 1:
            return
        key = ring, ring.acts_on
        in_flight = self._in_flight[key] = self._in_flight.get(key, 0) - 1
        if in_flight < 0:
            raise Violated(self.name, f"{ring} took a result of a message that it has not sent")
