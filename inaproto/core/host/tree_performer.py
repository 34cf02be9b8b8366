"""How the orders of an overlay's engine are carried out: what goes up is as on other rings of hosts.

Beside that there are what children pass up, each into slots of its own, and results that go down to them.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import numpy as np

from inaproto.core.host.engines.host_tree import Fold, PostDown
from inaproto.core.host.engines.hosts import Place
from inaproto.core.host.journal import Journal
from inaproto.core.host.performer import KeptResults, RingOrders, Slots, Tensors
from inaproto.core.plan.host_tree import OverlayTree

PayloadT = TypeVar("PayloadT")
InT_contra = TypeVar("InT_contra", contravariant=True)


class TreeSlots(Slots[InT_contra], Protocol[InT_contra]):
    """A host's memory in a tree, and its ways: ``Slots`` are those of results, its way that to its parent."""

    def came(self, child: int, slot: int, nbytes: int) -> memoryview:
        """The ``nbytes`` behind the header in receive slot ``slot`` of child number ``child``."""

    def post_down(self, child: int, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of the result in receive slot ``at`` on to that child."""


class OverlayOrders(RingOrders[PayloadT]):
    """Performs the orders of one host in one tree."""

    def __init__(
        self,
        link: TreeSlots[PayloadT],
        kept: KeptResults,
        tensors: Tensors[PayloadT],
        journal: Journal | None = None,
    ) -> None:
        super().__init__(link, kept, tensors, journal, "overlay")
        self._tree_link = link

    def fold(self, action: Fold, tree: OverlayTree, position: int) -> None:
        """Add what has come of all children and the part of the host at ``position``."""
        operation, link = action.operation, self._tree_link
        own = self.contribution(action.source, operation, action.offset, action.nbytes)
        staged = action.place is Place.STAGED
        out = link.staged(action.out, action.goes) if staged else link.result(action.out, action.goes)
        tree.fold(
            position,
            operation.dtype,
            operation.op,
            [np.frombuffer(link.came(came.child, came.slot, came.nbytes), np.uint8) for came in action.came],
            np.frombuffer(own, np.uint8),
            np.frombuffer(out, np.uint8),
        )

    def post_down(self, action: PostDown) -> None:
        """Send a result on."""
        self._tree_link.post_down(
            action.child, action.msg_id, action.slot, action.header, action.at, action.nbytes
        )
