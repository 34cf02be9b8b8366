"""Push, pull and clock explored: whatever the order, every rule holds and all can finish.

Sizes are for every day; ``inaproto explore --world overlay`` runs larger ones.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from click.testing import CliRunner, Result

from inaproto.core.models.events import Heard, Mark, NodeAction, NodeConfig, NodeEvent, Noted
from inaproto.core.models.node import ShardNode
from inaproto.errors import ConfigError, InvariantBroken
from inaproto.sim.explore.engine import Verdict, explore
from inaproto.sim.explore.models.config import NOW, ROOT, OverlayWorldConfig
from inaproto.sim.explore.models.seats import Heeded, Seats
from inaproto.sim.explore.models.symmetry import NotAlike
from inaproto.sim.explore.models.waits import waits_of
from inaproto.sim.explore.models.world import OverlayExplored, State
from inaproto.units import Instant
from inaproto.wire.messages.models import HeartbeatAnswer, Merged
from inaproto_hil.explore import explore as command
from inaproto_hil.explore.worlds import WORLDS, search_named
from tests.planted.overlay_faults import FAULTS

SMALL: dict[str, dict[str, Any]] = {
    "a crash of two": {"tree": "two"},
    "torn down": {"tree": "two", "failures": 1},
    "interior": {"tree": "interior", "crashes": 0},
    "a reset": {"tree": "two", "crashes": 0, "resets": 1},
    "staleness": {"tree": "pair", "staleness": 1, "clocks": 2, "crashes": 0},
    "a process ends": {"tree": "interior", "crashes": 0, "abandons": 1},
    "two pulls": {"tree": "pair", "clocks": 2, "pulls": 2, "crashes": 0},
}


def explored(**sizes: Any) -> Verdict:
    return explore(OverlayExplored(OverlayWorldConfig(**sizes)), states_max=60_000, must_end=True)


@pytest.mark.parametrize("sizes", SMALL.values(), ids=SMALL)
def test_the_product_holds(sizes: dict[str, Any]) -> None:
    verdict = explored(**sizes)
    assert verdict.counterexample is None
    assert verdict.finished >= 1


def test_three_workers_and_one_crash_anywhere() -> None:
    """The acceptance line, with the tree that is quickest."""
    verdict = explored(tree="flat")
    assert verdict.counterexample is None
    assert verdict.states > 5_000


PLANTED: dict[str, tuple[str, ...]] = {
    "a crash of two": (
        "nothing_kept",
        "merges_what_is_inside",
        "resumes_from_the_beginning",
    ),
    "torn down": ("acknowledges_before_durable",),
    "interior": ("window_sent_in_parts", "merged_told_too_soon"),
    "a reset": ("root_merges_what_is_inside",),
    "staleness": ("forwards_too_late", "flush_forgotten"),
    "two pulls": ("answers_from_a_stale_cache",),
}
WITH_AND_WITHOUT = [
    *((name, "") for name in SMALL),
    *((name, fault) for name, faults in PLANTED.items() for fault in faults),
]


@pytest.mark.parametrize(("name", "fault"), WITH_AND_WITHOUT)
def test_the_reductions_keep_the_verdict(name: str, fault: str) -> None:
    """With a mistake in the product too: whether it is found, and what it breaks."""
    planted: AbstractContextManager[object] = FAULTS[fault]() if fault else nullcontext()
    with planted:
        whole, reduced = (explored(**SMALL[name], reduced=reduced) for reduced in (False, True))
    assert reduced.states < whole.states
    found, found_reduced = whole.counterexample, reduced.counterexample
    assert (found is None) == (found_reduced is None)
    if found is not None and found_reduced is not None:
        assert found_reduced.kind is found.kind


class _InAnyOrder(OverlayExplored):
    """Nodes that are alike are told apart, or not; the steps of all of them are tried."""

    def __init__(self, sizes: dict[str, Any], *, exchanged: bool) -> None:
        super().__init__(OverlayWorldConfig(**sizes))
        self.exchanged = exchanged
        self.reductions, vars(self)["_reductions"] = self._reductions, self

    def enough(self, state: State) -> tuple[int, ...]:
        return (*map(int, self.config.nodes), int(ROOT))

    def in_one_order(self) -> None:
        vars(self)["_reductions"] = self.reductions

    def canonical(self, state: State) -> State:
        return super().canonical(state) if self.exchanged else self._sessions.canonical(state)


def reached(world: OverlayExplored) -> tuple[set[State], set[State]]:
    """(states, finished ones)."""
    seen = {world.canonical(state) for state in world.initial()}
    ahead = list(seen)
    while ahead:
        for _, after in world.successors(ahead.pop()):
            after = world.canonical(after)
            if after not in seen:
                seen.add(after)
                ahead.append(after)
    return seen, {state for state in seen if world.is_finished(state)}


EXCHANGED: dict[str, dict[str, Any]] = {
    **{name: SMALL[name] for name in ("a crash of two", "torn down", "interior", "a process ends")},
    "three": {"tree": "flat", "crashes": 0},
    "staleness of two": {"tree": "two", "staleness": 1, "clocks": 2, "crashes": 0},
}


@pytest.mark.parametrize("sizes", EXCHANGED.values(), ids=EXCHANGED)
def test_one_state_of_those_that_are_alike_stands_for_each(sizes: dict[str, Any]) -> None:
    """All states, and all ends, of a search that tells alike nodes apart, and no others."""
    world = _InAnyOrder(sizes, exchanged=False)
    whole = reached(world)
    world.exchanged = True
    folded = reached(world)
    for apart, one in zip(whole, folded, strict=True):
        assert {world.canonical(state) for state in apart} == one
    assert len(folded[0]) < len(whole[0])
    for exchange in world.exchanges:
        assert {exchange.of(state) for state in whole[0]} == whole[0]


@pytest.mark.parametrize("sizes", SMALL.values(), ids=SMALL)
def test_every_end_of_any_order_is_one_of_the_orders_that_are_tried(sizes: dict[str, Any]) -> None:
    """States in which nothing can happen any more; broken rules end a search at once."""
    world = _InAnyOrder(sizes, exchanged=True)
    whole = reached(world)[0]
    world.in_one_order()
    tried = reached(world)[0]
    assert tried < whole
    assert ends(world, tried) == ends(world, whole) != set()


def ends(world: OverlayExplored, states: set[State]) -> set[State]:
    return {state for state in states if not world.successors(state)}


@pytest.mark.parametrize("faults", ["crashes", "resets"])
def test_what_nobody_heeds_makes_no_other_end(faults: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers to heartbeats said and heard, in any order with all else, or not said."""
    sizes: dict[str, Any] = {"tree": "pair", "struck": "ends", "crashes": 0, "resets": 0, faults: 1}
    world = OverlayExplored(OverlayWorldConfig(**sizes))
    quiet = reached(world)[0]
    monkeypatch.setattr(
        Seats, "_tell", lambda self, effect, peer, word: effect.tell(peer, self.words.of(word))
    )
    vars(world)["_outcomes"].clear()
    loud = reached(world)[0]
    assert len(loud) > len(quiet)
    assert ends(world, loud) == ends(world, quiet) != set()


class _Heeds(ShardNode):
    """Answers to heartbeats, as if they were more."""

    def step(self, event: NodeEvent, now: Instant) -> list[NodeAction]:
        is_answer = isinstance(event, Heard) and isinstance(event.word, HeartbeatAnswer)
        return [*super().step(event, now), *([Noted(Mark.FLUSHED)] if is_answer else [])]


def test_who_heeds_what_is_left_out_is_found() -> None:
    with pytest.raises(Heeded, match="node 0 heeds a heartbeat's answer"):
        explored(tree="pair", node=lambda config: _Heeds(config, NOW))


class _Deaf(ShardNode):
    """To what it hears of the root."""

    def step(self, event: NodeEvent, now: Instant) -> list[NodeAction]:
        is_heard = not (isinstance(event, Heard) and isinstance(event.word, Merged))
        return super().step(event, now) if is_heard else []


def test_nodes_that_are_not_treated_alike_are_no_twins() -> None:
    def node(config: NodeConfig) -> ShardNode:
        return (_Deaf if config.node == 1 else ShardNode)(config, NOW)

    with pytest.raises(NotAlike, match="has two twins"):
        explored(tree="two", node=node)


def test_where_alike_nodes_are_not_treated_alike_nothing_is_reduced() -> None:
    with FAULTS["multicast_to_one"]():
        report = search_named("overlay", "torn-down", ["clocks=1", "failures=2"], 60_000, reduced=True)
    assert report.counterexample is not None
    assert report.is_shortest


@pytest.mark.parametrize("fault", ["merged_told_too_soon", "acknowledges_before_durable"])
def test_a_mistake_is_found(fault: str) -> None:
    with FAULTS[fault]():
        found = explored(tree="pair", crashes=0).counterexample
    assert found is not None
    assert "on the disk is" in found.rule


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="tree 'star' does not exist"):
        OverlayWorldConfig(tree="star")
    with pytest.raises(ConfigError, match="clocks must be a multiple"):
        OverlayWorldConfig(staleness=1)
    with pytest.raises(ConfigError, match="struck must be one of any, ends, nodes, not 'leaves'"):
        OverlayWorldConfig(struck="leaves")
    with pytest.raises(ConfigError, match="crashes must be 0 to 2"):
        OverlayWorldConfig(crashes=3)


class _WaitsForMore(ShardNode):
    @property
    def deadline(self) -> Instant | None:
        return Instant(5)


def test_a_wait_that_the_exploration_does_not_know_is_not_passed_over() -> None:
    config = OverlayWorldConfig(tree="two")
    core = _WaitsForMore(config.node_config(config.nodes[0]), NOW)
    with pytest.raises(InvariantBroken, match="_WaitsForMore waits until 5"):
        waits_of(core)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, env={"COLUMNS": "200"})


def test_the_command_explores_it() -> None:
    asked = ["--world", "overlay", "--variant", "pulls"]
    done = run(*asked, "--set", "tree=two")
    assert done.exit_code == 0, done.output
    assert "violations" in done.output
    done = run(*asked, "--set", "size=3")
    assert done.exit_code == 2
    assert "--set size: there are tree" in done.output


def test_without_a_variant_the_command_explores_all_that_take_no_more_than_a_minute() -> None:
    sizes = ("crashes=0", "clocks=2", "tree=two")
    done = run("--world", "overlay", "--json", "-", *(word for size in sizes for word in ("--set", size)))
    assert done.exit_code == 0, done.output
    reports = json.loads(done.stdout)["worlds"]
    assert [report["variant"] for report in reports] == list(WORLDS["overlay"].product)
    assert all(report["violations"] == 0 and report["states"] > 20 for report in reports)
    assert done.stderr.count("violations") == len(reports)


@pytest.mark.parametrize("world", ["overlay", "sharing"])
def test_a_world_without_its_option_is_told_of_it(world: str) -> None:
    done = run(world)
    assert done.exit_code == 2
    assert f"Error: did you mean --world {world}?" in done.output
