"""Tests whose cases rotate as seeds do: a quarter in ``make test``, others after the next commit.

Each of them shows one thing at many places, and together they would take a third of the time. ``make check``
runs all cases, and so does who names a file or a test. A case that found something once has a test of its own.
"""

# ruff: noqa: E501  an entry is one line, however long the name of its test

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from tests.seeds import ALL, ROTATIONS

ROTATING: Final = frozenset(
    {
        "controller/test_capacity_models.py::test_the_controller_admits_whom_the_simulation_admits",
        "controller/test_live_trees.py::test_jobs_that_come_and_go_have_trees_that_a_fabric_lays_within_what_is_free",
        "controller/test_place_plan.py::test_a_second_look_at_the_same_changes_nothing_in_sharp",
        "controller/test_place_plan.py::test_jobs_that_live_long_move_again_and_again_whatever_comes_late",
        "controller/test_place_plan.py::test_no_two_jobs_are_attached_where_their_trees_meet_whatever_is_lost",
        "controller/test_simulated_capacities.py::test_no_more_than_may_do_and_who_is_denied_met_as_many",
        "daemon/test_host_failures.py::test_no_rank_takes_the_raw_tail_of_a_message_for_a_result",
        "daemon/test_host_successors.py::test_a_job_goes_on_whenever_a_host_daemon_is_replaced",
        "daemon/test_host_successors_refused.py::test_who_lies_is_told_so_and_the_daemon_lives",
        "daemon/test_in_place_processes.py::test_all_others_hear_at_once_of_one_that_is_killed_and_no_sum_is_wrong",
        "daemon/test_infiniband_hosts.py::test_three_hosts_sum_by_their_own_paths",
        "daemon/test_memory_cluster.py::test_a_host_daemon_that_ends_is_named_and_may_come_back",
        "daemon/test_memory_cluster.py::test_a_switch_that_is_gone_is_missed_by_name",
        "daemon/test_memory_cluster.py::test_nothing_is_left_of_a_run",
        "daemon/test_memory_recovery.py::test_a_job_goes_on_whatever_ends_its_ring",
        "daemon/test_parallel_rings.py::test_a_job_goes_on_whatever_ends_one_of_its_rings",
        "daemon/test_passage.py::test_a_job_goes_on_with_what_was_copied",
        "daemon/test_ranks_per_host.py::test_results_have_the_bytes_of_the_path",
        "daemon/test_sharp_failures.py::test_every_code_while_acquiring",
        "daemon/test_shrink.py::test_the_others_are_told_who_is_lost_and_go_on_with_exact_sums",
        "daemon/test_shrink.py::test_whenever_another_dies_the_rest_go_on",
        "daemon/test_threads.py::test_all_that_waits_for_a_killed_rank_hears_of_it",
        "daemon/test_two_paths.py::test_all_reduces_go_by_both_rings_in_turn_and_have_numpy_s_bytes",
        "daemon/test_ufm_reservations.py::test_trouble_passes_and_nothing_is_given_twice",
        "paper/test_mina_3_c_independent_sets.py::test_sets_are_about_as_large_as_the_published_solver_s",
        "paper/test_netreduce_3_2_freeing.py::test_every_run_with_a_late_duplicate",
        "paper/test_netreduce_3_4_rings_of_nics.py::test_a_ring_that_its_hosts_sum_changes_no_byte",
        "paper/test_netreduce_3_4_rings_of_nics.py::test_all_ranks_have_the_bytes_of_one_ring",
        "paper/test_netreduce_3_4_rings_of_nics.py::test_each_nic_of_a_machine_sends_one_mth_of_the_tensor",
        "paper/test_protocol_5_ring.py::test_whatever_is_late_every_rank_gets_to_the_end",
        "planted/test_planted_faults.py::test_a_world_catches",
        "property/test_push_pull_forged.py::test_one_forged_word_leaves_the_honest_exact_or_is_blamed",
        "property/test_push_pull_reshape.py::test_each_window_has_the_bits_of_the_tree_of_its_clock",
        "property/test_push_pull_reshape.py::test_whatever_fails_meanwhile_every_update_is_in_the_model_once",
        "property/test_rc_exhaustive.py::test_every_interleaving_completes_and_places_once",
        "property/test_recovery.py::test_each_message_has_one_result_also_where_paths_add_in_different_orders",
        "property/test_recovery.py::test_whatever_ends_and_whichever_path_follows_every_rank_has_the_plan_s_bytes",
        "property/test_sharing_walks.py::test_no_walk_breaks_a_law_and_each_can_end",
        "property/test_shm_plans.py::test_shared_memory_and_plan_and_chain_agree",
        "rtl/test_align.py::test_there_and_back_for_all_lengths",
        "sim/test_control_patience.py::test_a_host_that_does_not_answer_keeps_the_pool_from_others_for_a_while_only",
        "sim/test_control_planted.py::test_a_world_finds_it",
        "sim/test_explore_overlay.py::test_the_reductions_keep_the_verdict",
        "sim/test_explore_ring.py::test_reductions_change_no_verdict",
        "sim/test_explore_sharing.py::test_the_product_holds",
        "sim/test_overlay_planted.py::test_a_world_finds_it",
        "sim/test_overlay_world.py::test_each_fault_alone_is_survived",
        "sim/test_racks_world.py::test_every_rule_holds_where_sums_pass_switches_that_steer",
        "sim/test_successors_world.py::test_a_daemon_dies_after_each_of_its_orders",
        "sim/test_tree_moves_world.py::test_whatever_befalls_a_job_whose_ring_moves_it_goes_on",
        "sim/test_trees_world.py::test_a_world_finds_it",
        "unit/test_host_completed.py::test_one_step_sends_what_many_do",
        "unit/test_progress.py::test_a_script_ends_at_once_whatever_is_under_way",
    }
)


def rotates(nodeid: str) -> bool:
    """Whether the case's test is one of these."""
    return _test_of(nodeid) in ROTATING


def left_out(nodeids: Iterable[str], rotation: str) -> set[str]:
    """The cases that do not run in that rotation; of each test one runs at least."""
    if rotation == ALL:
        return set()
    cases = [nodeid for nodeid in nodeids if rotates(nodeid)]
    counts = Counter(map(_test_of, cases))
    seen: Counter[str] = Counter()
    found = set()
    for case in cases:
        test = _test_of(case)
        every = min(ROTATIONS, counts[test])
        if seen[test] % every != int(rotation) % every:
            found.add(case)
        seen[test] += 1
    return found


def _test_of(nodeid: str) -> str:
    return nodeid.removeprefix("tests/").partition("[")[0]
