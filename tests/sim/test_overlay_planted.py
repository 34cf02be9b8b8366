"""Mistakes in push, pull and clock over trees, each with an overlay world that finds it."""

from __future__ import annotations

import pytest

from inaproto.sim.overlay.drawing import draw_overlay
from inaproto.sim.overlay.world import OverlayWorld
from tests.planted.overlay_faults import FAULTS

FINDS = {
    "nothing_kept": (3, "staleness bound"),
    "window_sent_in_parts": (89, "few pushes"),
    "root_merges_what_is_inside": (59, "exactly once"),
    "merges_what_is_inside": (3, "exactly once"),
    "forwards_at_equal": (1, "few pushes"),
    "forwards_too_late": (8, "every worker ends"),
    "answers_from_a_stale_cache": (0, "staleness bound"),
    "flush_forgotten": (6, "every worker ends"),
    "window_in_another_order": (89, "no staleness is serial training"),
    "acknowledges_before_durable": (0, "acknowledged is durable"),
    "merged_told_too_soon": (0, "acknowledged is durable"),
    "records_forgotten": (3, "acknowledged is durable"),
    "multicast_to_one": (1, "every worker ends"),
    "blames_what_was_on_its_way": (7, "nobody is to blame"),
    "resumes_from_the_beginning": (0, "acknowledged is durable"),
    "never_goes_back": (0, "no deadline without work"),
    "waits_for_the_dead": (0, "no deadline without work"),
    "dead_child_is_awaited": (0, "no deadline without work"),
    "never_built_up": (0, "no deadline without work"),
    "ahead_without_bound": (2, "bounded"),
    "cache_without_own_updates": (0, "exactly once"),
    "new_order_at_once": (30, "no staleness is serial training"),
    "epoch_not_told_to_who_asks": (20, "the tree is whole again"),
}


def test_every_planted_fault_has_its_world() -> None:
    assert set(FINDS) == set(FAULTS)


@pytest.mark.parametrize("name", FINDS)
def test_a_world_finds_it(name: str) -> None:
    seed, rule = FINDS[name]
    with FAULTS[name]():
        broken = OverlayWorld(draw_overlay(seed, has_processes=False)).run().violation
    assert broken is not None
    assert broken.rule == rule
    assert OverlayWorld(draw_overlay(seed, has_processes=False)).run().violation is None
