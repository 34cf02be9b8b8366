"""The inspection names exactly the bad packet of a damaged capture, and none in a clean one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from inaproto_hil.inspect.findings import RULES
from tests.inspect.captures import Passed, frames_of, inspect, ring_world, tap
from tests.inspect.damages import DAMAGES


@cache
def clean(seed: str) -> tuple[Passed, ...]:
    return tuple(tap(ring_world(seed, elements=(900, 300, 1000, 700))))


@pytest.mark.parametrize("seed", ["a", "b", "c"])
@pytest.mark.parametrize("name", DAMAGES)
def test_the_bad_packet_is_named(name: str, seed: str) -> None:
    rule, damage = DAMAGES[name]
    capture, wrong = damage(list(clean(seed)))
    _, found = inspect(frames_of(capture))
    assert found, "nothing was found"
    assert (found[0].rule.name, found[0].frame.number) == (rule, wrong + 1), found[0]


@pytest.mark.parametrize("seed", ["a", "b", "c"])
def test_a_clean_capture_breaks_no_rule_and_all_are_applied(seed: str) -> None:
    inspector, found = inspect(frames_of(list(clean(seed))))
    assert found == []
    never = {rule.name for rule in RULES} - inspector.books.checked.keys()
    assert never == {"NAK of what was not missing", "retransmission differs"}, "where nothing is lost"


def test_every_rule_has_its_damage() -> None:
    assert {rule for rule, _ in DAMAGES.values()} == {rule.name for rule in RULES}


def test_the_page_lists_the_rules_as_they_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "inspect.md").read_text()
    for rule in RULES:
        assert f"| {rule.name} | {rule.states} | {rule.source} |" in page
