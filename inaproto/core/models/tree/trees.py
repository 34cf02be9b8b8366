"""Trees along which updates go up to a parameter server and weights come down (MLNet sections 3.2 and 4).

The paper has two shapes: RACK, one aggregator for each rack and parameter server, and BINARY, a heap over a
permutation of the workers. Both are functions of an *order* of the nodes here, and so is every other shape:
whoever wants random trees shuffles the order, seeded, and gives each server another one, or all of them the
same (*shared*; the paper does not say which it used). Nothing here is random, and no order is of a set.

A tree fixes the order of all additions: a node adds its own worker's update first, then those of its
children in their order; the server adds those of its children. So a tree *is* a reduction plan, and a plan
can be made a tree: the sum of a list of ranks appears at the list's first rank, which takes the rest of the
list as its children. Where the first element of a list is a list itself, its first rank goes on with the
outer list: adding left to right that is the same sum, bit for bit, as long as no sum is rounded on the way
to a narrower type, which updates never are.

Invariants: every node but the root has one parent, from every node its ancestors lead to the root, and the
nodes are listed parents first, level by level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.errors import LocalMisuse
from inaproto.wire.messages.models import NodeId

Place = tuple[str, ...]
"""Where a node is, the widest part first: ``("pod 0", "rack 3")``. Nodes of one tree have places of one
length."""
Build = Callable[[NodeId, Sequence[NodeId]], "OverlayTree"]
"""Makes a tree of a root and an order of the nodes below it."""


@dataclass(frozen=True)
class OverlayTree:
    """One tree. ``below``: every node that has children, with them in the order of addition; sorted."""

    root: NodeId
    below: tuple[tuple[NodeId, tuple[NodeId, ...]], ...] = ()

    def __post_init__(self) -> None:
        named = [node for node, _ in self.below]
        children = [child for _, children in self.below for child in children]
        if named != sorted(set(named)) or not all(children for _, children in self.below):
            raise LocalMisuse("a tree names each node that has children once, ascending")
        if len(set(children)) < len(children) or self.root in children:
            raise LocalMisuse("in a tree every node but the root is the child of one node")
        lost = [node for node in (*named, *children) if node not in self]
        if lost or len(self.nodes) <= len(children):
            lost = lost or [node for node in children if node not in self.nodes]
            raise LocalMisuse(f"from node {lost[0]} no way leads to the root, {self.root}")

    @staticmethod
    def of(root: NodeId, children: Mapping[NodeId, Sequence[NodeId]]) -> OverlayTree:
        """The tree with these children of each node; whoever is not named has none. Raises
        ``LocalMisuse``."""
        return OverlayTree(
            root, tuple((node, tuple(children[node])) for node in sorted(children) if children[node])
        )

    @cached_property
    def nodes(self) -> tuple[NodeId, ...]:
        """The root and all below it, level by level, each level in the order of addition."""
        found = [self.root]
        for node in found:  # grows as it is gone through
            found.extend(self.children(node))
        return tuple(found)

    @cached_property
    def _children(self) -> dict[NodeId, tuple[NodeId, ...]]:
        return dict(self.below)

    @cached_property
    def _parent(self) -> dict[NodeId, NodeId]:
        return {child: node for node, children in self.below for child in children}

    def __contains__(self, node: object) -> bool:
        return node == self.root or node in self._parent

    def children(self, node: NodeId) -> tuple[NodeId, ...]:
        """In the order of addition; empty for a leaf."""
        return self._children.get(node, ())

    def parent(self, node: NodeId) -> NodeId | None:
        """None: it is the root. Raises ``LocalMisuse`` for a stranger."""
        if node not in self:
            raise LocalMisuse(f"node {node} is not in the tree of {self.root}")
        return self._parent.get(node)

    def ancestors(self, node: NodeId) -> tuple[NodeId, ...]:
        """Parent, its parent, and so on to the root: whom a node goes to when one after the other is dead."""
        found = []
        above = self.parent(node)
        while above is not None:
            found.append(above)
            above = self._parent.get(above)
        return tuple(found)

    def descendants(self, node: NodeId) -> Iterator[NodeId]:
        """All below a node, each before those below it."""
        for child in self.children(node):
            yield child
            yield from self.descendants(child)

    def height(self, node: NodeId | None = None) -> int:
        """Edges on the longest way down from ``node``, or from the root."""
        top = self.root if node is None else node
        own = len(self.ancestors(top))
        return max((len(self.ancestors(below)) for below in self.descendants(top)), default=own) - own

    @property
    def in_degree_max(self) -> int:
        """Children of the node that has the most."""
        return max((len(children) for _, children in self.below), default=0)

    @property
    def leaves(self) -> tuple[NodeId, ...]:
        """Nodes without children."""
        return tuple(node for node in self.nodes if not self.children(node))

    def plan(self, ranks: Mapping[NodeId, int]) -> ReductionPlan:
        """The additions of this tree; ``ranks`` of those nodes that have a worker, ``0 .. n - 1``.

        Raises ``LocalMisuse`` for other ranks, and for a leaf without one, which would add nothing.
        """
        strange = [node for node in ranks if node not in self]
        if strange:
            raise LocalMisuse(f"node {strange[0]} has a rank and is not in the tree of {self.root}")
        return ReductionPlan(self._list(self.root, ranks))

    def _list(self, node: NodeId, ranks: Mapping[NodeId, int]) -> PlanList:
        own: list[int | PlanList] = [ranks[node]] if node in ranks else []
        for child in self.children(node):
            if not self.children(child) and child not in ranks:
                raise LocalMisuse(f"node {child} is a leaf without a worker")
            part = self._list(child, ranks)
            own.append(part if self.children(child) else part[0])
        return tuple(own)


def direct_tree(root: NodeId, nodes: Sequence[NodeId]) -> OverlayTree:
    """No tree: everybody below the parameter server. The paper's baseline, and what teardown leaves."""
    return OverlayTree.of(root, {root: nodes})


def heap_tree(root: NodeId, order: Sequence[NodeId], *, in_degree: int = 2) -> OverlayTree:
    """BINARY, and its like of any in-degree ``d``: a heap over an order of the nodes.

    Positions ``0 .. d - 1`` are children of the root, position ``i >= d`` one of position ``(i - d) // d``.
    """
    if in_degree < 1:
        raise LocalMisuse(f"the in-degree of a tree is 1 or more, not {in_degree}")
    children: dict[NodeId, list[NodeId]] = {root: []}
    for position, node in enumerate(order):
        above = root if position < in_degree else order[(position - in_degree) // in_degree]
        children.setdefault(above, []).append(node)
    return OverlayTree.of(root, children)


def rack_tree(root: NodeId, racks: Sequence[Sequence[NodeId]], order: Sequence[NodeId]) -> OverlayTree:
    """RACK: of each rack the node that comes first in ``order`` aggregates, and the others send to it.

    Aggregators are children of the root in the order of ``racks``; racks without nodes have none.
    """
    places = {node: (f"{number}",) for number, rack in enumerate(racks) for node in rack}
    ranked = {node: position for position, node in enumerate(order)}
    if len(places) != sum(map(len, racks)) or places.keys() != ranked.keys() or len(ranked) != len(order):
        raise LocalMisuse("an order for racks has every node of them once, and each is in one rack")
    by_rack = [node for rack in racks for node in sorted(rack, key=lambda node: ranked[node])]
    return topology_tree(root, places, by_rack)


def topology_tree(root: NodeId, places: Mapping[NodeId, Place], order: Sequence[NodeId]) -> OverlayTree:
    """RACK for a network of any depth: of each part of it the first node in ``order`` aggregates.

    An aggregator of several levels is one node: that of a pod is also that of one of its racks.
    """
    if sorted(places) != sorted(order) or len({len(place) for place in places.values()}) > 1:
        raise LocalMisuse("places: one for each node of the order, all of one length")
    if not order:
        return OverlayTree(root)
    nested = _nested([(places[node], rank) for rank, node in enumerate(order)])
    return planned_tree(root, ReductionPlan(nested), order)


def planned_tree(root: NodeId, plan: ReductionPlan, members: Sequence[NodeId]) -> OverlayTree:
    """The tree whose additions are those of ``plan``; ``members[rank]`` is the node of a rank.

    Raises ``LocalMisuse`` for another number of members, and for one twice.
    """
    if len(members) != plan.size or len(set(members)) < plan.size:
        raise LocalMisuse(f"a plan of {plan.size} ranks was given nodes {list(members)}")
    children: dict[NodeId, list[NodeId]] = {root: []}
    children[root] = [_plant(part, members, children) for part in plan.children]
    return OverlayTree.of(root, children)


def shard_trees(
    roots: Sequence[NodeId], orders: Sequence[Sequence[NodeId]], build: Build, *, shared: bool = False
) -> tuple[OverlayTree, ...]:
    """A tree for each shard's server: by an order of its own, or, ``shared``, all by the first.

    Shared, the interior nodes are the same for all servers, so that one of RACK carries them all.
    """
    if len(orders) != (1 if shared else len(roots)):
        raise LocalMisuse(
            f"{len(roots)} servers, {'shared' if shared else 'not shared'}: {len(orders)} orders"
        )
    return tuple(build(root, orders[0 if shared else shard]) for shard, root in enumerate(roots))


def _plant(part: int | PlanList, members: Sequence[NodeId], children: dict[NodeId, list[NodeId]]) -> NodeId:
    """Where the sum of ``part`` appears, its additions being in ``children`` by then."""
    if isinstance(part, int):
        return members[part]
    first, *rest = part
    host = _plant(first, members, children)
    children.setdefault(host, []).extend([_plant(one, members, children) for one in rest])
    return host


def _nested(placed: Sequence[tuple[Place, int]]) -> PlanList:
    """Lists within lists, as places lie in one another; parts and ranks in the order in which they come."""
    if not placed[0][0]:
        return tuple(rank for _, rank in placed)
    parts: dict[str, list[tuple[Place, int]]] = {}
    for (widest, *rest), rank in placed:
        parts.setdefault(widest, []).append((tuple(rest), rank))
    return tuple(_nested(part) for part in parts.values())
