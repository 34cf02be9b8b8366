"""Trees that follow one another under a running training (MLNet section 5, future work: the in-degree).

All nodes know the same trees to choose from, by their configuration. The root says which is used, and from
which clock on (:class:`~inaproto.wire.messages.models.Epoch`); it does so on disk first, then down the tree.

**Order of additions, s = 0.** A window is added in the order of the tree of *its* clock, whoever is attached
to whom by then. So nobody may add up a window before it knows which tree that is. No worker is further ahead
of what it knows of the root than ``ahead_max``, so windows from ``first`` on, a little more than that after
all clocks when the root decided, are those of workers that have heard of a later clock of the root. Whoever
has heard of that knows the epoch: on every edge ``Reshaped`` goes before the news of the root that came after
it. And a parent knows each epoch that a child knows which it takes pushes of: it told the child, or has asked
above, as ``Attach`` says which epoch the child knows.

**Who is whose child** follows at once, each node for itself, by the means by which it leaves a dead parent:
``Detach``, ``Attach`` with clocks, and again what is missing there. While nodes know different epochs two may
be each other's parent; the one that knows the later one tells the other, attached or not.

One epoch begins when all windows before it are merged: so there are at most two orders at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from inaproto.core.models.tree.shape import Shape
from inaproto.wire.messages.models import FIRST_EPOCH, Epoch, NodeId


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a node is in one of the trees."""

    ancestors: tuple[NodeId, ...]
    """Its parent first, the root last; empty for the root."""
    children: tuple[NodeId, ...] = ()
    """In the order in which their sums are added."""
    shape: Shape | None = None
    """Shape of the subtree below it."""


class _Config(Protocol):
    @property
    def stands(self) -> tuple[Stand, ...]: ...


class Orders:
    """What a node or the root knows of the trees; ``epoch`` is the newest that it has heard of."""

    def __init__(self, config: _Config, epoch: Epoch = FIRST_EPOCH) -> None:
        self._config = config
        self.epoch = epoch

    @property
    def stand(self) -> Stand:
        """In the tree that is used now."""
        return self._config.stands[self.epoch.tree]

    def shape(self, clock: int) -> Shape | None:
        """The order of additions of the window of this clock."""
        return self._config.stands[self.epoch.tree_at(clock)].shape

    def knows(self, epoch: Epoch) -> bool:
        """Whether its trees are some of those to choose from."""
        trees = range(len(self._config.stands))
        return epoch.before in trees and epoch.tree in trees


def first_clock(clocks: int, ahead_max: int) -> int:
    """First clock of an epoch that is decided when the furthest worker is at ``clocks``, durably: nobody has
    finished an update of it. One more for who leaves: its last word is of the window that it would have
    reached."""
    return clocks + ahead_max + 2
