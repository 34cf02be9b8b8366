"""A largest independent set, proved: branch and bound on bit masks.

Sets of vertices are arrays of 64-bit words, vertex v is bit ``v % 64`` of word ``v // 64``. At each branch:
what some largest set surely has is taken (degree 0 or 1, neighbours that all know each other), what it can do
without goes (a vertex that knows a neighbour and all that this one knows), parts that do not touch are solved
each for itself, and a part is given up where the cliques that cover it are too few. The branch is on the
vertex with most neighbours, with it first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.cluster.compiled import jit
from inaproto_controller.cluster.network import Bools, Ints

Words = NDArray[np.uint64]
Masks = NDArray[np.uint64]
"""(n, words): of each vertex its neighbours."""

_ONE = np.uint64(1)
_FULL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_SHIFTS = (np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(8), np.uint64(16), np.uint64(32))
_PAIRS = np.uint64(0x5555_5555_5555_5555)
_FOURS = np.uint64(0x3333_3333_3333_3333)
_BYTES = np.uint64(0x0F0F_0F0F_0F0F_0F0F)
_LAST = np.uint64(127)
_BITS = np.array([1 << bit for bit in range(64)], np.uint64)


def largest_set(adjacency: Bools, branches_max: int) -> Bools | None:
    """(n, n) bool, symmetric -> (n,) bool; None if that takes more branches than allowed."""
    count = adjacency.shape[0]
    words = max(1, -(-count // 64))
    padded = np.zeros((count, words * 64), np.bool_)
    padded[:, :count] = adjacency
    masks = np.packbits(padded, axis=1, bitorder="little").view(np.uint64)
    everything = np.packbits(np.arange(words * 64) < count, bitorder="little").view(np.uint64)
    found = np.zeros(words, np.uint64)
    branches_left = np.array([branches_max], np.int64)
    _best(masks, everything, -1, found, branches_left)
    if branches_left[0] < 0:
        return None
    return np.unpackbits(found.view(np.uint8), bitorder="little", count=count).astype(np.bool_)


@jit
def _ones(word: np.uint64) -> int:
    word -= (word >> _SHIFTS[0]) & _PAIRS
    word = (word & _FOURS) + ((word >> _SHIFTS[1]) & _FOURS)
    word = (word + (word >> _SHIFTS[2])) & _BYTES
    word += word >> _SHIFTS[3]
    word += word >> _SHIFTS[4]
    word += word >> _SHIFTS[5]
    return int(word & _LAST)


@jit
def _lowest(word: np.uint64) -> int:
    """Number of the lowest bit of a word that is not 0."""
    return _ones((word ^ _FULL) & (word - _ONE))


@jit
def _size(members: Words) -> int:
    found = 0
    for word in members:
        found += _ones(word)
    return found


@jit
def _common(one: Words, other: Words) -> int:
    found = 0
    for index in range(one.size):
        word = one[index] & other[index]
        if word:
            found += _ones(word)
    return found


@jit
def _is_clique(masks: Masks, members: Words) -> bool:
    for index in range(members.size):
        rest = members[index]
        while rest:
            bit = _lowest(rest)
            rest &= rest - _ONE
            vertex = index * 64 + bit
            for word in range(members.size):
                others = members[word]
                if word == index:
                    others &= _BITS[bit] ^ _FULL
                if others & (masks[vertex, word] ^ _FULL):
                    return False
    return True


@jit
def _dominates(masks: Masks, vertex: int, left: Words) -> bool:
    """Whether this one knows a neighbour and all that this neighbour knows: a set does as well with that."""
    for index in range(left.size):
        rest = masks[vertex, index] & left[index]
        while rest:
            bit = _lowest(rest)
            rest &= rest - _ONE
            other = index * 64 + bit
            outside = False
            for word in range(left.size):
                theirs = masks[other, word] & left[word] & (masks[vertex, word] ^ _FULL)
                if word == vertex // 64:
                    theirs &= _BITS[vertex % 64] ^ _FULL
                if theirs:
                    outside = True
                    break
            if not outside:
                return True
    return False


@jit
def _reduce(masks: Masks, left: Words, chosen: Words) -> None:
    """Until nothing is sure any more."""
    neighbours = np.empty_like(left)
    again = True
    while again:
        again = False
        for index in range(left.size):
            rest = left[index]
            while rest:
                bit = _lowest(rest)
                rest &= rest - _ONE
                vertex = index * 64 + bit
                degree = 0
                for word in range(left.size):
                    neighbours[word] = masks[vertex, word] & left[word]
                    degree += _ones(neighbours[word])
                if degree <= 1 or (degree <= 6 and _is_clique(masks, neighbours)):
                    chosen[index] |= _BITS[bit]
                    left[index] &= _BITS[bit] ^ _FULL
                    for word in range(left.size):
                        left[word] &= neighbours[word] ^ _FULL
                    rest &= left[index]
                    again = True
                elif _dominates(masks, vertex, left):
                    left[index] &= _BITS[bit] ^ _FULL
                    again = True


@jit
def _component(masks: Masks, left: Words, part: Words) -> None:
    """Put the component of the lowest vertex into ``part``."""
    part[:] = 0
    frontier = np.zeros_like(left)
    for index in range(left.size):
        if left[index]:
            frontier[index] = _BITS[_lowest(left[index])]
            break
    grows = True
    while grows:
        grows = False
        for index in range(left.size):
            rest = frontier[index]
            frontier[index] = 0
            part[index] |= rest
            while rest:
                vertex = index * 64 + _lowest(rest)
                rest &= rest - _ONE
                for word in range(left.size):
                    reached = masks[vertex, word] & left[word] & (part[word] ^ _FULL)
                    if reached:
                        part[word] |= reached
                        frontier[word] |= reached
                        grows = True


@jit
def _cover(masks: Masks, left: Words, enough: int) -> int:
    """Cliques that cover all: no independent set has more vertices. Stops where they are more than
    ``enough``."""
    cliques = np.empty((enough + 2, left.size), np.uint64)
    found = 0
    for index in range(left.size):
        rest = left[index]
        while rest:
            bit = _lowest(rest)
            rest &= rest - _ONE
            vertex = index * 64 + bit
            place = 0
            while place < found:
                # What all members of the clique know.
                if cliques[place, index] & _BITS[bit]:
                    break
                place += 1
            if place == found:
                if found > enough:
                    return found
                for word in range(left.size):
                    cliques[place, word] = masks[vertex, word]
                found += 1
            else:
                for word in range(left.size):
                    cliques[place, word] &= masks[vertex, word]
    return found


@jit
def _densest(masks: Masks, left: Words) -> int:
    found, most = -1, -1
    for index in range(left.size):
        rest = left[index]
        while rest:
            vertex = index * 64 + _lowest(rest)
            rest &= rest - _ONE
            degree = _common(masks[vertex], left)
            if degree > most:
                found, most = vertex, degree
    return found


@jit
def _best(masks: Masks, within: Words, at_least: int, best: Words, branches_left: Ints) -> int:
    """A largest set within these, into ``best``, and its size; any, maybe none, if it is not more than
    ``at_least``. Gives up, with any, where ``branches_left`` falls below 0."""
    if branches_left[0] < 0:
        return 0
    left = within.copy()
    best[:] = 0
    _reduce(masks, left, best)
    size = _size(best)
    rest = _size(left)
    if rest == 0 or size + rest <= at_least:
        return size
    part = np.empty_like(left)
    own = np.empty_like(left)
    _component(masks, left, part)
    if _size(part) < rest:
        # ``hoped``: no set of all parts has more.
        hoped = size + _bounds(masks, left)
        while _size(left) > 0 and hoped > at_least:
            _component(masks, left, part)
            bound = _cover(masks, part, rest)
            found = _best(masks, part, at_least - (hoped - bound), own, branches_left)
            hoped += found - bound
            size += found
            for word in range(left.size):
                best[word] |= own[word]
                left[word] &= part[word] ^ _FULL
        return size
    if _cover(masks, left, max(at_least - size, 0)) <= at_least - size:
        return size
    branches_left[0] -= 1
    vertex = _densest(masks, left)
    left[vertex // 64] &= _BITS[vertex % 64] ^ _FULL
    other = left.copy()
    for word in range(left.size):
        other[word] &= masks[vertex, word] ^ _FULL
    with_it = 1 + _best(masks, other, at_least - size - 1, own, branches_left)
    own[vertex // 64] |= _BITS[vertex % 64]
    without = _best(masks, left, max(at_least - size, with_it), part, branches_left)
    if without > with_it:
        own[:] = part
    for word in range(left.size):
        best[word] |= own[word]
    return size + max(with_it, without)


@jit
def _bounds(masks: Masks, within: Words) -> int:
    """Bounds of all components together."""
    left, part, found = within.copy(), np.empty_like(within), 0
    size = _size(left)
    while _size(left) > 0:
        _component(masks, left, part)
        found += _cover(masks, part, size)
        for word in range(left.size):
            left[word] &= part[word] ^ _FULL
    return found
