"""Size, faults and rule of an explored sharing group; see :mod:`inaproto.sim.explore.sharing.world`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from inaproto.core.sharing.coordinator import SharingCoordinator
from inaproto.core.sharing.events import ParticipantConfig, SharingConfig, SharingRecord, TurnWanted
from inaproto.core.sharing.participant import SharingParticipant
from inaproto.errors import ConfigError
from inaproto.units import JobId, OpIndex
from inaproto.wire.messages.sharing import Rule, Seat

RANGES: Final = {
    "jobs": (1, 4),
    "hosts": (1, 4),
    "operations": (1, 8),
    "margin": (0, 4),
    "turn": (0, 8),
    "first": (0, 8),
    "until": (0, 8),
    "capacity": (1, 4),
    "objections_max": (1, 8),
    "turns": (1, 6),
    "rounds": (1, 8),
    "losses": (0, 4),
    "duplicates": (0, 4),
    "crashes": (0, 3),
    "host_crashes": (0, 2),
    "early_timers": (0, 4),
}


@dataclass(frozen=True)
class SharingWorldConfig:
    rule: Rule = Rule.BY_INDEX
    jobs: int = 2
    hosts: int = 2
    """Each has a seat of each job."""
    operations: int = 2
    """Operations of each job."""
    margin: int = 0
    turn: int = 0
    """Operations of a turn; 0: it is open, and the next wish ends it."""
    first: int = 0
    """The earliest operation of any turn."""
    until: int = 0
    """Operation that no turn goes past, whatever its length; 0: there is none."""
    capacity: int = 1
    objections_max: int = 1
    """Rounds that meet seats in operations before the turn ends without one."""
    turns: int = 2
    """Wishes of the planner: the first job, the second, ... and round again."""
    rounds: int = 3
    """After so many, only a round that can succeed is tried again."""
    losses: int = 0
    duplicates: int = 0
    crashes: int = 0
    """Crashes of the coordinator."""
    host_crashes: int = 0
    early_timers: int = 0
    """Timers that expire although what they wait for is under way."""
    hasty: bool = False
    """Whether the planner changes its mind while a round is under way."""
    reduced: bool = True
    waits_for_log: bool = True
    """Whether a commit leaves after it is durable."""
    coordinator: Callable[[SharingConfig, SharingRecord | None], SharingCoordinator] = field(
        default=SharingCoordinator, compare=False
    )
    participant: Callable[[ParticipantConfig], SharingParticipant] = field(
        default=SharingParticipant, compare=False
    )

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name} must be {least} to {most}, not {value}")
        if 0 < self.until <= self.first:
            raise ConfigError(f"until must be after first, {self.first}, not {self.until}")

    @cached_property
    def seats(self) -> tuple[Seat, ...]:
        """Job by job."""
        return tuple(
            Seat(JobId(chr(ord("A") + job)), f"h{host}")
            for job in range(self.jobs)
            for host in range(self.hosts)
        )

    @cached_property
    def wishes(self) -> tuple[TurnWanted, ...]:
        return tuple(
            TurnWanted(
                JobId(chr(ord("A") + number % self.jobs)),
                self.turn or None,
                OpIndex(self.first),
                OpIndex(self.until) if self.until else None,
            )
            for number in range(self.turns)
        )

    @cached_property
    def sharing(self) -> SharingConfig:
        """Clocks stand still: 0 is a timer that is explored on its own, 1 one that is explored with it."""
        return SharingConfig(
            group="explored",
            rule=self.rule,
            capacity=self.capacity,
            margin=self.margin,
            end_margin=self.margin,
            vote_ns=0,
            lease_ns=0,
            resend_ns=1,
            retry_ns=0,
            retry_doublings_max=0,
            objections_max=self.objections_max,
        )
