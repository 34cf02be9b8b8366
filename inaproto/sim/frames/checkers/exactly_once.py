"""Exactly once: every all-reduce that a rank called ends once, done or failed, and takes each byte once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.kernel.violated import Violated

if TYPE_CHECKING:
    from inaproto.sim.frames.host.rank import SimRank
    from inaproto.sim.frames.world import World


class ExactlyOnce(Checker):
    name = "exactly once"

    def begin(self, world: World) -> None:
        self._running: dict[SimRank, dict[int, int]] = {}
        """Operations that have not ended, with the bytes taken so far, without a gap."""
        self._ahead: dict[tuple[SimRank, int], dict[int, int]] = {}
        """Slices of sums of one host that were added before others: where they begin and end."""

    def submitted(self, rank: SimRank, op_index: int) -> None:
        operations = self._running.setdefault(rank, {})
        if op_index in operations:
            raise Violated(self.name, f"{rank} called all-reduce {op_index} twice")
        operations[op_index] = 0

    def taken(self, rank: SimRank, slot: int, op_index: int, offset: int, nbytes: int) -> None:
        operations = self._running.get(rank, {})
        taken = operations.get(op_index)
        if taken is None:
            raise Violated(self.name, f"{rank} took a result of all-reduce {op_index}, which is not running")
        ahead = self._ahead.setdefault((rank, op_index), {}) if slot < 0 else {}
        if taken != offset and (slot >= 0 or offset < taken or offset in ahead):
            raise Violated(
                self.name, f"{rank}, all-reduce {op_index}: took byte {offset} where {taken} is next"
            )
        ahead[offset] = offset + nbytes
        while taken in ahead:
            taken = ahead.pop(taken)
        operations[op_index] = taken

    def done(self, rank: SimRank, op_index: int) -> None:
        operations = self._running.get(rank, {})
        if next(iter(operations), None) != op_index:
            raise Violated(
                self.name, f"{rank}: all-reduce {op_index} is done; running are {list(operations)}"
            )
        ahead = self._ahead.pop((rank, op_index), {})
        if ahead or operations.pop(op_index) != len(rank.tensor(op_index)):
            raise Violated(self.name, f"{rank}: all-reduce {op_index} is done, but not all its bytes came")

    def failed(self, rank: SimRank, op_index: int, code: str) -> None:
        self._ahead.pop((rank, op_index), None)
        if self._running.get(rank, {}).pop(op_index, None) is None:
            raise Violated(
                self.name, f"{rank}: all-reduce {op_index} failed ({code}), but it was not running"
            )

    def died(self, rank: SimRank) -> None:
        for op_index in self._running.pop(rank, {}):
            self._ahead.pop((rank, op_index), None)

    def end(self, world: World) -> None:
        for rank, operations in self._running.items():
            if operations:
                raise Violated(self.name, f"{rank} finished, but all-reduces {list(operations)} never ended")
