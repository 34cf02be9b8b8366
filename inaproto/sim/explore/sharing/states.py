"""Steps and states of an explored sharing group; see :mod:`inaproto.sim.explore.sharing.world`."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from inaproto.core.sharing.events import SharingRecord
from inaproto.core.sharing.participant import SharingParticipant
from inaproto.sim.explore.machine import Numbers
from inaproto.sim.explore.sharing.machines import LetterTable

State = tuple[int, ...]
"""Coordinator, log, extra, letters, seats; all are numbers into tables. Who is down is -1."""
DOWN: Final = -1

DELIVER: Final = "deliver"
REPEAT: Final = "deliver, and keep a copy under way"
LOSE: Final = "lose"
WRITE: Final = "the log is written"
START: Final = "start"
END: Final = "end"
LEASE: Final = "timer of a seat"
LEASE_EARLY: Final = "early timer of a seat"
TIMER: Final = "timer of the coordinator"
TIMER_EARLY: Final = "early timer of the coordinator"
RESEND: Final = "second timer of the coordinator"
WISH: Final = "wish"
CRASH: Final = "crash"
CRASH_WRITTEN: Final = "crash, after the log was written"
LOST: Final = "the coordinator's end is noticed"
RESTART: Final = "restart"
HOST_CRASH: Final = "host crash"
GONE: Final = "gone"
FAULTS: Final = frozenset((REPEAT, LOSE, LEASE_EARLY, TIMER_EARLY, CRASH, CRASH_WRITTEN, HOST_CRASH))


class Step(NamedTuple):
    what: str
    where: int
    """Letter, seat, host or job."""


class Extra(NamedTuple):
    wishes: int
    """Said."""
    losses: int
    duplicates: int
    crashes: int
    host_crashes: int
    early: int
    gone: tuple[int, ...]
    """Seats of whose end the coordinator has heard."""
    left: tuple[int, ...]
    """Jobs that have left."""


class Log(NamedTuple):
    durable: SharingRecord | None
    pending: SharingRecord | None


class Local(NamedTuple):
    """What the world asks of a seat."""

    next: int
    running: int
    """-1: none."""
    is_ina: bool
    epoch: int
    is_held: bool
    is_closed: bool
    phase: str
    version: Any
    floor: int
    owes: bool


def local_of(core: SharingParticipant) -> Local:
    view, state = core.view(), vars(core)
    running = next(iter(state["_running"].items()), (-1, None))
    return Local(
        next=view.next_operation,
        running=running[0],
        is_ina=running[1] is not None,
        epoch=0 if running[1] is None else running[1],
        is_held=view.is_held,
        is_closed=state["_is_closed"],
        phase=view.phase,
        version=view.version,
        floor=state["_floor"],
        owes=state["_owed"] is not None,
    )


class Nets(Numbers[tuple[int, ...]]):
    """Sets of letters under way; the empty one is 0."""

    def __init__(self, letters: LetterTable) -> None:
        super().__init__()
        self._letters = letters
        self._posted: dict[tuple[int, tuple[int, ...]], int] = {}
        self._removed: dict[tuple[int, int], int] = {}
        self.of(())

    def post(self, state: State, sent: tuple[int, ...]) -> int:
        """What is sent to seats that are down is gone."""
        net = state[3]
        if not sent:
            return net
        letters = self._letters
        alive = tuple(one for one in sent if letters[one].to < 0 or state[4 + letters[one].to] != DOWN)
        after = self._posted.get((net, alive))
        if after is None:
            after = self._posted[net, alive] = self.of(tuple(sorted({*self[net], *alive})))
        return after

    def without(self, net: int, letter: int) -> int:
        after = self._removed.get((net, letter))
        if after is None:
            after = self._removed[net, letter] = self.of(tuple(one for one in self[net] if one != letter))
        return after
