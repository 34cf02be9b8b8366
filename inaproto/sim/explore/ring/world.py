"""The world of hosts and accelerator (NetReduce sections 3.1 and 3.2), for the exhaustive search.

Real cores meet over real frames: ``rank_machine`` and ``switch_machine`` turn each into a table of local
steps, so a state of the world is a short tuple of numbers: a local state for each rank, that of the switch,
the packets under way on each flow, and what is left of the fault budgets.

*Network.* Each flow has three FIFO paths: data to the switch, results to the receiver, acknowledgements
back. An acknowledgement's two hops, on which the switch only forwards it (``bridge`` checks it), are one.
Results and acknowledgements to one host are not ordered among each other, although in a small network they
share a link: more orders than real, none less.

*Faults* strike a packet when it is sent: it is lost, or its copy follows right behind. A packet that is lost
later on its path is the same to everybody: who gets the packets of a path sees them in the same order, and
the sender's timer, which may expire once nothing of the flow is under way, may expire no later. With
``reorder`` a duplicate's copy, or the packet itself, leaves its path and arrives at any later time.

*Timers.* The retransmission timer of a rank may expire when nothing of its flow is under way and not all
that is unacknowledged waits in the switch for other ranks; or when nothing at all is under way. Earlier
expiries (a timer too short for a straggler) cost a unit of ``early_timers``.

*Reductions* (2 and 3: ``reduced``, compared with the full search in ``tests/sim/test_explore_ring.py``):

1. Ranks start first, in their order, always. Starting touches only the rank and its own path; starting
   later is the same as packets that are longer under way.
2. The first fault strikes flow 0. Ranks are alike but for their number, which decides only the order of
   additions, and these are integers: a run with the first fault elsewhere is such a run, renamed.
3. An acknowledgement (no NAK) that makes its rank send nothing is delivered before anything else happens.
   It commutes with all that can happen instead: other ranks and the switch do not see it; its own rank's
   results meet it only in the window, where both only count; the rank's timer cannot expire while it is under
   way. So each run of the full search has a twin here with the same end, in particular the same finished
   or stuck end, and rules once broken stay broken. Not used while a packet may still come late or a
   timer expire early, which would take away what the argument stands on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from inaproto.sim.explore.engine import TooManyStates
from inaproto.sim.explore.machine import Numbers
from inaproto.sim.explore.ring.config import RingWorldConfig
from inaproto.sim.explore.ring.live_rank import START, TIMER
from inaproto.sim.explore.ring.packet_table import PATHS, Channel, PacketTable, Path, Sent
from inaproto.sim.explore.ring.rank_machine import RankMachine
from inaproto.sim.explore.ring.steps import (
    ARRIVE_LATE,
    BEGIN,
    COPY_LATE,
    DELIVER,
    DELIVER_LATER,
    DOUBLED,
    EXPIRE,
    EXPIRE_EARLY,
    LATE,
    LOST,
    Fault,
    Step,
)
from inaproto.sim.explore.ring.switch_machine import AcceleratorMachine, SwitchMachine

State = tuple[int, ...]
"""Ranks' states, switch's state, flows' contents, extra; all are numbers into tables."""

OUTCOMES_MAX: Final = 100_000
"""Most outcomes of one step."""


class Extra(NamedTuple):
    losses: int
    duplicates: int
    early: int
    started: int
    late: tuple[tuple[Channel, int], ...]


Outcome = tuple[tuple[Fault, ...], Sent, int]
"""(faults, what goes on its path, extra)"""


class RingWorld:
    """An ``Explorable``."""

    def __init__(
        self,
        config: RingWorldConfig,
        switch: Callable[[RingWorldConfig, PacketTable], SwitchMachine] = AcceleratorMachine,
    ) -> None:
        self.config = config
        self.packets = PacketTable(config)
        self.switch = switch(config, self.packets)
        self.ranks = [RankMachine(config, self.packets, rank) for rank in range(config.ranks)]
        self._bridged: set[int] = set()
        self._flows: Numbers[tuple[tuple[int, ...], ...]] = Numbers(((), (), ()))
        self._heads: list[tuple[int, ...]] = [(-1, -1, -1)]
        self._popped: dict[tuple[int, int], int] = {}
        self._pushed: dict[tuple[int, int, int], int] = {}
        self._extras: Numbers[Extra] = Numbers()
        self._outcomes: dict[tuple[Sent, int], list[Outcome]] = {}
        self._due: dict[tuple[int, int, int], bool] = {}
        self._full = Extra(config.losses, config.duplicates, config.early_timers, 0, ())

    # -- the Explorable ------------------------------------------------------------------------

    def initial(self) -> Iterable[State]:
        ranks = self.config.ranks
        yield (0,) * ranks + (0,) + (0,) * ranks + (self._extras.of(self._full),)

    def is_fault(self, step: Step) -> bool:
        return bool(step.faults) or step.what == EXPIRE_EARLY

    def canonical(self, state: State) -> State:
        return state

    def is_finished(self, state: State) -> bool:
        ranks = self.config.ranks
        return not any(state[ranks + 1 : -1]) and all(
            machine.done[local] for machine, local in zip(self.ranks, state, strict=False)
        )

    def violation(self, state: State) -> str | None:
        for machine, local in zip(self.ranks, state, strict=False):
            if local in machine.violations:
                return machine.violations[local]
        ranks = self.config.ranks
        broken = self.switch.violations.get(state[ranks])
        if broken is not None:
            return broken
        taken_over = self.switch.newest[state[ranks]] - 2 * self.config.window
        if taken_over >= 0:
            for rank, machine in enumerate(self.ranks):
                if machine.progress[state[rank]][1] <= taken_over:
                    return f"the slots of message {taken_over} are taken over; rank {rank} lacks its result"
        return None

    def successors(self, state: State) -> list[tuple[Step, State]]:
        found: list[tuple[Step, State]] = []
        config, ranks = self.config, self.config.ranks
        extra = self._extras[state[-1]]
        if extra.started < ranks:
            machine = self.ranks[extra.started]
            to, sent = machine.step(state[extra.started], START)
            begun = self._extras.of(extra._replace(started=extra.started + 1))
            self._branch(found, BEGIN, extra.started, state, extra.started, to, sent, begun)
            return found
        settled = not (extra.early or extra.late or (config.reorder and extra.duplicates))
        if config.reduced and settled and self._eager_ack(found, state):
            return found
        contents = state[ranks + 1 : -1]
        for flow, content in enumerate(contents):
            if not content:
                continue
            data, result, ack = self._heads[content]
            base = flow * PATHS
            if data >= 0:
                to, sent = self.switch.step(state[ranks], data)
                self._deliver(found, DELIVER, base, state, ranks, to, sent)
            if result >= 0:
                self._to_rank(found, base + Path.RESULT, state, (flow + 1) % ranks, result)
            if ack >= 0:
                self._to_rank(found, base + Path.ACK, state, flow, ack)
        for flow, content in enumerate(contents):
            if self.ranks[flow].armed[state[flow]]:
                if not content and (self._is_due(flow, state[flow], state[ranks]) or not any(contents)):
                    self._expire(found, flow, state, early=False)
                elif extra.early:
                    self._expire(found, flow, state, early=True)
        for index in range(len(extra.late)):
            self._arrive_late(found, index, state, extra)
        return found

    # -- steps ---------------------------------------------------------------------------------

    def _eager_ack(self, found: list[tuple[Step, State]], state: State) -> bool:
        ranks = self.config.ranks
        for flow in range(ranks):
            ack = self._heads[state[ranks + 1 + flow]][Path.ACK]
            if ack >= 0 and not self.packets[ack].is_nak:
                to, sent = self.ranks[flow].step(state[flow], 2 * ack)
                if not sent:
                    channel = flow * PATHS + Path.ACK
                    self._deliver(found, DELIVER, channel, state, flow, to, sent)
                    return True
        return False

    def _to_rank(
        self, found: list[tuple[Step, State]], channel: Channel, state: State, rank: int, packet: int
    ) -> None:
        machine = self.ranks[rank]
        soon = machine.step(state[rank], 2 * packet)
        self._deliver(found, DELIVER, channel, state, rank, *soon)
        if self.packets[packet].is_nak:
            later = machine.step(state[rank], 2 * packet + 1)
            if later != soon:
                self._deliver(found, DELIVER_LATER, channel, state, rank, *later)

    def _deliver(
        self,
        found: list[tuple[Step, State]],
        what: int,
        channel: Channel,
        state: State,
        component: int,
        to: int,
        sent: Sent,
    ) -> None:
        """The head of ``channel`` reaches ``component``, which goes to its state ``to``."""
        at = self.config.ranks + 1 + channel // PATHS
        key = (state[at], channel % PATHS)
        rest = self._popped.get(key)
        if rest is None:
            rest = self._pop(*key)
        shorter = (*state[:at], rest, *state[at + 1 :])
        self._branch(found, what, channel, shorter, component, to, sent, state[-1])

    def _expire(self, found: list[tuple[Step, State]], flow: int, state: State, *, early: bool) -> None:
        to, sent = self.ranks[flow].step(state[flow], TIMER)
        extra = state[-1]
        if early:
            before = self._extras[extra]
            if self._spares(before, flow):
                return
            extra = self._extras.of(before._replace(early=before.early - 1))
        self._branch(found, EXPIRE_EARLY if early else EXPIRE, flow, state, flow, to, sent, extra)

    def _is_due(self, flow: int, local: int, switch: int) -> bool:
        """Whether something unacknowledged of a flow with nothing under way does not wait in the switch."""
        key = (flow, local, switch)
        due = self._due.get(key)
        if due is None:
            due = self._due[key] = not all(
                self.switch.holds(switch, flow, message, offset)
                for message, offset in self.ranks[flow].unacknowledged(local)
            )
        return due

    def _arrive_late(self, found: list[tuple[Step, State]], index: int, state: State, extra: Extra) -> None:
        channel, packet = extra.late[index]
        flow, path = divmod(channel, PATHS)
        ranks = self.config.ranks
        rest = self._extras.of(extra._replace(late=extra.late[:index] + extra.late[index + 1 :]))
        if path == Path.DATA:
            component, (to, sent) = ranks, self.switch.step(state[ranks], packet)
        else:
            component = flow if path == Path.ACK else (flow + 1) % ranks
            to, sent = self.ranks[component].step(state[component], 2 * packet + 1)
        self._branch(found, ARRIVE_LATE, index, state, component, to, sent, rest)

    # -- outcomes of a step --------------------------------------------------------------------

    def _branch(
        self,
        found: list[tuple[Step, State]],
        what: int,
        where: int,
        state: State,
        component: int,
        to: int,
        sent: Sent,
        extra: int,
    ) -> None:
        """Add the step without faults, and with each choice of faults for what was sent."""
        after = list(state)
        after[component] = to
        after[-1] = extra
        budget = self._extras[extra]
        if not sent:
            found.append((Step(what, where), tuple(after)))
            return
        if not (budget.losses or budget.duplicates):
            self._put(after, sent)
            found.append((Step(what, where), tuple(after)))
            return
        outcomes = self._outcomes.get((sent, extra))
        if outcomes is None:
            outcomes = self._outcomes[sent, extra] = list(self._choices(sent, budget))
        for faults, put, left in outcomes:
            with_faults = after.copy()
            with_faults[-1] = left
            self._put(with_faults, put)
            found.append((Step(what, where, faults), tuple(with_faults)))

    def _put(self, state: list[int], sent: Sent) -> None:
        base = self.config.ranks + 1
        for channel, packet in sent:
            flow, path = divmod(channel, PATHS)
            key = (state[base + flow], path, packet)
            content = self._pushed.get(key)
            if content is None:
                content = self._push(*key)
            state[base + flow] = content

    def _choices(self, sent: Sent, budget: Extra) -> Iterable[Outcome]:
        """All ways in which faults can strike ``sent``; no fault first."""
        partial: list[tuple[tuple[Fault, ...], Sent, Extra]] = [((), (), budget)]
        for index, (channel, packet) in enumerate(sent):
            longer = []
            for faults, put, left in partial:
                item = (channel, packet)
                longer.append((faults, (*put, item), left))
                if self._spares(left, channel // PATHS) or self._is_safe(channel):
                    continue
                if left.losses:
                    less = left._replace(losses=left.losses - 1)
                    longer.append(((*faults, Fault(LOST, index)), put, less))
                if left.duplicates:
                    less = left._replace(duplicates=left.duplicates - 1)
                    if self.config.reorder:
                        less = less._replace(late=tuple(sorted((*less.late, item))))
                        longer.append(((*faults, Fault(COPY_LATE, index)), (*put, item), less))
                        longer.append(((*faults, Fault(LATE, index)), put, less))
                    else:
                        longer.append(((*faults, Fault(DOUBLED, index)), (*put, item, item), less))
            partial = longer
            if len(partial) > OUTCOMES_MAX:
                raise TooManyStates(
                    f"one step sends {len(sent)} packets, which the faults can strike in more than "
                    f"{OUTCOMES_MAX:,} ways: choose a smaller world"
                )
        for faults, put, left in partial:
            yield faults, put, self._extras.of(left)

    def _spares(self, left: Extra, flow: int) -> bool:
        """Whether a first fault may not strike there: reduction 2."""
        full = self._full
        untouched = (left.losses, left.duplicates, left.early) == (full.losses, full.duplicates, full.early)
        return self.config.reduced and untouched and flow != 0

    def _is_safe(self, channel: Channel) -> bool:
        return self.config.spare_acks and channel % PATHS == Path.ACK

    # -- tables --------------------------------------------------------------------------------

    def _flow(self, content: tuple[tuple[int, ...], ...]) -> int:
        number = self._flows.of(content)
        if number == len(self._heads):
            self._heads.append(tuple(path[0] if path else -1 for path in content))
        return number

    def _pop(self, flow: int, path: int) -> int:
        content = list(self._flows[flow])
        content[path] = content[path][1:]
        number = self._popped[flow, path] = self._flow(tuple(content))
        return number

    def _push(self, flow: int, path: int, packet: int) -> int:
        if path == Path.ACK and packet not in self._bridged:
            self.switch.bridge(packet)
            self._bridged.add(packet)
        content = list(self._flows[flow])
        content[path] = (*content[path], packet)
        number = self._pushed[flow, path, packet] = self._flow(tuple(content))
        return number

    # -- words ---------------------------------------------------------------------------------

    def head(self, state: State, channel: Channel) -> int:
        """The packet that ``channel`` delivers next."""
        return self._heads[state[self.config.ranks + 1 + channel // PATHS]][channel % PATHS]

    def late(self, state: State) -> tuple[tuple[Channel, int], ...]:
        return self._extras[state[-1]].late

    def local_event(self, state: State, step: Step) -> tuple[int, int]:
        """(component, its event): a rank and an event of ``rank_machine``, or ``ranks`` and a packet."""
        ranks = self.config.ranks
        if step.what == BEGIN:
            return step.where, START
        if step.what in (EXPIRE, EXPIRE_EARLY):
            return step.where, TIMER
        late = step.what == ARRIVE_LATE
        channel, packet = self.late(state)[step.where] if late else (step.where, self.head(state, step.where))
        flow, path = divmod(channel, PATHS)
        if path == Path.DATA:
            return ranks, packet
        rank = flow if path == Path.ACK else (flow + 1) % ranks
        return rank, 2 * packet + (late or step.what == DELIVER_LATER)

    def sent(self, state: State, step: Step) -> Sent:
        """What the component sends in the step, before faults strike."""
        component, event = self.local_event(state, step)
        machine = self.switch if component == self.config.ranks else self.ranks[component]
        return machine.step(state[component], event)[1]

    def describe(self, run: Sequence[tuple[State, Step]]) -> list[str]:
        from inaproto.sim.explore.ring.words import describe

        return describe(self, run)
