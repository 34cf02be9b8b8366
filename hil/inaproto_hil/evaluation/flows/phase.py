"""Flows that begin together, or when those that they wait for have ended: when each ends.

MLNet, section 4: one phase of a synchronisation, all workers' gradients on their way to the parameter
servers, or all weights on their way back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from inaproto.errors import LocalMisuse
from inaproto_hil.evaluation.flows.filling import room
from inaproto_hil.evaluation.flows.max_min import FASTEST, Engine, max_min
from inaproto_hil.evaluation.flows.paths import Floats, Ints, Paths
from inaproto_hil.evaluation.flows.running import DONE, LIVE, TIE, WAITING, Flows, State, run

NOBODY: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What is to be carried: F flows."""

    paths: Paths
    volumes: Floats
    """(F,)"""
    weights: Ints
    """(F,): how many alike flows each stands for."""
    after: Ints
    """(E,): flow that ...
    """
    before: Ints
    """... cannot begin until this one has ended."""
    classes: Ints
    groups: Ints

    @classmethod
    def of(
        cls,
        paths: Paths,
        volumes: Floats,
        *,
        weights: Ints | None = None,
        classes: Ints | None = None,
        groups: Ints | None = None,
        before: Ints | None = None,
        after: Ints | None = None,
    ) -> Load:
        """``before`` and ``after``: (E,) pairs of flows, one that has to end and one that waits for it."""
        count = len(paths)
        nothing = np.zeros(0, np.int64)
        return cls(
            paths,
            volumes,
            np.ones(count, np.int64) if weights is None else weights,
            nothing if after is None else after,
            nothing if before is None else before,
            np.zeros(count, np.int64) if classes is None else classes,
            np.zeros(count, np.int64) if groups is None else groups,
        )

    def on_links(self, links: int) -> Floats:
        """(links,): volume on each."""
        return self.paths.loads(links, self.volumes * self.weights)


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """What became of it."""

    ended: Floats
    """(F,)"""
    rated: int
    """How often rates were found."""

    @property
    def time(self) -> float:
        """Until all have ended."""
        return float(self.ended.max(initial=0.0))


def merged(load: Load) -> Load:
    """Flows of the same path, class, group and volume as one: they are alike for all time.

    Not those that wait, or that others wait for.
    """
    if len(load.before):
        raise LocalMisuse("flows that wait for others cannot be merged")
    hops = load.paths.hops
    table = np.full((len(hops), int(hops.max(initial=0)) + 3), NOBODY, np.int64)
    table[:, 0], table[:, 1] = load.classes, load.groups
    table[:, 2] = np.unique(load.volumes, return_inverse=True)[1]
    place = np.arange(len(load.paths.links)) - np.repeat(load.paths.first[:-1], hops)
    table[load.paths.flow_of_entry, place + 3] = load.paths.links
    _, one, whose = np.unique(table, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(one)
    weights = np.bincount(whose.reshape(-1), load.weights, minlength=len(one)).astype(np.int64)
    one, weights = one[order], weights[order]
    return Load.of(
        load.paths.taken(one),
        load.volumes[one],
        weights=weights,
        classes=load.classes[one],
        groups=load.groups[one],
    )


def carry(capacities: Floats, load: Load, *, slack: float = 0.0, engine: Engine = FASTEST) -> Course:
    """All of ``load`` from time 0 on. ``slack``: see :mod:`inaproto_hil.evaluation.flows.running`; 0 is
    exact."""
    if engine is Engine.REFERENCE:
        return _by_reference(capacities, load, slack)
    flows, state = prepared(capacities, load)
    fresh = np.flatnonzero(state.waits == 0)
    state.fresh[: len(fresh)] = fresh
    state.sizes[1] = len(fresh)
    _, rated = run(flows, state, int(load.classes.max(initial=0)) + 1, 0.0, np.inf, slack, False)
    return Course(state.ends, rated)


def prepared(capacities: Floats, load: Load) -> tuple[Flows, State]:
    """Everything waits, and nothing is fresh."""
    count = len(load.paths)
    order = np.argsort(load.before, kind="stable")
    first_next = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(load.before, minlength=count), out=first_next[1:])
    flows = Flows(
        load.paths.first,
        load.paths.links,
        load.weights,
        load.classes,
        load.groups,
        first_next,
        load.after[order].astype(np.int32),
    )
    state = State(
        np.full(count, WAITING, np.int32),
        load.volumes.copy(),
        np.zeros(count),
        np.zeros(count),
        np.full(count, np.inf),
        np.bincount(load.after, minlength=count),
        np.bincount(load.groups, minlength=int(load.groups.max(initial=0)) + 1),
        np.zeros(count, np.int32),
        np.zeros(count),
        np.zeros(count, np.int32),
        np.zeros(count, np.int32),
        np.zeros(count, np.int32),
        np.zeros(3, np.int64),
        room(capacities, len(load.paths.links)),
    )
    return flows, state


def _by_reference(capacities: Floats, load: Load, slack: float) -> Course:
    """The same, step by step, in NumPy alone."""
    count = len(load.paths)
    left, ended = load.volumes.copy(), np.full(count, np.inf)
    waits = np.bincount(load.after, minlength=count)
    status = np.where(waits == 0, LIVE, WAITING)
    now, rated = 0.0, 0
    while True:
        over = np.flatnonzero((status == LIVE) & ((load.paths.hops == 0) | (left <= 0)))
        if len(over):
            status[over] = DONE
            ended[over] = np.minimum(ended[over], now)
            waits -= np.bincount(load.after[np.isin(load.before, over)], minlength=count)
            status[(status == WAITING) & (waits == 0)] = LIVE
            continue
        live = np.flatnonzero(status == LIVE)
        if not len(live):
            return Course(ended, rated)
        paths = load.paths.taken(live)
        rates = max_min(
            capacities,
            paths,
            weights=load.weights[live],
            classes=load.classes[live],
            engine=Engine.REFERENCE,
        )
        rated += 1
        ends_in = np.divide(left[live], rates, out=np.full(len(live), np.inf), where=rates > 0)
        horizon = ends_in.min() + max(slack, TIE) * (now + ends_in.min())
        step = ends_in[ends_in <= horizon].max()
        is_over = ends_in <= step
        ended[live[is_over]] = now + ends_in[is_over]
        left[live] -= rates * step
        left[live[is_over]] = 0.0
        now += step
