"""Whose steps are to be tried in a state of an explored overlay: persistent sets (Godefroid).

All steps are of one node: it hears something, dials, works, writes, or waits no longer. A step takes from
what waits for its node and adds behind what waits for others; no rule looks at more than one node knows. So
the steps of two nodes commute. Let there be a group of nodes of which none can get to do anything that it
cannot do now, by steps of nodes not of the group. Then in each run the first step of the group can be moved
to the front, and only the steps of the group are tried: every run has a twin that differs in the order
of steps that commute. Broken rules and ends are kept as long as no run goes on for ever, which the engine
looks at (``must_end``).

While no fault can happen any more, somebody outside can make no difference to a node

- who is a neighbour of whom something waits already: more comes behind that;
- who is *settled*: connected to its own parent, which is not the node, and to nobody else;
- who is settled below the node and idle: it does nothing, nor does anybody below it, before it hears more.

Whoever else is a neighbour belongs to the group. Nobody sees of one who is down more than that it can not be
dialled, but for the server, whose wait for a worker that is gone ends only while its node is down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from inaproto.sim.explore.models.config import ROOT
from inaproto.sim.explore.models.waits import ABSENT as GONE
from inaproto.wire.messages.models import Mode, NodeId

if TYPE_CHECKING:
    from inaproto.sim.explore.models.world import OverlayExplored, State


class Reductions:
    def __init__(self, world: OverlayExplored) -> None:
        self._world = world
        shape = world.config.shape
        self._nodes = tuple(map(int, world.config.nodes))
        self._all = (int(ROOT), *self._nodes)
        self._below: dict[int, list[int]] = {
            peer: [node for node in self._nodes if peer in world.ancestors(node)] for peer in self._all
        }
        self._home = {node: world.ancestors(node)[0] for node in self._nodes}
        leaves_first = sorted(self._nodes, key=lambda node: (len(shape.children(NodeId(node))), node))
        self._order = [*leaves_first, int(ROOT)]
        self._modes: dict[int, bool] = {}

    def enough(self, state: State) -> Iterable[int]:
        """A smallest group of nodes whose steps are enough."""
        settled = self._settled(state)
        active = {node for node in self._all if self._has_steps(state, node)}
        best: set[int] | None = None
        for node in self._order:
            if node in active:
                group = self._group(state, node, settled)
                count = len(group & active)
                if count == 1:
                    return group
                if best is None or count < len(best & active):
                    best = group
        return self._all if best is None else [node for node in self._all if node in best]

    def _has_steps(self, state: State, node: int) -> bool:
        world = self._world
        if not world.is_up(state, node) or any(world.wires[state[at]].items for _, at in world.into(node)):
            return True
        if node == ROOT:
            return bool(self._gone(state)) or world.servers[state[0]].pending >= 0 or self._waits(state, node)
        return self._has_own_steps(state, node)

    def _has_own_steps(self, state: State, node: int) -> bool:
        """Apart from what it hears."""
        world = self._world
        local = world.local(state, node)
        if world.seats.may_work(local) or self._waits(state, node):
            return True
        return any(state[world.edge(peer, node)] == 0 and world.is_up(state, peer) for peer in local.orders)

    def _waits(self, state: State, node: int) -> bool:
        world = self._world
        return any(kind != GONE for kind, _ in world.waits_at(node, state[world.place(node)]))

    def _gone(self, state: State) -> list[int]:
        """Whom the server may find gone: these are down."""
        world = self._world
        if not world.is_up(state, ROOT):
            return []
        waits = world.waits_at(int(ROOT), state[world.place(int(ROOT))])
        return [whom for kind, whom in waits if kind == GONE and not world.is_up(state, whom)]

    def _settled(self, state: State) -> set[int]:
        """Whether they are, and will be until they hear something: no word is under way that the tree is torn
        down."""
        world = self._world
        if any(self._has_mode(state[at]) for at in world.edges()):
            return set()
        return {
            node
            for node, home in self._home.items()
            if world.is_up(state, node)
            and world.local(state, node).orders == (home,)
            and world.wires.is_current(state[world.edge(home, node)])
        }

    def _has_mode(self, number: int) -> bool:
        known = self._modes.get(number)
        if known is None:
            items = self._world.wires[number].items
            known = any(isinstance(self._world.seats.words[item], Mode) for item in items if item >= 0)
            self._modes[number] = known
        return known

    # --- the group

    def _group(self, state: State, first: int, settled: set[int]) -> set[int]:
        group, unseen = {first}, [first]
        while unseen:
            for other in self._interfering(state, unseen.pop(), group, settled):
                if other not in group:
                    group.add(other)
                    unseen.append(other)
        return group

    def _interfering(self, state: State, node: int, group: set[int], settled: set[int]) -> Iterator[int]:
        world = self._world
        if not world.is_up(state, node):
            if world.config.counts_gone:
                yield int(ROOT)
            return
        for peer in self._below[node]:
            if world.wires[state[world.edge(peer, node)]].items or peer in group:
                continue
            if peer not in settled or (
                self._home[peer] == node and not self._is_idle(state, peer, group, settled)
            ):
                yield peer
        if node == ROOT:
            yield from self._gone(state)
            return
        local = world.local(state, node)
        for peer in world.ancestors(node):
            wire = world.wires[state[world.edge(peer, node)]]
            if wire.items:
                continue
            if wire.is_heard or (peer in local.orders and not world.is_up(state, peer)):
                yield peer

    def _is_idle(self, state: State, node: int, group: set[int], settled: set[int]) -> bool:
        """It does nothing, nor does anybody below, before its parent has said something."""
        world = self._world
        if node not in settled or self._has_own_steps(state, node):
            return False
        if any(world.wires[state[at]].items for _, at in world.into(node)):
            return False
        below = [peer for peer in self._below[node] if peer not in group]
        return all(self._is_idle(state, peer, group, settled) for peer in below)
