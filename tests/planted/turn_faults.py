"""Faults of pools: slots that several rings share by turns."""

from __future__ import annotations

from typing import Final

from inaproto.core.switch.aggregator import AggregatorArray
from inaproto.core.switch.slot_pools import SlotPools
from tests.planted.planting import Change, PlantedFault, fault

TURNS: Final = "MINA III-D, one job at a switch at a time"
_PAPER: Final = "tests/paper/test_mina_3_d_pools.py::"

TURN_FAULTS: Final = (
    PlantedFault(
        "turn_epoch_not_checked",
        TURNS,
        "lets a ring have slots whose turn is over",
        (Change(SlotPools.is_stale, "if epoch >= max(ring.epoch, _place(pool, epoch).epoch):", "if True:"),),
        test=_PAPER + "test_a_turn_that_is_over_gives_no_right_to_slots",
    ),
    PlantedFault(
        "turn_epoch_falls",
        TURNS,
        "the same, seen where turns begin at any time: the number of a place's turn falls",
        (Change(SlotPools.is_stale, "if epoch >= max(ring.epoch, _place(pool, epoch).epoch):", "if True:"),),
        test="tests/property/test_pools.py::"
        "test_whoever_breaks_the_rule_of_turns_gets_the_right_bytes_or_nothing",
        arguments=(1,),
    ),
    PlantedFault(
        "turn_slots_not_forgotten",
        TURNS,
        "leaves the kept results of a ring in the slots that the next one gets",
        (Change(AggregatorArray.vacate, "region.forget()", "pass"),),
        test=_PAPER + "test_what_a_job_left_in_the_slots_is_never_a_result_of_the_next",
    ),
    PlantedFault(
        "turn_slots_not_forgotten_by_tree",
        TURNS,
        "the same, at the switches of a tree and whatever the links do",
        (Change(AggregatorArray.vacate, "region.forget()", "pass"),),
        test="tests/property/test_pools.py::"
        "test_rings_that_wait_for_their_turn_all_finish_and_nobody_is_blamed",
        arguments=(1,),
    ),
    PlantedFault(
        "turn_taken_in_silence",
        TURNS,
        "forgets the unfinished messages of a ring that loses its turn, and lets it go on",
        (Change(SlotPools.take, "losers.append(one.holder)", "pass"),),
        test=_PAPER + "test_two_jobs_that_use_a_switch_at_once_are_found_and_the_older_turn_is_stopped",
    ),
    PlantedFault(
        "turn_begun_by_old_message",
        TURNS,
        "begins a turn for a message that the ring finished in an earlier one",
        (Change(SlotPools.refusal, "if ahead < 0:", "if False:"),),
        test="tests/unit/test_slot_pools.py::test_a_message_of_an_earlier_turn_cannot_begin_one",
    ),
    fault(
        "turn_counts_from_zero",
        TURNS,
        "expects the first message of the ring in each of its turns",
        AggregatorArray.occupy,
        "self.regions = regions",
        "self.regions = regions\n    self.next_serial = 0",
        test=_PAPER + "test_jobs_take_turns_at_the_slots_of_a_switch_operation_by_operation",
    ),
)
