"""Trees of fewer hops by many small changes: the second half of PARING's ``fast`` mode.

Not the paper's: its greedy spiders are never revised. A change is drawn, and made if it is legal and saves
hops, or loses few enough for the temperature, which falls to 0 (simulated annealing). A state is a tree that
respects all slots, and so does each change, so the rate is never at stake. Changes:

- a child, worker or switch, gets another parent; where all slots of that are taken it changes places with one
  of its children; if the new parent is not yet in the tree it comes in between the child and its parent;
- switches that lose their last child by that leave the tree;
- a worker is exchanged for an idle server;
- all children of a switch go to another that is not in the tree;
- the parameter server (PS) goes to another rack.

Fees (section IV-C.4) are hops that a switch costs while it is in the tree. Everything is whole numbers,
random ones included, from a fixed seed: the same problem has the same answer anywhere, compiled or not.
*Elements* are the n workers, then the S switches; *aggregators* the S switches, then the PS; *places*, which
hops are counted from, the R racks, then the S switches.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from inaproto_controller.cluster.compiled import jit_in_place, jit_within
from inaproto_controller.planning.paring.slots.problem import UNUSED, Counts, RackTree, SlotProblem

_STEPS: Final = 1024
"""Steps of chances and temperatures."""
_ROUNDS: Final = 64
"""In each of which the temperature is the same; in the last ones it is 0."""
_COLD_ROUNDS: Final = 4
_WARMEST, _COLDEST = 0.8, 0.2
"""Temperatures in hops."""
_HOPS, _PS_RACK, _RANDOM, _UNIT = 0, 1, 2, 3


class _State(NamedTuple):
    """Arrays of a tree; int64 all. A, the aggregators, are S + 1."""

    hops: Counts
    """(R + S, A) from a place to an aggregator; the PS's column follows it."""
    near: Counts
    """(R + S, S) switches, the nearest to a place first."""
    near_racks: Counts
    """(A, R) racks, the nearest to an aggregator first."""
    room: Counts
    """(A,) slots."""
    idle: Counts
    """(R,) servers that do nothing."""
    place: Counts
    """(n + S,) of each element."""
    parent: Counts
    """(n + S,) an aggregator, or ``UNUSED``."""
    children: Counts
    """(A, most slots) elements, the first ``load`` of each row."""
    at: Counts
    """(n + S,) where in its parent's row an element stands."""
    load: Counts
    """(A,)"""
    numbers: Counts
    """Hops of the tree, fees included; rack of the PS; state of the random numbers; unit of hops."""
    ps_room: Counts
    """(R,) slots of a PS there."""
    fees: Counts
    """(S,)"""


def _chances() -> Counts:
    """Chances by a draw of 1/1024, minus its logarithm: a loss of that many temperatures is accepted by
    it."""
    chances = -np.log((np.arange(_STEPS) + 0.5) / _STEPS)
    return np.asarray(np.rint(chances * _STEPS), np.int64)


def _temperatures() -> Counts:
    """Temperatures by round, in 1/1024 hops."""
    rounds = _ROUNDS - _COLD_ROUNDS
    falling = _WARMEST * (_COLDEST / _WARMEST) ** (np.arange(rounds) / (rounds - 1))
    return np.concatenate([np.rint(falling * _STEPS), np.zeros(_COLD_ROUNDS)]).astype(np.int64)


CHANCES, TEMPERATURES = _chances(), _temperatures()


def improved(problem: SlotProblem, tree: RackTree, changes: int) -> RackTree:
    """The best tree of those passed while so many changes are drawn; ``tree`` itself if none is better."""
    state = _state_of(problem, tree)
    best_parent, best_place = state.parent.copy(), state.place.copy()
    ps_rack = _anneal(
        state,
        problem.rack_to_rack,
        problem.rack_to_switch,
        changes // _ROUNDS,
        CHANCES,
        TEMPERATURES * problem.unit,
        best_parent,
        best_place,
    )
    workers, switches = problem.workers, len(problem.switches)
    senders = np.zeros((len(problem.free), switches + 1), np.int64)
    np.add.at(senders, (best_place[:workers], best_parent[:workers]), 1)
    return RackTree(int(ps_rack), best_parent[workers:], senders)


def _state_of(problem: SlotProblem, tree: RackTree) -> _State:
    (racks, switches), ps = problem.rack_to_switch.shape, tree.ps_rack
    room = np.append(problem.switch_slots, problem.ps_slots[ps])
    hops = np.empty((racks + switches, switches + 1), np.int64)
    hops[:racks, :switches], hops[racks:, :switches] = problem.rack_to_switch, problem.between
    hops[:racks, switches], hops[racks:, switches] = problem.rack_to_rack[ps], problem.rack_to_switch[ps]
    ranks, targets = np.nonzero(tree.senders)
    counts = tree.senders[ranks, targets]
    place = np.concatenate([np.repeat(ranks, counts), racks + np.arange(switches)])
    parent = np.concatenate([np.repeat(targets, counts), tree.parents])
    used = np.flatnonzero(parent != UNUSED)
    load = np.bincount(parent[used], minlength=switches + 1)
    children, at = (
        np.zeros((switches + 1, int(problem.most_slots)), np.int64),
        np.zeros(len(parent), np.int64),
    )
    filled = [0] * (switches + 1)
    for element in used.tolist():
        above = int(parent[element])
        children[above, filled[above]], at[element] = element, filled[above]
        filled[above] += 1
    idle = problem.free - tree.senders.sum(axis=1)
    idle[ps] -= 1
    return _State(
        hops,
        np.argsort(hops[:, :switches], axis=1, kind="stable"),
        np.ascontiguousarray(np.argsort(hops[:racks].T, axis=1, kind="stable")),
        room,
        idle,
        place,
        parent,
        children,
        at,
        load,
        np.array([tree.hops(problem), ps, 20240613, problem.unit]),
        problem.ps_slots,
        problem.fees,
    )


@jit_in_place
def _anneal(
    state: _State,
    rack_to_rack: Counts,
    rack_to_switch: Counts,
    changes: int,
    chances: Counts,
    temperatures: Counts,
    best_parent: Counts,
    best_place: Counts,
) -> int:
    """``changes`` a round; returns the rack of the best tree's PS, the rest of it in ``best_...``."""
    racks, aggregators = len(state.idle), len(state.room)
    elements, switches = len(state.parent), aggregators - 1
    workers = elements - switches
    best, best_rack = state.numbers[_HOPS], state.numbers[_PS_RACK]
    for temperature in temperatures:
        for _ in range(changes):
            loss = temperature * chances[_draw(state, 1024)] >> 20
            kind = _draw(state, 64)
            if kind == 0:
                _move_ps(state, _draw(state, racks), rack_to_rack, rack_to_switch, loss)
            elif kind < 4 and switches:
                _stand_in(state, _draw(state, switches), _draw(state, switches), loss)
            elif kind < 12:
                _exchange(state, _draw(state, workers), loss)
            else:
                child = _draw(state, elements)
                if state.parent[child] == UNUSED:
                    continue
                parent = switches
                if kind < 56 and switches:
                    parent = state.near[state.place[child], _draw(state, _draw(state, switches) + 1)]
                _reparent(state, child, parent, loss)
            if state.numbers[_HOPS] < best:
                best, best_rack = state.numbers[_HOPS], state.numbers[_PS_RACK]
                for element in range(elements):
                    best_parent[element] = state.parent[element]
                    best_place[element] = state.place[element]
    found: int = best_rack
    return found


@jit_within
def _draw(state: _State, below: int) -> int:
    """0 to ``below`` - 1, by Lehmer's generator modulo 2**31 - 1."""
    product: int = state.numbers[_RANDOM] * 48271
    drawn = (product & 0x7FFFFFFF) + (product >> 31)
    if drawn >= 0x7FFFFFFF:
        drawn -= 0x7FFFFFFF
    state.numbers[_RANDOM] = drawn
    number: int = drawn * below >> 31
    return number


@jit_within
def _is_below(state: _State, aggregator: int, element: int) -> bool:
    """Whether the way from an aggregator to the PS goes over the element."""
    workers, ps = len(state.parent) - len(state.room) + 1, len(state.room) - 1
    while aggregator != ps:
        if aggregator == element - workers:
            return True
        aggregator = state.parent[workers + aggregator]
    return False


@jit_within
def _detach(state: _State, element: int) -> None:
    parent, at = state.parent[element], state.at[element]
    state.load[parent] -= 1
    last = state.children[parent, state.load[parent]]
    state.children[parent, at] = last
    state.at[last] = at


@jit_within
def _attach(state: _State, element: int, parent: int) -> None:
    at = state.load[parent]
    state.children[parent, at] = element
    state.at[element] = at
    state.parent[element] = parent
    state.load[parent] += 1


@jit_within
def _put(state: _State, element: int, parent: int, at: int) -> None:
    """In a slot that another has left."""
    state.children[parent, at] = element
    state.at[element] = at
    state.parent[element] = parent


@jit_within
def _reparent(state: _State, child: int, parent: int, loss: int) -> None:
    ps = len(state.room) - 1
    workers = len(state.parent) - ps
    old: int = state.parent[child]
    if parent == old:
        return
    if parent != ps and state.parent[workers + parent] == UNUSED:
        _come_between(state, child, parent, loss)
        return
    if child >= workers and _is_below(state, parent, child):
        return
    emptied, saved = old, 0
    while emptied not in (ps, parent) and state.load[emptied] == 1:
        above = state.parent[workers + emptied]
        saved += state.hops[len(state.idle) + emptied, above] + state.fees[emptied]
        emptied = above
    if emptied == parent or state.load[parent] < state.room[parent]:
        _take_slot(state, child, parent, emptied, loss + saved)
    else:
        _swap(state, child, state.children[parent, _draw(state, state.load[parent])], loss)


@jit_within
def _come_between(state: _State, child: int, switch: int, loss: int) -> None:
    """A switch that is not in the tree, between a child and its parent."""
    old, here, there = state.parent[child], state.place[child], len(state.idle) + switch
    more = state.hops[here, switch] + state.hops[there, old] - state.hops[here, old] + state.fees[switch]
    if more <= loss:
        state.numbers[_HOPS] += more
        _put(state, len(state.parent) - len(state.room) + 1 + switch, old, state.at[child])
        _attach(state, child, switch)


@jit_within
def _take_slot(state: _State, child: int, parent: int, emptied: int, loss: int) -> None:
    """Take a slot of a parent that has one; switches from the old parent up to ``emptied`` have no other
    child. In place of a worker another server may go there: an idle one that is near."""
    workers = len(state.parent) - len(state.room) + 1
    switch, here = state.parent[child], state.place[child]
    there: int = here
    if child < workers and _draw(state, 2):
        there = _idle_rack(state, parent)
        if there < 0:
            return
    more = state.hops[there, parent] - state.hops[here, switch]
    if more > loss:
        return
    _detach(state, child)
    while switch != emptied:
        above = state.parent[workers + switch]
        more -= state.hops[len(state.idle) + switch, above] + state.fees[switch]
        _detach(state, workers + switch)
        state.parent[workers + switch] = UNUSED
        switch = above
    state.numbers[_HOPS] += more
    _attach(state, child, parent)
    if there != here:
        _hire(state, child, there)


@jit_within
def _hire(state: _State, worker: int, rack: int) -> None:
    """Another server for it, of this rack."""
    state.idle[state.place[worker]] += 1
    state.idle[rack] -= 1
    state.place[worker] = rack


@jit_within
def _swap(state: _State, one: int, other: int, loss: int) -> None:
    """Their parents; ``one`` is not above that of ``other``."""
    first: int = state.parent[one]
    second: int = state.parent[other]
    if other >= len(state.parent) - len(state.room) + 1 and _is_below(state, first, other):
        return
    here, there = state.place[one], state.place[other]
    more = state.hops[here, second] - state.hops[here, first]
    more += state.hops[there, first] - state.hops[there, second]
    if more <= loss:
        state.numbers[_HOPS] += more
        at = state.at[one]
        _put(state, one, second, state.at[other])
        _put(state, other, first, at)


@jit_within
def _idle_rack(state: _State, aggregator: int) -> int:
    """The nearest with an idle server, or every other time the nearest but some; -1: there is none."""
    racks = len(state.idle)
    first = _draw(state, racks) if _draw(state, 2) else 0
    for number in range(first, racks):
        rack: int = state.near_racks[aggregator, number]
        if state.idle[rack]:
            return rack
    return -1


@jit_within
def _exchange(state: _State, worker: int, loss: int) -> None:
    parent, here = state.parent[worker], state.place[worker]
    rack = _idle_rack(state, parent)
    if rack >= 0 and rack != here:
        more = state.hops[rack, parent] - state.hops[here, parent]
        if more <= loss:
            state.numbers[_HOPS] += more
            _hire(state, worker, rack)


@jit_within
def _stand_in(state: _State, switch: int, other: int, loss: int) -> None:
    """``other``, which is not in the tree, takes the place of ``switch``, which is."""
    ps, racks, load = len(state.room) - 1, len(state.idle), state.load[switch]
    workers = len(state.parent) - ps
    parent = state.parent[workers + switch]
    if parent == UNUSED or state.parent[workers + other] != UNUSED or state.room[other] < load:
        return
    more = state.hops[racks + other, parent] - state.hops[racks + switch, parent]
    more += state.fees[other] - state.fees[switch]
    for number in range(load):
        place = state.place[state.children[switch, number]]
        more += state.hops[place, other] - state.hops[place, switch]
    if more > loss:
        return
    state.numbers[_HOPS] += more
    for number in range(load):
        child = state.children[switch, number]
        state.children[other, number] = child
        state.parent[child] = other
    state.load[other], state.load[switch] = load, 0
    _put(state, workers + other, parent, state.at[workers + switch])
    state.parent[workers + switch] = UNUSED


@jit_within
def _move_ps(state: _State, rack: int, rack_to_rack: Counts, rack_to_switch: Counts, loss: int) -> None:
    ps, racks, old = len(state.room) - 1, len(state.idle), state.numbers[_PS_RACK]
    if rack == old or not state.idle[rack] or state.ps_room[rack] < state.load[ps]:
        return
    more = 0
    for number in range(state.load[ps]):
        place = state.place[state.children[ps, number]]
        hops = rack_to_rack[place, rack] if place < racks else rack_to_switch[rack, place - racks]
        more += hops - state.hops[place, ps]
    if more > loss:
        return
    state.numbers[_HOPS] += more
    state.numbers[_PS_RACK] = rack
    state.idle[rack] -= 1
    state.idle[old] += 1
    state.room[ps] = state.ps_room[rack]
    most = 0
    for place in range(len(state.hops)):
        state.hops[place, ps] = (
            rack_to_rack[place, rack] if place < racks else rack_to_switch[rack, place - racks]
        )
        most = max(most, state.hops[place, ps])
    filled = 0
    for distance in range(0, most + 1, state.numbers[_UNIT]):
        for number in range(racks):
            if state.hops[number, ps] == distance:
                state.near_racks[ps, filled] = number
                filled += 1
