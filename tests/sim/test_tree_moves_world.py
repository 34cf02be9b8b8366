"""Worlds in which rings through the switches move under their jobs: no result differs, and none is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.rendezvous.tree_moves import TreeMoves
from inaproto.core.switch.aggregator import AggregatorArray
from inaproto.errors import ConfigError
from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.campaign.marks import declared_of
from inaproto.sim.frames.draw.shared import draw_shared
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, JobConfig, Swarm, TreeMove, WorldConfig
from inaproto.sim.frames.draw.topology import FurtherRoot, LinkConfig, leaf_spine
from inaproto.units import MS, S
from tests.seeds import seeds
from tests.sim.worlds import run

SMALL = Swarm(ranks_max=5, jobs_max=2, packets_max=300)
COUNT = 40
MOVED = "a ring moved under traffic"
PARKED = "a ring was parked under its job"
HALTED = "a rank was halted"


def moving(*moves: TreeMove, **changes: Any) -> WorldConfig:
    """A job of four ranks in two racks below two spines, all of whose all-reduces are the switches'."""
    tree = leaf_spine(2, 4)
    tree = replace(tree, further_roots=(FurtherRoot("spine1", (1, 2)),))
    job = JobConfig(
        "job0",
        (0, 1, 2, 3),
        tuple(400 + 7 * number for number in range(COUNT)),
        think_ns=MS,
        window_messages=4,
        path="shared",
        ina=tuple(range(1, COUNT)),
    )
    config = WorldConfig("moving", (job,), (LinkConfig(),) * 4, recover_ns=2 * S, topology=tree, moves=moves)
    return replace(config, **changes)


BACK_AND_FORTH = tuple(TreeMove(at * MS, 0, number % 2 - 1) for number, at in enumerate((8, 16, 24, 32), 1))


@pytest.mark.parametrize("seed", [seed for seed in seeds(40) if draw_shared(seed, SMALL).moves])
def test_every_rule_holds(seed: int) -> None:
    result = run(draw_shared(seed, SMALL))
    assert result.violation is None, f"{result.violation}; rerun: INAPROTO_SEEDS={seed}:{seed + 1}"


def test_a_ring_moves_back_and_forth_and_no_rank_is_halted() -> None:
    result = run(moving(*BACK_AND_FORTH))
    assert result.violation is None
    assert result.operations_done == 4 * COUNT
    assert result.marks[MOVED] == result.marks[PARKED] == len(BACK_AND_FORTH)
    assert HALTED not in result.marks
    assert result.marks["an all-reduce was bound to the ring in the switches"] > 4 * COUNT / 3


@pytest.mark.parametrize("kind", [FaultKind.SWITCH_REBOOT, FaultKind.SESSION_LOSS, FaultKind.NIC_RESET])
@pytest.mark.parametrize("at_ms", [8, 9, 12])
def test_whatever_befalls_a_job_whose_ring_moves_it_goes_on(kind: FaultKind, at_ms: int) -> None:
    fault = Fault(at_ms * MS, kind, 1, MS)
    result = run(moving(*BACK_AND_FORTH, faults=(fault,)))
    assert result.violation is None
    assert result.operations_done == 4 * COUNT


def test_a_spine_that_reboots_when_a_ring_is_to_go_there_keeps_it_waiting_and_no_rank_is_halted() -> None:
    fault = Fault(8 * MS, FaultKind.SWITCH_REBOOT, 3, 5 * MS)
    result = run(moving(TreeMove(8 * MS, 0, 0), faults=(fault,)))
    assert result.violation is None
    assert result.operations_done == 4 * COUNT
    assert HALTED not in result.marks
    assert result.marks[MOVED] == 1, "it goes there when the spine is back"


# --- faults of ours that such worlds find


def test_a_switch_that_forgets_with_which_message_a_ring_goes_on_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = AggregatorArray.__init__

    def from_zero(self: AggregatorArray, spec: Any) -> None:
        made(self, replace(spec, first_message=0))

    monkeypatch.setattr(AggregatorArray, "__init__", from_zero)
    result = run(moving(*BACK_AND_FORTH))
    assert result.violation is not None


def test_a_rendezvous_that_asks_no_host_to_park_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: TreeMoves, job: Any, wish: Any) -> Any:
        job.tree.epoch = wish.epoch
        return self._take_away(job)

    monkeypatch.setattr(TreeMoves, "_park", at_once)
    results = [run(moving(*BACK_AND_FORTH, seed=f"unasked {number}")) for number in range(3)]
    assert any(result.violation is not None for result in results)


# --- configurations


def test_what_cannot_move() -> None:
    with pytest.raises(ConfigError, match="a ring of job 1 is to move"):
        moving(TreeMove(MS, 1))
    with pytest.raises(ConfigError, match="a ring is to move to root 1 of 1 further ones"):
        moving(TreeMove(MS, 0, 1))
    assert WorldConfig.from_record(moving(*BACK_AND_FORTH).as_record()) == moving(*BACK_AND_FORTH)


def test_what_is_drawn_and_declared() -> None:
    drawn = [draw_shared(seed) for seed in range(60)]
    moves = [move for config in drawn for move in config.moves]
    assert 10 < sum(bool(config.moves) for config in drawn) < 35
    assert {move.at_once for move in moves} == {True, False}
    assert {move.root for move in moves} >= {-1, 0}
    assert MOVED in declared_of(WorldKind.SHARED)
