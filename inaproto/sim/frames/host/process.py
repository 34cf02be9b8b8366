"""The training process of a simulated rank: it calls the job's all-reduces in order, and leaves.

It thinks before each call. Where jobs go on when a ring ends, it also thinks before it leaves, and it calls
and leaves whether its rank has a ring at that moment or not.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING

from inaproto.core.host.operations import Filled, Operation
from inaproto.faults.streams import Draws
from inaproto.units import MS, OpIndex

if TYPE_CHECKING:
    from inaproto.sim.frames.host.rank import SimRank


class SimProcess:
    """The process of ``rank``, from its start to its end, and anew after that."""

    def __init__(self, rank: SimRank) -> None:
        job = rank.job
        self._rank = rank
        self._job = job
        seed = rank.host.world.config.seed
        self._draws = Draws(seed, f"rank/{job.name}/{rank.index}")
        self._fills = Draws(seed, f"fill/{job.name}/{rank.index}")
        self.begin()

    def begin(self) -> None:
        """It has not called anything yet."""
        self.called = 0
        """All-reduces; the index of the next."""
        self.filled: dict[int, int] = {}
        """Bytes that are there of all-reduces whose tensors are not there as a whole."""
        self._is_thinking = False

    def elements(self, op_index: int) -> int:
        """What this rank calls operation ``op_index`` with."""
        is_wrong = self._job.mismatch == (self._rank.index, op_index) and self.may_differ
        return self._job.elements[op_index] + is_wrong

    @property
    def may_differ(self) -> bool:
        """Whether ranks of the job call different all-reduces in this life."""
        rank = self._rank
        return self._job.mismatch is not None and rank.host.world.is_first_ring(self._job, rank.life)

    def think_of_joining(self) -> int:
        """How long it takes to come up, in ns: processes of one host do so one by one."""
        return self._draws.below(self._job.think_ns + MS)

    def go_on(self) -> None:
        """Call the next all-reduce after some thought, if there is one and few enough are running."""
        rank, job = self._rank, self._job
        if self._is_thinking or not rank.takes_calls:
            return
        if self.called == len(job.elements):
            if not rank.running:
                self._think_of_leaving()
            return
        if len(rank.running) >= job.depth:
            return
        think = self._draws.below(job.think_ns + 1)
        if rank.index == job.slow_rank:
            think += self._draws.below(job.slow_ns + 1)
        self._is_thinking = True
        rank.host.after(think, partial(self._call, rank.life))

    def _lives(self, life: int) -> bool:
        return life == self._rank.life and self._rank.takes_calls

    def _call(self, life: int) -> None:
        if not self._lives(life):
            return
        self._is_thinking = False
        rank, job, op_index = self._rank, self._job, self.called
        world = rank.host.world
        self.called += 1
        elements = self.elements(op_index)
        data = world.oracle(job).inputs(rank.life, rank.index, op_index, elements)
        filled = self._begin_filling(op_index, data.tobytes())
        signature = zlib.crc32(f"{job.dtype} {job.op} {elements}".encode()) & 0xFFFF
        operation = Operation(OpIndex(op_index), job.dtype, job.op, data.nbytes, signature, filled=filled)
        world.faults.called(*rank.ring.origin_of(op_index))
        for hook in world.hooks.submitted:
            hook(rank, op_index)
        rank.call(operation)
        self.go_on()

    def _begin_filling(self, op_index: int, data: bytes) -> int | None:
        """Put the tensor where the host finds it. How many bytes are there; None: all, and no more come."""
        rank, job = self._rank, self._job
        tensor = rank.tensor(op_index)
        is_alone = len(job.ranks_on(rank.host.number)) == 1 and len(job.hosts) > 1
        if not job.fill_ns or not is_alone:
            tensor[:] = data
            return None
        filled = self._fills.below(len(data) + 1)
        tensor[:filled], tensor[filled:] = data[:filled], bytes(each ^ 0x5A for each in data[filled:])
        rank.host.after(
            self._fills.below(job.fill_ns), partial(self._fill, rank.life, op_index, data, filled)
        )
        self.filled[op_index] = filled
        return filled

    def _fill(self, life: int, op_index: int, data: bytes, filled: int) -> None:
        """Put more of it there, and say so."""
        rank, job = self._rank, self._job
        if not self._lives(life) or op_index not in rank.running:
            return
        end = min(filled + 1 + self._fills.below(len(data) + 1), len(data))
        rank.tensor(op_index)[filled:end] = data[filled:end]
        self.filled[op_index] = end
        if end == len(data):
            del self.filled[op_index]
        rank.ring.feed(Filled(OpIndex(op_index), end))
        if end < len(data):
            rank.host.after(self._fills.below(job.fill_ns), partial(self._fill, life, op_index, data, end))

    def _think_of_leaving(self) -> None:
        rank = self._rank
        if not rank.host.world.config.recover_ns:
            rank.leave()
            return
        self._is_thinking = True
        rank.host.after(self._draws.below(self._job.think_ns + MS), partial(self._leave, rank.life))

    def _leave(self, life: int) -> None:
        if self._lives(life):
            self._rank.leave()
