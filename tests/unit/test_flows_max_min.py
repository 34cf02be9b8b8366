"""Max-min fair rates: two engines, and a certificate that does not trust either."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import LocalMisuse
from inaproto_hil.evaluation.flows.max_min import Engine, certificate, max_min
from inaproto_hil.evaluation.flows.paths import NO_LINK, Floats, Ints, Paths

ENGINES = list(Engine)


def drawn(seed: int, *, links: int, flows: int, kinds: int) -> tuple[Floats, Paths, Ints, Ints]:
    draw = np.random.default_rng(seed)
    table = np.full((flows, 6), NO_LINK, np.int32)
    for flow in range(flows):
        hops = draw.integers(0, min(links, 6) + 1)
        table[flow, :hops] = draw.permutation(links)[:hops]
    capacities = draw.choice([0.25, 1.0, draw.uniform(0.1, 2.0)], links)
    weights, classes = draw.integers(1, 4, flows), draw.integers(0, kinds, flows)
    return capacities, Paths.of_table(table), weights, classes


def path_table(*paths: list[int]) -> Paths:
    most = max(map(len, paths))
    return Paths.of_table(np.array([path + [NO_LINK] * (most - len(path)) for path in paths], np.int32))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flow_over_two_full_links_leaves_the_rest_to_the_others(engine: Engine) -> None:
    """Bertsekas and Gallager's example: the long flow gets the least share, the others what that leaves."""
    rates = max_min(np.array([1.0, 3.0]), path_table([0], [0, 1], [1]), engine=engine)
    assert rates.tolist() == [0.5, 0.5, 2.5]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flow_that_stands_for_several_takes_their_shares(engine: Engine) -> None:
    rates = max_min(np.array([1.0]), path_table([0], [0]), weights=np.array([3, 1], np.int64), engine=engine)
    assert rates.tolist() == [0.25, 0.25]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lower_class_gets_what_higher_ones_do_not_use(engine: Engine) -> None:
    """The high flow is held back by its second link, so the low one has the rest of the first."""
    paths = path_table([0, 1], [0], [1])
    rates = max_min(np.array([1.0, 0.25]), paths, classes=np.array([0, 1, 2], np.int64), engine=engine)
    assert rates.tolist() == [0.25, 0.75, 0.0]


@pytest.mark.parametrize("engine", ENGINES)
def test_flows_without_links_are_not_held_back_and_no_flows_are_no_rates(engine: Engine) -> None:
    assert max_min(np.array([1.0]), path_table([], [0]), engine=engine).tolist() == [np.inf, 1.0]
    assert len(max_min(np.array([1.0]), Paths.of_table(np.zeros((0, 2), np.int32)), engine=engine)) == 0


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 80), st.integers(1, 4))
def test_both_engines_agree_and_the_certificate_holds(seed: int, links: int, flows: int, kinds: int) -> None:
    """Every flow has a full link on which none of its class is faster: so priorities leave no link idle that
    a waiting flow could use."""
    capacities, paths, weights, classes = drawn(seed, links=links, flows=flows, kinds=kinds)
    found = [max_min(capacities, paths, weights=weights, classes=classes, engine=one) for one in ENGINES]
    for rates in found:
        assert certificate(capacities, paths, rates, weights=weights, classes=classes) is None
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-12)


@given(st.integers(0, 2**32), st.sampled_from([0.5, 0.999, 1.001, 2.0]))
def test_the_certificate_finds_one_rate_that_is_wrong(seed: int, factor: float) -> None:
    capacities, paths, weights, classes = drawn(seed, links=8, flows=12, kinds=2)
    rates = max_min(capacities, paths, weights=weights, classes=classes)
    moved = np.flatnonzero(np.isfinite(rates) & (rates > 1e-9))
    if len(moved):
        rates[moved[seed % len(moved)]] *= factor
        assert certificate(capacities, paths, rates, weights=weights, classes=classes) is not None


def test_engines_agree_on_thousands_of_flows_in_a_network_that_is_oversubscribed() -> None:
    capacities, paths, weights, classes = drawn(1, links=600, flows=4000, kinds=3)
    found = [max_min(capacities, paths, weights=weights, classes=classes, engine=one) for one in ENGINES]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("capacities", "weights", "classes"),
    [([0.0], [1], [0]), ([np.inf], [1], [0]), ([1.0], [0], [0]), ([1.0], [1], [-1]), ([1.0], [1, 1], [0])],
)
def test_what_is_no_network_is_refused(
    capacities: list[float], weights: list[int], classes: list[int]
) -> None:
    with pytest.raises(LocalMisuse):
        max_min(np.array(capacities), path_table([0]), weights=np.array(weights), classes=np.array(classes))
