"""In which order hosts get their ranks, so that two trees add in the order of these."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from inaproto_controller.planning.paring.rank_order import TRIED_MAX, Part, are_whole, common_order, parts_of
from tests.seeds import seeds


def part(*numbers: int) -> Part:
    return frozenset(numbers)


def test_parts_are_what_is_below_each_switch() -> None:
    above = {"a": "top", "b": "top", "empty": "top"}
    assert parts_of(above, ["a", "b", "a", "top"]) == {part(0, 2), part(1), part(0, 1, 2, 3)}
    assert parts_of({}, ["a", "b"]) == {part(0), part(1)}


def test_parts_within_each_other_follow_in_one_piece_the_lowest_first() -> None:
    assert common_order(5, {part(1, 4), part(0, 1, 4), part(2, 3)}) == (0, 1, 4, 2, 3)
    assert common_order(3, set()) == (0, 1, 2)


def test_parts_of_two_trees_may_overlap() -> None:
    assert common_order(3, {part(0, 1), part(0, 2)}) == (1, 0, 2)
    assert common_order(3, {part(0, 1), part(1, 2), part(0, 2)}) is None
    many = TRIED_MAX + 1
    assert common_order(many, {part(0, 1), part(0, 2)}) is None, "so many orders are not tried"


@pytest.mark.parametrize("seed", seeds(40))
def test_an_order_is_found_if_there_is_one(seed: int) -> None:
    draw = Random(f"{seed}/rank order")
    count = draw.randint(2, 6)
    parts = {frozenset(draw.sample(range(count), draw.randint(1, count))) for _ in range(draw.randint(0, 4))}
    found = common_order(count, parts)
    some = any(are_whole(order, parts) for order in permutations(range(count)))
    assert (found is not None) == some
    if found is not None:
        assert sorted(found) == list(range(count))
        assert are_whole(found, parts)
