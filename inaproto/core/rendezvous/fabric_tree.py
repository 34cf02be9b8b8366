"""Which switches of a fabric a ring goes through, where its tree is assigned and not the fabric's own.

A fabric has one spanning tree, along which its switches pass ordinary traffic on; where switches have further
links up, other trees can be laid through it for rings (MINA section II-B plans over such trees). A tree names
all its switches: which of them a ring needs follows from where its ranks are.

A link may be gone through either way, whichever of its switches stands above the other in the fabric: a tree
that was planned for its rate and its traffic (PARING) is rooted where that is best.
"""

from __future__ import annotations

from typing import NamedTuple

Link = tuple[str, str]
"""Two switches, the lower first: the one farther from the root."""


class FabricTree(NamedTuple):
    """Switches, rooted; the links between them are the fabric's."""

    root: str
    above: tuple[Link, ...] = ()
    """Each switch of the tree but the root with the one above it, sorted."""
    passing: tuple[str, ...] = ()
    """Those of them that add nothing up for this tree and send on what is added below them, sorted."""
