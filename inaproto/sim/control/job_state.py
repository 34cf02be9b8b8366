"""Jobs as the controller of a control world has them on disk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from inaproto.sim.control.config import ControlJob


class JobPhase(Enum):
    SUBMITTED = "submitted"
    RUNNING = "running"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class JobState:
    """On disk."""

    job: ControlJob
    phase: JobPhase
    boots: tuple[tuple[int, int], ...] = ()
    """Boot of each host of a job that runs, and the heartbeat by which it was ready."""
    why: str = ""
    """It is over."""


def boots_of(state: JobState) -> tuple[tuple[int, int, int], ...]:
    """(host, boot, heartbeat) of a job that has run."""
    pairs = zip(state.job.hosts, state.boots, strict=bool(state.boots))
    return tuple((host, boot, number) for host, (boot, number) in pairs)
