"""What becomes of a job, by what its controller sees of its seats: pure, of one instant, without a memory.

A job is over with the first seat that failed or is lost, for its other ranks cannot go on. Of an *elastic*
one the others do, as the job that follows it (docs/protocol.md 13.7), in the same seats
(:mod:`inaproto.core.grants.seats`). So it is over when all its seats are, each by itself; it has ended if one
of them has, else it has failed; and what befell the others is named either way.

An elastic job runs once one of its seats was seen to have begun: then all have, though their hosts may not
have said so yet. That a host reports none of its ranks means that they are lost only if it has heard of a
revision since then; no clock is in this.

Invariant: an elastic job is not over while a seat of it runs, nor while nothing is known of one that may run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal

from inaproto.wire.messages.controller import HoldPhase

OTHERS_GO_ON: Final = "the others go on"
OTHERS_WENT_ON: Final = "the others went on to the end"


class Fate(Enum):
    """What has become of a seat, as seen."""

    AWAITED = auto()
    """Nothing is known that would last: its host is not heard of just now, or its ranks may still come."""
    ABSENT = auto()
    """Its host reports that not all its ranks are there; of a job that runs, they will not come back."""
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


@dataclass(frozen=True, slots=True)
class HostSeen:
    """What is seen of the host of a seat."""

    name: str
    presence: Literal["up", "unknown", "gone", "unlisted"]
    """It reports; not just now; not for longer than its lease; or the cluster file has it no more."""
    is_anew: bool = False
    """It was started not long ago: ranks that it had may come back to it."""
    has_heard: bool = True
    """What it reports it has done since it heard that the job had begun."""


def seat_seen(host: HostSeen, phase: HoldPhase, reason: str) -> SeatSeen:
    """``phase`` and ``reason``: of the seat, in the last report of a host that is up; ``held`` where that has
    no such seat."""
    name = host.name
    if host.presence == "unlisted":
        return SeatSeen(Fate.LOST, f"host {name} is lost: the cluster file has it no more")
    if host.presence == "gone":
        return SeatSeen(Fate.LOST, f"host {name} is lost: nothing was heard of it for longer than its lease")
    if host.presence == "unknown":
        return SeatSeen(Fate.AWAITED)
    befell = f"host {name}: {reason}" if reason else ""
    match phase:
        case "held":
            if host.is_anew or not host.has_heard:
                return SeatSeen(Fate.AWAITED)
            return SeatSeen(Fate.ABSENT, f"host {name} was started anew, and its ranks have not come back")
        case "running":
            return SeatSeen(Fate.RUNNING, befell)
        case "ended":
            return SeatSeen(Fate.ENDED, befell)
        case "failed":
            return SeatSeen(Fate.FAILED, befell or f"host {name}: its ranks failed")


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
    """``seats``: all of the job, in its order. ``is_running``: that was the verdict before."""
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


_BEGUN: Final = (Fate.RUNNING, Fate.ENDED, Fate.FAILED)


def _of_elastic(seats: tuple[SeatSeen, ...], is_running: bool) -> Verdict:
    fates = [seat.fate for seat in seats]
    lost = next((seat.why for seat in seats if seat.fate is Fate.LOST), "")
    if not is_running and not any(fate in _BEGUN for fate in fates):
        return PlacedAgain(lost) if lost else AsItWas()
    over = (*_BEGUN[1:], Fate.LOST, *((Fate.ABSENT,) if is_running else ()))
    failed = next((seat.why for seat in seats if seat.fate is Fate.FAILED), "")
    befell = failed or next((seat.why for seat in seats if seat.why and seat.fate in (*_BEGUN, *over)), "")
    if all(fate in over for fate in fates):
        if Fate.ENDED in fates:
            return Over(False, f"{befell}; {OTHERS_WENT_ON}" if befell else "")
        return Over(True, befell)
    if is_running and Fate.AWAITED in fates:
        return AsItWas()  # of some nothing is known: what was said of them stays
    return Runs(f"{befell}; {OTHERS_GO_ON}" if befell else "")
