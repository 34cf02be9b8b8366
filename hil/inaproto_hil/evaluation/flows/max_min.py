"""Max-min fair rates of flows, strictly by priority: one function, two engines.

Within a class, a rate can only be raised by lowering one that is no higher. Between classes, the highest is
given its rates on the full capacities, the next on what that leaves, and so on (MLNet, section 3.3): nothing
that a class does not use is lost to the next, so every flow that is not served in full has a link that is
full.

The reference needs NumPy alone and freezes, round by round, all flows of every link that is the tightest for
each of them; the compiled engine (the extra ``planning``) takes one link after another from a heap. They
agree to 1e-9.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import numpy as np

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.compiled import IS_COMPILED
from inaproto_hil.evaluation.flows.filling import DUST, fill, room
from inaproto_hil.evaluation.flows.paths import Floats, Ints, Paths


class Engine(Enum):
    REFERENCE = "reference"
    COMPILED = "compiled"


FASTEST: Final = Engine.COMPILED if IS_COMPILED else Engine.REFERENCE


def max_min(
    capacities: Floats,
    paths: Paths,
    *,
    weights: Ints | None = None,
    classes: Ints | None = None,
    engine: Engine = FASTEST,
) -> Floats:
    """(F,): rates, in the unit of ``capacities`` (links,); infinite for a flow without links.

    ``weights``: (F,) how many alike flows each stands for; its rate is that of one of them. ``classes``: (F,)
    priorities, 0 the highest. Raises ``LocalMisuse``.
    """
    count = len(paths)
    weights = np.ones(count, np.int64) if weights is None else weights
    classes = np.zeros(count, np.int64) if classes is None else classes
    if len(weights) != count or len(classes) != count:
        raise LocalMisuse(f"{count} flows, {len(weights)} weights, {len(classes)} classes")
    if count and (weights.min() < 1 or classes.min() < 0):
        raise LocalMisuse("weights are at least 1, classes at least 0")
    if not (np.isfinite(capacities).all() and (capacities > 0).all()):
        raise LocalMisuse("capacities are positive numbers")
    if engine is Engine.REFERENCE:
        return _by_rounds(capacities, paths, weights, classes)
    return _by_links(capacities, paths, weights, classes)


def _by_links(capacities: Floats, paths: Paths, weights: Ints, classes: Ints) -> Floats:
    rates = np.full(len(paths), np.inf)
    order = np.zeros(len(paths), np.int32)
    links = room(capacities, len(paths.links))
    for one in np.unique(classes):
        flows = np.flatnonzero((classes == one) & (paths.hops > 0)).astype(np.int32)
        fill(paths.first, paths.links, weights, flows, len(flows), rates, links, order, 0)
    return rates


def _by_rounds(capacities: Floats, paths: Paths, weights: Ints, classes: Ints) -> Floats:
    rates = np.full(len(paths), np.inf)
    left = capacities.copy()
    for one in np.unique(classes):
        flows = np.flatnonzero((classes == one) & (paths.hops > 0))
        rates[flows] = _of_one_class(left, paths.taken(flows), weights[flows])
        used = paths.taken(flows).loads(len(left), rates[flows] * weights[flows])
        left -= used
        left[left < DUST * capacities] = 0.0
    return rates


def _of_one_class(capacities: Floats, paths: Paths, weights: Ints) -> Floats:
    """All links that are the tightest for each of their flows are frozen at once."""
    links = len(capacities)
    left = capacities.copy()
    rates = np.zeros(len(paths))
    whose, links_of = paths.flow_of_entry, paths.links
    while len(links_of):
        live = np.bincount(links_of, weights[whose], minlength=links)
        share = np.divide(left, live, out=np.full(links, np.inf), where=live > 0)
        there, at = np.unique(whose, return_index=True)
        tightest = np.full(len(paths), np.inf)
        tightest[there] = np.minimum.reduceat(share[links_of], at)
        least = np.full(links, np.inf)
        np.minimum.at(least, links_of, tightest[whose])
        is_frozen_link = (live > 0) & (least >= share)
        frozen = np.unique(whose[is_frozen_link[links_of]])
        rates[frozen] = tightest[frozen]
        is_frozen = np.zeros(len(paths), bool)
        is_frozen[frozen] = True
        gone = is_frozen[whose]
        left -= np.bincount(links_of[gone], (rates * weights)[whose[gone]], minlength=links)
        np.maximum(left, 0.0, out=left)
        whose, links_of = whose[~gone], links_of[~gone]
    return rates


def certificate(
    capacities: Floats,
    paths: Paths,
    rates: Floats,
    *,
    weights: Ints | None = None,
    classes: Ints | None = None,
    within: float = 1e-9,
) -> str | None:
    """None if ``rates`` are max-min fair, strictly by priority; else what is wrong.

    No link carries more than it can, and every flow has a link that is full of flows of its class and of
    higher ones, on which none of its class has a higher rate.
    """
    count, links = len(paths), len(capacities)
    weights = np.ones(count, np.int64) if weights is None else weights
    classes = np.zeros(count, np.int64) if classes is None else classes
    used = np.zeros(links)
    for one in np.unique(classes):
        flows = np.flatnonzero((classes == one) & (paths.hops > 0))
        mine = paths.taken(flows)
        used += mine.loads(links, rates[flows] * weights[flows])
        over = np.flatnonzero(used > capacities * (1 + within))
        if len(over):
            return f"link {over[0]} carries {used[over[0]]!r} of {capacities[over[0]]!r}"
        rated = rates[flows][mine.flow_of_entry]
        highest = np.zeros(links)
        np.maximum.at(highest, mine.links, rated)
        near = within * np.maximum(highest, capacities * within)[mine.links]
        holds = (used >= capacities * (1 - within))[mine.links] & (rated >= highest[mine.links] - near)
        held = np.bincount(mine.flow_of_entry, holds, minlength=len(flows)) > 0
        if not held.all():
            flow = flows[np.flatnonzero(~held)[0]]
            return f"flow {flow} of class {one} at {rates[flow]!r} is held back by no link"
    return None
