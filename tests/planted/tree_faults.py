"""Faults of trees that move under running jobs, which worlds of trees find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from inaproto.core.migration.bars import Bars
from inaproto.core.migration.coordinator import TreeMigration
from inaproto.core.migration.jobs import JobMoves
from inaproto.core.migration.numbers import TreeNumbers
from inaproto.core.migration.service import TreeService
from inaproto.core.migration.slot_lender import SlotLender
from inaproto.core.migration.taken_wishes import TakenWishes
from inaproto.core.migration.wanted_roots import WantedRoots
from tests.planted.planting import Change, PlantedFault

_MOVES: Final = "MINA IV-A; inaproto.core.migration.service"
_SLOTS: Final = "MINA IV-A; inaproto.core.migration.slot_lender"


def _fault(name: str, paper: str, text: str, function: object, right: str, wrong: str) -> PlantedFault:
    return PlantedFault(name, paper, text, (Change(function, right, wrong),))


_ALL: Final = (
    _fault(
        "tree_moved_twice",
        _MOVES,
        "moves a job once more to the tree that it has, when the controller has started again",
        JobMoves._adopt,
        "self._stands(job) and job.target == job.tree",
        "False",
    ),
    _fault(
        "released_while_parking",
        _MOVES,
        "takes a ring that its hosts are about to park for one that is parked",
        TreeService._follow_states,
        'state.phase == "parked"',
        'state.phase in ("parking", "parked")',
    ),
    _fault(
        "drained_by_older_wishes",
        _MOVES,
        "believes that a job has drained though the root has not taken the wish yet",
        TreeService._follow_states,
        "self._told is not None and self._taken >= (self.config.term, self._revision)",
        "True",
    ),
    _fault(
        "older_refusal_believed",
        _MOVES,
        "bars a tree for a refusal of the wish before",
        Bars.look,
        " or state.epoch != wish.epoch",
        "",
    ),
    _fault(
        "told_while_adopting",
        _MOVES,
        "wishes a part of what the leader before it has promised",
        TreeService._tell_root,
        "its.phase is Phase.ADOPTING",
        "False",
    ),
    _fault(
        "numbers_given_again",
        _MOVES,
        "counts the numbers of trees from one again after a restart",
        TreeNumbers.stored,
        "self.next)",
        "1)",
    ),
    _fault(
        "turns_not_held",
        _MOVES,
        "lets a job have turns while its ring is to park",
        TreeService._hold,
        "return [HoldTurns(held)]",
        "return []",
    ),
    _fault(
        "job_over_unnoticed",
        _MOVES,
        "keeps the slots of a job that the root does not know any more",
        TreeService._follow_states,
        "actions += self._migrate(JobEnded(its.job), now)",
        "pass",
    ),
    _fault(
        "stands_without_slots",
        _MOVES,
        "leaves a ring where it is when its slots went to others while its job was away",
        TreeService._planned,
        "(wish is None or wish.tree is not None)",
        "wish is None",
    ),
    _fault(
        "renewals_missed",
        _SLOTS,
        "does not make up for renewals that it missed while its machine stood still",
        SlotLender._renew,
        "min(now, Instant(min(standing.values()) - 1)) if standing else now",
        "now",
    ),
    _fault(
        "wanted_root_forgotten",
        _MOVES,
        "forgets where one job was wanted when another one is",
        WantedRoots.want,
        "{**self._without({job}), **",
        "{**",
    ),
    _fault(
        "reported_once",
        _MOVES,
        "reports in a new session only what has changed since the one before",
        TakenWishes.step,
        "self._is_heard, self._told = True, None",
        "self._is_heard = True",
    ),
    _fault(
        "slots_on_the_way_to_disk",
        _MOVES,
        "asks for slots while what it is to promise is on its way to the disk",
        TreeMigration._settle,
        "if self._is_writing:\n        return []",
        "pass",
    ),
)
FAULTS: Final[Mapping[str, PlantedFault]] = {fault.name: fault for fault in _ALL}

FINDS: Final[Mapping[str, tuple[int, str]]] = {
    "tree_moved_twice": (11, "a tree moves for a reason"),
    "released_while_parking": (1, "a ring has its slots"),
    "drained_by_older_wishes": (41, "a ring has its slots"),
    "older_refusal_believed": (65, "only what was refused is barred"),
    "told_while_adopting": (7, "a wish stays with its job"),
    "numbers_given_again": (27, "an epoch is of one tree"),
    "turns_not_held": (0, "every ring comes to stand"),
    "job_over_unnoticed": (0, "every ring comes to stand"),
    "stands_without_slots": (199, "every ring comes to stand"),
    "renewals_missed": (4, "a ring has its slots"),
    "wanted_root_forgotten": (0, "a promised root is kept"),
    "reported_once": (3, "every ring comes to stand"),
    "slots_on_the_way_to_disk": (0, "on disk before it is said"),
}
"""The seed of a world that finds a fault, and the rule that it breaks."""


def __getattr__(name: str) -> PlantedFault:
    if name in FAULTS:
        return FAULTS[name]
    raise AttributeError(f"there is no planted fault {name!r}; there are {', '.join(FAULTS)}")
