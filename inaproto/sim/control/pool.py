"""The pool of a tree at a switch: who has it, by the highest epoch that was seen, and what has come in.

A model of what the accelerator does with a pool that rings share by turns: the epoch of an operation is a
fencing token. A higher one takes the pool over and forgets what was there; a lower one is stale and
dropped. With room for several jobs at once there are as many memories, each fenced by itself; that of a turn
is ``epoch mod capacity``, so two turns that stand at once must differ in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Unit:
    """Memory for one job's operations."""

    epoch: int = 0
    job: str = ""
    operation: int = -1
    parts: dict[int, int] = field(default_factory=dict)
    """What each host has put into the operation."""


class Pool:
    def __init__(self, tree: int, capacity: int) -> None:
        self.tree = tree
        self.units = [Unit() for _ in range(capacity)]
        self.stale = 0
        self.conflicts = 0
        """Takeovers that found another job's operation unfinished."""

    def put(self, job: str, host: int, epoch: int, operation: int, part: int) -> Unit | None:
        """The unit that has taken it in; None: it is stale."""
        unit = self.units[epoch % len(self.units)]
        if (unit.job, unit.epoch) != (job, epoch):
            if epoch <= unit.epoch:
                self.stale += 1
                return None
            if unit.parts and unit.job != job:
                self.conflicts += 1
            unit.epoch, unit.job, unit.operation, unit.parts = epoch, job, -1, {}
        if operation < unit.operation:
            self.stale += 1
            return None
        if operation > unit.operation:
            unit.operation, unit.parts = operation, {}
        unit.parts[host] = part
        return unit
