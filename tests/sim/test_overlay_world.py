"""Overlay worlds: push, pull and clock over trees of hosts, by the real cores, whatever befalls them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from inaproto.core.models.events import Mark
from inaproto.errors import ConfigError
from inaproto.sim.campaign.log import Program
from inaproto.sim.campaign.replay import Parts
from inaproto.sim.kernel.world import RunResult
from inaproto.sim.models.config import (
    FIRST_SERVER,
    FaultKind,
    OverlayConfig,
    OverlayFault,
    ShardSetup,
    WorkerSetup,
)
from inaproto.sim.models.drawing import draw_overlay
from inaproto.sim.models.world import OverlayWorld
from inaproto.units import MS
from tests.seeds import seeds

PROGRAM = Program("0.1.0")
PARTS = Parts()
CHAIN = ((0, (1,)), (1, (2,)), (FIRST_SERVER, (0,)))
"""Three hosts, one below the other, the last three edges from the server."""


def world(**changes: object) -> OverlayConfig:
    """Three workers of 8 updates, one below the other, and nothing that befalls them."""
    config = OverlayConfig(
        seed="calm",
        hosts=(0, 1, 2),
        workers=tuple(WorkerSetup(host=host, clocks=8, think_ns=MS) for host in (0, 1, 2)),
        shards=(ShardSetup(below=CHAIN),),
        weather_until_ns=40 * MS,
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def run(**changes: object) -> RunResult[OverlayConfig]:
    result = OverlayWorld(world(**changes)).run()
    assert result.violation is None
    return result


FOUND: Final = (786,)
"""Worlds in which campaigns found a broken rule, or a checker that was wrong: a node that no longer speaks
for a worker forgets what the root has of it."""


@pytest.mark.parametrize("seed", [*seeds(24), *FOUND])
def test_every_rule_holds(seed: int) -> None:
    result = OverlayWorld(draw_overlay(seed)).run()
    rerun = f"inaproto soak --world overlay --seed {seed}"
    assert result.violation is None, f"{result.violation}; rerun: {rerun}"
    assert result.operations_done


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_no_staleness_is_serial_training_bit_for_bit(dtype: str) -> None:
    result = run(shards=(ShardSetup(below=CHAIN, dtype=dtype, begins_trained=True),))
    # An answer at least to each worker and clock, and as many words from the server.
    assert result.marks["weights were those of serial training, bit for bit"] >= 2 * 3 * 8 // 2
    assert result.marks["a node pushed once for each clock"] == 3


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_with_staleness_pushes_are_withheld_and_weights_may_be_old(staleness: int) -> None:
    workers = tuple(WorkerSetup(host=host, clocks=24, think_ns=(1 + 6 * host) * MS) for host in (0, 1, 2))
    result = run(workers=workers, shards=(ShardSetup(below=CHAIN, staleness=staleness, ahead_max=12),))
    assert "a push was withheld until a multiple" in result.marks
    assert "weights were as old as they may be" in result.marks


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind is not FaultKind.BURST])
@pytest.mark.parametrize("staleness", [0, 2])
def test_each_fault_alone_is_survived(kind: FaultKind, staleness: int) -> None:
    for target in range(3):
        for at in (1, 4, 9):
            fault = OverlayFault(at * MS, kind, target, 20 * MS)
            result = run(faults=(fault,), shards=(ShardSetup(below=CHAIN, staleness=staleness),))
            assert result.marks[f"fault: {kind}"] == 1


def test_an_interior_node_that_dies_is_passed_over_and_returned_to() -> None:
    result = run(faults=(OverlayFault(4 * MS, FaultKind.HOST_CRASH, 1, 30 * MS),))
    for mark in (Mark.PARENT_DEAD, Mark.ADOPTED, Mark.RETURNED):
        assert mark.value in result.marks
    assert "a worker resumed at a later clock" in result.marks


def test_two_nodes_that_die_tear_the_tree_down_and_it_is_built_up() -> None:
    crashes = tuple(OverlayFault(4 * MS, FaultKind.HOST_CRASH, target, 30 * MS) for target in (0, 1))
    result = run(faults=crashes)
    assert Mark.TORN_DOWN.value in result.marks
    assert Mark.BUILT_UP.value in result.marks


def test_a_host_that_is_lost_is_removed_and_the_others_end() -> None:
    result = run(faults=(OverlayFault(4 * MS, FaultKind.HOST_LOST, 1, 10 * MS),))
    assert result.marks["a worker was finished"] == 2


def test_several_shards_are_trained_together() -> None:
    below = (
        CHAIN,
        ((FIRST_SERVER + 1, (2, 1, 0)),),
        ((2, (0, 1)), (FIRST_SERVER + 2, (2,))),
    )
    shards = tuple(ShardSetup(below=tree, staleness=s) for s, tree in enumerate(below))
    crash = OverlayFault(6 * MS, FaultKind.HOST_CRASH, 2, 10 * MS)
    run(shards=shards, faults=(crash,))


# --- the configuration


def test_seeds_draw_all_that_there_is() -> None:
    drawn = [draw_overlay(seed) for seed in range(300)]
    setups = [setup for config in drawn for setup in config.shards]
    assert {setup.staleness for setup in setups} == {0, 1, 2, 3}
    assert {setup.dtype for setup in setups} == {"int32", "int64", "float32", "float64"}
    assert {len(config.shards) for config in drawn} == {1, 2, 3}
    assert {fault.kind for config in drawn for fault in config.faults} == set(FaultKind)
    assert any(setup.fraction_bits >= 0 for setup in setups)
    assert max(config.tree(0).height() for config in drawn) >= 3
    assert any(len(config.workers) < len(config.hosts) for config in drawn)


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": ()},
        {"shards": ()},
        {"hosts": (0, 1, 1)},
        {"workers": (WorkerSetup(0, 1, 1), WorkerSetup(0, 1, 1))},
        {"workers": (WorkerSetup(7, 1, 1),)},
        {"workers": (WorkerSetup(0, 0, 1),)},
        {"shards": (ShardSetup(below=((FIRST_SERVER, (0, 1)),)),)},
        {"shards": (ShardSetup(below=((FIRST_SERVER, (0, 1, 1)),)),)},
        {"shards": (ShardSetup(below=CHAIN, dtype="int8"),)},
        {"faults": (OverlayFault(-1, FaultKind.BURST),)},
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="overlay world"):
        world(**changes)
