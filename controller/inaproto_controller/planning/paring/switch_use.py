"""How much of the capacity of all programmable switches a task uses (PARING, section II-B and figure 1)."""

from __future__ import annotations

from fractions import Fraction

from inaproto.errors import LocalMisuse
from inaproto_controller.planning.paring.model import Measures, ProgrammableNetwork


def switch_use(network: ProgrammableNetwork, found: Measures) -> Fraction:
    """Mean over the switches that have a capacity, 0 for those that the tree leaves out.

    Raises ``LocalMisuse`` where no switch has one, or one has no bound.
    """
    shares = []
    for switch in network.programmable:
        capacity = network.capacities[switch]
        if capacity is None:
            raise LocalMisuse(f"{network.topology.name(switch)}: no share of a capacity without bound")
        shares.append(found.loads.get(switch, 0) * found.rate / capacity)
    if not shares:
        raise LocalMisuse("no switch adds anything up")
    return sum(shares, Fraction(0)) / len(shares)
