"""What becomes of a job, by what its controller sees of its seats: pure, of one instant, without a memory.

A job is over with the first seat that failed or is lost, for its other ranks cannot go on. Of an *elastic*
one the others do, as the job that follows it (docs/protocol.md 13.7), in the same seats
(:mod:`inaproto.core.grants.seats`). So it is over when all its seats are, each by itself; it has ended if one
of them has, else it has failed; and what befell the others is named either way.

Invariant: an elastic job is not over while a seat of it runs, nor while nothing is known of one that may run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

OTHERS_GO_ON: Final = "the others go on"
OTHERS_WENT_ON: Final = "the others went on to the end"


class Fate(Enum):
    """Of a seat, as seen."""

    AWAITED = auto()
    """Nothing is known: its host is not heard of just now, or was started anew, and ranks may come back."""
    ABSENT = auto()
    """Its host reports that not all its ranks are there; of a job that runs, none has come back."""
    RUNNING = auto()
    ENDED = auto()
    FAILED = auto()
    LOST = auto()
    """Its host was silent for too long, or is no host any more."""


@dataclass(frozen=True, slots=True)
class SeatSeen:
    fate: Fate
    why: str = ""
    """What befell it, or a rank of it while others are there: who and what, for people."""


# --- verdicts


@dataclass(frozen=True, slots=True)
class AsItWas:
    """Nothing follows."""


@dataclass(frozen=True, slots=True)
class Runs:
    why: str = ""
    """What has befallen some of an elastic job."""


@dataclass(frozen=True, slots=True)
class PlacedAgain:
    """It was placed and had not begun; one of its hosts is lost."""

    why: str


@dataclass(frozen=True, slots=True)
class Over:
    has_failed: bool
    why: str = ""


Verdict = AsItWas | Runs | PlacedAgain | Over


def verdict(seats: Iterable[SeatSeen], *, is_running: bool, is_elastic: bool) -> Verdict:
    """``seats``: all of the job, in its order. ``is_running``: all its ranks have been there."""
    return _of_elastic(tuple(seats), is_running) if is_elastic else _of_rigid(seats, is_running)


def _of_rigid(seats: Iterable[SeatSeen], is_running: bool) -> Verdict:
    fates = []
    for seat in seats:
        if seat.fate is Fate.LOST or (seat.fate is Fate.ABSENT and is_running):
            return Over(True, seat.why) if is_running else PlacedAgain(seat.why)
        if seat.fate is Fate.FAILED:
            return Over(True, seat.why)
        fates.append(seat.fate)
    if fates and all(fate is Fate.ENDED for fate in fates):
        return Over(False)
    if not is_running and all(fate in (Fate.RUNNING, Fate.ENDED) for fate in fates):
        return Runs()
    return AsItWas()


def _of_elastic(seats: tuple[SeatSeen, ...], is_running: bool) -> Verdict:
    fates = [seat.fate for seat in seats]
    lost = next((seat.why for seat in seats if seat.fate is Fate.LOST), "")
    if not is_running and not any(fate in (Fate.RUNNING, Fate.ENDED, Fate.FAILED) for fate in fates):
        return PlacedAgain(lost) if lost else AsItWas()
    if Fate.AWAITED in fates:
        return AsItWas()
    failed = next((seat.why for seat in seats if seat.fate is Fate.FAILED), "")
    befell = failed or next((seat.why for seat in seats if seat.why), "")
    if Fate.RUNNING in fates:
        if not is_running and Fate.ABSENT in fates:
            return AsItWas()
        return Runs(f"{befell}; {OTHERS_GO_ON}" if befell else "")
    # Some have begun, so all had: who is absent is not to come any more.
    if Fate.ENDED in fates:
        return Over(False, f"{befell}; {OTHERS_WENT_ON}" if befell else "")
    return Over(True, befell)
