"""What nodes of the control world tell each other beside the words of the cores; frozen, as those are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from inaproto.wire.messages.sharing import CoordinatorMessage, PeerMessage, Seat, SeatMessage
from inaproto.wire.messages.slots import Lease


class SeatPhase(Enum):
    READY = "ready"
    """There, and nothing has begun."""
    RUNNING = "running"
    FINISHED = "finished"
    """All operations have ended, and drained."""


@dataclass(frozen=True, slots=True)
class SeatSeen:
    """A seat, as its host has it."""

    job: str
    phase: SeatPhase
    lease: Lease | None
    """Lease of the tree on which its ring stands."""
    life: int
    """Life of its seat there, if it has one."""
    ring_id: int
    operation: int
    """Operation that runs, or that is next."""
    is_running: bool
    age_ns: int
    """How long it has run, or has been next."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a host has, said again and again; of one boot, the greatest number counts."""

    host: int
    boot: int
    number: int
    seats: tuple[SeatSeen, ...]
    obeys: tuple[int, int]
    """The newest orders that it has heard: their term and number."""


@dataclass(frozen=True, slots=True)
class JobOrder:
    """A job that a host is to have."""

    job: str
    begins: bool
    """All its hosts are ready: operations may start."""
    boot: int
    """Boot of the host for which that holds; 0: not yet known."""
    has_news: bool
    """False: nothing is known of its tree, which stays what it was."""
    lease: Lease | None
    """Lease of its tree; None: it has none."""


@dataclass(frozen=True, slots=True)
class Orders:
    """All jobs that a host is to have; it drops others. Of one term, the greatest number counts."""

    term: int
    number: int
    jobs: tuple[JobOrder, ...]
    heard: tuple[int, int] = (0, 0)
    """Boot and number of the newest heartbeat of the host that has come."""


@dataclass(frozen=True, slots=True)
class ToSeat:
    seat: Seat
    message: CoordinatorMessage


@dataclass(frozen=True, slots=True)
class SeatSays:
    tree: int
    """Tree whose pool it is about."""
    message: SeatMessage


@dataclass(frozen=True, slots=True)
class PeerSays:
    to: Seat
    sender: Seat
    message: PeerMessage


@dataclass(frozen=True, slots=True)
class ControllerIsHere:
    """Says to a switch that a control session is made."""

    term: int
