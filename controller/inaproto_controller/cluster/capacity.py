"""How many trees a switch of a SHARP generation takes at a time: one for all of it, or one at each port.

MINA, section III-C: trees of Quantum switches must share no switch, those of Quantum-2 no link. The link of
a host is one of the ports. What is unknown counts as Quantum: that bars more, and promises nothing that a
switch may not keep. A switch with such a limit sums by SHARP, and no daemon of ours is there. The conflicts
themselves are those of :mod:`~inaproto_controller.cluster.graph_network` and
:mod:`~inaproto_controller.cluster.topology`; a model only says the limits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from enum import StrEnum
from typing import Final

from inaproto_controller.cluster.graph_topology import GraphSwitch, GraphTopology
from inaproto_controller.cluster.topology import Quota


class CapacityModel(StrEnum):
    """What an active streaming tree has for itself."""

    SWITCH = "switch"
    """Every switch in it: Quantum (HDR), and whatever is not known."""
    PORT = "port"
    """Every port that it goes through: Quantum-2 (NDR)."""

    @property
    def quota(self) -> Quota:
        """The same, of a fat tree: a port is that of one link."""
        return Quota.SWITCH if self is CapacityModel.SWITCH else Quota.LINK

    def limit(self, name: str) -> GraphSwitch:
        """A switch of that name that sums by SHARP, with the limit of this model."""
        if self is CapacityModel.SWITCH:
            return GraphSwitch(name, jobs=1, sharp=True)
        return GraphSwitch(name, jobs_per_port=1, sharp=True)


_GENERATIONS: Final = {"quantum": CapacityModel.SWITCH, "quantum-2": CapacityModel.PORT}
MIXED: Final = "mixed"


def of_generation(generation: str) -> CapacityModel:
    """Model of a generation by its name, in letters of any case."""
    return _GENERATIONS.get(generation.lower(), CapacityModel.SWITCH)


def generation_of(switch: GraphSwitch) -> str:
    """A generation that stands for the limit of a switch that sums by SHARP."""
    return "quantum" if switch.jobs_per_port is None else "quantum-2"


def limited(topology: GraphTopology, model: CapacityModel) -> GraphTopology:
    """The same cluster, where each switch that sums has the limit of this model and no other.

    Switches that pass packets on still do, and limits of single links stay.
    """
    switches = tuple(model.limit(one.name) if one.aggregates else one for one in topology.switches)
    return replace(topology, switches=switches)


def said(topology: GraphTopology) -> dict[str, str | int]:
    """What the switches that sum are limited by, for people: ``model`` is "switch" or "port" where all agree.

    "mixed" stands for several models and for limits that are of none; the counts say of how many switches.
    """
    counts = Counter(_model_of(one) for one in topology.switches if one.aggregates)
    model = next(iter(counts), CapacityModel.SWITCH.value) if len(counts) < 2 else MIXED
    return {"model": model, **dict(sorted(counts.items()))}


def _model_of(switch: GraphSwitch) -> str:
    limits = (switch.jobs, switch.jobs_per_port)
    if limits == (1, None):
        return CapacityModel.SWITCH.value
    return CapacityModel.PORT.value if limits == (None, 1) else MIXED
