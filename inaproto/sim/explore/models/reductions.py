"""Whose steps are to be tried in a state of an explored overlay: persistent sets (Godefroid).

All steps are of one node: it hears something, dials, works, writes, or waits no longer. A step takes from
what waits for its node and adds behind what waits for others; no rule looks at more than one node knows. So
the steps of two nodes commute. Let there be a group of nodes of which none can get to do anything that it
cannot do now, by steps of nodes not of the group. Then in each run the first step of the group can be moved
to the front, and only the steps of the group are tried: every run has a twin that differs in the order
of steps that commute. Broken rules and ends are kept as long as no run goes on for ever, which the engine
looks at (``must_end``).

No fault can happen any more. Some of those outside are *astir*: they can do something now, or one who is
astir can make a difference to them. Nobody else does anything before the group has. And of those who are
astir, some can make no difference to a given node, until it does something itself:

- of whom something waits there already: more comes behind that;
- who is below it and *settled* elsewhere: connected to its own parent, which is another one, and to nobody
  else. A word that the tree is torn down could change that: there is none under way, and it would lead to the
  root, which says it alone, and does nothing itself if it is in the group, or not astir;
- who is above it, and not connected to it. If it is down, and to be dialled, its start makes a difference;
- who is above it, has no session with it, and nothing to hear of it that is answered at once (``Attach``; the
  answer to a ``Heartbeat`` is not said, see ``seats``): it does not speak before it is spoken to.

Whoever else is a neighbour belongs to the group. Nobody sees of one who is down more than that it can not be
dialled, but for the server, whose wait for a worker that is gone ends only while its node is down.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from inaproto.core.models.children import Bond
from inaproto.sim.explore.models.config import ROOT
from inaproto.sim.explore.models.sessions import children_of
from inaproto.sim.explore.models.waits import ABSENT as GONE
from inaproto.wire.messages.models import Attach, Mode, NodeId

if TYPE_CHECKING:
    from inaproto.sim.explore.models.world import OverlayExplored, State


class Reductions:
    def __init__(self, world: OverlayExplored) -> None:
        self._world = world
        shape = world.config.shape
        self._nodes = tuple(map(int, world.config.nodes))
        self._all = (int(ROOT), *self._nodes)
        self._home = {node: world.ancestors(node)[0] for node in self._nodes}
        leaves_first = sorted(self._nodes, key=lambda node: (len(shape.children(NodeId(node))), node))
        self._order = [*leaves_first, int(ROOT)]
        self._modes: dict[int, bool] = {}
        self._questions: dict[int, bool] = {}
        self._in_session: dict[tuple[int, int, int], bool] = {}

    def enough(self, state: State) -> Iterable[int]:
        """A smallest group of nodes whose steps are enough."""
        active = {node for node in self._all if self._has_steps(state, node)}
        stirring = self._stirring(state)
        best: set[int] | None = None
        for node in self._order:
            if node in active:
                group = self._group(node, active, stirring)
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
        number = state[world.place(node)]
        if world.seats.may_work(local) or self._waits(state, node) or world.is_woken(node, number):
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
            known = self._modes[number] = self._has_word(number, Mode)
        return known

    def _has_word(self, number: int, kind: Any) -> bool:
        items = self._world.wires[number].items
        return any(isinstance(self._world.seats.words[item], kind) for item in items if item >= 0)

    # --- who makes a difference to whom

    def _stirring(self, state: State) -> dict[int, set[int]]:
        """By node, who could make a difference to what it can do."""
        world, settled = self._world, self._settled(state)
        found: dict[int, set[int]] = {node: set() for node in self._all}
        for node in self._nodes:
            for peer in world.ancestors(node):
                if self._can_say_more(state, peer, node):
                    found[node].add(peer)
                if self._may_come(state, node, peer, settled):
                    found[peer].add(node)
            if world.config.counts_gone and not world.is_up(state, node):
                found[node].add(int(ROOT))
        found[int(ROOT)].update(self._gone(state))
        return found

    def _may_come(self, state: State, node: int, peer: int, settled: set[int]) -> bool:
        """Whether one above it could hear next of the node what it cannot now."""
        world = self._world
        if not world.is_up(state, peer) or world.wires[state[world.edge(node, peer)]].items:
            return False
        return node not in settled or self._home[node] == peer

    def _can_say_more(self, state: State, peer: int, node: int) -> bool:
        """Whether a node could hear next of one above it, or dial it, what it cannot now."""
        world = self._world
        if not world.is_up(state, node):
            return False
        wire = world.wires[state[world.edge(peer, node)]]
        if wire.items:
            return False
        if not wire.is_heard:
            return peer in world.local(state, node).orders and not world.is_up(state, peer)
        is_asked = self._has_question(state[world.edge(node, peer)])
        return is_asked or self._is_in_session(peer, state[world.place(peer)], node)

    def _is_in_session(self, peer: int, number: int, child: int) -> bool:
        known = self._in_session.get((peer, number, child))
        if known is None:
            core = self._world.core(peer, number)
            found = None if core is None else children_of(core).get(NodeId(child))
            known = self._in_session[peer, number, child] = found is not None and found.bond is not Bond.NONE
        return known

    def _has_question(self, number: int) -> bool:
        known = self._questions.get(number)
        if known is None:
            known = self._questions[number] = self._has_word(number, Attach)
        return known

    # --- the group

    def _group(self, first: int, active: set[int], stirring: dict[int, set[int]]) -> set[int]:
        group = {first}
        while True:
            astir = self._astir(active - group, group, stirring)
            more = {other for node in group for other in stirring[node]} & astir
            if not more:
                return group
            group |= more

    def _astir(self, astir: set[int], group: set[int], stirring: dict[int, set[int]]) -> set[int]:
        more = astir
        while more:
            more = {
                node
                for node in self._all
                if node not in astir and node not in group and stirring[node] & more
            }
            astir = astir | more
        return astir
