"""The part of a fabric that a ring needs, as a tree with the ring's ranks, and what each switch of it does.

A ring goes along the fabric's own tree, where its root is the lowest switch above all ranks that aggregates,
or along a tree that was assigned to it. Such a tree is taken as it is, less switches without ranks below
them: its root is the ring's, for that is the switch whose memory was assigned. A switch aggregates even if
one sum only comes to it; none does below one that steers, unless that one passes sums on. Of an assigned tree
those do that it says so of, whether they could add or not. The children of a
switch are in the order of the lowest rank of each, whatever tree it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from inaproto.core.plan.aggregation_tree import TreeSwitch, compose_roles
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.fabric.events import TreeControlConfig
from inaproto.core.rendezvous.fabric_tree import FabricSwitch
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import LocalMisuse
from inaproto.units import PortId
from inaproto.wire.messages.switch import Role
from inaproto.wire.messages.trees import FabricTree, Link


def roles_of(
    config: TreeControlConfig,
    spec: RingSpec,
    hosts: Mapping[bytes, str] | None = None,
    tree: FabricTree | None = None,
) -> dict[str, Role | None]:
    """Roles of every switch that has something to do for the ring; None: it does all.

    ``hosts``: where they are, if not as the configuration says. Raises ``LocalMisuse`` for a rank whose host
    is not known, and for a tree that does not lead to it or that the fabric has not.
    """
    known = config.hosts if hosts is None else hosts
    seats = [known.get(flow.src_ip, "") for flow in spec.flows]
    if not all(seats):
        raise LocalMisuse("a rank's host is at no switch of the fabric")
    shape = tree_of(config.switches, seats, tree)
    is_beside = tree is not None and not links_of(shape) <= _own_links(config.switches)
    if len(list(shape.walk())) == 1:
        return {shape.name: None}
    toward: dict[str, dict[str, PortId]] = {switch.name: {} for switch in config.switches}
    for switch in config.switches:
        for link in switch.links:
            toward[switch.name][link.above] = link.port_up
            toward[link.above][switch.name] = link.port_down
    addresses = {switch.name: switch.address for switch in config.switches}
    roles = compose_roles(
        shape, ring_id=spec.ring_id, addresses=addresses, port_toward=toward, is_beside=is_beside
    )
    return {name: role for name, role in roles.items() if role.inputs or role.steer_to is not None}


def plan_of(
    fabric: tuple[FabricSwitch, ...], seats: Sequence[str], tree: FabricTree | None = None
) -> ReductionPlan | None:
    """What the tree of a ring adds whose member ``r`` is a host at switch ``seats[r]``.

    None if one of them is at no switch that is known (empty), or if ``tree`` cannot be laid: such a ring is
    refused.
    """
    if not all(seats) or (tree is not None and fault_of(fabric, tree, seats)):
        return None
    return ReductionPlan.from_tree(tree_of(fabric, seats, tree))


def shape_of(
    fabric: tuple[FabricSwitch, ...], seats: Sequence[str], tree: FabricTree | None = None
) -> Hashable:
    """Equal where a ring of hosts at these switches is the same; of a tree that cannot be laid, the tree."""
    if not all(seats) or (tree is not None and fault_of(fabric, tree, seats)):
        return tree
    return tree_of(fabric, seats, tree)


def tree_of(
    fabric: tuple[FabricSwitch, ...], seats: Sequence[str], tree: FabricTree | None = None
) -> TreeSwitch:
    """The part of the fabric that a ring needs; rank ``r`` is at switch ``seats[r]``.

    Raises ``LocalMisuse`` for a ``tree`` that cannot be laid.
    """
    fault = "" if tree is None else fault_of(fabric, tree, seats)
    if fault:
        raise LocalMisuse(fault)
    return _Pruner(fabric, seats, tree).tree()


def fault_of(fabric: Sequence[FabricSwitch], tree: FabricTree, seats: Sequence[str]) -> str:
    """Why no ring with ranks at ``seats`` can go along a tree; empty: it can."""
    known = {switch.name: switch for switch in fabric}
    above = dict(tree.above)
    named = (tree.root, *(name for link in tree.above for name in link))
    strange = next((name for name in named if name not in known), None)
    if strange is not None:
        return f"the tree has a switch {strange!r}, which is none of the fabric"
    if not known[tree.root].aggregates:
        return f"switch {tree.root}, the root of the tree, does not aggregate"
    if len(above) < len(tree.above) or tree.root in above:
        return "the tree has two links up from one switch, or one from its root"
    for name, upper in tree.above:
        ups = {(name, link.above) for link in known[name].links}
        ups |= {(upper, link.above) for link in known[upper].links}
        if not ups & {(name, upper), (upper, name)}:
            return f"the fabric has no trunk from {name} up to {upper}, as the tree has"
    odd = next((name for name in tree.passing if name not in above), None)
    if odd is not None:
        return (
            f"switch {odd} is to pass sums on, and is {'the root' if odd == tree.root else 'not in the tree'}"
        )
    for name in above:
        top, steps = name, 0
        while top in above and steps <= len(above):
            top, steps = above[top], steps + 1
        if top != tree.root:
            return f"switch {name} is in the tree, but does not lead to {tree.root}, its root"
    outside = next((seat for seat in seats if seat != tree.root and seat not in above), None)
    return "" if outside is None else f"the tree of {tree.root} does not reach switch {outside}"


def links_of(shape: TreeSwitch) -> frozenset[Link]:
    """Between the switches of a tree."""
    return frozenset(
        (child.name, switch.name)
        for switch in shape.walk()
        for child in switch.children
        if isinstance(child, TreeSwitch)
    )


def _own_links(fabric: Sequence[FabricSwitch]) -> frozenset[Link]:
    return frozenset((switch.name, switch.above) for switch in fabric if switch.above is not None)


class _Pruner:
    def __init__(self, fabric: Sequence[FabricSwitch], seats: Sequence[str], tree: FabricTree | None) -> None:
        self._aggregates = {switch.name: switch.aggregates for switch in fabric}
        self._passes_sums = {switch.name for switch in fabric if switch.passes_sums}
        if tree is not None:
            self._aggregates |= dict.fromkeys(tree.passing, False)
            self._passes_sums |= set(tree.passing)
        self._above: Mapping[str, str | None]
        self._above = dict(tree.above) if tree is not None else {one.name: one.above for one in fabric}
        self._root = None if tree is None else tree.root
        self._seats = seats
        self._ranks: dict[str, list[int]] = {}
        """Below each switch."""
        self._below: dict[str, list[str]] = {switch.name: [] for switch in fabric}
        for rank, seat in enumerate(seats):
            for name in self._up(seat):
                self._ranks.setdefault(name, []).append(rank)
        for name in self._ranks:
            above = self._above.get(name)
            if above is not None:
                self._below[above].append(name)

    def _up(self, name: str) -> list[str]:
        path = [name]
        while (above := self._above.get(path[-1])) is not None:
            path.append(above)
        return path

    def tree(self) -> TreeSwitch:
        return self._switch(self._root or self._lowest_root(), adds=True)

    def _lowest_root(self) -> str:
        size = len(self._seats)
        return next(
            name
            for name in self._up(self._seats[0])
            if len(self._ranks[name]) == size and self._aggregates[name]
        )

    def _switch(self, name: str, *, adds: bool) -> TreeSwitch:
        """``adds``: whether it may aggregate."""
        adds_below = adds and (self._aggregates[name] or name in self._passes_sums)
        adds = adds and self._aggregates[name]
        parts: dict[int, TreeSwitch | int] = {
            rank: rank for rank, seat in enumerate(self._seats) if seat == name
        }
        for below in self._below[name]:
            parts[self._ranks[below][0]] = self._switch(below, adds=adds_below)
        return TreeSwitch(name, tuple(parts[lowest] for lowest in sorted(parts)), adds)
