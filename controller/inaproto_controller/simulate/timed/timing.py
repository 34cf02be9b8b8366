"""Times a schedule on an alpha-beta network by discrete events: a heap of (time, serial), nothing drawn.

- A transfer's segment takes the sending side from the moment it is ready and the side is free, and the
  receiving side from ``alpha`` later, or from when that is free; undisturbed it has arrived after
  ``alpha + bytes / bandwidth``.
- In a sum in the network, a segment goes up from each rank as that rank has it; when it has come whole from
  all, the switch sends the result to all of them, at once and ``alpha`` away. A long tensor takes
  ``alpha + M / bandwidth``, as NetReduce's equation (3) has it, and one segment's time more.
- Additions take no time.

Invariants: a side carries one segment at a time, in the order in which they came to it; of events at the same
time, that of the flow which is earlier in program order is first, and so is its earlier segment.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, NamedTuple

from inaproto.errors import InvariantBroken
from inaproto.wire.ina_header import Dtype, Op
from inaproto_controller.simulate.schedules.schedule import Schedule
from inaproto_controller.simulate.timed.flows import Flows, flows_of
from inaproto_controller.simulate.timed.network import Network

_ARRIVED: Final = 0
_HEAD_CAME: Final = 1
_IN_SWITCH: Final = 2
_KINDS: Final = 3


class Occupation(NamedTuple):
    """A segment of a flow had a side of a port, from one time to another."""

    side: str
    begin_ns: float
    end_ns: float
    flow: int
    segment: int


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule was done."""

    ns: float
    """When the last segment had arrived."""
    rank_ns: tuple[float, ...]
    """When the last segment for each rank had arrived; 0 if none had to."""
    segments: int
    """Segments of each block."""
    events: int


def time_schedule(
    schedule: Schedule,
    network: Network,
    *,
    elements: int,
    segment_bytes: int,
    dtype: Dtype = Dtype.F32,
    op: Op = Op.SUM,
    occupations: list[Occupation] | None = None,
) -> Timing:
    """One run of ``schedule``, from virtual time 0, all ranks ready. Deterministic.

    ``occupations``, if given, gets every use of every side of a port.
    """
    flows = flows_of(schedule, network, elements=elements, dtype=dtype, op=op, segment_bytes=segment_bytes)
    engine = _Engine(flows, network.alpha_ns, schedule.ranks, occupations)
    engine.run()
    rank_ns = tuple(engine.rank_ns)
    return Timing(max(rank_ns), rank_ns, flows.segments, engine.events)


class _Engine:
    """The item ``flow * segments + segment`` is one segment of one flow."""

    def __init__(
        self, flows: Flows, alpha_ns: float, ranks: int, occupations: list[Occupation] | None
    ) -> None:
        self.rank_ns = [0.0] * ranks
        self.events = 0
        self._flows = flows
        self._alpha_ns = alpha_ns
        self._occupations = occupations
        self._heap: list[tuple[float, int]] = []
        self._free_ns = [0.0] * flows.ports.count
        self._in_order = flows.sole_feeder()
        segments = flows.segments
        self._missing = bytearray(itertools.chain.from_iterable([n] * segments for n in flows.waits_for))
        self._missing_in_switch = [len(group) for group in flows.groups for _ in range(segments)]

    def run(self) -> None:
        heap, segments, rank = self._heap, self._flows.segments, self._flows.rank
        missing, rank_ns = self._missing, self.rank_ns
        starts, successors = self._flows.successors()
        for flow, count in enumerate(self._flows.waits_for):
            if not count:
                for segment in range(segments):
                    self._send(flow, segment, 0.0)
        arrived = 0
        while heap:
            now, serial = heappop(heap)
            self.events += 1
            item, kind = divmod(serial, _KINDS)
            flow, segment = divmod(item, segments)
            if kind == _HEAD_CAME:
                self._receive(flow, segment, now)
            elif kind == _IN_SWITCH:
                self._add_up(flow, segment, now)
            else:
                arrived += 1
                rank_ns[rank[flow]] = now  # times only grow
                for successor in successors[starts[flow] : starts[flow + 1]]:
                    waiting = successor * segments + segment
                    missing[waiting] -= 1
                    if not missing[waiting]:
                        self._send(successor, segment, now)
        if arrived != len(self._flows) * segments:
            raise InvariantBroken(f"{arrived} of {len(self._flows) * segments} segments arrived")

    def _send(self, flow: int, segment: int, now: float) -> None:
        """The segment is ready: it takes its place at the sending side.

        Calls come in order of time, so the side is taken in order of readiness.
        """
        begun = self._occupy(self._flows.sends[flow], flow, segment, now)
        if self._flows.group[flow] >= 0:
            serial = (flow * self._flows.segments + segment) * _KINDS + _IN_SWITCH
            heappush(self._heap, (begun + self._flows.segment_ns[flow], serial))
        else:
            self._head_comes(flow, segment, begun + self._alpha_ns)

    def _add_up(self, flow: int, segment: int, now: float) -> None:
        """The network has one value more; the last of them makes the result."""
        group = self._flows.group[flow]
        place = group * self._flows.segments + segment
        self._missing_in_switch[place] -= 1
        if not self._missing_in_switch[place]:
            for member in self._flows.groups[group]:
                self._head_comes(member, segment, now + self._alpha_ns)

    def _head_comes(self, flow: int, segment: int, when: float) -> None:
        """The receiving side is taken in the order in which heads come; a sole feeder's is known now."""
        if self._in_order[self._flows.receives[flow]]:
            self._receive(flow, segment, when)
        else:
            serial = (flow * self._flows.segments + segment) * _KINDS + _HEAD_CAME
            heappush(self._heap, (when, serial))

    def _receive(self, flow: int, segment: int, now: float) -> None:
        begun = self._occupy(self._flows.receives[flow], flow, segment, now)
        serial = (flow * self._flows.segments + segment) * _KINDS + _ARRIVED
        heappush(self._heap, (begun + self._flows.segment_ns[flow], serial))

    def _occupy(self, side: int, flow: int, segment: int, now: float) -> float:
        """When the segment begins to pass the side."""
        begun = max(now, self._free_ns[side])
        self._free_ns[side] = end = begun + self._flows.segment_ns[flow]
        if self._occupations is not None:
            self._occupations.append(Occupation(self._flows.ports.name(side), begun, end, flow, segment))
        return begun
