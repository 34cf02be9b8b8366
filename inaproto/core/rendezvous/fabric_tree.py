"""Which switches of a fabric a ring goes through, where its tree is assigned and not the fabric's own.

A fabric has one spanning tree, along which its switches pass ordinary traffic on; where switches have further
links up, other trees can be laid through it for rings (MINA section II-B plans over such trees). A tree names
all its switches: which of them a ring needs follows from where its ranks are.

A link may be gone through either way, whichever of its switches stands above the other in the fabric: a tree
that was planned for its rate and its traffic (PARING) is rooted where that is best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from inaproto.core.plan.aggregation_tree import SwitchAddress
from inaproto.units import PortId

_NO_PORT: Final = PortId(0)


class LinkUp(NamedTuple):
    """From a switch to one above it."""

    above: str
    port_up: PortId
    """Port of the lower switch, towards the upper."""
    port_down: PortId
    """Port of the upper switch, towards the lower."""


@dataclass(frozen=True, slots=True)
class FabricSwitch:
    """A switch of the fabric and its links upward.

    ``above`` is that of the fabric's own tree; None: this is the root, which is the first, or a further root,
    to which only further links lead.
    """

    name: str
    address: SwitchAddress
    above: str | None = None
    port_up: PortId = _NO_PORT
    """Port of this switch, towards the one above."""
    port_down: PortId = _NO_PORT
    """Port of the one above, towards this switch."""
    aggregates: bool = True
    passes_sums: bool = False
    """Whether switches below one that does not aggregate do all the same, and it sends their sums on."""
    further: tuple[LinkUp, ...] = ()
    """For rings along assigned trees only."""

    @property
    def links(self) -> tuple[LinkUp, ...]:
        """All that lead up."""
        own = () if self.above is None else (LinkUp(self.above, self.port_up, self.port_down),)
        return (*own, *self.further)
