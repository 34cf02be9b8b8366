"""What a node with its worker, or the server with its disk, does in one step of an explored overlay.

A step is a function of the local state and the event alone, so it is computed once. It changes the local
state and says what becomes of connections; the rules that a step can break are looked at here, each in what
this node knows: so they hold or break alike in whatever order others take their steps.

*Words that nobody heeds* (``reduced``). A ``HeartbeatAnswer`` is a sign of life, and nodes without
heartbeats count none: to hear one is to be woken, which a node may be at any time. So it is not said. Any
run in which it is said and heard, or lost, has a twin in which the node is woken instead, or nothing happens,
with the same local states, the same other words in the same order on each connection, the same broken rules
and the same end. That hearing it is being woken is tried for each local state that comes up, with each peer
that could say it (:class:`Heeded` if it is not).

*What only waits and the log are made from* (``_OF_WAITS``) is no part of a state: waits end at any time here,
however long they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from inaproto.core.models.children import Bond
from inaproto.core.models.events import (
    Abandoned,
    Answer,
    Clocked,
    Connect,
    Disconnect,
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
from inaproto.core.models.node import ShardNode
from inaproto.errors import InvariantBroken
from inaproto.sim.explore.models.config import NOW, OverlayWorldConfig
from inaproto.sim.explore.models.machine import Machine, fork
from inaproto.sim.explore.models.machine import Numbers as Table
from inaproto.sim.explore.models.waits import REDO, Wait, end_wait
from inaproto.wire.messages.arrays import Numbers
from inaproto.wire.messages.clocks import NO_CLOCKS, Clocks, WorkerId
from inaproto.wire.messages.models import (
    Attach,
    Attached,
    HeartbeatAnswer,
    Merged,
    NodeId,
    Weights,
    Word,
)

DOWN: Final = -1
_OF_WAITS: Final = ("_doublings", "_built_at", "why")
"""Fields of :class:`~inaproto.core.models.failures.Failures`: how long a wait is, and what is in the log."""
_CLOCK: Final = 0
"""The request of ``Clocked``; that of a pull is the worker's clock."""


class Heeded(InvariantBroken):
    """A node heeds a word that is left out because nobody does."""


class Local(NamedTuple):
    """State of a node: its core and its worker."""

    core: int = DOWN
    clock: int = -1
    """-1: the worker has not resumed."""
    is_making: bool = False
    """It has pushed since."""
    waits: tuple[int, ...] = ()
    """Its clocks of whose pulls it has no answer."""
    least: int = 0
    """What was on the disk of its worker when the node crashed: it resumes there or later, unless it has
    waited for that in vain."""
    heard: Clocks = NO_CLOCKS
    """All that others have told it of what the root has."""
    orders: tuple[int, ...] = ()
    """Whom it is to dial."""


class Server(NamedTuple):
    core: int
    disk: int
    pending: int = -1
    """A record on its way to the disk; -1: none."""


Word_ = tuple[int, tuple[int, ...] | None]
"""A peer, and words that it is told; None: the connection to it is closed."""


@dataclass(slots=True)
class Effect:
    told: list[Word_] = field(default_factory=list)
    wrong: str = ""

    def tell(self, peer: int, word: int) -> None:
        if self.told and self.told[-1][0] == peer and self.told[-1][1] is not None:
            self.told[-1] = peer, (*self.told[-1][1], word)
        else:
            self.told.append((peer, (word,)))


class Seats:
    """All nodes and the server, and the tables of what they are made of."""

    def __init__(self, config: OverlayWorldConfig) -> None:
        self.config = config
        reduced = config.reduced
        self.nodes: dict[int, Machine[Any]] = {int(node): Machine(reduced=reduced) for node in config.nodes}
        left_out = () if config.counts_gone else ("_absent_since", "_seen")
        of_waits = _OF_WAITS if reduced else ()
        self.root: Machine[Any] = Machine(reduced=reduced, left_out=(*left_out, *of_waits))
        self._heedless: set[tuple[int, int]] = set()
        """Nodes with local states of their cores in which they do not heed what is left out."""
        self.words: Table[Word] = Table()
        self.disks: Table[RootSnapshot] = Table()
        self.records: Table[RootRecord] = Table()

    # --- a node

    def node_starts(self, node: int, before: Local) -> tuple[Local, Effect]:
        config = self.config
        core = self.nodes[node].enter(config.node(config.node_config(NodeId(node))))
        return self.node_step(node, Local(core, least=before.least), Woke(), "wakes")

    def node_waited(self, node: int, local: Local, wait: Wait) -> tuple[Local, Effect]:
        if wait[0] == REDO:
            local = local._replace(least=0)
        return self.node_step(node, local, Woke(), wait, lambda core: end_wait(core, wait))

    def node_hears(self, node: int, local: Local, event: Any, key: Any) -> tuple[Local, Effect]:
        said = _said(event.word)
        if said is not None:
            local = local._replace(heard=local.heard.joined(said))
        return self.node_step(node, local, event, key)

    def node_step(
        self, node: int, local: Local, event: Any, key: Any, before: Any = None
    ) -> tuple[Local, Effect]:
        number, actions = self.nodes[node].step(local.core, event, key, before)
        if self.config.reduced and (node, number) not in self._heedless:
            self._check_heedless(node, number)
        local, effect = local._replace(core=number), Effect()
        for action in actions:
            local = self._node_does(node, local, action, effect)
        if self.config.reduced:
            local = local._replace(heard=local.heard.restricted(_known(self.nodes[node].cores[number])))
        return local, effect

    def _node_does(self, node: int, local: Local, action: Any, effect: Effect) -> Local:
        match action:
            case Tell(peer, word):
                said = _said(word)
                if said is not None and not _knows(local.heard, said):
                    effect.wrong = f"node {node} says {said} of the root, and has heard {local.heard}"
                self._tell(effect, int(peer), word)
            case Connect(peer):
                return local._replace(orders=tuple(sorted({*local.orders, int(peer)})))
            case Disconnect(peer):
                effect.told.append((int(peer), None))
                return local._replace(orders=tuple(order for order in local.orders if order != peer))
            case Resumed(worker, clock):
                if clock > (local.heard.get(worker) or 0):
                    effect.wrong = (
                        f"worker {node} resumes at {clock}, the root is known to have {local.heard}"
                    )
                elif clock < local.least:
                    effect.wrong = f"worker {node} resumes at {clock}, on the disk it was further"
                return local._replace(clock=clock, least=0)
            case Done():
                return local._replace(clock=action.clock)
            case Answer():
                effect.wrong = effect.wrong or self._answer_fault(node, local, action)
                return local._replace(waits=tuple(one for one in local.waits if one != action.request))
            case Noted():
                pass
            case _:
                effect.wrong = f"node {node}: {action}"
        return local

    def _tell(self, effect: Effect, peer: int, word: Word) -> None:
        if not (self.config.reduced and isinstance(word, HeartbeatAnswer)):
            effect.tell(peer, self.words.of(word))

    def _check_heedless(self, node: int, number: int) -> None:
        self._heedless.add((node, number))
        machine = self.nodes[node]
        woken = machine.step(number, Woke(), "wakes")
        for peer in self.config.shape.ancestors(NodeId(node)):
            for is_attached in (False, True):
                core = fork(machine.cores[number])
                actions = core.step(Heard(peer, HeartbeatAnswer(is_attached)), NOW)
                if (machine.enter(core), tuple(actions)) != woken:
                    raise Heeded(f"node {node} heeds a heartbeat's answer: {actions}")

    def _answer_fault(self, node: int, local: Local, answer: Answer) -> str:
        included = dict(answer.included.items())
        if answer.request not in local.waits or answer.clock != answer.request:
            return f"worker {node} gets an answer that it does not wait for: {answer}"
        if min(included.values()) < answer.clock - self.config.staleness:
            return f"worker {node} at {answer.clock} gets {included}"
        if not self.config.staleness and len(set(included.values())) > 1:
            return f"worker {node} gets weights of several clocks: {included}"
        return self._weights_fault(answer.weights, included, f"node {node} answers")

    # --- its worker

    def may_work(self, local: Local) -> bool:
        return 0 <= local.clock < self.config.clocks and len(local.waits) < self.config.pulls

    def node_works(self, node: int, local: Local) -> tuple[Local, Effect]:
        """An update and its clock, then a pull; two steps where processes may end between them."""
        gradients = np.zeros(self.config.shard.elements, np.int64)
        gradients[self.config.element(node, local.clock + 1)] = 1
        if not local.is_making:
            key = "pushes", gradients.tobytes()
            local, effect = self.node_step(node, local._replace(is_making=True), Pushed(gradients), key)
            if self.config.abandons or effect.wrong:
                return local, effect
        else:
            effect = Effect()
        return self._node_clocks(node, local, effect)

    def _node_clocks(self, node: int, local: Local, effect: Effect) -> tuple[Local, Effect]:
        before = local.clock
        local, clocked = self.node_step(node, local._replace(is_making=False), Clocked(_CLOCK), "clocks")
        clock = local.clock
        if clock != before + 1 and not clocked.wrong:
            clocked.wrong = f"worker {node} at {before} is at {clock} after a clock"
        local = local._replace(waits=(*local.waits, clock))
        local, pulled = self.node_step(node, local, Pulled(clock, self.config.staleness), ("pulls", clock))
        wrong = effect.wrong or clocked.wrong or pulled.wrong
        return local, Effect([*effect.told, *clocked.told, *pulled.told], wrong)

    def node_abandoned(self, node: int, local: Local) -> tuple[Local, Effect]:
        """Its worker's process ends, and another one goes on in its place."""
        local, effect = self.node_step(node, local, Abandoned(), "abandoned")
        clock = self.nodes[node].cores[local.core].view().worker_clock
        clock = -1 if clock is None else clock
        return local._replace(clock=clock, is_making=False, waits=()), effect

    # --- the server

    def server_starts(self, disk: int) -> tuple[Server, Effect]:
        core = self.root.enter(self.config.root(self.config.root_config, self.disks[disk]))
        return self.server_step(Server(core, disk), Woke(), "wakes")

    def server_waited(self, server: Server, wait: Wait) -> tuple[Server, Effect]:
        return self.server_step(server, Woke(), wait, lambda core: end_wait(core, wait))

    def server_step(self, server: Server, event: Any, key: Any, before: Any = None) -> tuple[Server, Effect]:
        number, actions = self.root.step(server.core, event, key, before)
        pending, effect = server.pending, Effect()
        disk = self.disks[server.disk].clocks
        for action in actions:
            match action:
                case Tell(peer, word):
                    said = _said(word)
                    if said is not None and not disk.covers(said):
                        effect.wrong = f"the server says {said} of itself, on the disk is {disk}"
                    self._tell(effect, int(peer), word)
                case Persist(record):
                    pending = self.records.of(record)
                case Noted():
                    pass
                case _:
                    effect.wrong = f"the server: {action}"
        return server._replace(core=number, pending=pending), effect

    def written(self, server: Server) -> tuple[Server, str]:
        """The record is on the disk, and nobody knows; what is wrong with it."""
        record, disk = self.records[server.pending], self.disks[server.disk]
        weights = disk.weights if record.delta is None else disk.weights + record.delta
        after = RootSnapshot(weights, disk.clocks.with_(record.clocks))
        wrong = self._weights_fault(weights, dict(after.clocks.items()), "on the disk")
        return server._replace(disk=self.disks.of(after), pending=-1), wrong

    def server_writes(self, server: Server) -> tuple[Server, Effect]:
        server, wrong = self.written(server)
        token = vars(self.root.cores[server.core])["_token"]
        server, effect = self.server_step(server, Persisted(token), "has written")
        if self.root.cores[server.core].snapshot() != self.disks[server.disk]:
            wrong = wrong or "the server has other weights than its disk"
        effect.wrong = wrong or effect.wrong
        return server, effect

    def clock_on_disk(self, server: Server, node: int) -> int:
        return self.disks[server.disk].clocks[WorkerId(node)]

    # --- weights

    def _weights_fault(self, weights: Numbers, clocks: dict[Any, int], where: str) -> str:
        """They have exactly the updates that the clocks say, each once: of whichever making, where one was
        made again."""
        for node in self.config.nodes:
            for clock in range(1, self.config.clocks + 1):
                times = int(weights[self.config.element(int(node), clock)])
                if times != (clock <= clocks[node]):
                    return f"{where} {clocks}: update {clock} of worker {node} is in {times} times"
        return ""


def _said(word: Word) -> Clocks | None:
    """What a word says that the root has."""
    match word:
        case Weights() | Merged() | Attached():
            return word.root
        case Attach():
            return word.floor
        case _:
            return None


def _known(core: ShardNode) -> set[WorkerId]:
    """Workers of whom it could say anything about the root."""
    sub = core._sub
    asking = [worker for child in sub.children.bound(Bond.ASKED) for worker in child.floor]
    return {*sub.root, *(() if sub.cache is None else sub.cache.root), *asking}


def _knows(heard: Clocks, said: Clocks) -> bool:
    return all(clock <= (heard.get(worker) or 0) for worker, clock in said.items())
