"""The world of adders: rates are those of the model, and what cannot add is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.errors import LocalMisuse, Unsupported
from inaproto_controller.simulate.timed.tree_rate import Adder, steady_rate

RACK = TreeSwitch("rack", (0, 1, 2))
TREE = TreeSwitch("ps", (TreeSwitch("passes", (RACK, 3), aggregates=False), 4))


def test_inputs_share_the_capacity_of_whoever_adds_them() -> None:
    fast = Adder(Fraction(100))
    assert steady_rate(TREE, {"rack": Adder(Fraction(2)), "ps": fast}, Fraction(9)).rate == Fraction(2, 3)
    assert steady_rate(TREE, {"rack": fast, "ps": Adder(Fraction(2))}, Fraction(9)).rate == Fraction(2, 3)
    assert steady_rate(TREE, {"rack": fast, "ps": fast}, Fraction(9)).rate == 9
    both = steady_rate(TREE, {"rack": Adder(Fraction(2)), "ps": Adder(Fraction(2))}, Fraction(9))
    assert (both.rate, both.period) == (Fraction(2, 3), 1)


def test_an_adder_without_bound_takes_no_time_and_a_free_input_neither() -> None:
    assert steady_rate(TREE, {"rack": Adder(None), "ps": Adder(None)}, Fraction(7, 3)).rate == Fraction(7, 3)
    freed = {"rack": Adder(Fraction(2), free=1), "ps": Adder(None)}
    assert steady_rate(TREE, freed, Fraction(9)).rate == 1


def test_a_window_of_one_waits_for_every_result() -> None:
    """A third of a second to send, then 3 inputs one after the other, then the third one at the root."""
    adders = {"rack": Adder(Fraction(3)), "ps": Adder(Fraction(6))}
    slow = steady_rate(TREE, adders, Fraction(3), window=1)
    assert slow.rate < steady_rate(TREE, adders, Fraction(3)).rate == 1
    assert slow.rate == 1 / (Fraction(1, 3) + 1 + Fraction(1, 6))


@pytest.mark.parametrize(
    ("one", "other", "free", "rate"), [(1000, 1001, 1, 1000), (1000, 999, 0, Fraction(999, 2))]
)
def test_adders_that_are_nearly_alike_take_long_to_fall_in_step(
    one: int, other: int, free: int, rate: Fraction
) -> None:
    tree = TreeSwitch("ps", (TreeSwitch("a", (0, 1)), TreeSwitch("b", (2, 3))))
    adders = {"a": Adder(Fraction(one), free), "b": Adder(Fraction(other), free), "ps": Adder(Fraction(3001))}
    found = steady_rate(tree, adders, Fraction(10**6))
    assert found.rate == rate
    assert found.period > 256
    with pytest.raises(Unsupported, match="3000 rounds of a tree of 3 adders"):
        steady_rate(tree, adders, Fraction(10**6), rounds_max=3000)


def test_who_cannot_add_is_refused() -> None:
    with pytest.raises(LocalMisuse, match="rack is to add up"):
        steady_rate(TREE, {"ps": Adder(None)}, Fraction(1))
    with pytest.raises(LocalMisuse, match="ps is to add up"):
        steady_rate(TREE, {"rack": Adder(None), "ps": Adder(Fraction(0))}, Fraction(1))
    with pytest.raises(LocalMisuse, match="more than 0"):
        steady_rate(TREE, {"rack": Adder(None), "ps": Adder(None)}, Fraction(0))
