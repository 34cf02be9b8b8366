"""Tencent all-reduce (TA): NetReduce's hierarchical baseline (section 3.4, appendix A equation (2)).

Each machine has a *master*, its first rank. Three stages, with the algorithms that appendix A counts:

1. Rabenseifner's reduce to the master: reduce-scatter by recursive halving, then a binomial gather;
2. a ring all-reduce among the masters, with the whole tensor;
3. van de Geijn's broadcast from the master: binomial scatter, then an all-gather around the machine.

Ranks of a machine are a power of two, as appendix A has it. No reduction plan describes the ring of masters.
Half-precision sums are rounded at each step.

A schedule has one size of block, so a part of stage 1 (one for each rank of a machine) and a part of stage 2
(one for each machine) are groups of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from inaproto.errors import LocalMisuse
from inaproto_controller.simulate.schedules.ring import ring_steps
from inaproto_controller.simulate.schedules.schedule import Schedule, Step, Transfer


def tencent(machines: int, per_machine: int) -> Schedule:
    """TA on ``machines`` of ``per_machine`` ranks."""
    if machines < 1 or per_machine < 1 or per_machine & (per_machine - 1):
        raise LocalMisuse(
            f"{machines} machines of {per_machine} ranks: halving needs ranks that are a power of two"
        )
    blocks = math.lcm(machines, per_machine)
    halving = _Halving(per_machine, blocks)
    firsts = range(0, machines * per_machine, per_machine)
    steps: list[Step] = []
    for first in firsts:
        steps += halving.reduce_scatter(first)
        steps += halving.gather(first)
    share = blocks // machines
    steps += ring_steps(firsts, [range(part * share, (part + 1) * share) for part in range(machines)])
    for first in firsts:
        steps += halving.scatter(first)
        steps += halving.all_gather(first)
    return Schedule(
        name="Tencent all-reduce",
        ranks=machines * per_machine,
        blocks=blocks,
        transfers=tuple(steps),
        machine_of=tuple(rank // per_machine for rank in range(machines * per_machine)),
    )


class _Halving:
    """Within a machine whose first rank is ``first``: ranks pair up over distances 1, 2, 4, ..."""

    def __init__(self, ranks: int, blocks: int) -> None:
        self._ranks = ranks
        self._blocks = blocks
        self._rounds = ranks.bit_length() - 1

    def share(self, local: int, rounds: int) -> range:
        """Blocks that a rank is left with after some rounds: the lower of a pair keeps the lower half."""
        start, size = 0, self._blocks
        for bit in range(rounds):
            size //= 2
            start += size * (local >> bit & 1)
        return range(start, start + size)

    def reduce_scatter(self, first: int) -> Iterator[Step]:
        for bit in range(self._rounds):
            for local in range(self._ranks):
                partner = local ^ 1 << bit
                for block in self.share(partner, bit + 1):
                    yield Transfer(first + local, first + partner, block, reduce=True, seals=True)

    def gather(self, first: int) -> Iterator[Step]:
        """The way back, with copies: the upper of each pair hands over all it has, and is out."""
        for bit in reversed(range(self._rounds)):
            for local in range(1 << bit):
                partner = local | 1 << bit
                for block in self.share(partner, bit + 1):
                    yield Transfer(first + partner, first + local, block)

    def scatter(self, first: int) -> Iterator[Step]:
        for bit in range(self._rounds):
            for local in range(1 << bit):
                partner = local | 1 << bit
                for block in self.share(partner, bit + 1):
                    yield Transfer(first + local, first + partner, block)

    def all_gather(self, first: int) -> Iterator[Step]:
        """Around the machine: each rank hands on the share that it got last."""
        for hop in range(self._ranks - 1):
            for local in range(self._ranks):
                successor = (local + 1) % self._ranks
                for block in self.share((local - hop) % self._ranks, self._rounds):
                    yield Transfer(first + local, first + successor, block)
