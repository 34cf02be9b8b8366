"""Jobs' events between two changes of who has which hosts and trees: the loop that a simulation spends its
time in.

What happens is :class:`~inaproto_controller.planning.turns.job_run.JobRun`'s and
:func:`~inaproto_controller.planning.turns.policy.may_use`'s, operation by operation and rounding by rounding
(MINA, sections III-D and V-A); only the order of work differs. A job that shares its tree's links with nobody
depends on nobody: it is left behind and caught up when it could have ended, or when something changes. All
others take turns by time; of equal times the lower rank is first.

Functions are compiled (:mod:`inaproto_controller.cluster.compiled`): they take arrays, by slot unless noted.
All live in this file, and their records too, since compiled code is made anew only when its own file has
changed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.cluster.compiled import jit_in_place, jit_within

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

BEGINS: Final = 0
"""Phases: what happens at ``at``: an operation begins."""
ENDS: Final = 1
STEPS: Final = 2
"""The step ends."""

NONE: Final = 0
"""Policies, as :class:`~inaproto_controller.planning.turns.policy.Policy` has them."""
GREEDY: Final = 1
SCORE: Final = 2

COMPLETED: Final = 0
"""Why :func:`advance` came back: a job has ended, at ``now``."""
PAUSED: Final = 1
"""The next event is later than ``pause_at``."""
LIMITED: Final = 2
"""An event later than ``stop_after`` has happened."""
FULL: Final = 3
"""There is no room to note an operation."""


class Tables(NamedTuple):
    """Operations of all kinds of jobs, one kind after the other; see ``StepTimes``."""

    first: Ints
    """(kinds,): where a kind's operations begin."""
    operations: Ints
    """(kinds,): how many."""
    duration: Floats
    asks_from: Ints
    """(kinds,): the first operation of a step that asks for INA."""
    ready: Floats
    """(operations,)"""
    plain: Floats
    ina: Floats
    tail: Floats
    """(operations + kinds,): ``tail_plain``, of kind k from ``first[k] + k`` on."""
    floor: Floats


class Slots(NamedTuple):
    """State of the running jobs, (slots,) each."""

    kind: Ints
    phase: Ints
    operation: Ints
    """Operation of the step that runs, or is next."""
    steps: Ints
    """Steps that have ended."""
    steps_max: Ints
    at: Floats
    began: Floats
    step_start: Floats
    uses_ina: Bools
    has_tree: Bools
    waits: Bools
    """Its tree changes when the operation with INA ends that runs now."""
    has_tree_then: Bools
    switches: Ints
    """Switches of its tree."""
    switches_then: Ints
    no_ina_until: Floats
    """Its tree is being changed."""
    downtime_then: Floats
    """How long that takes from the end of the operation on."""
    weight: Floats
    ina_seconds: Floats
    ina_switch_seconds: Floats
    changed: Ints
    """Trees that were exchanged when an operation ended."""
    changed_at: Floats
    """When that was, the last time."""
    seed: NDArray[np.uint64]
    """Seed of its jitter."""


class Turns(NamedTuple):
    """Who shares with whom, and whose turn it is."""

    group: Ints
    """(slots,): with whom it takes turns; one for each job if only pairs do."""
    rank: Ints
    """(slots,): who is first at equal times."""
    is_behind: Bools
    """(slots,): shares with nobody, and its events are still to be caught up with."""
    due: Floats
    """(slots,): when to look at it."""
    heap: Ints
    """(jobs,): slots."""
    member_first: Ints
    """(groups + 1,)"""
    members: Ints
    """(jobs,): slots, group by group; of a group that is one job's: those whose trees exclude its tree."""
    busy: Ints
    """(groups,): members in an operation with INA; (0,) if only pairs take turns."""
    blocker: Ints
    """(blocks,): slot whose operation runs on a tree that it has given up ..."""
    blocked: Ints
    """... and who needs that tree's links."""
    is_granted: Bools
    """(blocks,): who needs them got its tree just now, and not before they are released."""
    counted: Ints
    """Numbers of what trees use that several may use at a time, but not all who have such trees."""
    room: Ints
    """(numbers,): how many more operations may use it now."""
    uses: Ints
    """(slots, 2): where in ``counted`` the job's tree has its own, from and up to."""
    uses_then: Ints
    """(slots, 2): the same of the tree that waits."""


class Log(NamedTuple):
    """Operations that have ended, (room,) each; ``noted`` (1,) of them are there."""

    noted: Ints
    slot: Ints
    step: Ints
    operation: Ints
    uses_ina: Bools
    begin: Floats
    end: Floats


@jit_in_place
def begin_step(tables: Tables, slots: Slots, slot: int, start: float) -> None:
    slots.step_start[slot] = start
    slots.operation[slot] = 0
    slots.phase[slot] = BEGINS
    slots.at[slot] = start + tables.ready[tables.first[slots.kind[slot]]]


@jit_within
def _noise(seed: np.uint64, step: int, index: int) -> float:
    """In [-1, 1), a hash (SplitMix64's) of job, step and operation: the order of events has no part in it."""
    word = (
        seed
        + np.uint64(step) * np.uint64(0x9E3779B97F4A7C15)
        + np.uint64(index) * np.uint64(0xD1B54A32D192ED03)
    )
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word = word ^ (word >> np.uint64(31))
    share: float = float(word >> np.uint64(11)) / 4503599627370496.0
    return share - 1.0


@jit_within
def _begin(tables: Tables, slots: Slots, slot: int, uses_ina: bool, jitter: float) -> None:
    operation = tables.first[slots.kind[slot]] + slots.operation[slot]
    seconds = tables.ina[operation] if uses_ina else tables.plain[operation]
    if jitter != 0.0:
        seconds *= 1.0 + jitter * _noise(slots.seed[slot], slots.steps[slot], slots.operation[slot])
    slots.uses_ina[slot] = uses_ina
    slots.began[slot] = slots.at[slot]
    slots.at[slot] += seconds
    slots.phase[slot] = ENDS


@jit_within
def _end(tables: Tables, slots: Slots, slot: int) -> None:
    at = slots.at[slot]
    if slots.uses_ina[slot]:
        seconds = at - slots.began[slot]
        slots.ina_seconds[slot] += seconds
        slots.ina_switch_seconds[slot] += seconds * slots.switches[slot]
        slots.uses_ina[slot] = False
        if slots.waits[slot]:
            slots.waits[slot] = False
            slots.has_tree[slot] = slots.has_tree_then[slot]
            slots.switches[slot] = slots.switches_then[slot]
            slots.changed[slot] += 1
            slots.changed_at[slot] = at
            slots.no_ina_until[slot] = max(slots.no_ina_until[slot], at + slots.downtime_then[slot])
    kind = slots.kind[slot]
    index = slots.operation[slot] + 1
    slots.operation[slot] = index
    if index < tables.operations[kind]:
        slots.phase[slot] = BEGINS
        slots.at[slot] = max(at, slots.step_start[slot] + tables.ready[tables.first[kind] + index])
    else:
        slots.phase[slot] = STEPS
        slots.at[slot] = max(at, slots.step_start[slot] + tables.duration[kind])


@jit_within
def _gain(tables: Tables, slots: Slots, slot: int, index: int, after_start: float) -> float:
    """How much earlier the step ends with INA for this operation, which begins ``after_start``; weighted."""
    kind = slots.kind[slot]
    operation = tables.first[kind] + index
    after = operation + kind + 1
    tail, floor = tables.tail[after], tables.floor[after]
    plain = max(after_start + tables.plain[operation] + tail, floor)
    with_ina = max(after_start + tables.ina[operation] + tail, floor)
    weighted: float = slots.weight[slot] * (plain - with_ina)
    return weighted


@jit_within
def _others_gain_more(tables: Tables, slots: Slots, turns: Turns, slot: int, now: float) -> bool:
    """Whether somebody of the group whose next operation begins before mine would end gains more, for each
    second it takes."""
    index = slots.operation[slot]
    until = now + tables.ina[tables.first[slots.kind[slot]] + index]
    if until <= now:
        return False  # it takes no time, so nobody begins meanwhile
    ratio = _gain(tables, slots, slot, index, now - slots.step_start[slot]) / (until - now)
    group = turns.group[slot]
    for place in range(turns.member_first[group], turns.member_first[group + 1]):
        other = turns.members[place]
        if other == slot:
            continue
        begin = slots.at[other]
        if begin >= until:
            continue  # what follows is later still
        kind = slots.kind[other]
        step_start = slots.step_start[other]
        index = slots.operation[other]
        phase = slots.phase[other]
        if phase == ENDS:
            index += 1
            if index < tables.operations[kind]:
                begin = max(begin, step_start + tables.ready[tables.first[kind] + index])
            else:
                begin = max(begin, step_start + tables.duration[kind])
                phase = STEPS
        if phase == STEPS:
            if slots.steps[other] + 1 == slots.steps_max[other]:
                continue
            index = 0
            step_start = begin
            begin = begin + tables.ready[tables.first[kind]]
        if begin >= until or index < tables.asks_from[kind] or begin < slots.no_ina_until[other]:
            continue
        seconds = begin + tables.ina[tables.first[kind] + index] - now
        if seconds > 0.0 and _gain(tables, slots, other, index, begin - step_start) / seconds > ratio:
            return True
    return False


@jit_within
def _may_ask(tables: Tables, slots: Slots, slot: int, now: float) -> bool:
    if not slots.has_tree[slot] or now < slots.no_ina_until[slot]:
        return False
    asks: bool = slots.operation[slot] >= tables.asks_from[slots.kind[slot]]
    return asks


@jit_within
def _is_busy(slots: Slots, turns: Turns, slot: int) -> bool:
    """Whether somebody with whom it takes turns is in an operation with INA."""
    group = turns.group[slot]
    if len(turns.busy):
        busy: bool = turns.busy[group] > 0
        return busy
    for place in range(turns.member_first[group], turns.member_first[group + 1]):
        if slots.uses_ina[turns.members[place]]:
            return True
    return False


@jit_within
def _decide(tables: Tables, slots: Slots, turns: Turns, slot: int, now: float, policy: int) -> bool:
    if policy == NONE or not _may_ask(tables, slots, slot, now) or _is_busy(slots, turns, slot):
        return False
    for block in range(len(turns.blocker)):
        if turns.blocked[block] == slot and slots.waits[turns.blocker[block]]:
            return False
    for place in range(turns.uses[slot, 0], turns.uses[slot, 1]):
        if turns.room[turns.counted[place]] <= 0:
            return False
    return policy == GREEDY or not _others_gain_more(tables, slots, turns, slot, now)


@jit_within
def _catch_up(
    tables: Tables, slots: Slots, slot: int, policy: int, jitter: float, until: float, with_equal: bool
) -> int:
    """Events of a job that shares with nobody, to those before ``until``; how many there were.

    It must not end before: past its last step it would go on for ever.
    """
    events = 0
    while slots.at[slot] < until or (with_equal and slots.at[slot] == until):
        phase = slots.phase[slot]
        if phase == BEGINS:
            uses_ina = policy != NONE and _may_ask(tables, slots, slot, slots.at[slot])
            _begin(tables, slots, slot, uses_ina, jitter)
        elif phase == ENDS:
            _end(tables, slots, slot)
        else:
            slots.steps[slot] += 1
            assert slots.steps[slot] < slots.steps_max[slot], "a job that was behind has ended"
            begin_step(tables, slots, slot, slots.at[slot])
        events += 1
    return events


@jit_within
def _sink(turns: Turns, place: int, size: int) -> None:
    """Restore the heap below ``place``, whose slot may now be due too late."""
    heap, due, rank = turns.heap, turns.due, turns.rank
    slot = heap[place]
    mine = due[slot]
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        lower = heap[below]
        if below + 1 < size:
            other = heap[below + 1]
            if due[other] < due[lower] or (due[other] == due[lower] and rank[other] < rank[lower]):
                below += 1
                lower = other
        if due[lower] > mine or (due[lower] == mine and rank[lower] > rank[slot]):
            break
        heap[place] = lower
        place = below
    heap[place] = slot


@jit_within
def _release(slots: Slots, turns: Turns, slot: int, until: float) -> None:
    """Its old tree is being released: nobody is granted its links before."""
    for block in range(len(turns.blocker)):
        if turns.blocker[block] == slot and turns.is_granted[block]:
            blocked = turns.blocked[block]
            slots.no_ina_until[blocked] = max(slots.no_ina_until[blocked], until)


@jit_within
def _occupy(turns: Turns, slot: int, operations: int) -> None:
    """What several may use has so many operations more."""
    for place in range(turns.uses[slot, 0], turns.uses[slot, 1]):
        turns.room[turns.counted[place]] -= operations


@jit_within
def _free(slots: Slots, turns: Turns, slot: int, release: float) -> None:
    """What its operation with INA used, which ends now."""
    if len(turns.busy):
        turns.busy[turns.group[slot]] -= 1
    _occupy(turns, slot, -1)
    if slots.waits[slot]:
        turns.uses[slot, 0] = turns.uses_then[slot, 0]
        turns.uses[slot, 1] = turns.uses_then[slot, 1]
        if release > 0.0:
            _release(slots, turns, slot, slots.at[slot] + release)


@jit_within
def _note(slots: Slots, log: Log, slot: int) -> None:
    """Its operation, which ends now."""
    count = log.noted[0]
    log.slot[count] = slot
    log.step[count] = slots.steps[slot]
    log.operation[count] = slots.operation[slot]
    log.uses_ina[count] = slots.uses_ina[slot]
    log.begin[count] = slots.began[slot]
    log.end[count] = slots.at[slot]
    log.noted[0] = count + 1


@jit_in_place
def advance(
    tables: Tables,
    slots: Slots,
    turns: Turns,
    log: Log,
    policy: int,
    jitter: float,
    release: float,
    pause_at: float,
    stop_after: float,
) -> tuple[int, int, float, int]:
    """Events until there is something to decide: (why, slot, now, events).

    ``turns.heap`` holds all jobs in any order. Nobody who is behind may end before it is due.
    """
    size = len(turns.heap)
    for place in range(size // 2 - 1, -1, -1):
        _sink(turns, place, size)
    events, room = 0, len(log.slot)
    why, slot, now = PAUSED, -1, pause_at
    while size:
        slot = turns.heap[0]
        if turns.due[slot] > pause_at:
            why, slot, now = PAUSED, -1, pause_at
            break
        if turns.is_behind[slot]:
            turns.is_behind[slot] = False
            no = turns.is_behind[
                slot
            ]  # the word False has a type of its own, for which all is compiled again
            events += _catch_up(tables, slots, slot, policy, jitter, turns.due[slot], no)
            if len(turns.busy):
                turns.busy[turns.group[slot]] = slots.uses_ina[slot]
            turns.due[slot] = slots.at[slot]
            _sink(turns, 0, size)
            continue
        now = slots.at[slot]
        phase = slots.phase[slot]
        if phase == BEGINS:
            uses_ina = _decide(tables, slots, turns, slot, now, policy)
            if uses_ina:
                if len(turns.busy):
                    turns.busy[turns.group[slot]] += 1
                _occupy(turns, slot, 1)
            _begin(tables, slots, slot, uses_ina, jitter)
        elif phase == ENDS:
            if room:
                if log.noted[0] == room:
                    why = FULL
                    break
                _note(slots, log, slot)
            if slots.uses_ina[slot]:
                _free(slots, turns, slot, release)
            _end(tables, slots, slot)
        else:
            slots.steps[slot] += 1
            if slots.steps[slot] == slots.steps_max[slot]:
                events += 1
                why = COMPLETED
                break
            begin_step(tables, slots, slot, now)
        events += 1
        turns.due[slot] = slots.at[slot]
        if now > stop_after:
            why = LIMITED
            break
        _sink(turns, 0, size)
    for place in range(size):
        other = turns.heap[place]
        if turns.is_behind[other]:
            with_equal = why == PAUSED or turns.rank[other] < turns.rank[slot]
            events += _catch_up(tables, slots, other, policy, jitter, now, with_equal)
    return why, slot, now, events
