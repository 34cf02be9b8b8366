"""What the links between hosts were measured to be, for the cost model of paths (:mod:`.path_costs`).

A host that arrives measures the link to one that is there. What an all-reduce takes follows its slowest link,
so of the measures that concern the hosts of a job the worst figures count: those between two of them, where
each has one, else those of each to anybody.

Invariants: a measure is kept until the same link is measured anew; at most ``links_max`` are, the newest;
hosts that nobody has measured have no figures.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from inaproto.core.rendezvous.path_costs import LinkFigures
from inaproto.errors import LocalMisuse
from inaproto.units import Instant, S

FRESH_NS: Final = 600 * S
"""A link that was measured not longer ago is not measured again."""


class LinkMeasure(NamedTuple):
    hosts: tuple[str, str]
    """Who measured, and to whom."""
    latency_ns: int
    """Half of what a small write took until it was acknowledged."""
    rate_bps: int
    at: Instant


class LinkMeasures:
    """What hosts have measured, by their names."""

    def __init__(self, *, links_max: int = 4096) -> None:
        self._links_max = links_max
        self._found: dict[frozenset[str], LinkMeasure] = {}

    def note(self, measure: LinkMeasure) -> None:
        """Raises ``LocalMisuse`` for what no link is."""
        if measure.hosts[0] == measure.hosts[1] or measure.latency_ns < 0 or measure.rate_bps < 1:
            raise LocalMisuse(f"{measure} is of no link")
        key = frozenset(measure.hosts)
        self._found.pop(key, None)
        self._found[key] = measure
        while len(self._found) > self._links_max:
            del self._found[next(iter(self._found))]

    def is_fresh(self, hosts: tuple[str, str], now: Instant) -> bool:
        found = self._found.get(frozenset(hosts))
        return found is not None and now - found.at < FRESH_NS

    def figures(self, hosts: Collection[str], switch_rate_bps: int = 0) -> LinkFigures | None:
        """None: of some of them nothing is known."""
        known = self._found.values()
        found = [measure for measure in known if all(one in hosts for one in measure.hosts)]
        if not _covers(found, hosts):
            found = [measure for measure in known if any(one in hosts for one in measure.hosts)]
        if not found or not _covers(found, hosts):
            return None
        return LinkFigures(
            max(measure.latency_ns for measure in found),
            min(measure.rate_bps for measure in found),
            switch_rate_bps,
        )

    def all(self) -> tuple[LinkMeasure, ...]:
        """The newest last."""
        return tuple(self._found.values())


def _covers(measures: list[LinkMeasure], hosts: Collection[str]) -> bool:
    measured = {host for measure in measures for host in measure.hosts}
    return all(host in measured for host in hosts)
