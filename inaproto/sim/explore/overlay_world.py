"""The world of a small overlay for the exhaustive search: one server, hosts with a worker each, one crash.

The real cores of MLNet section 3 as tables of local steps. *Workers* push an update and clock, pull, and wait
for the answer; so for each of their updates. *Connections* keep their order; any of them may be slow, so all
orders between several are tried. A connection that has ended delivers what was on its way, or any first part
of that. *Crashes* lose all that a node knew, or all of the server but its disk (the record on its way is
there or not); who has crashed starts again any time later. Waits are of no length: who is not connected may
be taken for dead at once, or later. A run begins when all have come, and no worker has begun.

Rules: every answer and the disk have exactly the updates that their clocks say, each once; no answer is older
than the worker bears; with no staleness an answer is of one clock; what is said to be durable is on the disk;
nobody is blamed; and from each state all can finish (the engine's search for stuck states).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from inaproto.core.push_pull.clocks import WorkerId
from inaproto.core.push_pull.types import (
    Answer,
    Clocked,
    Connect,
    Connected,
    Disconnect,
    Disconnected,
    Done,
    Heard,
    Noted,
    Persist,
    Persisted,
    Pulled,
    Pushed,
    Resumed,
    RootRecord,
    RootSnapshot,
    Tell,
    Woke,
)
from inaproto.core.push_pull.words import Attached, Merged, NodeId, Numbers, Weights, Word
from inaproto.sim.explore.overlay_config import ROOT, OverlayWorldConfig
from inaproto.sim.explore.overlay_machine import NOW, Machine
from inaproto.sim.explore.overlay_machine import Numbers as Table

DOWN: Final = -1
DIAL: Final = "dials"
DELIVER: Final = "hears"
END: Final = "hears that its connection has ended"
WAKE: Final = "waits no longer"
WORK: Final = "has its worker go on"
WRITE: Final = "writes"
CRASH: Final = "crashes"
CRASH_WRITTEN: Final = "crashes, after it has written"
RESET: Final = "loses a connection"
RESTART: Final = "starts again"
FAULTS: Final = frozenset((CRASH, CRASH_WRITTEN, RESET))
_ATTEMPT: Final = 1 << 8


class Step(NamedTuple):
    what: str
    node: int
    peer: int = -1


class Wire(NamedTuple):
    """One direction of a connection: words on their way, and whether it has ended at its source."""

    words: tuple[int, ...] = ()
    is_over: bool = False


class Local(NamedTuple):
    """Of a node: its core and its worker."""

    core: int
    clock: int = -1
    """-1: the worker has not resumed."""
    waits: str = ""
    attempt: int = 0
    least: int = 0
    """On the disk of its worker when it started: it resumes there, or later."""


class State(NamedTuple):
    root: int
    disk: int
    pending: int
    """A record on its way to the disk, as a number; -1: none."""
    nodes: tuple[Local, ...]
    wires: tuple[tuple[tuple[int, int], Wire], ...]
    """By (source, target), for both directions of each connection that its target knows; sorted."""
    orders: tuple[tuple[int, int], ...]
    """Who is to dial whom."""
    crashes: int
    resets: int
    wrong: str = ""


class OverlayExplored:
    """An ``Explorable``."""

    def __init__(self, config: OverlayWorldConfig) -> None:
        self.config = config
        self.nodes: dict[int, Machine[Any]] = {node: Machine() for node in config.nodes}
        self.root: Machine[Any] = Machine()
        self.words: Table[Word] = Table()
        self.disks: Table[RootSnapshot] = Table()
        self.records: Table[RootRecord] = Table()

    # --- the Explorable

    def initial(self) -> Iterable[State]:
        config = self.config
        first = config.root(config.root_config, None)
        run = _Run(
            self, State(DOWN, self.disks.of(first.snapshot()), -1, (), (), (), config.crashes, config.resets)
        )
        run.locals = {int(node): Local(DOWN) for node in config.nodes}
        run.start(ROOT)
        for node in config.nodes:
            run.start(node)
        yield self._begun(run.state())

    def _begun(self, state: State) -> State:
        """All have come, and no worker has begun."""
        while True:
            steps = [step for step in self._steps(state) if step.what not in (*FAULTS, WORK)]
            if not steps or state.wrong:
                return state
            state = self._after(state, steps[0])

    def successors(self, state: State) -> list[tuple[Step, State]]:
        if state.wrong:
            return []
        return [(step, self._after(state, step)) for step in self._steps(state)]

    def violation(self, state: State) -> str | None:
        return state.wrong or None

    def is_finished(self, state: State) -> bool:
        clocks = self.config.clocks
        if state.root == DOWN or state.pending >= 0 or any(local.core == DOWN for local in state.nodes):
            return False
        if any(local.clock < clocks or local.waits for local in state.nodes):
            return False
        if any(clock < clocks for _, clock in self.disks[state.disk].clocks.items()):
            return False
        views = [self.nodes[node].cores[local.core].view() for node, local in self._locals(state)]
        return all(view.is_attached and not view.logged and not view.kept for view in views)

    def is_fault(self, step: Step) -> bool:
        return step.what in FAULTS

    def canonical(self, state: State) -> State:
        return state

    def describe(self, run: Sequence[tuple[State, Step]]) -> list[str]:
        said = []
        for state, step in run:
            who = "the server" if step.node == ROOT else f"node {step.node}"
            text = f"{who} {step.what}"
            if step.what == DELIVER:
                wire = dict(state.wires)[step.peer, step.node]
                text += f" from {step.peer}: {self.words[wire.words[0]]}"
            elif step.peer >= 0:
                text += f": {step.peer}"
            said.append(text)
        return said

    # --- what can happen

    def _locals(self, state: State) -> list[tuple[int, Local]]:
        return list(zip(map(int, self.config.nodes), state.nodes, strict=True))

    def _steps(self, state: State) -> list[Step]:
        found = [Step(DIAL, node, peer) for node, peer in state.orders if self._may_dial(state, node, peer)]
        for (source, target), wire in state.wires:
            if wire.words:
                found.append(Step(DELIVER, target, source))
            if wire.is_over:
                found.append(Step(END, target, source))
        for node, local in self._locals(state):
            if local.core == DOWN:
                found.append(Step(RESTART, node))
            else:
                found += self._of_node(state, node, local)
        found += self._of_root(state)
        if state.resets:
            found += [
                Step(RESET, source, target)
                for (source, target), wire in state.wires
                if source < target and not wire.is_over
            ]
        return found

    def _of_node(self, state: State, node: int, local: Local) -> list[Step]:
        found = []
        core = self.nodes[node].cores[local.core]
        if core.deadline is not None and core.deadline <= NOW:
            found.append(Step(WAKE, node))
        if local.clock >= 0 and not local.waits and local.clock < self.config.clocks:
            found.append(Step(WORK, node))
        if state.crashes:
            found.append(Step(CRASH, node))
        return found

    def _of_root(self, state: State) -> list[Step]:
        if state.root == DOWN:
            return [Step(RESTART, ROOT)]
        found = []
        core = self.root.cores[state.root]
        if core.deadline is not None and core.deadline <= NOW:
            found.append(Step(WAKE, ROOT))
        if state.pending >= 0:
            found.append(Step(WRITE, ROOT))
        if state.crashes:
            found.append(Step(CRASH, ROOT))
            if state.pending >= 0:
                found.append(Step(CRASH_WRITTEN, ROOT))
        return found

    def _may_dial(self, state: State, node: int, peer: int) -> bool:
        """A peer that is down is dialled in vain: nothing comes of it."""
        wires = dict(state.wires)
        is_up = state.root != DOWN if peer == ROOT else dict(self._locals(state))[peer].core != DOWN
        return is_up and (peer, node) not in wires

    def _after(self, state: State, step: Step) -> State:
        run = _Run(self, state)
        run.do(step)
        return run.state()


class _Run:
    """One step: the parts of a state while they change."""

    def __init__(self, world: OverlayExplored, state: State) -> None:
        self.world = world
        self.before = state
        self.root, self.disk, self.pending = state.root, state.disk, state.pending
        self.locals = dict(zip(map(int, world.config.nodes), state.nodes, strict=False))
        self.wires = dict(state.wires)
        self.orders = dict.fromkeys(state.orders)
        self.crashes, self.resets, self.wrong = state.crashes, state.resets, state.wrong

    def state(self) -> State:
        return State(
            self.root,
            self.disk,
            self.pending,
            tuple(self.locals[int(node)] for node in self.world.config.nodes),
            tuple(sorted(self.wires.items())),
            tuple(sorted(self.orders)),
            self.crashes,
            self.resets,
            self.wrong,
        )

    def do(self, step: Step) -> None:
        node, peer = step.node, step.peer
        match step.what:
            case "dials":
                self.wires[node, peer], self.wires[peer, node] = Wire(), Wire()
                self.step(peer, Connected(NodeId(node)))
                self.step(node, Connected(NodeId(peer)))
            case "hears":
                wire = self.wires[peer, node]
                self.wires[peer, node] = wire._replace(words=wire.words[1:])
                self.step(node, Heard(NodeId(peer), self.world.words[wire.words[0]]))
            case "hears that its connection has ended":
                del self.wires[peer, node]
                self._end(node, peer)
                self.step(node, Disconnected(NodeId(peer)))
            case "waits no longer":
                self.step(node, Woke())
            case "has its worker go on":
                self._work(node)
            case "writes":
                self._write()
            case "crashes" | "crashes, after it has written":
                self.crashes -= 1
                self._crash(node, is_written=step.what == CRASH_WRITTEN)
            case "loses a connection":
                self.resets -= 1
                self._end(node, peer)
                self._end(peer, node)
            case _:  # starts again
                self.start(node)

    # --- cores

    def start(self, node: int) -> None:
        world = self.world
        if node == ROOT:
            core = world.config.root(world.config.root_config, world.disks[self.disk])
            self.root = world.root.enter(core)
        else:
            number = world.nodes[node].enter(world.config.node(world.config.node_config(NodeId(node))))
            least = world.disks[self.disk].clocks[
                world.config.node_config(NodeId(node)).worker or WorkerId(0)
            ]
            self.locals[node] = self.locals[node]._replace(core=number, least=least)
        self.step(node, Woke())

    def step(self, node: int, event: Any) -> None:
        world = self.world
        if node == ROOT:
            self.root, actions = world.root.step(self.root, event, _key(event))
        else:
            local = self.locals[node]
            number, actions = world.nodes[node].step(local.core, event, _key(event))
            self.locals[node] = local._replace(core=number)
        for action in actions:
            self._perform(node, action)

    def _perform(self, node: int, action: Any) -> None:
        match action:
            case Tell(peer, word):
                self._check_word(node, word)
                wire = self.wires.get((node, peer))
                if wire is not None and not wire.is_over and (peer, node) in self.wires:
                    words = (*wire.words, self.world.words.of(word))
                    self.wires[node, int(peer)] = wire._replace(words=words)
            case Connect(peer):
                self.orders[node, int(peer)] = None
            case Disconnect(peer):
                self.orders.pop((node, int(peer)), None)
                self.wires.pop((int(peer), node), None)
                self._end(node, int(peer))
            case Persist(record):
                self.pending = self.world.records.of(record)
            case Resumed(_, clock):
                self.locals[node] = self.locals[node]._replace(clock=clock)
                if clock < self.locals[node].least:
                    self.wrong = f"worker {node} resumes at {clock}, on the disk it was further"
            case Done():
                self.locals[node] = self.locals[node]._replace(clock=action.clock)
            case Answer():
                self._answer(node, action)
            case Noted():
                pass
            case _:
                self.wrong = f"node {node}: {action}"

    def _end(self, source: int, target: int) -> None:
        """The source hears no more, and says no more."""
        wire = self.wires.get((source, target))
        if wire is not None:
            self.wires[source, target] = wire._replace(is_over=True)

    def _crash(self, node: int, *, is_written: bool) -> None:
        for source, target in list(self.wires):
            if target == node:
                del self.wires[source, target]
            elif source == node:
                self._end(source, target)
        for order in [order for order in self.orders if order[0] == node]:
            del self.orders[order]
        if node == ROOT:
            if is_written:
                self._to_disk()
            self.root, self.pending = DOWN, -1
        else:
            self.locals[node] = Local(DOWN, attempt=self.locals[node].attempt + 1)

    # --- the worker

    def _work(self, node: int) -> None:
        local, config = self.locals[node], self.world.config
        gradients = np.zeros(config.shard.elements, np.int64)
        gradients[self._element(node, local.clock + 1)] = 1 + _ATTEMPT * local.attempt
        self.locals[node] = local._replace(waits="pull")
        self.step(node, Pushed(gradients))
        self.step(node, Clocked(1))
        self.step(node, Pulled(2, config.staleness))

    def _element(self, node: int, clock: int) -> int:
        return self.world.config.nodes.index(NodeId(node)) * self.world.config.clocks + clock - 1

    # --- the disk

    def _to_disk(self) -> RootSnapshot:
        record = self.world.records[self.pending]
        disk = self.world.disks[self.disk]
        weights = disk.weights if record.delta is None else disk.weights + record.delta
        after = RootSnapshot(weights, disk.clocks.with_(record.clocks))
        self._check(weights, dict(after.clocks.items()), "on the disk")
        self.disk = self.world.disks.of(after)
        return after

    def _write(self) -> None:
        after = self._to_disk()
        self.pending = -1
        token = vars(self.world.root.cores[self.root])["_token"]
        self.step(ROOT, Persisted(token))
        if self.world.root.cores[self.root].snapshot() != after:
            self.wrong = "the server has other weights than its disk"

    # --- the rules

    def _answer(self, node: int, answer: Answer) -> None:
        local, config = self.locals[node], self.world.config
        self.locals[node] = local._replace(waits="")
        included = dict(answer.included.items())
        self._check(answer.weights, included, f"node {node} answers")
        if min(included.values()) < local.clock - config.staleness or answer.clock != local.clock:
            self.wrong = f"worker {node} at {local.clock} gets {included}"
        if not config.staleness and len(set(included.values())) > 1:
            self.wrong = f"worker {node} gets weights of several clocks: {included}"

    def _check(self, weights: Numbers, clocks: dict[Any, int], where: str) -> None:
        for node in self.world.config.nodes:
            attempts = range(self.locals[int(node)].attempt + 1)
            for clock in range(1, self.world.config.clocks + 1):
                code = int(weights[self._element(int(node), clock)])
                is_once = code in [1 + _ATTEMPT * attempt for attempt in attempts]
                if not (is_once if clock <= clocks[node] else code == 0):
                    self.wrong = f"{where} {clocks}: update {clock} of worker {node} reads {code}"

    def _check_word(self, node: int, word: Word) -> None:
        if isinstance(word, Weights | Merged | Attached):
            disk = self.world.disks[self.disk].clocks
            if any(clock > disk[worker] for worker, clock in word.root.items()):
                self.wrong = f"node {node} says {word.root} of the root, on the disk is {disk}"


def _key(event: Any) -> Any:
    return (event.gradients.tobytes(),) if isinstance(event, Pushed) else event
