"""Aggregation trees: which switch adds what, and where the sums and results go (NetReduce section 3.3).

A ring's ranks hang below switches, and the switches form a tree. A switch that aggregates adds its
*inputs* in the order of its children, ranks and child switches alike; all but the root send what they
added up on a *virtual connection* to their parent, and get the result back on it. The order of the
children is the reduction plan of the ring.

A connection of the ring, from rank r to its successor, may begin below one switch and end below another:
the one where rank r is an input learns its first packets and passes notes of them on, along the tree, to
the one that *delivers* the results to the successor's host.

A tree may be partial: a switch that does not aggregate *steers*: it sends its ranks' packets towards the
next switch above it that does, unchanged, and bridges the results that come back.

Invariants: every rank is an input of exactly one aggregating switch, and its connection is delivered by
exactly one; the root aggregates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from inaproto.errors import LocalMisuse
from inaproto.units import PortId
from inaproto.wire.messages.switch import Role, VirtualConnection

VIRTUAL_QP_BASE = 0x80_0000
"""Queue pairs of virtual connections: this, or'ed with the low 23 bits of the ring's id."""


@dataclass(frozen=True)
class TreeSwitch:
    """A switch of the tree. ``children``: ranks (numbers) and switches, in the order of addition."""

    name: str
    children: tuple[TreeSwitch | int, ...]
    aggregates: bool = True

    def walk(self) -> Iterator[TreeSwitch]:
        """This switch and all below it, parents first."""
        yield self
        for child in self.children:
            if isinstance(child, TreeSwitch):
                yield from child.walk()

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All ranks below it, in the order of addition."""
        found: list[int] = []
        for child in self.children:
            found.extend([child] if isinstance(child, int) else child.ranks)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class SwitchAddress:
    """What a switch's virtual connections come from and go to: ``mac`` 6 bytes, ``ip`` 4 bytes."""

    mac: bytes
    ip: bytes


def compose_roles(
    root: TreeSwitch,
    *,
    ring_id: int,
    addresses: Mapping[str, SwitchAddress],
    port_toward: Mapping[str, Mapping[str, PortId]],
    is_beside: bool = False,
) -> dict[str, Role]:
    """Role of every switch of the tree, by name.

    ``port_toward[a][b]`` is the port of switch ``a`` that leads to switch ``b``, next to it in the tree.
    ``is_beside``: the tree is not the fabric's own.
    The successor of rank ``r`` is ``r + 1``, of the last one rank 0. Raises ``LocalMisuse`` for what is no
    tree of ranks 0, 1, 2, ...: a rank that is missing or twice in it, two switches of one name, a root
    that does not aggregate, a switch without children.
    """
    roles = _Composer(root, ring_id, addresses, port_toward).roles()
    if not is_beside:
        return roles
    return {
        switch.name: replace(roles[switch.name], below=_ports_below(switch, port_toward[switch.name]))
        for switch in root.walk()
    }


def _ports_below(switch: TreeSwitch, ports: Mapping[str, PortId]) -> tuple[PortId, ...]:
    return tuple(ports[child.name] for child in switch.children if isinstance(child, TreeSwitch))


class _Composer:
    def __init__(
        self,
        root: TreeSwitch,
        ring_id: int,
        addresses: Mapping[str, SwitchAddress],
        port_toward: Mapping[str, Mapping[str, PortId]],
    ) -> None:
        _refuse_what_is_no_tree(root)
        self._addresses = addresses
        self._port_toward = port_toward
        self._qp = VIRTUAL_QP_BASE | ring_id & (VIRTUAL_QP_BASE - 1)
        self._switches = list(root.walk())
        self._first_rank = {switch.name: switch.ranks[0] for switch in self._switches}
        self._above: dict[str, str] = {}
        """The switch above each, whether it aggregates or not."""
        self._aggregator_of: dict[int, str] = {}
        """The switch at which each rank is an input."""
        self._note(root, root.name)

    def _note(self, switch: TreeSwitch, aggregator: str) -> None:
        if switch.aggregates:
            aggregator = switch.name
        for child in switch.children:
            if isinstance(child, int):
                self._aggregator_of[child] = aggregator
            else:
                self._above[child.name] = switch.name
                self._note(child, aggregator)

    def roles(self) -> dict[str, Role]:
        return {switch.name: self._role(switch) for switch in self._switches}

    def _role(self, switch: TreeSwitch) -> Role:
        name = switch.name
        if not switch.aggregates:
            return Role(
                steered=self._raw(switch),
                steer_to=self._port_toward[name][self._above[name]],
                passes=tuple(self._passed_by(switch, name)),
            )
        inputs = tuple(self._inputs(switch, name))
        above = self._aggregating_above(name)
        size = len(self._aggregator_of)
        delivers = tuple(rank for rank in range(size) if self._aggregator_of[(rank + 1) % size] == name)
        return Role(
            inputs=inputs,
            parent=None if above is None else self._connection(name, above),
            delivers=delivers,
            notes=tuple(self._passed_on(name)),
        )

    def _raw(self, switch: TreeSwitch) -> tuple[int, ...]:
        """Ranks whose own packets pass through ``switch`` upwards."""
        found: list[int] = []
        for child in switch.children:
            if isinstance(child, int):
                found.append(child)
            elif not child.aggregates:
                found.extend(self._raw(child))
        return tuple(found)

    def _passed_by(self, switch: TreeSwitch, name: str) -> Iterator[VirtualConnection]:
        """Switches below ``name``, which steers, whose sums are inputs of the next one above that adds."""
        for child in switch.children:
            if isinstance(child, TreeSwitch):
                if child.aggregates:
                    yield self._connection(name, child.name)
                else:
                    yield from self._passed_by(child, name)

    def _inputs(self, switch: TreeSwitch, name: str) -> Iterator[int | VirtualConnection]:
        for child in switch.children:
            if isinstance(child, int):
                yield child
            elif child.aggregates:
                yield self._connection(name, child.name)
            else:
                yield from self._inputs(child, name)

    def _aggregating_above(self, name: str) -> str | None:
        aggregating = {switch.name for switch in self._switches if switch.aggregates}
        above = self._above.get(name)
        while above is not None and above not in aggregating:
            above = self._above.get(above)
        return above

    def _path_up(self, name: str) -> list[str]:
        """Aggregating switches from ``name`` to the root, both included."""
        path = [name]
        while (above := self._aggregating_above(path[-1])) is not None:
            path.append(above)
        return path

    def _passed_on(self, name: str) -> Iterator[tuple[int, VirtualConnection]]:
        """Along the tree from the switch where a rank is an input to the one that delivers."""
        size = len(self._aggregator_of)
        for rank in range(size):
            source = self._path_up(self._aggregator_of[rank])
            target = self._path_up(self._aggregator_of[(rank + 1) % size])
            meeting = next(switch for switch in source if switch in target)
            route = source[: source.index(meeting) + 1] + target[: target.index(meeting)][::-1]
            if name in route[:-1]:
                yield rank, self._connection(name, route[route.index(name) + 1])

    def _connection(self, name: str, peer: str) -> VirtualConnection:
        lower = peer if name in self._chain_up(peer) else name
        here, there, rank = self._addresses[name], self._addresses[peer], self._first_rank[lower]
        port = self._port_to(name, peer)
        return VirtualConnection(peer, port, here.mac, here.ip, there.mac, there.ip, self._qp, rank)

    def _port_to(self, name: str, peer: str) -> PortId:
        """The port of ``name`` to its neighbour on the way to ``peer``, which is above or below it."""
        if name in (chain := self._chain_up(peer)):  # the peer is below
            return self._port_toward[name][chain[chain.index(name) - 1]]
        return self._port_toward[name][self._above[name]]

    def _chain_up(self, name: str) -> list[str]:
        """All switches from ``name`` to the root, both included."""
        chain = [name]
        while chain[-1] in self._above:
            chain.append(self._above[chain[-1]])
        return chain


def _refuse_what_is_no_tree(root: TreeSwitch) -> None:
    if sorted(root.ranks) != list(range(len(root.ranks))):
        raise LocalMisuse(f"a tree of {len(root.ranks)} ranks has ranks {sorted(root.ranks)}")
    switches = list(root.walk())
    names = [switch.name for switch in switches]
    if len(set(names)) != len(names):
        raise LocalMisuse("two switches of a tree have one name")
    empty = [switch.name for switch in switches if not switch.children]
    if empty:
        raise LocalMisuse(f"switch {empty[0]} has neither ranks nor switches below it")
    if not root.aggregates:
        raise LocalMisuse(f"switch {root.name}, the root, must aggregate")
