"""A schedule as flows: who sends to whom over which sides of ports, for how long, and after which others.

A transfer is one flow. A sum in the network over k ranks is k flows in one *group*: each rank's value goes up
when that rank has it, and its result comes down once the values of all are there. All flows are cut into
the same number of segments, and a segment of a flow waits for that segment of its predecessors.

Flows are numbered in program order.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op
from inaproto_controller.simulate.schedules.schedule import Schedule, Step, Transfer
from inaproto_controller.simulate.timed.network import Network, Ports


@dataclass(slots=True)
class Flows:
    """One entry for each flow in every array."""

    ports: Ports
    segments: int
    sends: array[int] = field(default_factory=lambda: array("i"))
    """The side its segments leave by."""
    receives: array[int] = field(default_factory=lambda: array("i"))
    """The side they come in by."""
    rank: array[int] = field(default_factory=lambda: array("i"))
    """The rank that gets them."""
    segment_ns: array[float] = field(default_factory=lambda: array("d"))
    """How long a segment takes a side."""
    group: array[int] = field(default_factory=lambda: array("i"))
    """The sum it is part of; -1 if none."""
    waits_for: bytearray = field(default_factory=bytearray)
    """How many of ``before`` there are: 0, 1 or 2."""
    before: tuple[array[int], array[int]] = field(default_factory=lambda: (array("i"), array("i")))
    """The flows that touched its block last: at one of its ranks, and at the other; -1 for none."""
    groups: list[range] = field(default_factory=list)
    """The flows of each sum."""

    def __len__(self) -> int:
        return len(self.sends)

    def successors(self) -> tuple[array[int], array[int]]:
        """``(starts, all)``: the flows that wait for flow ``f`` are ``all[starts[f]:starts[f + 1]]``."""
        ahead = np.concatenate([np.frombuffer(one, np.int32) for one in self.before])
        behind = np.tile(np.arange(len(self), dtype=np.int32), 2)
        exists = ahead >= 0
        ahead, behind = ahead[exists], behind[exists]
        order = np.lexsort((behind, ahead))
        starts = np.zeros(len(self) + 1, np.int32)
        np.cumsum(np.bincount(ahead, minlength=len(self)), out=starts[1:])
        return array("i", starts.tobytes()), array("i", behind[order].tobytes())

    def sole_feeder(self) -> list[bool]:
        """Whether all that comes in by each side was sent by one side, or summed in the network.

        Then it comes in the order in which it was sent.
        """
        feeder: list[int | None] = [None] * self.ports.count
        alone = [True] * self.ports.count
        for sends, receives, group in zip(self.sends, self.receives, self.group, strict=True):
            source = sends if group < 0 else -1
            if feeder[receives] is None:
                feeder[receives] = source
            elif feeder[receives] != source:
                alone[receives] = False
        return alone


def flows_of(
    schedule: Schedule, network: Network, *, elements: int, dtype: Dtype, op: Op, segment_bytes: int
) -> Flows:
    """The flows of ``schedule`` for a tensor of ``elements``.

    Its largest block is cut into as few segments of at most ``segment_bytes`` as can be (of at most twice
    that, where a half-precision sum goes as float32), all others into as many.
    """
    if elements < 0 or segment_bytes < 1:
        raise LocalMisuse(f"{elements} elements in segments of {segment_bytes} bytes")
    block_bytes_max = -(-elements // schedule.blocks) * dtype.itemsize
    flows = Flows(Ports(schedule.machine_of), max(1, -(-block_bytes_max // segment_bytes)))
    _Builder(schedule, network, flows, elements, dtype, op).build()
    return flows


class _Builder:
    def __init__(
        self, schedule: Schedule, network: Network, flows: Flows, elements: int, dtype: Dtype, op: Op
    ) -> None:
        self._schedule = schedule
        self._network = network
        self._flows = flows
        self._of_tensor = (elements, dtype, op)
        self._segment_bytes: dict[tuple[int, bool], float] = {}
        self._last = array("i", [-1]) * (schedule.ranks * schedule.blocks)
        """The last flow so far that touched a rank's block."""

    def build(self) -> None:
        flows, ports, blocks = self._flows, self._flows.ports, self._schedule.blocks
        for step in self._schedule.transfers:
            bytes_ = self._bytes(step)
            if isinstance(step, Transfer):
                src, dst, block = step[:3]
                bandwidth = self._network.intra if ports.is_intra(src, dst) else self._network.inter
                self._add(
                    (ports.sends(src, dst), ports.receives(src, dst)), dst, bytes_ / bandwidth, group=-1
                )
                self._follow(src * blocks + block, dst * blocks + block)
            else:
                first = len(flows)
                for rank in step.ranks:
                    sides = (ports.nic_sends(rank), ports.nic_receives(rank))
                    self._add(sides, rank, bytes_ / self._network.inter, group=len(flows.groups))
                    self._follow(rank * blocks + step.block)
                flows.groups.append(range(first, len(flows)))

    def _bytes(self, step: Step) -> float:
        """Bytes of a segment. The few sizes that there are, are computed once."""
        key = (step.block, isinstance(step, Transfer) and step.wide)
        found = self._segment_bytes.get(key)
        if found is None:
            found = self._schedule.bytes_of(step, *self._of_tensor) / self._flows.segments
            self._segment_bytes[key] = found
        return found

    def _add(self, sides: tuple[int, int], rank: int, segment_ns: float, *, group: int) -> None:
        flows = self._flows
        flows.sends.append(sides[0])
        flows.receives.append(sides[1])
        flows.rank.append(rank)
        flows.segment_ns.append(segment_ns)
        flows.group.append(group)

    def _follow(self, place: int, other_place: int | None = None) -> None:
        """The flow added last comes after those that touched these places before."""
        flows, last = self._flows, self._last
        one, flow = last[place], len(flows) - 1
        last[place] = flow
        two = -1
        if other_place is not None:
            two = last[other_place]
            last[other_place] = flow
        flows.before[0].append(one)
        flows.before[1].append(two)
        flows.waits_for.append((one >= 0) + (two >= 0))
