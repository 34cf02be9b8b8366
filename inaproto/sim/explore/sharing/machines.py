"""The cores of an explored sharing group as finite machines, and what is said among them as numbers.

Each step is computed once by the real core and then remembered: a machine is a table
``(local state, event) -> (local state, letters)``, filled while the search goes on.

A local state is all that a core holds, less what has no influence on a later step: counters, tokens of the
log (one at most is waited for), how often a seat has asked (but for the first time), how many rounds were
aborted in a row, and for late votes (only waits grow by these). Clocks stand still: all durations are 0 or 1,
and a timer that expires is an event of its own, so there is no time in a state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, is_dataclass
from typing import Any, Final, Generic, TypeVar

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
from inaproto.core.sharing.rounds import Rounds
from inaproto.core.sharing.standing_turns import StandingTurns
from inaproto.errors import Blame
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


class LetterTable:
    def __init__(self, seats: tuple[Seat, ...]) -> None:
        self._seat_number = {seat: number for number, seat in enumerate(seats)}
        self._letters: list[Letter] = []
        self._numbers: dict[Letter, int] = {}

    def __getitem__(self, number: int) -> Letter:
        return self._letters[number]

    def __len__(self) -> int:
        return len(self._letters)

    def number(self, letter: Letter) -> int:
        number = self._numbers.get(letter)
        if number is None:
            number = self._numbers[letter] = len(self._letters)
            self._letters.append(letter)
        return number

    def sent_by_seat(self, seat: Seat, action: TellCoordinator | TellPeer) -> int:
        if isinstance(action, TellCoordinator):
            return self.number(Letter(COORDINATOR, FromSeat(seat, action.message)))
        return self.number(Letter(self._seat_number[action.seat], FromPeer(seat, action.message)))

    def sent_by_coordinator(self, action: Tell) -> int:
        return self.number(Letter(self._seat_number[action.seat], FromCoordinator(action.message)))


Core = TypeVar("Core", SharingCoordinator, SharingParticipant)


class Machine(Generic[Core]):
    """States are numbers from 0; so are events, which the world numbers."""

    def __init__(self, perform: Callable[[Core, Any, Instant], tuple[Any, str | None]]) -> None:
        self._perform: Callable[[Core, Any, Instant], tuple[Any, str | None]] = perform
        """(core, event, now) -> (what it sends, what is wrong)"""
        self.cores: list[Core] = []
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, Hashable, int], tuple[int, Any]] = {}
        self.violations: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.cores)

    def enter(self, core: Core) -> int:
        _normalise(core)
        state = _values(core)
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self.cores)
            self.cores.append(core)
        return number

    def step(self, state: int, key: Hashable, event: object, now: Instant = SOON) -> tuple[int, Any]:
        """``key`` names the event."""
        known = self._steps.get((state, key, now))
        if known is None:
            core = fork(self.cores[state])
            sent, wrong = self._perform(core, event, now)
            after = self.enter(core)
            if wrong is not None:
                self.violations.setdefault(after, wrong)
            known = self._steps[state, key, now] = after, sent
        return known


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


_LEFT_OUT: Final = ("_counters", "counters", "_config")


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


def fork(value: Any) -> Any:
    """A copy that can change without the original: containers and mutable records are copied."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list):
        return [fork(one) for one in value]
    if not _is_mutable(value):
        return value
    twin = object.__new__(type(value))
    for name in _names(value):
        part = getattr(value, name)
        object.__setattr__(twin, name, part if name in _LEFT_OUT else fork(part))
    return twin


def _values(value: Any) -> Hashable:
    if isinstance(value, dict):
        return frozenset(value.items())
    if isinstance(value, list):
        return tuple(_values(one) for one in value)
    if not _is_mutable(value):
        return value  # type: ignore[no-any-return]
    return tuple(_values(getattr(value, name)) for name in _names(value) if name not in _LEFT_OUT)


def _is_mutable(value: Any) -> bool:
    if isinstance(value, SharingCoordinator | SharingParticipant | Rounds | StandingTurns):
        return True
    parameters: Any = getattr(value, "__dataclass_params__", None)
    return parameters is not None and not parameters.frozen


def _names(value: Any) -> tuple[str, ...]:
    return tuple(value.__dataclass_fields__) if is_dataclass(value) else tuple(vars(value))
