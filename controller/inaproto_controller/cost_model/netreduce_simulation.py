"""NetReduce's algorithms timed on a simulated network, beside what the cost model says of them.

The schedules are those that hosts run; the network is that of ``inaproto_controller.simulate.timed``. Each is
timed twice:

- *staged*: a stage begins when the one before has ended everywhere. This is what appendix A adds up.
- *overlapped*: a segment goes on as soon as it is there, which is what a schedule asks for and no more.

A flat ring has no stages. The model lets every hop of it take as long as one between machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from inaproto_controller.cost_model.netreduce import ALGORITHMS, Cluster, Number
from inaproto_controller.cost_model.netreduce_sweeps import GB, INTER, SIZE, US, sweeps
from inaproto_controller.simulate.schedules.parallel import parallel_netreduce, parallel_ring
from inaproto_controller.simulate.schedules.ring import ring
from inaproto_controller.simulate.schedules.schedule import Schedule
from inaproto_controller.simulate.schedules.tencent import tencent
from inaproto_controller.simulate.timed.network import Network, stages
from inaproto_controller.simulate.timed.timing import time_schedule

SEGMENT_BYTES: Final = 500_000
ELEMENT_BYTES: Final = 4
SWEEP_GPUS_MAX: Final = 128
"""Points of the sweeps with more GPUs are left to the model: PR at P = 1024 has two million transfers."""
RING_GPUS: Final = tuple(2**power for power in range(1, 11))

_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class Timed:
    """One algorithm at one point, in seconds."""

    model: float
    staged: float
    overlapped: float

    @property
    def staged_to_model(self) -> float:
        return self.staged / self.model

    @property
    def overlapped_to_model(self) -> float:
        return self.overlapped / self.model


@dataclass(frozen=True, slots=True)
class RingAgainstNetwork:
    """A ring of single-GPU machines, and one sum in the network over the same links."""

    gpus: int
    ring: Timed
    netreduce: Timed

    @property
    def speedup(self) -> float:
        return self.ring.overlapped / self.netreduce.overlapped


@dataclass(frozen=True, slots=True)
class Simulation:
    """All runs of ``inaproto model netreduce --simulate``."""

    points: Mapping[Cluster, Mapping[str, Timed]] = field(default_factory=dict)
    """Times by algorithm, for the points of the sweeps that are small enough."""
    headline: tuple[RingAgainstNetwork, ...] = ()


def schedule_of(algorithm: str, cluster: Cluster) -> Schedule:
    """The schedule of FR, TA, PN or PR."""
    machines, per_machine = cluster.machines, cluster.per_machine
    if algorithm == "FR":
        return ring(cluster.gpus, machine_of=tuple(rank // per_machine for rank in range(cluster.gpus)))
    return {"TA": tencent, "PN": parallel_netreduce, "PR": parallel_ring}[algorithm](machines, per_machine)


def timed(algorithm: str, cluster: Cluster, *, size: Number = SIZE) -> Timed:
    """Runs one algorithm at one point."""
    model = next(one for one in ALGORITHMS if one.name == algorithm)
    schedule = schedule_of(algorithm, cluster)
    network = Network(
        alpha_ns=float(cluster.alpha * _NS), intra=float(cluster.intra / GB), inter=float(cluster.inter / GB)
    )

    def seconds(of: Schedule) -> float:
        elements = int(size) // ELEMENT_BYTES
        return time_schedule(of, network, elements=elements, segment_bytes=SEGMENT_BYTES).ns / _NS

    overlapped = seconds(schedule)
    parts = [] if algorithm == "FR" else stages(schedule)
    staged = sum(map(seconds, parts)) if len(parts) > 1 else overlapped
    return Timed(float(model.time(cluster, size)), staged, overlapped)


def simulate(*, gpus_max: int, tell: Callable[[str], None] = lambda _: None) -> Simulation:
    """Everything, with no more than ``gpus_max`` GPUs. ``tell`` is told what comes next."""
    points: dict[Cluster, dict[str, Timed]] = {}
    for cluster in _small_points(gpus_max):
        tell(f"P = {cluster.gpus}, B_intra = {float(cluster.intra / GB):g} GB/s")
        points[cluster] = {one.name: timed(one.name, cluster) for one in ALGORITHMS}
    headline = []
    for gpus in RING_GPUS:
        if gpus <= gpus_max:
            tell(f"ring of {gpus}")
            headline.append(ring_against_network(gpus))
    return Simulation(points, tuple(headline))


def ring_against_network(gpus: int) -> RingAgainstNetwork:
    cluster = Cluster(gpus, 1, US, INTER, INTER)
    return RingAgainstNetwork(gpus, timed("FR", cluster), timed("PN", cluster))


def _small_points(gpus_max: int) -> Iterator[Cluster]:
    """Each once, although sweeps share points."""
    found = dict.fromkeys(row.cluster for sweep in sweeps() for row in sweep.rows)
    return (cluster for cluster in found if cluster.gpus <= min(gpus_max, SWEEP_GPUS_MAX))
