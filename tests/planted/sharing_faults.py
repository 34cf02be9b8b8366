"""Faults of sharing by two-phase commit, of leases on slots, and of the shell around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from inaproto.core.sharing_coordinator import SharingCoordinator
from inaproto.core.sharing_participant import SharingParticipant
from inaproto.core.slot_ledger import SlotLedger
from inaproto.core.tree_migration import TreeMigration
from inaproto.sim.control.controller import Controller
from inaproto.sim.control.group import Group
from inaproto.sim.control.pool import Pool
from tests.planted.planting import Change, PlantedFault

_SHARING: Final = "MINA IV-B; protocol.md 6"
_SLOTS: Final = "MINA IV-A; protocol.md 7"

_FAULTS: Final = (
    PlantedFault(
        "old_terms_obeyed",
        _SHARING,
        "obeys a coordinator that another has taken over from",
        (Change(SharingParticipant.step, "or said.term < self._term", ""),),
    ),
    PlantedFault(
        "vote_keeps_the_old_turn",
        _SHARING,
        "votes for a new turn and still uses an older one",
        (Change(SharingParticipant._prepare, "self._give_up(Epoch(said.over_below - 1))", "pass"),),
    ),
    PlantedFault(
        "ina_in_doubt",
        _SHARING,
        "uses the switches while in doubt",
        (
            Change(
                SharingParticipant._start,
                "if self._is_doubtful(index) and self._concerns_us(epoch):",
                "if False:",
            ),
        ),
    ),
    PlantedFault(
        "lease_ignored",
        _SHARING,
        "holds its lock until the coordinator speaks",
        (
            Change(
                SharingParticipant._lease_over,
                "if self._deadline is None or now < self._deadline:",
                "if True:",
            ),
        ),
    ),
    PlantedFault(
        "lease_too_long",
        _SHARING,
        "takes a lease for ten times as long",
        (
            Change(
                SharingParticipant._prepare,
                "min(said.lease_ns, self._config.lease_max_ns)",
                "min(10 * said.lease_ns, self._config.lease_max_ns)",
            ),
        ),
    ),
    PlantedFault(
        "drained_too_soon",
        _SHARING,
        "says that it has drained while an operation is under way",
        (
            Change(
                SharingParticipant._pay,
                " or any(epoch is not None and epoch <= owed for epoch in self._running.values())",
                "",
            ),
        ),
    ),
    PlantedFault(
        "promise_broken",
        _SHARING,
        "promises never to vote on a round, and votes on it",
        (
            Change(
                SharingParticipant._prepare,
                "if said.version <= self._promised or self._is_closed:",
                "if self._is_closed:",
            ),
        ),
    ),
    PlantedFault(
        "granted_without_room",
        _SHARING,
        "gives a turn while another has not drained",
        (
            Change(
                SharingCoordinator._change,
                "has_room = self._turns.occupied < self._config.capacity",
                "has_room = True",
            ),
        ),
    ),
    PlantedFault(
        "ina_operation_not_looked_at",
        _SHARING,
        "ends a turn under an operation",
        (
            Change(
                SharingCoordinator._objection,
                "return Mark.ABORTED_IN_INA if is_in_ina else None",
                "return None",
            ),
        ),
    ),
    PlantedFault(
        "first_is_the_least_index",
        _SHARING,
        "decides from the least index reported",
        (Change(SharingCoordinator._index_for, "greatest = max(", "greatest = min("),),
    ),
    PlantedFault(
        "commit_not_repeated",
        _SHARING,
        "sends each commit once",
        (
            Change(
                SharingCoordinator._repeat,
                "return [again, *(self._commit_for(seat) for seat in self._missing)]",
                "return [again]",
            ),
        ),
    ),
    PlantedFault(
        "unlogged_is_committed",
        _SHARING,
        "answers who asks by what it decided, not by what is in its log",
        (
            Change(
                SharingCoordinator._answer,
                "if self._record.decision is not None and version == self._record.version:",
                "if self._record.decision is not None:",
            ),
        ),
    ),
    PlantedFault(
        "epoch_forgotten",
        _SHARING,
        "begins with the first epoch after a restart",
        (Change(SharingCoordinator.__init__, "self._epoch = self._record.epoch", "self._epoch = Epoch(0)"),),
    ),
    PlantedFault(
        "turns_forgotten",
        _SHARING,
        "knows of no turn after a restart",
        (Change(SharingCoordinator.__init__, "StandingTurns(self._record.turns)", "StandingTurns(())"),),
    ),
    PlantedFault(
        "disk_not_waited_for",
        _SHARING,
        "takes what it has written for durable",
        (
            Change(
                Group._perform,
                "world.store.persist(self._name, record, lambda: self.step(Persisted(token)))",
                "world.store.persist(self._name, record, lambda: None)\n"
                "            controller.after(0, lambda: self.step(Persisted(token)))",
            ),
        ),
    ),
    PlantedFault(
        "slot_too_many",
        _SLOTS,
        "lends one slot more than there are",
        (
            Change(
                SlotLedger._obey,
                "len(self._held) >= self.config.capacity",
                "len(self._held) > self.config.capacity",
            ),
        ),
    ),
    PlantedFault(
        "leases_run_on",
        _SLOTS,
        "never takes a slot back by itself",
        (Change(SlotLedger._run_out, "if until <= now", "if until <= 0"),),
    ),
    PlantedFault(
        "strangers_keep_slots",
        _SLOTS,
        "leaves slots to jobs that it does not know",
        (
            Change(
                TreeMigration._next_order,
                "if not self._keeps(lease):",
                "if lease.job in self._jobs and not self._keeps(lease):",
            ),
        ),
    ),
    PlantedFault(
        "slots_kept_at_the_end",
        _SLOTS,
        "forgets a job that has ended with its slots",
        (Change(TreeMigration._next_order, "if not self._keeps(lease):", "if False:"),),
    ),
    PlantedFault(
        "ring_removed_too_soon",
        _SHARING,
        "takes the ring of a job that is over for removed",
        (Change(Controller._look_for_removed, "and name not in known and not held", ""),),
    ),
    PlantedFault(
        "epoch_not_checked",
        "MINA III-C",
        "takes stale parts into a pool",
        (Change(Pool.put, "if epoch <= unit.epoch:", "if False:"),),
    ),
)
FAULTS: Final[Mapping[str, PlantedFault]] = {fault.name: fault for fault in _FAULTS}


def __getattr__(name: str) -> PlantedFault:
    if name in FAULTS:
        return FAULTS[name]
    raise AttributeError(f"there is no planted fault {name!r}; there are {', '.join(FAULTS)}")
