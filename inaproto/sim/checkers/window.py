"""The window is never passed: at most N messages of a rank are sent without their result (NetReduce 3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.checkers.checker import Checker, Violated

if TYPE_CHECKING:
    from inaproto.sim.rank import SimRank
    from inaproto.sim.world import World


class WindowKept(Checker):
    name = "window never passed"

    def begin(self, world: World) -> None:
        self._world = world
        self._in_flight: dict[tuple[SimRank, int], int] = {}

    def posted(self, rank: SimRank, msg_id: int) -> None:
        if rank.is_chain and msg_id & 1:
            return  # a result that is passed on; the accumulators before it were the contribution
        key = rank, rank.ring_id
        in_flight = self._in_flight[key] = self._in_flight.get(key, 0) + 1
        if in_flight > rank.job.window_messages:
            raise Violated(
                self.name,
                f"{rank} posted message {msg_id} as number {in_flight} of {rank.job.window_messages}",
            )
        if in_flight == rank.job.window_messages:
            self._world.mark("a window was full")

    def received(self, rank: SimRank, msg_id: int) -> None:
        if rank.is_chain and not msg_id & 1:
            return
        key = rank, rank.ring_id
        in_flight = self._in_flight[key] = self._in_flight.get(key, 0) - 1
        if in_flight < 0:
            raise Violated(self.name, f"{rank} took a result of a message that it has not sent")
