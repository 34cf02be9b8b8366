"""The cores of an explored sharing group as finite machines, and what is said among them as numbers.

A local state is all that a core holds, less what has no influence on a later step: counters, tokens of the
log (one at most is waited for), how often a seat has asked (but for the first time), how many rounds were
aborted in a row, and for late votes (only waits grow by these). Clocks stand still: all durations are 0 or 1,
and a timer that expires is an event of its own, so there is no time in a state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from inaproto.core.sharing.coordinator import SharingCoordinator
from inaproto.core.sharing.events import (
    Differs,
    FromCoordinator,
    FromPeer,
    FromSeat,
    HoldOperation,
    JobBarred,
    JobDrained,
    Noted,
    ParticipantEvent,
    Persist,
    PoolFree,
    SeatGivenUp,
    SharingAction,
    SharingEvent,
    StartOperation,
    Tell,
    TellCoordinator,
    TellPeer,
    TurnStands,
)
from inaproto.core.sharing.participant import SharingParticipant
from inaproto.errors import Blame
from inaproto.sim.explore.machine import Machine, Numbers
from inaproto.units import Instant
from inaproto.wire.messages.sharing import (
    Abort,
    Commit,
    Done,
    Drained,
    EndTurn,
    Prepare,
    Refusal,
    Seat,
    TellPeerDecision,
)

COORDINATOR: Final = -1
"""As the receiver of a letter; seats are numbered from 0."""
SOON: Final = Instant(0)
LATER: Final = Instant(1)


@dataclass(frozen=True, slots=True)
class Letter:
    """A message under way."""

    to: int
    event: FromSeat | FromCoordinator | FromPeer

    @property
    def text(self) -> str:
        return f"{type(self.event.message).__name__}"


class LetterTable(Numbers[Letter]):
    def __init__(self, seats: tuple[Seat, ...]) -> None:
        super().__init__()
        self._seat_number = {seat: number for number, seat in enumerate(seats)}

    def sent_by_seat(self, seat: Seat, action: TellCoordinator | TellPeer) -> int:
        if isinstance(action, TellCoordinator):
            return self.of(Letter(COORDINATOR, FromSeat(seat, action.message)))
        return self.of(Letter(self._seat_number[action.seat], FromPeer(seat, action.message)))

    def sent_by_coordinator(self, action: Tell) -> int:
        return self.of(Letter(self._seat_number[action.seat], FromCoordinator(action.message)))


Core = TypeVar("Core", SharingCoordinator, SharingParticipant)


class SharingMachine(Machine[Core]):
    def __init__(self, perform: Callable[[Core, Any, Instant], tuple[Any, str | None]]) -> None:
        super().__init__(_LEFT_OUT, _normalise, ordered=False)  # what is under way has no order
        self._perform: Callable[[Core, Any, Instant], tuple[Any, str | None]] = perform
        """(core, event, now) -> (what it sends, what is wrong)"""
        self.violations: dict[int, str] = {}

    def step(self, state: int, key: Hashable, event: object, now: Instant = SOON) -> tuple[int, Any]:
        """``key`` names the event."""
        after, (sent, wrong) = self.known(state, (key, now), lambda core: self._perform(core, event, now))
        if wrong is not None:
            self.violations.setdefault(after, wrong)
        return after, sent


def perform_coordinator(
    letters: LetterTable, core: SharingCoordinator, event: SharingEvent, now: Instant
) -> tuple[tuple[tuple[int, ...], Persist | None], str | None]:
    sent: list[int] = []
    persist: Persist | None = None
    wrong: str | None = None
    action: SharingAction
    for action in core.step(event, now):
        match action:
            case Tell():
                sent.append(letters.sent_by_coordinator(action))
            case Persist():
                persist = action
            case Blame():
                wrong = f"the coordinator blames {action}"
            case TurnStands() | PoolFree() | SeatGivenUp() | JobBarred() | JobDrained() | Noted():
                pass
    return (tuple(sent), persist), wrong


def perform_seat(
    letters: LetterTable, seat: Seat, core: SharingParticipant, event: ParticipantEvent, now: Instant
) -> tuple[tuple[int, ...], str | None]:
    sent: list[int] = []
    wrong: str | None = None
    for action in core.step(event, now):
        match action:
            case TellCoordinator() | TellPeer():
                sent.append(letters.sent_by_seat(seat, action))
            case Blame():
                wrong = f"seat {seat.job}/{seat.host} blames {action}"
            case StartOperation() | HoldOperation() | Differs() | Noted():
                pass
    return tuple(sent), wrong


def is_void_for_seat(core: SharingParticipant, message: object) -> bool:
    """Whether it changes nothing, now or later: terms, versions and epochs only grow."""
    state, view = vars(core), core.view()
    if isinstance(message, Prepare | Commit | Abort | EndTurn) and message.term < view.term:
        return True
    match message:
        case Prepare():
            return bool(message.version <= max(view.version, state["_decided"]))
        case Commit():
            return bool(message.version < state["_decided"])
        case Abort() | TellPeerDecision():
            is_open = message.version == view.version and view.phase != "free"
            is_known = isinstance(message, TellPeerDecision) or message.version <= state["_promised"]
            return is_known and not is_open and message.version <= view.version
        case _:
            return False


def is_void_for_coordinator(core: SharingCoordinator, message: object) -> bool:
    """Whether it is void for the coordinator, if that does not crash any more."""
    rounds, view = vars(vars(core)["_rounds"]), core.view()
    match message:
        case Done():
            record = rounds["_pending"] or rounds["_record"]
            if message.version > record.version or view.phase in ("new", "starting"):
                return False
            return message.version < record.version or message.seat not in rounds["missing"]
        case Refusal():
            return message.version < view.version or view.phase not in ("new", "starting", "preparing")
        case Drained():
            if view.phase in ("new", "starting", "deciding"):
                return False
            return not any(
                turn.turn.epoch <= message.epoch and message.seat in turn.undrained for turn in view.turns
            )
        case _:
            return False


_LEFT_OUT: Final = frozenset(("_counters", "counters", "_config"))


def _normalise(core: SharingCoordinator | SharingParticipant) -> None:
    state = vars(core)
    if isinstance(core, SharingParticipant):
        state["_asked"] = min(state["_asked"], 1)
        return
    rounds = vars(state["_rounds"])
    rounds["aborted"] = rounds["_late"] = rounds["_begun"] = 0
    rounds["_token"] = 0 if rounds["_pending"] is None else 1
    if rounds["deadline"] is not None:
        rounds["deadline"] = LATER if core.view().phase == "committing" else SOON
    if state["_poll"] is not None:
        state["_poll"] = LATER
