"""What must hold in every overlay world, at every step and on every pull."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from inaproto.core.models.events import (
    Answer,
    Done,
    Mark,
    NodeAction,
    NodeEvent,
    Noted,
    Pulled,
    Resumed,
    RootAction,
    RootEvent,
    Tell,
)
from inaproto.core.models.node import ShardNode
from inaproto.sim.kernel.violated import Violated
from inaproto.sim.models.bounds import Bounds, Removals
from inaproto.sim.models.checking import OverlayChecker
from inaproto.sim.models.ledger import DURABLE, ONCE
from inaproto.wire.messages.arrays import Numbers
from inaproto.wire.messages.clocks import FOREVER, Clocks, WorkerId
from inaproto.wire.messages.models import Attached, Merged, NodeId, Push, Weights, Word

if TYPE_CHECKING:
    from inaproto.sim.models.host import NodeSeat
    from inaproto.sim.models.server import Server
    from inaproto.sim.models.world import OverlayWorld

REORDERS: Final = (
    Mark.ADOPTED,
    Mark.PARENT_DEAD,
    Mark.CHILD_DEAD,
    Mark.TORN_DOWN,
)
"""After these, floats may be added in another order."""


class ExactlyOnce(OverlayChecker):
    """Weights and sums have exactly the updates that their clocks say, each once; in the end all are in."""

    name = ONCE

    def stepped(self, seat: NodeSeat, event: NodeEvent, actions: Sequence[NodeAction]) -> None:
        for action in actions:
            if isinstance(action, Answer):
                self._answer(seat, action)
            elif isinstance(action, Tell):
                self._word(seat.shard, str(seat), action.word)

    def root_stepped(self, server: Server, event: RootEvent, actions: Sequence[RootAction]) -> None:
        for action in actions:
            if isinstance(action, Tell):
                self._word(server.shard, str(server), action.word)

    def _answer(self, seat: NodeSeat, answer: Answer) -> None:
        worker = seat.host.worker
        assert worker is not None, "only a worker is answered"
        more = {}
        if seat.config.shard.staleness > 0 and seat.shard in worker.open:
            more[worker.number] = worker.open[seat.shard]
        self._weights(
            seat.shard, f"{seat} answers", answer.weights, answer.included, answer.model_clock, more
        )

    def _word(self, shard: int, who: str, word: Word) -> None:
        if isinstance(word, Weights):
            self._weights(shard, f"{who} says", word.weights, word.included, word.root.minimum(), {})
        elif isinstance(word, Push):
            self._push(shard, who, word)

    def _push(self, shard: int, who: str, push: Push) -> None:
        ledger, values = self.world.ledgers[shard], self.world.values[shard]
        codes = None if push.delta is None else values.codes(push.delta)
        for worker, of in enumerate(ledger.extent):
            first = last = 0
            if worker in push.after:
                first, last = push.before[WorkerId(worker)] + 1, push.after[WorkerId(worker)]
            if last >= FOREVER:
                last = ledger.left.get(worker, of)
            for clock in range(1, self.world.config.workers[worker].clocks + 1):
                code = 0.0 if codes is None else codes[worker][clock - 1]
                attempt = ledger.attempt_of(worker, clock, code)
                wrong = attempt is None if first <= clock <= last else code != 0
                if wrong:
                    said = f"{push.before} to {push.after}"
                    raise Violated(self.name, f"{who} pushes {said}; {worker}/{clock} reads {code:g}")

    def _weights(
        self,
        shard: int,
        who: str,
        weights: Numbers,
        included: Clocks,
        model_clock: int,
        more: dict[int, int],
    ) -> None:
        """``more``: of a worker the update that it is making, which may be in them, too."""
        ledger, values = self.world.ledgers[shard], self.world.values[shard]
        travels = values.travelling(weights) if weights.dtype != values.dtype else weights
        inside: list[tuple[int, int, int]] = []
        for worker, codes in enumerate(values.codes(travels)):
            last = included[WorkerId(worker)]
            if last >= FOREVER:
                last = max(ledger.extent[worker], ledger.left.get(worker, 0))
                if worker in ledger.removed:
                    last = ledger.extent[worker]
            for clock, code in enumerate(codes, 1):
                attempt = ledger.attempt_of(worker, clock, code)
                is_open = clock == more.get(worker)
                settled = ledger.settled.get((worker, clock), attempt)
                if clock <= last or is_open:
                    wrong = attempt is None or (clock <= model_clock and attempt != settled)
                    if attempt is not None:
                        inside.append((worker, clock, attempt))
                        if attempt != settled:
                            self.world.mark("weights had an update of a host that died, which was made again")
                else:
                    wrong = code != 0
                if wrong:
                    raise Violated(self.name, f"{who} {included}; update {worker}/{clock} reads {code:g}")
        ledger.check_sum(travels, inside, who)

    def end(self, world: OverlayWorld) -> None:
        for shard in range(len(world.ledgers)):
            for worker, setup in enumerate(world.config.workers):
                self._all_in(shard, worker, setup.clocks)

    def _all_in(self, shard: int, worker: int, clocks: int) -> None:
        """But of workers that were removed, as they may be."""
        world = self.world
        is_removed = any(ledger.is_removed(worker) for ledger in world.ledgers)
        extent = world.ledgers[shard].extent[worker]
        if extent != clocks and not is_removed:
            raise Violated(
                self.name, f"in the end worker {worker} has {extent} updates on the disk of {shard}"
            )
        if is_removed and worker not in world.removed and world.config.removal_ns < 0:
            raise Violated(self.name, f"worker {worker} was removed, and nobody wished it")


class Staleness(OverlayChecker):
    """No worker gets weights that lack an update older than it bears."""

    name = "staleness bound"

    def stepped(self, seat: NodeSeat, event: NodeEvent, actions: Sequence[NodeAction]) -> None:
        for action in actions:
            if isinstance(action, Answer):
                self._answer(seat, action)

    def _answer(self, seat: NodeSeat, answer: Answer) -> None:
        worker = seat.host.worker
        assert worker is not None, "only a worker is answered"
        asked, clock = worker.asked(seat.shard, answer.request)
        if not isinstance(asked, Pulled) or (answer.clock, answer.staleness) != (clock, asked.staleness):
            raise Violated(self.name, f"{seat} answers {answer.request} at {clock}: {asked}")
        least = clock - asked.staleness
        behind = [w for w, c in answer.included.items() if c < least]
        if behind or len(answer.included) != len(self.world.config.workers) or answer.model_clock < least:
            raise Violated(self.name, f"{seat} at {clock} - {asked.staleness} gets {answer.included}")
        if asked.staleness and min(c for _, c in answer.included.items()) == least > 0:
            self.world.mark("weights were as old as they may be")
        if seat.config.shard.staleness and answer.included[WorkerId(worker.number)] < clock:
            raise Violated(self.name, f"{seat} at {clock} lacks what it finished itself: {answer.included}")
        if answer.model_clock > self.world.ledgers[seat.shard].model_clock:
            raise Violated(DURABLE, f"{seat} says that the model is at {answer.model_clock}")


class Serial(OverlayChecker):
    """With no staleness weights are those of one clock, those of serial training bit for bit, whatever befell
    the tree. Of an update that was made again the making counts that is on the disk."""

    name = "no staleness is serial training"

    def stepped(self, seat: NodeSeat, event: NodeEvent, actions: Sequence[NodeAction]) -> None:
        for action in actions:
            if isinstance(action, Answer):
                self._check(seat.shard, str(seat), action.weights, action.included)

    def root_stepped(self, server: Server, event: RootEvent, actions: Sequence[RootAction]) -> None:
        for action in actions:
            if isinstance(action, Tell) and isinstance(action.word, Weights):
                self._check(server.shard, str(server), action.word.weights, action.word.included)

    def _check(self, shard: int, who: str, weights: Numbers, included: Clocks) -> None:
        world = self.world
        if world.config.shards[shard].staleness:
            return
        clocks = sorted({clock for _, clock in included.items() if clock < FOREVER})
        if len(clocks) > 1:
            raise Violated(self.name, f"{who} has weights of several clocks: {included}")
        last = max(setup.clocks for setup in world.config.workers)
        trees, ledger = world.config.trees(shard), world.ledgers[shard]
        reference = world.values[shard].windows(
            lambda clock: trees[ledger.tree_of(clock)], clocks[0] if clocks else last, ledger.settled
        )
        if weights.dtype != reference.dtype:
            reference = world.values[shard].shown(reference)
        if reference.tobytes() != weights.tobytes():
            raise Violated(self.name, f"{who} at {included} has {weights}, serial training {reference}")
        world.mark("weights were those of serial training, bit for bit")


class FewPushes(OverlayChecker):
    """With no staleness a node pushes once for each clock; else it withholds until a multiple or a pull."""

    name = "few pushes"

    def begin(self, world: OverlayWorld) -> None:
        super().begin(world)
        self._pushed: dict[tuple[int, NodeId], list[int]] = {}
        self._is_reordered = False

    @property
    def _is_calm(self) -> bool:
        """No node has had another parent than its first, nor lost a word."""
        world = self.world
        lost = (
            "a word was lost with its connection" in world.marks
            or "a connection could not be made" in world.marks
        )
        return not (self._is_reordered or lost or world.config.faults or world.config.reshapings)

    def stepped(self, seat: NodeSeat, event: NodeEvent, actions: Sequence[NodeAction]) -> None:
        if any(isinstance(one, Noted) and one.mark in REORDERS for one in actions):
            self._is_reordered = True
        if not self._is_calm:
            return
        said = [action.word for action in actions if isinstance(action, Tell)]
        flushes = any(isinstance(one, Noted) and one.mark is Mark.FLUSHED for one in actions)
        view = seat.core.view()
        needs = [*view.waiting, *(needed for child in view.children for needed in child.waiting)]
        for push in said:
            if isinstance(push, Push):
                is_needed = any(needed <= push.clock for needed in needs)
                self._push(seat, push, flushes=flushes or is_needed)

    def _push(self, seat: NodeSeat, push: Push, *, flushes: bool) -> None:
        staleness = seat.config.shard.staleness
        before = self._pushed.setdefault((seat.shard, seat.node), [])
        last = before[-1] if before else 0
        if not staleness and push.clock <= last:
            raise Violated(self.name, f"{seat} pushes clock {push.clock} after {before}")
        leaves = any(clock >= FOREVER for _, clock in push.after.items())
        if staleness and not flushes and not leaves:
            if push.clock // (staleness + 1) <= last // (staleness + 1):
                raise Violated(
                    self.name, f"{seat} pushes clock {push.clock} of staleness {staleness}, at {last}"
                )
            self.world.mark("a push was withheld until a multiple")
        before.append(min(push.clock, 1 << 40))

    def end(self, world: OverlayWorld) -> None:
        if not self._is_calm:
            return
        for host in world.hosts:
            for seat in host.seats:
                if seat.config.shard.staleness:
                    continue
                below = [host.node, *world.trees[seat.shard].descendants(host.node)]
                clocks = [setup.clocks for setup in world.config.workers if setup.host in below]
                pushed = self._pushed.get((seat.shard, seat.node), [])
                if pushed[: max(clocks, default=0)] != list(range(1, max(clocks, default=0) + 1)):
                    raise Violated(self.name, f"{seat} pushed clocks {pushed}, of {clocks} below it")
                if len(pushed) > max(clocks, default=0) + len(clocks):
                    raise Violated(self.name, f"{seat} pushed clocks {pushed}, of {clocks} below it")
                world.mark("a node pushed once for each clock")


class Durable(OverlayChecker):
    """What is said to be merged by the root is on its disk, before anybody can see it."""

    name = DURABLE

    def stepped(self, seat: NodeSeat, event: NodeEvent, actions: Sequence[NodeAction]) -> None:
        self._words(seat.shard, str(seat), actions)
        ledger = self.world.ledgers[seat.shard]
        worker = seat.config.worker
        for action in actions:
            if isinstance(action, Done) and action.clock == FOREVER and worker is not None:
                if ledger.clocks[worker] != FOREVER or ledger.is_removed(worker):
                    raise Violated(self.name, f"{seat} says that worker {worker} has left: {ledger.clocks}")
            elif isinstance(action, Resumed):
                self._resumed(seat, action, ledger.clocks[action.worker])

    def _resumed(self, seat: NodeSeat, said: Resumed, on_disk: int) -> None:
        if said.clock < seat.durable:
            raise Violated(self.name, f"{seat}: {said}, on disk was {seat.durable} when it started")
        if said.clock > on_disk:
            raise Violated(self.name, f"{seat}: {said}, on disk is {on_disk}: what is between may be lost")

    def root_stepped(self, server: Server, event: RootEvent, actions: Sequence[RootAction]) -> None:
        self._words(server.shard, str(server), actions)

    def _words(self, shard: int, who: str, actions: Sequence[NodeAction | RootAction]) -> None:
        ledger = self.world.ledgers[shard]
        for action in actions:
            if isinstance(action, Tell) and isinstance(action.word, Weights | Merged | Attached):
                ledger.check_durable(action.word.root, f"{who} says {type(action.word).__name__}")


class Newer(OverlayChecker):
    """Weights at hand are never replaced by older ones."""

    name = "weights get no older"

    def begin(self, world: OverlayWorld) -> None:
        super().begin(world)
        self._at: dict[tuple[int, NodeId], tuple[ShardNode, int]] = {}

    def stepped(self, seat: NodeSeat, event: NodeEvent, actions: Sequence[NodeAction]) -> None:
        clock, key = seat.core.view().model_clock, (seat.shard, seat.node)
        before = self._at.get(key)
        if before is not None and before[0] is seat.core and clock is not None and clock < before[1]:
            raise Violated(self.name, f"{seat} had weights of clock {before[1]}, and takes those of {clock}")
        if clock is None:
            self._at.pop(key, None)  # dropped: what comes next may be older
        else:
            self._at[key] = seat.core, clock


def all_checkers() -> list[OverlayChecker]:
    """Fresh ones, for one world."""
    return [ExactlyOnce(), Staleness(), Serial(), FewPushes(), Durable(), Newer(), Bounds(), Removals()]
