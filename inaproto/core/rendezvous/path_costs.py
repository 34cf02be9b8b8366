"""What an all-reduce takes by each path: a cost model of latency and bandwidth, and the choice that follows.

A path is hops and bytes. A message of m bytes takes ``latency + m / rate`` for each hop that it passes, and a
host that receives from (or sends to) k others takes k times ``m / rate`` for it. Further messages follow as
fast as the busiest host sends or receives, and not faster than the window lets them: N in the time that one
takes.

- switch: up and down the levels of the plan; each host sends and receives every byte once, at the rate at
  which the switches add up if that is the lower one;
- chain: ``2 (W - 1)`` hops; a host in the middle sends every byte twice (of nested plans, once more for each
  list that is open);
- overlay: up and down the levels of the tree (:mod:`inaproto.core.plan.host_tree`), with the bound on
  in-degrees that is fastest; a host sends up once, and down once to each child;
- ring: ``2 (W - 1)`` hops; ``2 (W - 1) / W`` of every byte (NetReduce section 3.4, equation (1)).

Additions take no time, hosts have one NIC each, and paths share no link but those. Pure arithmetic in whole
nanoseconds, rounded up; equal costs keep the order in which the paths are listed above.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from inaproto.core.plan.accumulators import Accumulators
from inaproto.core.plan.host_tree import OverlayTree
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import LocalMisuse
from inaproto.units import S
from inaproto.wire.control_messages import RingPath
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op

IN_DEGREE_MAX: Final = 16
"""Bounds that are tried for an overlay are 1 to this."""
IN_DEGREE_DEFAULT: Final = 4
"""In-degree of an overlay whose costs nobody has asked for."""
MARGIN_PERCENT: Final = 25
"""Less time the hosts must be predicted to take than the switches, to be preferred; and the other way."""
_DTYPE: Final = Dtype.F32
"""Element type by which payloads are counted."""


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """Figures of the network between hosts, measured or configured. Raises ``LocalMisuse`` for what no link
    has."""

    latency_ns: int
    """Latency of a hop, from posting a message without payload to its arrival."""
    rate_bps: int
    """Rate of a host's NIC, in each direction."""
    switch_rate_bps: int = 0
    """At which switches add up what each host sends; 0: as fast as the links are."""

    def __post_init__(self) -> None:
        if self.latency_ns < 0 or self.rate_bps < 1 or self.switch_rate_bps < 0:
            raise LocalMisuse(
                f"links of {self.latency_ns} ns and {self.rate_bps} bit/s, switches of {self.switch_rate_bps}"
            )

    def __str__(self) -> str:
        switch = f", switches {self.switch_rate_bps / 1e6:.6g} Mbit/s" if self.switch_rate_bps else ""
        return f"{self.latency_ns / 1e3:.4g} us a hop, {self.rate_bps / 1e6:.6g} Mbit/s{switch}"


@dataclass(frozen=True, slots=True)
class Task:
    """An all-reduce: ``tensor_bytes`` in messages of ``message_bytes``, ``window_messages`` of them at
    once."""

    tensor_bytes: int
    message_bytes: int
    window_messages: int

    def __post_init__(self) -> None:
        if self.tensor_bytes < 0 or self.message_bytes <= INA_HEADER_BYTES or self.window_messages < 1:
            raise LocalMisuse(f"{self}: a size below 0, or messages without payload or window")

    @property
    def messages(self) -> int:
        return max(1, -(-self.tensor_bytes // (self.message_bytes - INA_HEADER_BYTES)))

    @property
    def first_bytes(self) -> int:
        """Bytes of the first message, with its header."""
        return min(self.message_bytes, self.tensor_bytes + INA_HEADER_BYTES)


class PathCost(NamedTuple):
    path: RingPath
    predicted_ns: int
    levels: int
    """Hops to where the result is."""
    in_degree: int = 0
    """Bound of an overlay; 0: of other paths."""

    def __str__(self) -> str:
        levels = f"{self.levels} level{'' if self.levels == 1 else 's'}"
        return f"{self.path}: {levels}, predicted {milliseconds(self.predicted_ns)}"


def costs(
    paths: Iterable[RingPath], plan: ReductionPlan, task: Task, links: LinkFigures
) -> tuple[PathCost, ...]:
    """Costs of these ``paths`` of a job with that ``plan`` over its hosts, the fastest first.

    Raises ``LocalMisuse`` for a chain that cannot follow the plan, and for paths that are not one.
    """
    found = {
        "switch": lambda: _switch(plan, task, links),
        "chain": lambda: _chain(plan, task, links),
        "overlay": lambda: _overlay(plan, task, links),
        "ring": lambda: _ring(plan, task, links),
    }
    asked = list(paths)
    unknown = [path for path in asked if path not in found]
    if unknown:
        raise LocalMisuse(f"the path {unknown[0]} is no way by itself, and has no cost")
    return tuple(
        sorted((found[path]() for path in found if path in asked), key=lambda cost: cost.predicted_ns)
    )


def explain(costs: Iterable[PathCost], taken: RingPath | None = None) -> str:
    """``overlay: 4 levels, predicted 3.1 ms against chain 7.9 ms``: the path that is ``taken`` first, if it
    is among them; raises ``LocalMisuse`` of none."""
    ordered = sorted(costs, key=lambda cost: cost.path != taken)
    if not ordered:
        raise LocalMisuse("no costs to explain")
    first, *others = ordered
    against = ", ".join(f"{cost.path} {milliseconds(cost.predicted_ns)}" for cost in others)
    return f"{first} against {against}" if against else str(first)


def is_faster(one: PathCost, other: PathCost) -> bool:
    """Whether it is faster by the margin: predictions are not that exact, and changing costs time, too."""
    return one.predicted_ns * (100 + MARGIN_PERCENT) < other.predicted_ns * 100


def milliseconds(ns: int) -> str:
    return f"{ns / 1_000_000:.3g} ms"


def _switch(plan: ReductionPlan, task: Task, links: LinkFigures) -> PathCost:
    rate = min(links.rate_bps, links.switch_rate_bps or links.rate_bps)
    hop = links.latency_ns + _ns(task.first_bytes, rate)
    return PathCost(
        "switch", _pipelined(2 * plan.depth * hop, _ns(task.message_bytes, rate), task), plan.depth
    )


def _chain(plan: ReductionPlan, task: Task, links: LinkFigures) -> PathCost:
    sums, hops = Accumulators(plan), plan.size - 1
    first, full = task.first_bytes, task.message_bytes - INA_HEADER_BYTES
    up = [
        INA_HEADER_BYTES + sums.stack_bytes(rank, _DTYPE, Op.SUM, first - INA_HEADER_BYTES)
        for rank in range(hops)
    ]
    down = hops * first
    latency = 2 * hops * links.latency_ns + _ns(sum(up) + down, links.rate_bps)
    busiest = max(
        (
            INA_HEADER_BYTES
            + sums.stack_bytes(rank, _DTYPE, Op.SUM, full)
            + (task.message_bytes if rank < hops - 1 else 0)
            for rank in range(hops)
        ),
        default=0,
    )
    return PathCost("chain", _pipelined(latency, _ns(busiest, links.rate_bps), task), hops)


def _ring(plan: ReductionPlan, task: Task, links: LinkFigures) -> PathCost:
    hops = plan.size - 1
    latency = 2 * hops * (links.latency_ns + _ns(task.first_bytes, links.rate_bps))
    busiest = -(-2 * hops * _ns(task.message_bytes, links.rate_bps) // plan.size)
    return PathCost("ring", _pipelined(latency, busiest, task), hops)


def _overlay(plan: ReductionPlan, task: Task, links: LinkFigures) -> PathCost:
    """Under the bound that is fastest; of several, the lowest."""
    bounds = range(1, max(1, min(IN_DEGREE_MAX, plan.size - 1)) + 1)
    return min(
        (_bounded(OverlayTree(plan, bound), task, links) for bound in bounds),
        key=lambda cost: cost.predicted_ns,
    )


def _bounded(tree: OverlayTree, task: Task, links: LinkFigures) -> PathCost:
    first = _ns(task.first_bytes, links.rate_bps)

    order = [tree.root]  # parents first; a flat plan of one child each is as deep as it has hosts
    for rank in order:
        order += tree.children(rank)
    up, down = [0] * tree.plan.size, [0] * tree.plan.size
    # When a rank has what comes from below, and when all below have the result, from when it has it.
    for rank in reversed(order):
        children = tree.children(rank)
        heard = max((up[child] + links.latency_ns for child in children), default=0)
        up[rank] = heard + len(children) * first
        sent = enumerate((children[index] for index in tree.downwards(rank)), 1)
        down[rank] = max(
            (number * first + links.latency_ns + down[child] for number, child in sent), default=0
        )
    busiest = max(len(tree.children(rank)) + (rank != tree.root) for rank in range(tree.plan.size))
    each = busiest * _ns(task.message_bytes, links.rate_bps)
    predicted = _pipelined(up[tree.root] + down[tree.root], each, task)
    return PathCost("overlay", predicted, tree.levels, tree.in_degree)


def _pipelined(first_ns: int, each_ns: int, task: Task) -> int:
    """The first message takes ``first_ns``, others follow at ``each_ns``, or as the window lets them."""
    follows = max(each_ns, -(-first_ns // task.window_messages))
    return first_ns + (task.messages - 1) * follows


def _ns(nbytes: int, rate_bps: int) -> int:
    return -(-8 * S * nbytes // rate_bps)
