"""In which order a job's hosts get their ranks, so that several trees add them in the order of these.

A switch adds what comes to it in the order of the lowest rank of each part. So a tree adds in the order of
ranks if those below each of its switches follow each other; and where a ring may be on the fabric's own tree
first and on a planned one then, those below each switch of either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import permutations
from typing import Final

TRIED_MAX: Final = 7
"""Hosts whose orders are all tried where parts of two trees overlap."""

Part = frozenset[int]


def parts_of(above: Mapping[str, str], homes: Sequence[str]) -> set[Part]:
    """``homes``: the switch of each host; a part has the numbers of the hosts below some switch of a tree."""
    below: dict[str, set[int]] = {}
    for number, home in enumerate(homes):
        name = home
        below.setdefault(name, set()).add(number)
        while name in above:
            name = above[name]
            below.setdefault(name, set()).add(number)
    return {frozenset(one) for one in below.values()}


def common_order(count: int, parts: Collection[Part]) -> tuple[int, ...] | None:
    """An order of ``count`` hosts in which each part follows in one piece; None if none is known."""
    some = {part for part in parts if 1 < len(part) < count}
    if all(one <= other or other <= one or one.isdisjoint(other) for one in some for other in some):
        return tuple(_nested(frozenset(range(count)), some))
    if count > TRIED_MAX:
        return None
    return next((order for order in permutations(range(count)) if are_whole(order, some)), None)


def _nested(whole: Part, parts: Iterable[Part]) -> Iterable[int]:
    """Parts that lie within each other or apart: the lowest number first, and what is in a part with it."""
    inner = [part for part in parts if part < whole]
    largest = [part for part in inner if not any(part < other for other in inner)]
    covered = frozenset().union(*largest)
    pieces = [*largest, *(frozenset((one,)) for one in whole - covered)]
    for piece in sorted(pieces, key=min):
        yield from piece if len(piece) == 1 else _nested(piece, inner)


def are_whole(order: Sequence[int], parts: Iterable[Part]) -> bool:
    """Whether each part follows in one piece."""
    at = {number: place for place, number in enumerate(order)}
    places = ([at[number] for number in part] for part in parts)
    return all(max(one) - min(one) == len(one) - 1 for one in places)
