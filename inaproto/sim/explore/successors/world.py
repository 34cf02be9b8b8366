"""All orders of events of a job of two hosts, whose daemons may die at any moment and be replaced.

Each host is the product's (:mod:`~inaproto.sim.explore.successors.host`), and so is the control plane of the
switch; the ring is the hosts' own (``chain``), or goes through a switch that adds message by message, which
is a stand-in as small as that (``auto``). Runs begin when all hosts are ready and the start has been said.
What can happen next:

- a process calls its next all-reduce, or leaves when all have ended; a message lands, and is dealt with; its
  acknowledgement is; a message whose receiver is no more is given up by the NIC;
- the control plane hears the next word of a host, a host the next word of the control plane, each in the
  order in which they were said; or the control plane notices the end of a session, and loses what it had not
  heard;
- a daemon dies: between two orders, between two stores into its journal, in the middle of a store of several
  words or of a copy. What it had said and sent by then is on its way;
- a successor begins; ranks come back to it, in any order, and it to the switch, before or after that has
  noticed the death of its predecessor;
- time passes until somebody's wait ends: if nothing else can happen, or within a budget at any moment.

Checked in every state: who has heard of the end of an all-reduce has its result, and keeps it; results are
taken once, in order; nobody is to blame; what a daemon leaves is read, and is true; a job ends once for each
rank, and well, where one daemon dies that has a successor and no wait ends early. And from every state all
ranks can end, with all results or a named error, without further faults, and no run goes on for ever.

What is assumed: a host deals with one completion at a time; data that are on their way when their sender dies
land or do not; data land in one piece. The NIC reads what it is to send when that is posted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from inaproto.core.host.local_reduction import reduce_parts
from inaproto.core.rendezvous.control_plane import ControlAction
from inaproto.core.rendezvous.events import (
    HostArrived,
    MemberAsked,
    MemberBroken,
    MemberCalls,
    MemberGone,
    MemberHalted,
    MemberLeft,
    MemberReady,
    RefuseHost,
    Send,
    SessionEnded,
    SessionId,
    WelcomeHost,
    Woke,
)
from inaproto.core.rendezvous.fabric.events import Installed, Order
from inaproto.core.rendezvous.jobs import Phase
from inaproto.core.switch.accelerator import InstallRing
from inaproto.errors import Blame
from inaproto.sim.explore.machine import Local, Numbers
from inaproto.sim.explore.successors.config import BOOT, FAR_NS, JOB, MTU, SuccessorsConfig
from inaproto.sim.explore.successors.host import LIVES, Did, Event, Stage
from inaproto.sim.explore.successors.machines import ControlMachine, HostMachine
from inaproto.sim.explore.successors.nic import Sent
from inaproto.wire.control_messages import (
    Broken,
    Calls,
    Gone,
    Halted,
    Hello,
    Left,
    Member,
    Message,
    Ready,
    Welcome,
)
from inaproto.wire.ina_header import FLAG_RESULT, INA_HEADER_BYTES, Dtype, InaHeader, Op

ASSUMED: Final = (
    "a host deals with one completion at a time; data on their way when their sender dies land or do not, "
    "whole; a copy stops before it, in its middle or behind it; waits end when nothing else can happen, but "
    "for expiries; runs begin when all are ready; all ranks of a host hear that the job has begun, or none"
)
State = tuple[int, ...]
RING_KEY: Final = 7
HOSTS: Final = 2
CONTROL, SAID, TOLD, WIRES, RINGS, NOW, BUDGET, BROKEN = 2, 3, 5, 7, 9, 10, 11, 12
"""Places of a state. Hosts come first; of what is said, told and sent there is one of each for each host."""


class Step(NamedTuple):
    what: str
    host: int = -1
    event: Any = None
    which: int = 0
    is_fault: bool = False


class Budget(NamedTuple):
    crashes: int
    gone: int
    expiries: int


class Talk(NamedTuple):
    """What a daemon of a host has said to the control plane, that has not been heard."""

    session: int
    words: tuple[int, ...]
    has_ended: bool = False


class Wire(NamedTuple):
    """What a host has sent: on its way, and what is there and not acknowledged."""

    flying: tuple[int, ...] = ()
    landed: tuple[tuple[int, int, int], ...] = ()
    """Queue pair, the one of the receiver, work request."""


class SuccessorsExplored:
    """An :class:`~inaproto.sim.explore.engine.Explorable`."""

    def __init__(self, config: SuccessorsConfig) -> None:
        self.config = config
        self.hosts = [HostMachine(config, number) for number in range(HOSTS)]
        self.control = ControlMachine()
        self.messages: Numbers[Message] = Numbers()
        self.sent: Numbers[Sent] = Numbers()
        self.talks: Numbers[tuple[Talk, ...]] = Numbers(())
        self.queues: Numbers[tuple[int, ...]] = Numbers(())
        self.wires: Numbers[Wire] = Numbers(Wire())
        self.rings: Numbers[frozenset[int]] = Numbers(frozenset())
        self.budgets: Numbers[Budget] = Numbers(Budget(config.crashes, config.gone, config.expiries))
        self.words: Numbers[str] = Numbers("")
        self._ends_well = config.crashes < 2 and not (config.gone or config.expiries)
        """Else the job may fail; also when its ring breaks twice and nothing came in between."""
        self._first = self._started()

    def _started(self) -> State:
        """All have joined, and are told to start."""
        state: State = (*(its.start for its in self.hosts), self.control.start, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        while not self._has_started(state):
            _, state = next(it for it in self.successors(state) if not it[0].is_fault)
            assert not state[BROKEN], self.words[state[BROKEN]]
        return state

    def _has_started(self, state: State) -> bool:
        job = self.control.cores[state[CONTROL]]._rendezvous._state.jobs.get(JOB)
        return job is not None and job.phase is Phase.RUNNING

    def covered(self) -> dict[str, str]:
        """What a search has seen, when it is over."""
        return {
            "local states": ", ".join(f"h{at} {len(its):,}" for at, its in enumerate(self.hosts))
            + f", control plane {len(self.control):,}",
            "deaths over": ", ".join(f"{its.dying:,} steps of h{at}" for at, its in enumerate(self.hosts)),
            "left by them": ", ".join(
                f"{its.lefts:,} memories of h{at}" for at, its in enumerate(self.hosts)
            ),
        }

    # --- as the engine has it

    def initial(self) -> Iterable[State]:
        return [self._first]

    def violation(self, state: State) -> str | None:
        return self.words[state[BROKEN]] or None

    def is_finished(self, state: State) -> bool:
        return all(machine.facts[local].is_over for machine, local in zip(self.hosts, state, strict=False))

    def is_fault(self, step: Step) -> bool:
        return step.is_fault

    def canonical(self, state: State) -> State:
        return state

    def describe(self, run: Sequence[tuple[State, Step]]) -> list[str]:
        from inaproto.sim.explore.successors.words import told

        return [told(self, state, step) for state, step in run]

    def successors(self, state: State) -> list[tuple[Step, State]]:
        if self.is_finished(state):
            return []
        found: list[tuple[Step, State]] = []
        for number in range(HOSTS):
            self._of_control(found, state, number)
            for event, before in self._events(state, number):
                self._host_step(found, before, number, event)
        self._sum(found, state)
        budget = self.budgets[state[BUDGET]]
        now, due = state[NOW], self._due(state)
        if self.control.dues[state[CONTROL]] <= now:
            self._control_step(found, Step("control wakes"), list(state), Woke())
        has_more = any(not step.is_fault for step, _ in found)
        if due < FAR_NS and (not has_more or budget.expiries):
            after = list(state)
            after[NOW] = due
            if has_more:
                after[BUDGET] = self.budgets.of(budget._replace(expiries=budget.expiries - 1))
            found.append((Step("time passes", which=due, is_fault=has_more), tuple(after)))
        if budget.crashes:
            self._crashes(found, state, budget)
        return found

    # --- what happens at a host

    def _events(self, state: State, number: int) -> list[tuple[Event, State]]:
        """Each with the state in which what it needs is taken away."""
        facts = self.hosts[number].facts[state[number]]
        found: list[tuple[Event, State]] = [(event, state) for event in facts.options]
        if facts.is_refused and any(talk.has_ended for talk in self.talks[state[SAID + number]]):
            # Until the switch has noticed that its predecessor is dead, it would be refused again.
            found = [its for its in found if its[0] != ("connects",)]
        if facts.is_over:
            return found
        if facts.until <= state[NOW]:
            found.append((("gives_up",), state))
        if facts.stage is Stage.DOWN:
            return found
        if facts.due <= state[NOW] < facts.until:
            found.append((("wakes",), state))
        queue = self.queues[state[TOLD + number]]
        if queue:
            rest = self._put(state, TOLD + number, self.queues.of(queue[1:]))
            found.append((("hears", self.messages[queue[0]]), rest))
        self._landing(found, state, number)
        self._of_sender(found, state, number)
        return found

    def _landing(self, found: list[tuple[Event, State]], state: State, number: int) -> None:
        """The first message of each connection to it may land."""
        peers = self.hosts[number].facts[state[number]].peers
        sender = 1 - number
        senders_peers = self.hosts[sender].facts[state[sender]].peers
        wire = self.wires[state[WIRES + sender]]
        seen: set[int] = set()
        for at, its in enumerate(wire.flying):
            sent = self.sent[its]
            if sent.to in seen:
                continue
            seen.add(sent.to)
            if peers.get(sent.to) != sent.qpn or (self._is_to_sum(sent)):
                continue
            landed = wire.landed
            if sent.qpn in senders_peers:
                landed = (*landed, (sent.qpn, sent.to, sent.wr_id))
            after = Wire(wire.flying[:at] + wire.flying[at + 1 :], landed)
            found.append((("lands", sent), self._put(state, WIRES + sender, self.wires.of(after))))

    def _of_sender(self, found: list[tuple[Event, State]], state: State, number: int) -> None:
        """Its NIC hears that a message is there, or gives it up, for its receiver is not."""
        wire = self.wires[state[WIRES + number]]
        peers = self.hosts[1 - number].facts[state[1 - number]].peers
        own = self.hosts[number].facts[state[number]].peers
        if wire.landed:
            qpn, _, wr_id = wire.landed[0]
            after = self.wires.of(wire._replace(landed=wire.landed[1:]))
            found.append((("acknowledged", qpn, wr_id), self._put(state, WIRES + number, after)))
        lacking = [
            *wire.landed,
            *((it.qpn, it.to, it.wr_id) for it in map(self.sent.__getitem__, wire.flying)),
        ]
        for qpn in dict.fromkeys(qpn for qpn, _, _ in lacking if qpn in own):
            to, wr_id = next((to, wr_id) for its, to, wr_id in lacking if its == qpn)
            is_lost = any(
                it.qpn == qpn and self._is_to_sum(it) and not self._has_ring(state, it)
                for it in map(self.sent.__getitem__, wire.flying)
            )
            if to in peers and not is_lost:
                continue
            flying = tuple(its for its in wire.flying if self.sent[its].qpn != qpn)
            rest = self.wires.of(Wire(flying, tuple(its for its in wire.landed if its[0] != qpn)))
            found.append((("fails", qpn, wr_id), self._put(state, WIRES + number, rest)))

    def _host_step(self, found: list[tuple[Step, State]], state: State, number: int, event: Event) -> None:
        local, did = self.hosts[number].step(state[number], event, state[NOW])
        found.append((Step("host", number, event), self._after(state, number, local, did)))

    def _after(self, state: State, number: int, local: Local, did: Did, *, dies: bool = False) -> State:
        after = list(state)
        after[number] = local
        facts = self.hosts[number].facts[local]
        talks = self.talks[after[SAID + number]]
        for message in did.said:
            talks = _said(talks, did.session, self.messages.of(message))
        if dies:
            talks = tuple(it._replace(has_ended=True) for it in talks)
            if did.session and all(it.session != did.session for it in talks):
                talks = (*talks, Talk(did.session, (), True))
            after[TOLD + number] = 0
        after[SAID + number] = self.talks.of(talks)
        if did.sent:
            wire = self.wires[after[WIRES + number]]
            flying = (*wire.flying, *(self.sent.of(its) for its in did.sent))
            after[WIRES + number] = self.wires.of(wire._replace(flying=flying))
        others = self.hosts[1 - number].facts[after[1 - number]]
        lacking = [serial for serial in facts.kept.overwritten if serial >= others.kept.progress]
        if facts.broken:
            after[BROKEN] = self.words.of(facts.broken)
        elif facts.lost and self._ends_well:
            rule = "a job one of whose daemons is replaced in time ends well"
            after[BROKEN] = self.words.of(f"{rule}: {facts.lost}")
        elif lacking and not others.is_over:
            rule = "what another may lack is kept"
            after[BROKEN] = self.words.of(f"{rule}: result {lacking[0]} of h{number} is overwritten")
        return self._tidied(after)

    def _tidied(self, after: list[int]) -> State:
        """What nobody will hear of is nothing; what can be summed is."""
        peers = [machine.facts[local].peers for machine, local in zip(self.hosts, after, strict=False)]
        for number in range(HOSTS):
            wire = self.wires[after[WIRES + number]]
            own, others = peers[number], peers[1 - number]
            flying = tuple(its for its in wire.flying if self._is_alive(self.sent[its], own, others))
            landed = tuple(its for its in wire.landed if its[0] in own)
            after[WIRES + number] = self.wires.of(Wire(flying, landed))
            if self.hosts[number].facts[after[number]].is_over:
                after[TOLD + number] = 0
        return tuple(after)

    def _is_alive(self, sent: Sent, own: dict[int, int], others: dict[int, int]) -> bool:
        return sent.to in others or sent.qpn in own

    # --- a switch that sums

    def _is_to_sum(self, sent: Sent) -> bool:
        return self.config.path == "auto" and not sent.is_sum

    def _has_ring(self, state: State, sent: Sent) -> bool:
        return InaHeader.decode(sent.data[:INA_HEADER_BYTES]).ring_id in self.rings[state[RINGS]]

    def _sum(self, found: list[tuple[Step, State]], state: State) -> None:
        """The next message of each of the hosts is there."""
        if self.config.path != "auto":
            return
        wires = [self.wires[state[WIRES + number]] for number in range(HOSTS)]
        heads = [
            next((at for at, its in enumerate(wire.flying) if not self.sent[its].is_sum), -1)
            for wire in wires
        ]
        if min(heads) < 0:
            return
        parts = [self.sent[wire.flying[at]] for wire, at in zip(wires, heads, strict=True)]
        if parts[0].imm != parts[1].imm or not all(self._has_ring(state, part) for part in parts):
            return
        header = InaHeader.decode(parts[0].data[:INA_HEADER_BYTES])
        total = memoryview(bytearray(len(parts[0].data) - INA_HEADER_BYTES))
        payloads = [memoryview(part.data)[INA_HEADER_BYTES:] for part in parts]
        reduce_parts(Dtype(header.dtype), Op(header.op), payloads, total)
        after = list(state)
        for number in range(HOSTS):
            own = InaHeader.decode(parts[number].data[:INA_HEADER_BYTES])
            head = replace(own, flags=own.flags | FLAG_RESULT).encode()
            its = self.sent.of(parts[number]._replace(data=head + bytes(total), is_sum=True))
            flying = list(wires[number].flying)
            flying[heads[number]] = its
            after[WIRES + number] = self.wires.of(wires[number]._replace(flying=tuple(flying)))
        found.append((Step("switch sums"), tuple(after)))

    # --- the control plane

    def _of_control(self, found: list[tuple[Step, State]], state: State, number: int) -> None:
        talks = self.talks[state[SAID + number]]
        for at, talk in enumerate(talks):
            rest = [*talks]
            if talk.words:
                rest[at] = talk._replace(words=talk.words[1:])
                event = self._heard(talk.session, self.messages[talk.words[0]])
                self._control_step(
                    found,
                    Step("control hears", number, which=talk.words[0]),
                    self._with_talks(state, number, rest),
                    event,
                )
            if talk.has_ended:
                gone = SessionEnded(SessionId(talk.session), "it closed the connection")
                del rest[at]
                self._control_step(
                    found, Step("control notices", number), self._with_talks(state, number, rest), gone
                )

    def _with_talks(self, state: State, number: int, talks: Sequence[Talk]) -> list[int]:
        after = list(state)
        after[SAID + number] = self.talks.of(tuple(its for its in talks if its.words or its.has_ended))
        return after

    def _heard(self, number: int, message: Message) -> Any:
        session = SessionId(number)
        match message:
            case Hello():
                return HostArrived(session, message)
            case Member():
                return MemberAsked(session, message, RING_KEY)
            case Halted():
                return MemberHalted(session, message, RING_KEY)
            case Ready():
                return MemberReady(session, message)
            case Left():
                return MemberLeft(session, message)
            case Gone():
                return MemberGone(session, message)
            case Broken():
                return MemberBroken(session, message)
            case Calls():
                return MemberCalls(session, message)
            case _:
                raise AssertionError(message)

    def _control_step(
        self, found: list[tuple[Step, State]], step: Step, after: list[int], event: Any
    ) -> None:
        pending = [event]
        while pending:
            after[CONTROL], actions = self.control.step(after[CONTROL], pending.pop(0), after[NOW])
            for action in actions:
                pending += self._obey(after, action)
        found.append((step, self._tidied(after)))

    def _obey(self, after: list[int], action: ControlAction) -> list[Any]:
        match action:
            case Send(session, message):
                self._tell(after, session, message)
            case WelcomeHost(session, hello_id):
                self._tell(after, session, Welcome(id=hello_id, boot_id=BOOT, port_path="", mtu_max=MTU))
            case RefuseHost(session, error):
                self._tell(after, session, error)
            case Order(switch, order):
                rings = self.rings[after[RINGS]]
                if isinstance(order, InstallRing):
                    after[RINGS] = self.rings.of(rings | {order.spec.ring_id})
                    return [Installed(switch, order.spec.ring_id)]
                after[RINGS] = self.rings.of(rings - {order.ring_id})
            case Blame():
                after[BROKEN] = self.words.of(f"nobody is to blame: the control plane blames {action}")
            case _:
                pass
        return []

    def _tell(self, after: list[int], session: int, message: Message) -> None:
        number = (session - 1) // LIVES
        facts = self.hosts[number].facts[after[number]]
        if facts.has_session == session and not facts.is_over:
            queue = self.queues[after[TOLD + number]]
            after[TOLD + number] = self.queues.of((*queue, self.messages.of(message)))

    # --- faults, and time

    def _crashes(self, found: list[tuple[Step, State]], state: State, budget: Budget) -> None:
        for number in range(HOSTS):
            machine = self.hosts[number]
            if not machine.facts[state[number]].may_die:
                continue
            resting = machine.deaths(state[number], ("nothing",), state[NOW])
            self._deaths(found, state, number, ("nothing",), resting, budget)
            for event, before in self._events(state, number):
                deaths = machine.deaths(state[number], event, state[NOW])
                more = [death for death in deaths if death not in resting]
                self._deaths(found, before, number, event, more, budget)

    def _deaths(
        self,
        found: list[tuple[Step, State]],
        state: State,
        number: int,
        event: Event,
        deaths: Sequence[tuple[Local, Did]],
        budget: Budget,
    ) -> None:
        for which, (local, did) in enumerate(deaths):
            after = list(self._after(state, number, local, did, dies=True))
            after[BUDGET] = self.budgets.of(budget._replace(crashes=budget.crashes - 1))
            found.append((Step("dies", number, event, which, is_fault=True), tuple(after)))
            if budget.gone:
                gone = list(self._after(state, number, self.hosts[number].for_good(local), did, dies=True))
                gone[BUDGET] = self.budgets.of(
                    budget._replace(crashes=budget.crashes - 1, gone=budget.gone - 1)
                )
                found.append((Step("dies for good", number, event, which, is_fault=True), tuple(gone)))

    def _due(self, state: State) -> int:
        """The next moment at which somebody's wait ends."""
        now = state[NOW]
        dues = [machine.facts[local].due for machine, local in zip(self.hosts, state, strict=False)]
        return min((at for at in (*dues, self.control.dues[state[CONTROL]]) if at > now), default=FAR_NS)

    def _put(self, state: State, place: int, value: int) -> State:
        return (*state[:place], value, *state[place + 1 :])


def _said(talks: tuple[Talk, ...], session: int, word: int) -> tuple[Talk, ...]:
    for at, talk in enumerate(talks):
        if talk.session == session and not talk.has_ended:
            return (*talks[:at], talk._replace(words=(*talk.words, word)), *talks[at + 1 :])
    return (*talks, Talk(session, (word,)))
