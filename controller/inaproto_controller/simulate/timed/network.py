"""The alpha-beta network: what a schedule's segments cross, and what they wait for (NetReduce appendix A).

A machine has one NIC, which its ranks share, and each rank has one port to the others of its machine. Both
have a sending and a receiving side. A side carries one segment at a time, at its bandwidth, in the order in
which segments come to it. Between the two sides is the fabric: it takes ``alpha_ns``, never blocks, and
passes the head of a segment on before its tail has come (cut-through).

Times are ``float`` nanoseconds, so that bandwidths are bytes per nanosecond, which is GB/s. Not integers: a
segment seldom takes a whole number of them, and what rounding adds to one segment a ring of 1024 ranks adds
up 2046 times. Only ``+``, ``max`` and one division per flow are done with them, in a fixed order, so two runs
agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from inaproto.errors import LocalMisuse
from inaproto_controller.simulate.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Latency of a hop, and bandwidths in GB/s: of a rank's port within its machine, of a machine's NIC."""

    alpha_ns: float
    intra: float
    inter: float

    def __post_init__(self) -> None:
        if not (self.alpha_ns >= 0 and self.intra > 0 and self.inter > 0):
            raise LocalMisuse(f"{self}: alpha_ns must not be negative, bandwidths must be positive")


class Ports:
    """Numbers of the sides of all ports: of ranks to send, to receive, then of NICs to send, to receive."""

    def __init__(self, machine_of: Sequence[int]) -> None:
        numbers = {machine: number for number, machine in enumerate(dict.fromkeys(machine_of))}
        self._machine_of = machine_of
        self._ranks = len(machine_of)
        self._machines = len(numbers)
        self._nic_of = [2 * self._ranks + numbers[machine] for machine in machine_of]
        self.count = 2 * (self._ranks + self._machines)

    def is_intra(self, src: int, dst: int) -> bool:
        return self._machine_of[src] == self._machine_of[dst]

    def nic_sends(self, rank: int) -> int:
        return self._nic_of[rank]

    def nic_receives(self, rank: int) -> int:
        return self._nic_of[rank] + self._machines

    def sends(self, src: int, dst: int) -> int:
        return src if self.is_intra(src, dst) else self._nic_of[src]

    def receives(self, src: int, dst: int) -> int:
        return self._ranks + dst if self.is_intra(src, dst) else self._nic_of[dst] + self._machines

    def name(self, side: int) -> str:
        if side < 2 * self._ranks:
            way, number = divmod(side, self._ranks)
            return f"rank {number} {('sends', 'receives')[way]}"
        way, number = divmod(side - 2 * self._ranks, self._machines)
        return f"NIC {number} {('sends', 'receives')[way]}"


def stages(schedule: Schedule) -> list[Schedule]:
    """The schedule cut where it changes between steps within machines and steps between them.

    For PN, PR and TA these are the stages that appendix A adds up: one begins when the one before has ended
    everywhere. A flat ring whose ranks share machines has no stages.
    """
    return [
        Schedule(
            name=f"{schedule.name}, stage {number}",
            ranks=schedule.ranks,
            blocks=schedule.blocks,
            transfers=tuple(steps),
            machine_of=schedule.machine_of,
        )
        for number, (_, steps) in enumerate(groupby(schedule.transfers, key=schedule.is_intra), start=1)
    ]
