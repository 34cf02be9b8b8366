"""Flows from the first to the last end: the loop that keeps rates, against one that finds all anew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inaproto.errors import LocalMisuse
from inaproto_hil.evaluation.flows.max_min import Engine
from inaproto_hil.evaluation.flows.phase import Load, carry, merged
from tests.unit.test_flows_max_min import drawn, path_table


def some_load(seed: int, *, kinds: int, waiting: bool) -> tuple[np.ndarray, Load]:
    capacities, paths, weights, classes = drawn(seed, links=12, flows=40, kinds=kinds)
    draw = np.random.default_rng(seed + 1)
    before = after = None
    if waiting:
        after = np.arange(1, 40)
        before = draw.integers(0, after)
    volumes = draw.choice([0.5, 1.0, 3.0], 40)
    return capacities, Load.of(paths, volumes, weights=weights, classes=classes, before=before, after=after)


@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans())
def test_rates_that_are_kept_are_those_that_would_be_found_anew(seed: int, kinds: int, waiting: bool) -> None:
    """Every end of every flow, with priorities and with flows that wait for others."""
    capacities, load = some_load(seed, kinds=kinds, waiting=waiting)
    found = [carry(capacities, load, engine=one).ended for one in Engine]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


@given(st.integers(0, 2**32))
def test_every_link_carries_its_volume_and_never_more_than_it_can(seed: int) -> None:
    capacities, load = some_load(seed, kinds=1, waiting=False)
    for slack in (0.0, 0.1):
        course = carry(capacities, load, slack=slack)
        assert np.isfinite(course.ended).all()
        on_links = load.on_links(len(capacities)) / capacities
        assert course.time >= on_links.max() * (1 - 1e-9)


@given(st.integers(0, 2**32), st.floats(0.0, 0.5))
def test_alike_flows_that_begin_together_take_as_long_as_the_fullest_link(seed: int, slack: float) -> None:
    """It has the least share from the first, and as nothing on it ends sooner it keeps that: the flows on it
    end last, at load over capacity, whatever the others do and however long rates hold."""
    capacities, paths, weights, _ = drawn(seed, links=12, flows=60, kinds=1)
    load = Load.of(paths, np.ones(60), weights=weights)
    fullest = (load.on_links(12) / capacities).max()
    assert carry(capacities, load, slack=slack).time == pytest.approx(fullest, rel=1e-9)


@given(st.integers(0, 2**32))
@example(5578)  # an end that lies between two roundings
def test_merged_flows_end_when_each_of_them_does(seed: int) -> None:
    capacities, load = some_load(seed, kinds=2, waiting=False)
    twice = Load.of(
        load.paths.taken(np.repeat(np.arange(40), 2)),
        np.repeat(load.volumes, 2),
        classes=np.repeat(load.classes, 2),
    )
    together = merged(twice)
    assert len(together.paths) <= 40
    assert together.weights.sum() == 80
    one, other = carry(capacities, twice), carry(capacities, together)
    ends = np.repeat(other.ended, together.weights.astype(int))
    np.testing.assert_allclose(np.sort(ends), np.sort(one.ended), rtol=1e-9, atol=1e-9)


def test_flows_that_wait_cannot_be_merged() -> None:
    load = Load.of(path_table([0], [0]), np.ones(2), before=np.array([0]), after=np.array([1]))
    with pytest.raises(LocalMisuse):
        merged(load)


def test_one_that_waits_begins_when_the_last_of_those_before_it_has_ended() -> None:
    paths = path_table([0], [1], [0], [])
    load = Load.of(
        paths, np.array([1.0, 3.0, 1.0, 1.0]), before=np.array([0, 1, 2]), after=np.array([2, 2, 3])
    )
    assert carry(np.ones(2), load).ended.tolist() == [1.0, 3.0, 4.0, 4.0]


def test_slack_delays_what_others_leave_by_its_share_at_most() -> None:
    """Rates hold from 1.0, when the first ends, to 1.05: 0.05 of a link lies idle, and 0.05 is lost."""
    paths, volumes = path_table([0], [0], [1]), np.array([0.5, 1.0, 1.05])
    exact = carry(np.ones(2), Load.of(paths, volumes))
    held = carry(np.ones(2), Load.of(paths, volumes), slack=0.1)
    assert exact.ended.tolist() == [1.0, 1.5, 1.05]
    assert held.ended == pytest.approx([1.0, 1.525, 1.05])
    assert held.rated < exact.rated
