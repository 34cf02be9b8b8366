"""Faults of rings that end while their job goes on: what is kept, who contributes what, who is asked."""

from __future__ import annotations

from typing import Final

from inaproto.core.host.engines.in_network import RingEngine
from inaproto.core.host.engines.ring import RingAllReduceEngine
from inaproto.core.host.engines.two_paths import TwoPaths
from inaproto.core.host.operation_queue import OperationQueue
from inaproto.core.host.performer import KeptResults
from inaproto.core.plan.accumulators import added
from inaproto.core.plan.neutral import neutral_bytes
from inaproto.core.rendezvous.life import Joining, Running
from inaproto.core.rendezvous.recovery import JobRecovery
from inaproto.core.rendezvous.ring_ends import Halted
from tests.planted.planting import SMALL, Change, PlantedFault, fault
from tests.planted.shapes import (
    going_on,
    half_sums_of_hosts,
    half_sums_of_racks,
    one_host_disagrees,
    restarting,
    two_rings,
)

RECOVERY: Final = "docs/protocol.md 13; inaproto.core.host.recovery"
CHAIN: Final = "docs/protocol.md 9.2, chain; inaproto.core.plan.accumulators"
RING: Final = "docs/protocol.md 9.4, ring; inaproto.core.host.engines.ring"
TWO_RINGS: Final = "MINA IV-C; inaproto.core.host.engines.two_paths"

RECOVERY_FAULTS: Final = (
    fault(
        "others_room_taken_for_a_switch",
        "docs/protocol.md 13.4, which path",
        "tries switches that will never take a ring again whenever another ring has ended",
        JobRecovery.room_made,
        "if self.waits_for_switch and not by_switch:",
        "if False:",
        test="tests/unit/test_rendezvous_paths.py::"
        "test_a_ring_that_no_present_switch_will_take_waits_for_another_one",
    ),
    fault(
        "kept_told_apart_by_ring_id",
        RECOVERY,
        "copies the results whose ring has the id of the newest one, not those of the ring that ended",
        KeptResults.keep,
        "if kept.serial >= since",
        "if kept.ring_id == results[-1].ring_id",
        shape=restarting,
        swarm=SMALL,
    ),
    PlantedFault(
        "kept_not_copied_when_halted_twice",
        RECOVERY,
        "takes all kept results from the slots of the present ring, also those of the ring before",
        (Change(KeptResults.keep, "if kept.serial >= since", "if kept.serial >= 0"),),
        shape=restarting,
    ),
    fault(
        "neutral_sum_of_plus_zero",
        RECOVERY + "; inaproto.core.plan.neutral",
        "takes +0 for the neutral element of a float sum",
        neutral_bytes,
        "_ELEMENTS[dtype, op] * (nbytes // dtype.itemsize)",
        "bytes(nbytes) if op is Op.SUM else _ELEMENTS[dtype, op] * (nbytes // dtype.itemsize)",
        test="tests/unit/test_accumulators.py::test_neutral_elements",
    ),
    fault(
        "donor_sends_its_tensor",
        RECOVERY,
        "lets the donor send its part of the tensor again, where the result that it kept was meant",
        OperationQueue.resume,
        "self._again_source = Source.KEPT if is_donor else Source.NEUTRAL",
        "self._again_source = Source.OWN if is_donor else Source.NEUTRAL",
        shape=going_on,
    ),
    fault(
        "others_send_their_tensors_again",
        RECOVERY,
        "adds its own tensor to the result that the donor passes along",
        OperationQueue.next_run,
        "source = 1, Source.NEUTRAL",
        "source = 1, Source.OWN",
        shape=going_on,
    ),
    fault(
        "progress_one_too_high",
        RECOVERY,
        "reports the number of the next result as the number of results",
        RingEngine.progress,
        "return self._operations.progress",
        "return self._operations.progress + 1",
        shape=going_on,
    ),
    PlantedFault(
        "lowest_rank_is_donor",
        RECOVERY,
        "lets rank 0 pass the results along, whoever is ahead",
        (Change(Joining._ring_messages, "donor=resumed.donor,", "donor=0,"),),
        shape=going_on,
    ),
    fault(
        "results_taken_after_the_halt",
        RECOVERY,
        "goes on taking results of a ring that was halted",
        RingEngine.exchanged,
        "if self._is_halted:",
        "if self._operations.failure is not None:",
        test="tests/unit/test_ring_engine_recovery.py::test_a_halted_ring_takes_and_sends_nothing",
    ),
    PlantedFault(
        "chain_rounds_at_every_rank",
        CHAIN,
        "rounds float16 and bfloat16 sums at every rank that they pass",
        (Change(added, "return wide", "return widen(dtype, round_once(dtype, wide))"),),
        shape=half_sums_of_hosts,
    ),
    PlantedFault(
        "chain_ignores_the_tree",
        CHAIN,
        "lets a chain add all ranks in order, where the switches add rack by rack",
        (Change(Joining._ring_messages, "plan=job.plan_text,", 'plan="",'),),
        shape=half_sums_of_racks,
    ),
    PlantedFault(
        "comes_back_with_small_slots",
        CHAIN,
        "takes the queue pairs of a host that comes back, which are for the switch, for a chain",
        (
            Change(
                Halted.come_back,
                'if job.recovery.path != "switch":',
                "if job.size == 0:",
            ),
            Change(
                Joining.make_ring,
                "if job.lacks_slots:",
                "if job.size == 0:",
            ),
        ),
        shape=going_on,
    ),
    fault(
        "those_who_left_never_closed",
        RECOVERY,
        "waits for ranks to leave that have said so before the switch restarted",
        Running.ready,
        "if any(seat.left_after is None for seat in job.seats.values()):",
        "if job.seats:",
        shape=restarting,
    ),
    fault(
        "ring_counts_results_that_wait",
        RING,
        "lets results that overtook others open the window, though those before them are not here",
        RingAllReduceEngine._look_up_parts,
        "self._next < self._due + self._config.window_messages",
        "self._next < self._due + len(self._results) + self._config.window_messages",
        test="tests/paper/test_protocol_5_ring.py::test_a_rank_that_lacks_a_result_does_not_go_on_past_its_window",
    ),
    fault(
        "ring_takes_results_as_they_come",
        RING,
        "takes a result for the one that is due because it came",
        RingAllReduceEngine._has_result,
        "self._results.add(serial)",
        "self._results.add(self._due)",
        test="tests/paper/test_protocol_5_ring.py::test_results_that_overtake_others_are_taken_in_their_order",
    ),
    PlantedFault(
        "kept_of_one_ring_alone",
        TWO_RINGS,
        "takes all kept results from the slots of the base ring, also those of the ring beside it",
        (Change(KeptResults.keep, "others.get(kept.ring_id, link)", "link"),),
        shape=two_rings,
    ),
    PlantedFault(
        "disagreement_unnoticed",
        TWO_RINGS,
        "lets hosts wait for one another that have bound an all-reduce to different rings",
        (Change(Running.stalled, "if disagreement:", "if job.size == 0:"),),
        shape=one_host_disagrees,
    ),
    fault(
        "first_of_a_generation_bound_anew",
        TWO_RINGS,
        "asks by which ring the all-reduce goes that others have started before the rings ended",
        TwoPaths._may_choose,
        "self._operations.progress <= self._base_until",
        "self._base_until < 0",
        test="tests/property/test_two_paths.py::"
        "test_generations_may_end_at_any_moment_whatever_path_an_operation_is_on",
    ),
    fault(
        "drained_before_acknowledged",
        TWO_RINGS,
        "lets another job have the switches when all results are here, though sends may be repeated",
        TwoPaths._of_ina,
        "while self._undrained and self._undrained[0][1] <= self._ina_acknowledged:",
        "while self._undrained:",
        test="tests/property/test_two_paths.py::"
        "test_each_operation_goes_by_the_path_that_it_is_bound_to_and_gives_the_plan_s_bytes",
    ),
)
