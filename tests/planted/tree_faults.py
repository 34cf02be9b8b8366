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
from tests.planted.planting import PlantedFault, by_name, fault

_MOVES: Final = "MINA IV-A; inaproto.core.migration.service"
_SLOTS: Final = "MINA IV-A; inaproto.core.migration.slot_lender"


_ALL: Final = (
    fault(
        "tree_moved_twice",
        _MOVES,
        "moves a job once more to the tree that it has, when the controller has started again",
        JobMoves._adopt,
        "self._stands(job) and job.target == job.tree",
        "False",
    ),
    fault(
        "released_while_parking",
        _MOVES,
        "takes a ring that its hosts are about to park for one that is parked",
        TreeService._follow_states,
        'state.phase == "parked"',
        'state.phase in ("parking", "parked")',
    ),
    fault(
        "drained_by_older_wishes",
        _MOVES,
        "believes that a job has drained though the root has not taken the wish yet",
        TreeService._follow_states,
        "self._told is not None and self._taken >= (self.config.term, self._revision)",
        "True",
    ),
    fault(
        "older_refusal_believed",
        _MOVES,
        "bars a tree for a refusal of the wish before",
        Bars.look,
        " or state.epoch != wish.epoch",
        "",
    ),
    fault(
        "told_while_adopting",
        _MOVES,
        "wishes a part of what the leader before it has promised",
        TreeService._tell_root,
        "its.phase is Phase.ADOPTING",
        "False",
    ),
    fault(
        "numbers_given_again",
        _MOVES,
        "counts the numbers of trees from one again after a restart",
        TreeNumbers.stored,
        "self.next)",
        "1)",
    ),
    fault(
        "turns_not_held",
        _MOVES,
        "lets a job have turns while its ring is to park",
        TreeService._hold,
        "return [HoldTurns(held)]",
        "return []",
    ),
    fault(
        "job_over_unnoticed",
        _MOVES,
        "keeps the slots of a job that the root does not know any more",
        TreeService._follow_states,
        "actions += self._migrate(JobEnded(its.job), now)",
        "pass",
    ),
    fault(
        "stands_without_slots",
        _MOVES,
        "leaves a ring where it is when its slots went to others while its job was away",
        TreeService._planned,
        "(wish is None or wish.tree is not None)",
        "wish is None",
    ),
    fault(
        "renewals_missed",
        _SLOTS,
        "does not make up for renewals that it missed while its machine stood still",
        SlotLender._renew,
        "min(now, Instant(min(standing.values()) - 1)) if standing else now",
        "now",
    ),
    fault(
        "wanted_root_forgotten",
        _MOVES,
        "forgets where one job was wanted when another one is",
        WantedRoots.want,
        "{**self._without({job}), **",
        "{**",
    ),
    fault(
        "reported_once",
        _MOVES,
        "reports in a new session only what has changed since the one before",
        TakenWishes.step,
        "self._is_heard, self._told = True, None",
        "self._is_heard = True",
    ),
    fault(
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
    "stands_without_slots": (1088, "every ring comes to stand"),
    "renewals_missed": (4, "a ring has its slots"),
    "wanted_root_forgotten": (0, "a promised root is kept"),
    "reported_once": (3, "every ring comes to stand"),
    "slots_on_the_way_to_disk": (0, "on disk before it is said"),
}
"""The seed of a world that finds a fault, and the rule that it breaks."""


__getattr__ = by_name(FAULTS)
