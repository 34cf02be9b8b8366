"""Directed links of a three-layer fat tree, and paths on them by ECMP (MLNet, section 4).

A tree of switches with k ports has k pods of k/2 racks of k/2 servers; column j of a pod's aggregation
switches leads to the k/2 core switches of the same column. ECMP chooses a column and one of its core switches
for each flow, all alike. Between racks of a pod only the column matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inaproto.errors import LocalMisuse
from inaproto_hil.evaluation.flows.paths import NO_LINK, Floats, Ints, Paths


@dataclass(frozen=True, slots=True)
class FatTreeLinks:
    """In this order: servers to racks, racks to aggregation, aggregation to core; then the ways back."""

    ports: int
    """Ports of each switch: k."""
    oversubscription: float = 1.0
    """What servers can send for what links between racks and aggregation, and from there on, can carry."""

    def __post_init__(self) -> None:
        if self.ports < 2 or self.ports % 2 or self.oversubscription < 1:
            raise LocalMisuse(f"{self.ports} ports, {self.oversubscription}: an even number, at least 1")

    @property
    def half(self) -> int:
        return self.ports // 2

    @property
    def servers(self) -> int:
        return self.ports * self.half**2

    @property
    def racks(self) -> int:
        return self.ports * self.half

    @property
    def switches(self) -> int:
        """In racks, above them, core."""
        return 2 * self.racks + self.half**2

    @property
    def links(self) -> int:
        """Each layer has as many links up as there are servers, and as many down."""
        return 6 * self.servers

    def capacities(self) -> Floats:
        """(links,): 1 at servers."""
        layers = [1.0, 1 / self.oversubscription, 1 / self.oversubscription]
        return np.tile(np.repeat(layers, self.servers), 2)

    def rack_of(self, servers: Ints) -> Ints:
        return servers // self.half

    def paths(self, sources: Ints, sinks: Ints, choices: Ints) -> Paths:
        """``choices``: (F,) in 0..(k/2)²-1, the path of each flow among those between pods."""
        half, servers = self.half, self.servers
        columns = choices // half
        here, there = self.rack_of(sources), self.rack_of(sinks)
        table = np.full((len(sources), 6), NO_LINK, np.int32)
        is_away, leaves_rack = sources != sinks, here != there
        leaves_pod = here // half != there // half
        up_to_core = here // half * half**2 + choices  # pod, column, core switch of the column
        down_from_core = there // half * half**2 + choices
        for place, link, is_taken in (
            (0, sources, is_away),
            (1, servers + here * half + columns, leaves_rack),
            (2, 2 * servers + up_to_core, leaves_pod),
            (3, 5 * servers + down_from_core, leaves_pod),
            (4, 4 * servers + there * half + columns, leaves_rack),
            (5, 3 * servers + sinks, is_away),
        ):
            table[is_taken, place] = link[is_taken]
        return Paths.of_table(table)

    def mirrored(self, paths: Paths) -> Paths:
        """The same paths from sink to source."""
        turned = (paths.links + 3 * self.servers) % self.links
        whose = paths.flow_of_entry
        order = np.lexsort((-np.arange(len(turned)), whose))
        return Paths(paths.first, turned[order].astype(np.int32))


def drawn_choices(network: FatTreeLinks, flows: int, draw: np.random.Generator) -> Ints:
    """ECMP: (F,) each of the paths as likely."""
    return draw.integers(0, network.half**2, flows)
