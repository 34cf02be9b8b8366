"""One result: no two ranks get different bytes for one all-reduce, and the bytes are the exact ones.

Compared with the oracle (numpy, other formulas) and, whatever that says, with what every other rank of
the job got for the same operation, in whichever of its rings. Where hosts sum in an ordinary ring, each
message begins at another of them; whoever takes its result first shows by which path it came.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.kernel.violated import Violated

if TYPE_CHECKING:
    from inaproto.sim.frames.draw.swarm import JobConfig
    from inaproto.sim.frames.host.rank import SimRank
    from inaproto.sim.frames.world import World


class OneResult(Checker):
    name = "one result"

    def begin(self, world: World) -> None:
        self._world = world
        self._expected: dict[tuple[str, int, int], bytes] = {}
        self._got: dict[tuple[str, int, int], tuple[SimRank, bytes]] = {}
        self._taken: dict[tuple[SimRank, int], int] = {}
        """Messages that a rank has taken in a life."""
        self._starts: dict[tuple[str, int, int], dict[tuple[int, int], int | None]] = {}
        """Where each message of an all-reduce began, by offset and size; None if not in a ring of hosts."""

    def taken(self, rank: SimRank, slot: int, op_index: int, offset: int, nbytes: int) -> None:
        if not rank.job.may_rotate or slot < 0:
            return
        serial = self._taken.get((rank, rank.life), 0)
        self._taken[rank, rank.life] = serial + 1
        messages = self._starts.setdefault((rank.job.name, rank.life, op_index), {})
        if (offset, nbytes) not in messages:
            is_rotated = rank.ring.is_rotated
            messages[offset, nbytes] = serial % len(rank.job.positions) if is_rotated else None
            if is_rotated:
                self._world.mark("a result of a ring of hosts")

    def done(self, rank: SimRank, op_index: int) -> None:
        self._world.operations_done += 1
        job, key = rank.job, (rank.job.name, rank.life, op_index)
        if self._differs(job, rank.life, op_index):
            raise Violated(self.name, f"{rank} got a result of all-reduce {op_index}, which differed in size")
        result = rank.tensor(op_index).tobytes()  # bytes compare faster than a view
        digest = hashlib.blake2b(result, digest_size=16).digest()
        first = self._got.setdefault(key, (rank, digest))
        if first[1] != digest:
            raise Violated(self.name, f"{rank} and {first[0]} have different bytes for all-reduce {op_index}")
        expected = self._expected.get(key)
        if expected is None:
            elements = job.elements[op_index]
            oracle = self._world.oracle(job)
            expected = oracle.result(rank.life, op_index, elements)
            if key in self._world.library.taken:
                expected = oracle.backwards(rank.life, op_index, elements)
            elif job.may_rotate:
                expected = self._rotated(rank, op_index, expected)
            self._expected[key] = expected
        if result != expected:
            wrong = next(at for at in range(len(expected)) if result[at] != expected[at])
            raise Violated(
                self.name,
                f"{rank}, all-reduce {op_index} since ring {rank.life}: byte {wrong} of {len(expected)} is "
                f"{result[wrong]:#04x}, exact is {expected[wrong]:#04x}",
            )

    def _rotated(self, rank: SimRank, op_index: int, planned: bytes) -> bytes:
        """``planned``, but for messages that began elsewhere."""
        job, expected = rank.job, bytearray(planned)
        oracle, elements = self._world.oracle(job), job.elements[op_index]
        by_start: dict[int, bytes] = {}
        for (offset, nbytes), start in self._starts.get((job.name, rank.life, op_index), {}).items():
            if start is not None:
                if start not in by_start:
                    by_start[start] = oracle.rotated(rank.life, op_index, elements, start)
                expected[offset : offset + nbytes] = by_start[start][offset : offset + nbytes]
        return bytes(expected)

    def _differs(self, job: JobConfig, life: int, op_index: int) -> bool:
        """Whether the ranks called it with tensors of different sizes."""
        is_planned = job.mismatch is not None and job.mismatch[1] == op_index
        return is_planned and self._world.is_first_ring(job, life)
