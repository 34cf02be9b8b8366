"""Nodes of an explored overlay that are alike: states that differ by an exchange of such nodes are one.

An *exchange* maps the tree onto itself: leaves with the same parent may change places, each with its worker.
What a state is exchanged for is its *twin*. Nobody renames what is inside a core; twins are found as the
local states themselves are. Nodes that are down, with the same on their workers' disks, are twins. If x and
x' are twins, if the step by key k leads from x to y, and the step by the exchanged key from x' to y', then y
and y' are twins, and so are the words that are told on the way, one by one.

*Proof.* Each local step that is computed at all is computed for its twin as well, under every exchange, and
the two are compared: as many words to exchanged peers, in order; the same waits, worker, disk; a rule broken
in both or in neither; at rest both or neither. Who would have a second twin is refused. So the tables of the
search are shown, entry by entry, to be closed under each exchange. What puts local states together (wires,
crashes, who may dial whom) knows nodes by their places in the tree alone. Hence an exchange maps steps to
steps, broken rules to broken rules, finished states to finished ones; it keeps faults faults. Any run from a
state has a twin of the same length from the twin, so one state of each class is enough for rules and for
ends, and a run that goes on for ever goes through some class for ever. Persistent sets
(:mod:`~inaproto.sim.explore.models.reductions`) hold in the state that stands for its class: what they move
to the front of a run is a step of that state, and the rest of the run is exchanged as a whole.

:class:`NotAlike` if the cores treat alike nodes differently, as those with a mistake may: then a search says
nothing, and one that reduces nothing is due.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from inaproto.core.models.events import RootSnapshot
from inaproto.errors import InvariantBroken
from inaproto.sim.explore.models.config import ROOT
from inaproto.sim.explore.models.seats import DOWN, Local, Server
from inaproto.wire.messages.clocks import Clocks, WorkerId

if TYPE_CHECKING:
    from inaproto.sim.explore.models.world import Outcome, OverlayExplored, State


class NotAlike(InvariantBroken):
    """Nodes at like places of the tree are treated differently."""


class _Twins(dict[int, int]):
    """Twins by number; those that are not known yet are looked up."""

    def __init__(self, find: Callable[[int], int]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, number: int) -> int:
        twin = self[number] = self._find(number)
        return twin

    def learn(self, number: int, twin: int) -> None:
        if self.setdefault(number, twin) != twin:
            raise NotAlike(f"{number} has two twins, {self[number]} and {twin}")


class Exchange:
    """One exchange of nodes, and all twins under it."""

    def __init__(self, world: OverlayExplored, nodes: dict[int, int]) -> None:
        self._world = world
        """``nodes``: who comes to whose place; the server to its own."""
        self._nodes = {**nodes, -1: -1}
        self._words = _Twins(_unknown)
        wires = _Twins(self._wire)
        self._locals = {
            node: _Twins(self._server if node == ROOT else partial(self._down, node)) for node in nodes
        }
        sources = {
            world.place(self._nodes[node]): (world.place(node), self._locals[node]) for node in self._locals
        }
        for (source, target), at in world.edges_by_ends():
            sources[world.edge(self._nodes[source], self._nodes[target])] = at, wires
        self._sources = [sources[place] for place in range(len(sources))]

    def of(self, state: State) -> State:
        return (*[twins[state[at]] for at, twins in self._sources], *state[len(self._sources) :])

    def node(self, node: int) -> int:
        return self._nodes[node]

    def local(self, node: int, number: int) -> int:
        return self._locals[node][number]

    def word(self, number: int) -> int:
        return self._words[number]

    def key(self, key: Any) -> Any:
        """Of a local step."""
        match key:
            case ("waited", (kind, whom)):
                return "waited", (kind, self._nodes[whom])
            case ("hears", peer, word):
                return "hears", self._nodes[peer], self._words[word]
            case (what, peer):
                return what, self._nodes[peer]
            case _:
                return key

    def learn_local(self, node: int, number: int, twin: int) -> None:
        world, other = self._world, self._nodes[node]
        self._locals[node].learn(number, twin)
        waits = {(kind, self._nodes[whom]) for kind, whom in world.waits_at(node, number)}
        if node == ROOT:
            is_alike = self._are_servers_alike(world.servers[number], world.servers[twin])
        else:
            is_alike = self._are_locals_alike(world.locals[node][number], world.locals[other][twin])
            is_alike &= world.rests_at(node, number) == world.rests_at(other, twin)
        if not is_alike or waits != set(world.waits_at(other, twin)):
            raise NotAlike(f"nodes {node} and {other} differ after the same steps")

    def _are_locals_alike(self, local: Local, twin: Local) -> bool:
        """Apart from what their cores do next."""
        orders = tuple(sorted(self._nodes[order] for order in local.orders))
        return twin == local._replace(core=twin.core, heard=self._clocks(local.heard), orders=orders)

    def _are_servers_alike(self, server: Server, twin: Server) -> bool:
        """The same, and of what is on the disk, or will be."""
        if (server.pending < 0) != (twin.pending < 0) or self._disk(server.disk) != twin.disk:
            return False
        written = [self._world.seats.written(one)[0].disk for one in (server, twin) if one.pending >= 0]
        return not written or self._disk(written[0]) == written[1]

    def learn_word(self, number: int, twin: int) -> None:
        self._words.learn(number, twin)

    def learn(self, node: int, outcome: Outcome, twin: Outcome) -> None:
        """Outcomes of a step of the node, and of its twin."""
        said, said_by_twin = _by_peer(outcome), _by_peer(twin)
        if {self._nodes[peer]: len(words) for peer, words in said.items()} != {
            peer: len(words) for peer, words in said_by_twin.items()
        } or bool(outcome[2]) != bool(twin[2]):
            raise NotAlike(f"node {node} tells {said}, its twin {said_by_twin}")
        for peer, words in said.items():
            for word, other in zip(words, said_by_twin[self._nodes[peer]], strict=True):
                self._words.learn(word, other)
        self.learn_local(node, outcome[0], twin[0])

    # --- twins of what is not the outcome of a step

    def _down(self, node: int, number: int) -> int:
        local = self._world.locals[node][number]
        if local.core != DOWN:
            raise NotAlike(f"node {node} has no twin of {local}")
        return self._world.locals[self._nodes[node]].of(local)

    def _server(self, number: int) -> int:
        server = self._world.servers[number]
        if server.core != DOWN:
            raise NotAlike(f"the server has no twin of {server}")
        return self._world.servers.of(Server(DOWN, self._disk(server.disk)))

    def _disk(self, number: int) -> int:
        config, disks = self._world.config, self._world.seats.disks
        disk, weights = disks[number], np.empty_like(disks[number].weights)
        for node in map(int, config.nodes):
            for clock in range(1, config.clocks + 1):
                weights[config.element(self._nodes[node], clock)] = disk.weights[config.element(node, clock)]
        return disks.of(RootSnapshot(weights, self._clocks(disk.clocks)))

    def _clocks(self, clocks: Clocks) -> Clocks:
        return Clocks((WorkerId(self._nodes[worker]), clock) for worker, clock in clocks.items())

    def _wire(self, number: int) -> int:
        wire = self._world.wires[number]
        items = tuple(item if item < 0 else self._words[item] for item in wire.items)
        return self._world.wires.of(wire._replace(items=items))


def exchanges(world: OverlayExplored) -> list[Exchange]:
    """All that map the tree onto itself, but for the one that exchanges nobody."""
    config, found = world.config, []
    for order in permutations(config.nodes):
        nodes = {int(ROOT): int(ROOT), **dict(zip(map(int, config.nodes), map(int, order), strict=True))}
        if order != config.nodes and all(
            tuple(nodes[peer] for peer in world.ancestors(node)) == world.ancestors(nodes[node])
            for node in map(int, config.nodes)
        ):
            found.append(Exchange(world, nodes))
    return found


def _by_peer(outcome: Outcome) -> dict[int, list[int]]:
    """What each peer is told, in order; -1: the connection to it is closed."""
    said: dict[int, list[int]] = {}
    for peer, words in outcome[1]:
        said.setdefault(peer, []).extend((-1,) if words is None else words)
    return said


def _unknown(number: int) -> int:
    if number < 0:
        return number
    raise NotAlike(f"word {number} has no twin")
