"""Which ranks had gone from their job by themselves, and which because it had failed, as host daemons say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class GoneRanks:
    """Ranks of one start."""

    by_themselves: set[int] = field(default_factory=set)
    """They have gone, in order or not, and had not been told that the job had failed."""
    told: dict[int, str] = field(default_factory=dict)
    """What others had been told first."""
    here: set[int] = field(default_factory=set)
    """A daemon has not seen them go."""


def gone_ranks(hosts: Iterable[Mapping[str, Any]], sessions: Mapping[int, int], age_s: float) -> GoneRanks:
    """``hosts``: statuses. ``sessions``: the rank of each session of processes, none older than ``age_s``."""
    found = GoneRanks()
    for host in hosts:
        for process in host.get("rank_processes", ()):
            rank = sessions.get(process["session"])
            if rank is None or process["joined_s_ago"] > age_s:
                continue
            if process["told"]:
                found.told.setdefault(rank, process["told"])
            (found.by_themselves if process["gone"] else found.here).add(rank)
    found.by_themselves -= found.here.union(found.told)
    return found
