"""The rules that every simulated world must keep, one module each (see :mod:`.checker`)."""

from __future__ import annotations

from inaproto.sim.frames.checkers.all_left import AllLeft
from inaproto.sim.frames.checkers.blameless import NicsBlameNobody
from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.frames.checkers.deadlines import Deadlines
from inaproto.sim.frames.checkers.exactly_once import ExactlyOnce
from inaproto.sim.frames.checkers.ledger import Ledger
from inaproto.sim.frames.checkers.memory import BoundedMemory
from inaproto.sim.frames.checkers.nak_once import OneNakPerGap
from inaproto.sim.frames.checkers.one_result import OneResult
from inaproto.sim.frames.checkers.overdue import NothingStuck
from inaproto.sim.frames.checkers.places_kept import PlacesKept
from inaproto.sim.frames.checkers.psn_order import PsnOrder
from inaproto.sim.frames.checkers.resends import ReasonToResend
from inaproto.sim.frames.checkers.seats_counted import SeatsCounted
from inaproto.sim.frames.checkers.slots import SlotsApart
from inaproto.sim.frames.checkers.survivors import SurvivorsTogether
from inaproto.sim.frames.checkers.window import WindowKept
from inaproto.sim.kernel.violated import Violated

__all__ = ["Checker", "Violated", "all_checkers"]


def all_checkers() -> list[Checker]:
    """Fresh ones, for one world. Progress after healing is demanded by the world itself."""
    return [
        OneResult(),
        ExactlyOnce(),
        WindowKept(),
        PsnOrder(),
        SlotsApart(),
        BoundedMemory(),
        Deadlines(),
        Ledger(),
        NothingStuck(),
        AllLeft(),
        OneNakPerGap(),
        ReasonToResend(),
        NicsBlameNobody(),
        SurvivorsTogether(),
        PlacesKept(),
        SeatsCounted(),
    ]
