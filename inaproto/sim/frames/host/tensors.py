"""The memory of simulated hosts: tensors of ranks, in shared memory on real ones, and their NICs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from inaproto.core.host.operations import Operation
from inaproto.core.rdma.nic import SoftNicEngine
from inaproto.core.rdma.verbs import Segment, Verbs
from inaproto.errors import InvariantBroken
from inaproto.units import Instant

if TYPE_CHECKING:
    from inaproto.sim.frames.draw.swarm import JobConfig
    from inaproto.sim.frames.host.rank import SimRank


class RankTensors:
    """One for each all-reduce that the rank will call, each its input and then its result."""

    def __init__(self, sizes: Sequence[int], nic: Verbs) -> None:
        ends = list(accumulate(sizes))
        self._offsets = [end - size for end, size in zip(ends, sizes, strict=True)]
        self._memory = memoryview(bytearray(max(1, sum(sizes))))
        self.whole = [self._memory[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        self.register(nic)

    def register(self, nic: Verbs) -> None:
        self._nic = nic
        self._region = nic.register_memory(self._memory)

    def deregister(self) -> None:
        self._nic.deregister_memory(self._region)

    def segment(self, op_index: int, offset: int, nbytes: int) -> Segment:
        return Segment(self._region.key, self._region.va + self._offsets[op_index] + offset, nbytes)


class HostTensors:
    """Those of all ranks of a job on one host, in rank order."""

    def __init__(self, of_ranks: Sequence[RankTensors], operation: Callable[[int], Operation]) -> None:
        self.ranks = len(of_ranks)
        self.operation = operation
        """An all-reduce that has not ended."""
        self._of_ranks = of_ranks
        self._is_registered = True
        self._ended: set[int] = set()

    def register(self, nic: SoftNicEngine) -> None:
        self._is_registered = True
        for tensors in self._of_ranks:
            tensors.register(nic)

    def deregister(self) -> None:
        """Give back what the NIC has of them, once."""
        if self._is_registered:
            for tensors in self._of_ranks:
                tensors.deregister()
        self._is_registered = False

    def forget_nic(self) -> None:
        """It is gone, and what was registered with it."""
        self._is_registered = False

    def end(self, op_index: int) -> None:
        """Its result is the processes' now: nobody may come back to it."""
        self._ended.add(op_index)

    def _live(self, op_index: int) -> None:
        if op_index in self._ended:
            raise InvariantBroken(f"all-reduce {op_index} has ended, and its tensor is used")

    def views(self, op_index: int, offset: int, nbytes: int) -> list[memoryview]:
        self._live(op_index)
        return [tensors.whole[op_index][offset : offset + nbytes] for tensors in self._of_ranks]

    def payload(self, op_index: int, offset: int, nbytes: int) -> Segment:
        self._live(op_index)
        (tensors,) = self._of_ranks
        return tensors.segment(op_index, offset, nbytes)


class ClockedNic:
    """A simulated NIC as links use one: it is told the time by its host."""

    def __init__(self, nic: SoftNicEngine, clock: Callable[[], Instant]) -> None:
        self.register_memory, self.deregister_memory = nic.register_memory, nic.deregister_memory
        self.create_qp, self.destroy_qp, self.connect_qp = nic.create_qp, nic.destroy_qp, nic.connect_qp
        self.post_receive, self.statistics = nic.post_receive, nic.statistics
        self._post_write_imm = nic.post_write_imm
        self._clock = clock

    def post_write_imm(
        self, qpn: int, wr_id: int, segments: Sequence[Segment], *, remote_va: int, rkey: int, imm: int
    ) -> None:
        now = self._clock()
        self._post_write_imm(qpn, wr_id, segments, remote_va=remote_va, rkey=rkey, imm=imm, now=now)


def allocate(nbytes: int) -> memoryview:
    """Zeroed memory."""
    return memoryview(bytearray(nbytes))


def tensors_of(job: JobConfig, ranks: Sequence[SimRank], nic: SoftNicEngine) -> HostTensors:
    """Those of all all-reduces that ``ranks`` will call in this life."""
    made = []
    for rank in ranks:
        elements = map(rank.process.elements, range(len(job.elements)))
        rank.tensors = RankTensors([count * job.dtype.itemsize for count in elements], nic)
        made.append(rank.tensors)
    first = ranks[0]
    return HostTensors(made, lambda op_index: first.running[op_index])
