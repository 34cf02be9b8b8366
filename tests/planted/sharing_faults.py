"""Faults of sharing by two-phase commit and of slots, which control worlds find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from inaproto.core.migration.coordinator import TreeMigration
from inaproto.core.migration.jobs import JobMoves
from inaproto.core.migration.ledger import SlotLedger
from inaproto.core.sharing.coordinator import SharingCoordinator
from inaproto.core.sharing.participant import SharingParticipant
from inaproto.core.sharing.patience import Patience
from inaproto.core.sharing.round import Round
from inaproto.core.sharing.rounds import Rounds
from inaproto.core.sharing.wishes import Wishes
from tests.planted.planting import Change, PlantedFault, by_name, fault
from tests.planted.sharing_group_faults import GROUP_FAULTS
from tests.planted.sharing_seat_faults import SEAT_FAULTS
from tests.planted.sharing_word_faults import SHARING, WORD_FAULTS

_SLOTS: Final = "MINA IV-A; docs/protocol.md 16"

_FAULTS: Final = (
    fault(
        "lease_ignored",
        SHARING,
        "holds its lock until the coordinator speaks",
        SharingParticipant._lease_over,
        "if self._deadline is None or now < self._deadline:",
        "if True:",
    ),
    fault(
        "lease_too_long",
        SHARING,
        "takes a lease for ten times as long",
        SharingParticipant._prepare,
        "min(said.lease_ns, self._config.lease_max_ns)",
        "min(10 * said.lease_ns, self._config.lease_max_ns)",
    ),
    fault(
        "drained_too_soon",
        SHARING,
        "says that it has drained while an operation is under way",
        SharingParticipant._pay,
        " or any(epoch is not None and epoch <= owed for epoch in self._running.values())",
        "",
    ),
    fault(
        "granted_without_room",
        SHARING,
        "gives a turn while another has not drained",
        Wishes.change,
        "has_room = turns.occupied < config.capacity",
        "has_room = True",
    ),
    fault(
        "ina_operation_not_looked_at",
        SHARING,
        "ends a turn under an operation",
        Round.objection,
        "return Mark.ABORTED_IN_INA if is_in_ina else None",
        "return None",
    ),
    PlantedFault(
        "turns_forgotten",
        SHARING,
        "knows of no turn after a restart",
        (Change(Rounds.__init__, "StandingTurns(self._record.turns)", "StandingTurns(())"),),
    ),
    fault(
        "drains_waited_for_ever",
        SHARING,
        "waits for a seat to drain for as long as it is heard of",
        SharingCoordinator._owed,
        "owed += [one.turn.epoch for one in rounds.turns if one.turn.until == AT_ONCE]",
        "pass",
    ),
    fault(
        "done_waited_for_ever",
        SHARING,
        "waits for a seat to do what was decided for as long as it is heard of",
        SharingCoordinator._owed,
        "[rounds.decided] if rounds.phase is Phase.COMMITTING else []",
        "[]",
    ),
    PlantedFault(
        "left_out_for_ever",
        SHARING,
        "never takes a job in again",
        (Change(Patience.lift, "bar.until <= now", "False"),),
    ),
    PlantedFault(
        "slots_asked_for_before_written",
        _SLOTS,
        "asks for slots while what it is to promise is on its way to the disk",
        (Change(TreeMigration._settle, "if self._is_writing:\n        return []", "pass"),),
    ),
    fault(
        "slots_under_an_old_epoch",
        _SLOTS,
        "counts the epochs of leases from one again after a restart",
        TreeMigration._record,
        "MigrationRecord(self._term, self._plan, self._epoch, jobs)",
        "MigrationRecord(self._term, self._plan, 0, jobs)",
    ),
    PlantedFault(
        "epoch_of_two_trees",
        _SLOTS,
        "acquires all trees under one epoch",
        (Change(JobMoves._acquire, "self._epoch += 1", "self._epoch = max(1, self._epoch)"),),
    ),
    fault(
        "slots_taken_from_operations",
        _SLOTS,
        "releases a tree that is to go before its job has drained",
        JobMoves._leave,
        "return replace(job, phase=Phase.DRAINING, is_drained=False)",
        "return replace(job, phase=Phase.RELEASING, drained=now)",
    ),
    fault(
        "slot_too_many",
        _SLOTS,
        "lends one slot more than there are",
        SlotLedger._obey,
        "len(self._held) >= self._capacity",
        "len(self._held) > self._capacity",
    ),
)
FAULTS: Final[Mapping[str, PlantedFault]] = {
    fault.name: fault for fault in (*_FAULTS, *WORD_FAULTS, *SEAT_FAULTS, *GROUP_FAULTS)
}


__getattr__ = by_name(FAULTS)
