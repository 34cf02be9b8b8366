"""Which tests are slow, and which of their family stay in the fast tier.

A test of a CPU second or more is slow (``tests/cpu_report.py`` measures, and names those of more than two
that are not listed). ``make test`` leaves the slow ones out, ``make check`` runs them. Of each family here one
or a few stay, so that what breaks the family shows in minutes; of all others the slow ones are those that
``tests/dear.txt`` says were measured to be.

A key is a file or a test of it; its value names what stays fast: for a file tests, for a test its parameters,
as patterns of ``fnmatch`` (a seed in them is ``*``: seeds rotate). A pattern after ``!`` names what is slow
instead, and all others stay.
"""

# ruff: noqa: E501  an entry is one line, however long the name of its test

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

from tests.dear import takes_long

SLOW: Final[dict[str, tuple[str, ...]]] = {
    "controller/test_agents_by_tls.py::test_a_job_by_way_of_tls_and_who_is_somebody_else": (),
    "controller/test_best_schedules.py::test_no_list_of_decisions_is_better_in_150_groups": (),
    "controller/test_capacity_models.py::test_the_controller_admits_whom_the_simulation_admits_on_200_drawn_clusters": (),
    "controller/test_cluster_arrivals.py::test_a_job_that_arrives_late_takes_as_long_as_at_0": (),
    "controller/test_controller_crashes.py": ("test_a_pair_whose_leader_is_killed",),
    "controller/test_disasters.py::test_a_host_whose_clock_is_wrong_is_told_so_and_comes_when_it_is_right": (),
    "controller/test_joint_placement.py::test_ranks_are_given_in_the_order_in_which_the_tree_adds": (),
    "controller/test_joint_placement.py::test_section_3_tiny_networks_by_brute_force": (),
    "controller/test_live_page_browser.py::test_a_crowded_page_overflows_nowhere": (),
    "controller/test_page_pictures.py::test_each_fault_that_is_planted_is_found": (),
    "controller/test_pairwise_turns.py::test_who_is_excluded_waits_and_others_do_not": ("Quota.SWITCH",),
    "controller/test_paring_execution.py::test_frames_along_an_installed_tree_go_at_the_planned_rate": (),
    "controller/test_paring_fast.py::test_section_4_c_4_links_and_fees_together_are_near_the_least": (),
    "controller/test_paring_fast.py::test_the_highest_rate_is_always_reached": (),
    "controller/test_paring_fast.py::test_the_tree_is_the_same_compiled_or_not": (),
    "controller/test_reservation_crashes.py": (
        "test_one_that_is_killed_before_ufm_answers_has_one_reservation_and_gives_it_back[[]pkeys]",
    ),
    "controller/test_simulate_command.py::test_files_are_written_though_nobody_reads_the_table": (),
    "controller/test_simulate_command.py::test_progress_is_told_as_shares_that_ascend_to_1": ("1",),
    "controller/test_simulate_command.py::test_the_same_seeds_give_the_same_json_in_as_many_processes_as_one_likes": (),
    "controller/test_simulate_report.py::test_the_page_is_the_same_each_time": (),
    "controller/test_sticky_trees.py::test_a_pair_that_takes_turns_loses_about_what_is_estimated": (),
    "controller/test_sticky_trees.py::test_few_jobs_gain_nearly_as_much_as_the_best_of_all_trees_for_them": (),
    "daemon/test_alerts.py": (
        "test_a_green_run_is_silent",
        "test_a_switch_without_memory",
        "test_each_alert_has_a_fault_that_fires_it",
        "test_the_page_has_all_alerts",
    ),
    "daemon/test_alerts_controller.py": ("test_jobs_that_lack_a_tree_or_hosts",),
    "daemon/test_asked_paths.py::test_hosts_in_crossed_racks_sum_up_a_tree_and_return_with_the_bytes_of_the_plan": (
        "0-False-int64",
    ),
    "daemon/test_bench_allreduce.py": ("test_every_type_is_right_over_a_bad_wire",),
    "daemon/test_bench_controller.py": (),
    "daemon/test_bench_migration.py": (),
    "daemon/test_bench_peers.py::test_another_inaproto_takes_turns": (),
    "daemon/test_bench_peers.py::test_open_mpi_takes_turns_with_daemons": (),
    "daemon/test_bench_peers.py::test_gloo_takes_turns_with_daemons": (),
    "daemon/test_bench_priorities.py": (),
    "daemon/test_bench_sharing_live.py::test_jobs_share_and_are_counted": (),
    "daemon/test_bench_sharp.py::test_it_reports_both_for_each_size": (),
    "daemon/test_bench_training.py": (),
    "daemon/test_job_run.py": ("test_what_cannot_be_is_said_before_anything_is_submitted",),
    "daemon/test_collectives.py::test_lists_are_fused": ("ring-True", "True-ring", "one host*", "*one host"),
    "daemon/test_collectives.py::test_negative_zeros_and_nans_arrive_as_they_are": ("ring", "one host"),
    "daemon/test_collectives.py::test_ranks_that_call_different_collectives_are_told": (
        "broadcast*switch",
        "barrier*chain",
    ),
    "daemon/test_collectives.py::test_what_is_added_has_the_bits_of_an_all_reduce": ("one host",),
    "daemon/test_collectives.py::test_what_is_moved_keeps_its_bits": ("overlay",),
    "daemon/test_collectives_live.py": (),
    "daemon/test_congestion_links.py": (),
    "daemon/test_crashes.py": (),
    "daemon/test_host_successors.py::test_nothing_is_left_of_many_replacements": (),
    "daemon/test_host_successors.py::test_a_rank_whose_process_dies_meanwhile_is_named": (
        "while it is away",
    ),
    "daemon/test_demo_kills.py": (
        "test_who_is_killed_and_does_not_come_back_is_named_and_nothing_is_left[[]rank1*",
    ),
    "daemon/test_demo_pushpull.py::test_a_host_and_a_server_are_killed_and_nothing_is_lost": (),
    "daemon/test_demo_racks.py": (),
    "daemon/test_demo_upgrade.py::test_every_daemon_is_replaced_under_training": (),
    "daemon/test_demo_sharp.py::test_whatever_sharp_does_all_ranks_have_one_result_and_no_fallback_is_silent": (),
    "daemon/test_demo_run.py": (
        "test_a_refused_setting_fails_the_demo_and_is_named",
        "test_an_interrupted_demo_leaves_no_process[[]2]",
    ),
    "daemon/test_fabric_processes.py::test_a_killed_switch_comes_back_and_the_job_goes_on": ("leaf1",),
    "daemon/test_fabric_processes.py::test_a_wrong_trunk_address_is_named_to_every_rank_and_at_the_root": (),
    "daemon/test_further_roots.py::test_a_job_is_summed_along_the_tree_of_a_further_root": ("clear",),
    "daemon/test_further_roots.py::test_what_a_job_alone_needs_is_lost_and_it_alone_goes_on_without": (
        "spine1",
    ),
    "daemon/test_images.py": (),
    "daemon/test_kubernetes_daemons.py": (),
    "daemon/test_ecmp_links.py": (),
    "daemon/test_lag_links.py": (),
    "daemon/test_large_arrays.py::test_who_sends_or_receives_for_longer_than_patience_is_not_taken_for_dead": (),
    "daemon/test_memory_cluster.py::test_another_seed_gives_another_digest": (),
    "daemon/test_memory_cluster.py::test_one_seed_gives_one_digest_in_processes_that_hash_differently": (),
    "daemon/test_memory_fabric.py::test_a_job_goes_on_when_a_switch_restarts": ("leaf1-stop-*",),
    "daemon/test_memory_fabric.py::test_sums_are_those_of_the_nested_plan": ("weather-racks", "clear-with*"),
    "daemon/test_memory_fabric.py::test_three_levels": ("",),
    "daemon/test_memory_fabric.py::test_two_runs_of_one_seed_are_the_same": (),
    "daemon/test_memory_recovery.py::test_every_fault_at_once": ("ring",),
    "daemon/test_memory_recovery.py::test_a_job_returns_to_the_switch_when_another_has_made_room": (),
    "daemon/test_memory_trunks.py::test_a_trunk_that_is_cut_under_a_job_costs_frames_only": ("0.5",),
    "daemon/test_parallel_rings.py::test_a_daemon_that_is_killed_is_named_to_every_rank_in_time": (),
    "daemon/test_paring_live.py::test_links_carry_what_was_planned_with_the_hosts_and_capacities_are_kept": (),
    "daemon/test_path_mtu_links.py": (),
    "daemon/test_pauses_links.py": (),
    "daemon/test_planned_trees_live.py": (),
    "daemon/test_pasted_docs.py": (
        "test_the_first_script_of_the_readme",
        "test_the_page_begins_with_the_smallest_script[[]*",
    ),
    "daemon/test_package_in_root.py": (),
    "daemon/test_prometheus.py": (),
    "daemon/test_push_pull_nic_processes.py::test_arrays_go_by_the_nics_and_all_updates_are_in_the_weights_once": (
        "loopback",
    ),
    "daemon/test_real_fabrics.py": (),
    "daemon/test_real_links.py::test_tcp_of_several_mebibytes_both_ways_with_offloads": ("1500",),
    "daemon/test_real_links_rings.py": ("test_a_host_waits_for_its_link",),
    "daemon/test_report_sharing.py": (),
    "daemon/test_run_command.py": (
        "test_who_ends_badly_is_named_and_ends_the_others",
        "test_who_failed_first_is_named_though_something_holds_its_output",
        "test_a_signal_goes_to_all_and_leaves_nothing",
        "test_who_does_not_heed_is_killed_and_so_is_what_it_started",
        "test_output_and_arguments_are_the_scripts",
        "test_nohup_is_heeded",
    ),
    "daemon/test_security_processes.py": (),
    "daemon/test_shards_live.py": (),
    "daemon/test_sharp_failures.py::test_every_code_of_an_operation": ("all ranks",),
    "daemon/test_sharp_host_daemons.py": ("test_a_job_is_summed_by_sharp_once_its_hosts_are_attached",),
    "daemon/test_sharp_probe.py": (
        "test_a_manager_that_refuses_is_in_the_record",
        "test_what_cannot_be_meant_is_refused",
    ),
    "daemon/test_sharp_processes.py": ("test_processes_attach_sum_and_leave",),
    "daemon/test_sharp_ranks.py::test_a_hundred_attachments_leave_nothing": (),
    "daemon/test_sharing_live.py": (
        "test_two_jobs_use_the_pool_by_turns[[]*-]",
        "test_a_question_to_a_peer_goes_through_the_control_plane_of_the_switches",
    ),
    "daemon/test_shrink_end_to_end.py": (
        "test_the_others_end_with_the_weights_of_exact_sums[[]both_of_a_host_are_killed]",
    ),
    "daemon/test_slurm.py": (),
    "daemon/test_sparse_regression.py": (),
    "daemon/test_threads.py::test_threads_call_and_wait_in_any_order": ("*-30",),
    "daemon/test_tree_migration_live.py": (),
    "daemon/test_two_paths.py::test_a_leaf_that_is_lost_ends_both_rings_and_both_come_back": (),
    "daemon/test_two_paths.py::test_whatever_ends_the_rings_the_job_goes_on": ("fabric-*", "switch crash-*"),
    "daemon/test_ufm_reservations.py::test_trouble_passes_and_nothing_is_given_twice": ("!Loss.SILENT*",),
    "paper/test_mina_3_c_exact_trees.py::test_tree_building_is_this_far_from_the_most_trees_on_200_small_instances": (),
    "paper/test_mina_3_c_independent_sets.py::test_sets_are_about_as_large_as_the_published_solver_s": (
        "!10 vertices",
        "!12 vertices",
    ),
    "paper/test_mina_3_c_merged_groups.py::test_merged_groups_score_as_the_published_simulator_s": (),
    "paper/test_mina_3_d_sharing.py::test_pairs_do_what_they_do_in_the_published_simulator": (
        "Policy.GREEDY",
    ),
    "paper/test_mina_3_d_turns.py::test_turns_of_a_round_trip_of_1_ms_cost_nothing_on_average": (),
    "paper/test_mina_5_figures.py::test_pages_and_status_are_there_though_nobody_reads_the_tables": (),
    "paper/test_mlnet_section4_figures.py::test_no_model_of_a_run_ends_before_its_flows_can_have_been_carried": (),
    "paper/test_netreduce_3_2_congestion.py": (
        "test_3_2_a_ring_is_cut_as_the_plain_flow_in_its_place_is",
        "test_3_2_and_the_others_get_what_they_had",
        "test_what_scenarios_measure",
    ),
    "paper/test_netreduce_3_2_lookup.py::test_every_run_with_one_loss": (
        "Lookup.ONE_LATEST_NEGATIVE-lengths5-*",
        "Lookup.WINDOW-lengths7-*",
    ),
    "paper/test_protocol_5_recovery.py::test_nobody_lacks_more_than_n_results_and_the_donor_has_them": (
        "!3-1-sizes2-switch",
    ),
    "planted/test_planted_faults.py::test_a_test_catches": ("!first_of_a_generation_bound_anew",),
    "planted/test_planted_faults.py::test_a_world_catches": (
        "!timer_not_rearmed",
        "!peer_never_asked_for",
        "!failure_told_to_one",
        "!template_outlives_ring",
        "!header_slot_reused_early",
    ),
    "property/test_plans_on_every_path.py::test_every_path_gives_every_rank_the_bytes_of_the_plan": ("0",),
    "property/test_rc_exhaustive.py::test_every_interleaving_completes_and_places_once": (
        "!sizes3-3-2-1-2-False-False",
        "!sizes2-3-1-1-3-True-False",
        "!sizes1-2-1-2-3-True-False",
    ),
    "rtl/test_trees.py::test_campaigns_come_by_every_rule": (),
    "sim/test_collective_worlds.py::test_a_host_that_takes_its_result_without_the_others_is_found": (),
    "sim/test_collective_worlds.py::test_every_rule_holds": ("recovery",),
    "sim/test_collective_worlds.py::test_every_rule_holds_while_places_are_given_and_taken_back": (),
    "sim/test_congestion_world.py::test_a_ring_and_plain_flows_on_the_same_links_keep_all_rules": (),
    "sim/test_congestion_world.py::test_what_is_drawn_depends_on_the_seed_alone": (),
    "sim/test_explore_given_up.py::test_a_seat_that_is_given_up_runs_no_operation_under_two_epochs": (
        "!*'turns': 2,*",
    ),
    "sim/test_explore_migration.py::test_two_jobs_swap_whatever_fails_once": (),
    "sim/test_explore_overlay.py::test_three_workers_and_one_crash_anywhere": (),
    "sim/test_explore_overlay.py::test_what_nobody_heeds_makes_no_other_end": ("resets",),
    "sim/test_explore_ring.py::test_a_single_entry_with_negative_offsets_stops_the_ring_too": (),
    "sim/test_explore_ring.py::test_the_product_holds": (
        "!*'messages': 2*",
        "!*'window': 1, 'length': 2, 'losses': 1}",
    ),
    "sim/test_explore_sharing.py::test_reductions_change_no_verdict": ("equal-index",),
    "sim/test_explore_sharing.py::test_the_product_holds": (
        "!*'until': 1*",
        "!*'turn': 1, 'losses'*",
        "!*'turns': 3*",
    ),
    "sim/test_explore_successors.py::test_one_journal_stands_for_those_that_read_alike": (),
    "sim/test_explore_successors.py::test_the_product_holds": (),
    "sim/test_log.py::test_a_stuck_rank_is_told_with_what_it_lacks": (),
    "sim/test_overlay_planted.py::test_a_world_finds_it": (
        "!epoch_not_told_to_who_asks",
        "!flush_forgotten",
        "!multicast_to_one",
    ),
    "sim/test_racks_world.py::test_a_campaign_of_racks_runs_and_reruns": (),
    "sim/test_shrink.py::test_a_failing_world_becomes_small_and_fails_alike": (),
    "sim/test_soak.py::test_a_campaign_in_two_processes_prints_and_reports": (),
    "sim/test_soak.py::test_a_failure_that_cannot_be_told_is_listed_all_the_same": (),
    "sim/test_soak.py::test_a_resumed_campaign_runs_each_seed_once": (),
    "sim/test_soak.py::test_nothing_is_left_of_a_campaign_that_is_stopped": ("signals0",),
    "sim/test_soak.py::test_the_digest_does_not_depend_on_the_hash_seed": (),
    "sim/test_successors_world.py::test_every_rule_holds_in_hundreds_and_all_marks_are_seen": (),
    "sim/test_successors_world.py::test_the_successor_dies_as_well": (),
    "sim/test_weather_days.py::test_a_day_keeps_every_rule_and_every_stop_has_a_cause": (),
    "sim/test_weather_days.py::test_a_log_of_a_morning_replays": (),
    "sim/test_worlds_of_words.py::test_a_campaign_reports": ("overlay",),
    "sim/test_worlds_of_words.py::test_a_campaign_that_fails_says_how_to_run_it_again": (),
    "sim/test_worlds_of_words.py::test_a_digest_does_not_depend_on_hashes": (),
    "sim/test_worlds_of_words.py::test_a_failure_is_told_made_smaller_and_replayed": ("overlay",),
    "sim/test_worlds_of_words.py::test_the_command_runs_and_replays_one_seed": ("trees",),
    "twins/test_twins.py::test_a_world_that_differed_once": (),
    "torch/test_forms.py::test_all_ranks_have_the_same_weights": ("fp16", "powersgd"),
    "torch/test_forms.py::test_functional_collectives_and_distributed_tensors": (),
    "torch/test_forms.py::test_fsdp2_trains_as_above_gloo": ("2",),
    "torch/test_run_command.py": (),
    "torch/test_elastic.py": (),
    "torch/test_page.py": (),
    "torch/test_peer_suite.py": (),
    "torch/test_traps.py::test_a_rank_that_is_killed_at_any_moment_is_named_and_nobody_hangs": ("0", "1"),
    "torch/test_traps.py::test_a_daemon_that_is_killed_at_any_moment_costs_no_bit_or_is_named": ("0",),
    "torch/test_traps.py::test_works_that_python_does_not_hold_end": (),
    "unit/test_bench_simulate.py::test_a_report_has_its_configuration_and_tells_compiling_from_running": (),
    "unit/test_bench_simulate_growth.py::test_a_report_has_each_run_and_each_exponent": (),
    "unit/test_host_journal.py::test_every_pair_of_stores": (),
    "unit/test_conformance.py::test_a_careless_switch_breaks_a_rule": (
        "result_not_marked",
        "whole_slot_freed",
    ),
    "unit/test_ray_engine.py": (),
    "unit/test_packages.py": (
        "test_production_has_what_developers_test_with_and_none_of_their_tools",
        "test_each_distribution_that_is_tried_has_its_package",
        "test_text_is_not_taken_for_roff",
        "test_nothing_tells_where_and_when_it_was_installed",
        "test_a_picture_without_matplotlib_names_the_extra",
    ),
}


def is_slow(nodeid: str) -> bool:
    path, _, name = nodeid.removeprefix("tests/").partition("::")
    test, _, parameters = name.partition("[")
    if path in SLOW:
        return not _stays(name, SLOW[path])
    patterns = SLOW.get(f"{path}::{test}")
    if patterns is None:
        return takes_long(f"{path}::{test}")
    return not _stays(parameters.removesuffix("]"), patterns)


def _stays(name: str, patterns: tuple[str, ...]) -> bool:
    slow = [pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")]
    if slow:
        return not any(fnmatchcase(name, pattern) for pattern in slow)
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def functions_of(entry: str) -> list[str]:
    """The functions of a file that ``SLOW[entry]`` and ``entry`` name."""
    _, _, test = entry.partition("::")
    return [test] if test else [pattern.partition("[")[0] for pattern in SLOW[entry]]
