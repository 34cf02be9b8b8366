"""Why a job has no tree, for people: in the words of what has kept the plan from giving it one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from inaproto_controller.planning.cluster_planner import Resource

NAMED_MAX: Final = 4
BARS_MAX: Final = 2
"""Reasons that are told of one job."""
NOWHERE: Final = "no switch that sums is where the ways of its hosts meet"
NOT_LEFT: Final = "its hosts have not given back their places in the tree that it had"
SOON: Final = "it is to get one now"
GAINS_NOTHING: Final = "gains nothing by one: its steps would be as long"


def wants_attention(why: str) -> bool:
    """Whether somebody may mend it: a tree that comes soon, or gains nothing, is no trouble."""
    return why not in ("", SOON) and GAINS_NOTHING not in why


class Bar(NamedTuple):
    """What keeps a job from a tree; one of these."""

    away: tuple[str, ...] = ()
    """Hosts and switches that do not report as a tree needs it."""
    awaited: str = ""
    """Root of another tree, for which the job waits."""
    full: tuple[Resource, ...] = ()
    """Where there is no slot."""


def told(bars: Sequence[Bar | None], holders: Callable[[Collection[Resource]], set[str]]) -> str:
    """``bars``: of each tree that the job might have; ``holders``: names of jobs that have slots there."""
    found = Counter(bar for bar in bars if bar is not None)
    if found.total() < len(bars):
        return SOON
    return "; ".join(_words(bar, holders) for bar, _ in found.most_common(BARS_MAX))


def _words(bar: Bar, holders: Callable[[Collection[Resource]], set[str]]) -> str:
    if bar.away:
        return f"{_named(bar.away)} {'does' if len(bar.away) == 1 else 'do'} not report as a tree needs it"
    if bar.awaited:
        return f"it waits for the tree at {bar.awaited}, which was wished"
    names = holders(bar.full)
    by = f"taken by {_named(sorted(names))}" if names else "claimed by another job"
    return f"{_named(sorted(map(_written, bar.full)))} {'is' if len(bar.full) == 1 else 'are'} {by}"


def _written(resource: Resource) -> str:
    return f"{resource.agent} at {resource.port}" if resource.port else resource.agent


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
