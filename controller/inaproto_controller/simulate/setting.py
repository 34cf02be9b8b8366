"""What is simulated: a cluster, and how its jobs get hosts and trees and share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto_controller.cluster.network import Network
from inaproto_controller.cluster.step_times import Speeds
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.planning.placement.simple import Hosts
from inaproto_controller.planning.trees.builder import TreeBuilder
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.group_order import GroupOrder


class Placement(Protocol):
    def place(self, occupancy: Occupancy, count: int) -> Hosts | None: ...


@dataclass(frozen=True, slots=True)
class Migration:
    """What a change of a job's tree after its first costs, seconds."""

    release: float = 0.125
    """Until the links of the old tree are free for others."""
    total: float = 0.559
    """Until the job can use INA again."""


FREE: Final = Migration(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Setting:
    """A cluster and how it is run. Networks and builders have a state: a setting serves one simulation."""

    network: Network
    occupancy: Occupancy
    placement: Placement
    trees: TreeBuilder
    policy: Policy
    speeds: Speeds
    order: GroupOrder = GroupOrder.DESCENDING
    migration: Migration = FREE
    is_weighted: bool = False
    """The score policy multiplies what an operation gains with the hosts of its job."""
    suffix_only: bool = False
    """Only the operations ask for INA that need it for the shortest step (the short paper)."""
    is_pairwise: bool = False
    """Jobs take turns whose trees exclude each other, not whole groups (no part of the paper)."""
    jitter: float = 0.0
    """Largest share by which an operation takes less or more time."""
    seed: int = 0
    models: Mapping[str, ModelTrace] = field(default_factory=dict)
    """Traces beside those that are part of inaproto."""
