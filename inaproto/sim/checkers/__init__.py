"""The rules that every simulated world must keep, one module each (see :mod:`.checker`)."""

from __future__ import annotations

from inaproto.sim.checkers.all_left import AllLeft
from inaproto.sim.checkers.blameless import NicsBlameNobody
from inaproto.sim.checkers.checker import Checker, Violated
from inaproto.sim.checkers.deadlines import Deadlines
from inaproto.sim.checkers.exactly_once import ExactlyOnce
from inaproto.sim.checkers.ledger import Ledger
from inaproto.sim.checkers.memory import BoundedMemory
from inaproto.sim.checkers.nak_once import OneNakPerGap
from inaproto.sim.checkers.one_result import OneResult
from inaproto.sim.checkers.overdue import NothingStuck
from inaproto.sim.checkers.psn_order import PsnOrder
from inaproto.sim.checkers.slots import SlotsApart
from inaproto.sim.checkers.survivors import SurvivorsTogether
from inaproto.sim.checkers.window import WindowKept

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
        NicsBlameNobody(),
        SurvivorsTogether(),
    ]
