"""Small migration plans for the exhaustive search: which jobs go to which trees, and what may fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from inaproto.core.migration.events import PlanWanted, Tree
from inaproto.errors import ConfigError

Targets = Mapping[str, str]
"""Letters of the switches of each job's tree; empty: none."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The first plan has been carried out when a run begins; the others come at any time, in order."""

    name: str
    text: str
    plans: tuple[Targets, ...]
    jobs_end: bool = False
    """A job may end once it had its tree, and does not have to."""

    @property
    def switches(self) -> tuple[str, ...]:
        return tuple(sorted({at for plan in self.plans for tree in plan.values() for at in tree}))

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(sorted({job for plan in self.plans for job in plan}))

    def wanted(self, index: int) -> PlanWanted:
        """Plan ``index`` as an event; a tree's id is its place among all trees."""
        trees = sorted({tree for plan in self.plans for tree in plan.values() if tree})
        return PlanWanted(
            index + 1,
            tuple(
                (job, Tree(trees.index(tree) + 1, tuple(sorted(tree))) if tree else None)
                for job, tree in sorted(self.plans[index].items())
            ),
        )


SCENARIOS: Final[Mapping[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "swap",
            "two jobs swap trees of one switch each",
            ({"A": "x", "B": "y"}, {"A": "y", "B": "x"}),
        ),
        Scenario(
            "swap-three",
            "two jobs swap trees over three switches",
            ({"A": "xy", "B": "z"}, {"A": "yz", "B": "x"}),
        ),
        Scenario(
            "first",
            "one job gives its tree up, another gets its first",
            ({"A": "xy"}, {"A": "", "B": "xy"}),
        ),
        Scenario(
            "replaced",
            "two jobs are to swap trees, and then are not",
            ({"A": "x", "B": "y"}, {"A": "y", "B": "x"}, {"A": "x", "B": "y"}),
        ),
        Scenario(
            "contend",
            "two jobs want the same two switches, and one gets them when the other has ended",
            ({}, {"A": "xy", "B": "xy"}),
            jobs_end=True,
        ),
    )
}

FAULTS: Final = ("losses", "duplicates", "crashes", "reboots", "outages", "run_outs", "deaths", "no_return")


@dataclass(frozen=True, slots=True)
class MigrationWorldConfig:
    """How often what may fail, and how many faults there are in all."""

    scenario: Scenario
    capacity: int = 1
    """Slots of a switch."""
    losses: int = 1
    """Messages between coordinator and switches."""
    duplicates: int = 1
    """Copies of such messages; the copy comes any time later."""
    crashes: int = 1
    """Crashes of the coordinator."""
    reboots: int = 1
    """Reboots of switches, which are empty then."""
    outages: int = 1
    """Outages of control sessions: the coordinator takes a switch for lost."""
    run_outs: int = 1
    """Leases that run out although somebody is there to renew them."""
    deaths: int = 1
    """Jobs that end because a host died."""
    no_return: int = 0
    """Crashes from which the coordinator never returns."""
    faults: int = 1
    """In all."""
    reduced: bool = True
    """Use the reductions that ``migration_world`` argues for."""

    def __post_init__(self) -> None:
        for name in (*FAULTS, "faults"):
            if not 0 <= getattr(self, name) <= 8:
                raise ConfigError(f"{name} must be 0 to 8, not {getattr(self, name)}")
        if not 1 <= self.capacity <= 4:
            raise ConfigError(f"capacity must be 1 to 4, not {self.capacity}")
