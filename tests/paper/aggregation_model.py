"""A small model of NetReduce's ring, window and accelerator, in which the paper's open points are choices.

NetReduce section 3.2 can be read in several ways at two places: how many messages the connection
lookup table keeps for a connection, and what "deallocate" clears. The model makes each reading a
parameter and nothing else differs, so that scripted runs and exhaustive search can settle which
readings hold. The product implements one of them; its own tests are elsewhere.

What is modelled: W ranks, message window N, messages of L packets (the last may be short), go-back-N
with cumulative acknowledgement, one FIFO path to and from the accelerator per flow, PSNs of a few
bits. What is abstracted: payloads are the message they belong to, so a wrong sum is visible as one;
acknowledgements arrive at once; a sender goes back when nothing of its flow is under way any more.
``inaproto explore --variant`` has the same readings between real hosts, where acknowledgements are packets
like others and can be lost.
Faults: packets lost before or after the accelerator, and packets duplicated with the copy arriving
at any later time.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from inaproto.sim.explore.ring.paper_switch import Freeing, Lookup

T = TypeVar("T")


@dataclass(frozen=True)
class Rules:
    ranks: int
    window: int
    lengths: tuple[int, ...]
    """Packets of each message."""
    length_max: int
    psn_bits: int
    lookup: Lookup
    freeing: Freeing
    queue_max: int = 2
    """Packets on one path at once."""
    faulty_flows: tuple[int, ...] | None = None
    """Flows on which packets are lost or duplicated; all if None. One fault may be fixed to flow 0: ranks
    are alike, so every run with it elsewhere is such a run with the ranks renamed."""

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First sequence number of each message, and the end."""
        starts = [0]
        for length in self.lengths:
            starts.append(starts[-1] + length)
        return tuple(starts)

    @cached_property
    def _places(self) -> tuple[tuple[int, int], ...]:
        return tuple((m, o) for m, length in enumerate(self.lengths) for o in range(length))

    def message_of(self, sequence: int) -> tuple[int, int]:
        """(message, offset) of an unwrapped sequence number."""
        return self._places[sequence]


Payloads = tuple[int, ...]
"""For each rank the message whose payload is in a slot, -1 for none."""


class Slot(NamedTuple):
    payloads: Payloads
    bits: tuple[bool, ...]
    tenant: int = -1


class State(NamedTuple):
    next_send: tuple[int, ...]
    """Per flow, the sequence number that its sender sends next."""
    received: tuple[int, ...]
    """Per flow, how many results its receiver (rank + 1) has taken, in order."""
    inputs: tuple[tuple[int, ...], ...]
    """Per flow, sequence numbers on their way to the accelerator."""
    outputs: tuple[tuple[tuple[int, Payloads], ...], ...]
    """Per flow, (sequence number, sum) on their way to the receiver."""
    late: tuple[tuple[int, int], ...]
    """(flow, sequence number) of duplicates that are still somewhere."""
    table: tuple[tuple[tuple[int, int], ...], ...]
    """Per flow, (message, PSN of its first packet), latest last."""
    slots: tuple[Slot, ...]
    losses: int
    duplicates: int
    wrong: bool = False
    """A receiver took a sum that mixes messages."""


Step = tuple[str, int]
"""What happens, on which flow (or which late duplicate)."""


def initial(rules: Rules, *, losses: int, duplicates: int) -> State:
    empty = Slot((-1,) * rules.ranks, (False,) * rules.ranks)
    zeros = (0,) * rules.ranks
    nothing: tuple[tuple[()], ...] = ((),) * rules.ranks
    slots = (empty,) * (2 * rules.window * rules.length_max)
    return State(zeros, zeros, nothing, nothing, (), nothing, slots, losses, duplicates)


def finished(rules: Rules, state: State) -> bool:
    return all(count == rules.starts[-1] for count in state.received)


def steps(rules: Rules, state: State) -> Iterator[Step]:
    """All that can happen next."""
    for flow in range(rules.ranks):
        faulty = rules.faulty_flows is None or flow in rules.faulty_flows
        if _may_send(rules, state, flow):
            yield "send", flow
        if state.next_send[flow] > state.received[flow] and not (state.inputs[flow] or state.outputs[flow]):
            yield "go back", flow
        if state.inputs[flow]:
            yield "arrive", flow
            if faulty and state.losses:
                yield "lose input", flow
            if faulty and state.duplicates:
                yield "duplicate", flow
        if state.outputs[flow]:
            yield "receive", flow
            if faulty and state.losses:
                yield "lose result", flow
    for index in range(len(state.late)):
        yield "late", index


def _may_send(rules: Rules, state: State, rank: int) -> bool:
    """NetReduce flow control: message m only with the whole result of m - N in hand."""
    sequence = state.next_send[rank]
    if sequence >= rules.starts[-1] or len(state.inputs[rank]) >= rules.queue_max:
        return False
    message, _ = rules.message_of(sequence)
    need = message - rules.window
    predecessor = (rank - 1) % rules.ranks
    return need < 0 or state.received[predecessor] >= rules.starts[need + 1]


def perform(rules: Rules, state: State, step: Step) -> State:
    """The state after ``step``, which must be one of ``steps``."""
    kind, flow = step
    match kind:
        case "send":
            sequence = state.next_send[flow]
            return state._replace(
                next_send=_put(state.next_send, flow, sequence + 1),
                inputs=_put(state.inputs, flow, (*state.inputs[flow], sequence)),
            )
        case "go back":
            return state._replace(next_send=_put(state.next_send, flow, state.received[flow]))
        case "lose input":
            return state._replace(
                inputs=_put(state.inputs, flow, state.inputs[flow][1:]), losses=state.losses - 1
            )
        case "lose result":
            return state._replace(
                outputs=_put(state.outputs, flow, state.outputs[flow][1:]), losses=state.losses - 1
            )
        case "duplicate":
            late = tuple(sorted((*state.late, (flow, state.inputs[flow][0]))))
            return state._replace(late=late, duplicates=state.duplicates - 1)
        case "arrive":
            sequence = state.inputs[flow][0]
            shorter = state._replace(inputs=_put(state.inputs, flow, state.inputs[flow][1:]))
            return _accelerate(rules, shorter, flow, sequence)
        case "late":
            origin, sequence = state.late[flow]
            rest = state.late[:flow] + state.late[flow + 1 :]
            return _accelerate(rules, state._replace(late=rest), origin, sequence)
        case "receive":
            return _receive(rules, state, flow)
        case _:
            raise AssertionError(kind)


def _put(items: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*items[:index], value, *items[index + 1 :])


def _receive(rules: Rules, state: State, flow: int) -> State:
    (sequence, payloads), rest = state.outputs[flow][0], state.outputs[flow][1:]
    state = state._replace(outputs=_put(state.outputs, flow, rest))
    if sequence != state.received[flow]:
        return state
    message, _ = rules.message_of(sequence)
    return state._replace(
        received=_put(state.received, flow, sequence + 1),
        wrong=state.wrong or any(payload != message for payload in payloads),
    )


def _locate(rules: Rules, state: State, flow: int, sequence: int) -> tuple[State, int, int] | None:
    """(state with the table updated, believed message, slot), or None where the packet cannot be placed."""
    psn_mask = (1 << rules.psn_bits) - 1
    psn = sequence & psn_mask
    message, offset = rules.message_of(sequence)
    size = 2 * rules.window * rules.length_max
    entries = state.table[flow]
    if offset == 0:
        keep = 2 * rules.window if rules.lookup is Lookup.WINDOW else 1
        if rules.lookup is Lookup.WINDOW:
            entries = tuple(e for e in entries if e[0] > message - keep and e[0] != message)
        elif rules.lookup is not Lookup.ONE_LATEST_NEGATIVE or not entries or entries[0][0] < message:
            entries = ()
        entries = tuple(sorted((*entries, (message, psn))))[-keep:]
        state = state._replace(table=_put(state.table, flow, entries))
        return state, message, (message % (2 * rules.window)) * rules.length_max
    for known, psn0 in entries:
        distance = (psn - psn0) & psn_mask
        if rules.lookup is Lookup.WINDOW:
            in_reach = distance < rules.lengths[known]
        elif rules.lookup is Lookup.ONE:
            in_reach = distance < rules.length_max
        else:
            if distance > psn_mask >> 1:
                distance -= psn_mask + 1
            in_reach = -rules.window * rules.length_max <= distance < rules.length_max
        if in_reach:
            linear = ((known % (2 * rules.window)) * rules.length_max + distance) % size
            return state, known + distance // rules.length_max, linear
    return None


def _accelerate(rules: Rules, state: State, flow: int, sequence: int) -> State:
    """One packet through lookup, freeing and aggregation; results go out when their slot is full."""
    place = _locate(rules, state, flow, sequence)
    if place is None:
        return state
    state, believed, index = place
    truth, _ = rules.message_of(sequence)
    slots = state.slots
    slot = slots[index]
    size = len(slots)
    if rules.freeing is Freeing.TENANT:
        if believed < slot.tenant:
            return state
        if believed > slot.tenant:
            slot = Slot((-1,) * rules.ranks, (False,) * rules.ranks, believed)
    else:
        away = (index + rules.window * rules.length_max) % size
        other = slots[away]
        if rules.freeing is Freeing.CLEAR_SLOT:
            other = other._replace(bits=(False,) * rules.ranks)
        else:
            other = other._replace(bits=_put(other.bits, flow, False))
        slots = _put(slots, away, other)
    before = all(slot.bits)
    kept = rules.freeing is Freeing.TENANT and before
    payloads = slot.payloads if kept else _put(slot.payloads, flow, truth)
    slot = slot._replace(payloads=payloads, bits=_put(slot.bits, flow, True))
    state = state._replace(slots=_put(slots, index, slot))
    if not all(slot.bits):
        return state
    # A slot that just became full answers everybody; one that was full answers the sender alone.
    flows = (flow,) if before else tuple(range(rules.ranks))
    outputs = state.outputs
    for target in flows:
        if len(outputs[target]) < rules.queue_max:
            outputs = _put(outputs, target, (*outputs[target], (sequence, slot.payloads)))
    return state._replace(outputs=outputs)


@dataclass(frozen=True, slots=True)
class Verdict:
    states: int
    wrong: list[Step] | None
    """Shortest run to a wrong sum, if there is one."""
    stuck: list[Step] | None
    """Shortest run to a state from which the ring can never finish, if there is one."""


@contextmanager
def _uncollected() -> Iterator[None]:
    """Hundreds of thousands of states, all kept and none in a cycle, are nothing for a garbage collector."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@_uncollected()
def explore(rules: Rules, *, losses: int, duplicates: int, states_max: int = 400_000) -> Verdict:
    """Visit every reachable state. ``AssertionError`` when there are more than ``states_max``."""
    start = initial(rules, losses=losses, duplicates=duplicates)
    parents: dict[State, tuple[State, Step] | None] = {start: None}
    before: dict[State, list[State]] = {}
    order = deque([start])
    wrong: State | None = None
    done: list[State] = []
    while order:
        state = order.popleft()
        if state.wrong:
            wrong = wrong or state
            continue
        if finished(rules, state):
            done.append(state)
            continue
        for step in steps(rules, state):
            following = perform(rules, state, step)
            before.setdefault(following, []).append(state)
            if following not in parents:
                parents[following] = (state, step)
                assert len(parents) <= states_max, f"more than {states_max} states"
                order.append(following)
    alive = set(done)
    pending = deque(done)
    while pending:
        for earlier in before.get(pending.popleft(), ()):
            if earlier not in alive:
                alive.add(earlier)
                pending.append(earlier)
    stuck = next((s for s in parents if s not in alive and not s.wrong), None)
    if wrong is not None:
        # A wrong run ends there; what led to it may look stuck only because of that.
        stuck = None
    return Verdict(len(parents), _run_to(parents, wrong), _run_to(parents, stuck))


def _run_to(parents: dict[State, tuple[State, Step] | None], state: State | None) -> list[Step] | None:
    if state is None:
        return None
    run: list[Step] = []
    link = parents[state]
    while link is not None:
        run.append(link[1])
        link = parents[link[0]]
    return run[::-1]


def replay(rules: Rules, run: list[Step], *, losses: int = 0, duplicates: int = 0) -> State:
    """The state after a scripted run; ``AssertionError`` names the step that cannot happen."""
    state = initial(rules, losses=losses, duplicates=duplicates)
    for number, step in enumerate(run):
        possible = list(steps(rules, state))
        assert step in possible, f"step {number}, {step}, is not one of {possible}"
        state = perform(rules, state, step)
    return state


def can_finish(rules: Rules, state: State) -> bool:
    """Whether the ring can still finish from ``state`` without further faults."""
    seen = {state}
    order = deque([state])
    while order:
        current = order.popleft()
        if finished(rules, current):
            return True
        for step in steps(rules, current):
            if step[0] in ("lose input", "lose result", "duplicate"):
                continue
            following = perform(rules, current, step)
            if following not in seen:
                seen.add(following)
                order.append(following)
    return False
