"""One rank of a simulated job: a training process on a host, its tensors, the all-reduces that it has called.

It belongs to the ring of its host (:mod:`inaproto.sim.frames.host.ring`), which carries its operations out,
as ``inaproto.daemon.host.local_rank`` does on real hosts. Whenever its job fails, it starts anew, with a new
process (:mod:`inaproto.sim.frames.host.process`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inaproto.core.host.events import RankCalled, RankLeft
from inaproto.core.host.operations import Operation
from inaproto.sim.frames.host.process import SimProcess
from inaproto.sim.frames.host.tensors import RankTensors
from inaproto.units import MS

if TYPE_CHECKING:
    from inaproto.sim.frames.host.ring import HostRing


BACKOFF_NS: Final = 5 * MS
SOON: Final = 16
"""Starts in vain after which a process waits longer for the next: each of them costs a world much, and few
show anything new."""
DOUBLINGS_MAX: Final = 5


class SimRank:
    """Rank ``index`` of the job of ``ring``, from a start to an end, and anew after that."""

    def __init__(self, ring: HostRing, index: int) -> None:
        self.ring = ring
        self.host = ring.host
        self.job = ring.job
        self.index = index
        self.pid = 0
        self.is_dead = False
        """Its process died by itself, and has not been started again yet."""
        self.is_to_go_again = False
        """Its host lost the switch before it heard of a start, and announces the same process to the next."""
        self.told = ""
        """Why its job failed the last time."""
        self._in_vain = 0
        """Starts since it last called an all-reduce."""
        self.process = SimProcess(self)
        self.begin()

    def begin(self) -> None:
        """What a new process has not done yet."""
        self.has_joined = self.has_left = False
        self.running: dict[int, Operation] = {}
        """Called and not ended."""
        self.operations_done = 0
        self.tensors: RankTensors | None = None
        self.process.begin()

    def __str__(self) -> str:
        return f"rank {self.index} of {self.job.name} on {self.host.name}"

    @property
    def place(self) -> str:
        """As the switch names it."""
        return f"rank {self.index} ({self.host.name}, pid {self.pid})"

    @property
    def life(self) -> int:
        """The first ring since it started; 0: it has none yet."""
        return self.ring.life

    @property
    def takes_calls(self) -> bool:
        """The process calls all-reduces, whether its host has a ring now or not."""
        return self.ring.has_started and not self.has_left

    def back_off(self) -> int:
        """Its job has failed: how long it waits before it starts anew, in nanoseconds."""
        self._in_vain += 1
        return BACKOFF_NS << min(max(0, self._in_vain - SOON), DOUBLINGS_MAX)

    def tensor(self, op_index: int) -> memoryview:
        """The tensor of an all-reduce: its input, and its result once it is done."""
        assert self.tensors is not None
        return self.tensors.whole[op_index]

    def call(self, operation: Operation) -> None:
        """The process calls an all-reduce."""
        self._in_vain = 0
        self.running[operation.index] = operation
        self.ring.feed(RankCalled(self.index, operation))

    def operation_failed(self, op_index: int, code: str) -> None:
        """It is told so, if it waits for that."""
        if self.running.pop(op_index, None) is not None:
            self.host.world.note(self.host.number, "failed", op_index)
            for failed in self.host.world.hooks.failed:
                failed(self, op_index, code)

    def leave(self) -> None:
        """The process has said that it is finished."""
        self.has_left = True
        for hook in self.host.world.hooks.left:
            hook(self, self.process.called)
        self.ring.feed(RankLeft(self.index))
