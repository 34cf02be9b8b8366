"""The world of a small overlay for the exhaustive search: one server, hosts with a worker each, one crash.

The real cores of MLNet section 3 as tables of local steps. *Workers* push an update and clock, pull, and wait
for the answer; so for each of their updates. *Connections* keep their order; any of them may be slow, so all
orders between several are tried. One that is closed delivers what was said before; one that breaks, or whose
source crashes, that or any first part of it; who dials again is heard after that. *Crashes* lose all that a
node knew, or all of the server but its disk (the record on its way is there or not); who has crashed starts
again any time later. A node may be woken any time, for nothing. *Waits* end any time while they last, in any
order: who is not connected may be taken for dead, or come back before. Only the server's long wait for a
worker that is below nobody does not end while that worker's node is up: others need it to find another
parent. A run begins when all have come, and no worker has begun.

Rules (:mod:`~inaproto.sim.explore.models.seats`): every answer and the disk have exactly the updates that
their clocks say, each once; no answer is older than the worker bears; with no staleness an answer is of one
clock; what is said to be durable is on the disk; no worker goes on beyond what is; nobody is blamed; and from
each state all can finish, every node at its own place in the tree (the engine's search for stuck states).

*Reductions* (``reduced``, compared with the full search in ``tests/sim/test_explore_overlay.py``):

1. Parts of a window that wait are kept in the order of addition, not in that of their arrival: nothing
   depends on it (``machine.freeze``).
2. States that differ by an exchange of nodes that are alike are one (``symmetry``). These differ in their
   numbers alone, which decide the order of additions, and these are of integers.
3. What nobody can tell apart is one (``machine``), sessions are numbered anew (``sessions``).
4. Words that nobody heeds are not said, and how long a wait would be makes no difference (``seats``).
5. Once no fault can happen any more, only the steps of some nodes are tried where nobody else can add to what
   they may do next (``reductions``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from inaproto.core.models.events import Connected, Disconnected, Heard, Woke
from inaproto.sim.explore.models.config import ROOT, OverlayWorldConfig
from inaproto.sim.explore.models.machine import Numbers as Table
from inaproto.sim.explore.models.reductions import Reductions
from inaproto.sim.explore.models.seats import DOWN, Effect, Local, Seats, Server
from inaproto.sim.explore.models.sessions import Sessions
from inaproto.sim.explore.models.symmetry import exchanges
from inaproto.sim.explore.models.waits import ABSENT as GONE
from inaproto.sim.explore.models.waits import Wait, waits_of
from inaproto.sim.explore.models.wires import ABSENT, CUT, EMPTY, END, MEET, Wires
from inaproto.wire.messages.models import NodeId

DIAL: Final = "dials"
DELIVER: Final = "hears"
MET: Final = "meets"
ENDED: Final = "hears that its connection has ended"
WAIT: Final = "waits no longer"
WAKE: Final = "is woken"
WORK: Final = "has its worker go on"
WRITE: Final = "writes"
ABANDON: Final = "loses its worker's process"
CRASH: Final = "crashes"
CRASH_WRITTEN: Final = "crashes, after it has written"
RESET: Final = "loses a connection"
RESTART: Final = "starts again"
FAULTS: Final = frozenset((CRASH, CRASH_WRITTEN, RESET, ABANDON))

State = tuple[int, ...]
"""The server, the nodes, the wires, what is left of the faults, the rule that is broken (0: none); all are
numbers into tables."""
SERVER: Final = 0


class Step(NamedTuple):
    what: str
    node: int
    peer: int = -1
    why: str = ""


class Faults(NamedTuple):
    """Faults that may still happen."""

    crashes: int
    resets: int
    abandons: int


Found = list[tuple[Step, State]]
Outcome = tuple[int, tuple[tuple[int, tuple[int, ...] | None], ...], int]
"""Outcome of a local step: the local state after it, what is told to whom, and what is wrong."""


class OverlayExplored:
    """An ``Explorable``."""

    def __init__(self, config: OverlayWorldConfig) -> None:
        self.config = config
        self.seats = Seats(config)
        self.wires = Wires()
        self._nodes = tuple(int(node) for node in config.nodes)
        self._at = {int(ROOT): SERVER} | {node: at for at, node in enumerate(self._nodes, 1)}
        self._ancestors = {
            node: tuple(map(int, config.shape.ancestors(NodeId(node)))) for node in self._nodes
        }
        links = [(node, peer) for node in self._nodes for peer in self._ancestors[node]]
        edges = [*links, *((peer, node) for node, peer in links)]
        self._edges = {edge: at for at, edge in enumerate(sorted(edges), len(self._at))}
        self._links = links
        self._into = {
            node: tuple((source, at) for (source, target), at in self._edges.items() if target == node)
            for node in self._at
        }
        self._faults_at = len(self._at) + len(edges)
        self.servers: Table[Server] = Table()
        self.locals: dict[int, Table[Local]] = {node: Table() for node in self._nodes}
        self.faults: Table[Faults] = Table(Faults(config.crashes, config.resets, config.abandons))
        self.rules: Table[str] = Table("")
        self._outcomes: dict[tuple[int, int, Any], Outcome] = {}
        self._waits: dict[tuple[int, int], tuple[Wait, ...]] = {}
        self._rests: dict[tuple[int, int], bool] = {}
        self.exchanges = exchanges(self) if config.reduced else []
        self._sessions = Sessions(self)
        self._reductions = Reductions(self)

    def _below(self, node: int) -> tuple[NodeId, ...]:
        return self.config.shape.children(NodeId(node))

    # --- the Explorable

    def initial(self) -> Iterable[State]:
        first = self.config.root(self.config.root_config, None)
        server = self.servers.of(Server(DOWN, self.seats.disks.of(first.snapshot())))
        down = [self.locals[node].of(Local()) for node in self._nodes]
        state: State = (server, *down, *([ABSENT] * len(self._edges)), 0, 0)
        while True:
            """All have come, and no worker has begun."""
            found = [
                after
                for node in self._at
                for step, after in self._of(state, node)
                if step.what not in (WORK, WAIT)
            ]
            if not found or state[-1]:
                break
            state = found[0]
        yield state

    def successors(self, state: State) -> Found:
        if state[-1]:
            return []
        left = self.faults[state[self._faults_at]]
        if any(left):
            found = [one for node in self._at for one in self._of(state, node)]
            self._all_faults(found, state, left)
            return found
        nodes = self._reductions.enough(state) if self.config.reduced else self._at
        return [one for node in nodes for one in self._of(state, node)]

    def violation(self, state: State) -> str | None:
        return self.rules[state[-1]] or None

    def is_finished(self, state: State) -> bool:
        server = self.servers[state[SERVER]]
        if server.core == DOWN or server.pending >= 0:
            return False
        if self.seats.disks[server.disk].clocks.minimum() < self.config.clocks:
            return False
        return all(self.rests_at(node, state[self._at[node]]) for node in self._nodes)

    def is_fault(self, step: Step) -> bool:
        return step.what in FAULTS

    def canonical(self, state: State) -> State:
        if not self.config.reduced:
            return state
        renumbered = self._sessions.canonical(state)
        return min([renumbered, *(one.of(renumbered) for one in self.exchanges)])

    def describe(self, run: Sequence[tuple[State, Step]]) -> list[str]:
        said = []
        for state, step in run:
            who = "the server" if step.node == ROOT else f"node {step.node}"
            text = f"{who} {step.what}"
            if step.what == DELIVER:
                [word, *_] = self.wires[state[self._edges[step.peer, step.node]]].items
                text += f" from {step.peer}: {self.seats.words[word]}"
            elif step.peer >= 0:
                text += f": {step.peer}"
            said.append(f"{text}: {step.why}" if step.why else text)
        return said

    # --- places in a state, and what is there

    def place(self, node: int) -> int:
        return self._at[node]

    def edge(self, source: int, target: int) -> int:
        return self._edges[source, target]

    def edges_by_ends(self) -> Iterable[tuple[tuple[int, int], int]]:
        """((source, target), place) of all."""
        return self._edges.items()

    def edges(self) -> range:
        """The places of all."""
        return range(len(self._at), self._faults_at)

    def into(self, node: int) -> tuple[tuple[int, int], ...]:
        """(source, place) of the edges that end there."""
        return self._into[node]

    def ancestors(self, node: int) -> tuple[int, ...]:
        return self._ancestors[node]

    def core(self, node: int, number: int) -> Any:
        """Core of a node or the server in this local state; None: it is down."""
        if node == ROOT:
            server = self.servers[number]
            return None if server.core == DOWN else self.seats.root.cores[server.core]
        local = self.locals[node][number]
        return None if local.core == DOWN else self.seats.nodes[node].cores[local.core]

    def with_core(self, node: int, number: int, core: Any) -> int:
        """The local state with another core."""
        if node == ROOT:
            return self.servers.of(self.servers[number]._replace(core=self.seats.root.enter(core)))
        entered = self.seats.nodes[node].enter(core)
        return self.locals[node].of(self.locals[node][number]._replace(core=entered))

    def local(self, state: State, node: int) -> Local:
        return self.locals[node][state[self._at[node]]]

    def is_up(self, state: State, node: int) -> bool:
        number = state[self._at[node]]
        return (self.servers[number].core if node == ROOT else self.locals[node][number].core) != DOWN

    def rests_at(self, node: int, number: int) -> bool:
        rests = self._rests.get((node, number))
        if rests is None:
            rests = self._rests[node, number] = self._rests_so(node, self.locals[node][number])
        return rests

    def _rests_so(self, node: int, local: Local) -> bool:
        if local.core == DOWN or local.clock < self.config.clocks or local.waits:
            return False
        view = self.seats.nodes[node].cores[local.core].view()
        is_home = view.is_attached and not view.is_direct and view.parent == self._ancestors[node][0]
        return is_home and not view.logged and not view.kept

    # --- what can happen

    def _of(self, state: State, node: int) -> Found:
        """All that a node does itself, or hears."""
        found: Found = []
        place = self._at[node]
        if not self.is_up(state, node):
            after = [*state]
            self._do(after, node, "starts")
            return [(Step(RESTART, node), tuple(after))]
        for peer, at in self._into[node]:
            if state[at] != ABSENT:
                self._hear(found, state, node, peer, at)
        if node == ROOT:
            if self.servers[state[SERVER]].pending >= 0:
                self._add(found, Step(WRITE, node), state, node, "writes")
        else:
            local = self.locals[node][state[place]]
            for peer in local.orders:
                if state[self._edges[peer, node]] == ABSENT and self.is_up(state, peer):
                    found.append((Step(DIAL, node, peer), self._dialled(state, node, peer)))
            if self.seats.may_work(local):
                self._add(found, Step(WORK, node), state, node, "works")
            if self.is_woken(node, state[place]):
                self._add(found, Step(WAKE, node), state, node, "woken")
        for wait in self.waits_at(node, state[place]):
            if wait[0] != GONE or not self.is_up(state, wait[1]):
                self._add(found, Step(WAIT, node, wait[1], wait[0]), state, node, ("waited", wait))
        return found

    def _hear(self, found: Found, state: State, node: int, peer: int, at: int) -> None:
        items = self.wires[state[at]].items
        if not items:
            return
        if items[0] >= 0 or items[0] == MEET:
            after = [*state]
            after[at] = self.wires.heard(state[at])
            key = ("meets", peer) if items[0] == MEET else ("hears", peer, items[0])
            self._do(after, node, key)
            found.append((Step(MET if items[0] == MEET else DELIVER, node, peer), tuple(after)))
        else:
            self._end(found, state, node, peer, self.wires.heard(state[at]))
        first = next((item for item in items if item < 0), 0)
        if first == CUT and items[0] >= 0:
            self._end(found, state, node, peer, self.wires.cut_short(state[at]))

    def _end(self, found: Found, state: State, node: int, peer: int, rest: int) -> None:
        after = [*state]
        after[self._edges[peer, node]] = rest
        if rest == ABSENT:
            out = self._edges[node, peer]
            after[out] = self.wires.ended(after[out], CUT)
        self._do(after, node, ("ends", peer))
        found.append((Step(ENDED, node, peer), tuple(after)))

    def _dialled(self, state: State, node: int, peer: int) -> State:
        after = [*state]
        out, back = self._edges[node, peer], self._edges[peer, node]
        after[out], after[back] = self.wires.told(after[out], (MEET,)), EMPTY
        self._do(after, node, ("meets", peer))
        return tuple(after)

    def is_woken(self, node: int, number: int) -> bool:
        """Whether it makes a difference that the node is woken for nothing."""
        after, told, wrong = self._learnt(node, number, "woken")
        return after != number or bool(told) or bool(wrong)

    def waits_at(self, node: int, number: int) -> tuple[Wait, ...]:
        waits = self._waits.get((node, number))
        if waits is None:
            found = waits_of(self.core(node, number))
            waits = tuple(wait for wait in found if wait[0] != GONE or self.config.counts_gone)
            self._waits[node, number] = waits
        return waits

    def _add(self, found: Found, step: Step, state: State, node: int, key: Any) -> None:
        after = [*state]
        self._do(after, node, key)
        found.append((step, tuple(after)))

    def _do(self, state: list[int], node: int, key: Any) -> None:
        """A local step, and what becomes of the connections."""
        place = self._at[node]
        known = self._outcomes.get((node, state[place], key))
        state[place], told, wrong = self._learnt(node, state[place], key) if known is None else known
        for peer, words in told:
            out, back = self._edges[node, peer], self._edges[peer, node]
            if words is None:
                state[back] = ABSENT
                state[out] = self.wires.ended(state[out], END)
            elif self.wires.is_current(state[back]):
                state[out] = self.wires.told(state[out], words)
        state[-1] = state[-1] or wrong

    def _learnt(self, node: int, number: int, key: Any) -> Outcome:
        """For the twins as well."""
        known = self._outcomes.get((node, number, key))
        if known is None:
            known = self._outcomes[node, number, key] = self._computed(node, number, key)
            for one in self.exchanges:
                twin = self._learnt(one.node(node), one.local(node, number), one.key(key))
                one.learn(node, known, twin)
        return known

    def _computed(self, node: int, number: int, key: Any) -> Outcome:
        if node == ROOT:
            server, effect = self._server_does(self.servers[number], key)
            number = self.servers.of(server)
        else:
            local, effect = self._node_does(node, self.locals[node][number], key)
            number = self.locals[node].of(local)
        return number, tuple(effect.told), self.rules.of(effect.wrong)

    def _event(self, key: Any) -> Any:
        what, peer, *word = key
        if what == "hears":
            return Heard(NodeId(peer), self.seats.words[word[0]])
        return Connected(NodeId(peer)) if what == "meets" else Disconnected(NodeId(peer))

    def _server_does(self, server: Server, key: Any) -> tuple[Server, Effect]:
        match key:
            case "starts":
                return self.seats.server_starts(server.disk)
            case "writes":
                return self.seats.server_writes(server)
            case ("waited", wait):
                return self.seats.server_waited(server, wait)
            case _:
                return self.seats.server_step(server, self._event(key), key)

    def _node_does(self, node: int, local: Local, key: Any) -> tuple[Local, Effect]:
        match key:
            case "starts":
                return self.seats.node_starts(node, local)
            case "works":
                return self.seats.node_works(node, local)
            case "woken":
                return self.seats.node_step(node, local, Woke(), "wakes")
            case "abandoned":
                return self.seats.node_abandoned(node, local)
            case ("waited", wait):
                return self.seats.node_waited(node, local, wait)
            case ("hears", *_):
                return self.seats.node_hears(node, local, self._event(key), key)
            case _:
                return self.seats.node_step(node, local, self._event(key), key)

    # --- faults

    def _all_faults(self, found: Found, state: State, left: Faults) -> None:
        struck = [node for node in self._nodes if self.config.struck != "ends" or not self._below(node)]
        if left.crashes:
            after = [*state]
            after[self._faults_at] = self.faults.of(left._replace(crashes=left.crashes - 1))
            for node in struck:
                if self.is_up(state, node):
                    found.append((Step(CRASH, node), self._crashed(after, node)))
            if self.config.struck != "nodes" and self.is_up(state, ROOT):
                found.append((Step(CRASH, ROOT), self._crashed(after, ROOT)))
                server = self.servers[state[SERVER]]
                if server.pending >= 0:
                    found.append((Step(CRASH_WRITTEN, ROOT), self._crashed_written(after, server)))
        if left.abandons:
            after = [*state]
            after[self._faults_at] = self.faults.of(left._replace(abandons=left.abandons - 1))
            for node in struck:
                if self.local(state, node).clock >= 0:
                    self._add(found, Step(ABANDON, node), tuple(after), node, "abandoned")
        if left.resets:
            rest = self.faults.of(left._replace(resets=left.resets - 1))
            for node, peer in self._links:
                if node in struck:
                    self._reset(found, state, node, peer, rest)

    def _crashed_written(self, state: list[int], server: Server) -> State:
        server, wrong = self.seats.written(server)
        after = [*state]
        after[SERVER] = self.servers.of(server)
        after[-1] = self.rules.of(wrong)
        return self._crashed(after, ROOT)

    def _crashed(self, state: list[int], node: int) -> State:
        after = [*state]
        for (source, target), at in self._edges.items():
            if target == node:
                after[at] = ABSENT
            elif source == node:
                after[at] = self.wires.ended(after[at], CUT)
        server = self.servers[after[SERVER]]
        if node == ROOT:
            after[SERVER] = self.servers.of(Server(DOWN, server.disk))
        else:
            down = Local(least=self.seats.clock_on_disk(server, node))
            after[self._at[node]] = self.locals[node].of(down)
        return tuple(after)

    def _reset(self, found: Found, state: State, node: int, peer: int, rest: int) -> None:
        out, back = self._edges[node, peer], self._edges[peer, node]
        if not self.wires.is_current(state[back]) or not self.wires[state[out]].is_joined:
            return
        after = [*state]
        after[out], after[back] = self.wires.ended(state[out], CUT), self.wires.ended(state[back], CUT)
        after[self._faults_at] = rest
        found.append((Step(RESET, node, peer), tuple(after)))
