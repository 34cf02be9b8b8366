"""Max-min fair rates, one link after another: the compiled engine of
:mod:`inaproto_hil.evaluation.flows.max_min`.

Links wait in a heap by what each flow on them would get. As links are filled from the least share on, the
shares of the others only grow, so what a link is filed under is never too high: it is computed anew when the
link comes up, and the link filed again if it has grown. So each link of each flow is visited once, and the
heap rarely.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from inaproto_controller.cluster.compiled import jit_in_place, jit_within
from inaproto_hil.evaluation.flows.paths import Floats, Ints, Numbers

OPEN: Final = -1.0
"""The rate of a flow that is not known yet."""
DUST: Final = 1e-12
"""What is left of a link below this share of its capacity is a rounding error: nothing is left."""


class Room(NamedTuple):
    """Room of links, and room to work in. ``counts`` and ``ends`` are all 0 between calls."""

    capacities: Floats
    left: Floats
    counts: Ints
    share: Floats
    heap: Numbers
    starts: Numbers
    ends: Numbers
    listed: Numbers
    """Flows by link: ``listed[starts[l]:ends[l]]``."""


def room(capacities: Floats, entries: int) -> Room:
    """``entries``: links of all flows together."""
    links = len(capacities)
    return Room(
        capacities,
        capacities.copy(),
        np.zeros(links, np.int64),
        np.zeros(links),
        np.zeros(links, np.int32),
        np.zeros(links, np.int32),
        np.zeros(links, np.int32),
        np.zeros(entries, np.int32),
    )


@jit_within
def _sink(heap: Numbers, size: int, share: Floats, at: int) -> None:
    """The link at ``at`` goes down to its place. Equal shares are in the order of links."""
    link = heap[at]
    mine = share[link]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        one = heap[below]
        if below + 1 < size:
            other = heap[below + 1]
            if share[other] < share[one] or (share[other] == share[one] and other < one):
                below += 1
                one = other
        if mine < share[one] or (mine == share[one] and link < one):
            break
        heap[at] = one
        at = below
    heap[at] = link


@jit_within
def _list_by_link(
    first: Numbers, links: Numbers, weights: Ints, flows: Numbers, size: int, rates: Floats, room: Room
) -> int:
    """How many links ``flows[:size]`` take, which are then in the heap; and all flows are ``OPEN``."""
    taken = 0
    for index in range(size):
        flow = flows[index]
        rates[flow] = OPEN
        for at in range(first[flow], first[flow + 1]):
            link = links[at]
            if room.ends[link] == 0:
                room.heap[taken] = link
                taken += 1
            room.ends[link] += 1
            room.counts[link] += weights[flow]
    place = 0
    for index in range(taken):
        link = room.heap[index]
        room.starts[link] = place
        place += room.ends[link]
        room.ends[link] = room.starts[link]
    for index in range(size):
        flow = flows[index]
        for at in range(first[flow], first[flow + 1]):
            link = links[at]
            room.listed[room.ends[link]] = flow
            room.ends[link] += 1
    return taken


@jit_within
def _freeze(
    first: Numbers,
    links: Numbers,
    weights: Ints,
    link: int,
    share: float,
    rates: Floats,
    room: Room,
    order: Numbers,
    place: int,
) -> int:
    """All that is open on the link has its share."""
    for entry in range(room.starts[link], room.ends[link]):
        flow = room.listed[entry]
        if rates[flow] == OPEN:
            rates[flow] = share
            order[place] = flow
            place += 1
            for at in range(first[flow], first[flow + 1]):
                room.left[links[at]] -= share * weights[flow]
                room.counts[links[at]] -= weights[flow]
    return place


@jit_in_place
def fill(
    first: Numbers,
    links: Numbers,
    weights: Ints,
    flows: Numbers,
    size: int,
    rates: Floats,
    room: Room,
    order: Numbers,
    place: int,
) -> int:
    """``rates`` of ``flows[:size]``, all of which have links, on what is ``left`` of them.

    They stand in ``order`` from ``place`` on, the slowest first. Returns where they end.
    """
    heap, share = room.heap, room.share
    waiting = _list_by_link(first, links, weights, flows, size, rates, room)
    for index in range(waiting):
        share[heap[index]] = max(room.left[heap[index]], 0.0) / room.counts[heap[index]]
    for at in range(waiting // 2 - 1, -1, -1):
        _sink(heap, waiting, share, at)
    while waiting > 0:
        link = heap[0]
        if room.counts[link] > 0:
            now = max(room.left[link], 0.0) / room.counts[link]
            if now > share[link]:
                share[link] = now
                _sink(heap, waiting, share, 0)
                if heap[0] != link:
                    continue
            place = _freeze(first, links, weights, link, share[link], rates, room, order, place)
        room.ends[link] = 0
        if room.left[link] < DUST * room.capacities[link]:
            room.left[link] = 0.0
        waiting -= 1
        if waiting > 0:
            heap[0] = heap[waiting]
            _sink(heap, waiting, share, 0)
    return place
