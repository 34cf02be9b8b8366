"""What PARING has planned for a job of a live cluster: its tree, and on which hosts (``live_trees``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from inaproto.wire.messages.trees import FabricTree

Link = tuple[str, str]
"""Two nodes, by name, in the direction of the root."""


@dataclass(frozen=True)
class LiveTree:
    tree: FabricTree
    adders: tuple[str, ...]
    """Switches that add up for it, sorted: where it needs slots."""
    rate: Fraction
    """Gbit/s that each host sends, when all switches have what it takes."""
    loads: Mapping[str, int]
    """Gradients that each of them adds up."""
    gradients: Mapping[Link, int]
    """Gradients that each link carries towards the root in one iteration."""

    @property
    def links(self) -> int:
        """Each as often as it carries a gradient."""
        return sum(self.gradients.values())

    @property
    def worth(self) -> tuple[Fraction, int]:
        """The higher the better: of rate, then of links."""
        return self.rate, -self.links

    @property
    def held(self) -> dict[str, Fraction]:
        """What it takes of the capacities of its switches, Gbit/s."""
        return {name: self.rate * load for name, load in self.loads.items()}

    def document(self) -> dict[str, Any]:
        """For people and their programs. ``carried``: bytes on a link for each byte all-reduced, towards
        the root."""
        return {
            "root": self.tree.root,
            "rate_gbit_s": str(self.rate),
            "links": self.links,
            "loads": dict(self.loads),
            "above": [list(pair) for pair in self.tree.above],
            "passing": list(self.tree.passing),
            "carried": [
                {"from": lower, "to": upper, "per_byte": count}
                for (lower, upper), count in self.gradients.items()
            ],
        }


class LivePlace(NamedTuple):
    """Hosts and tree of a job."""

    hosts: tuple[str, ...]
    """By rank."""
    tree: LiveTree
    why: str = ""
    """Why its tree is none that PARING has planned, if it is not."""
