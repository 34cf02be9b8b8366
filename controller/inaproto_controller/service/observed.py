"""What the controller knows of its agents, host daemons and switches: never stored, always asked anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from inaproto_controller.planning.paring.live_tree import LivePlace


class Presence(StrEnum):
    UP = "up"
    """It reports."""
    UNKNOWN = "unknown"
    """Not heard of lately: it may hold what it was told to."""
    GONE = "gone"
    """Silent for longer than its lease. It may be dead or cut off: what it has stays its own."""


class Phase(StrEnum):
    """Phase of a grant, as its agent says."""

    HELD = "held"
    RUNNING = "running"
    """All ranks that belong there have joined."""
    ENDED = "ended"
    """All have left in order."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Hold:
    phase: Phase = Phase.HELD
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Agent:
    presence: Presence
    applied: int = 0
    """Revision of the wishes that it last made true."""
    holds: Mapping[int, Hold] = field(default_factory=lambda: MappingProxyType({}))
    """Holds by number of the grant, some of which may be unknown here."""
    has_collective: bool = False
    """Whether a host has a collective library, and keeps to places in it."""
    is_anew: bool = False
    """It was started not long ago: ranks that it had may come back to it."""


NOT_HEARD: Final = Agent(Presence.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Observed:
    agents: Mapping[str, Agent] = field(default_factory=dict)
    rings: Mapping[str, LivePlace] = field(default_factory=dict)
    """Where the rings of jobs on the path ``shared`` are, or get to, by name; none unless PARING plans."""
    barred_pkeys: frozenset[str] = frozenset()
    """PKeys that UFM has members of, and that are promised to nobody."""

    def agent(self, name: str) -> Agent:
        return self.agents.get(name, NOT_HEARD)
