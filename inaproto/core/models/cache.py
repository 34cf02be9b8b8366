"""The weights that a node has at hand (MLNet section 3.2; docs/protocol.md 18.1).

At s > 0 they are the last that came from above, plus all that this node has taken since or that was not in
them; at s = 0 they are those of one clock, as the root made them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inaproto.core.models.staleness import is_legal
from inaproto.core.models.updates import Update, added, rest_after
from inaproto.wire.messages.arrays import Comparable, Numbers
from inaproto.wire.messages.clocks import Clocks
from inaproto.wire.messages.models import Weights


@dataclass(frozen=True, slots=True, eq=False)
class Cache(Comparable):
    weights: Numbers
    included: Clocks
    """Vector of the updates in the weights."""
    root: Clocks
    """The root's vector when the weights left it."""

    @classmethod
    def of(cls, said: Weights) -> Cache:
        return cls(said.weights, said.included, said.root)

    def is_legal(self, needed: int) -> bool:
        return is_legal(self.root, needed)

    def plus(self, updates: Iterable[Update]) -> Cache | None:
        """The cache with those updates that are not in the weights; None if one of them is in them in
        part."""
        found = rest_after(updates, self.included)
        if found is None:
            return None
        weights: Numbers | None = self.weights
        for update in found[0]:
            weights = added(weights, update.delta)
        assert weights is not None, "a sum with weights in it is one"
        return Cache(weights, found[1], self.root)

    def word(self) -> Weights:
        return Weights(self.included, self.root, self.weights)
