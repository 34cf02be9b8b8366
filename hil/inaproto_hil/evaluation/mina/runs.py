"""The runs behind MINA's figures, each a small record that says all of it, and what a run found.

Runs are those of the paper's revision: no downtime for exchanged trees, equal times in the order of its hash
table. Our own trees are run as we would have it: downtime charged, the default order. ``exclusive`` trees are
what the paper does not compare with: first fit, nobody shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from inaproto_controller.cluster.model import CLUSTER, CONFLICTS, EVALUATED, SHARING, measured
from inaproto_controller.cluster.requests import HISTOGRAMS, SEED, MinimalStandard, Request, draw_requests
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.planning.trees.builder import Changes, TreeBuilder, TreeJob
from inaproto_controller.planning.trees.exclusive import FirstFitL
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.group_order import GroupOrder
from inaproto_controller.simulate.presets import make_setting
from inaproto_controller.simulate.results import Result
from inaproto_controller.simulate.setting import Migration

DEGREE: Final = 16
OWN: Final = "sticky"
REQUESTS: Final = 2000
PAIR_SECONDS: Final = 1000.0
PAIR_HOSTS: Final = 3
ENDLESS: Final = 1 << 40
"""Steps."""
CONFLICT_REQUESTS: Final = 5000
CONFLICT_MODEL: Final = "opt-350m-16"


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """1024 hosts, one job a link, a published stream of requests."""

    trace: int
    placement: str
    trees: str
    policy: Policy
    order: GroupOrder = GroupOrder.HASH
    uplinks: int = DEGREE // 2
    candidates: int = 5
    """Trees of each job that are chosen from, where trees are built anew."""
    seed: int = 0
    requests: int = REQUESTS


@dataclass(frozen=True, slots=True)
class PairRun:
    """Two models' jobs without end at one switch (Figure 12)."""

    one: str
    other: str
    seconds: float = PAIR_SECONDS


@dataclass(frozen=True, slots=True)
class ConflictRun:
    """Who finds no tree of its own, one job a switch (Figure 2)."""

    requests: int = CONFLICT_REQUESTS


@dataclass(frozen=True, slots=True)
class CurveRun:
    """Plain steps of a model over the bandwidth (Figure 5)."""

    model: str
    bandwidths: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OwnRun:
    """1024 hosts, least fragments, a stream of requests, and downtime for each exchanged tree: our trees, one
    of their levers left out, or others in the same place."""

    trace: int
    trees: str = OWN
    speeds: str = "cluster"
    quota: Quota = Quota.LINK
    stream: int = SEED
    """Its seed; the published one by default."""
    without: str | None = None
    """One of ``LEVERS``."""
    requests: int = REQUESTS


LEVERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "keeping trees (a change is thought to be free)": {"downtime": 0.0},
    "changing trees (they are for life)": {"may_move": False},
    "sharing (a tree is exclusive, or none)": {"may_share": False},
    "leaving out who gains nothing": {"only_gainers": False},
    "looking at all roots (five)": {"roots_max": 5},
    "leaving INA to the operations that need it": {"suffix_only": False},
    "turns by pairs (by groups)": {},
}
"""What our trees may be without, and the builder's options then."""
SUFFIX: Final = "leaving INA to the operations that need it"
PAIRS: Final = "turns by pairs (by groups)"
SPEEDS: Final = {"cluster": CLUSTER, "sharing": SHARING}

Run = ClusterRun | PairRun | ConflictRun | CurveRun | OwnRun


@dataclass(frozen=True, slots=True)
class ClusterFound:
    """Seconds; means are over jobs. Undefined measures are None."""

    score: float | None
    weighted_score: float | None
    utilisation: float | None
    saved_mean: float | None
    saved_share: float | None
    seconds_mean: float | None
    queued_mean: float | None
    seconds_with_queue_mean: float | None
    swaps: int
    """Changes of trees after a job's first."""
    swaps_counted: int
    """Those that the published simulator counts."""
    downtime: float
    end: float
    events: int


@dataclass(frozen=True, slots=True)
class ConflictFound:
    without_tree: tuple[bool, ...]
    """Whether each request has no tree."""
    fragments: tuple[tuple[int, int, int], ...]
    """Jobs placed so far, fragments of busy hosts and of free ones, when it was last so many."""

    @property
    def share(self) -> float:
        return sum(self.without_tree) / len(self.without_tree)


@dataclass(frozen=True, slots=True)
class CurveFound:
    steps: tuple[float, ...]
    """Seconds, by bandwidth."""


Found = ClusterFound | ConflictFound | CurveFound


def perform(run: Run) -> tuple[Run, Found]:
    """The run, too: outcomes come in the order in which they are done."""
    if isinstance(run, ClusterRun):
        return run, _told(_cluster(run))
    if isinstance(run, PairRun):
        return run, _told(_pair(run))
    if isinstance(run, ConflictRun):
        return run, _conflicts(run)
    if isinstance(run, OwnRun):
        return run, _told(_own(run))
    return run, _curve(run)


def _told(result: Result) -> ClusterFound:
    return ClusterFound(
        result.score,
        result.weighted_score,
        result.utilisation,
        result.saved_mean,
        result.saved_share,
        result.seconds_mean,
        result.queued_mean,
        result.seconds_with_queue_mean,
        result.migrations,
        result.migrations_counted,
        result.downtime,
        result.end,
        result.events,
    )


def _cluster(run: ClusterRun) -> Result:
    options: dict[str, Any] = {"candidates_max": run.candidates} if run.trees == "rebuild-all" else {}
    setting = make_setting(
        FatTree.of_degree(DEGREE, uplinks=run.uplinks),
        quota=Quota.LINK,
        placement=run.placement,
        trees=run.trees,
        policy=run.policy,
        order=run.order,
        seed=run.seed,
        tree_options=options,
    )
    return simulate(setting, draw_requests(HISTOGRAMS[run.trace], run.requests))


def _own(run: OwnRun) -> Result:
    is_ours = run.trees == OWN
    setting = make_setting(
        FatTree.of_degree(DEGREE),
        quota=run.quota,
        trees=run.trees,
        policy=Policy.SCORE,
        speeds=SPEEDS[run.speeds],
        migration=Migration(),
        suffix_only=is_ours and run.without != SUFFIX,
        is_pairwise=is_ours and run.without != PAIRS,
        seed=run.stream,
        tree_options=LEVERS[run.without] if run.without else {},
    )
    return simulate(setting, draw_requests(HISTOGRAMS[run.trace], run.requests, seed=run.stream))


def _pair(run: PairRun) -> Result:
    switch = FatTree((2 * PAIR_HOSTS,), (1,))
    setting = make_setting(switch, quota=Quota.SWITCH, trees="first", policy=Policy.SCORE, speeds=SHARING)
    requests = [Request(model, PAIR_HOSTS, ENDLESS) for model in (run.one, run.other)]
    return simulate(setting, requests, until=run.seconds)


def pair_runs(seconds: float = PAIR_SECONDS) -> list[PairRun]:
    """Row by row of the matrix."""
    return [PairRun(one, other, seconds) for one in EVALUATED for other in EVALUATED]


class _Watched:
    """Exclusive first-fit trees, and what the cluster looked like after each attempt to place jobs."""

    wants_completions = True

    def __init__(self, trees: TreeBuilder, occupancy: Occupancy) -> None:
        self._trees = trees
        self._occupancy = occupancy
        self.without_tree: list[bool] = []
        self.fragments: dict[int, tuple[int, int]] = {}

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        found = self._trees.build(jobs, new, now=now, completed=completed)
        self.without_tree += [jobs[index].slot not in found for index in new]
        placed = len(self.without_tree)
        self.fragments[placed] = self._occupancy.busy_fragments(), self._occupancy.free_fragments()
        return found


def _conflicts(run: ConflictRun) -> ConflictFound:
    stream = MinimalStandard(SEED)
    requests = [
        Request(CONFLICT_MODEL, 1 + stream.below(16), 10 * (1 + stream.below(10)))
        for _ in range(run.requests)
    ]
    setting = make_setting(
        FatTree.of_degree(DEGREE),
        quota=Quota.SWITCH,
        placement="first",
        trees="exclusive",
        policy=Policy.GREEDY,
        speeds=CONFLICTS,
    )
    watched = _Watched(FirstFitL(setting.network), setting.occupancy)
    simulate(replace(setting, trees=watched), requests)
    rows = ((placed, *fragments) for placed, fragments in watched.fragments.items())
    return ConflictFound(tuple(watched.without_tree), tuple(rows))


def _curve(run: CurveRun) -> CurveFound:
    trace = measured(run.model)
    speeds = (Speeds(bandwidth, 1.0, 0.0) for bandwidth in run.bandwidths)
    return CurveFound(tuple(StepTimes(trace, each, hosts=2).step_plain for each in speeds))


def warm_up() -> None:
    """Compiled code is made, or loaded, in this process: once for all that share its cache."""
    for trees in ("first", "rebuild-all"):
        perform(ClusterRun(1, "least-fragments", trees, Policy.SCORE, requests=3))
    perform(OwnRun(1, requests=3))
