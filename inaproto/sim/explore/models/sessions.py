"""Sessions of an explored overlay, numbered anew: what counts is which of them are equal, and which is later.

A child's sessions are in its own core, in its parents', and in words between them. Those that are in use
are numbered from 1, in their order, wherever the child's own is the latest of them: then a later one is later
than all as before. (It is not while words of the child's life before it crashed are still under way.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inaproto.core.models.children import Bond
from inaproto.sim.explore.models.machine import fork
from inaproto.wire.messages.models import Attach, Attached, Detach, Detached, NodeId, Push

if TYPE_CHECKING:
    from inaproto.sim.explore.models.world import OverlayExplored, State

_IN_SESSION = Attach | Attached | Detach | Detached | Push

Renumbering = tuple[tuple[int, int], ...]


class Sessions:
    def __init__(self, world: OverlayExplored) -> None:
        self._world = world
        self._own: dict[tuple[int, int], int] = {}
        self._childs: dict[tuple[int, int, int], int] = {}
        self._on_wire: dict[int, frozenset[int]] = {}
        self._renumbered: dict[Any, int] = {}
        self._words: dict[tuple[int, Renumbering], int] = {}
        self._places = [
            (
                node,
                world.place(node),
                [(peer, world.place(peer)) for peer in world.ancestors(node)],
                [
                    at
                    for peer in world.ancestors(node)
                    for at in (world.edge(node, peer), world.edge(peer, node))
                ],
            )
            for node in map(int, world.config.nodes)
        ]

    def canonical(self, state: State) -> State:
        after: list[int] | None = None
        for node, place, peers, edges in self._places:
            own = self._own_of(node, state[place])
            if own < 2:
                continue
            used = {own}
            now: State | list[int] = state if after is None else after
            for peer, at in peers:
                used.add(self._childs_of(peer, now[at], node))
            for at in edges:
                if now[at] > 1:
                    used |= self._on_wire_of(now[at])
            used.discard(0)
            if len(used) < own == max(used):
                after = after or [*state]
                numbers = tuple((old, new) for new, old in enumerate(sorted(used), 1) if old != new)
                self._renumber(after, node, numbers)
        return state if after is None else tuple(after)

    # --- which are in use

    def _own_of(self, node: int, number: int) -> int:
        own = self._own.get((node, number))
        if own is None:
            core = self._world.core(node, number)
            own = self._own[node, number] = 0 if core is None else core._link.session
        return own

    def _childs_of(self, node: int, number: int, child: int) -> int:
        known = self._childs.get((node, number, child))
        if known is None:
            core = self._world.core(node, number)
            found = None if core is None else children_of(core).get(NodeId(child))
            known = 0 if found is None or found.bond is Bond.NONE else found.session
            self._childs[node, number, child] = known
        return known

    def _on_wire_of(self, number: int) -> frozenset[int]:
        found = self._on_wire.get(number)
        if found is None:
            words = [self._world.seats.words[item] for item in self._world.wires[number].items if item >= 0]
            found = frozenset(word.session for word in words if isinstance(word, _IN_SESSION))
            self._on_wire[number] = found
        return found

    # --- new numbers

    def _renumber(self, state: list[int], node: int, numbers: Renumbering) -> None:
        for where, place, peers, edges in self._places:
            if where != node:
                continue
            state[place] = self._core_renumbered(node, state[place], -1, numbers)
            for peer, at in peers:
                if self._childs_of(peer, state[at], node):
                    state[at] = self._core_renumbered(peer, state[at], node, numbers)
            for at in edges:
                if state[at] > 1:
                    state[at] = self._wire_renumbered(state[at], numbers)

    def _core_renumbered(self, node: int, number: int, child: int, numbers: Renumbering) -> int:
        """``child`` -1: the core's own sessions."""
        key = node, number, child, numbers
        after = self._renumbered.get(key)
        if after is None:
            core = fork(self._world.core(node, number))
            new = dict(numbers)
            if child < 0:
                core._link.session = new.get(core._link.session, core._link.session)
            else:
                of_child = children_of(core).get(NodeId(child))
                of_child.session = new.get(of_child.session, of_child.session)
            after = self._renumbered[key] = self._world.with_core(node, number, core)
            for one in self._world.exchanges:
                twin = self._core_renumbered(
                    one.node(node), one.local(node, number), one.node(child), numbers
                )
                one.learn_local(node, after, twin)
        return after

    def _wire_renumbered(self, number: int, numbers: Renumbering) -> int:
        after = self._renumbered.get((number, numbers))
        if after is None:
            wire = self._world.wires[number]
            items = tuple(item if item < 0 else self._word_renumbered(item, numbers) for item in wire.items)
            after = self._renumbered[number, numbers] = self._world.wires.of(wire._replace(items=items))
        return after

    def _word_renumbered(self, number: int, numbers: Renumbering) -> int:
        word, new = self._world.seats.words[number], dict(numbers)
        if not isinstance(word, _IN_SESSION) or word.session not in new:
            return number
        after = self._words.get((number, numbers))
        if after is None:
            after = self._world.seats.words.of(replace(word, session=new[word.session]))
            self._words[number, numbers] = after
            for one in self._world.exchanges:
                one.learn_word(after, self._word_renumbered(one.word(number), numbers))
        return after


def children_of(core: Any) -> Any:
    return core._sub.children if hasattr(core, "_sub") else core._children
