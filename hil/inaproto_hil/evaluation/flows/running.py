"""Flows that share links max-min fairly, from the end of one to the next: the compiled loop.

Rates hold until some flow ends. With a ``slack`` above 0 they hold longer: flows that end within that share
of the time since the start all end at their own moments, but what they leave goes to others only when the
last of them has ended. Every link then carries no more than it can, and every flow its volume, but some
capacity lies idle for a while.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from inaproto_controller.cluster.compiled import jit_in_place, jit_within
from inaproto_hil.evaluation.flows.filling import Room, fill
from inaproto_hil.evaluation.flows.paths import Floats, Ints, Numbers

TIE: Final = 1e-10
"""Ends that are nearer than this share of the time since the start are at one time, with any slack."""
_SAME: Final = 1 - 1e-9
"""Rates that are nearer than this may be those of one link."""
_ANEW: Final = 256
"""As often all rates are found anew, so that rounding errors do not add up."""

WAITING: Final = 0
LIVE: Final = 1
DONE: Final = 2


class Flows(NamedTuple):
    """What does not change. F flows, some of which wait for others to end."""

    first: Numbers
    links: Numbers
    """As :class:`~inaproto_hil.evaluation.flows.paths.Paths` has them."""
    weights: Ints
    classes: Ints
    groups: Ints
    """(F,): which group each is of."""
    first_next: Numbers
    """(F+1,): where each flow's begin in ``nexts``."""
    nexts: Numbers
    """Flows that wait for flow 0, then for flow 1, ..."""


class State(NamedTuple):
    """What changes."""

    status: Numbers
    """(F,)"""
    volumes: Floats
    """(F,): what was left of each when it got its rate ..."""
    since: Floats
    """... at this time, ..."""
    rates: Floats
    ends: Floats
    """... and when it ends with it, or has ended."""
    waits: Ints
    """(F,): for how many others."""
    unended: Ints
    """(groups,): flows of each group that are not done."""
    order: Numbers
    """(F,): live flows by class, within a class the slowest first; ``sizes[0]`` of them."""
    soonest: Floats
    """(F,): when the first of them ends, up to each place of ``order``."""
    fresh: Numbers
    """(F,): flows that wait for nothing any more; ``sizes[1]`` of them."""
    opened: Numbers
    """(F,): flows that need new rates; ``sizes[2]`` of them."""
    chosen: Numbers
    """(F,): room to work in."""
    sizes: Ints
    room: Room


@jit_within
def _finish(flows: Flows, state: State, flow: int, now: float) -> None:
    """It has ended, and those that waited for it alone are fresh."""
    state.status[flow] = DONE
    state.ends[flow] = now
    state.unended[flows.groups[flow]] -= 1
    for at in range(flows.first_next[flow], flows.first_next[flow + 1]):
        other = flows.nexts[at]
        state.waits[other] -= 1
        if state.waits[other] == 0:
            state.fresh[state.sizes[1]] = other
            state.sizes[1] += 1


@jit_within
def _admit(flows: Flows, state: State, now: float) -> int:
    """Fresh flows are live, and done if they need no link. Returns where they change the order."""
    highest = -1
    done = 0
    while done < state.sizes[1]:
        flow = state.fresh[done]
        done += 1
        if flows.first[flow] == flows.first[flow + 1] or state.volumes[flow] <= 0.0:
            _finish(flows, state, flow, now)
            continue
        state.status[flow] = LIVE
        state.since[flow] = now
        state.opened[state.sizes[2]] = flow
        state.sizes[2] += 1
        if highest < 0 or flows.classes[flow] < highest:
            highest = flows.classes[flow]
    state.sizes[1] = 0
    place = int(state.sizes[0])
    while highest >= 0 and place > 0 and flows.classes[state.order[place - 1]] >= highest:
        place -= 1
    return place


@jit_within
def _open_from(flows: Flows, state: State, place: int, now: float) -> None:
    """Flows from this place on give back what they have of their links; those that live need new rates."""
    room = state.room
    for at in range(place, state.sizes[0]):
        flow = state.order[at]
        rate = state.rates[flow]
        for entry in range(flows.first[flow], flows.first[flow + 1]):
            room.left[flows.links[entry]] += rate * flows.weights[flow]
        if state.status[flow] == LIVE:
            state.volumes[flow] = max(0.0, state.volumes[flow] - rate * (now - state.since[flow]))
            state.since[flow] = now
            state.opened[state.sizes[2]] = flow
            state.sizes[2] += 1
    state.sizes[0] = place
    if place == 0:
        for link in range(len(room.left)):
            room.left[link] = room.capacities[link]


@jit_within
def _rate_opened(flows: Flows, state: State, kinds: int, now: float) -> None:
    for kind in range(kinds):
        size = 0
        for index in range(state.sizes[2]):
            flow = state.opened[index]
            if flows.classes[flow] == kind:
                state.chosen[size] = flow
                size += 1
        if size == 0:
            continue
        begun = state.sizes[0]
        state.sizes[0] = fill(
            flows.first,
            flows.links,
            flows.weights,
            state.chosen,
            size,
            state.rates,
            state.room,
            state.order,
            begun,
        )
        for at in range(begun, state.sizes[0]):
            flow = state.order[at]
            rate = state.rates[flow]
            state.ends[flow] = now + state.volumes[flow] / rate if rate > 0.0 else np.inf
            sooner = state.soonest[at - 1] if at > 0 else np.inf
            state.soonest[at] = min(sooner, state.ends[flow])
    state.sizes[2] = 0


@jit_within
def _first_by(state: State, horizon: float) -> int:
    """The first place in the order of a flow that ends by then; there is one."""
    low, high = 0, state.sizes[0] - 1
    while low < high:
        middle = (low + high) // 2
        if state.soonest[middle] <= horizon:
            high = middle
        else:
            low = middle + 1
    return low


@jit_within
def _end_by(flows: Flows, state: State, horizon: float) -> tuple[int, float]:
    """Flows that end by then have. Returns from where on rates are no longer right, and when the last ended.

    What is before that place is slower than all that have ended. It shares no link with them that is full at
    its rate, and none of its links had its rate from them: filling anew would come to the same.
    """
    place = _first_by(state, horizon)
    last = 0.0
    for at in range(place, state.sizes[0]):
        flow = state.order[at]
        if state.ends[flow] <= horizon:
            last = max(last, state.ends[flow])
            _finish(flows, state, flow, state.ends[flow])
    least = state.rates[state.order[place]] * _SAME
    kind = flows.classes[state.order[place]]
    while place > 0:
        before = state.order[place - 1]
        if flows.classes[before] != kind or state.rates[before] < least:
            break
        place -= 1
    return place, last


@jit_within
def _is_any_over(state: State) -> bool:
    """A group has ended. What is below 0 was over before."""
    over = 0
    for group in range(len(state.unended)):
        over += state.unended[group] == 0
    return over > 0


@jit_in_place
def run(
    flows: Flows, state: State, kinds: int, begun: float, until: float, slack: float, is_watched: bool
) -> tuple[float, int]:
    """From ``begun`` until ``until``, until nothing is live, or, if ``is_watched``, until a group has ended.

    Returns when that is, and how often rates were found. Flows that are ``fresh`` are begun first. ``kinds``:
    how many classes there are. What has ended has left the order when this returns; what needs new rates then
    is ``opened``, and is given them by the next call, at the same time.
    """
    now = begun
    rated = 0
    place = _admit(flows, state, now)
    while True:
        if place < state.sizes[0] or state.sizes[2] > 0:
            rated += 1
            _open_from(flows, state, 0 if rated % _ANEW == 0 else place, now)
        if is_watched and _is_any_over(state):
            break
        _rate_opened(flows, state, kinds, now)
        if state.sizes[0] == 0:
            break
        least = state.soonest[state.sizes[0] - 1]
        if least > until:
            now = until
            break
        horizon = min(until, max(least, least + max(slack, TIE) * (least - begun)))
        place, now = _end_by(flows, state, horizon)
        place = min(place, _admit(flows, state, now))
    return now, rated
