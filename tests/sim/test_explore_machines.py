"""The tables of local steps against cores whose state is never touched.

A table merges local states that its fingerprint takes for equal. If a fingerprint left out something that
matters, some run would reach a merged state whose core does otherwise than the table says. So real cores are
driven through random runs of the world, with faults, each core stepping on from where it is and with a clock
that runs, and every packet they send is compared with what the table says.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from inaproto.core.switch.region import Region
from inaproto.errors import InvariantBroken
from inaproto.sim.explore.ring import live_rank, switch_machine
from inaproto.sim.explore.ring.live_rank import LiveRank
from inaproto.sim.explore.ring.steps import DELIVER, DELIVER_LATER, Step
from inaproto.sim.explore.ring.switch_machine import emissions, fresh_accelerator
from inaproto.sim.explore.ring.variants import ring_config
from inaproto.sim.explore.ring.world import RingWorld, State
from inaproto.units import MS, Instant

STEPS_MAX = 400


class Untouched:
    """One run of the world with live cores beside the tables."""

    def __init__(self, world: RingWorld, seed: str) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.ranks = [LiveRank(world.config, world.packets, rank) for rank in range(world.config.ranks)]
        self.accelerator = fresh_accelerator(world.config)
        self.state: State = next(iter(world.initial()))
        self.now = 0
        self.steps = 0

    def run(self) -> None:
        while self.steps < STEPS_MAX:
            step = self._choose()
            if step is None:
                break
            self._take(*step)
        else:
            raise AssertionError(f"no end after {STEPS_MAX} steps")
        assert self.world.is_finished(self.state)

    def _choose(self) -> tuple[Step, State] | None:
        """A step that can happen at this time: whether a NAK comes too soon is for the clock to say."""
        self.now += self.random.choice((1, MS, 200 * MS))
        options = self.world.successors(self.state)
        both = {step.where for step, _ in options if step.what == DELIVER_LATER}
        possible = [
            (step, after)
            for step, after in options
            if step.where not in both
            or step.what not in (DELIVER, DELIVER_LATER)
            or (step.what == DELIVER) == self._is_too_soon(step)
        ]
        faults = [option for option in possible if self.world.is_fault(option[0])]
        plain = [option for option in possible if not self.world.is_fault(option[0])]
        if faults and (not plain or self.random.random() < 0.2):
            return self.random.choice(faults)
        return self.random.choice(plain) if plain else None

    def _is_too_soon(self, step: Step) -> bool:
        rank, _ = self.world.local_event(self.state, step)
        requester = self.ranks[rank].requester
        nak = self.world.packets[self.world.head(self.state, step.where)]
        state = vars(requester)
        went_back = state["_went_back"]
        if went_back is None or (int(nak.run.psn[0]) - requester.view().una_psn) & requester.config.psn_mask:
            return True  # it makes progress, and is honoured either way
        round_trip = state["_round_trip_ns"]
        limit = requester._first_ns if round_trip is None else round_trip // 2
        return bool(self.now - went_back[1] < limit)

    def _take(self, step: Step, after: State) -> None:
        component, event = self.world.local_event(self.state, step)
        says = self.world.sent(self.state, step)
        if component == self.world.config.ranks:
            does, violation = emissions(self.accelerator, self.world.packets, event)
            assert violation is None
        else:
            live = self.ranks[component]
            does = live.step(event, Instant(self.now))
            self.now = max(self.now, live._now)
            assert live.violation is None
        assert does == says, f"step {self.steps}: {self.world.describe([(self.state, step)])}"
        self.state = after
        self.steps += 1


@pytest.mark.parametrize(
    "options",
    [
        {"losses": 2, "length": 2},
        {"losses": 1, "duplicates": 2, "length": 3, "ack_every": 1, "last_packets": 2},
        {"losses": 2, "duplicates": 1, "ranks": 3, "window": 2, "length": 1},
        {"losses": 1, "duplicates": 2, "window": 2, "length": 2, "reorder": True},
        {"losses": 2, "early_timers": 3, "length": 2, "last_packets": 1},
    ],
    ids=str,
)
def test_cores_that_go_on_do_as_the_tables_say(options: dict[str, int]) -> None:
    world = RingWorld(ring_config(reduced=False, **options))  # type: ignore[arg-type]
    lengths = []
    for seed in range(20):
        run = Untouched(world, f"{seed}/{options}")
        run.run()
        lengths.append(run.steps)
    # Tables serve many runs: the states in them were merged, or this would compare nothing.
    assert sum(len(rank) for rank in world.ranks) + len(world.switch) < sum(lengths)


def test_what_memory_held_before_has_no_part_in_a_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps in an accelerator whose fresh memory is full of noise give the same numbers."""

    def numbers() -> list[tuple[int, object]]:
        world = RingWorld(ring_config(length=2, losses=1, last_packets=1))
        state = next(iter(world.initial()))
        chooser = random.Random(5)
        seen: list[tuple[int, object]] = []
        while options := world.successors(state):
            step, state = chooser.choice(options)
            seen.append((state[world.config.ranks], step))
        return seen

    plain = numbers()
    empty = np.empty
    noise = random.Random(6)

    def noisy(shape: object, dtype: object = float) -> object:
        array = empty(shape, dtype)  # type: ignore[call-overload]
        array.reshape(-1).view(np.uint8)[:] = list(noise.randbytes(array.nbytes))
        return array

    monkeypatch.setattr(np, "empty", noisy)
    assert numbers() == plain


def test_an_attribute_that_nobody_has_judged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch_machine, "_REGION_VALUES", switch_machine._REGION_VALUES[1:])
    assert "serial" in Region.__slots__
    with pytest.raises(InvariantBroken, match="serial"):
        RingWorld(ring_config())


@pytest.mark.parametrize(
    ("module", "table", "rest", "left_out"),
    [
        (switch_machine, "_ARRAY_VALUES", "_ARRAY_REST", "next_offset"),
        (switch_machine, "_REGION_VALUES", "_REGION_REST", "pending"),
        (live_rank, "LEFT_OUT", None, "_silent"),
        (live_rank, "LEFT_OUT", None, "_window"),
    ],
)
def test_a_fingerprint_that_leaves_something_out_is_found(
    module: Any, table: str, rest: str | None, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison above is worth something: each of these, left out, makes tables and cores differ."""
    if rest is None:
        monkeypatch.setattr(module, table, getattr(module, table) | {left_out})
    else:
        monkeypatch.setattr(module, table, tuple(x for x in getattr(module, table) if x != left_out))
        monkeypatch.setitem(getattr(module, rest), left_out, "left out")
    with pytest.raises((AssertionError, InvariantBroken)):
        compare(20)


def compare(seeds: int) -> None:
    for options in ({"losses": 2, "length": 2}, {"losses": 1, "duplicates": 2, "length": 3, "ack_every": 1}):
        world = RingWorld(ring_config(reduced=False, **options))  # type: ignore[arg-type]
        for seed in range(seeds):
            Untouched(world, f"{seed}/{options}").run()
