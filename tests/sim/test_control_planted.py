"""Mistakes in sharing and in slots, each with a control world that finds it."""

from __future__ import annotations

import pytest

from inaproto.sim.control.drawing import draw_control
from inaproto.sim.control.world import ControlWorld
from tests.planted.sharing_faults import FAULTS

FINDS = {
    "lease_ignored": (2, "no deadline without work"),
    "lease_too_long": (2, "no lock for ever"),
    "drained_too_soon": (4, "turns are obeyed"),
    "granted_without_room": (4, "a decision is kept"),
    "ina_operation_not_looked_at": (8, "pool never shared"),
    "turns_forgotten": (7, "a decision is kept"),
    "slot_too_many": (21, "slots kept"),
    "slots_under_an_old_epoch": (2, "slots kept"),
    "epoch_of_two_trees": (0, "slots kept"),
    "slots_taken_from_operations": (2, "drained before released"),
    "slots_asked_for_before_written": (5, "slots kept"),
    "drains_waited_for_ever": (21, "no pool for ever"),
    "done_waited_for_ever": (43, "no pool for ever"),
    "left_out_for_ever": (5, "no deadline without work"),
    "vote_one_low": (83, "turns are obeyed"),
    "vote_one_high": (8, "pool never shared"),
    "ina_in_doubt": (207, "turns are obeyed"),
    "doubt_one_late": (80, "turns are obeyed"),
    "doubt_from_now": (7, "turns are obeyed"),
    "old_decision_unlocks": (56, "turns are obeyed"),
    "given_up_and_taken": (181, "turns are obeyed"),
    "another_decision_told": (7, "a decision is kept"),
    "end_ignored": (5, "turns are obeyed"),
    "turn_over_one_late": (2, "turns are obeyed"),
    "turn_over_one_soon": (4, "turns are obeyed"),
    "doubts_without_a_timer": (2, "no wait without deadline"),
    "done_never_said": (2, "no wish is forgotten"),
    "one_vote_missing": (0, "a decision is kept"),
    "old_votes_count": (12, "nobody is to blame"),
    "said_before_written": (0, "a decision is kept"),
    "undecided_is_aborted": (8, "a decision is kept"),
    "all_is_aborted": (54, "a decision is kept"),
    "unequal_not_looked_at": (0, "a decision is kept"),
    "least_index_counts": (4, "a decision is kept"),
    "first_one_low": (4, "a decision is kept"),
    "until_one_high": (5, "a decision is kept"),
    "wish_begins_anywhere": (2, "a decision is kept"),
    "turn_one_long": (4, "a decision is kept"),
    "nothing_is_granted": (0, "no wish is forgotten"),
    "nothing_is_ended": (5, "no wish is forgotten"),
    "epoch_used_again": (2, "a decision is kept"),
    "epoch_forgotten": (0, "a decision is kept"),
    "park_forgotten": (0, "turns are obeyed"),
    "parked_under_an_operation": (0, "turns are obeyed"),
    "drained_with_the_results": (0, "turns are obeyed"),
    "grant_of_another_life": (27, "no part raises"),
    "stands_still_unseen": (176, "no pool for a seat that stands still"),
    "seats_of_a_lost_host_kept": (54, "no pool for a seat that stands still"),
    "seat_gone_untold": (2, "no wish is forgotten"),
    "seats_of_two_lives": (2, "no wish is forgotten"),
    "held_no_more_untold": (0, "no wish is forgotten"),
    "place_shared": (15, "a decision is kept"),
    "ring_in_part_planned": (2, "only whole rings get turns"),
    "planned_before_all_are_heard": (0, "only whole rings get turns"),
}


def test_every_planted_fault_has_its_world() -> None:
    assert set(FINDS) == set(FAULTS)


@pytest.mark.parametrize("name", FINDS)
def test_a_world_finds_it(name: str) -> None:
    seed, rule = FINDS[name]
    with FAULTS[name]():
        broken = ControlWorld(draw_control(seed)).run().violation
    assert broken is not None
    assert broken.rule == rule
    assert ControlWorld(draw_control(seed)).run().violation is None
