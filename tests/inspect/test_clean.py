"""Clean captures: whatever the network loses, doubles or delays, no endpoint is blamed for it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from inaproto.faults.weather import Weather
from inaproto.sim.frames.draw.racks import draw_racks
from inaproto.sim.frames.draw.swarm import Swarm, WorldConfig, draw_world
from inaproto.sim.frames.world import World
from inaproto.wire.files.pcapng import Direction
from inaproto.wire.roce import Opcode
from tests.inspect.captures import CLEAR, Tap, frames_of, inspect, ring_world, tap, without_damage
from tests.inspect.damages import patched
from tests.seeds import seeds
from tests.sim.worlds import SMALL

HARSH: Final = Weather(drop=0.05, duplicate=0.03, reorder=0.05)
RACKS: Final = Swarm(ranks_max=6, jobs_max=2, packets_max=200)


def inspect_world(config: WorldConfig, books: Counter[str]) -> None:
    """At each of its switches; with directions, and one port alone without."""
    checker = Tap()
    result = World(without_damage(config), checkers=[checker]).run()
    assert result.violation is None, result.violation
    for switch in {one.switch for one in checker.passed}:
        here = [one for one in checker.passed if one.switch == switch]
        inspector, found = inspect(frames_of(here))
        assert not found, (config.seed, switch, found[0].as_dict())
        books.update(inspector.books.checked)
        books.update(inspector.books.notes)
        for port in {one.port for one in here}:
            there = [one for one in here if one.port == port]
            _, found = inspect(frames_of(there, with_directions=False))
            assert not found, (config.seed, switch, port, found[0].as_dict())


@pytest.mark.parametrize("seed", seeds(12))
def test_worlds_of_one_switch(seed: int) -> None:
    inspect_world(draw_world(seed, SMALL), Counter())


@pytest.mark.parametrize("seed", seeds(8))
def test_worlds_of_several_switches(seed: int) -> None:
    inspect_world(draw_racks(seed, RACKS), Counter())


@pytest.mark.parametrize("seed", seeds(6))
def test_a_capture_that_begins_late_blames_nobody(seed: int) -> None:
    """Of a ring that has run before, what was sent cannot be known."""
    passed = tap(ring_world(f"late {seed}", HARSH if seed % 2 else CLEAR, elements=(900, 300, 1000)))
    for begin in range(1, len(passed) - 1, 7):
        _, found = inspect(frames_of(passed[begin:]))
        assert not found, (seed, begin, found[0].as_dict())


@pytest.mark.parametrize("seed", seeds(6))
def test_frames_that_the_capture_lost_and_counted_blame_nobody(seed: int) -> None:
    frames = frames_of(tap(ring_world(f"lost {seed}", elements=(900, 300, 1000))))
    rng = random.Random(seed)
    for _ in range(20):
        lost = rng.randrange(len(frames) - 1)
        left = [*frames[:lost], frames[lost + 1]._replace(dropped=1), *frames[lost + 2 :]]
        _, found = inspect(left)
        assert not found, (seed, lost, found[0].as_dict())


@pytest.mark.parametrize("seed", seeds(4))
def test_both_sides_of_a_switch_on_one_interface_blame_nobody(seed: int) -> None:
    """As ``tcpdump -i any`` captures them: what a PSN carries is then two things."""
    passed = tap(ring_world(f"any {seed}", HARSH if seed % 2 else CLEAR, elements=(900, 300, 1000)))
    here = [replace(one, port=1) for one in passed]
    inspector, found = inspect(frames_of(here, with_directions=False))
    assert not found, found[0].as_dict()
    assert inspector.books.checked["stale first packet"]


def test_a_capture_that_began_late_sees_a_wrong_sum_again_after_some_messages() -> None:
    passed = tap(ring_world("later", elements=(8000,) * 3, message_packets=2))
    late = passed[len(passed) // 10 :]
    late, wrong = patched(Opcode.RC_WRITE_FIRST, Direction.OUTBOUND, -3, 70 + 44, b"\xff\xff\xff")(late)
    inspector, found = inspect(frames_of(late))
    assert [(one.rule.name, one.frame.number) for one in found] == [("wrong sum", wrong + 1)]
    assert inspector.books.notes["results whose inputs were not captured, not checked"]
