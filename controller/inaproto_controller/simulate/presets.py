"""Settings of a simulated cluster by the names that commands and experiments use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto.errors import ConfigError
from inaproto_controller.cluster.graph_network import GraphNetwork
from inaproto_controller.cluster.model import CLUSTER
from inaproto_controller.cluster.network import FatTreeNetwork, Network
from inaproto_controller.cluster.step_times import Speeds
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.placement.least_fragments import LeastFragments
from inaproto_controller.planning.placement.occupancy import Cluster, Occupancy
from inaproto_controller.planning.placement.simple import FirstFit, RandomFit
from inaproto_controller.planning.trees.builder import TreeBuilder
from inaproto_controller.planning.trees.clique import HeaviestClique
from inaproto_controller.planning.trees.exclusive import FirstFitL, FirstFitP, NoTrees
from inaproto_controller.planning.trees.exclusive import RandomFit as RandomTree
from inaproto_controller.planning.trees.merging import MergedGroups
from inaproto_controller.planning.trees.rebuild_all import RebuildAll
from inaproto_controller.planning.trees.sticky import StickyTrees
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.group_order import GroupOrder
from inaproto_controller.simulate.setting import FREE, Migration, Placement, Setting

PLACEMENTS: Final[Mapping[str, Callable[[Cluster, int], Placement]]] = {
    "first": lambda cluster, seed: FirstFit(),
    "random": lambda cluster, seed: RandomFit(seed),
    "least-fragments": lambda cluster, seed: LeastFragments(_hierarchy(cluster)),
}
TREES: Final[Mapping[str, Callable[..., TreeBuilder]]] = {
    "none": lambda network, seed: NoTrees(),
    "first": lambda network, seed: FirstFitP(network),
    "exclusive": lambda network, seed: FirstFitL(network),
    "random": RandomTree,
    "rebuild-all": lambda network, seed, **options: RebuildAll(network, seed=seed, **options),
    "merging": lambda network, seed, **options: MergedGroups(network, seed=seed, **options),
    "clique": lambda network, seed, **options: HeaviestClique(network, seed=seed, **options),
    "sticky": lambda network, seed, **options: StickyTrees(network, **options),
}
"""Builders by name; called with the network, the seed, and options of their own."""


def make_setting(
    cluster: Cluster,
    *,
    quota: Quota = Quota.LINK,
    placement: str = "least-fragments",
    trees: str = "first",
    policy: Policy = Policy.SCORE,
    speeds: Speeds = CLUSTER,
    order: GroupOrder = GroupOrder.DESCENDING,
    migration: Migration = FREE,
    is_weighted: bool = False,
    suffix_only: bool = False,
    is_pairwise: bool = False,
    jitter: float = 0.0,
    seed: int = 0,
    models: Mapping[str, ModelTrace] | None = None,
    tree_options: Mapping[str, Any] | None = None,
) -> Setting:
    """For one simulation.

    ``quota``: of a fat tree; a graph says it itself. ``tree_options``: of the builder. Raises ``ConfigError``
    for unknown names, and for a placement by fragments in a graph without equal pods.
    """
    for name, known in ((placement, PLACEMENTS), (trees, TREES)):
        if name not in known:
            raise ConfigError(f"no {name!r}; there are {', '.join(known)}")
    network: Network
    if isinstance(cluster, FatTree):
        network = FatTreeNetwork(cluster, quota)
    else:
        network = GraphNetwork(cluster)
    return Setting(
        network=network,
        occupancy=Occupancy(cluster),
        placement=PLACEMENTS[placement](cluster, seed),
        trees=TREES[trees](network, seed, **(tree_options or {})),
        policy=policy,
        speeds=speeds,
        order=order,
        migration=migration,
        is_weighted=is_weighted,
        suffix_only=suffix_only,
        is_pairwise=is_pairwise,
        jitter=jitter,
        seed=seed,
        models=models or {},
    )


def _hierarchy(cluster: Cluster) -> FatTree:
    return cluster if isinstance(cluster, FatTree) else cluster.hierarchy()
