"""A job has ended when all its ranks have called all its all-reduces and left, and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.kernel.violated import Violated

if TYPE_CHECKING:
    from inaproto.sim.frames.host.rank import SimRank
    from inaproto.sim.frames.world import World


class AllLeft(Checker):
    name = "a job ends when all have left"

    def begin(self, world: World) -> None:
        self._left: dict[tuple[str, int], set[int]] = {}

    def left(self, rank: SimRank, operations: int) -> None:
        if operations != len(rank.job.elements):
            raise Violated(
                self.name, f"{rank} left after {operations} of {len(rank.job.elements)} all-reduces"
            )
        self._left.setdefault((rank.job.name, rank.life), set()).add(rank.index)

    def closed(self, rank: SimRank) -> None:
        left = self._left.get((rank.job.name, rank.life), set())
        missing = [index for index in range(len(rank.job.hosts)) if index not in left]
        if missing:
            raise Violated(self.name, f"{rank} was told that its job has ended; {missing} have not left")
