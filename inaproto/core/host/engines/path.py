"""What the engines of all paths have in common: a ring ends, its operations do not.

An engine moves the messages of one ring of queue pairs. The operations
(:mod:`inaproto.core.host.operation_queue`) are handed to it by the engine of the ring before, from which they
were taken when that was *halted*, and they wait until all ranks have connected.

An engine starts operations by itself, and carries all of them, unless it is one of two
(:mod:`inaproto.core.host.engines.two_paths`): then it carries those that are bound to it, and touches no
others.

Invariant: once halted, an engine sends and takes nothing; submissions, failures and wake-ups are of the
operations, which go on.
"""

from __future__ import annotations

from inaproto.core.host.operation_queue import ADVICE, OperationQueue
from inaproto.core.host.operations import OperationDone, OperationFailed, RingBroken, RingConfig
from inaproto.core.host.recovery import Recovery
from inaproto.errors import Blame, FabricLost, LocalMisuse
from inaproto.units import Instant


class PathEngine:
    """One rank of one ring.

    ``operations`` are those of a ring that was halted. They go on by this one from ``resume`` on; what other
    ranks send sooner waits. Raises ``LocalMisuse`` if they cannot go on from ``recovery``. Without one they
    are those of another engine that stands beside this one, which repeats what a rank may lack.
    """

    def __init__(
        self, config: RingConfig, operations: OperationQueue | None, recovery: Recovery | None
    ) -> None:
        self._config = config
        self._operations = OperationQueue(config) if operations is None else operations
        if recovery is None:
            self._operations.check_ring(config)
        else:
            self._operations.resume(config, recovery)
        self._runs = operations is None or recovery is None
        self._is_halted = False
        self.starts = recovery is not None
        """Operations, by itself; else :class:`~inaproto.core.host.engines.two_paths.TwoPaths` does."""
        self.has_turn = self.starts
        """What runs, or is to be repeated, is for this path to carry."""

    @property
    def config(self) -> RingConfig:
        return self._config

    @property
    def deadline(self) -> Instant | None:
        """When the running operation will have stalled (again), or be overdue."""
        return self._operations.deadline

    @property
    def operations(self) -> OperationQueue:
        return self._operations

    @property
    def operations_queued(self) -> int:
        """As ``view`` has it, for who asks at every operation."""
        return len(self._operations)

    @property
    def progress(self) -> int:
        """Results taken since the job began, by all rings."""
        return self._operations.progress

    def halt(self) -> OperationQueue:
        """Take and send nothing more: this ring has ended. What it gives goes on by another one.

        Until that one is there, this engine takes submissions, failures and wake-ups as before.
        """
        self._is_halted = True
        return self._operations

    @property
    def _is_over(self) -> bool:
        """What comes in now is of a ring that has ended, or of an operation that has failed."""
        return self._is_halted or self._operations.failure is not None

    def _start_next(self, now: Instant) -> list[OperationDone]:
        """Let the next operation run, if none does, and what follows be sent, unless another starts it."""
        if not self.starts:
            return []
        ended = self._operations.start_next(now)
        self._operations.look_ahead()
        return ended

    def _connected(self) -> None:
        """All ranks are there. Raises ``LocalMisuse`` if they were before."""
        if self._runs:
            raise LocalMisuse(f"ring {self._config.ring_id} runs already")
        self._runs = True

    def _break_ring(
        self, blame: Blame, *, advice: str = ADVICE, code: str = FabricLost.code
    ) -> list[Blame | OperationFailed | RingBroken]:
        """A wrong message came in: the ring is over, and with it the operations unless they outlive it."""
        if self._config.outlived:
            self._is_halted = True
        return self._operations.break_ring(self._config, blame, advice, code)
