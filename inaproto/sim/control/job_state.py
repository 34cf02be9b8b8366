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


def boot_of(state: JobState, host: int) -> tuple[int, int] | None:
    """Boot and heartbeat of a host of a job that has run; None: it has not, or is on others."""
    if not state.boots or host not in state.job.hosts:
        return None
    return state.boots[state.job.hosts.index(host)]
