"""The children of a node or of the root: who is attached, waits for what, or is dead (MLNet section 3.2).

A child of the tree is *awaited* from the start, and any child while it is attached: its clocks hold back the
windows of s = 0. One that goes to another parent, or is dead, is not. Children of a dead node come to its
parent; what they push is added after that of the tree's, by node, unless the shape of the tree says where
(:mod:`inaproto.core.models.tree.shape`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from inaproto.core.models.events import ChildView, Mark, NodeConfig, Noted, RootConfig, Tell
from inaproto.core.models.requests import requests_max
from inaproto.core.models.staleness import model_clock
from inaproto.errors import Blame
from inaproto.units import Instant
from inaproto.wire.messages.clocks import NO_CLOCKS, Clocks, WorkerId
from inaproto.wire.messages.models import (
    Attach,
    Detached,
    Heartbeat,
    HeartbeatAnswer,
    Merged,
    NodeId,
    PullRequest,
    Weights,
)

OWN_PLACE = -1
"""Place of the node's own worker in the order of addition."""


class Bond(Enum):
    NONE = "none"
    ASKED = "asked"
    """It has said ``Attach``, which is not answered."""
    ATTACHED = "attached"


@dataclass(slots=True)
class Child:
    node: NodeId
    place: int
    """In the order of addition."""
    is_of_tree: bool
    bond: Bond = Bond.NONE
    session: int = 0
    workers: tuple[WorkerId, ...] = ()
    floor: Clocks = NO_CLOCKS
    epoch: int = 0
    waiting: list[int] = field(default_factory=list)
    """The model clocks that its requests need, ascending."""
    told: Clocks = NO_CLOCKS
    """Part of the root's vector that concerns its workers."""
    is_awaited: bool = False
    is_dead: bool = False
    is_connected: bool = False
    silent_since: Instant | None = None
    """When it was last heard, with heartbeats; without, since when it is not connected, if it is not."""
    dead: tuple[NodeId, ...] = ()
    lost: tuple[WorkerId, ...] = ()
    load: int = 0
    """As its last heartbeat says."""

    def ends(self) -> None:
        """End its session: requests of it are made again in the next."""
        self.bond = Bond.NONE
        self.waiting.clear()


class Children:
    """In the order of addition."""

    def __init__(self, config: NodeConfig | RootConfig, of_tree: tuple[NodeId, ...], now: Instant) -> None:
        self._at_most = config.children_max
        self._shard = config.shard
        self._patience = config.patience
        self._start_ends = Instant(now + config.patience.start_ns)
        self._size_of_tree = len(of_tree)
        self._by_node = {
            node: Child(node, place, is_of_tree=True, is_awaited=True, silent_since=now)
            for place, node in enumerate(of_tree)
        }

    def __iter__(self) -> Iterator[Child]:
        return iter(tuple(self._by_node.values()))

    def get(self, node: NodeId) -> Child | None:
        return self._by_node.get(node)

    def bound(self, bond: Bond) -> list[Child]:
        return [child for child in self if child.bond is bond]

    @property
    def workers(self) -> list[WorkerId]:
        """For whom they may push."""
        return [worker for child in self if child.is_awaited for worker in child.workers]

    @property
    def awaited_workers(self) -> list[WorkerId]:
        """Those of them that are still below."""
        return [w for child in self if child.is_awaited for w in child.workers if w not in child.lost]

    @property
    def load(self) -> int:
        """Load of the busiest link at one of them, or below, in thousandths."""
        return max((child.load for child in self.bound(Bond.ATTACHED)), default=0)

    @property
    def are_expected(self) -> bool:
        """Whether one of the tree has not come yet, nor been taken for dead."""
        return any(child.is_awaited and not child.session for child in self)

    @property
    def dead(self) -> set[NodeId]:
        """Those, and what their heartbeats say of nodes below."""
        return {child.node for child in self if child.is_dead}.union(*(child.dead for child in self))

    def connected(self, node: NodeId, now: Instant) -> None:
        """Anew: what was said before is over."""
        self.disconnected(node, now)
        child = self.get(node)
        if child is not None:
            child.is_connected = True
            child.silent_since = None if self._patience.heartbeat_ns is None else now

    def disconnected(self, node: NodeId, now: Instant) -> None:
        child = self.get(node)
        if child is None:
            return
        child.ends()
        if self._patience.heartbeat_ns is None and child.silent_since is None:
            child.silent_since = now
        child.is_connected = False
        if not child.is_awaited and not child.is_of_tree:
            del self._by_node[node]

    def was_away(self, for_ns: int) -> None:
        """This process: nobody was silent meanwhile."""
        self._start_ends = Instant(self._start_ends + for_ns)
        for child in self:
            if child.silent_since is not None:
                child.silent_since = Instant(child.silent_since + for_ns)

    def heard(self, node: NodeId, now: Instant) -> None:
        child = self.get(node)
        if child is not None and self._patience.heartbeat_ns is not None:
            child.silent_since = now

    def stirs(self, node: NodeId, now: Instant, *, is_attached: bool) -> list[Tell]:
        """What it says is on its way: a sign of life as good as a heartbeat, which may be behind it. So it is
        answered as one, or the child would hear nothing until all has come."""
        self.heard(node, now)
        return [] if self.get(node) is None else [Tell(node, HeartbeatAnswer(is_attached))]

    def attach(self, node: NodeId, said: Attach, now: Instant) -> Child | Blame:
        child = self.get(node)
        if child is None:
            if len(self._by_node) >= self._at_most:
                return Blame(str(node), "one child too many", f"{self._at_most} are attached")
            child = Child(node, self._size_of_tree + node, is_of_tree=False)
            by_place = sorted([*self._by_node.values(), child], key=lambda child: child.place)
            self._by_node = {child.node: child for child in by_place}
        child.ends()
        child.bond, child.session = Bond.ASKED, said.session
        child.workers, child.floor, child.epoch = said.workers, said.floor, said.epoch
        child.told = NO_CLOCKS
        child.is_awaited, child.is_dead, child.is_connected = True, False, True
        child.dead, child.lost = (), ()
        child.silent_since = None if self._patience.heartbeat_ns is None else now
        return child

    def reshape(self, of_tree: tuple[NodeId, ...]) -> None:
        """They are the children in the tree now: who is new among them comes by itself, who is none any more
        goes by itself, and stays as long as it is bound."""
        places = {node: place for place, node in enumerate(of_tree)}
        self._size_of_tree = len(of_tree)
        kept = {child.node: child for child in self if child.bond is not Bond.NONE or child.node in places}
        for node in of_tree:
            kept.setdefault(node, Child(node, 0, is_of_tree=True))
        for node, child in kept.items():
            child.is_of_tree = node in places
            child.place = places.get(node, self._size_of_tree + node)
        by_place = sorted(kept.values(), key=lambda child: child.place)
        self._by_node = {child.node: child for child in by_place}

    def leave(self, node: NodeId, session: int) -> None:
        """For another parent, and it has said so."""
        child = self.get(node)
        if child is None or child.bond is Bond.NONE or child.session != session:
            return
        self._forget(child)

    def detach(self, child: Child, reason: str) -> Tell:
        child.ends()
        return Tell(child.node, Detached(child.session, reason))

    def age(self, now: Instant) -> list[Tell | Noted]:
        """Takes those for dead that are silent for too long."""
        actions: list[Tell | Noted] = []
        for child in self:
            dies = self._dies(child)
            if dies is None or now < dies:
                continue
            actions.append(Noted(Mark.CHILD_DEAD, child.node))
            if child.bond is not Bond.NONE:
                actions.append(self.detach(child, "silent for too long"))
            self._forget(child)
            child.is_dead = True
        return actions

    @property
    def deadline(self) -> Instant | None:
        return min((dies for child in self if (dies := self._dies(child)) is not None), default=None)

    def _dies(self, child: Child) -> Instant | None:
        """When it is dead, if nothing is heard of it."""
        if not child.is_awaited or child.silent_since is None:
            return None
        dies = Instant(child.silent_since + self._patience.dead_ns)
        return dies if child.session else max(dies, self._start_ends)

    def _forget(self, child: Child) -> None:
        child.ends()
        child.is_awaited = False
        child.workers, child.dead, child.lost = (), (), ()
        if not child.is_of_tree:
            del self._by_node[child.node]

    # --- what they are told, and ask

    def beats(self, node: NodeId, said: Heartbeat) -> None:
        child = self.get(node)
        if child is not None and child.bond is not Bond.NONE:
            child.dead, child.lost, child.load = said.dead, said.lost, said.load

    def asks(self, node: NodeId, said: PullRequest) -> bool | Blame:
        """Whether the child is attached: else it asks again once it is."""
        child = self.get(node)
        if child is None or child.bond is not Bond.ATTACHED:
            return False
        if said.needed not in child.waiting:
            if len(child.waiting) >= requests_max(self._shard, child.workers):
                return Blame(str(node), "one request too many", f"{len(child.waiting)} wait")
            child.waiting = sorted([*child.waiting, said.needed])
        return True

    @property
    def needs(self) -> list[int]:
        """The model clocks that requests need, ascending."""
        return sorted({needed for child in self for needed in child.waiting})

    def multicast(self, word: Weights) -> list[Tell]:
        """The weights, to each child that waits for such (MLNet 3.2)."""
        actions = []
        clock = model_clock(word.root)
        for child in self.bound(Bond.ATTACHED):
            if any(needed <= clock for needed in child.waiting):
                child.waiting = [needed for needed in child.waiting if needed > clock]
                child.told = child.told.joined(word.root.restricted(child.workers))
                actions.append(Tell(child.node, word))
        return actions

    def tell_merged(self, root: Clocks) -> list[Tell]:
        """What they have not heard of it."""
        actions = []
        for child in self.bound(Bond.ATTACHED):
            news = root.restricted(child.workers)
            if not child.told.covers(news):
                child.told = news
                actions.append(Tell(child.node, Merged(news)))
        return actions

    def view(self) -> tuple[ChildView, ...]:
        return tuple(
            ChildView(child.node, child.bond is Bond.ATTACHED, child.workers, tuple(child.waiting))
            for child in self
            if child.is_awaited
        )
